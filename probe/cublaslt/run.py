"""Run one answer: everything is made once, a launch is one call (9 us to enqueue, H200 host, Python 3.12)."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from probe.answer import Answer
from probe.cublaslt import status
from probe.cublaslt.algo import rebuild
from probe.cublaslt.descriptors import Extras, describe
from probe.cublaslt.library import Library
from probe.errors import UsageError
from probe.preference import Preference
from probe.problem import DType, PointerMode, Problem

# cuBLAS documentation of cublasLtMatmul: the workspace must be 256-byte aligned.
WORKSPACE_ALIGNMENT = 256


class PreparedMatmul:
    """An answer, ready to launch on the CUDA device that is current. Close it, or use it in `with`.

    preference: the one the answer was given for; its alignments are what every launch is held to, for a
    misaligned operand can poison the CUDA context. Where it promises more than the problem's offsets have
    (`Problem.overpromised`), the offsets are what a launch is held to, and the kernel may fault: that is
    for a child process. extras: the device addresses that the problem needs beyond
    the operands; they are fixed here.
    """

    def __init__(
        self,
        library: Library,
        problem: Problem,
        answer: Answer,
        preference: Preference,
        extras: Extras | None = None,
    ) -> None:
        extras = Extras() if extras is None else extras
        self.library = library
        self.problem = problem
        self.answer = answer
        self._algo = rebuild(library, problem, answer)
        self._handle = library.handle
        self._described = describe(library, problem, extras)
        promised = problem.alignments(preference)
        a, b, c, d = (min(p, problem.alignment(x)) for p, x in zip(promised, "abcd", strict=True))
        self._alignments = a, b, c, d
        self._alpha, self._beta, self._keep = _scalars(problem, extras)
        # Looked up once: 13 of the 16 arguments never change.
        self._matmul: Any = library.functions.cublasLtMatmul
        self._algo_reference = ctypes.byref(self._algo)

    @property
    def workspace_bytes(self) -> int:
        """Workspace that a launch needs, in bytes."""
        return self.answer.workspace_bytes

    def launch(
        self, a_ptr: int, b_ptr: int, c_ptr: int, d_ptr: int, workspace_ptr: int, stream: int = 0
    ) -> None:
        """Enqueue the GEMM on a stream (a CUstream address; 0 is the legacy default stream).

        Addresses are of the first element of each operand, offsets included. c_ptr may equal d_ptr, and may
        be 0 where beta is 0. Raises UsageError for an address that is not as aligned as was promised,
        LibraryError where the library refuses. A kernel's own failure shows at the next synchronisation.
        """
        a, b, c, d = self._alignments
        if a_ptr % a or b_ptr % b or c_ptr % c or d_ptr % d or workspace_ptr % WORKSPACE_ALIGNMENT:
            self._refuse(a_ptr, b_ptr, c_ptr, d_ptr, workspace_ptr)
        if not (a_ptr and b_ptr and d_ptr):
            raise UsageError("A, B and the output need device addresses, one of them is 0")
        n = self._described
        code = self._matmul(
            self._handle,
            n.matmul.pointer,
            self._alpha,
            b_ptr,  # the call's A is our B
            n.first.pointer,
            a_ptr,
            n.second.pointer,
            self._beta,
            c_ptr,
            n.c.pointer,
            d_ptr,
            n.d.pointer,
            self._algo_reference,
            workspace_ptr,
            self.answer.workspace_bytes,
            stream,
        )
        if code:
            status.check("cublasLtMatmul", code)

    def launcher(
        self, a_ptr: int, b_ptr: int, c_ptr: int, d_ptr: int, workspace_ptr: int
    ) -> Callable[[int], None]:
        """A function of the stream alone, as `probe.capture.capture` takes it."""

        def launch(stream: int) -> None:
            self.launch(a_ptr, b_ptr, c_ptr, d_ptr, workspace_ptr, stream)

        return launch

    def _refuse(self, *addresses: int) -> None:
        names = ("A", "B", "C", "D", "workspace")
        for name, address, need in zip(
            names, addresses, (*self._alignments, WORKSPACE_ALIGNMENT), strict=True
        ):
            if address % need:
                raise UsageError(
                    f"the address of {name} is not a multiple of {need} bytes",
                    "state the offset in the problem, or the alignment in the preference, and ask again",
                )

    def close(self) -> None:
        """Destroy the descriptors. Closing twice does nothing."""
        self._described.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _scalars(problem: Problem, extras: Extras) -> tuple[Any, Any, tuple[Any, ...]]:
    """alpha and beta as the call takes them, and what must stay alive while it may be called."""
    if problem.pointer_mode is PointerMode.DEVICE:
        return extras.alpha, extras.beta, ()
    code = "e" if problem.scale_type is DType.FP16 else "f"
    alpha, beta = (
        ctypes.create_string_buffer(struct.pack(code, v), 8) for v in (problem.alpha, problem.beta)
    )
    return ctypes.addressof(alpha), ctypes.addressof(beta), (alpha, beta)
