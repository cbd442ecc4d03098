"""One library of the store: the record beside its file, whether the two still agree, and how a process holds it.

A stored library is a folder: the file libcublasLt.so.N, `library.json` (the record), the vendor's licence where the wheel had one, and
`lock`, an empty file. Who uses the library holds a shared flock on `lock`; who removes it needs an exclusive one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from probe.errors import EnvironmentProblem, UsageError
from probe.values import Record, check_int, check_sha256, check_text

RECORD, LOCK = "library.json", "lock"
NOTICE = "the library is NVIDIA's, under the NVIDIA EULA; probe keeps it on this machine and does not redistribute it"
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}")

Said = Callable[[str], None]


class State(StrEnum):
    """Does what is in the folder agree with its record? Only `probe library list --verify` reads the whole file."""

    OK = "ok"
    FILE_MISSING = "file missing"
    SIZE_DIFFERS = "size differs"
    HASH_DIFFERS = "hash differs"
    RECORD_UNREADABLE = "record unreadable"


def is_version(text: str) -> bool:
    """Is it a version or the first components of one: 13, 12.8, 12.8.5.5?"""
    return _VERSION.fullmatch(text) is not None


def components(version: str) -> tuple[int, ...]:
    """ "12.8.5" as (12, 8, 5), so that 13.1 is no prefix of 13.10 and versions sort as numbers. Reading stops at what is no number."""
    match = _VERSION.match(version)
    return tuple(map(int, match[0].split("."))) if match else ()


def begins_with(version: str, prefix: str) -> bool:
    """Are the components of `prefix` the first ones of `version`?"""
    wanted = components(prefix)
    return components(version)[: len(wanted)] == wanted


def is_name(text: str) -> bool:
    """Can it name a stored library? A word that is no path, release, version or simulator."""
    other = is_version(text) or re.fullmatch(r"cu[0-9]+", text) or re.match(r"sim(-|$)", text) or ".so" in text
    return _NAME.fullmatch(text) is not None and not other


def check_name(name: object) -> str:
    """Return `name` if it can name a stored library, else raise UsageError."""
    text = check_text("the name of a library", name)
    if not is_name(text):
        raise UsageError(f"{text!r} cannot name a library",
                         "letters, digits and . _ + -, 80 at most, and nothing that --library reads as a version, a release (cu12), the "
                         "simulator or a file: for example cublas-12.8.5.5")
    return text


@dataclass(frozen=True)
class LibraryRecord(Record):
    """What is known of a stored library.

    distribution, wheel_version, wheel_sha256: of the wheel that it came in, None for a plain file. file: its name in the folder;
    file_sha256 and file_bytes are of its content. soname: as the file says. version: as the library reports it ("12.8.5"). origin: where it
    came from, in words. date: UTC, ISO 8601. licence_file: the vendor's text, in the same folder, None where none came along. licence: one
    line.
    """

    KIND: ClassVar[str] = "stored_library"
    FORM: ClassVar[int] = 1

    name: str
    distribution: str | None
    wheel_version: str | None
    wheel_sha256: str | None
    file: str
    file_sha256: str
    file_bytes: int
    soname: str
    version: str
    origin: str
    date: str
    licence_file: str | None
    licence: str

    def __post_init__(self) -> None:
        check_name(self.name)
        for field in ("soname", "origin", "date", "licence"):
            check_text(field, getattr(self, field))
        for field in ("file", "licence_file"):
            value = getattr(self, field)
            if value is not None and (check_text(field, value) != os.path.basename(value) or value in (".", "..")):
                raise UsageError(f"{field} = {value!r} is not the name of a file in the folder of the library")
        check_sha256("file_sha256", self.file_sha256)
        check_int("file_bytes", self.file_bytes, 1, 2**62)
        if not is_version(check_text("version", self.version)):
            raise UsageError(f"version = {self.version!r} is no version", "as cublasLtGetVersion reports it, for example 12.8.5")
        if len({v is None for v in (self.distribution, self.wheel_version, self.wheel_sha256)}) != 1:
            raise UsageError("distribution, wheel_version and wheel_sha256 are given together or not at all")
        if self.wheel_sha256 is not None:
            check_text("distribution", self.distribution)
            check_text("wheel_version", self.wheel_version)
            check_sha256("wheel_sha256", self.wheel_sha256)

    @property
    def release(self) -> str:
        """The longest version known: the wheel's, else the one that the library reports."""
        return self.wheel_version or self.version


class Hold:
    """A library that is in use: as long as this is open, `probe library remove` refuses. The end of the process closes it too."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Let go. Closing twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True)
class StoredLibrary:
    """A library of the store. name: of its folder. record: None where it cannot be read, and then `problem` says why."""

    name: str
    folder: Path
    record: LibraryRecord | None
    problem: str = ""

    @classmethod
    def read(cls, folder: Path) -> StoredLibrary:
        """The library in a folder of the store. A record that cannot be read is part of the value, not an error."""
        try:
            record = LibraryRecord.from_json((folder / RECORD).read_text(encoding="utf-8"))
            if record.name != folder.name:
                raise UsageError(f"its record is of {record.name}")
        except UnicodeDecodeError:
            return cls(folder.name, folder, None, "its record is no UTF-8 text")
        except OSError as error:
            return cls(folder.name, folder, None, f"its record cannot be read: {error.strerror}")
        except UsageError as error:
            return cls(folder.name, folder, None, str(error))
        return cls(folder.name, folder, record)

    @property
    def path(self) -> Path:
        """The library file. Raises EnvironmentProblem where the record cannot be read."""
        return self.folder / self._known().file

    def state(self, verify: bool = False) -> State:
        """Does the folder agree with the record? verify: hash the file as well (about 1 s for 750 MB). Raises OSError."""
        if self.record is None:
            return State.RECORD_UNREADABLE
        path = self.folder / self.record.file
        if not path.is_file():
            return State.FILE_MISSING
        if path.stat().st_size != self.record.file_bytes:
            return State.SIZE_DIFFERS
        if verify and hash_file(path) != self.record.file_sha256:
            return State.HASH_DIFFERS
        return State.OK

    def check(self) -> Path:
        """The file, if it can be used as far as a look at its size tells. Raises EnvironmentProblem."""
        state = self.state()
        if state is not State.OK:
            why = f" ({self.problem})" if self.problem else ""
            raise EnvironmentProblem(f"the stored library {self.name} cannot be used: {state}{why}",
                                     f"probe library remove {self.name}, then fetch or add it again")
        return self.path

    def hold(self) -> Hold:
        """Say that this process uses the library. Raises EnvironmentProblem where it has been removed meanwhile."""
        gone = EnvironmentProblem(f"the stored library {self.name} has been removed", "probe library fetch or add brings it back")
        try:
            descriptor = os.open(self.folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if not self.folder.exists():
                raise gone from None
            raise EnvironmentProblem(f"the stored library {self.name} cannot be held: {self.folder / LOCK}: {error.strerror}",
                                     f"probe library remove {self.name}, then fetch or add it again") from None
        try:
            # whoever holds it exclusively is removing it, or finds in a moment that it may not
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not same_file(descriptor, self.folder / LOCK):
                raise gone
        except BaseException:
            os.close(descriptor)
            raise
        return Hold(descriptor)

    def to_document(self) -> dict[str, Any]:
        """The record with the path of the file; for an unreadable record its name, folder and problem."""
        if self.record is None:
            return {"kind": LibraryRecord.KIND, "name": self.name, "folder": str(self.folder), "problem": self.problem}
        return self.record.to_document() | {"path": str(self.path)}

    def _known(self) -> LibraryRecord:
        if self.record is None:
            raise EnvironmentProblem(f"the stored library {self.name} has no readable record: {self.problem}",
                                     f"probe library remove {self.name}, then fetch or add it again")
        return self.record


def hash_file(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same_file(descriptor: int, path: Path) -> bool:
    """Is the open file still the one at `path`?"""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def lock_holders(path: Path) -> tuple[int, ...]:
    """Ids of the processes that hold an flock on a file, as far as this system tells (/proc/locks; other containers show as 0)."""
    try:
        status = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return ()
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    # "1: FLOCK  ADVISORY  READ 1234 08:01:5678 0 EOF"; a waiting one has "->" for its second word
    rows = [line.split() for line in lines]
    return tuple(sorted({int(r[4]) for r in rows if len(r) > 5 and r[1] == "FLOCK" and r[5] == file and int(r[4]) > 0}))
