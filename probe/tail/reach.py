"""What the lost tail reaches, as a list of small tasks: other ways to ask for losing shapes, the smallest K, layers of models.

Every task asks, tells by our condition what is lost, and shows it by running. Tasks are independent, so that processes can share them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from probe.answer import Answer
from probe.errors import Declined, UsageError
from probe.oracle import DeviceOracle, Oracle
from probe.preference import Preference
from probe.problem import DType, Epilogue, Layout, Problem
from probe.tail.count import Reading, count
from probe.tail.models import Weight, weights
from probe.tail.reach_table import Part, Row, empty_row, ranges
from probe.tail.rule import NVJET, Condition, predicted
from probe.tail.single import SingleCounter

# (M, N, K): what 13.1.0 loses at on an H200 (DESIGN fact 4 and issue C), split counts above b last; 8648 is the paper's, of other GPUs
WIDE_SHAPES = ((1, 8, 8648), (1, 8, 11528), (32, 32, 11528), (64, 64, 11528), (128, 128, 11528), (1, 8, 57608), (1, 8, 57616),
               (4, 8, 206464), (3, 8, 115288))
FP8_SHAPES = ((16, 16, 379904),)
WORKSPACES = (0, 2**10, 2**16, 2**22, 2**25)  # bytes
MASKS = (0, 1, 2, 4, 7)  # cublasLtReductionScheme_t
SIDES_M = (1, 2, 4, 8, 16, 32, 64, 128)
SIDES_N = (8, 16, 32, 64, 128, 256, 512, 1024)
CORNERS = ((1, 8), (32, 32), (64, 64), (128, 128))  # where every setting is asked along K
MOST_K = 65_536
MOST_TOKENS = 512
_TRIED = 4  # named sums run before a K is given up as one that this release does not lose at
_SHOWN = 16  # hits of one layer that are run


@dataclass(frozen=True)
class Setting:
    """How a product is asked for, but for its sizes and the preference."""

    dtype: DType
    output: DType
    layout: Layout = Layout.NN
    epilogue: Epilogue = Epilogue.DEFAULT
    fast: bool = False

    def problem(self, m: int, n: int, k: int) -> Problem:
        """Raises UsageError where this is no product."""
        return Problem.gemm(m, n, k, self.dtype, self.output, self.layout, self.fast, self.epilogue)

    def possible(self, m: int, n: int, k: int) -> bool:
        """Whether there is such a product at all; what the library offers is another question."""
        try:
            self.problem(m, n, k)
        except UsageError:
            return False
        return True

    def columns(self) -> Row:
        """The columns of a row that this fills."""
        return {"input_dtype": str(self.dtype), "output_dtype": str(self.output), "layout": str(self.layout),
                "epilogue": str(self.epilogue), "fast_accumulation": self.fast}


class Counter(Protocol):
    """Counts one sum."""

    def count(self, problem: Problem, answer: Answer, preference: Preference) -> Reading | Declined: ...


class _OracleCounter:
    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def count(self, problem: Problem, answer: Answer, preference: Preference) -> Reading | Declined:
        return count(self._oracle, problem, answer, preference)


class Bench:
    """What tasks are run on: an oracle to ask, and a counter on the same device."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self._counter: Counter = _OracleCounter(oracle)
        if isinstance(oracle, DeviceOracle):
            self._counter = SingleCounter(oracle.device, oracle.library)

    def ask(self, problem: Problem, preference: Preference, row: Row) -> Answer | None:
        """Ask, and count what comes back in the row."""
        answer = self.oracle.ask(problem, preference)
        row["asked"] += 1
        if isinstance(answer, Declined):
            row["declined"] += 1
            return None
        if answer.algo_id == NVJET and answer.splitk_num > 1:
            row["split"] += 1
            row["most_split"] = max(row["most_split"] or 0, answer.splitk_num)
        row["named"] += predicted(Condition.OURS, problem, answer) > 0
        return answer

    def run(self, problem: Problem, answer: Answer, preference: Preference) -> Reading | Declined:
        return self._counter.count(problem, answer, preference)


def _counted(row: Row, problem: Problem, answer: Answer, reading: Reading | Declined) -> int:
    """Put one reading into the counts of a row. Returns the values lost."""
    if isinstance(reading, Declined):
        row["failed"] += 1
        return 0
    row["ran"] += 1
    row["short"] += reading.lost != 0
    row["other"] += reading.lost != predicted(Condition.OURS, problem, answer)
    return reading.lost


def _shown(row: Row, problem: Problem, answer: Answer, reading: Reading | Declined) -> None:
    """The columns of the one sum that a row stands for."""
    row |= {"algo_id": answer.algo_id, "splitk_num": answer.splitk_num, "reduction_scheme": answer.reduction_scheme,
            "predicted": predicted(Condition.OURS, problem, answer)}
    if not isinstance(reading, Declined):
        row |= {"lost": reading.lost, "units": reading.units}


@dataclass(frozen=True)
class VariantTask:
    """One shape and dtype, asked in every layout, output, epilogue, workspace and reduction mask. Each answer runs, named or not."""

    m: int
    n: int
    k: int
    dtype: DType

    def run(self, bench: Bench) -> list[Row]:
        rows = []
        seen: dict[tuple[Problem, str], Reading | Declined] = {}
        for setting in settings(self.dtype):
            if not setting.possible(self.m, self.n, self.k):
                continue
            problem = setting.problem(self.m, self.n, self.k)
            for workspace, mask in product(WORKSPACES, MASKS):
                preference = Preference(workspace, mask)
                row = empty_row(Part.VARIANT) | setting.columns() | {"m": self.m, "n": self.n, "k": self.k, "workspace_bytes": workspace,
                                                                    "reduction_scheme_mask": mask}
                rows.append(row)
                answer = bench.ask(problem, preference, row)
                if answer is None:
                    continue
                where = problem, answer.key  # what runs; which preference led there makes no difference to it
                if where not in seen:
                    seen[where] = bench.run(problem, answer, preference)
                _counted(row, problem, answer, seen[where])
                _shown(row, problem, answer, seen[where])
        return rows


@dataclass(frozen=True)
class SmallestTask:
    """One (M, N) and setting, asked along K in steps of 16 bytes until a sum that the condition names is short."""

    m: int
    n: int
    setting: Setting
    most_k: int = MOST_K

    def run(self, bench: Bench) -> list[Row]:
        preference = Preference()
        row = empty_row(Part.SMALLEST) | self.setting.columns() | {
            "m": self.m, "n": self.n, "workspace_bytes": preference.workspace_bytes,
            "reduction_scheme_mask": preference.reduction_scheme_mask, "most_k": self.most_k}
        step = 16 // self.setting.dtype.itemsize
        for k in range(step, self.most_k + 1, step):
            problem = self.setting.problem(self.m, self.n, k)
            before = row["named"]
            answer = bench.ask(problem, preference, row)
            if answer is None or row["named"] == before:
                continue
            row["first_named_k"] = row["first_named_k"] or k
            reading = bench.run(problem, answer, preference)
            if _counted(row, problem, answer, reading):
                row["k"] = k
                _shown(row, problem, answer, reading)
                break
            if row["ran"] + row["failed"] == _TRIED:
                break
        return [row]


@dataclass(frozen=True)
class LayerTask:
    """One weight of a model in one setting, asked at every M; the first hits run. backward: the gradient of the input, dX = dY @ W."""

    weight: Weight
    setting: Setting
    backward: bool = False
    most_m: int = MOST_TOKENS

    def sizes(self) -> tuple[int, int]:
        """(N, K) of the product."""
        return (self.weight.into, self.weight.out) if self.backward else (self.weight.out, self.weight.into)

    def run(self, bench: Bench) -> list[Row]:
        preference = Preference()
        n, k = self.sizes()
        row = empty_row(Part.LAYER) | self.setting.columns() | {
            "layer": ("backward: " if self.backward else "") + ", ".join(self.weight.names), "n": n, "k": k,
            "workspace_bytes": preference.workspace_bytes, "reduction_scheme_mask": preference.reduction_scheme_mask}
        hits = []
        for m in range(1, self.most_m + 1):
            problem = self.setting.problem(m, n, k)
            before = row["named"]
            answer = bench.ask(problem, preference, row)
            if answer is None or row["named"] == before:
                continue
            hits.append(m)
            if len(hits) <= _SHOWN:
                reading = bench.run(problem, answer, preference)
                if _counted(row, problem, answer, reading) and row["m"] is None:
                    row["m"] = m
                    _shown(row, problem, answer, reading)
        return [row | {"hits": ranges(hits)}]


Task = VariantTask | SmallestTask | LayerTask


def settings(dtype: DType) -> Iterator[Setting]:
    """Every layout, output and epilogue, and both ways to accumulate where there are two."""
    fasts = (False, True) if dtype.is_fp8 else (False,)
    layouts = (Layout.TN,) if dtype.is_fp8 else tuple(Layout)
    for layout, output, epilogue, fast in product(layouts, (DType.FP32, DType.FP16, DType.BF16), Epilogue, fasts):
        yield Setting(dtype, output, layout, epilogue, fast)


def variant_tasks() -> list[Task]:
    """Losing shapes, each in fp16 and bf16, or in e4m3."""
    wide = [VariantTask(*shape, dtype) for shape in WIDE_SHAPES for dtype in (DType.FP16, DType.BF16)]
    return [*wide, *(VariantTask(*shape, DType.E4M3) for shape in FP8_SHAPES)]


def smallest_tasks(most_k: int = MOST_K) -> list[Task]:
    """A grid of (M, N) in the usual settings, and four corners of it in every setting."""
    found: dict[SmallestTask, None] = {}
    for dtype in (DType.FP16, DType.BF16, DType.E4M3):
        outputs = (DType.FP32, DType.BF16) if dtype.is_fp8 else (DType.FP32, dtype)
        layouts = (Layout.TN,) if dtype.is_fp8 else (Layout.NN, Layout.TN)
        grid = [Setting(dtype, output, layout, fast=dtype.is_fp8) for output, layout in product(outputs, layouts)]
        sides = list(product(SIDES_M, SIDES_N)) if not dtype.is_fp8 else list(product((1, 8, 32, 64, 128), (16, 32, 64, 128)))
        for (m, n), setting in product(sides, grid):
            found[SmallestTask(m, n, setting, most_k)] = None
        every = [s for s in settings(dtype) if dtype.is_fp8 or s.output in (DType.FP32, dtype)]
        for (m, n), setting in product(CORNERS, every):
            found[SmallestTask(m, max(n, 16) if dtype.is_fp8 else n, setting, most_k)] = None
    step = {t: 16 // t.setting.dtype.itemsize for t in found}
    return [task for task in found if task.setting.possible(task.m, task.n, step[task])]


def layer_tasks(most_m: int = MOST_TOKENS, some: tuple[Weight, ...] | None = None) -> list[Task]:
    """Every weight forward (nn.Linear, layout tn) and backward (layout nn), to the input dtype and to fp32; e4m3 forward to bf16."""
    out: list[Task] = []
    for weight in weights() if some is None else some:
        for dtype, backward in product((DType.BF16, DType.FP16), (False, True)):
            layout = Layout.NN if backward else Layout.TN
            out += [LayerTask(weight, Setting(dtype, output, layout), backward, most_m) for output in (dtype, DType.FP32)]
        out.append(LayerTask(weight, Setting(DType.E4M3, DType.BF16, Layout.TN, fast=True), most_m=most_m))
    return [task for task in out if isinstance(task, LayerTask) and task.setting.possible(1, *task.sizes())]


def tasks_of(parts: tuple[Part, ...], most_k: int = MOST_K, most_m: int = MOST_TOKENS) -> list[Task]:
    """The tasks of those parts. Losing shapes and layers come first: they are the cheaper ones."""
    out: list[Task] = variant_tasks() if Part.VARIANT in parts else []
    out += layer_tasks(most_m) if Part.LAYER in parts else []
    return out + (smallest_tasks(most_k) if Part.SMALLEST in parts else [])

