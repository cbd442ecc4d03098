"""Which candidate is it? Each is simulated and compared with the library on draws built to tell them apart.

Draws come in rounds; a candidate that differs in one element is out. What is left after the rounds either is one, or is listed as
ambiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.compare import Difference, compare
from probe.inputs.draws import Block, Draw, DrawKind, make, windows
from probe.proof import compare_draws, extreme_blocks, sides
from probe.recovery.candidates import Candidate
from probe.simulator.execute import execute
from probe.summing import Summing

_KINDS = (DrawKind.CANCELLING, DrawKind.EDGE, DrawKind.SPREAD)
_LAST_KINDS = (DrawKind.TIE,)  # for candidates that only the rounding of a single step tells apart, seen through a 16-bit output
_ROUNDS = 3
_LAST_ROUNDS = 1
_ELEMENTS = 512  # at least, in one round and kind: two merge orders differ in 30 % of fp32 outputs, cancelling draws show it in 16 bits
_SIDE = 32  # rows and columns of a block at most
_CORNER = 4
_TIE_BLOCKS = 16  # each looks at one step only
_SMALL_SIDE = 8
_MORE_ROUNDS = ((DrawKind.PAIR,),) * 3  # where several candidates are left: ties of two products, and the last index
# For candidates that only zeros and the ends of the range of fp32 tell apart.
LIKE_ROUNDS = ((DrawKind.EXTREMES, DrawKind.SIGNS),) * 3 + ((DrawKind.PAIR,), *((DrawKind.SIGNS,),) * 6)
ROUNDS = ((_KINDS,) * _ROUNDS + (_LAST_KINDS,) * _LAST_ROUNDS + _MORE_ROUNDS)
LIKE_INDEX = 2**20  # of their first draw


@dataclass(frozen=True)
class Settled:
    """Candidates still standing (one: settled; none: the tree is right and its roundings are not among those that probe knows), how many
    fell, the draws and different dot products that were compared, and where the plainest candidate first differed if it fell."""

    standing: tuple[Candidate, ...]
    refuted: int
    draws: int
    elements: int
    first: Difference | None


def settle(summing: Summing, candidates: tuple[Candidate, ...], extent: int, seed: int, where: np.ndarray | None = None,
           rounds: Sequence[tuple[DrawKind, ...]] | None = None, index: int = 0) -> Settled:
    """Compare until one candidate is left, for three rounds, one of ties, and more of ties of two products.

    where: bool (m, n), the elements that are compared; None for all. rounds: the kinds of draws of each round; None is those, of which
    a single candidate goes through the first too. index: of the first draw.
    """
    standing = list(candidates)
    draws = elements = 0
    first: Difference | None = None
    for kinds in ROUNDS if rounds is None else rounds if len(standing) > 1 else ():
        rows, columns, blocks = _blocks(summing, kinds[0])
        batch = [draw for kind in kinds for i in range(blocks) for draw in windows(
            summing.m, summing.n, Block(rows, columns, summing.k, summing.input_dtype, kind, seed, index + i, extent))]
        index += blocks
        make(batch)
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


def _blocks(summing: Summing, kind: DrawKind) -> tuple[int, int, int]:
    """Rows and columns of a block, and how many blocks of a kind a round takes."""
    if kind in _KINDS:
        return *sides(summing.m, summing.n, _ELEMENTS, _SIDE), 1
    rows, columns = sides(summing.m, summing.n, _SMALL_SIDE**2, _SMALL_SIDE)
    return rows, columns, _TIE_BLOCKS if kind in (DrawKind.TIE, DrawKind.PAIR) else extreme_blocks(rows, columns, summing.k)


def _first_difference(candidate: Candidate, batch: list[Draw], outs: list[np.ndarray], summing: Summing,
                      where: np.ndarray | None) -> Difference | None:
    """Compare a corner of a few draws, then all: a wrong candidate nearly always falls at once."""
    few = slice(None, None, max(1, len(batch) // 4))
    rows = [draw.block.different_rows[draw.rows[:_CORNER]] for draw in batch[few]]
    columns = [draw.block.different_columns[draw.columns[:_CORNER]] for draw in batch[few]]
    models = execute(candidate.schedule, np.stack(rows), np.swapaxes(np.stack(columns), 1, 2), summing.input_dtype)
    for model, out in zip(models, outs[few], strict=True):
        corner = (slice(model.shape[0]), slice(model.shape[1]))
        first = compare(out[corner], model, summing.output_dtype, None if where is None else where[corner]).first
        if first is not None:
            return first
    return next((check.first for check in compare_draws(candidate.schedule, batch, outs, summing.output_dtype, where)
                 if check.first is not None), None)
