"""The verbs of the library store: fetch, add, list and remove libraries, as Python functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.cublaslt import fetch
from probe.cublaslt.store import Store, storage_errors
from probe.cublaslt.stored import State, StoredLibrary

Said = Callable[[str], None]


@dataclass(frozen=True)
class Listed:
    """A library of the store, and whether its folder agrees with its record."""

    library: StoredLibrary
    state: State

    def to_document(self) -> dict[str, Any]:
        """The library's document and the state."""
        return self.library.to_document() | {"state": str(self.state)}


def fetch_library(requirement: str, *, name: str | None = None, sha256: str | None = None, progress: Said = lambda step: None,
                  notice: Said = lambda text: None) -> StoredLibrary:
    """Download a release with pip and keep its libcublasLt in the store, unless it is there already.

    requirement: "nvidia-cublas-cu12==12.8.5.5" (CUDA 12) or "nvidia-cublas==13.1.0.3" (CUDA 13), with any version specifier of pip.
    name: in the store, default "cublas-VERSION". sha256: that the wheel must have. progress: called with the step; notice: with the need
    for disk and with waiting. pip's own settings say which index is asked. The store is $PROBE_HOME/libraries, else
    $XDG_CACHE_HOME/probe/libraries, else ~/.cache/probe/libraries. Raises UsageError and EnvironmentProblem, and then nothing is left
    behind.
    """
    return fetch.fetch(Store(), requirement, name=name, sha256=sha256, progress=progress, notice=notice)


def add_library(path: Path | str, *, name: str | None = None, sha256: str | None = None, progress: Said = lambda step: None,
                notice: Said = lambda text: None) -> StoredLibrary:
    """Keep a copy of a libcublasLt.so.N, or the one in a wheel file, in the store. Arguments and errors as for `fetch_library`."""
    return fetch.add(Store(), Path(path), name=name, sha256=sha256, progress=progress, notice=notice)


def list_libraries(*, verify: bool = False, progress: Said = lambda step: None) -> tuple[Listed, ...]:
    """What is in the store, by name. verify: hash every file again (about 1 s for 750 MB), else only its size is looked at.

    Raises EnvironmentProblem where the store cannot be read.
    """
    store = Store()
    store.sweep()
    listed = []
    with storage_errors(store.root):
        for library in store.libraries():
            progress(f"verify {library.name}" if verify else "list")
            listed.append(Listed(library, library.state(verify)))
    return tuple(listed)


def remove_library(name: str) -> StoredLibrary:
    """Take a library out of the store; returns what it was. Raises UsageError for an unknown name, EnvironmentProblem while a process that
    holds it runs or where the store cannot be written to."""
    store = Store()
    with storage_errors(store.root):
        return store.remove(name)
