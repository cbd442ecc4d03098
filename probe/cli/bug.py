"""`probe bug`: show a fault of a library on this machine, and write what shows it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from probe.tail.search import TailFindings

EPILOG = """Examples:

\b
probe bug splitk-tail -o reports/splitk-tail
probe bug splitk-tail --library 12.8 -o reports/splitk-tail --json
probe bug splitk-tail --library sim -o /tmp/tail
probe bug splitk-tail --report -o reports/splitk-tail

Exit codes: 0 the fault shows and every control is whole, 1 it does not, 2 usage, 4 environment."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Show a known fault of cuBLASLt, if this library has it.")


@app.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        from probe.cli.stream import emit
        from probe.errors import ExitCode

        emit(context.get_help())
        raise typer.Exit(int(ExitCode.USAGE))


@app.command("splitk-tail", epilog=EPILOG)
def splitk_tail(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the script, the findings and the report.")],
    library: Annotated[str | None, typer.Option(help="As probe walk takes it. Default: the GPU and the installed library, or, announced, "
                                                     "the simulated one.")] = None,
    gpu: Annotated[int, typer.Option(help="Number of the GPU.")] = 0,
    most_k: Annotated[int, typer.Option(help="How far K is asked.")] = 65_536,
    report: Annotated[bool, typer.Option("--report", help="Run nothing: write the text for the vendor from the folder's results.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, also for a failure.")] = False,
) -> None:
    """Find the smallest split-K sums that lose the last values of k, run them and their controls, and write a script that shows it."""
    from probe.cli.stream import emit, emit_json, progress_line, say

    if report:
        from probe.reproducer import REPORT, report_splitk_tail

        text = report_splitk_tail(output)
        if as_json:
            emit_json({"kind": "splitk-tail-report", "file": str(output / REPORT), "text": text})
        else:
            emit(text.rstrip())
        return
    from probe.reproducer import bug_splitk_tail

    with progress_line() as progress:
        findings = bug_splitk_tail(output, library=library, gpu=gpu, most_k=most_k, progress=progress, notice=say)
    if as_json:
        emit_json(findings.to_document() | {"verdict": str(findings.verdict), "exit_code": int(findings.exit_code)})
    else:
        emit("\n".join(_lines(findings, output)))
    raise typer.Exit(int(findings.exit_code))


def _lines(findings: TailFindings, folder: Path) -> list[str]:
    """A line a run, the verdict, and what was written."""
    from probe.reproducer import findings_name
    from probe.tail.report import SCRIPT
    from probe.tail.search import Role, Verdict, parts_of

    lines = [f"target     {findings.target}", f"asked      {findings.asked:,} problems, K to {findings.most_k:,}"]
    for run in findings.runs:
        p, a = run.problem, run.answer
        name = f"{p.m}x{p.n}x{p.k} {p.a_dtype}"
        what = "sum" if run.role is Role.NAMED else f"  {run.role}"
        said = f"LOST {run.lost}" if run.lost else "whole"
        arrived = run.reading.units - run.lost
        lines.append(f"{what:<18} {name:<22} algo {a.algo_id}, {parts_of(run)}: {arrived} of {run.reading.units}, {said}")
    lines += [f"unrun      {text}" for text in findings.missing]
    named, controls = sum(r.role is Role.NAMED for r in findings.runs), len(findings.controls)
    verdict = {Verdict.SHOWS: f"the fault shows: {len(findings.short)} of {named} sums are short, all {controls} controls are whole",
               Verdict.ABSENT: f"this library has no such fault: 0 of {named} sums that the condition names are short",
               Verdict.UNCLEAR: "unclear: a control is short as well"}[findings.verdict]
    return [*lines, f"verdict    {verdict}", f"written    {folder / SCRIPT}, {folder / findings_name(findings.target)}"]
