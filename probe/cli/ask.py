"""`probe ask`: what a library answers to many problems, without running anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

_SECONDS_A_LINE = 10.0  # off a terminal, where every line stays

EPILOG = """Examples:

\b
probe ask --shapes linear --library 13.1 -o linear-13.1.parquet
probe ask --shapes shapes.txt --dtype bf16 --layout tn --workspace 0 --json
probe ask --shapes campaigns/table2.toml --problems 8000000 --distinct -o distinct.parquet

Exit codes: 0 answered, 2 usage, 3 nothing was answered, 4 environment."""


def command(
    shapes: Annotated[str, typer.Option(help="A regime (acceptance, split, linear, small); a file: text with one MxNxK [dtype out layout "
                                             "fast] a line, .csv or .parquet; or a campaign file (.toml).", show_default=False)],
    library: Annotated[str | None, typer.Option(help="As probe walk takes it.")] = None,
    gpu: Annotated[int, typer.Option(help="Number of the GPU.")] = 0,
    dtype: Annotated[str | None, typer.Option(help="fp16, bf16 or e4m3: of a regime these; of a file where a line says none.")] = None,
    out: Annotated[str | None, typer.Option(help="Output dtype, used in the same way.")] = None,
    layout: Annotated[str | None, typer.Option(help="nn, tn, nt or tt, used in the same way.")] = None,
    fast_accumulation: Annotated[bool | None, typer.Option("--fast-accumulation/--no-fast-accumulation", show_default=False,
                                                           help="The mode of e4m3, used in the same way.")] = None,
    workspace: Annotated[str | None, typer.Option(help="Workspace that the library may use. Default: 32MiB; a campaign file says its own.",
                                                  show_default=False)] = None,
    reduction_schemes: Annotated[int | None, typer.Option(help="Allowed split-K reduction schemes, as a sum: 1 in place, 2 compute type, "
                                                               "4 output type. Default: 7; a campaign file says its own.",
                                                          show_default=False)] = None,
    problems: Annotated[int | None, typer.Option(help="The first so many. Default: all of a list; what a campaign file's budget names.",
                                                 show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="Of what a campaign file draws, in place of its own.", show_default=False)] = None,
    processes: Annotated[int | None, typer.Option(help="Default: one a core.", show_default=False)] = None,
    distinct: Annotated[bool, typer.Option("--distinct", help="A row a different answer, with its count and first question.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new .parquet file, a row a question.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, also for a failure.")] = False,
) -> None:
    """Ask the cost model for many problems, in processes over all cores. Nothing is launched."""
    from probe.asking.run import ask
    from probe.cli.stream import emit, emit_json, say
    from probe.cli.walk import _bytes

    with _progress() as progress:
        asked = ask(shapes, library=library, gpu=gpu, dtype=dtype, out=out, layout=layout, fast_accumulation=fast_accumulation,
                    workspace_bytes=None if workspace is None else _bytes(workspace), reduction_schemes=reduction_schemes,
                    problems=problems, seed=seed, processes=processes, distinct=distinct, output=output, progress=progress, notice=say)
    document = asked.to_document()
    if as_json:
        emit_json(document)
    else:
        rate = asked.questions / max(asked.seconds, 1e-9)
        source = asked.shapes + ("" if asked.seed is None else f", seed {asked.seed}")
        source += f", {asked.repeats} repeats left out" if asked.repeats else ""
        lines = [f"{'asked':<11}{asked.questions:,} questions ({source})", f"{'target':<11}{asked.target}",
                 f"{'rate':<11}{rate:,.0f} a second over {asked.processes} processes, {asked.seconds:.1f} s",
                 f"{'distinct':<11}{document['distinct']:,} different answers"]
        lines += [f"{'family' if i == 0 else '':<11}{count:>11,}  {name}" for i, (name, count) in enumerate(document["families"].items())]
        lines += [f"{'declined' if i == 0 else '':<11}{count:>11,}  {name}" for i, (name, count) in enumerate(document["declined"].items())]
        emit("\n".join(lines + ([] if output is None else [f"{'written':<11}{output}"])))
    raise typer.Exit(int(asked.exit_code))


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """On a terminal a bar; elsewhere a line on stderr every few seconds."""
    import sys

    from probe.cli.stream import say

    if not sys.stderr.isatty():
        last = time.monotonic()

        def tell(done: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last >= _SECONDS_A_LINE:
                last = time.monotonic()
                say(f"{done:,} of {total:,} questions")

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("ask", total=None)
        yield lambda done, total: bar.update(task, total=total, completed=done)
