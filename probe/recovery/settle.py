"""Which candidate is it? Each is simulated and compared with the library on draws built to tell them apart.

Draws come in rounds; a candidate that differs in one element is out. What is left after the rounds either is one, or is listed as
ambiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.compare import Difference, compare
from probe.inputs.draws import Draw, DrawKind
from probe.proof import compare_draws
from probe.recovery.candidates import Candidate
from probe.simulator.execute import execute
from probe.summing import Summing

_KINDS = (DrawKind.CANCELLING, DrawKind.EDGE, DrawKind.SPREAD)
_LAST_KINDS = (DrawKind.TIE,)  # for candidates that only the rounding of a single step tells apart, seen through a 16-bit output
_ROUNDS = 3
_ELEMENTS = 512  # at least, in one round and kind: two merge orders differ in 30 % of fp32 outputs, cancelling draws show it in 16 bits
_DISTINCT = 32
_CORNER = 4
_LEAST_TIES = 16  # draws: each looks at one step only


@dataclass(frozen=True)
class Settled:
    """Candidates still standing (one: settled; none: the tree is right and its roundings are not among those that probe knows), how many
    fell, the draws and different dot products that were compared, and where the plainest candidate first differed if it fell."""

    standing: tuple[Candidate, ...]
    refuted: int
    draws: int
    elements: int
    first: Difference | None


def settle(summing: Summing, candidates: tuple[Candidate, ...], extent: int, seed: int,
           where: np.ndarray | None = None) -> Settled:
    """Compare until one candidate is left, for three rounds and a last one of ties.

    where: bool (m, n), the elements that are compared; None for all.
    """
    standing = list(candidates)
    draws = elements = index = 0
    first: Difference | None = None
    per_draw = min(summing.m, _DISTINCT) * min(summing.n, _DISTINCT)
    for kinds in (*[_KINDS] * _ROUNDS, _LAST_KINDS):
        count = max(_LEAST_TIES if kinds is _LAST_KINDS else 1, -(-_ELEMENTS // per_draw))
        batch = [Draw(summing.m, summing.n, summing.k, summing.input_dtype, kind, seed, index + i, extent, _DISTINCT)
                 for kind in kinds for i in range(count)]
        index += count
        outs = summing.outputs([(d, None) for d in batch])
        left = []
        for candidate in standing:
            wrong = _first_difference(candidate, batch, outs, summing, where)
            if wrong is None:
                left.append(candidate)
            elif candidate is candidates[0]:
                first = wrong
        standing = left
        draws += len(batch)
        elements += sum(d.elements for d in batch)
        if len(standing) <= 1:
            break
    return Settled(tuple(standing), len(candidates) - len(standing), draws, elements, first)


def _first_difference(candidate: Candidate, batch: list[Draw], outs: list[np.ndarray], summing: Summing,
                      where: np.ndarray | None) -> Difference | None:
    """Compare a corner of the first draws, then slices that grow: a wrong candidate nearly always falls at once."""
    for draw, out in list(zip(batch, outs, strict=True))[::max(1, len(batch) // 4)]:
        rows, columns = draw.different_rows[:_CORNER], draw.different_columns[:_CORNER]
        model = execute(candidate.schedule, rows, columns.T, summing.input_dtype)
        corner = (slice(len(rows)), slice(len(columns)))
        first = compare(out[corner], model, summing.output_dtype, None if where is None else where[corner]).first
        if first is not None:
            return first
    start, size = 0, 1
    while start < len(batch):
        part = slice(start, start + size)
        for check in compare_draws(candidate.schedule, batch[part], outs[part], summing.output_dtype, where):
            if check.first is not None:
                return check.first
        start, size = start + size, size * 8
    return None
