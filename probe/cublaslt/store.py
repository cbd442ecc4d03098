"""The store of libraries in the user's cache: what is in it, making an entry, removing one.

$PROBE_HOME/libraries, else $XDG_CACHE_HOME/probe/libraries, else ~/.cache/probe/libraries, holds one folder a library (see stored.py).
An entry is made in a working folder under `.work` and renamed into place when it is complete, so it is there whole or not at all. The owner
of a working folder holds an flock on it; a process that was killed holds none, and the next command sweeps what it left.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from probe.cublaslt.stored import LOCK, RECORD, LibraryRecord, StoredLibrary, begins_with, is_name, lock_holders
from probe.errors import EnvironmentProblem, UsageError

_WORK, _LOCKS = ".work", ".locks"
_NEW = "entry"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def store_root(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of the store; it need not exist. Raises EnvironmentProblem where neither a variable nor a home says where it is."""
    environ = os.environ if environ is None else environ
    if environ.get("PROBE_HOME"):
        return Path(environ["PROBE_HOME"]).expanduser().absolute() / "libraries"
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]).absolute() / "probe" / "libraries"
    try:
        return Path.home() / ".cache" / "probe" / "libraries"
    except RuntimeError:
        raise EnvironmentProblem("there is no home folder to keep libraries in", "set PROBE_HOME to a folder") from None


@contextmanager
def storage_errors(root: Path) -> Iterator[None]:
    """An OSError of what runs inside becomes an EnvironmentProblem that says what is full, read-only or amiss."""
    try:
        yield
    except OSError as error:
        place, why = error.filename or root, error.strerror or str(error)
        if error.errno in _FULL:
            raise EnvironmentProblem(f"no room in {root}: {why}", "free some, or set PROBE_HOME to a folder on a larger disk") from error
        if error.errno in _FORBIDDEN:
            raise EnvironmentProblem(f"{place} cannot be read or written: {why}",
                                     "set PROBE_HOME to a folder that you may write to") from error
        raise EnvironmentProblem(f"{place}: {why}", "check the disk, or set PROBE_HOME to another folder") from error


@dataclass(frozen=True)
class Work:
    """A working folder of this process, on the disk of the store. entry: where the new library's files go. lock: an open file descriptor;
    a child that inherits it keeps the folder from being swept."""

    folder: Path
    lock: int

    @property
    def entry(self) -> Path:
        return self.folder / _NEW


class Store:
    """The libraries under one folder. Every method that writes raises OSError as it comes: call it inside `storage_errors`."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = store_root() if root is None else root

    def libraries(self) -> tuple[StoredLibrary, ...]:
        """All of them, by name, the unreadable ones too. Empty where there is no store. Raises OSError."""
        if not self.root.is_dir():
            return ()
        folders = [f for f in self.root.iterdir() if not f.name.startswith(".") and f.is_dir()]
        return tuple(StoredLibrary.read(f) for f in sorted(folders, key=lambda f: f.name))

    def get(self, name: str) -> StoredLibrary | None:
        """The library of that name, None for none."""
        folder = self.root / name
        return StoredLibrary.read(folder) if is_name(name) and folder.is_dir() else None

    def matching(self, prefix: str) -> tuple[StoredLibrary, ...]:
        """Libraries whose wheel's or reported version begins with these components. Raises OSError."""
        known = [(one, one.record) for one in self.libraries()]
        return tuple(one for one, r in known if r is not None and (begins_with(r.release, prefix) or begins_with(r.version, prefix)))

    def of_wheel(self, distribution: str, version: str) -> StoredLibrary | None:
        """The library that came in this wheel, None for none. Raises OSError."""
        wanted = (distribution, version)
        return next((s for s in self.libraries() if s.record and (s.record.distribution, s.record.wheel_version) == wanted), None)

    def free_bytes(self) -> int:
        """Room on the disk of the store for this user, in bytes. The folder need not exist yet. Raises OSError."""
        place = self.root
        while not place.exists() and place != place.parent:
            place = place.parent
        return shutil.disk_usage(place).free

    @contextmanager
    def work(self) -> Iterator[Work]:
        """A working folder, gone at the end. What killed processes left is swept first. Raises OSError."""
        place = self.root / _WORK
        place.mkdir(parents=True, exist_ok=True)
        folder = place / f"{os.getpid()}-{secrets.token_hex(4)}"
        with self._locked(_WORK):
            self._sweep()
            folder.mkdir()
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            work = Work(folder, lock)
            work.entry.mkdir()
            yield work
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            self.sweep()  # of a command killed a moment before this one began, pip may still have been ending then

    def publish(self, work: Work, record: LibraryRecord) -> StoredLibrary:
        """Give the finished files in `work.entry` their record, their lock and their name. Raises UsageError if the name is taken."""
        (work.entry / RECORD).write_text(record.to_json() + "\n", encoding="utf-8")
        (work.entry / LOCK).touch()
        folder = self.root / record.name
        try:
            work.entry.rename(folder)  # fails where a folder with something in it has the name
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise name_taken(record.name) from None
            raise
        return StoredLibrary.read(folder)

    def remove(self, name: str) -> StoredLibrary:
        """Take a library out of the store; returns what it was. Raises UsageError for an unknown name, EnvironmentProblem while a process
        holds it, OSError."""
        library = self.get(name)
        if library is None:
            raise self.unknown(name)
        lock = os.open(library.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                users = ", ".join(map(str, lock_holders(library.folder / LOCK)))
                by = f"by process {users}" if users else "by another process"
                raise EnvironmentProblem(f"the library {name} is in use {by}", "wait until it has ended, then remove it") from None
            with self.work() as work:
                library.folder.rename(work.folder / "removed")
        except FileNotFoundError:
            raise self.unknown(name) from None  # another process was quicker
        finally:
            os.close(lock)
        return library

    def sweep(self) -> None:
        """Delete what killed processes left. A store that cannot be written to is left as it is."""
        if (self.root / _WORK).is_dir():
            with suppress(OSError), self._locked(_WORK):
                self._sweep()

    @contextmanager
    def reserved(self, what: str, waiting: Callable[[], None]) -> Iterator[None]:
        """One process at a time does `what`, a word; calls `waiting` before it waits for another. Raises OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        with self._locked(what, waiting):
            yield

    def unknown(self, name: str) -> UsageError:
        """The error for a name or a version that is not there."""
        names = ", ".join(s.name for s in self.libraries())
        return UsageError(f"no stored library is called {name!r}: " + (f"there are {names}" if names else "the store is empty"),
                          "probe library list shows what there is, probe library fetch and add bring more")

    @contextmanager
    def _locked(self, name: str, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock file of that name. It stays: whoever deletes a lock file lets two others lock two files."""
        place = self.root / _LOCKS
        place.mkdir(parents=True, exist_ok=True)
        lock = os.open(place / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _sweep(self) -> None:
        """Under the lock `.work`: a working folder that nobody holds has lost its owner."""
        for folder in (self.root / _WORK).iterdir():
            try:
                lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            except OSError:
                continue  # another user's
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            except BlockingIOError:
                pass
            finally:
                os.close(lock)


def name_taken(name: str) -> UsageError:
    """The error for a name that another library has."""
    return UsageError(f"the name {name} is taken", f"--name OTHER, or probe library remove {name} first")
