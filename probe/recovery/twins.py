"""Like candidates: schedules of one tree that ordinary numbers cannot tell apart, only zeros of two signs and products that leave fp32.

A chain of single products may start at +0 or with its first product; a product may be rounded before it is added; +0 may join the sum at
the end; an index that stands alone may be added or fused; and a lane's last index may have been closed as a chunk of its own. Equal by
`bits_key` is one candidate: those are proven equal for this dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from probe.describe import describe
from probe.descriptor import Instruction
from probe.errors import UsageError
from probe.problem import DType
from probe.recovery.candidates import Candidate, Context
from probe.schedule import (
    ZERO,
    Add,
    Cast,
    ChainStart,
    Fma,
    Fold,
    Mma,
    Products,
    Run,
    Term,
    Zero,
    add,
    bits_key,
    cast,
    first_k,
    fma,
    leaf_count,
    mma,
    prefix_terms,
    rewrite,
)
from probe.schedule.terms import after
from probe.schedule.zeros import rebuilt
from probe.tensorcore import row_for

Choices = tuple[tuple[str, str], ...]
# Plainest first. Others of the eight are equal to one of these: with +0 at the end the start cannot be seen, and rounded products that are
# added to +0 never give -0.
_CHAINS = ((ChainStart.ZERO, Products.FUSED, False), (ChainStart.PRODUCT, Products.FUSED, False), (ChainStart.ZERO, Products.FUSED, True),
           (ChainStart.ZERO, Products.ROUNDED, False), (ChainStart.PRODUCT, Products.ROUNDED, False))


def twins(candidate: Candidate, context: Context) -> tuple[Candidate, ...]:
    """The candidate and all that are like it, no two of which are proven equal for the input dtype; itself first. Only itself for a
    schedule of matrix instructions, whose zeros are +0 and whose products are never rounded."""
    found = {bits_key(candidate.schedule, context.input_dtype): candidate}
    for schedule, choices in _like(candidate.schedule, context):
        key = bits_key(schedule, context.input_dtype)
        if key not in found:
            desc = describe(schedule, context.k, context.input_dtype, context.output_dtype)
            if desc is not None and desc.row is not None:
                desc = replace(desc, instruction=Instruction.WGMMA if context.sm == 90 else Instruction.MMA_SYNC)
            found[key] = Candidate(schedule, desc, (*candidate.choices, *choices))
    return tuple(found.values())


def distinct(many: Iterable[Candidate], dtype: DType) -> tuple[Candidate, ...]:
    """Those of them that are not proven equal to one before."""
    found: dict[object, Candidate] = {}
    for one in many:
        found.setdefault(bits_key(one.schedule, dtype), one)
    return tuple(found.values())


def _like(schedule: Term, context: Context) -> Iterator[tuple[Term, Choices]]:
    inner, out = (schedule.x, schedule.dtype) if isinstance(schedule, Cast) else (schedule, DType.FP32)
    lone = leaf_count(inner) == 1
    if not lone and any(isinstance(one, Mma) for one in prefix_terms(inner)):
        return
    if lone:
        inner = fma(ZERO, (Run(first_k(inner), (0,)),))
    for words, shape in _SHAPES:
        for start, products, adds_zero in _CHAINS:
            chains = rewrite(cast(out, shape(inner)), start, products, adds_zero)
            yield chains, (("chain_start", str(start)), ("products", str(products)), ("adds_zero", str(adds_zero)), ("lone", words))
    if lone:
        try:
            row = row_for(context.sm, context.input_dtype)
        except UsageError:
            return  # that SM has no such instruction, or no published row
        yield cast(out, mma(ZERO, row, (Run(first_k(inner), (0,)),))), (("step", f"matrix instruction of sm_{context.sm}, toward zero"),)


def _as_read(inner: Term) -> Term:
    return inner


def _added(inner: Term) -> Term:
    """Every index that joins a sum alone is added."""

    def make(one: Term, below: list[Term]) -> Term:
        if isinstance(one, Fma) and not isinstance(one.previous, Zero) and sum(r.width * r.count for r in one.runs) == 1:
            return add(DType.FP32, below[0], fma(ZERO, one.runs))
        return rebuilt(one, below)

    return after(inner, make)


def _fused(inner: Term) -> Term:
    """Every index that joins a sum alone is fused onto it."""

    def make(one: Term, below: list[Term]) -> Term:
        match one:
            case Add(DType.FP32, _, Fma(Zero(), runs) as right) if leaf_count(right) == 1:
                return fma(below[0], runs)
            case Fold(_, DType.FP32, Fma(Zero(), runs) as body, count, advance) if leaf_count(body) == 1:
                return fma(below[0], (Run(runs[0].first, (0,), count, advance if count > 1 else 0),))
            case _:
                return rebuilt(one, below)

    return after(inner, make)


def _closed(inner: Term) -> Term:
    """The last index of the longest chains was closed apart and is added: a chunk one shorter than the longest lane."""
    longest = max((leaf_count(one) for one in prefix_terms(inner) if isinstance(one, Fma) and isinstance(one.previous, Zero)), default=0)

    def make(one: Term, below: list[Term]) -> Term:
        if longest > 1 and isinstance(one, Fma) and isinstance(one.previous, Zero) and leaf_count(one) == longest:
            last = one.runs[-1]
            k = last.step(last.count - 1)[-1]
            return add(DType.FP32, fma(ZERO, _but_last(one.runs)), fma(ZERO, (Run(k, (0,)),)))
        return rebuilt(one, below)

    return after(inner, make)


def _but_last(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The runs of a chain without its last index."""
    *head, last = runs
    if last.width > 1:  # slices of neighbours: whole ones, then a part of one
        end = Run(last.first + (last.count - 1) * last.advance, (0,), last.width, 1)
        if last.count == 2:
            head.append(Run(last.first, (0,), last.width, 1))
        elif last.count > 2:
            head.append(last.prefix(last.count - 1))
        last = end
    return (*head, last.prefix(last.count - 1)) if last.count > 1 else tuple(head)


_SHAPES: tuple[tuple[str, Callable[[Term], Term]], ...] = (
    ("as read", _as_read), ("added", _added), ("fused", _fused), ("the last of the longest lanes closed apart", _closed))
