"""Answers beyond what the cost model picks: which algorithms there are, what each can be set to, and one that the caller insists on.

All of it needs a GPU: without one (13.1.0) GetIds and Init return NOT_INITIALIZED, for they take a handle, and CapGetAttribute returns
INVALID_VALUE even for an algorithm that the same library gave on another machine. Nothing is launched here. A forced answer that is
accepted may still fault or hang when it runs: run it in a child process with a time limit.
"""

from __future__ import annotations

import ctypes
from typing import Any

from probe import vendor
from probe.answer import Answer
from probe.capabilities import CAPABILITY_ATTRIBUTES, Capabilities
from probe.cublaslt import status
from probe.cublaslt.algo import check_answer, initialised, read_attributes, type_numbers, write_attribute
from probe.cublaslt.ask import ask
from probe.cublaslt.descriptors import C_TYPES
from probe.cublaslt.library import Library
from probe.cublaslt.signatures import MatmulAlgo
from probe.errors import Declined, DeclineReason, LibraryError, UsageError
from probe.preference import Preference
from probe.problem import Problem

_MOST_IDS = 1024
_NO = (status.INVALID_VALUE, status.ARCH_MISMATCH, status.NOT_SUPPORTED)


def algorithm_ids(library: Library, problem: Problem) -> tuple[int, ...] | Declined:
    """Every algorithm that cublasLtMatmulAlgoGetIds lists for the dtypes of a problem, in its order; shape and layout play no part."""
    ids, count = (ctypes.c_int * _MOST_IDS)(), ctypes.c_int()
    code = library.functions.cublasLtMatmulAlgoGetIds(library.handle, *type_numbers(problem), _MOST_IDS, ids, ctypes.byref(count))
    if code in _NO:
        known = status.describe(code)
        types = f"{problem.a_dtype} inputs, {problem.d_dtype} output, compute type {problem.compute_type}"
        return Declined(DeclineReason.UNSUPPORTED, f"the library lists no algorithm for {types}: {known.name}, {known.meaning}")
    status.check("cublasLtMatmulAlgoGetIds", code)
    return tuple(ids[:count.value])


def capabilities(library: Library, problem: Problem, algo_id: int) -> Capabilities | Declined:
    """What one algorithm can be set to, for the dtypes of a problem. Declined, with the status, where the library has none of that number
    or does not tell."""
    try:
        algo = initialised(library, problem, algo_id)
        return Capabilities.of(algo_id, {name: _read(library, algo, header) for name, header in CAPABILITY_ATTRIBUTES.items()})
    except LibraryError as error:
        if error.status not in _NO:
            raise
        return Declined(DeclineReason.UNSUPPORTED, f"algorithm {algo_id}: {error.function} returned {error.name}, {error.meaning}")


def _read(library: Library, algo: MatmulAlgo, header_name: str) -> Any:
    """One capability: an int, or a tuple of ints where the header has an array, whose length the library tells."""
    attribute = vendor.attribute(header_name)
    read, written = library.functions.cublasLtMatmulAlgoCapGetAttribute, ctypes.c_size_t()
    function = f"cublasLtMatmulAlgoCapGetAttribute({header_name})"
    if not attribute.c_type.endswith("[]"):
        value = C_TYPES[attribute.c_type]()
        status.check(function, read(algo, attribute.number, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written)))
        return int(value.value)
    one = C_TYPES[attribute.c_type.removesuffix("[]")]
    status.check(function, read(algo, attribute.number, None, 0, ctypes.byref(written)))
    count = written.value // ctypes.sizeof(one)
    if not count:
        return ()
    values = (one * count)()
    status.check(function, read(algo, attribute.number, values, ctypes.sizeof(values), ctypes.byref(written)))
    return tuple(int(v) for v in values[:written.value // ctypes.sizeof(one)])


def force(library: Library, problem: Problem, preference: Preference) -> Answer | Declined:
    """The answer that `preference.forced` insists on, checked by the library (cublasLtMatmulAlgoCheck), with the workspace that it wants.

    Declined, with the name of the status, where the library has no such algorithm, refuses an attribute or the whole, or where it wants
    more workspace than the preference allows. The mask of reduction schemes binds the library's own answer, not what is forced.
    """
    forced = preference.forced
    if forced is None:
        raise UsageError("nothing is forced", "a preference with `forced`, or ask the library")
    if forced.algo_id is None:
        own = ask(library, problem, preference)
        if isinstance(own, Declined):
            return own
        assert own.blob is not None  # `ask` keeps it
        algo = MatmulAlgo.from_buffer_copy(own.blob)
    else:
        try:
            algo = initialised(library, problem, forced.algo_id)
        except LibraryError as error:
            return _refused(error, f"algorithm {forced.algo_id}")
    for name, value in forced.given.items():
        if name != "algo_id":
            try:
                write_attribute(library, algo, name, value)
            except LibraryError as error:
                return _refused(error, f"{name} = {value}")
    made = Answer(**read_attributes(library, algo), workspace_bytes=0, waves=0.0, blob=bytes(algo))
    checked = check_answer(library, problem, made)
    if isinstance(checked, Declined):
        return Declined(checked.reason, f"{checked.text}; forced {forced}", "probe answers lists what can be forced")
    if checked.workspace_bytes > preference.workspace_bytes:
        return Declined(DeclineReason.CANNOT_RUN, f"the forced algorithm wants {checked.workspace_bytes} bytes of workspace and "
                                                  f"{preference.workspace_bytes} are allowed", "more workspace")
    return checked


def _refused(error: LibraryError, what: str) -> Declined:
    """The library's refusal of one part. Any other failure, a missing GPU for one, is raised."""
    if error.status not in _NO:
        raise error
    return Declined(DeclineReason.CANNOT_RUN, f"the library refuses {what}: {error.name}, {error.meaning}",
                    "probe answers lists what can be forced")
