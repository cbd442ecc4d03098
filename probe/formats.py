"""Number formats, bit for bit: raw bits to exact float32 values and back with one rounding to nearest even.

Formats: fp32, fp16 (IEEE 754 binary16), bf16 (the upper half of fp32) and e4m3 (OFP8 E4M3: no infinity,
S.1111.111 is NaN, largest finite 448). Every function takes numpy or cupy arrays and returns arrays of the
same module.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from probe.errors import UsageError
from probe.names import DType

Array = Any  # a numpy.ndarray or a cupy.ndarray; cupy is never imported here


@dataclass(frozen=True, slots=True)
class Format:
    """One binary format: total `bits`, `precision` (significand bits with the leading one), `emin`
    (exponent of the smallest normal number, shared by every subnormal), `emax` (exponent of the largest
    finite number), `nan` (the NaN that CUDA's conversions write, sign bit clear), `max_bits` (largest
    finite number) and `has_inf`.
    """

    bits: int
    precision: int
    emin: int
    emax: int
    nan: int
    max_bits: int
    has_inf: bool

    def __post_init__(self) -> None:
        if self.bits not in (8, 16, 32) or not 1 < self.precision < self.bits or self.emin >= self.emax:
            raise UsageError(f"not a number format: {self}")
        if not 0 < self.max_bits < self.nan < 1 << (self.bits - 1):
            raise UsageError(f"the largest finite number lies below NaN and below the sign bit: {self}")

    @property
    def fraction_bits(self) -> int:
        """Stored significand bits."""
        return self.precision - 1

    @property
    def sign_bit(self) -> int:
        """The sign bit as a number."""
        return 1 << (self.bits - 1)


# NaN patterns: what cvt.rn writes on sm_80 to sm_100 (PTX ISA, "cvt": canonical NaN 0x7FFF; 0x7F for e4m3
# inputs of NaN).
FORMATS: dict[DType, Format] = {
    DType.FP32: Format(32, 24, -126, 127, 0x7FFFFFFF, 0x7F7FFFFF, True),
    DType.FP16: Format(16, 11, -14, 15, 0x7FFF, 0x7BFF, True),
    DType.BF16: Format(16, 8, -126, 127, 0x7FFF, 0x7F7F, True),
    DType.E4M3: Format(8, 4, -6, 8, 0x7F, 0x7E, False),
}


def array_module(x: Array) -> ModuleType:
    """numpy or cupy, whichever made `x`. Raises UsageError for anything else."""
    name = type(x).__module__.split(".")[0]
    if name not in ("numpy", "cupy"):
        raise UsageError(f"expected a numpy or cupy array, got {type(x).__name__}")
    return sys.modules[name]


def format_of(dtype: DType) -> Format:
    """The table row of a dtype. Raises UsageError where the simulator has no model of it."""
    found = FORMATS.get(dtype)
    if found is None:
        raise UsageError(f"no bit-level model of {dtype}", "one of " + ", ".join(FORMATS))
    return found


def bits_dtype(dtype: DType) -> np.dtype[Any]:
    """The unsigned integer dtype that holds the raw bits: uint8, uint16 or uint32."""
    return np.dtype(f"u{format_of(dtype).bits // 8}")


def _check_bits(bits: Array, dtype: DType) -> ModuleType:
    xp = array_module(bits)
    if bits.dtype != bits_dtype(dtype):
        raise UsageError(f"raw {dtype} bits are {bits_dtype(dtype)}, got {bits.dtype}")
    return xp


def decode(bits: Array, dtype: DType) -> Array:
    """Raw bits (uint8, uint16 or uint32, any shape) to the same values as float32, exactly. A NaN stays a
    NaN.
    """
    xp = _check_bits(bits, dtype)
    if dtype is DType.FP32:
        return bits.view(xp.float32)
    if dtype is DType.FP16:
        return bits.view(xp.float16).astype(xp.float32)
    if dtype is DType.BF16:
        return (bits.astype(xp.uint32) << 16).view(xp.float32)
    return xp.asarray(_E4M3_VALUES)[bits]


def encode_rn(values: Array, dtype: DType) -> Array:
    """float32 or float64 values to raw bits, rounded once to nearest even, subnormals kept.

    Overflow gives infinity; e4m3 has none and does not saturate, so it gives NaN (OFP8, non-saturating
    mode: the values above 464 = 448 + half a step, and infinities). NaN gives the one pattern that CUDA
    writes (`Format.nan`).
    """
    xp = array_module(values)
    if values.dtype not in (np.dtype("f4"), np.dtype("f8")):
        raise UsageError(f"can encode float32 or float64 values, got {values.dtype}")
    form = format_of(dtype)
    out_type = bits_dtype(dtype)
    single = values.dtype == np.dtype("f4")
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype is DType.FP32 and single:
            bits = values.view(xp.uint32).copy()
        elif dtype is DType.FP32 and xp is np:
            bits = values.astype(np.float32).view(np.uint32)
        elif dtype is DType.FP16 and single:
            bits = values.astype(xp.float16).view(xp.uint16)
        elif dtype is DType.BF16 and single:
            raw = values.view(xp.uint32)
            bits = ((raw + (((raw >> 16) & 1) + 0x7FFF)) >> 16).astype(out_type)
        else:
            # float64 reaches 16 bits by no other way: ml_dtypes and CuPy pass through float32, two roundings
            bits = _encode_by_steps(xp, values.astype(xp.float64), form).astype(out_type)
    bits[xp.isnan(values)] = form.nan
    return bits


def widen(values: Array) -> Array:
    """float32 to float64, exactly. CuPy compiles its kernels to flush float32 subnormals to zero (14.2,
    measured), so there these go through integers; float64 is not flushed.
    """
    xp = array_module(values)
    if xp is np:
        return values.astype(np.float64)
    raw = values.view(xp.int32)
    tiny = (raw & 0x7FFFFF).astype(xp.float64) * 2.0**-149
    return xp.where((raw & 0x7F800000) == 0, xp.where(raw < 0, -tiny, tiny), values.astype(xp.float64))


def narrow(values: Array) -> Array:
    """float64 to float32, rounded once to nearest even, subnormals kept; NaN is 0x7FFFFFFF."""
    return encode_rn(values, DType.FP32).view(np.float32)


def _encode_by_steps(xp: ModuleType, values: Array, form: Format) -> Array:
    """float64 to bits in int64: count the steps of the binade, round that count to even, let carries run
    upward.
    """
    raw = values.view(xp.int64)
    sign = xp.where(raw < 0, form.sign_bit, 0)
    magnitude = xp.abs(values)
    finite = xp.isfinite(magnitude)
    safe = xp.where(finite, magnitude, 0.0)
    exponent = xp.maximum(((safe.view(xp.int64) >> 52) & 0x7FF) - 1023, form.emin)
    exponent = xp.minimum(exponent, form.emax + 1)
    # both factors are powers of two, so the division is exact; rint rounds to nearest even
    steps = xp.rint(xp.ldexp(safe, (form.fraction_bits - exponent).astype(xp.int32)))
    steps = xp.minimum(steps, float(2 << form.fraction_bits)).astype(xp.int64)
    code = ((exponent - form.emin) << form.fraction_bits) + steps
    above = form.max_bits + 1 if form.has_inf else form.nan
    code = xp.where((code > form.max_bits) | ~finite, above, code)
    return code | sign


def _e4m3_values() -> np.ndarray[Any, np.dtype[np.float32]]:
    codes = np.arange(256)
    exponent, fraction = (codes >> 3) & 15, codes & 7
    significand = np.where(exponent == 0, fraction, fraction + 8) / 8.0
    values = np.ldexp(significand, np.maximum(exponent, 1) - 7)
    values[(codes & 0x7F) == 0x7F] = np.nan
    signed: np.ndarray[Any, np.dtype[np.float32]] = np.copysign(values, 127.5 - codes).astype(np.float32)
    return signed


_E4M3_VALUES = _e4m3_values()
