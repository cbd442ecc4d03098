"""Indices of K that matter: where nearly all operands are zero, as in a probe of a long sum, the others need not be added.

In a sum of fp32 fused multiply-adds and additions that starts at +0, adding a product of zero changes nothing: products of finite numbers
with zero are zero, and the running sum is never -0, for a sum to nearest is +0 wherever terms cancel and where products are exact none
becomes zero by rounding. A cast in the midst of a sum may round to -0, so only the last term may be one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from probe.formats import format_of
from probe.names import DType
from probe.schedule import span
from probe.schedule.terms import Add, Cast, Fma, Fold, Run, Term, Zero, below_of

Array = np.ndarray[Any, np.dtype[Any]]
_LEAST_K = 1 << 15  # below, finding the zeros costs as much as adding them
_SAMPLES = 128
_MOST = 4  # one index in so many may matter


@dataclass(frozen=True)
class Kept:
    """active: bool (K,). column: int32 (K,), the place of an index in the shortened operands; all others share the last one, of zeros.
    before: int32 (K + 1,), how many active indices lie below."""

    active: Array
    column: Array
    before: Array

    def shortened(self, bits: Array, axis: int) -> Array:
        """The operand at the active indices, and one more index of zeros."""
        some = np.compress(self.active, bits, axis=axis)
        width = [(0, 0)] * bits.ndim
        width[axis] = (0, 1)
        return np.pad(some, width)

    def steps(self, run: Run, shifts: Array) -> Array:
        """Which steps of a run hold an active index under one of the shifts."""
        on = np.zeros(run.count, bool)
        if len(shifts) <= run.count:
            for base in (shifts + run.first).tolist():
                for offset in run.pattern:
                    first = base + offset
                    on |= self.active[first:first + (run.count - 1) * run.advance + 1:max(1, run.advance)]
        else:
            starts = shifts + run.first
            for t in range(run.count):
                on[t] = any(self.active[starts + (t * run.advance + offset)].any() for offset in run.pattern)
        return np.nonzero(on)[0]

    def copies(self, fold: Fold, shifts: Array) -> Array:
        """Which copies of a fold's body reach over an active index under one of the shifts."""
        start, stop = span(fold.body)
        moves = np.arange(fold.count, dtype=np.int64) * fold.advance
        on = np.zeros(fold.count, bool)
        for shift in shifts.tolist():
            on |= self.before[moves + (shift + stop)] > self.before[moves + (shift + start)]
        return np.nonzero(on)[0]


def kept_indices(schedule: Term, a_bits: Array, b_bits: Array, dtype: DType) -> Kept | None:
    """The indices of K where A (..., M, K) and B (..., K, N) both hold a number other than zero; None where leaving the others out is not
    worth it, or not safe: an infinity times zero is no zero, and an instruction of several products is not looked into. Right only where
    products are exact in fp32."""
    k = a_bits.shape[-1]
    if k < _LEAST_K or not _plain(schedule):
        return None
    few = slice(None, None, k // _SAMPLES)
    seen = [_all_bits(a_bits[..., few], -1, dtype) != 0, _all_bits(b_bits[..., few, :], -2, dtype) != 0]
    if (seen[0] & seen[1]).sum() * _MOST > len(seen[0]):
        return None
    infinite = format_of(dtype).max_bits + 1
    active = np.ones(k, bool)
    for bits, axis in ((a_bits, -1), (b_bits, -2)):
        own = _all_bits(bits, axis, dtype)
        if int(own.max()) >= infinite:  # of bits put together, so that there may be none: then nothing is left out
            return None
        active &= own != 0
    before = np.zeros(k + 1, np.int32)
    np.cumsum(active, out=before[1:])
    if int(before[-1]) * _MOST > k:
        return None
    return Kept(active, np.where(active, before[:-1], before[-1]).astype(np.int32), before)


def _all_bits(bits: Array, axis: int, dtype: DType) -> Array:
    """The bits but for signs, of all numbers at an index, put together."""
    others = tuple(i for i in range(bits.ndim) if i != bits.ndim + axis)
    return np.asarray(np.bitwise_or.reduce(bits, axis=others) & bits.dtype.type(format_of(dtype).sign_bit - 1))


@lru_cache(maxsize=16)
def _plain(schedule: Term) -> bool:
    todo = [schedule.x if isinstance(schedule, Cast) else schedule]
    while todo:
        one = todo.pop()
        if not isinstance(one, Fma | Zero) and not (isinstance(one, Add | Fold) and one.dtype is DType.FP32):
            return False
        todo.extend(below_of(one))
    return True
