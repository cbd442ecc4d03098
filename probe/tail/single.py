"""Count one sum on a GPU, of any size, layout and epilogue that the door can run: one call, its output reduced on the device.

`DeviceCounter` of probe.tail.count is faster and takes small packed problems of two layouts only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probe.answer import Answer
from probe.cublaslt.descriptors import Extras
from probe.cublaslt.library import Library
from probe.cublaslt.run import PreparedMatmul
from probe.device import Buffer, Device
from probe.errors import Declined, DeclineReason, LibraryError, UsageError
from probe.formats import bits_dtype
from probe.inputs.ones import one_bits
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.tail.count import Reading, reading_of, units_of

_BIAS_BYTES = 4  # of one element, at most


class SingleCounter:
    """One GPU and one library. B is memory of ones that is kept and grows with the largest problem.

    A bias is zeros. An epilogue leaves counts as they are: relu, and gelu within rounding from 16 units on, where its curve is x.
    """

    def __init__(self, device: Device, library: Library) -> None:
        self._device, self._library = device, library
        self._ones: dict[DType, Buffer] = {}

    def count(self, problem: Problem, answer: Answer, preference: Preference) -> Reading | Declined:
        """One reading. Declined where the answer does not run. Raises UsageError for what is no packed product with alpha 1 and beta 0,

        EnvironmentProblem where a kernel faults or the memory is not there.
        """
        _check(problem)
        units = units_of(problem)
        self._device.check_fits(problem.total_bytes + answer.workspace_bytes, problem.key)
        kind = bits_dtype(problem.d_dtype)
        b = self._ones_of(problem.b_dtype, problem.n * problem.k)
        a = self._ones_of(problem.a_dtype, problem.m * problem.k) if units == problem.k else self._window(problem, units)
        output = self._device.allocate(problem.m * problem.n * kind.itemsize, "the output")
        output.fill(0xFF)  # NaN: an element that is not written shows
        bias = self._device.allocate(problem.n * _BIAS_BYTES, "the bias")
        bias.fill(0)
        workspace = self._device.allocate(answer.workspace_bytes, "the workspace")
        extras = Extras(bias=bias.ptr if problem.epilogue.has_bias else 0)
        try:
            with PreparedMatmul(self._library, problem, answer, preference, extras) as prepared:
                prepared.launch(a.ptr, b.ptr, output.ptr, output.ptr, workspace.ptr)
                self._device.synchronize()
        except LibraryError as error:
            return Declined(DeclineReason.CANNOT_RUN, f"the offered algorithm failed to run: {error}")
        # Bits of numbers from 0 on are ordered as the numbers are, and those of negative ones and NaN are larger: these two tell the least
        flat: Any = output.view(kind, (problem.m * problem.n,))
        return reading_of(problem, units, np.array([int(flat.min()), int(flat.max())], kind))

    def _ones_of(self, dtype: DType, elements: int) -> Buffer:
        kind = bits_dtype(dtype)
        held = self._ones.pop(dtype, None)
        if held is None or held.nbytes < elements * kind.itemsize:
            del held  # before the larger one is asked for
            held = self._device.allocate(elements * kind.itemsize, f"the {dtype} ones")
            held.view(kind, (elements,)).fill(one_bits(dtype))
        self._ones[dtype] = held
        return held

    def _window(self, problem: Problem, units: int) -> Buffer:
        """A with ones in the last `units` values of k only."""
        kind = bits_dtype(problem.a_dtype)
        buffer = self._device.allocate(problem.m * problem.k * kind.itemsize, "operand A")
        buffer.fill(0)
        stored = buffer.view(kind, problem.a_shape)
        window = stored[problem.k - units:, :] if problem.layout.a_transposed else stored[:, problem.k - units:]
        window.fill(one_bits(problem.a_dtype))
        return buffer


def _check(problem: Problem) -> None:
    packed = all(getattr(problem, f"ld{x}") is None and getattr(problem, f"{x}_offset_bytes") == 0 for x in "abcd")
    scaled = any(getattr(problem, f"{x}_scale") for x in "abcd")
    if not packed or scaled or problem.batch_count > 1 or problem.alpha != 1 or problem.beta != 0 or problem.pointer_mode.cublas_value:
        raise UsageError(f"{problem.key} cannot be counted here", "packed operands, no batch, no scales, alpha 1, beta 0")
