"""How a chain of single products starts, how its products are rounded, and whether +0 is added at the end: choices that show only where a
product is -0, overflows or underflows.

Measured on an H200, cuBLASLt 13.1.0 (docs/semantics.md): gemmk1 keeps a product of -0; kernels with lanes of one index round every product
before they add it; gemv2N and magma_sgemmEx give +0 for a negative sum that underflows.
"""

from __future__ import annotations

from enum import StrEnum

from probe.problem import DType
from probe.schedule.exactform import exact_form
from probe.schedule.runs import Run
from probe.schedule.terms import (
    ZERO,
    Add,
    Call,
    Cast,
    Fma,
    Fold,
    Mma,
    Mul,
    Row,
    Term,
    Zero,
    add,
    after,
    cast,
    fma,
    fold,
    leaf_count,
    mma,
    shift,
)


class ChainStart(StrEnum):
    """What the first product of a chain meets: an accumulator of +0, which takes the sign of a product of -0, or nothing."""

    ZERO = "zero"
    PRODUCT = "product"


class Products(StrEnum):
    """Whether a product goes into its addition whole (fused) or rounded to fp32 first. The same for fp16 and e4m3, whose products are fp32
    numbers; a bf16 product can lie above or below what fp32 holds."""

    FUSED = "fused"
    ROUNDED = "rounded"


def rewrite(term: Term, start: ChainStart, products: Products, adds_zero: bool) -> Term:
    """A schedule whose chains of single products start at +0 and are fused, with other chains and another end (before the output's
    rounding)."""

    rounded = products is Products.ROUNDED

    def make(one: Term, below: list[Term]) -> Term:
        match one:
            case Fma(Zero(), runs):
                return fma(ZERO, runs, rounded) if start is ChainStart.ZERO else _from_product(runs, rounded)
            case Fma(_, runs):
                return fma(below[0], runs, rounded)
            case _:
                return rebuilt(one, below)

    inner, out = (term.x, term.dtype) if isinstance(term, Cast) else (term, None)
    if (start, products) != (ChainStart.ZERO, Products.FUSED):
        inner = after(inner, make)
    if adds_zero:
        inner = add(DType.FP32, ZERO, inner)
    return inner if out is None else cast(out, inner)


def _from_product(runs: tuple[Run, ...], rounded: bool) -> Term:
    """The chain that starts with its first product."""
    first = runs[0]
    rest: list[Run] = []
    if first.width > 1:  # slices of neighbours
        rest.append(Run(first.first + 1, (0,), first.width - 1, 1 if first.width > 2 else 0))
        if first.count == 2:
            rest.append(Run(first.first + first.advance, (0,), first.width, 1))
        elif first.count > 2:
            rest.append(Run(first.first + first.advance, first.pattern, first.count - 1, first.advance))
    elif first.count > 1:
        rest.append(Run(first.first + first.advance, (0,), first.count - 1, first.advance if first.count > 2 else 0))
    return fma(Mul(first.first), (*rest, *runs[1:]), rounded)


def rebuilt(one: Term, below: list[Term]) -> Term:
    """A term over other terms below it, through the builders."""
    match one:
        case Mma(_, row, runs):
            return mma(below[0], row, runs)
        case Fma(_, runs, rounded):
            return fma(below[0], runs, rounded)
        case Add(dtype, _, _):
            return add(dtype, below[0], below[1])
        case Fold(_, dtype, _, count, advance):
            return fold(below[0], dtype, below[1], count, advance)
        case Cast(dtype, _):
            return cast(dtype, below[0])
        case Call(name, _):
            return Call(name, tuple(below))
        case _:
            return one


def plain_of(term: Term) -> Term:
    """The schedule with every chain of single products fused from +0 and nothing added at the end: what `rewrite` started from."""

    def make(one: Term, below: list[Term]) -> Term:
        match one:
            case Mul(k):
                return fma(ZERO, (Run(k, (0,)),))
            case Fma(_, runs, _):
                return fma(below[0], runs)
            case Add(DType.FP32, Zero(), _):
                return below[1]
            case _:
                return rebuilt(one, below)

    return after(term, make)


def keeps_minus_zero(term: Term, dtype: DType) -> bool:
    """Whether the sum can be -0. No: a sum to which +0 was added, and one of matrix instructions, whose zeros are +0 (DESIGN 5b)."""

    def make(one: Term, below: list[bool]) -> bool:
        match one:
            case Mul() | Cast() | Call():
                return True  # a cast underflows
            case Zero() | Mma():
                return False
            case Fma(_, _, rounded):
                return below[0] or (dtype is DType.BF16 and not rounded)  # a negative bf16 product that underflows beside +0
            case _:
                return all(below)

    return after(term, make)


def bits_key(term: Term, dtype: DType) -> tuple[object, ...]:
    """Schedules with equal keys give equal bits on every input of this dtype; of others that is not known.

    Signs of zeros inside a sum reach its value only where all of it is zero: so a schedule is its rounding of everything else, and, where
    its sum can be -0, when it is. fp16 and e4m3 products are fp32 numbers far from both ends of the range: fused or rounded, and a lone
    product as one instruction or as one multiplication, are the same; then a sum that keeps -0 is -0 when all products are, and never else.
    """
    inner = term.x if isinstance(term, Cast) else term
    out = term.dtype if isinstance(term, Cast) else DType.FP32
    keeps = keeps_minus_zero(inner, dtype)
    if dtype is DType.BF16:
        return (out, after(inner, _unsigned), after(inner, _signed) if keeps else None)
    if _casts(inner):  # a part written in 16 bits can underflow to -0
        return (out, inner, keeps)
    return (out, exact_form(after(inner, _lone_steps)), keeps)


def _casts(term: Term) -> bool:
    def make(one: Term, below: list[bool]) -> bool:
        return isinstance(one, Cast | Call) or (isinstance(one, Add | Fold) and one.dtype is not DType.FP32) or any(below)

    return after(term, make)


def _lone_steps(one: Term, below: list[Term]) -> Term:
    """Single products by any instruction written as one fused multiply-add, and no sums with +0."""
    match one:
        case Mma(Zero()) if leaf_count(one) == 1:
            return fma(ZERO, one.runs)
        case Mul(k):
            return fma(ZERO, (Run(k, (0,)),))
        case Fma(_, runs, _):
            return fma(below[0], runs)
        case Add(DType.FP32, Zero(), _):
            return below[1]
        case _:
            return rebuilt(one, below)


_ONE = Row(1, 25)


def _unsigned(one: Term, below: list[Term]) -> Term:
    """A term of bf16 products with all its starts and sums with +0 written alike. A lone product that an instruction cuts to fp32 stays
    one: how many bits it keeps beside it (24 or more) shows nowhere."""
    match one:
        case Mma(Zero(), row, runs) if leaf_count(one) == 1 and row.result_bits == 23 and row.fraction_bits >= 24:
            return Mul(runs[0].first) if row.nearest else mma(ZERO, _ONE, runs)
        case Fma(Zero(), runs, rounded):
            return _from_product(runs, rounded)
        case Add(DType.FP32, Zero(), _):
            return below[1]
        case Fold(Zero(), DType.FP32, _, count, advance):
            rest = count - 1
            if isinstance(below[1], Mul) and rest:
                return fma(below[1], (Run(below[1].k + advance, (0,), rest, advance if rest > 1 else 0),), rounded=True)
            return fold(below[1], DType.FP32, shift(below[1], advance), rest, advance) if rest else below[1]
        case _:
            return _signed(one, below)


def _signed(one: Term, below: list[Term]) -> Term:
    """A lone product that is rounded and added, as a step of a chain of rounded products."""
    match one, below:
        case Add(DType.FP32), [x, Mul(k)]:
            return fma(x, (Run(k, (0,)),), rounded=True)
        case Add(DType.FP32), [Mul(k), x]:
            return fma(x, (Run(k, (0,)),), rounded=True)
        case Fold(_, DType.FP32, _, count, advance), [x, Mul(k)]:
            return fma(x, (Run(k, (0,), count, advance if count > 1 else 0),), rounded=True)
        case _:
            return rebuilt(one, below)


__all__ = ["ChainStart", "Products", "bits_key", "keeps_minus_zero", "plain_of", "rebuilt", "rewrite"]
