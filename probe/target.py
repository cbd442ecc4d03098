"""The target: the device and the library that a measurement belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from probe.errors import UsageError
from probe.values import Record, check_enum, check_int, check_sha256, check_text


class LibraryKind(StrEnum):
    """What did the summing: the vendor's library, or probe's own simulator."""

    CUBLASLT = "cublasLt"
    SIMULATED = "simulated"


@dataclass(frozen=True)
class Target(Record):
    """Where something was measured. The path of the library is no part of it: two copies are one target.

    sm: "sm_90". sm_count: streaming multiprocessors of the device. device_name: as the driver gives it.
    driver: the CUDA version that the driver supports, "13.0", or the simulator's name for none.
    library: kind of library. version: "13.1.0". sha256: of the library file, 64 hex digits (a simulator gives
    that of what it simulates).
    """

    KIND: ClassVar[str] = "target"
    FORM: ClassVar[int] = 1

    sm: str
    sm_count: int
    device_name: str
    driver: str
    library: LibraryKind
    version: str
    sha256: str

    def __post_init__(self) -> None:
        if not isinstance(self.sm, str) or not re.fullmatch(r"sm_[1-9][0-9]{1,2}", self.sm):
            raise UsageError(f"sm = {self.sm!r} is not an SM version", "sm_80, sm_90, sm_100, ...")
        check_int("sm_count", self.sm_count, 1, 2**16)
        check_text("device_name", self.device_name)
        check_text("driver", self.driver)
        check_enum("library", self.library, LibraryKind)
        if not isinstance(self.version, str) or not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", self.version):
            raise UsageError(f"version = {self.version!r} is not a version", "three numbers, 13.1.0")
        check_sha256("sha256", self.sha256)

    @property
    def sm_number(self) -> int:
        """90 for "sm_90"."""
        return int(self.sm.removeprefix("sm_"))

    @property
    def key(self) -> str:
        """Short stable name: SM version and count, library, version and the start of its hash."""
        return f"{self.sm}.{self.sm_count}sm.{self.library}.{self.version}.{self.sha256[:12]}"

    def __str__(self) -> str:
        return f"{self.device_name} ({self.sm}, {self.sm_count} SMs), {self.library} {self.version}"
