"""`probe compare-answers`: what changed between two tables of answers, by family and field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_MOST_MOVES = 20

EPILOG = """Example:

\b
probe ask --shapes campaigns/table2.toml --library 13.1 -o a.parquet
probe ask --shapes campaigns/table2.toml --library 13.10 -o b.parquet
probe compare-answers a.parquet b.parquet

Exit codes: 0 no answer changed, 1 some changed or a question is in one table only, 2 usage."""


def command(
    a: Annotated[Path, typer.Argument(help="A file of probe ask -o.", show_default=False)],
    b: Annotated[Path, typer.Argument(help="Another.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, also for a failure.")] = False,
) -> None:
    """Tell which answers differ between two tables, question by question."""
    from probe.asking.compare import compare_answers
    from probe.cli.stream import emit, emit_json

    found = compare_answers(a, b)
    if as_json:
        emit_json(found.to_document())
        raise typer.Exit(int(found.exit_code))
    lines = [f"{'a':<11}{a}: {found.a.target}", f"{'b':<11}{b}: {found.b.target}",
             f"{'compared':<11}{found.compared:,} questions, {found.changed:,} with another answer"]
    lines += [f"{'only in ' + x:<11}{count:,} questions" for x, count in (("a", found.only_a), ("b", found.only_b)) if count]
    lines += [f"{'fields' if i == 0 else '':<11}{count:>11,}  {name}" for i, (name, count) in enumerate(found.fields.items())]
    for i, (name, (count, moved)) in enumerate(found.families.items()):
        lines.append(f"{'families' if i == 0 else '':<11}{moved:>11,} of {count:,}  {name}")
    for i, move in enumerate(found.moves[:_MOST_MOVES]):
        what = f"{move.before} -> {move.after}" if move.before != move.after else f"{move.before}: {', '.join(move.fields)}"
        lines.append(f"{'moves' if i == 0 else '':<11}{move.count:>11,}  {what}, first {move.first}")
    if len(found.moves) > _MOST_MOVES:
        lines.append(f"{'':<11}and {len(found.moves) - _MOST_MOVES} more moves (--json has them)")
    emit("\n".join(lines))
    raise typer.Exit(int(found.exit_code))
