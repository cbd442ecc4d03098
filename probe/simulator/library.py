"""The simulated library: asked and run like cuBLASLt, on no device, with a stand-in cost model that is nobody's.

Its answers are made up so that every family of kernels that probe recovers can be reached from a shape; they say nothing about what a real
library would pick. What it does with an answer is exact: the GEMMDesc below, executed bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probe.answer import Answer
from probe.descriptor import CutLayout, Direction, GEMMDesc, Instruction, Join, KCut, ShortTurn
from probe.errors import Declined, DeclineReason, EnvironmentProblem, UsageError
from probe.inputs.operands import Operands
from probe.preference import Preference
from probe.problem import ComputeType, DType, Epilogue, Layout, Problem
from probe.simulator.execute import execute
from probe.summing import Cells
from probe.target import LibraryKind, Target
from probe.tensorcore import row_for

VERSION = "0.1.0"
SECOND_VERSION = "0.2.0"  # of the variant
NVJET, CUTLASS_SHORT_FIRST, CUTLASS_SINGLE, FFMA = 66, 23, 21, 56
GEMV, DOT = 13, 14  # lanes of one block for a matrix and a vector; of several for two vectors, and a second kernel sums the blocks
COMPUTE_TYPE, OUTPUT_TYPE = 2, 4  # cublasLtReductionScheme_t
NVJET_ALIGNMENT = 16  # bytes, of what the stand-in nvjet loads
_SM_COUNT = 132
# The simulation holds about five times the operands in memory (1.7 GB at 8192x8192x2048) and, beside that, 1.3 kB for each index of K
# where a draw has 16 different rows and columns (16x16x300000: 380 MB), 2.5 kB where it has 32: both limits stay below 6 GB.
_MOST_BYTES = 2**30
_MOST_K = 2**20
_MOST_VECTOR_K = 2**22  # of a product with a vector, for walks
_ANNOUNCEMENT = "simulated library: a stand-in cost model picks the kernel, its answers are not cuBLASLt's"
_SECOND_ANNOUNCEMENT = "simulated library sim-2: a made-up second release of the stand-in, there to be compared with sim; it is no cuBLASLt"
_VECTOR_ANNOUNCEMENT = "simulated library sim-vectors: made-up kernels for products with a vector, there to show lanes; it is no cuBLASLt"
_DOT_BLOCKS, _DOT_LANES = 16, 32
_SAMPLED = 1024
_SECOND_BLOCK = 256  # the variant's split parts are a multiple of this, and cover K


@dataclass(frozen=True)
class SimulatedLibrary:
    """sm: whose matrix instructions it has. drops_tail: whether split parts are cut short as cuBLASLt 13.1.0 does.

    second: a made-up second release, for comparing two libraries without a GPU. It answers as the first does, but for these: one
    tile of K below 8192 gets four parts and not three, an unsplit answer of several tiles swizzles, and layout tt has no kernel. Its parts
    are whole 256s and cover K, so it drops nothing.

    vectors: whether products with a vector (M or N is 1, 16-bit inputs) have kernels of their own, whose lanes take K in turn; each layout
    shows another form.
    """

    sm: int = 90
    drops_tail: bool = True
    second: bool = False
    vectors: bool = False

    @property
    def announcement(self) -> str:
        """One line for the user: this is not a measurement."""
        if self.vectors:
            return _VECTOR_ANNOUNCEMENT
        return _SECOND_ANNOUNCEMENT if self.second else _ANNOUNCEMENT

    @property
    def target(self) -> Target:
        """A target of kind "simulated"; its hash is that of its version and settings."""
        version = SECOND_VERSION if self.second else VERSION
        identity = f"probe simulated library {version} sm_{self.sm} drops_tail={self.drops_tail}"
        identity += " vectors" if self.vectors else ""
        return Target(f"sm_{self.sm}", _SM_COUNT, "simulated device", "none", LibraryKind.SIMULATED, version,
                      hashlib.sha256(identity.encode()).hexdigest())

    def ask(self, problem: Problem, preference: Preference) -> Answer | Declined:
        """The stand-in cost model. Declines what the simulator does not execute."""
        refused = _refused(problem)
        if refused:
            return Declined(DeclineReason.UNSUPPORTED, f"the simulated library does not do {refused}",
                            "fp16, bf16 or e4m3, output in the input dtype or fp32, no batch, no epilogue, alpha 1, beta 0")
        most_k = _MOST_VECTOR_K if self.vectors and 1 in (problem.m, problem.n) else _MOST_K
        if problem.total_bytes > _MOST_BYTES or problem.k > most_k:
            what = f"K = {problem.k}" if problem.k > most_k else f"{problem.total_bytes / 2**20:,.0f} MiB of operands"
            return Declined(DeclineReason.TOO_LARGE, f"{what} are too much to simulate",
                            f"operands of up to {_MOST_BYTES // 2**20} MiB, K up to {most_k}")
        try:
            row_for(self.sm, problem.a_dtype)
        except UsageError as error:
            return Declined(DeclineReason.UNSUPPORTED, f"the simulated library does not do {problem.a_dtype}: {error.message}", error.hint)
        if self.second and problem.layout is Layout.TT:
            return Declined(DeclineReason.NO_ALGORITHM, "the simulated library sim-2 has no kernel for layout tt", "layout nn, tn or nt")
        return _Model(problem, preference, self).answer()

    def descriptor(self, problem: Problem, answer: Answer) -> GEMMDesc:
        """What the stand-in kernel for an answer does: the truth that a walk has to find."""
        return kernel_descriptor(problem, answer, self)

    def summing(self, problem: Problem, answer: Answer) -> SimulatedSumming:
        """The function from operands to output bytes."""
        return SimulatedSumming(problem.m, problem.n, problem.k, self.descriptor(problem, answer).schedule(),
                                problem.a_dtype, problem.d_dtype)

    @staticmethod
    def workspace(problem: Problem, split: int) -> int:
        """Bytes for the partial sums of a split answer, one fp32 an output element and part."""
        return split * problem.m * problem.n * 4

    def kernels(self, problem: Problem, answer: Answer) -> tuple[str, ...]:
        """Names of the stand-in kernels that a call would launch, in order."""
        desc = self.descriptor(problem, answer)
        name = {NVJET: "simulated_nvjet", FFMA: "simulated_ffma", GEMV: "simulated_gemv", DOT: "simulated_dot"}.get(
            answer.algo_id, "simulated_cutlass")
        split = f"_splitK{answer.splitk_num}" if answer.splitk_num > 1 else ""
        main = f"{name}_{problem.a_dtype}_{desc.instruction_k}{split}_{problem.layout}"
        if answer.algo_id == DOT:
            return main, "simulated_reduce_1Block"
        return (main, "simulated_splitKreduce") if split else (main,)


def is_aligned(problem: Problem, preference: Preference) -> bool:
    """Whether the stand-in nvjet takes it: N and K, stated leading dimensions and promised addresses are multiples of 16 bytes."""
    p = problem
    if p.a_dtype.is_fp8:
        return True
    strides = [ld for ld in (p.lda, p.ldb) if ld is not None]
    promised = p.alignments(preference)[:2]
    return not any(x * p.a_dtype.itemsize % NVJET_ALIGNMENT for x in (p.k, p.n, *strides)) and min(promised) >= NVJET_ALIGNMENT


def _refused(problem: Problem) -> str:
    plain = replace(problem, a_offset_bytes=0, b_offset_bytes=0, c_offset_bytes=0, d_offset_bytes=0)
    if plain.batch_count != 1 or plain.epilogue is not Epilogue.DEFAULT or plain.alpha != 1 or plain.beta != 0:
        return "a batch, an epilogue, alpha or beta"
    if plain.compute_type is not ComputeType.FP32 or plain.a_dtype not in (DType.FP16, DType.BF16, DType.E4M3):
        return f"{plain.a_dtype} inputs with compute type {plain.compute_type}"
    if plain.b_dtype is not plain.a_dtype:
        return f"{plain.a_dtype} inputs with {plain.b_dtype} ones"
    outputs = (DType.FP32, DType.FP16, DType.BF16) if plain.a_dtype.is_fp8 else (DType.FP32, plain.a_dtype)
    if plain.d_dtype not in outputs:
        return f"{plain.a_dtype} inputs with {plain.d_dtype} output"
    if any(getattr(plain, f"{x}_scale") for x in "abcd"):
        return "scales"
    return ""


@dataclass(frozen=True)
class _Model:
    problem: Problem
    preference: Preference
    library: SimulatedLibrary

    def answer(self) -> Answer:
        p = self.problem
        fp8 = p.a_dtype.is_fp8
        aligned = is_aligned(p, self.preference)
        if self.library.vectors and not fp8 and p.m == 1 and p.n == 1 and self._dot_workspace() <= self.preference.workspace_bytes:
            return replace(self._make(DOT, 1), workspace_bytes=self._dot_workspace())
        if self.library.vectors and not fp8 and 1 in (p.m, p.n):
            return self._make(GEMV, 1)
        if not fp8 and p.k <= 32 and p.d_dtype is not DType.FP32:
            return self._make(FFMA, 1)
        split = self._split(aligned)
        if aligned:
            return self._make(NVJET, split)
        # layouts with a transposed second operand stand in for the paper's per-instruction accumulation (its family "Per-MMA")
        return self._make(CUTLASS_SINGLE if p.layout.a_transposed else CUTLASS_SHORT_FIRST, split)

    def _split(self, aligned: bool) -> int:
        p = self.problem
        tiles = -(-p.m // 64) * -(-p.n // 64)
        if p.k < (2048 if aligned else 256) or tiles > 64:
            return 1
        wanted = min(_SM_COUNT // tiles, max(1, p.k // 1280), 129) if aligned else min(_SM_COUNT // tiles, p.k // 64)
        if tiles == 1 and aligned and p.k < 8192:
            wanted = 4 if self.library.second else 3
        allowed = self.preference.reduction_scheme_mask & (COMPUTE_TYPE | OUTPUT_TYPE)
        return wanted if wanted > 1 and allowed and self.library.workspace(p, wanted) <= self.preference.workspace_bytes else 1

    def _dot_workspace(self) -> int:
        return _DOT_BLOCKS * 4

    def _make(self, algo_id: int, split: int) -> Answer:
        scheme = 0
        if split > 1:
            scheme = COMPUTE_TYPE if self.preference.reduction_scheme_mask & COMPUTE_TYPE else OUTPUT_TYPE
        swizzling = int(self.library.second and split == 1 and (self.problem.m > 64 or self.problem.n > 64))
        return Answer(algo_id=algo_id, tile=0, splitk_num=split, reduction_scheme=scheme, swizzling=swizzling, custom_option=0,
                      stages=0, inner_shape=0, cluster_shape=0,
                      workspace_bytes=self.library.workspace(self.problem, split) if split > 1 else 0, waves=1.0)


def kernel_descriptor(problem: Problem, answer: Answer, library: SimulatedLibrary) -> GEMMDesc:
    """The GEMMDesc of the stand-in kernel that an answer names."""
    p, k = problem, problem.k
    instruction = Instruction.WGMMA if library.sm == 90 else Instruction.TCGEN05 if library.sm >= 100 else Instruction.MMA_SYNC
    cuts: list[KCut] = []
    summed = k
    block = 128 if p.a_dtype.is_fp8 else 64
    if answer.splitk_num > 1 and answer.algo_id == NVJET:
        # measured on cuBLASLt 13.1.0 (DESIGN fact 4): round_up(floor(K / s), b), and what s parts do not cover is lost
        span = -(-(k // answer.splitk_num) // block) * block
        if library.second:
            span = -(-k // answer.splitk_num // _SECOND_BLOCK) * _SECOND_BLOCK
        cuts.append(KCut(span))
        if library.drops_tail:
            summed = min(k, span * answer.splitk_num)
    elif answer.splitk_num > 1:
        cuts.append(KCut(-(-k // answer.splitk_num // 8) * 8))  # K = 513 in eight parts of 72 (DESIGN fact 3)
    partial = p.d_dtype if answer.reduction_scheme == OUTPUT_TYPE else DType.FP32
    common: dict[str, Any] = {"k": k, "k_summed": summed, "input_dtype": p.a_dtype, "output_dtype": p.d_dtype,
                              "partial_dtype": partial if cuts else DType.FP32}
    if answer.algo_id in (GEMV, DOT):
        return GEMMDesc(**common, row=None, instruction_k=1, instruction=Instruction.FMA, k_cuts=_lane_cuts(problem, answer))
    if answer.algo_id == FFMA:
        return GEMMDesc(**common, row=None, instruction_k=1, instruction=Instruction.FMA)
    row = row_for(library.sm, p.a_dtype)
    common |= {"row": row, "instruction": instruction, "instruction_k": row.products}
    if p.a_dtype.is_fp8:
        if not p.fast_accumulation:
            cuts.append(KCut(block))
        return GEMMDesc(**common, k_cuts=tuple(cuts))
    if answer.algo_id == NVJET:
        return GEMMDesc(**common, k_cuts=tuple(cuts))
    return GEMMDesc(**common, k_cuts=tuple(cuts), k_loop_step=block, short_turn=ShortTurn.FIRST,
                    use_fast_accum=answer.algo_id == CUTLASS_SHORT_FIRST)


def _lane_cuts(problem: Problem, answer: Answer) -> tuple[KCut, ...]:
    """The nest of a stand-in vector kernel: each layout shows another one of the forms that were seen on a device."""

    def lanes(span: int, count: int, direction: Direction = Direction.DOWN) -> KCut:
        return KCut(span, CutLayout.STRIDED, count, Join.CHAIN if direction is Direction.FORWARD else Join.BUTTERFLY, direction)

    if answer.algo_id == DOT:  # blocks in turn, the lanes of a block closed for each, then the blocks
        return (lanes(_DOT_LANES, _DOT_BLOCKS), lanes(1, _DOT_LANES))
    return {Layout.NN: (lanes(1, 128),), Layout.TN: (lanes(8, 32),),
            Layout.NT: (KCut(2048), lanes(2, 64, Direction.UP)), Layout.TT: (lanes(4, 16, Direction.FORWARD), KCut(64))}[problem.layout]


class SimulatedSumming:
    """A schedule as a function from operands to output bytes. Each different row meets each different column once."""

    def __init__(self, m: int, n: int, k: int, schedule: Any, input_dtype: DType, output_dtype: DType) -> None:
        self.m, self.n, self.k = m, n, k
        self.schedule = schedule
        self.input_dtype, self.output_dtype = input_dtype, output_dtype
        self.launches = 0

    def outputs(self, batch: Sequence[tuple[Operands, Cells | None]]) -> list[np.ndarray]:
        """One product for each entry. Raises EnvironmentProblem where the operands do not fit in memory."""
        out: list[np.ndarray] = []
        try:
            for group in _groups(batch):
                self.launches += len(group)
                first, cells = group[0]
                out += self._whole([operands for operands, _ in group]) if cells is None else [self._cells(first, cells)]
        except MemoryError:
            raise EnvironmentProblem(f"simulating {self.m}x{self.n}x{self.k} does not fit in memory", "a smaller shape") from None
        return out

    def _whole(self, group: list[Operands]) -> list[np.ndarray]:
        """Products of operands that share rows or columns: each different row meets each different column once."""
        rows, columns = _Lines(), _Lines()
        places = [(rows.add(one.a_key, lambda one=one: one.a(np)), columns.add(one.b_key, lambda one=one: one.b(np)))  # type: ignore[misc]
                  for one in group]
        block = execute(self.schedule, rows.stacked(), columns.stacked().T, self.input_dtype)
        return [np.asarray(block[np.ix_(own, facing)]) for own, facing in places]

    def _cells(self, operands: Operands, cells: Cells) -> np.ndarray:
        a, b = operands.a(np, cells.rows), operands.b(np, cells.columns)
        if (b == b[:1]).all():
            return np.asarray(execute(self.schedule, a, b[:1].T, self.input_dtype)[:, 0])
        if (a == a[:1]).all():
            return np.asarray(execute(self.schedule, a[:1], b.T, self.input_dtype)[0])
        return np.asarray(execute(self.schedule, a[:, None, :], b[:, :, None], self.input_dtype)[:, 0, 0])


class _Lines:
    """Different rows of A, or columns of B, of several products."""

    def __init__(self) -> None:
        self._lines: list[np.ndarray] = []
        self._places: dict[Hashable, np.ndarray] = {}

    def add(self, key: Hashable, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Where the lines of one operand are among the different ones; equal keys mean equal operands."""
        if key not in self._places:
            lines, index = _different(make())
            self._places[key] = len(self._lines) + index
            self._lines += list(lines)
        return self._places[key]

    def stacked(self) -> np.ndarray:
        return np.stack(self._lines)


def _groups(batch: Sequence[tuple[Operands, Cells | None]]) -> Iterator[list[tuple[Operands, Cells | None]]]:
    """Entries in a row whose operands make a grid: each A of them with each B. Others stay alone, and so does what is read in cells."""
    group: list[tuple[Operands, Cells | None]] = []
    for entry in batch:
        longer = [*group, entry]
        if group and (group[0][1] is not None or entry[1] is not None or not _sharing(longer)):
            yield group
            longer = [entry]
        group = longer
    if group:
        yield group


def _sharing(group: list[tuple[Operands, Cells | None]]) -> bool:
    """True where the last of a group shares an operand with those before it, and what is shared saves at least half of the work."""
    *before, (last, _) = group
    rows, columns = {one.a_key for one, _ in before}, {one.b_key for one, _ in before}
    if last.a_key not in rows and last.b_key not in columns:
        return False
    return len(rows | {last.a_key}) * len(columns | {last.b_key}) <= 2 * len(group)


def _different(lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different lines of a matrix, and for each line which of them it is. Lines that differ where they are sampled need no more."""
    step = max(1, lines.shape[1] // _SAMPLED)
    known: dict[bytes, list[int]] = {}
    first: list[int] = []
    index = np.empty(len(lines), np.int64)
    for at, line in enumerate(lines):
        alike = known.setdefault(line[::step].tobytes(), [])
        which = next((i for i in alike if np.array_equal(line, lines[first[i]])), None)
        if which is None:
            which = len(first)
            alike.append(which)
            first.append(at)
        index[at] = which
    return lines[np.array(first)], index
