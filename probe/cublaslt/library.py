"""One opened cuBLASLt library: its functions, version, hash and handle.

One library per process. Two copies load side by side by absolute path, but code that links libcublas binds to
whichever came first, so a second file is refused. Loading needs no GPU; the handle does.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from functools import cached_property
from pathlib import Path

from probe.cublaslt import status
from probe.cublaslt.find import Found
from probe.cublaslt.signatures import bind
from probe.cublaslt.stored import Hold
from probe.errors import EnvironmentProblem

_opened: Library | None = None  # the one library of this process


class Library:
    """An open cuBLASLt. Make it with `Library.open`."""

    def __init__(self, found: Found, functions: ctypes.CDLL) -> None:
        self.found = found
        self.functions = functions
        self._handle: int | None = None
        self._hold: Hold | None = None

    @classmethod
    def open(cls, found: Found) -> Library:
        """Load the library that was found; the same file again gives the same object.

        Raises EnvironmentProblem, one line, if another file is open already, if the file cannot be loaded, or
        if it is no cuBLASLt.
        """
        global _opened  # the process can hold one; this is its only record
        path = found.path
        if _opened is not None:
            if _opened.path == path:
                return _opened
            raise EnvironmentProblem(
                f"this process has opened {_opened.path}, so it cannot open {path}",
                "one cuBLASLt per process: compare libraries in separate processes",
            )
        hold = found.stored.hold() if found.stored is not None else None  # before the file is read
        try:
            functions = ctypes.CDLL(str(path))
        except OSError as error:
            reason = str(error).removeprefix(f"{path}: ")
            raise EnvironmentProblem(f"{path} cannot be loaded: {reason}") from None
        missing = bind(functions)
        if missing:
            more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            raise EnvironmentProblem(
                f"{path} is no cuBLASLt that probe can use: it lacks {missing[0]}{more}",
                "give the path of libcublasLt.so.12 or .13",
            )
        _opened = cls(found, functions)
        _opened._hold = hold  # until the process ends: `probe library remove` refuses meanwhile
        return _opened

    @property
    def path(self) -> Path:
        """The file, resolved. For messages: it is no part of any record's identity."""
        return self.found.path

    @cached_property
    def version(self) -> str:
        """ "13.1.0", from cublasLtGetVersion (major * 10000 + minor * 100 + patch)."""
        number = int(self.functions.cublasLtGetVersion())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    @cached_property
    def sha256(self) -> str:
        """Hash of the file, 64 hex digits. Read once per process: 0.8 s for the 541 MB of 13.1.0."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @property
    def other_copies(self) -> tuple[str, ...]:
        """Paths of other libcublasLt files that other packages have loaded into this process."""
        maps = Path("/proc/self/maps")
        text = maps.read_text() if maps.exists() else ""
        files = {Path(p).resolve() for p in re.findall(r"(/\S*libcublasLt\.so\S*)$", text, re.MULTILINE)}
        return tuple(sorted(str(f) for f in files if f != self.path))

    @property
    def handle(self) -> int:
        """The cublasLtHandle_t, made at the first use for the CUDA device that is current then.

        Raises LibraryError where there is no GPU (cublasLtCreate returns NOT_INITIALIZED).
        """
        if self._handle is None:
            handle = ctypes.c_void_p()
            status.check("cublasLtCreate", self.functions.cublasLtCreate(ctypes.byref(handle)))
            assert handle.value is not None
            self._handle = handle.value
        return self._handle

    def close_handle(self) -> None:
        """Destroy the handle; the next use of `handle` makes a new one, for another device if need be."""
        if self._handle is not None:
            status.check("cublasLtDestroy", self.functions.cublasLtDestroy(self._handle))
            self._handle = None

    def __repr__(self) -> str:
        return f"Library({self.version}, {self.path})"
