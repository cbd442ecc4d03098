"""A second executor of rounding schedules: one output element at a time, in fractions, slow and plain.

It shares nothing with `probe.formats`, `probe.tensorcore` and `execute` but the terms, so that where both
agree a mistake would have to be made twice. Costs about 10 microseconds a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from probe.errors import UsageError
from probe.names import DType
from probe.schedule.terms import Add, Call, Cast, Fma, Fold, Mma, Mul, Row, Term, Zero, copies, dtype_of

# exponent bits, fraction bits
_SIZES = {DType.FP32: (8, 23), DType.FP16: (5, 10), DType.BF16: (8, 7), DType.E4M3: (4, 3)}


@dataclass(frozen=True)
class Number:
    """A finite value with its sign (a zero has one, too), or an infinity, or NaN."""

    value: Fraction = Fraction(0)
    negative: bool = False
    infinite: bool = False
    nan: bool = False

    def __post_init__(self) -> None:
        if (self.infinite or self.nan) and self.value != 0:
            raise UsageError("an infinity or NaN has no finite value")
        if self.value != 0 and self.negative != (self.value < 0):
            raise UsageError("the sign contradicts the value")


NAN = Number(nan=True)


def _finite(value: Fraction, zero_negative: bool = False) -> Number:
    return Number(value, value < 0 if value else zero_negative)


def _log2(x: Fraction) -> int:
    """floor(log2 |x|) of a nonzero fraction."""
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= abs(x) else e - 1


def read(bits: int, dtype: DType) -> Number:
    """The number that raw bits stand for."""
    wide, frac = _sizes(dtype)
    field, fraction = bits >> frac & (1 << wide) - 1, bits & (1 << frac) - 1
    negative = bool(bits >> (wide + frac))
    if dtype is DType.E4M3:
        if bits & 0x7F == 0x7F:
            return NAN
    elif field == (1 << wide) - 1:
        return NAN if fraction else Number(infinite=True, negative=negative)
    significand = fraction if field == 0 else fraction + (1 << frac)
    value = significand * Fraction(2) ** (max(field, 1) - _bias(dtype) - frac)
    return _finite(-value if negative else value, negative)


def write(x: Number, dtype: DType) -> int:
    """Raw bits, rounded once to nearest even; too large is infinity (e4m3: NaN); NaN is all ones below the
    sign.
    """
    wide, frac = _sizes(dtype)
    top = 1 << (wide + frac)
    if x.nan:
        return top - 1
    infinity = top - 1 if dtype is DType.E4M3 else ((1 << wide) - 1) << frac
    sign = top if x.negative else 0
    if x.infinite:
        return sign | infinity
    if x.value == 0:
        return sign
    lowest = 1 - _bias(dtype)
    e = max(_log2(x.value), lowest)
    steps = round(abs(x.value) / Fraction(2) ** (e - frac))  # Fraction rounds halves to even
    code = (e - lowest << frac) + steps  # a carry out of the fraction runs into the exponent field
    return sign | min(code, infinity)


def _sizes(dtype: DType) -> tuple[int, int]:
    if dtype not in _SIZES:
        raise UsageError(f"no exact model of {dtype}", "one of " + ", ".join(_SIZES))
    return _SIZES[dtype]


def _bias(dtype: DType) -> int:
    return (1 << (_sizes(dtype)[0] - 1)) - 1


def _rounded(x: Number, dtype: DType) -> Number:
    return read(write(x, dtype), dtype)


def _times(x: Number, y: Number) -> Number:
    if x.nan or y.nan:
        return NAN
    negative = x.negative != y.negative
    if x.infinite or y.infinite:
        zero = (not x.infinite and x.value == 0) or (not y.infinite and y.value == 0)
        return NAN if zero else Number(infinite=True, negative=negative)
    return _finite(x.value * y.value, negative)


def _plus(x: Number, y: Number) -> Number:
    if x.nan or y.nan or (x.infinite and y.infinite and x.negative != y.negative):
        return NAN
    if x.infinite or y.infinite:
        return x if x.infinite else y
    return _finite(x.value + y.value, x.negative and y.negative)


def _exponent(x: Number, lowest: int) -> int:
    return max(_log2(x.value), lowest)


def _block(acc: Number, pairs: Sequence[tuple[Number, Number]], row: Row, dtype: DType) -> Number:
    """One fused multi-term sum of a matrix instruction (DESIGN section 5b)."""
    total = acc
    for x, y in pairs:
        total = _plus(total, _times(x, y))
    if total.nan or total.infinite:
        return total
    lowest = 1 - _bias(dtype)
    zero = -132 if row.fraction_bits == 24 else -133
    terms = [(acc.value, _exponent(acc, -126) if acc.value else zero)]
    for x, y in pairs:
        product = x.value * y.value
        terms.append((product, _exponent(x, lowest) + _exponent(y, lowest) if product else zero))
    unit = Fraction(2) ** (max(e for _, e in terms) - row.fraction_bits)
    exact = sum((int(value / unit) for value, _ in terms), 0) * unit  # int cuts toward zero
    if exact == 0:
        return Number()
    step = Fraction(2) ** (max(_log2(exact), -126) - row.result_bits)
    cut = (round(exact / step) if row.nearest else int(exact / step)) * step  # round() of a Fraction: half to even
    return Number(infinite=True, negative=cut < 0) if abs(cut) >= 2**128 else _finite(cut)


def _evaluate(term: Term, a: Sequence[Number], b: Sequence[Number], dtype: DType) -> Number:
    match term:
        case Zero():
            return Number()
        case Mul(k):
            return _rounded(_times(a[k], b[k]), DType.FP32)
        case Mma(previous, row, runs):
            acc = _evaluate(previous, a, b, dtype)
            for run in runs:
                for t in range(run.count):
                    acc = _block(acc, [(a[k], b[k]) for k in run.step(t)], row, dtype)
            return acc
        case Fma(previous, runs, rounded):
            acc = _evaluate(previous, a, b, dtype)
            for run in runs:
                for t in range(run.count):
                    for k in run.step(t):  # the neighbours of a slice, one by one
                        product = _times(a[k], b[k])
                        acc = _rounded(_plus(_rounded(product, DType.FP32) if rounded else product, acc), DType.FP32)
            return acc
        case Add(held, left, right):
            return _rounded(_plus(_evaluate(left, a, b, dtype), _evaluate(right, a, b, dtype)), held)
        case Fold(previous, held, _, _, _):
            acc = _evaluate(previous, a, b, dtype)
            for copy in copies(term):
                acc = _rounded(_plus(acc, _evaluate(copy, a, b, dtype)), held)
            return acc
        case Cast(held, x):
            return _rounded(_evaluate(x, a, b, dtype), held)
        case Call(name, _):
            raise UsageError(f"the exact executor has no function {name}")


def execute_exact(schedule: Term, a_bits: Sequence[int], b_bits: Sequence[int], input_dtype: DType) -> int:
    """The bits of one output element: a row of A and a column of B as raw bits of `input_dtype`, K each.

    Returns raw bits in the dtype that the schedule ends in. Raises UsageError for Call terms and dtypes
    without a model.
    """
    a = [read(int(x), input_dtype) for x in a_bits]
    b = [read(int(x), input_dtype) for x in b_bits]
    return write(_evaluate(schedule, a, b, input_dtype), dtype_of(schedule))
