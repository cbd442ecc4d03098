"""A GEMM as asked: the problem.

Row-major convention. C (M x N) = op(A) @ op(B), everything stored row-major. The library is column-major, so
the call computes the transpose of C: its first operand is our B (the weight), its second is our A (the
activations), its m is our N and its n is our M. `layout` names transa and transb of that call:
nn is A @ B; tn is x @ w.T with w stored N x K; nt has A stored K x M; tt both.

Source of the size limits: comments of cublasLt.h (nvidia-cublas 13.1.0.3). Source of the rules for 8-bit
inputs: the cuBLAS documentation of cublasLtMatmul, its part on FP8.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, fields
from typing import ClassVar

from probe.errors import UsageError
from probe.names import ComputeType, DType, Epilogue, Layout, PointerMode
from probe.preference import Preference, parse_bytes
from probe.values import Record, check_bool, check_enum, check_int

__all__ = [
    "ComputeType",
    "DType",
    "Epilogue",
    "Layout",
    "PointerMode",
    "Preference",
    "Problem",
    "parse_bytes",
]

MAX_EXTENT = 2**31 - 1  # the library takes sizes as int32 ("only values that can be expressed as int32_t")
MAX_STRIDE = 2**63 - 1  # leading dimensions and strides are int64


@dataclass(frozen=True)
class Problem(Record):
    """One GEMM as asked. Extents in elements, strides in elements, offsets in bytes.

    lda, ldb, ldc, ldd: distance between rows of the stored row-major matrix; None is packed, and a packed
    number given in full becomes None, so that equal problems are equal values. a_stride to d_stride: distance
    between the matrices of a batch; None is one matrix behind the other. a_offset_bytes to d_offset_bytes:
    distance of the first element from a 256-byte boundary. a_scale to d_scale: whether a scale pointer is
    given (8-bit operands only). alpha and beta must be exact in the scale type. sm_count_target: 0 is all.
    Raises UsageError, one line and what would work, for anything that is no GEMM.
    """

    KIND: ClassVar[str] = "problem"
    FORM: ClassVar[int] = 1

    m: int
    n: int
    k: int
    a_dtype: DType
    b_dtype: DType
    c_dtype: DType
    d_dtype: DType
    compute_type: ComputeType = ComputeType.FP32
    scale_type: DType = DType.FP32
    layout: Layout = Layout.NN
    lda: int | None = None
    ldb: int | None = None
    ldc: int | None = None
    ldd: int | None = None
    a_offset_bytes: int = 0
    b_offset_bytes: int = 0
    c_offset_bytes: int = 0
    d_offset_bytes: int = 0
    batch_count: int = 1
    a_stride: int | None = None
    b_stride: int | None = None
    c_stride: int | None = None
    d_stride: int | None = None
    fast_accumulation: bool = False
    epilogue: Epilogue = Epilogue.DEFAULT
    bias_dtype: DType | None = None
    alpha: float = 1.0
    beta: float = 0.0
    a_scale: bool = False
    b_scale: bool = False
    c_scale: bool = False
    d_scale: bool = False
    pointer_mode: PointerMode = PointerMode.HOST
    sm_count_target: int = 0

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            check_int(name, getattr(self, name), 1, MAX_EXTENT)
        for x in "abcd":
            check_enum(f"{x}_dtype", getattr(self, f"{x}_dtype"), DType)
        check_enum("compute_type", self.compute_type, ComputeType)
        check_enum("scale_type", self.scale_type, DType)
        check_enum("layout", self.layout, Layout)
        check_enum("epilogue", self.epilogue, Epilogue)
        check_enum("pointer_mode", self.pointer_mode, PointerMode)
        check_bool("fast_accumulation", self.fast_accumulation)
        check_int("batch_count", self.batch_count, 1, MAX_EXTENT)
        check_int("sm_count_target", self.sm_count_target, 0, MAX_EXTENT, "0 means all SMs")
        if self.scale_type is not self.compute_type.scale_type:
            raise UsageError(
                f"compute type {self.compute_type} does not go with scale type {self.scale_type}",
                f"scale type {self.compute_type.scale_type}",
            )
        for x in "abcd":
            self._check_operand(x)
        self._check_numbers()
        self._check_bias()
        if self.a_dtype.is_fp8 or self.b_dtype.is_fp8:
            self._check_fp8()
        else:
            self._check_wide()

    def _check_operand(self, x: str) -> None:
        """Leading dimension, stride, offset and scale of one operand; packed numbers become None."""
        rows, columns = self.stored_shape(x)
        dtype: DType = getattr(self, f"{x}_dtype")
        ld, stride = getattr(self, f"ld{x}"), getattr(self, f"{x}_stride")
        if ld is not None:
            check_int(
                f"ld{x}", ld, columns, MAX_STRIDE, f"at least {columns}, the columns of stored {x.upper()}"
            )
            if ld == columns:
                object.__setattr__(self, f"ld{x}", None)
        packed = rows * self.leading_dimension(x)
        if stride is not None:
            if self.batch_count == 1:
                raise UsageError(
                    f"{x}_stride is given and batch_count is 1", "leave it out, or set batch_count"
                )
            check_int(f"{x}_stride", stride, 0, MAX_STRIDE)
            if x == "d" and stride < packed - self.leading_dimension(x) + columns:
                raise UsageError(
                    f"d_stride = {stride} makes the outputs of a batch overlap", f"at least {packed}"
                )
            if stride == packed:
                object.__setattr__(self, f"{x}_stride", None)
        offset = check_int(f"{x}_offset_bytes", getattr(self, f"{x}_offset_bytes"), 0, MAX_STRIDE)
        if offset % dtype.itemsize:
            raise UsageError(
                f"{x}_offset_bytes = {offset} splits an element of {dtype}", f"a multiple of {dtype.itemsize}"
            )
        if check_bool(f"{x}_scale", getattr(self, f"{x}_scale")) and not dtype.is_fp8:
            raise UsageError(
                f"{x}_scale is given and {x.upper()} is {dtype}", "only 8-bit operands take a scale"
            )

    def _check_numbers(self) -> None:
        code = "e" if self.scale_type is DType.FP16 else "f"
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise UsageError(f"{name} must be a number, got {value!r}")
            value = float(value)
            object.__setattr__(self, name, value)
            if not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0):
                raise UsageError(f"{name} = {value} is not a plain finite number", "-0.0 is written 0.0")
            try:
                near = struct.unpack(code, struct.pack(code, value))[0]
            except OverflowError:
                raise UsageError(f"{name} = {value} is beyond {self.scale_type}") from None
            if near != value:
                raise UsageError(
                    f"{name} = {value} is not exact in {self.scale_type}", f"the nearest is {near!r}"
                )

    def _check_bias(self) -> None:
        if self.bias_dtype is not None:
            check_enum("bias_dtype", self.bias_dtype, DType)
        if self.epilogue.has_bias != (self.bias_dtype is not None):
            raise UsageError(
                f"epilogue {self.epilogue} and bias_dtype {self.bias_dtype} do not go together",
                "a bias epilogue needs a bias dtype, and only a bias epilogue takes one",
            )

    def _check_wide(self) -> None:
        """Rules for inputs of 16 and 32 bits."""
        if self.fast_accumulation:
            raise UsageError(
                f"fast accumulation is a mode of 8-bit inputs and A is {self.a_dtype}",
                "leave it out, or use e4m3",
            )
        if self.a_dtype is not self.b_dtype:
            raise UsageError(f"A is {self.a_dtype} and B is {self.b_dtype}", "one dtype for both")
        if self.c_dtype is not self.d_dtype:
            raise UsageError(f"C is {self.c_dtype} and the output is {self.d_dtype}", "one dtype for both")

    def _check_fp8(self) -> None:
        """Rules for 8-bit inputs: cuBLAS documentation of cublasLtMatmul, FP8."""
        what = f"{self.a_dtype} inputs need"
        if not (self.a_dtype.is_fp8 and self.b_dtype.is_fp8):
            raise UsageError(
                f"A is {self.a_dtype} and B is {self.b_dtype}", "8-bit inputs go with 8-bit inputs"
            )
        if self.a_dtype is self.b_dtype is DType.E5M2:
            raise UsageError("the library has no e5m2 by e5m2 product", "e4m3 by e4m3, or one of each")
        if self.layout is not Layout.TN:
            raise UsageError(f"{what} layout tn, got {self.layout}", "layout tn, with B stored N x K")
        if self.compute_type is not ComputeType.FP32:
            raise UsageError(f"{what} compute type fp32, got {self.compute_type}", "compute type fp32")
        for name in ("k", "n"):
            value = getattr(self, name)
            if value % 16:
                up, down = value + -value % 16, value - value % 16
                raise UsageError(
                    f"{what} {name.upper()} to be a multiple of 16, got {name.upper()} = {value}",
                    f"{name.upper()} = {up}" + (f" or {down}" if down else ""),
                )
        want = (DType.BF16, DType.FP16) if self.d_dtype.is_fp8 else (self.d_dtype,)
        if self.c_dtype not in want:
            raise UsageError(
                f"C is {self.c_dtype} and the output is {self.d_dtype}", "C must be " + " or ".join(want)
            )
        for x in "abcd":
            size = getattr(self, f"{x}_dtype").itemsize
            if getattr(self, f"{x}_offset_bytes") % 16 or self.leading_dimension(x) * size % 16:
                raise UsageError(
                    f"{what} {x.upper()} to start at, and its rows to lie, multiples of 16 bytes apart",
                    f"{x}_offset_bytes and ld{x} * {size} multiples of 16",
                )

    # Where things lie

    def stored_shape(self, x: str) -> tuple[int, int]:
        """(rows, columns) of one operand, "a" to "d", as it is stored row-major."""
        if x == "a":
            return (self.k, self.m) if self.layout.a_transposed else (self.m, self.k)
        if x == "b":
            return (self.n, self.k) if self.layout.b_transposed else (self.k, self.n)
        if x in ("c", "d"):
            return (self.m, self.n)
        raise UsageError(f"there is no operand {x!r}", "one of a, b, c, d")

    @property
    def a_shape(self) -> tuple[int, int]:
        """(rows, columns) of A as stored: (M, K), or (K, M) in layouts nt and tt."""
        return self.stored_shape("a")

    @property
    def b_shape(self) -> tuple[int, int]:
        """(rows, columns) of B as stored: (K, N), or (N, K) in layouts tn and tt."""
        return self.stored_shape("b")

    @property
    def d_shape(self) -> tuple[int, int]:
        """(M, N), rows and columns of the output."""
        return self.stored_shape("d")

    def leading_dimension(self, x: str) -> int:
        """Elements between two rows of the stored operand `x`, with None resolved."""
        ld: int | None = getattr(self, f"ld{x}")
        return self.stored_shape(x)[1] if ld is None else ld

    def batch_stride(self, x: str) -> int:
        """Elements between two matrices of the batch of operand `x`, None resolved; 0 without a batch."""
        if self.batch_count == 1:
            return 0
        stride: int | None = getattr(self, f"{x}_stride")
        return self.stored_shape(x)[0] * self.leading_dimension(x) if stride is None else stride

    def operand_bytes(self, x: str) -> int:
        """Bytes from a 256-byte boundary to the end of operand `x`: offset, padding and batch counted."""
        rows, columns = self.stored_shape(x)
        last = (
            self.batch_stride(x) * (self.batch_count - 1) + (rows - 1) * self.leading_dimension(x) + columns
        )
        size: int = getattr(self, f"{x}_dtype").itemsize
        offset: int = getattr(self, f"{x}_offset_bytes")
        return offset + last * size

    @property
    def total_bytes(self) -> int:
        """Bytes of A, B, D, and of C where beta is not 0. The workspace is not counted."""
        return sum(self.operand_bytes(x) for x in ("abd" if self.beta == 0 else "abcd"))

    def alignment(self, x: str) -> int:
        """Largest power of two up to 256 that divides the address of operand `x`, in bytes."""
        offset: int = getattr(self, f"{x}_offset_bytes")
        return math.gcd(256, offset)

    def alignments(self, preference: Preference) -> tuple[int, int, int, int]:
        """Alignments in bytes of A, B, C, D that the library may count on, taken from the preference or,
        where that is None, from the offsets of the operands."""
        given = (getattr(preference, f"{x}_alignment") for x in "abcd")
        a, b, c, d = (self.alignment(x) if g is None else g for x, g in zip("abcd", given, strict=True))
        return a, b, c, d

    def overpromised(self, preference: Preference) -> tuple[str, ...]:
        """Names of the operands (A, B, C, D) for which the preference promises more alignment than their addresses have.

        The library may then pick a kernel that faults on them: such a call belongs in a child process. C counts only where it is read
        (beta is not 0).
        """
        names = "abd" if self.beta == 0 else "abcd"
        promised = dict(zip("abcd", self.alignments(preference), strict=True))
        return tuple(x.upper() for x in names if min(promised[x], 256) > self.alignment(x))

    @property
    def key(self) -> str:
        """Short stable name: shape, dtypes, compute type, layout, then every field that is not its default.

        Distinct problems have distinct keys. Letters, digits and `.=_+-` only, so it can name a file.
        """
        parts = [
            f"{self.m}x{self.n}x{self.k}",
            f"{self.a_dtype}-{self.b_dtype}-{self.c_dtype}-{self.d_dtype}",
            f"{self.compute_type}",
            f"{self.layout}",
        ]
        always = 10  # the first ten fields, m to layout, are in the parts above
        for field in fields(self)[always:]:
            value = getattr(self, field.name)
            if value != field.default:
                parts.append(field.name if value is True else f"{field.name}={value}")
        return ".".join(parts)

    def __str__(self) -> str:
        return self.key

    # Making one

    @staticmethod
    def parse_shape(text: str) -> tuple[int, int, int]:
        """(M, N, K) from "MxNxK", for example "64x64x576". Raises UsageError."""
        example = "MxNxK, for example 64x64x576"
        parts = text.strip().lower().split("x")
        if len(parts) != 3 or not all(parts):
            raise UsageError(f"shape {text!r} has {sum(map(bool, parts))} sizes, not 3", example)
        for part in parts:
            if not re.fullmatch(r"[+-]?[0-9]+", part, re.ASCII):
                raise UsageError(f"shape {text!r}: {part!r} is not a whole number", example)
        m, n, k = (_size(text, name, part) for name, part in zip("MNK", parts, strict=True))
        return m, n, k

    @classmethod
    def gemm(
        cls,
        m: int,
        n: int,
        k: int,
        dtype: DType,
        output: DType | None = None,
        layout: Layout | None = None,
        fast_accumulation: bool = False,
        epilogue: Epilogue = Epilogue.DEFAULT,
        **others: object,
    ) -> Problem:
        """The usual problem: both inputs `dtype`, fp32 accumulation, packed, alpha 1, beta 0.

        output: the input dtype, or bf16 for 8-bit inputs. layout: nn, or tn for 8-bit inputs. C has the
        output's dtype, or bf16 for an 8-bit output. The bias has C's dtype, or bf16 where 8-bit inputs give
        fp32. The scale type is the compute type's. `others` are further fields of Problem.
        """
        check_enum("dtype", dtype, DType)
        d_dtype = output if output is not None else (DType.BF16 if dtype.is_fp8 else dtype)
        check_enum("output", d_dtype, DType)
        c_dtype = DType.BF16 if d_dtype.is_fp8 else d_dtype
        values: dict[str, object] = {
            "b_dtype": dtype,
            "c_dtype": c_dtype,
            "layout": layout if layout is not None else (Layout.TN if dtype.is_fp8 else Layout.NN),
            "fast_accumulation": fast_accumulation,
            "epilogue": epilogue,
        }
        if isinstance(epilogue, Epilogue) and epilogue.has_bias:
            values["bias_dtype"] = DType.BF16 if dtype.is_fp8 and c_dtype is DType.FP32 else c_dtype
        compute_type = others.get("compute_type")
        if isinstance(compute_type, ComputeType):
            values["scale_type"] = compute_type.scale_type
        unknown = set(others) - {field.name for field in fields(cls)}
        if unknown:
            raise UsageError(f"a problem has no field {sorted(unknown)[0]!r}")
        return cls(m=m, n=n, k=k, a_dtype=dtype, d_dtype=d_dtype, **(values | others))  # type: ignore[arg-type]


def _size(text: str, name: str, part: str) -> int:
    """One size of a shape. Its length is checked before int(), which limits digits."""
    if len(part.lstrip("+-0")) > 10 or abs(int(part)) > MAX_EXTENT:
        raise UsageError(f"shape {text!r}: {name} is too large", f"at most {MAX_EXTENT}")
    if int(part) < 1:
        raise UsageError(f"shape {text!r}: {name} = {part} is not positive", "at least 1")
    return int(part)
