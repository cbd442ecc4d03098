"""The proof: a schedule is simulated on fresh draws and compared with the library, byte for byte (DESIGN section 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from probe.compare import Comparison, Difference, compare
from probe.inputs.draws import LARGE, Block, Draw, DrawKind, make, windows
from probe.parallel import side_by_side
from probe.problem import DType
from probe.schedule import Term
from probe.simulator.execute import execute
from probe.summing import Summing

Bits = np.ndarray[Any, np.dtype[Any]]
LEAST_ELEMENTS = 4096  # a confirmation needs this many different dot products over its draws
PROOF_KINDS = (DrawKind.FLAT, DrawKind.SPREAD, DrawKind.CANCELLING, DrawKind.EDGE, DrawKind.TIE, DrawKind.EXTREMES)
SIGN_KINDS = (*PROOF_KINDS, DrawKind.SIGNS)  # of a schedule that zeros and the ends of fp32 told from its like
_SMALL_KINDS = {DrawKind.TIE, DrawKind.PAIR, DrawKind.EXTREMES, DrawKind.SIGNS}
_LEAST_BLOCKS = 3  # of each kind
_TIE_BLOCKS = 16  # many and small: each looks at one step
_TIE_SIDE = 8
_EXTREME_PRODUCTS = 2**24  # in all extreme blocks of one proof: the model's exact path is slow
_EXTREME_BLOCKS = 8  # at most
_EXTREME_SIDE = 8  # rows and columns: the eight kinds of extreme rows all occur in a block
_SIDE = 32  # rows and columns of a block at most
_VALUES_AT_ONCE = 2**24  # operand values simulated in one batch, over all threads


class Outcome(StrEnum):
    """confirmed: every element identical. refuted: some element differs. ambiguous: several candidates stand, so nothing is confirmed."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True)
class Proof:
    """draws: count by kind. elements: different dot products compared (a draw repeats them over the output: `compared` counts all).
    differing of `compared` elements differ; `first` names one, with its draw. seed: reproduces every draw."""

    outcome: Outcome
    draws: tuple[tuple[str, int], ...]
    elements: int
    compared: int
    differing: int
    first: Difference | None
    first_draw: str
    seed: int

    @property
    def bound(self) -> float:
        """The share of differing elements below which the truth lies at 95 %, by the rule of three, when none differed."""
        return 3 / self.elements if self.elements else 1.0


def compare_draws(schedule: Term, draws: Sequence[Draw], outs: Sequence[np.ndarray[Any, Any]], dtype: DType,
                  where: np.ndarray[Any, Any] | None = None) -> list[Comparison]:
    """Compare library outputs with the simulated schedule, draw by draw; each block is simulated once, equal-shaped blocks together.

    where: bool (m, n), the elements that are held to this schedule; None for all.
    """
    blocks = list(dict.fromkeys(draw.block for draw in draws))
    large = blocks[0].values >= LARGE
    groups: list[list[Block]] = [[]]
    for block in blocks:
        last = groups[-1]
        room = 1 if large else _VALUES_AT_ONCE // block.values
        if last and (len(last) >= room or _shape(last[0]) != _shape(block)):
            groups.append(last := [])
        last.append(block)

    def models(group: list[Block]) -> Bits:
        columns = np.stack([block.different_columns for block in group])
        rows = np.stack([block.different_rows for block in group])
        return np.asarray(execute(schedule, rows, np.swapaxes(columns, 1, 2), group[0].dtype))

    products = dict(zip(blocks, (model for group in side_by_side(models, groups, large) for model in group), strict=True))
    return [compare(got, draw.whole(products[draw.block][np.ix_(draw.rows, draw.columns)]), dtype, where)
            for draw, got in zip(draws, outs, strict=True)]


def _shape(block: Block) -> tuple[int, int, int]:
    return block.rows, block.columns, block.k


def prove(summing: Summing, schedule: Term, extent: int, seed: int, where: np.ndarray[Any, Any] | None = None,
          kinds: Sequence[DrawKind] = PROOF_KINDS) -> Proof:
    """Fresh draws of every kind, at least 4,096 different dot products in all, each compared over the whole output (or `where`).

    `elements` of the result counts different dot products of the draws that have a compared element.
    """
    return prove_beside(summing, schedule, (), extent, seed, where, kinds)[0]


def prove_beside(summing: Summing, schedule: Term, rivals: Sequence[Term], extent: int, seed: int,
                 where: np.ndarray[Any, Any] | None = None, kinds: Sequence[DrawKind] = PROOF_KINDS) -> tuple[Proof, tuple[Term, ...]]:
    """`prove`, and those of the rivals that the same outputs of extreme draws do not contradict: the library is asked no more for them."""
    left = list(rivals)
    elements = compared = differing = 0
    first: Difference | None = None
    first_draw = ""
    counts = []
    for kind in kinds:
        draws = _draws(summing, kind, max(1, len(set(kinds) - _SMALL_KINDS)), seed, extent)
        counts.append((str(kind), len(draws)))
        make(draws)
        outs = summing.outputs([(d, None) for d in draws])
        for draw, result in zip(draws, compare_draws(schedule, draws, outs, summing.output_dtype, where), strict=True):
            elements += min(draw.elements, result.elements)
            compared += result.elements
            differing += result.differing
            if first is None and result.first is not None:
                first, first_draw = result.first, draw.name
        if kind in (DrawKind.EXTREMES, DrawKind.SIGNS):
            left = [r for r in left if all(c.identical for c in compare_draws(r, draws, outs, summing.output_dtype, where))]
    outcome = Outcome.REFUTED if differing else Outcome.CONFIRMED
    return Proof(outcome, tuple(counts), elements, compared, differing, first, first_draw, seed), tuple(left)


def refuted(proof: Proof, first: Difference | None) -> Proof:
    """The proof of a schedule that fell while candidates were told apart, whatever its fresh draws say: their counts, which were taken, and
    the element that made it fall where no fresh draw shows one."""
    if proof.outcome is Outcome.REFUTED:
        return proof
    return replace(proof, outcome=Outcome.REFUTED, first=first, first_draw="a draw that told candidates apart")


def _draws(summing: Summing, kind: DrawKind, ordinary: int, seed: int, extent: int) -> list[Draw]:
    """Draws of one kind, enough that the `ordinary` kinds alone make a confirmation; blocks of ties and extremes are small."""
    if kind in (DrawKind.EXTREMES, DrawKind.SIGNS):
        rows, columns = sides(summing.m, summing.n, _EXTREME_SIDE**2, _EXTREME_SIDE)
        count = extreme_blocks(rows, columns, summing.k)
    elif kind in (DrawKind.TIE, DrawKind.PAIR):
        count = _TIE_BLOCKS
        rows, columns = sides(summing.m, summing.n, _TIE_SIDE**2, _TIE_SIDE)
    else:
        count = _LEAST_BLOCKS
        rows, columns = sides(summing.m, summing.n, -(-LEAST_ELEMENTS // (ordinary * count)), _SIDE)
    return [draw for index in range(count) for draw in windows(
        summing.m, summing.n, Block(rows, columns, summing.k, summing.input_dtype, kind, seed, index, extent))]


def extreme_blocks(rows: int, columns: int, k: int) -> int:
    """How many blocks of extreme values one round takes."""
    return max(1, min(_EXTREME_BLOCKS, _EXTREME_PRODUCTS // (rows * columns * k)))


def sides(m: int, n: int, elements: int, most: int) -> tuple[int, int]:
    """Rows and columns of a block for an (m, n) output: what the output has, up to `most`; where that is little, whole outputs side by
    side, so that there are at least `elements` dot products."""
    side = min(most, math.isqrt(elements - 1) + 1)
    if m > n:
        columns, rows = sides(n, m, elements, most)
        return rows, columns
    columns = min(n, most) if n >= side else _whole(side, n)
    rows = min(m, most) if m >= side else _whole(-(-elements // columns), m)
    return rows, columns


def _whole(least: int, part: int) -> int:
    """`least`, rounded up to whole parts."""
    return -(-least // part) * part
