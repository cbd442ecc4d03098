"""`probe campaign run | resume | status | stop | list | compact | import | export`: many problems, resumable, nothing lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from probe.campaign.progress import Event
    from probe.campaign.run import Ran

app = typer.Typer(no_args_is_help=True, help="Run many problems on several GPUs and libraries, resumable, nothing lost.")
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout; of run and resume one object a line, as things happen.")]
FolderArgument = Annotated[Path, typer.Argument(help="The folder of a campaign.", show_default=False)]
OneBudget = Annotated[str | None, typer.Option("--budget", help='Of this run alone: "500 problems" or "9min".', show_default=False)]
Gpus = Annotated[list[int] | None, typer.Option("--gpu", show_default=False,
                                                help="Number of a GPU, in place of the file's; may be repeated.")]

_SECONDS_A_LINE, _SECONDS_TO_FIRST = 60.0, 5.0  # off a terminal, where every line stays
_CODES = """Exit codes: 0 all confirmed but for declines, 1 something not confirmed or failed, 2 usage, 3 only declines, 4 environment or a
lost worker."""
RUN_EPILOG = f"""Examples:

\b
probe campaign run campaigns/minute.toml -o minute
probe campaign run campaigns/overnight.toml --library 13.1.0 --gpu 0 --gpu 1 -o night
probe campaign run campaigns/table2.toml --begin 6000 --budget 9min -o piece-3 --json

{_CODES}"""
RESUME_EPILOG = f"""Examples:

\b
probe campaign resume night
probe campaign resume night --budget "500 problems"

{_CODES}"""


@app.command("run", epilog=RUN_EPILOG)
def run(
    file: Annotated[Path, typer.Argument(help="A campaign file (docs/campaigns.md).", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The new folder. Default: the campaign's name.")] = None,
    library: Annotated[list[str] | None, typer.Option(help="In place of the file's; may be repeated.", show_default=False)] = None,
    gpu: Gpus = None,
    budget: OneBudget = None,
    begin: Annotated[int, typer.Option(help="First problem of the stream, for a campaign that is run in pieces.")] = 0,
    as_json: Json = False,
) -> None:
    """Begin a campaign in a new folder and run it. Ctrl-C ends it after the problems in flight, and keeps what is finished."""
    from probe.campaign.run import run_campaign
    from probe.cli.stream import emit, emit_json
    from probe.errors import Declined

    with _progress(as_json) as progress:
        ran = run_campaign(file, output, libraries=library or (), gpus=gpu, budget=budget, begin=begin, progress=progress)
    if isinstance(ran, Declined):
        if as_json:
            emit_json({"kind": "declined", "reason": str(ran.reason), "text": ran.text, "hint": ran.hint, "exit_code": int(ran.exit_code)})
        else:
            emit(f"declined     {ran}")
        raise typer.Exit(int(ran.exit_code))
    _finish(ran, as_json)


@app.command("resume", epilog=RESUME_EPILOG)
def resume(folder: FolderArgument, gpu: Gpus = None, budget: OneBudget = None, as_json: Json = False) -> None:
    """Go on with a campaign: the problems that are not finished."""
    from probe.campaign.run import resume_campaign

    with _progress(as_json) as progress:
        ran = resume_campaign(folder, budget=budget, gpus=gpu, progress=progress)
    _finish(ran, as_json)


@app.command("status")
def status(folder: FolderArgument, as_json: Json = False) -> None:
    """Tell how a campaign stands, at work or not. Its exit code is that of a run that ends now."""
    from probe.campaign.admin import status_campaign
    from probe.cli.stream import emit, emit_json

    found = status_campaign(folder)
    document = found.to_document()
    if as_json:
        emit_json(document)
    else:
        state = "not at work" if found.process is None else f"at work, process {found.process}"
        emit("\n".join([f"{'campaign':<13}{found.name}, seed {found.seed}, {found.identity[:12]}", f"{'state':<13}{state}",
                        f"{'rows':<13}{_of(found.counts.rows, found.total)}", *_counts(document["counts"])]))
        for name, counts in document["libraries"].items():
            emit(f"{name:<13}{counts['rows']} rows: {_words(counts['outcomes'])}; {found.targets[name]}")
    raise typer.Exit(int(found.exit_code))


@app.command("stop")
def stop(folder: FolderArgument, as_json: Json = False) -> None:
    """Ask the run that is at work in a folder to end after the problems in flight."""
    from probe.campaign.admin import stop_campaign
    from probe.cli.stream import emit, emit_json

    process = stop_campaign(folder)
    if as_json:
        emit_json({"kind": "campaign stop", "folder": str(folder), "process": process})
    else:
        emit(f"process {process} was asked to end after the problems in flight")


@app.command("list")
def list_(folder: Annotated[Path, typer.Argument(help="Where to look: it and the folders directly below it.")] = Path("."),
          as_json: Json = False) -> None:
    """List the campaigns of a folder."""
    from probe.campaign.admin import list_campaigns
    from probe.cli.stream import emit, emit_json

    found = list_campaigns(folder)
    if as_json:
        emit_json({"kind": "campaigns", "campaigns": [one.to_document() for one in found]})
        return
    for one in found:
        if one.status is None:
            emit(f"{one.folder}: {one.problem}")
        else:
            s = one.status
            at_work = "" if s.process is None else f", at work (process {s.process})"
            emit(f"{one.folder}: {s.name}, {_of(s.counts.rows, s.total)} rows, {_words(s.counts.to_document()['outcomes'])}{at_work}")
    if not found:
        emit(f"no campaign in {folder}")


@app.command("compact")
def compact(folder: FolderArgument,
            output: Annotated[Path, typer.Option("--output", "-o", help="A new .parquet file.", show_default=False)],
            as_json: Json = False) -> None:
    """Write all finished rows as one small dataset, to be committed."""
    from probe.campaign.admin import compact_campaign

    _written("campaign compact", [compact_campaign(folder, output)], as_json)


@app.command("export")
def export(folder: FolderArgument,
           output: Annotated[Path, typer.Option("--output", "-o", help="A new .parquet file; several where it passes 16 MiB.",
                                                show_default=False)],
           as_json: Json = False) -> None:
    """Write all finished rows as an archive, for `import` on another machine."""
    from probe.campaign.admin import export_campaign

    _written("campaign export", list(export_campaign(folder, output)), as_json)


@app.command("import")
def import_(archives: Annotated[list[Path], typer.Argument(help="Files of `probe campaign export`.", show_default=False)],
            output: Annotated[Path, typer.Option("--output", "-o", help="A new folder, or one of the same campaign.", show_default=False)],
            as_json: Json = False) -> None:
    """Join archives of one campaign in a folder, which can be resumed."""
    from probe.campaign.admin import import_campaign
    from probe.cli.stream import emit, emit_json

    count = import_campaign(archives, output)
    if as_json:
        emit_json({"kind": "campaign import", "folder": str(output), "rows": count})
    else:
        emit(f"{count} rows came into {output}")


def _written(kind: str, paths: list[Path], as_json: bool) -> None:
    from probe.cli.stream import emit, emit_json

    if as_json:
        emit_json({"kind": kind, "files": [str(path) for path in paths]})
        return
    for path in paths:
        emit(f"{'written':<13}{path} ({path.stat().st_size / 2**20:.2f} MiB)")


def _finish(ran: Ran, as_json: bool) -> None:
    from probe.cli.stream import emit

    if not as_json:  # the last event has said it all
        counts = ran.counts.to_document()
        emit("\n".join([f"{'folder':<13}{ran.folder}", f"{'ended':<13}{ran.ended}, {ran.rows} problems in {ran.seconds:.1f} s",
                        f"{'rows':<13}{_of(ran.counts.rows, ran.total)}", *_counts(counts), *(f"{'lost':<13}{line}" for line in ran.lost)]))
    raise typer.Exit(int(ran.exit_code))


def _of(rows: int, total: int | None) -> str:
    return str(rows) if total is None else f"{rows} of {total}"


def _words(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in outcomes.items() if count) or "nothing yet"


def _counts(counts: dict[str, Any]) -> list[str]:
    lines = [f"{'outcomes':<13}{_words(counts['outcomes'])}"]
    lines += [f"{'family' if i == 0 else '':<13}{n:>7}  {name}" for i, (name, n) in enumerate(counts["families"].items()) if i < 12]
    lines += [f"{'':<13}{'':>7}  and {len(counts['families']) - 12} more families"] if len(counts["families"]) > 12 else []
    return lines + [f"{'reason' if i == 0 else '':<13}{n:>7}  {name}" for i, (name, n) in enumerate(counts["reasons"].items())]


# What is told while it runs

@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[Event], None]]:
    """JSON lines on stdout; else a live table on a terminal, and off it a line a worker every few seconds, on stderr."""
    import sys

    from probe.cli.stream import emit, say

    if as_json:
        yield lambda event: emit(json.dumps(event.to_document(), allow_nan=False))
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            def show(event: Event) -> None:
                if event.kind == "status":
                    live.update(_table(event.values))
                elif event.kind in ("notice", "lost"):
                    console.print(_line(event), highlight=False, markup=False)

            yield show
    else:
        last = time.monotonic() - _SECONDS_A_LINE + _SECONDS_TO_FIRST

        def tell(event: Event) -> None:
            nonlocal last
            if event.kind == "status" and time.monotonic() - last >= _SECONDS_A_LINE:
                last = time.monotonic()
                for line in _status_lines(event.values):
                    say(line)
            elif event.kind in ("begin", "notice", "lost"):
                say(_line(event))

        yield tell


def _line(event: Event) -> str:
    values = event.values
    if event.kind == "begin":
        return f"{values['folder']}: {_of(values['finished'], values['total'])} rows are finished, {values['workers']} workers"
    if event.kind == "lost":
        return f"the worker of {values['library']} on GPU {values['gpu']} is lost: {values['reason']}"
    return str(values["text"])


def _left(seconds: float | None) -> str:
    if seconds is None:
        return "time left unknown"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min left" if minutes >= 60 else f"{minutes} min {rest} s left"


def _status_lines(values: dict[str, Any]) -> list[str]:
    lines = [f"{_of(values['finished'], values['total'])} rows, {values['rate']:.1f}/s, {_left(values['left_s'])}"]
    for worker in values["workers"]:
        families = ", ".join(f"{count} {name}" for name, count in worker["families"].items())
        state = f"lost: {worker['lost']}" if worker["lost"] else f"{worker['rate']:.1f}/s"
        lines.append(f"  {worker['library']} on GPU {worker['gpu']}: {worker['rows']} rows, {state}, {worker['declined']} declined, "
                     f"{worker['failed']} failed, {worker['mismatches']} mismatches" + (f"; {families}" if families else ""))
    return lines


def _table(values: dict[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    title = f"{_of(values['finished'], values['total'])} rows, {values['rate']:.1f}/s, {_left(values['left_s'])}"
    table = Table("GPU", "library", "rows", "rate", "declined", "failed", "mismatches", "families", title=Text(title))
    for worker in values["workers"]:
        families = Text("\n".join(f"{count} {name}" for name, count in worker["families"].items()))
        rate = "lost" if worker["lost"] else f"{worker['rate']:.1f}/s"
        table.add_row(str(worker["gpu"]), Text(worker["library"]), str(worker["rows"]), rate, str(worker["declined"]),
                      str(worker["failed"]), str(worker["mismatches"]), families)
    return table
