"""`probe pack`: a campaign's evidence in one hashed file; `probe pack check`: whether such a file holds together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from probe.packs.run import Packed

EPILOG = """Examples:

\b
probe pack table2 -o table2.pack
probe pack table2.parquet --readings recorded/ -o table2.pack
probe pack check table2.pack --replay

Exit codes: 0 it holds together, 1 a replayed recording does not give what it says, 2 it does not, or usage, 4 environment."""


def command(
    dataset: Annotated[str, typer.Argument(help='The folder of a campaign, or a file of its export or compact; or the word "check".',
                                           show_default=False)],
    file: Annotated[Path | None, typer.Argument(help="After check: the pack.", show_default=False)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new .pack file.", show_default=False)] = None,
    readings: Annotated[Path | None, typer.Option(help="A folder of recordings that go into the pack.", show_default=False)] = None,
    replay: Annotated[bool, typer.Option("--replay", help="check: walk the recordings again, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, also for a failure.")] = False,
) -> None:
    """Put target, answers, readings and verdicts of a campaign into one file, or check one: every size, hash and field."""
    from probe.cli.stream import emit, emit_json, progress_line
    from probe.errors import UsageError
    from probe.packs.run import check_pack, pack

    with progress_line() as step:
        def progress(done: int, total: int) -> None:
            step(f"{done:,} of {total:,} rows")

        if dataset == "check" and file is not None:
            if output is not None or readings is not None:
                raise UsageError("check writes nothing", "leave out -o and --readings")
            packed = check_pack(file, replayed=replay, progress=progress)
        elif file is not None or replay:
            raise UsageError("one dataset is packed", "probe pack DATASET -o FILE, or probe pack check FILE")
        elif output is None:
            raise UsageError("a pack needs a name", "-o NAME.pack")
        else:
            packed = pack(dataset, output, readings=readings, progress=progress)
    if as_json:
        emit_json(packed.to_document())
    else:
        emit("\n".join(_lines(packed)))
    raise typer.Exit(int(packed.exit_code))


def _lines(packed: Packed) -> list[str]:
    outcomes = ", ".join(f"{count} {name}" for name, count in packed.counts.to_document()["outcomes"].items() if count)
    replayed = "" if packed.failed is None else f", walked again, {len(packed.failed)} failed"
    return [f"{'pack':<11}{packed.path} ({packed.size / 2**20:.2f} MiB)", f"{'sha256':<11}{packed.sha256}",
            f"{'campaign':<11}{packed.campaign}, {packed.identity[:12]}",
            *(f"{'target' if i == 0 else '':<11}{name}: {target}" for i, (name, target) in enumerate(packed.targets.items())),
            f"{'rows':<11}{packed.counts.rows}: {outcomes}", f"{'readings':<11}{packed.readings}{replayed}",
            *(f"{'failed':<11}{line}" for line in packed.failed or ())]
