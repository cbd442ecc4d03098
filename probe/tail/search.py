"""Find the smallest shapes that lose their tail, by asking along K and running what the condition names; and the controls of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from probe.answer import Answer
from probe.cublaslt.ask import ask_many
from probe.errors import Declined, ExitCode
from probe.oracle import DeviceOracle, Oracle
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.tail.count import Reading, count
from probe.tail.rule import NVJET, Condition, block, part, predicted
from probe.target import Target
from probe.values import Record, check_enum, check_int, check_text

Progress = Callable[[str], None]
PREFERENCE = Preference()  # 32 MiB of workspace, every reduction scheme
SIDES = ((1, 8), (32, 32), (64, 64), (128, 128))  # (M, N); e4m3 needs N in multiples of 16
DTYPES = (DType.FP16, DType.BF16, DType.E4M3)
MOST_K = 65_536
_TRIED = 4  # of the shapes that the condition names, run until one loses; more would only repeat that this release does not
_OFFERED = 64


class Role(StrEnum):
    """What a run is for. One meaning each."""

    NAMED = "named"  # the condition names a loss
    TAIL_ALONE = "tail_alone"  # ones only where the sum is said to be short: 0 comes back if these are the ones that are lost
    NO_WORKSPACE = "no_workspace"  # control: workspace 0
    NO_SPLIT = "no_split"  # control: reduction mask 0, so that the library may not split K
    DIVIDED = "divided"  # control: K rounded down to what the parts divide
    OTHER_ALGORITHM = "other_algorithm"  # control: another answer that the library offers


class Verdict(StrEnum):
    """What the runs say of this GPU and library."""

    SHOWS = "shows"  # a sum is short, and every control is whole
    ABSENT = "absent"  # no sum is short
    UNCLEAR = "unclear"  # a control is short as well


@dataclass(frozen=True)
class TailRun(Record):
    """One sum. predicted: values of k that our condition says are lost."""

    KIND: ClassVar[str] = "tail-run"
    FORM: ClassVar[int] = 1

    role: Role
    problem: Problem
    preference: Preference
    answer: Answer
    reading: Reading
    predicted: int

    def __post_init__(self) -> None:
        check_enum("role", self.role, Role)
        check_int("predicted", self.predicted, 0, 2**31)

    @property
    def lost(self) -> int:
        """Values of k that did not arrive."""
        return self.reading.lost


@dataclass(frozen=True)
class TailFindings(Record):
    """What the search found on one target. asked: problems asked; most_k: how far; missing: controls that could not be run, in words.

    script: what the standalone script printed with --json on this GPU and library, "" where it was not run.
    """

    KIND: ClassVar[str] = "splitk-tail"
    FORM: ClassVar[int] = 1

    target: Target
    date: str
    most_k: int
    asked: int
    runs: tuple[TailRun, ...]
    missing: tuple[str, ...]
    script: str = ""

    def __post_init__(self) -> None:
        check_text("date", self.date)
        check_int("asked", self.asked, 0, 2**62)
        check_int("most_k", self.most_k, 1, 2**31 - 1)

    @property
    def short(self) -> tuple[TailRun, ...]:
        """The named sums that lost something, smallest K first."""
        found = [r for r in self.runs if r.role is Role.NAMED and r.lost]
        return tuple(sorted(found, key=lambda r: (r.problem.k, r.problem.m * r.problem.n, DTYPES.index(r.problem.a_dtype))))

    @property
    def controls(self) -> tuple[TailRun, ...]:
        """What must be whole."""
        return tuple(r for r in self.runs if r.role not in (Role.NAMED, Role.TAIL_ALONE))

    @property
    def tails(self) -> tuple[TailRun, ...]:
        """The sums with ones in the lost tail only."""
        return tuple(r for r in self.runs if r.role is Role.TAIL_ALONE)

    @property
    def verdict(self) -> Verdict:
        if any(r.lost for r in self.controls):
            return Verdict.UNCLEAR
        return Verdict.SHOWS if self.short else Verdict.ABSENT

    @property
    def exit_code(self) -> ExitCode:
        """0 where the fault shows and every control is whole, 1 otherwise."""
        return ExitCode.OK if self.verdict is Verdict.SHOWS else ExitCode.NOT_CONFIRMED


def search(oracle: Oracle, most_k: int, date: str, progress: Progress) -> TailFindings:
    """Ask along K for a few (M, N) and each dtype, run the first shapes that the condition names until one loses, and then its controls."""
    runs: list[TailRun] = []
    missing: list[str] = []
    asked = 0
    for dtype in DTYPES:
        for m, n in SIDES:
            progress(f"{dtype}, {m}x{n}: asking along K")
            tried = 0
            for problem in _along(dtype, m, n, most_k):
                asked += 1
                answer = oracle.ask(problem, PREFERENCE)
                if isinstance(answer, Declined) or not predicted(Condition.OURS, problem, answer):
                    continue
                tried += 1
                run = _run(oracle, Role.NAMED, problem, PREFERENCE, answer)
                if isinstance(run, Declined):
                    missing.append(f"{problem.key}: {run.text}")
                else:
                    runs.append(run)
                    if run.lost:
                        progress(f"{dtype}, {m}x{n}x{problem.k}: {run.lost} lost; the controls")
                        tail = _run(oracle, Role.TAIL_ALONE, problem, PREFERENCE, answer, run.lost)
                        if isinstance(tail, TailRun):
                            runs.append(tail)
                        for control in _controls(oracle, run):
                            if isinstance(control, TailRun):
                                runs.append(control)
                            else:
                                missing.append(control)
                        break
                if tried == _TRIED:
                    break
    if runs and not isinstance(oracle, DeviceOracle):
        missing.append(f"{Role.OTHER_ALGORITHM}: the simulated library offers one algorithm for a problem")
    return TailFindings(oracle.target, date, most_k, asked, tuple(runs), tuple(missing))


def _along(dtype: DType, m: int, n: int, most_k: int) -> Iterator[Problem]:
    """K ascending in the steps that the nvjet kernels take: 16 bytes."""
    step = 16 // dtype.itemsize
    for k in range(step, most_k + 1, step):
        yield Problem.gemm(m, max(n, 16) if dtype.is_fp8 else n, k, dtype, DType.FP32)


def _run(oracle: Oracle, role: Role, problem: Problem, preference: Preference, answer: Answer,
         units: int | None = None) -> TailRun | Declined:
    reading = count(oracle, problem, answer, preference, units)
    if isinstance(reading, Declined):
        return reading
    return TailRun(role, problem, preference, answer, reading, predicted(Condition.OURS, problem, answer))


def _controls(oracle: Oracle, short: TailRun) -> Iterator[TailRun | str]:
    """What must be whole beside a short sum, or in words why it was not run."""
    problem, answer = short.problem, short.answer
    whole_parts = block(problem.a_dtype) * answer.splitk_num
    divided = replace(problem, k=problem.k // whole_parts * whole_parts)
    asks = [(Role.NO_WORKSPACE, problem, replace(PREFERENCE, workspace_bytes=0)),
            (Role.NO_SPLIT, problem, replace(PREFERENCE, reduction_scheme_mask=0)), (Role.DIVIDED, divided, PREFERENCE)]
    for role, asked, preference in asks:
        got = oracle.ask(asked, preference)
        run = got if isinstance(got, Declined) else _run(oracle, role, asked, preference, got)
        yield f"{role} of {problem.key}: {run.text}" if isinstance(run, Declined) else run
    if isinstance(oracle, DeviceOracle):
        yield _other(oracle, short)


def _other(oracle: DeviceOracle, short: TailRun) -> TailRun | str:
    """The first answer offered that is another algorithm and runs, else one of the same that does not split.

    Offered with every reduction scheme, then with none: on an H200 the first list holds splits by ALGO_ID 66 alone, the second also 41.
    """
    name = f"{Role.OTHER_ALGORITHM} of {short.problem.key}"
    offered: list[tuple[Preference, Answer]] = []
    for preference in (PREFERENCE, replace(PREFERENCE, reduction_scheme_mask=0)):
        answers = ask_many(oracle.library, short.problem, preference, _OFFERED)
        if not isinstance(answers, Declined):
            offered += [(preference, a) for a in answers]
    others = ([one for one in offered if one[1].algo_id != NVJET]
              + [one for one in offered if one[1].algo_id == NVJET and one[1].splitk_num == 1])
    for preference, answer in others:
        run = _run(oracle, Role.OTHER_ALGORITHM, short.problem, preference, answer)
        if isinstance(run, TailRun):
            return run
    return f"{name}: none of {len(offered)} answers is another algorithm that runs"


def parts_of(run: TailRun) -> str:
    """How the parts of a sum lie, in words: "9 parts of 1280 cover 11520"."""
    k, split = run.problem.k, run.answer.splitk_num
    if split < 2:
        return "not split"
    if run.answer.algo_id != NVJET:
        return f"{split} parts"
    size = part(k, split, block(run.problem.a_dtype))
    return f"{split} parts of {size} cover {min(k, split * size)}"
