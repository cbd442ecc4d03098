"""A new file that appears whole or not at all, and never replaces another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from probe.errors import EnvironmentProblem, UsageError


def name_aside(path: Path) -> Path:
    """Where a file is made before it gets its name: in the same folder, hidden, this process's own."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def publish(aside: Path, path: Path) -> None:
    """Give a finished file its name. A link, unlike a rename, fails where the name is taken."""
    try:
        os.link(aside, path)
    except FileExistsError:
        raise
    except OSError:  # FAT and some network file systems have no links: there a file made within these microseconds would be replaced
        if os.path.lexists(path):
            raise FileExistsError(path) from None
        aside.rename(path)


@contextmanager
def new_file(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """The name under which to make a file; it gets its own at the end, and nothing is left after an error.

    replace: a file of that name is the caller's own, and gives way. Raises UsageError where the name is taken and EnvironmentProblem
    where the file cannot be written.
    """
    aside = name_aside(path)
    try:
        yield aside
        if replace:
            aside.rename(path)
        else:
            publish(aside, path)
    except FileExistsError:
        raise UsageError(f"output {path} exists and is not overwritten", "another name, or remove it first") from None
    except OSError as error:
        raise EnvironmentProblem(f"output {path} cannot be written: {error.strerror or error}", "another folder, or more room") from error
    finally:
        with suppress(OSError):
            aside.unlink()
