"""What a campaign is: the checked meaning of a campaign file, its identity, and the stream of its problems."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import ClassVar

from probe.errors import UsageError
from probe.oracle import SIMULATED_LIBRARIES
from probe.preference import Preference
from probe.problem import DType, Layout, Problem
from probe.stream import Asked, ProblemStream, RandomRegime
from probe.values import Record, check_enum, check_int, check_text
from probe.verbs import MAX_SEED

_LONGEST = 10**7  # seconds


class Mode(StrEnum):
    """recover: walk every problem. confirm: look its descriptor up in an arch profile, and prove that on fresh draws."""

    RECOVER = "recover"
    CONFIRM = "confirm"


@dataclass(frozen=True)
class Budget(Record):
    """When a campaign ends. problems: of the stream, each on every library; seconds: of one run or resume. None: no limit of that sort."""

    KIND: ClassVar[str] = "budget"

    problems: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.problems is not None:
            check_int("budget", self.problems, 1, 2**53)
        if self.seconds is not None and not 0 < self.seconds <= _LONGEST:
            raise UsageError(f"budget = {self.seconds} s is no time to run", f"more than 0, at most {_LONGEST} s")


@dataclass(frozen=True)
class Listed(Record):
    """A fixed list of cases, each as "MxNxK dtype output layout" and " fast" for fast accumulation, under each of the preferences."""

    KIND: ClassVar[str] = "list of cases"

    name: str
    cases: tuple[str, ...]
    workspaces: tuple[int, ...] = (32 * 2**20,)
    reduction_schemes: tuple[int, ...] = (7,)

    def __post_init__(self) -> None:
        check_text("name", self.name)
        for name in ("cases", "workspaces", "reduction_schemes"):
            if not getattr(self, name):
                raise UsageError(f"{name} of list {self.name!r} are empty", "at least one")

    def problems(self) -> list[Asked]:
        """Every case under every preference. Raises UsageError for a case that is no problem."""
        preferences = [Preference(workspace_bytes=w, reduction_scheme_mask=r) for w, r in product(self.workspaces, self.reduction_schemes)]
        out = []
        for case in self.cases:
            shape, dtype, output, layout, *fast = case.split()
            m, n, k = Problem.parse_shape(shape)
            problem = Problem.gemm(m, n, k, DType(dtype), DType(output), Layout(layout), bool(fast))
            out += [Asked(self.name, problem, preference) for preference in preferences]
        return out


@dataclass(frozen=True)
class Campaign(Record):
    """A campaign file, every field checked and its lists of shapes read. time_limit: seconds for one problem. draws: least number of draws
    that a proof has."""

    KIND: ClassVar[str] = "campaign"

    name: str
    seed: int
    libraries: tuple[str, ...]
    budget: Budget
    mode: Mode = Mode.RECOVER
    gpus: tuple[int, ...] = (0,)
    draws: int = 10
    time_limit: float = 300.0
    lists: tuple[Listed, ...] = ()
    regimes: tuple[RandomRegime, ...] = ()

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_int("seed", self.seed, 0, MAX_SEED)
        check_enum("mode", self.mode, Mode)
        check_int("draws", self.draws, 1, 10**4)
        if not 0 < self.time_limit <= _LONGEST:
            raise UsageError(f"time-limit = {self.time_limit} s is no time for a problem", f"more than 0, at most {_LONGEST} s")
        for name in ("libraries", "gpus"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise UsageError(f"{name} are empty or name one twice", "each once")
        for library in self.libraries:
            check_text("libraries", library)
        for gpu in self.gpus:
            check_int("gpus", gpu, 0, 1023)
        names = [*(part.name for part in self.lists), *(part.name for part in self.regimes)]
        if not names:
            raise UsageError("a campaign needs problems", "a [[list]] or a [[regime]]")
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"two lists or regimes are called {twice[0]!r}", "a name each")
        if self.regimes and self.budget == Budget():
            raise UsageError("a campaign with random regimes has no end", 'a budget: "30000 problems" or "1h", or both in a list')

    @property
    def identity(self) -> str:
        """A hash of what fixes the rows: everything but the name, the budget, and the GPUs that share the work."""
        meaning = self.to_document()
        for name in ("name", "budget", "gpus"):
            del meaning[name]
        return hashlib.sha256(json.dumps(meaning, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def stream(self) -> ProblemStream:
        """The problems."""
        return ProblemStream(self.seed, tuple(asked for part in self.lists for asked in part.problems()), self.regimes)

    def lanes(self) -> list[tuple[int, str]]:
        """(GPU, library) of each worker process. A simulated library runs on no GPU and stands for one on each."""
        return [(gpu, library) for library in self.libraries for gpu in self.gpus]

    def differing(self, other: Campaign) -> list[str]:
        """Names of the fields that fix the rows and differ."""
        mine, its = self.to_document(), other.to_document()
        return sorted(name for name in mine if name not in ("name", "budget", "gpus") and mine[name] != its[name])

    def on(self, libraries: tuple[str, ...] | None, gpus: tuple[int, ...] | None) -> Campaign:
        """The same campaign with other libraries or GPUs."""
        return replace(self, libraries=libraries or self.libraries, gpus=self.gpus if gpus is None else gpus)


def gpu_of(library: str, gpu: int) -> int:
    """The GPU number that a child is given: none but 0 where the library is simulated."""
    return 0 if library in SIMULATED_LIBRARIES else gpu
