"""`probe diff-libraries`: what moved between two libraries, problem by problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

EPILOG = """Examples:

\b
probe diff-libraries sim sim-2 --shapes small
probe diff-libraries cu12 cu13 --shapes acceptance -o reports/data/cu12-cu13.parquet
probe diff-libraries 13.1 13.10 --shapes shapes.txt --dtype bf16 --layout tn --json
probe diff-libraries --report a.parquet --report b.parquet > report.md

Exit codes: 0 nothing moved, 1 something moved or was not confirmed, 2 usage, 3 everything was declined, 4 environment."""


def command(
    a: Annotated[str | None, typer.Argument(help="The first library: cu12, cu13, a version, a name, a path, sim, sim-2 or sim-vectors.",
                                            show_default=False)] = None,
    b: Annotated[str | None, typer.Argument(help="The second library, as the first.", show_default=False)] = None,
    shapes: Annotated[str | None, typer.Option(help="A regime (acceptance, split, linear, small) or a file: text with one "
                                                    "MxNxK [dtype out layout fast] a line, .csv or .parquet.")] = None,
    dtype: Annotated[str | None, typer.Option(help="fp16, bf16 or e4m3: of a regime only these; of a file where a line says none.")] = None,
    out: Annotated[str | None, typer.Option(help="Output dtype, used in the same way.")] = None,
    layout: Annotated[str | None, typer.Option(help="nn, tn, nt or tt, used in the same way.")] = None,
    fast_accumulation: Annotated[bool | None, typer.Option("--fast-accumulation/--no-fast-accumulation", show_default=False,
                                                           help="The mode of e4m3, used in the same way.")] = None,
    workspace: Annotated[str, typer.Option(help="Workspace that both libraries may use, for example 32MiB or 0.")] = "32MiB",
    reduction_schemes: Annotated[int, typer.Option(help="Allowed split-K reduction schemes, as a sum: 1 in place, 2 compute type, "
                                                        "4 output type.")] = 7,
    gpu: Annotated[int, typer.Option(help="Number of the GPU.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Seed of all draws. Default: a fresh one, which the dataset names.")] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for one request to a library; what takes longer is declined.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, also for a failure.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the rows to a new .parquet file as well.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run of the same command.")] = False,
    report: Annotated[list[Path] | None, typer.Option(help="Print the Markdown report of a dataset instead; may be repeated.",
                                                      show_default=False)] = None,
) -> None:
    """Tell for which problems two libraries answer differently, and for which they sum in another order: confirmed on bytes."""
    from probe.cli.stream import emit, emit_json, say
    from probe.errors import UsageError

    if report:
        from probe.difference.report import report_of

        if a is not None or shapes is not None or output is not None:
            raise UsageError("--report reads datasets and compares nothing", "leave out the libraries, --shapes and -o")
        emit(report_of(report))
        return
    if a is None or b is None or shapes is None:
        raise UsageError("two libraries and --shapes are needed", "probe diff-libraries A B --shapes acceptance")

    from probe.cli.show_differences import print_differences
    from probe.cli.walk import _bytes
    from probe.difference.run import diff_libraries

    with _progress() as progress:
        differences = diff_libraries(a, b, shapes, dtype, out, layout, fast_accumulation=fast_accumulation,
                                     workspace_bytes=_bytes(workspace), reduction_schemes=reduction_schemes, gpu=gpu, seed=seed,
                                     time_limit=time_limit, output=output, resume=resume, progress=progress, notice=say)
    if as_json:
        emit_json(differences.to_document())
    else:
        print_differences(differences, a, b)
        if output is not None:
            emit(f"{'written':<13}{output}")
    raise typer.Exit(int(differences.exit_code))


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str, str], None]]:
    """On a terminal a bar; elsewhere a line on stderr for each finished problem, since a run can take minutes."""
    import sys

    from probe.cli.stream import say

    if not sys.stderr.isatty():
        yield lambda done, total, case, verdict: say(f"{done}/{total} {case}: {verdict}") if verdict else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("open", total=None)
        yield lambda done, total, case, verdict: bar.update(task, total=total, completed=done, description=case)
