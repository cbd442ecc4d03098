"""The library's algorithm struct: to an Answer and back, altered, and checked by the library.

Widths matter: attributes 0 to 6 are 4 bytes, 7 and 8 are 2, and a read of another width fails (13.1.0).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from probe import vendor
from probe.answer import CONFIG_ATTRIBUTES, Answer
from probe.cublaslt import status
from probe.cublaslt.descriptors import C_TYPES, Described, asking_extras, box, describe
from probe.cublaslt.library import Library
from probe.cublaslt.signatures import HeuristicResult, MatmulAlgo
from probe.errors import Declined, DeclineReason, UsageError
from probe.problem import Problem


@cache
def _config() -> tuple[tuple[str, str, int, Any, int], ...]:
    """(field of Answer, header name, number, ctypes type, width in bytes) of the nine attributes."""
    rows = []
    for name, header_name in CONFIG_ATTRIBUTES.items():
        attribute = vendor.attribute(header_name)
        c_type = C_TYPES[attribute.c_type]
        rows.append((name, header_name, attribute.number, c_type, ctypes.sizeof(c_type)))
    return tuple(rows)


def read_attributes(library: Library, algo: MatmulAlgo) -> dict[str, int]:
    """The nine attributes of an algorithm, by field of Answer. Raises LibraryError. Needs no GPU."""
    read = library.functions.cublasLtMatmulAlgoConfigGetAttribute
    written = ctypes.c_size_t()
    out = {}
    for name, header_name, number, c_type, width in _config():
        value = c_type()
        code = read(algo, number, ctypes.byref(value), width, written)
        if code:
            status.check(f"cublasLtMatmulAlgoConfigGetAttribute({header_name})", code)
        out[name] = int(value.value)
    return out


def write_attribute(library: Library, algo: MatmulAlgo, name: str, value: int) -> None:
    """Set one attribute, named as the field of Answer. algo_id cannot be set. Raises LibraryError."""
    header_name = CONFIG_ATTRIBUTES[name]
    attribute = vendor.attribute(header_name)
    boxed = box(attribute, value)
    result = library.functions.cublasLtMatmulAlgoConfigSetAttribute(
        ctypes.byref(algo), attribute.number, ctypes.byref(boxed), ctypes.sizeof(boxed)
    )
    status.check(f"cublasLtMatmulAlgoConfigSetAttribute({header_name})", result)


def read_answer(library: Library, result: HeuristicResult) -> Answer:
    """The Answer of one heuristic result whose state is success."""
    return Answer(
        **read_attributes(library, result.algo),
        workspace_bytes=int(result.workspace_size),
        waves=float(result.waves_count),
        blob=bytes(result.algo),
    )


def type_numbers(problem: Problem) -> tuple[int, ...]:
    """Compute type, scale type and the dtypes of A, B, C, D as GetIds and Init take them; the call's A is our B."""
    p = problem
    types = (p.scale_type, p.b_dtype, p.a_dtype, p.c_dtype, p.d_dtype)
    return p.compute_type.cublas_value, *(t.cuda_value for t in types)


def initialised(library: Library, problem: Problem, algo_id: int) -> MatmulAlgo:
    """The algorithm of that number with the library's defaults (cublasLtMatmulAlgoInit).

    Only the dtypes of the problem count. Needs a GPU. Raises LibraryError where the library has no such
    algorithm for them.
    """
    algo = MatmulAlgo()
    code = library.functions.cublasLtMatmulAlgoInit(
        library.handle, *type_numbers(problem), algo_id, ctypes.byref(algo)
    )
    status.check("cublasLtMatmulAlgoInit", code)
    return algo


def rebuild(library: Library, problem: Problem, answer: Answer) -> MatmulAlgo:
    """The algorithm struct of an answer, from its blob, or without one from its nine attributes.

    The two are the same bytes: so it was for 17 answers of five algorithm families on an H200 (13.1.0).
    Reads the attributes back and raises UsageError if they are not the answer's (a blob of another library
    version). From attributes it needs the handle, so a GPU.
    """
    if answer.blob is not None:
        algo = MatmulAlgo.from_buffer_copy(answer.blob)
    else:
        algo = initialised(library, problem, answer.algo_id)
        for name in CONFIG_ATTRIBUTES:
            if name != "algo_id":
                write_attribute(library, algo, name, getattr(answer, name))
    back = tuple(read_attributes(library, algo).values())
    if back != answer.attributes:
        raise UsageError(
            f"the algorithm reads back as {back}, the answer is {answer.attributes}",
            f"the blob must come from this very library, {library.version}",
        )
    return algo


def alter(library: Library, answer: Answer, **changes: int) -> Answer:
    """The answer with some of its attributes changed (not algo_id), blob included. Needs no GPU.

    Nothing says that it runs: ask `check_answer`, and run it in a child process with a time limit.
    """
    if answer.blob is None:
        raise UsageError("an answer without its blob cannot be altered", "ask the library again")
    algo = MatmulAlgo.from_buffer_copy(answer.blob)
    for name, value in changes.items():
        if name not in CONFIG_ATTRIBUTES or name == "algo_id":
            settable = ", ".join(n for n in CONFIG_ATTRIBUTES if n != "algo_id")
            raise UsageError(f"{name} cannot be changed", f"one of {settable}")
        write_attribute(library, algo, name, value)
    return Answer(
        **read_attributes(library, algo),
        workspace_bytes=answer.workspace_bytes,
        waves=answer.waves,
        blob=bytes(algo),
    )


def check_answer(library: Library, problem: Problem, answer: Answer) -> Answer | Declined:
    """The answer with the workspace and waves that the library states for it, or its refusal.

    Calls cublasLtMatmulAlgoCheck; it needs a GPU. Accepted does not mean that it runs (header: alignment is
    not checked).
    """
    algo = rebuild(library, problem, answer)
    with describe(library, problem, asking_extras(problem)) as described:
        result = HeuristicResult()
        code = library.functions.cublasLtMatmulAlgoCheck(
            library.handle, *call_layouts(described), ctypes.byref(algo), ctypes.byref(result)
        )
    if code in (status.INVALID_VALUE, status.ARCH_MISMATCH, status.NOT_SUPPORTED):
        known = status.describe(code)
        return Declined(
            DeclineReason.CANNOT_RUN, f"the library refuses this algorithm: {known.name}, {known.meaning}"
        )
    status.check("cublasLtMatmulAlgoCheck", code)
    return Answer(
        **read_attributes(library, algo),
        workspace_bytes=int(result.workspace_size),
        waves=float(result.waves_count),
        blob=bytes(algo),
    )


def call_layouts(described: Described) -> tuple[int, int, int, int, int]:
    """The descriptors as the asking functions take them: matmul, first, second, C, D."""
    d = described
    return d.matmul.pointer, d.first.pointer, d.second.pointer, d.c.pointer, d.d.pointer
