"""The command line: a thin coat over the verbs of the library, one file a verb. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from probe import __version__
from probe.cli import answers, ask, bug, campaign, compare_answers, diff_libraries, doctor, library, pack, walk
from probe.cli.stream import emit, emit_json, say
from probe.errors import EnvironmentProblem, ExitCode, LibraryError, UsageError

INTERRUPTED = 130  # as a shell names a process that Ctrl-C ended
BUG = 70  # EX_SOFTWARE: Python's own 1 would read as "not confirmed"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
                  context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
                  help="Find, record and prove the order in which a GPU library sums a matrix multiplication.",
                  epilog="Exit codes: 0 recovered and confirmed, 1 not confirmed or ambiguous, 2 usage, 3 declined, 4 environment.")
app.command("walk", epilog=walk.EPILOG)(walk.command)
app.command("answers", epilog=answers.EPILOG)(answers.command)
app.command("ask", epilog=ask.EPILOG)(ask.command)
app.command("compare-answers", epilog=compare_answers.EPILOG)(compare_answers.command)
app.command("pack", epilog=pack.EPILOG)(pack.command)
app.command("doctor", epilog=doctor.EPILOG)(doctor.command)
app.add_typer(library.app, name="library")
app.add_typer(bug.app, name="bug")
app.add_typer(campaign.app, name="campaign")
app.command("diff-libraries", epilog=diff_libraries.EPILOG)(diff_libraries.command)


def _version(wanted: bool) -> None:
    if wanted:
        emit(f"probe {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        emit(context.get_help())
        raise typer.Exit(int(ExitCode.USAGE))


def main() -> None:
    """Run the command line. Every expected failure is one line on stderr and its exit code, with --json also one object on stdout;
    anything else is a bug of probe, keeps its traceback and exits with 70."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:  # how newer typer hands on a Ctrl-C; older raises Abort
            raise KeyboardInterrupt
    except (UsageError, EnvironmentProblem) as error:
        code = _fail("usage" if isinstance(error, UsageError) else "environment", error.message, error.hint, int(error.exit_code))
    except LibraryError as error:
        what = f"{error.function} returned {error.name} ({error.status}): {error.meaning}"
        code = _fail("library", what, error.action, int(error.exit_code))
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted", "interrupted", "", INTERRUPTED)
    except MemoryError:
        code = _fail("environment", "this machine ran out of memory", "a smaller shape", int(ExitCode.ENVIRONMENT))
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's own: an unknown option, a value that is no number, ...
            context = getattr(error, "ctx", None)
            command = context.command_path.removeprefix("python -m ") if context else "probe"
            code = _fail("usage", error.format_message().rstrip("."), f"{command} --help lists what there is", int(ExitCode.USAGE))
        else:
            traceback.print_exc()
            code = _fail("bug", f"{type(error).__name__}: {error}", "a bug in probe: please report it with the lines above", BUG)
    sys.exit(code or 0)


def _fail(kind: str, message: str, hint: str, code: int) -> int:
    """One line for the person and, where JSON was asked for, one object for the program. Returns the exit code."""
    message, hint = " ".join(message.split()), " ".join(hint.split())
    say(f"{message} ({hint})" if hint else message)
    if "--json" in sys.argv[1:]:
        try:
            emit_json({"kind": kind, "error": message, "hint": hint, "exit_code": code})
        except EnvironmentProblem as problem:  # stdout itself is what failed: stderr has said so
            say(problem.message)
    return code
