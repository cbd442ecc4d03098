"""Where a command writes: the result to stdout, in one piece; everything said beside it to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from probe.errors import EnvironmentProblem


def say(text: str) -> None:
    """A line for the person, beside the result."""
    print(f"probe: {text}", file=sys.stderr, flush=True)


def emit(text: str) -> None:
    """Write the result to stdout. A reader that has left (`| head`) is no failure; raises EnvironmentProblem for any other."""
    try:
        print(text, flush=True)
    except OSError as error:
        # what is left in the buffer would fail once more when the interpreter closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise EnvironmentProblem(f"stdout cannot be written: {error.strerror}", "free some room, or another place") from None


def emit_json(document: dict[str, Any]) -> None:
    """Write one JSON document to stdout, on one line. Numbers that JSON lacks (NaN, Inf) are refused, not written."""
    emit(json.dumps(document, allow_nan=False))


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A spinner with the current step on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("open") as status:
        yield lambda step: status.update(step)
