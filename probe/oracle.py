"""A device with a library, or the simulated library, as one thing that is asked, captured and summed with.

Both sides go through the same calls from here on: nothing later knows which one it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from probe.answer import Answer
from probe.capabilities import Capabilities
from probe.capture import Capture, Kernel, capture
from probe.cublaslt.ask import ask
from probe.cublaslt.find import find_library
from probe.cublaslt.force import algorithm_ids, capabilities, force
from probe.cublaslt.library import Library
from probe.cublaslt.run import PreparedMatmul
from probe.device import Device
from probe.errors import Declined, DeclineReason, EnvironmentProblem, LibraryError
from probe.formats import bits_dtype
from probe.inputs.operands import Operands
from probe.preference import Preference
from probe.problem import Problem
from probe.simulator.forcing import check_addresses, forced_answer, simulated_algorithms, simulated_capabilities
from probe.simulator.library import SimulatedLibrary, SimulatedSumming
from probe.summing import Cells, Summing
from probe.target import Target

SIMULATED = "sim"
SIMULATED_LIBRARIES = {SIMULATED: SimulatedLibrary(), "sim-2": SimulatedLibrary(drops_tail=False, second=True),
                       "sim-vectors": SimulatedLibrary(vectors=True)}
_SMALL_OPERAND = 2**18  # elements that numpy makes and copies faster than cupy launches its kernels; about 0.1 ms either way here
_SMALL_OUTPUT = 2**16  # bytes of an output that is kept whole rather than gathered from
_POISON = 0xA5  # every output byte before each launch: an element that was not written shows


class Oracle(Protocol):
    """What a shape is put to."""

    target: Target
    found_by: str
    announcement: str

    def ask(self, problem: Problem, preference: Preference) -> Answer | Declined:
        """The library's own answer, or the one that the preference forces, once the library accepts it."""
        ...

    def algorithms(self, problem: Problem) -> tuple[int, ...] | Declined:
        """The numbers of all algorithms for the dtypes of a problem."""
        ...

    def capabilities(self, problem: Problem, algo_id: int) -> Capabilities | Declined:
        """What one of them can be set to."""
        ...

    def capture(self, problem: Problem, answer: Answer, preference: Preference) -> Capture | Declined: ...

    def summing(self, problem: Problem, answer: Answer, preference: Preference) -> Summing | Declined: ...


class SimulatedOracle:
    """The simulated library behind the oracle's calls."""

    def __init__(self, library: SimulatedLibrary | None = None) -> None:
        self.library = library or SimulatedLibrary()
        self.target = self.library.target
        self.found_by = "built in"
        self.announcement = self.library.announcement

    def ask(self, problem: Problem, preference: Preference) -> Answer | Declined:
        return forced_answer(self.library, problem, preference) if preference.forced else self.library.ask(problem, preference)

    def algorithms(self, problem: Problem) -> tuple[int, ...] | Declined:
        return simulated_algorithms(self.library, problem)

    def capabilities(self, problem: Problem, algo_id: int) -> Capabilities | Declined:
        return simulated_capabilities(self.library, problem, algo_id)

    def capture(self, problem: Problem, answer: Answer, preference: Preference) -> Capture:
        return Capture(tuple(Kernel(name, (1, 1, max(1, answer.splitk_num)), (128, 1, 1), None, 0)
                             for name in self.library.kernels(problem, answer)))

    def summing(self, problem: Problem, answer: Answer, preference: Preference) -> SimulatedSumming:
        check_addresses(problem, answer)
        return self.library.summing(problem, answer)


class DeviceOracle:
    """A GPU and a cuBLASLt."""

    announcement = ""

    def __init__(self, device: Device, library: Library, found_by: str) -> None:
        self.device, self.library, self.found_by = device, library, found_by
        self.target = device.identity.target(library)
        self._captured: tuple[tuple[Problem, Answer, Preference], DeviceSumming] | None = None

    def ask(self, problem: Problem, preference: Preference) -> Answer | Declined:
        room = self.device.identity.total_bytes
        if problem.total_bytes > room:
            sizes = f"the operands take {problem.total_bytes / 2**30:.1f} GiB and the device has {room / 2**30:.1f} GiB"
            return Declined(DeclineReason.TOO_LARGE, sizes, "a smaller shape")
        return force(self.library, problem, preference) if preference.forced else ask(self.library, problem, preference)

    def algorithms(self, problem: Problem) -> tuple[int, ...] | Declined:
        return algorithm_ids(self.library, problem)

    def capabilities(self, problem: Problem, algo_id: int) -> Capabilities | Declined:
        return capabilities(self.library, problem, algo_id)

    def capture(self, problem: Problem, answer: Answer, preference: Preference) -> Capture | Declined:
        self._captured = None  # its buffers are freed before others are made
        with_buffers = self._summing(problem, answer, preference)
        self._captured = (problem, answer, preference), with_buffers
        try:
            return with_buffers.capture()
        except LibraryError as error:  # the call itself refuses, before any kernel: as good as a kernel that fails
            return _cannot_run(error)

    def summing(self, problem: Problem, answer: Answer, preference: Preference) -> Summing | Declined:
        kept, self._captured = self._captured, None
        same = kept is not None and kept[0] == (problem, answer, preference)
        summing = kept[1] if kept is not None and same else self._summing(problem, answer, preference)
        del kept
        try:
            summing.trial()
        except LibraryError as error:
            return _cannot_run(error)
        return summing

    def _summing(self, problem: Problem, answer: Answer, preference: Preference) -> DeviceSumming:
        return DeviceSumming(self.device, self.library, problem, answer, preference)


def _cannot_run(error: LibraryError) -> Declined:
    return Declined(DeclineReason.CANNOT_RUN, f"the offered algorithm failed to run: {error}", "another workspace, layout or alignment")


class DeviceSumming:
    """One problem with its answer on a device: operands in the problem's own layout, the output poisoned before each launch."""

    def __init__(self, device: Device, library: Library, problem: Problem, answer: Answer, preference: Preference) -> None:
        self.m, self.n, self.k = problem.m, problem.n, problem.k
        self.input_dtype, self.output_dtype = problem.a_dtype, problem.d_dtype
        self.launches = 0
        self._device, self._problem = device, problem
        device.check_fits(problem.total_bytes + answer.workspace_bytes, f"{problem.m}x{problem.n}x{problem.k}")
        self._a = device.allocate(problem.operand_bytes("a"), "operand A")
        self._b = device.allocate(problem.operand_bytes("b"), "operand B")
        self._d = device.allocate(problem.operand_bytes("d"), "the output")
        self._workspace = device.allocate(answer.workspace_bytes, "the workspace")
        self._prepared = PreparedMatmul(library, problem, answer, preference)
        self._launch: Callable[[int], None] = self._prepared.launcher(
            self._a.ptr + problem.a_offset_bytes, self._b.ptr + problem.b_offset_bytes, self._d.ptr + problem.d_offset_bytes,
            self._d.ptr + problem.d_offset_bytes, self._workspace.ptr)
        self._a_view = self._operand(self._a, "a", problem.layout.a_transposed)
        self._b_view = self._operand(self._b, "b", not problem.layout.b_transposed)
        self._d_view = self._operand(self._d, "d", False)
        self._a_key: Any = None
        self._b_key: Any = None

    def _operand(self, buffer: Any, name: str, transposed: bool) -> Any:
        """A view of an operand: A as (m, k), B as (n, k), D as (m, n), whatever way it is stored."""
        problem = self._problem
        kind = bits_dtype({"a": problem.a_dtype, "b": problem.b_dtype, "d": problem.d_dtype}[name])
        rows, columns = problem.stored_shape(name)
        ld = problem.leading_dimension(name)
        offset: int = getattr(problem, f"{name}_offset_bytes")
        size = (rows - 1) * ld + columns
        flat = buffer.view(kind, (size,), offset)
        cupy = self._device.cupy
        view = cupy.ndarray((rows, columns), kind, memptr=flat.data, strides=(ld * kind.itemsize, kind.itemsize))
        return view.T if transposed else view

    def trial(self) -> None:
        """One launch on zeros; what cannot run fails here."""
        self._a.fill(0)
        self._b.fill(0)
        self._a_key = self._b_key = None
        self._launch(0)
        self._device.synchronize()

    def capture(self) -> Capture:
        """The kernels of one call. Nothing is executed."""
        return capture(self._launch)

    def outputs(self, batch: Sequence[tuple[Operands, Cells | None]]) -> list[np.ndarray]:
        """One launch for each entry. Results stay on the device until all are done."""
        cupy = self._device.cupy
        kept: list[Any] = []
        for operands, cells in batch:
            self._a_key = self._write(self._a_view, operands.a, operands.a_key, self._a_key)
            self._b_key = self._write(self._b_view, operands.b, operands.b_key, self._b_key)
            self._d.fill(_POISON)
            self._launch(0)
            self.launches += 1
            if cells is None or self._d_view.nbytes <= _SMALL_OUTPUT:
                kept.append(self._d_view.copy())
            else:
                kept.append(self._d_view[cupy.asarray(cells.rows), cupy.asarray(cells.columns)])
        self._device.synchronize()
        results = self._download(kept)
        return [r if cells is None or r.ndim == 1 else r[cells.rows, cells.columns] for r, (_, cells) in zip(results, batch, strict=True)]

    def _write(self, view: Any, make: Callable[[Any], Any], key: Any, held: Any) -> Any:
        """Write an operand unless the device holds it already; small ones are made on the host, where no kernel need be launched."""
        if key == held:
            return held
        if view.size <= _SMALL_OPERAND:
            made = make(np)
            if view.flags.c_contiguous:
                view.set(made)
            elif view.T.flags.c_contiguous:
                view.T.set(np.ascontiguousarray(made.T))
            else:  # padded rows
                view[...] = self._device.cupy.asarray(made)
        else:
            view[...] = make(self._device.cupy)
        return key

    def _download(self, kept: list[Any]) -> list[np.ndarray]:
        cupy = self._device.cupy
        if len(kept) > 1 and len({k.shape for k in kept}) == 1 and kept[0].nbytes <= _SMALL_OUTPUT:
            return list(cupy.asnumpy(cupy.stack(kept)))
        return [cupy.asnumpy(k) for k in kept]


@dataclass(frozen=True)
class Opened:
    """An oracle and how it came about: "no GPU ..., so the simulated library" is said, never silent."""

    oracle: Oracle
    notice: str


def open_oracle(library: str | None, gpu: int) -> Opened:
    """The oracle for `--library` (a path, cu12, cu13, sim, sim-2, sim-vectors, or None) and `--gpu`.

    None means the GPU and the installed cuBLASLt, or, where this machine has no GPU or no library, the simulated library, with a
    notice that says so. A library that was named and cannot be used is an error, never replaced.
    """
    if library in SIMULATED_LIBRARIES:
        return Opened(SimulatedOracle(SIMULATED_LIBRARIES[library]), "")
    try:
        found = find_library(library)
        opened = Library.open(found)  # before the device: a file that is no cuBLASLt is told as that, with or without a GPU
        return Opened(DeviceOracle(Device.open(gpu), opened, str(found.won)), "")
    except EnvironmentProblem as problem:
        if library is not None or gpu != 0:
            instead = "--library sim needs no GPU"
            raise EnvironmentProblem(problem.message, f"{problem.hint}; {instead}" if problem.hint else instead) from None
        return Opened(SimulatedOracle(), f"{problem.message}; using the simulated library instead (`--library sim` asks for it by name)")
