"""The command line: a thin coat over the verbs of the library, one file a verb. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import sys

import typer

from probe.cli import walk
from probe.errors import EnvironmentProblem, ExitCode, LibraryError, UsageError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Find, record and prove the order in which a GPU library sums a matrix multiplication.")
app.command("walk")(walk.command)


@app.callback()
def _root() -> None:
    """Exit codes: 0 recovered and confirmed, 1 not confirmed or ambiguous, 2 usage, 3 declined, 4 environment."""


def main() -> None:
    """Run the command line; every expected failure is one line on stderr and its exit code, anything else is our bug and keeps its traceback."""
    try:
        app()
    except (UsageError, EnvironmentProblem, LibraryError) as error:
        print(f"probe: {error}", file=sys.stderr)
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        print("probe: interrupted, nothing was written", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(int(ExitCode.ENVIRONMENT))
