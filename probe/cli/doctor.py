"""`probe doctor`: is everything here that a walk on a GPU needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from probe.findings import Report

EPILOG = """Examples:

\b
probe doctor
probe doctor --library cu12
probe doctor --json

Writes nothing to disk. Exit codes: 0 a walk on a GPU can run, 4 something that it needs is missing or broken."""

_LABEL = 16  # columns of the names
_STYLES = {"ok": "green", "warn": "yellow", "missing": "red", "broken": "bold red"}


def command(
    library: Annotated[str | None, typer.Option(help="The library to judge, as probe walk takes it. Default: the one that a walk would "
                                                     "use.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, also for a failure.")] = False,
) -> None:
    """Look at GPU, driver, libraries, packages and permissions, and say what to do about each that is amiss."""
    from probe.cli.stream import emit_json, progress_line
    from probe.diagnosis import doctor

    with progress_line() as progress:
        report = doctor(library, progress=progress)
    if as_json:
        emit_json(report.to_document())
    else:
        _print(report)
    raise typer.Exit(int(report.exit_code))


def _print(report: Report) -> None:
    """One line a finding, and below it what to do; the sum of it last."""
    import sys

    from probe.cli.stream import emit

    lines: list[tuple[str, str]] = []  # text, style of its first word
    for finding in report.findings:
        lines.append((f"{finding.state:<8} {finding.name:<{_LABEL}} {finding.seen}", _STYLES[finding.state]))
        if finding.action:
            lines.append((f"{'':<8} {'':<{_LABEL}} -> {finding.action}", ""))
    lines.append((_verdict(report), _STYLES["ok" if report.ready else "missing"]))
    if not sys.stdout.isatty():
        emit("\n".join(text for text, _ in lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for text, style in lines:
        first = text.split(" ", 1)[0]
        console.print(Text.assemble((first, style), text[len(first):]), soft_wrap=True)


def _verdict(report: Report) -> str:
    from probe.checkup import BASE

    if report.ready:
        return "ready    a walk on a GPU can run: probe walk --shape 64x64x4096"
    names = list(dict.fromkeys(finding.name for finding in report.stoppers))
    simulated = "" if set(names) & set(BASE) else " The simulated library works here anyway: probe walk --shape 64x64x4096 --library sim"
    return f"not ready for a walk on a GPU: {', '.join(names)}.{simulated}"
