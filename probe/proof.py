"""The proof: a schedule is simulated on fresh draws and compared with the library, byte for byte (DESIGN section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from probe.compare import Comparison, Difference, compare
from probe.inputs.draws import Draw, DrawKind
from probe.problem import DType
from probe.schedule import Term
from probe.simulator.execute import execute
from probe.summing import Summing

LEAST_ELEMENTS = 4096  # a confirmation needs this many different dot products over its draws
PROOF_KINDS = (DrawKind.FLAT, DrawKind.SPREAD, DrawKind.CANCELLING, DrawKind.EDGE, DrawKind.EXTREMES)
_LEAST_DRAWS = 3  # of each kind
_EXTREME_PRODUCTS = 2**24  # in all extreme draws of one proof, about a second
_EXTREME_DRAWS = 8  # at most: the eight kinds of extreme rows all occur in them
_EXTREME_DISTINCT = 8  # of rows and columns: the model's exact path is slow
_DISTINCT = 32
_VALUES_AT_ONCE = 2**24  # operand values simulated in one batch


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
    """Compare library outputs with the simulated schedule, draw by draw; equal-shaped draws are simulated together.

    where: bool (m, n), the elements that are held to this schedule; None for all.
    """
    out: list[Comparison] = []
    start = 0
    while start < len(draws):
        first = draws[start]
        size = (first.rows + first.columns) * first.k
        room = max(1, _VALUES_AT_ONCE // size)
        group = [d for d in draws[start:start + room] if (d.m, d.n, d.k, d.distinct) == (first.m, first.n, first.k, first.distinct)]
        a = np.stack([d.different_rows for d in group])
        b = np.stack([d.different_columns for d in group])
        blocks = execute(schedule, a, np.swapaxes(b, 1, 2), first.dtype)
        for draw, block, got in zip(group, blocks, outs[start:start + len(group)], strict=True):
            model = block
            if got.shape != block.shape:
                model = block[np.ix_(np.arange(draw.m) % draw.rows, np.arange(draw.n) % draw.columns)]
            out.append(compare(got, model, dtype, where))
        start += len(group)
    return out


def prove(summing: Summing, schedule: Term, extent: int, seed: int, where: np.ndarray[Any, Any] | None = None,
          kinds: Sequence[DrawKind] = PROOF_KINDS) -> Proof:
    """Fresh draws of every kind, at least 4,096 different dot products in all, each compared over the whole output (or `where`).

    `elements` of the result counts different dot products of the draws that have a compared element.
    """
    counts = _draws_of_each_kind(summing, kinds)
    elements = compared = differing = 0
    first: Difference | None = None
    first_draw = ""
    for kind, count in counts.items():
        draws = [Draw(summing.m, summing.n, summing.k, summing.input_dtype, kind, seed, i, extent, _distinct(kind)) for i in range(count)]
        outs = summing.outputs([(d, None) for d in draws])
        for draw, result in zip(draws, compare_draws(schedule, draws, outs, summing.output_dtype, where), strict=True):
            elements += min(draw.elements, result.elements)
            compared += result.elements
            differing += result.differing
            if first is None and result.first is not None:
                first, first_draw = result.first, f"{kind} draw {draw.index}"
    outcome = Outcome.REFUTED if differing else Outcome.CONFIRMED
    return Proof(outcome, tuple((str(k), n) for k, n in counts.items()), elements, compared, differing, first, first_draw, seed)


def refuted(proof: Proof, first: Difference | None) -> Proof:
    """The proof of a schedule that fell while candidates were told apart, whatever its fresh draws say: their counts, which were taken, and
    the element that made it fall where no fresh draw shows one."""
    if proof.outcome is Outcome.REFUTED:
        return proof
    return replace(proof, outcome=Outcome.REFUTED, first=first, first_draw="a draw that told candidates apart")


def _distinct(kind: DrawKind) -> int:
    return _EXTREME_DISTINCT if kind is DrawKind.EXTREMES else _DISTINCT


def _draws_of_each_kind(summing: Summing, kinds: Sequence[DrawKind]) -> dict[DrawKind, int]:
    """Draws so that the ordinary kinds alone reach the elements a confirmation needs; extremes, slow to simulate, are few and small."""
    ordinary = [k for k in kinds if k is not DrawKind.EXTREMES]
    per_draw = min(summing.m, _DISTINCT) * min(summing.n, _DISTINCT)
    each = max(_LEAST_DRAWS, -(-LEAST_ELEMENTS // (max(1, len(ordinary)) * per_draw)))
    products = min(summing.m, _EXTREME_DISTINCT) * min(summing.n, _EXTREME_DISTINCT) * summing.k
    extremes = max(1, min(each, _EXTREME_DRAWS, _EXTREME_PRODUCTS // products))
    return {k: extremes if k is DrawKind.EXTREMES else each for k in kinds}
