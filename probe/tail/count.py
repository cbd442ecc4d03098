"""How many values of k reach a sum: units are put along K and every output element counts them.

16-bit inputs with an fp32 output count all of K, exactly up to 2^24. An accumulator of e4m3 with fast accumulation sticks at 16,384 (DESIGN
fact 2), and a bf16 output counts to 256, so there only the last 256 values of k are units: a loss of more shows as 256. A condition of
probe.tail.rule never names more than 131.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from probe.answer import Answer
from probe.cublaslt.library import Library
from probe.cublaslt.run import PreparedMatmul
from probe.device import Buffer, Device
from probe.errors import Declined, DeclineReason, LibraryError, UsageError
from probe.formats import bits_dtype, decode
from probe.inputs.ones import Ones, one_bits
from probe.oracle import Oracle
from probe.preference import Preference
from probe.problem import DType, Layout, Problem
from probe.values import Record, check_int

WINDOW = 256  # units, where an accumulator or the output holds no more exactly
_MOST = 2**24  # units that fp32 counts exactly
_SLOT = 64 * 64 * 4  # bytes of the largest output of a batch
_SLOTS = 256


@dataclass(frozen=True)
class Reading(Record):
    """units: values of k that were ones; least and most: what the output elements counted, -1 for one that was not written."""

    KIND: ClassVar[str] = "tail-reading"
    FORM: ClassVar[int] = 1

    units: int
    least: int
    most: int

    def __post_init__(self) -> None:
        check_int("units", self.units, 1, _MOST)
        check_int("most", self.most, self.least, _MOST)

    @property
    def lost(self) -> int:
        """Units that did not reach the element that counted fewest; negative where an element counted too many."""
        return self.units - (self.most if self.most > self.units else self.least)


def units_of(problem: Problem) -> int:
    """How many of the last values of k are ones, so that every count is exact. Raises UsageError where none can be."""
    wide = not problem.a_dtype.is_fp8
    if wide and problem.d_dtype is DType.FP32 and problem.k <= _MOST:
        return problem.k
    if not wide and problem.d_dtype is DType.FP32 and not problem.fast_accumulation and problem.k <= _MOST:
        return problem.k
    if problem.d_dtype in (DType.FP32, DType.BF16, DType.FP16):
        return min(problem.k, WINDOW)
    raise UsageError(f"a {problem.d_dtype} output does not count", "output fp32, bf16 or fp16")


def reading_of(problem: Problem, units: int, bits: np.ndarray[Any, Any]) -> Reading:
    """What the raw bits of the output count of that many units."""
    values = np.nan_to_num(decode(bits.reshape(-1), problem.d_dtype).astype(np.float64), nan=-1.0)
    return Reading(units, int(values.min()), int(values.max()))


def count(oracle: Oracle, problem: Problem, answer: Answer, preference: Preference, units: int | None = None) -> Reading | Declined:
    """One reading, on a device or a simulated library. units: how many of the last values of k are ones; None takes what `units_of` says.

    Declined where the answer does not run.
    """
    summing = oracle.summing(problem, answer, preference)
    if isinstance(summing, Declined):
        return summing
    units = units_of(problem) if units is None else units
    operands = Ones(problem.m, problem.n, problem.k, problem.a_dtype, problem.k - units)
    return reading_of(problem, units, summing.outputs([(operands, None)])[0])


class OracleCounter:
    """Counts one after the other, on whatever the oracle is."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def count(self, batch: Sequence[tuple[Problem, Answer]], preference: Preference) -> list[Reading | Declined]:
        return [count(self._oracle, problem, answer, preference) for problem, answer in batch]


class DeviceCounter:
    """Many small outputs on one GPU, fast: the same memory of ones serves every problem, and a batch is read back at once.

    most_side, most_k: no problem is larger. Only packed problems without batch; M and N at most 64.
    """

    def __init__(self, device: Device, library: Library, most_side: int, most_k: int, workspace_bytes: int) -> None:
        check_int("most_side", most_side, 1, 64)
        self._device, self._library = device, library
        self._elements = most_side * most_k
        self._outputs = device.allocate(_SLOT * _SLOTS, "the outputs")
        self._workspace = device.allocate(workspace_bytes, "the workspace")
        self._ones: dict[DType, Buffer] = {}
        self._zeros: Buffer | None = None

    def count(self, batch: Sequence[tuple[Problem, Answer]], preference: Preference) -> list[Reading | Declined]:
        """The readings, in order. Raises EnvironmentProblem where a kernel faults."""
        out: list[Reading | Declined] = []
        for start in range(0, len(batch), _SLOTS):
            out += self._some(batch[start:start + _SLOTS], preference)
        return out

    def _some(self, batch: Sequence[tuple[Problem, Answer]], preference: Preference) -> list[Reading | Declined]:
        self._outputs.fill(0xFF, 0, _SLOT * len(batch))  # NaN: an element that is not written shows
        refused: dict[int, Declined] = {}
        for slot, (problem, answer) in enumerate(batch):
            try:
                self._launch(problem, answer, preference, self._outputs.ptr + slot * _SLOT)
            except LibraryError as error:
                refused[slot] = Declined(DeclineReason.CANNOT_RUN, f"the offered algorithm failed to run: {error}")
        raw = self._outputs.read(np.uint8, (_SLOT * len(batch),))
        return [refused[slot] if slot in refused else self._read(problem, raw[slot * _SLOT:]) for slot, (problem, _) in enumerate(batch)]

    def _read(self, problem: Problem, raw: np.ndarray[Any, Any]) -> Reading:
        kind = bits_dtype(problem.d_dtype)
        return reading_of(problem, units_of(problem), raw[:problem.m * problem.n * kind.itemsize].view(kind))

    def _launch(self, problem: Problem, answer: Answer, preference: Preference, output: int) -> None:
        if max(problem.m, problem.n) * problem.k > self._elements or problem.batch_count > 1:
            raise UsageError(f"{problem.key} is larger than this counter was made for")
        ones = self._all_ones(problem.a_dtype)
        units = units_of(problem)
        with PreparedMatmul(self._library, problem, answer, preference) as prepared:
            if units == problem.k:
                prepared.launch(ones.ptr, ones.ptr, output, output, self._workspace.ptr)
                return
            if problem.layout not in (Layout.NN, Layout.TN) or problem.a_dtype.itemsize != 1:
                raise UsageError(f"{problem.key} cannot be counted in a window here", "e4m3, or fp32 output")
            window = self._window(problem, units)
            window.fill(one_bits(problem.a_dtype))
            try:
                prepared.launch(self._all_zeros().ptr, ones.ptr, output, output, self._workspace.ptr)
            finally:
                window.fill(0)  # for the next problem, whose rows have another length

    def _window(self, problem: Problem, units: int) -> Any:
        """The last `units` values of every row of A."""
        flat = self._all_zeros().view(np.uint8, (problem.m * problem.k,))
        rows = flat.reshape(problem.m, problem.k)
        return rows[:, problem.k - units:]

    def _all_ones(self, dtype: DType) -> Buffer:
        if dtype not in self._ones:
            kind = bits_dtype(dtype)
            buffer = self._device.allocate(self._elements * kind.itemsize, f"the {dtype} ones")
            buffer.view(kind, (self._elements,)).fill(one_bits(dtype))
            self._ones[dtype] = buffer
        return self._ones[dtype]

    def _all_zeros(self) -> Buffer:
        if self._zeros is None:
            self._zeros = self._device.allocate(self._elements, "the zeros")
            self._zeros.fill(0)
        return self._zeros
