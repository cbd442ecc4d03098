"""What doctor reports: findings, GPUs, libraries and bindings, each a frozen value with a JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from probe.errors import ExitCode, UsageError
from probe.values import Record, check_bool, check_enum, check_text


class State(StrEnum):
    """How it stands with one thing."""

    OK = "ok"
    WARN = "warn"  # works, and may surprise
    MISSING = "missing"  # is not there
    BROKEN = "broken"  # is there and does not work


@dataclass(frozen=True)
class Finding(Record):
    """One thing that was looked at. seen: one line. action: what to do, "" where nothing is. needed: a walk on a GPU needs it."""

    KIND: ClassVar[str] = "finding"
    FORM: ClassVar[int] = 1

    name: str
    state: State
    seen: str
    action: str
    needed: bool

    def __post_init__(self) -> None:
        for field in ("name", "seen"):
            if "\n" in check_text(field, getattr(self, field)):
                raise UsageError(f"{field} of a finding is one line, got {getattr(self, field)!r}")
        check_enum("state", self.state, State)
        check_bool("needed", self.needed)
        if self.state is not State.OK and not self.action.strip():
            raise UsageError(f"the finding {self.name} is {self.state} and says not what to do")

    @property
    def stops(self) -> bool:
        """Does it keep a GPU walk from running?"""
        return self.needed and self.state in (State.MISSING, State.BROKEN)


def finding(name: str, state: State, seen: str, action: str = "", needed: bool = False) -> Finding:
    """A finding; what a library or a tool said in several lines becomes one."""
    return Finding(name, state, " ".join(seen.split()), " ".join(action.split()), needed)


@dataclass(frozen=True)
class Gpu(Record):
    """A device as CUDA counts it. sm: "sm_90". mig, compute_mode, persistence: as NVML tells (see probe.nvml), "" where it does not."""

    KIND: ClassVar[str] = "gpu"
    FORM: ClassVar[int] = 1

    index: int
    name: str
    sm: str
    sm_count: int
    total_bytes: int
    mig: str
    compute_mode: str
    persistence: str


@dataclass(frozen=True)
class SeenLibrary(Record):
    """A libcublasLt. how: every way that led to the file. sha256: "" where it cannot be read. version, cuda: as the library reports them,
    "13.1.0" and "13.0" (the CUDA release that it is built for), "" where it does not load. used: a walk would use it."""

    KIND: ClassVar[str] = "seen-library"
    FORM: ClassVar[int] = 1

    path: str
    how: tuple[str, ...]
    sha256: str
    bytes: int
    version: str
    cuda: str
    used: bool


@dataclass(frozen=True)
class Binding(Record):
    """A libcublas and the libcublasLt that the dynamic loader gives it in this environment; "" where it does not load."""

    KIND: ClassVar[str] = "binding"
    FORM: ClassVar[int] = 1

    path: str
    how: tuple[str, ...]
    bound: str


@dataclass(frozen=True)
class Report(Record):
    """Everything that doctor saw. ready: all that a walk on a GPU needs is here."""

    KIND: ClassVar[str] = "doctor"
    FORM: ClassVar[int] = 1

    ready: bool
    driver: str  # "580.95.05", or ""
    cuda: str  # that the driver supports: "13.0", or ""
    gpus: tuple[Gpu, ...]
    libraries: tuple[SeenLibrary, ...]
    bindings: tuple[Binding, ...]
    findings: tuple[Finding, ...]

    def __post_init__(self) -> None:
        if check_bool("ready", self.ready) == bool(self.stoppers):
            raise UsageError(f"ready = {self.ready} and {len(self.stoppers)} findings stop a walk")

    @property
    def stoppers(self) -> tuple[Finding, ...]:
        """The findings that keep a GPU walk from running."""
        return tuple(finding for finding in self.findings if finding.stops)

    @property
    def exit_code(self) -> ExitCode:
        """OK where a GPU walk can run, ENVIRONMENT where something that it needs is missing or broken."""
        return ExitCode.OK if self.ready else ExitCode.ENVIRONMENT
