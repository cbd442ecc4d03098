"""Which candidate is it? Each is simulated and compared with the library on draws built to tell them apart.

Draws come in rounds; a candidate that differs in one element is out. What is left after the rounds either is one, or is listed as ambiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.compare import Difference, compare
from probe.errors import Declined, DeclineReason
from probe.inputs.draws import Draw, DrawKind
from probe.proof import compare_draws
from probe.recovery.candidates import Candidate
from probe.simulator.execute import execute
from probe.summing import Summing

_KINDS = (DrawKind.CANCELLING, DrawKind.EDGE, DrawKind.SPREAD)
_ROUNDS = 3
_ELEMENTS = 512  # at least, in one round and kind: two merge orders differ in 30 % of fp32 outputs, cancelling draws show it in 16 bits
_DISTINCT = 32
_CORNER = 4


@dataclass(frozen=True)
class Settled:
    """candidates still standing (one: settled), the draws and elements that were compared, how each other one fell."""

    standing: tuple[Candidate, ...]
    refuted: int
    draws: int
    elements: int


def settle(summing: Summing, candidates: tuple[Candidate, ...], extent: int, seed: int,
           where: np.ndarray | None = None) -> Settled | Declined:
    """Compare until one candidate is left, or for three rounds. Declined when none gives the library's bytes."""
    standing = list(candidates)
    draws = elements = index = 0
    first_difference = ""
    for _ in range(_ROUNDS):
        per_draw = min(summing.m, _DISTINCT) * min(summing.n, _DISTINCT)
        count = -(-_ELEMENTS // per_draw)
        batch = [Draw(summing.m, summing.n, summing.k, summing.input_dtype, kind, seed, index + i, extent, _DISTINCT)
                 for kind in _KINDS for i in range(count)]
        index += count
        outs = summing.outputs([(d, None) for d in batch])
        left = []
        for candidate in standing:
            wrong = _first_difference(candidate, batch, outs, summing, where)
            if wrong is None:
                left.append(candidate)
            elif not first_difference:
                first_difference = str(wrong)
        standing = left
        draws += len(batch)
        elements += sum(d.elements for d in batch)
        if len(standing) <= 1:
            break
    if not standing:
        return Declined(DeclineReason.FORM_UNKNOWN, f"none of {len(candidates)} candidate arithmetics gives the library's bytes on this tree; {first_difference}",
                        "the tree stands; its roundings are not among those that probe knows")
    return Settled(tuple(standing), len(candidates) - len(standing), draws, elements)


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
