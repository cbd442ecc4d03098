"""Schedules that cannot differ where products are exact, written alike.

A product of two 16-bit or 8-bit numbers has at most 22 significant bits, so it is an fp32 number (unless a bf16 product lies out of the
range of fp32). Adding it then rounds as a fused multiply-add does, and which of two single products came first cannot be seen. Zeros of
two signs and bf16 products out of range are for `bits_key`.
"""

from __future__ import annotations

from probe.problem import DType
from probe.schedule.runs import Run, run_of
from probe.schedule.terms import (
    ZERO,
    Add,
    Call,
    Cast,
    Fma,
    Fold,
    Mma,
    Mul,
    Term,
    Zero,
    add,
    after,
    cast,
    copies,
    fma,
    fold,
    leaf_count,
    mma,
)


def exact_form(term: Term) -> Term:
    """The one term for all those that give the same bits when products are exact: single products are fused into what they are added to,
    a chain begins with the lesser of its first two indices. The form is for comparing and no schedule to show."""
    return after(term, _write)


def _write(term: Term, below: list[Term]) -> Term:
    match term:
        case Mma(_, row, runs):
            return mma(below[0], row, runs)
        case Fma(_, runs):
            return _sorted_start(fma(below[0], runs))
        case Mul(k):
            return fma(ZERO, (run_of((k,)),))
        case Add(dtype, _, _):
            return _sum(dtype, below[0], below[1])
        case Fold(_, dtype, _, count, advance):
            if dtype is DType.FP32 and _lone(below[1]) is not None:
                first = _lone(below[1])
                assert first is not None
                return _sorted_start(fma(below[0], (Run(first, (0,), count, advance if count > 1 else 0),)))
            if isinstance(below[0], Zero) or _lone(below[0]) is None:
                return fold(below[0], dtype, below[1], count, advance)
            total: Term = below[0]
            for part in copies(Fold(ZERO, dtype, below[1], count, advance)):
                total = _sum(dtype, total, part)
            return total
        case Cast(dtype, _):
            return cast(dtype, below[0])
        case Call(name, _):
            return Call(name, tuple(below))
        case _:
            return term


def _lone(term: Term) -> int | None:
    """The index of a term that is a single product."""
    return term.runs[0].first if isinstance(term, Fma) and isinstance(term.previous, Zero) and leaf_count(term) == 1 else None


def _sum(dtype: DType, left: Term, right: Term) -> Term:
    if dtype is not DType.FP32 or isinstance(left, Zero) or isinstance(right, Zero):
        return add(dtype, left, right)
    for whole, one in ((left, _lone(right)), (right, _lone(left))):
        if one is not None:
            return _sorted_start(fma(whole, (run_of((one,)),)))
    return add(dtype, left, right)


def _sorted_start(term: Term) -> Term:
    if not isinstance(term, Fma) or not isinstance(term.previous, Zero) or leaf_count(term) < 2:
        return term
    head = [k for run in term.runs[:2] for t in range(min(2, run.count)) for k in run.step(t)][:2]
    if head[0] < head[1]:
        return term
    ks = [k for run in term.runs for t in range(run.count) for k in run.step(t)]
    return fma(ZERO, tuple(run_of((k,)) for k in (ks[1], ks[0], *ks[2:])))
