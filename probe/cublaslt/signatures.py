"""ctypes signatures of every cuBLASLt function that probe calls, and the two structs that cross the border.

Source: cublasLt.h of nvidia-cublas 13.1.0.3. Handles, descriptors and device pointers are void*; enums are
int.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, ClassVar


class MatmulAlgo(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque, 64 bytes, may be copied within one library version."""

    _fields_: ClassVar[list[Any]] = [("data", c_uint64 * 8)]


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t. The other fields are valid only where `state` is 0."""

    _fields_: ClassVar[list[Any]] = [
        ("algo", MatmulAlgo),
        ("workspace_size", c_size_t),
        ("state", c_int),
        ("waves_count", c_float),
        ("reserved", c_int * 4),
    ]


_P = c_void_p
_GET = [_P, c_int, _P, c_size_t, ctypes.POINTER(c_size_t)]
_SET = [_P, c_int, _P, c_size_t]
_TYPES = [c_int] * 6  # compute, scale, A, B, C, D

# name -> (result type, argument types)
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "cublasLtGetVersion": (c_size_t, []),
    "cublasLtGetCudartVersion": (c_size_t, []),
    "cublasLtGetStatusName": (c_char_p, [c_int]),
    "cublasLtGetStatusString": (c_char_p, [c_int]),
    "cublasLtCreate": (c_int, [ctypes.POINTER(_P)]),
    "cublasLtDestroy": (c_int, [_P]),
    "cublasLtMatmulDescCreate": (c_int, [ctypes.POINTER(_P), c_int, c_int]),
    "cublasLtMatmulDescDestroy": (c_int, [_P]),
    "cublasLtMatmulDescSetAttribute": (c_int, _SET),
    "cublasLtMatmulDescGetAttribute": (c_int, _GET),
    "cublasLtMatrixLayoutCreate": (c_int, [ctypes.POINTER(_P), c_int, c_uint64, c_uint64, c_int64]),
    "cublasLtMatrixLayoutDestroy": (c_int, [_P]),
    "cublasLtMatrixLayoutSetAttribute": (c_int, _SET),
    "cublasLtMatrixLayoutGetAttribute": (c_int, _GET),
    "cublasLtMatmulPreferenceCreate": (c_int, [ctypes.POINTER(_P)]),
    "cublasLtMatmulPreferenceDestroy": (c_int, [_P]),
    "cublasLtMatmulPreferenceSetAttribute": (c_int, _SET),
    "cublasLtMatmulPreferenceGetAttribute": (c_int, _GET),
    "cublasLtMatmulAlgoGetHeuristic": (
        c_int,
        [_P, _P, _P, _P, _P, _P, _P, c_int, ctypes.POINTER(HeuristicResult), ctypes.POINTER(c_int)],
    ),
    "cublasLtMatmulAlgoGetIds": (
        c_int,
        [_P, *_TYPES, c_int, ctypes.POINTER(c_int), ctypes.POINTER(c_int)],
    ),
    "cublasLtMatmulAlgoInit": (c_int, [_P, *_TYPES, c_int, ctypes.POINTER(MatmulAlgo)]),
    "cublasLtMatmulAlgoCheck": (
        c_int,
        [_P, _P, _P, _P, _P, _P, ctypes.POINTER(MatmulAlgo), ctypes.POINTER(HeuristicResult)],
    ),
    "cublasLtMatmulAlgoConfigSetAttribute": (c_int, [ctypes.POINTER(MatmulAlgo), c_int, _P, c_size_t]),
    "cublasLtMatmulAlgoConfigGetAttribute": (
        c_int,
        [ctypes.POINTER(MatmulAlgo), c_int, _P, c_size_t, ctypes.POINTER(c_size_t)],
    ),
    "cublasLtMatmulAlgoCapGetAttribute": (
        c_int,
        [ctypes.POINTER(MatmulAlgo), c_int, _P, c_size_t, ctypes.POINTER(c_size_t)],
    ),
    # handle, desc, alpha, A, Adesc, B, Bdesc, beta, C, Cdesc, D, Ddesc, algo, workspace, bytes, stream
    "cublasLtMatmul": (
        c_int,
        [_P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, ctypes.POINTER(MatmulAlgo), _P, c_size_t, _P],
    ),
}


def bind(library: ctypes.CDLL) -> list[str]:
    """Give every function of SIGNATURES its types. Returns the names that the library does not export."""
    missing = []
    for name, (result, arguments) in SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            missing.append(name)
            continue
        function.restype = result
        function.argtypes = arguments
    return missing
