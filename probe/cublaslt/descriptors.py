"""The library's descriptors: created, set, read back and destroyed; and those that one problem needs.

An attribute is named as in the header; its number and C type come from vendor_enums.json, and a value that
the type cannot hold is refused here, because ctypes would wrap it. `cublasLtMatrixLayoutCreate` accepts
zero rows, a leading dimension that is too small and an unknown dtype (13.1.0), so a layout is checked
before it is created.

Operand order. The call's A is our B and the call's B is our A (see probe.problem): every attribute that names
A or B is crossed in `describe` and `describe_preference`, and only there.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

from probe import vendor
from probe.cublaslt import status
from probe.cublaslt.library import Library
from probe.errors import UsageError
from probe.preference import Preference
from probe.problem import DType, Problem

C_TYPES: dict[str, Any] = {
    "int8_t": ctypes.c_int8,
    "uint16_t": ctypes.c_uint16,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "void*": ctypes.c_uint64,  # an address
}


def box(attribute: vendor.Attribute, value: int | float) -> Any:
    """The ctypes value of an attribute. Raises UsageError where the C type does not hold `value` exactly."""
    made = C_TYPES[attribute.c_type](value)
    if made.value != value:
        raise UsageError(f"{attribute.name} = {value} does not fit {attribute.c_type}")
    return made


class Descriptor:
    """A descriptor that is destroyed when closed. Raises LibraryError where the library refuses."""

    CREATE: ClassVar[str]  # C name up to the verb: "cublasLtMatmulDesc"

    def __init__(self, library: Library, *arguments: int) -> None:
        self._library = library
        made = ctypes.c_void_p()
        name = f"{self.CREATE}Create"
        status.check(name, getattr(library.functions, name)(ctypes.byref(made), *arguments))
        assert made.value is not None
        self.pointer: int = made.value

    def set(self, name: str, value: int | float) -> None:
        """Set one attribute, with the width that the header gives it."""
        attribute = vendor.attribute(name)
        boxed = box(attribute, value)
        function = f"{self.CREATE}SetAttribute"
        call = getattr(self._library.functions, function)
        result = call(self.pointer, attribute.number, ctypes.byref(boxed), ctypes.sizeof(boxed))
        status.check(f"{function}({name})", result)

    def get(self, name: str) -> int | float:
        """Read one attribute, with the width that the header gives it."""
        attribute = vendor.attribute(name)
        boxed, written = C_TYPES[attribute.c_type](), ctypes.c_size_t()
        function = f"{self.CREATE}GetAttribute"
        call = getattr(self._library.functions, function)
        size = ctypes.sizeof(boxed)
        result = call(self.pointer, attribute.number, ctypes.byref(boxed), size, ctypes.byref(written))
        status.check(f"{function}({name})", result)
        value: int | float = boxed.value
        return value

    def close(self) -> None:
        """Destroy it. Closing twice does nothing."""
        if self.pointer:
            name = f"{self.CREATE}Destroy"
            pointer, self.pointer = self.pointer, 0
            status.check(name, getattr(self._library.functions, name)(pointer))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MatmulDesc(Descriptor):
    """cublasLtMatmulDesc_t. compute_type is a cublasComputeType_t, scale_type a cudaDataType."""

    CREATE = "cublasLtMatmulDesc"

    def __init__(self, library: Library, compute_type: int, scale_type: int) -> None:
        super().__init__(library, compute_type, scale_type)


class MatrixLayout(Descriptor):
    """cublasLtMatrixLayout_t, column-major: rows, columns and leading dimension in elements."""

    CREATE = "cublasLtMatrixLayout"

    def __init__(self, library: Library, dtype: DType, rows: int, columns: int, ld: int) -> None:
        if not isinstance(dtype, DType):
            raise UsageError(f"a layout needs a known dtype, got {dtype!r}", "one of " + ", ".join(DType))
        if rows < 1 or columns < 1:
            raise UsageError(f"a layout of {rows} rows and {columns} columns is empty", "at least 1 by 1")
        if not rows <= ld < 2**63:
            raise UsageError(f"leading dimension {ld} does not hold {rows} rows", f"at least {rows}")
        super().__init__(library, dtype.cuda_value, rows, columns, ld)


class MatmulPreference(Descriptor):
    """cublasLtMatmulPreference_t, with the library's defaults: workspace 0, mask 7, alignments 256."""

    CREATE = "cublasLtMatmulPreference"


@dataclass(frozen=True)
class Extras:
    """Device addresses, beyond A, B, C and D, that a problem may need; 0 is none.

    a_scale to d_scale: one fp32 each, needed where the problem says so. bias: N elements of bias_dtype.
    alpha, beta: one element of the scale type each, needed in pointer mode device.
    """

    a_scale: int = 0
    b_scale: int = 0
    c_scale: int = 0
    d_scale: int = 0
    bias: int = 0
    alpha: int = 0
    beta: int = 0

    def missing(self, problem: Problem) -> list[str]:
        """Names of the addresses that the problem needs and that are 0."""
        return [name for name in needed_extras(problem) if getattr(self, name) == 0]


# For asking only: the cost model looks at whether these pointers are set and how they are aligned and
# does not follow them (header: "Routines that don't dereference this pointer ... depend on its value to
# determine expected pointer alignment").
_NEVER_FOLLOWED = 1 << 20


def needed_extras(problem: Problem) -> list[str]:
    """Names of the fields of Extras that the problem needs."""
    names = [f"{x}_scale" for x in "abcd" if getattr(problem, f"{x}_scale")]
    if problem.epilogue.has_bias:
        names.append("bias")
    if problem.pointer_mode.cublas_value:
        names += ["alpha", "beta"]
    return names


def asking_extras(problem: Problem) -> Extras:
    """256-byte aligned addresses that are never followed, for every extra that the problem needs."""
    return Extras(**dict.fromkeys(needed_extras(problem), _NEVER_FOLLOWED))


@dataclass
class Described:
    """The descriptors of one problem, in the order of the call: first is our B, second our A."""

    matmul: MatmulDesc
    first: MatrixLayout
    second: MatrixLayout
    c: MatrixLayout
    d: MatrixLayout

    def close(self) -> None:
        """Destroy all of them."""
        for descriptor in (self.matmul, self.first, self.second, self.c, self.d):
            descriptor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def describe(library: Library, problem: Problem, extras: Extras) -> Described:
    """The matmul descriptor and four layouts of a problem. Needs no GPU.

    Raises UsageError where `extras` lacks an address that the problem needs.
    """
    missing = extras.missing(problem)
    if missing:
        raise UsageError(f"the problem needs device addresses for {', '.join(missing)}")
    made: list[Descriptor] = []
    try:
        matmul = MatmulDesc(library, problem.compute_type.cublas_value, problem.scale_type.cuda_value)
        made.append(matmul)
        _set_matmul(matmul, problem, extras)
        layouts = []
        for x in "bacd":
            layout = _layout(library, problem, x)
            made.append(layout)
            layouts.append(layout)
            _set_batch(layout, problem, x)
        first, second, c, d = layouts
        return Described(matmul, first, second, c, d)
    except BaseException:
        for descriptor in made:
            descriptor.close()
        raise


def _set_matmul(matmul: MatmulDesc, problem: Problem, extras: Extras) -> None:
    """Set what differs from the library's defaults."""
    values: dict[str, int] = {
        "TRANSA": int(problem.layout.b_transposed),
        "TRANSB": int(problem.layout.a_transposed),
    }
    if problem.pointer_mode.cublas_value:
        values["POINTER_MODE"] = problem.pointer_mode.cublas_value
    if problem.epilogue.cublas_value != 1:
        values["EPILOGUE"] = problem.epilogue.cublas_value
    if problem.bias_dtype is not None:
        values["BIAS_DATA_TYPE"] = problem.bias_dtype.cuda_value
        values["BIAS_POINTER"] = extras.bias
    if problem.fast_accumulation:
        values["FAST_ACCUM"] = 1
    if problem.sm_count_target:
        values["SM_COUNT_TARGET"] = problem.sm_count_target
    for ours, theirs in (("a", "B"), ("b", "A"), ("c", "C"), ("d", "D")):
        if getattr(problem, f"{ours}_scale"):
            values[f"{theirs}_SCALE_POINTER"] = getattr(extras, f"{ours}_scale")
    for name, value in values.items():
        matmul.set(f"CUBLASLT_MATMUL_DESC_{name}", value)


def _layout(library: Library, problem: Problem, x: str) -> MatrixLayout:
    """The layout of one operand: a stored row-major matrix, seen column-major, is its transpose."""
    rows, columns = problem.stored_shape(x)
    return MatrixLayout(library, getattr(problem, f"{x}_dtype"), columns, rows, problem.leading_dimension(x))


def _set_batch(layout: MatrixLayout, problem: Problem, x: str) -> None:
    if problem.batch_count > 1:
        layout.set("CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT", problem.batch_count)
        layout.set("CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET", problem.batch_stride(x))


def describe_preference(
    library: Library, preference: Preference, alignments: tuple[int, int, int, int]
) -> MatmulPreference:
    """The preference descriptor. alignments: bytes, of our A, B, C, D. Needs no GPU."""
    made = MatmulPreference(library)
    try:
        made.set("CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES", preference.workspace_bytes)
        made.set("CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK", preference.reduction_scheme_mask)
        for theirs, value in zip("BACD", alignments, strict=True):
            made.set(f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{theirs}_BYTES", value)
    except BaseException:
        made.close()
        raise
    return made
