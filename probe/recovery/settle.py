"""Which candidate is it? Each is simulated and compared with the library on draws built to tell them apart.

Draws come in rounds; a candidate that differs in one element is out. What is left after the rounds either is one, or is listed as ambiguous.
"""

from __future__ import annotations

from dataclasses import dataclass

from probe.errors import Declined, DeclineReason
from probe.inputs.draws import Draw, DrawKind
from probe.proof import expected
from probe.recovery.candidates import Candidate
from probe.summing import Summing

_KINDS = (DrawKind.CANCELLING, DrawKind.SPREAD)
_ROUNDS = 3
_ELEMENTS = 512  # at least, in one round and kind: two merge orders differ in 30 % of fp32 outputs, cancelling draws show it in 16 bits
_DISTINCT = 32


@dataclass(frozen=True)
class Settled:
    """candidates still standing (one: settled), the draws and elements that were compared, how each other one fell."""

    standing: tuple[Candidate, ...]
    refuted: int
    draws: int
    elements: int


def settle(summing: Summing, candidates: tuple[Candidate, ...], extent: int, seed: int) -> Settled | Declined:
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
            checks = expected(candidate.schedule, batch, outs, summing.output_dtype)
            wrong = next((c for c in checks if not c.identical), None)
            if wrong is None:
                left.append(candidate)
            elif not first_difference:
                first_difference = str(wrong.first)
        standing = left
        draws += len(batch)
        elements += sum(d.elements for d in batch)
        if len(standing) <= 1:
            break
    if not standing:
        return Declined(DeclineReason.FORM_UNKNOWN, f"none of {len(candidates)} candidate arithmetics gives the library's bytes on this tree; {first_difference}",
                        "the tree stands; its roundings are not among those that probe knows")
    return Settled(tuple(standing), len(candidates) - len(standing), draws, elements)
