"""Two schedules and a library that is said to follow one of them: an output element on which they owe different bits, and what it holds.

Ordinary draws can leave two orders alike (a 16-bit output hides the last bits of a sum of parts), so the pairs and units of a walk are put
where the two trees give different counts. For schedules of one tree, which differ in their arithmetic, the draws of settling are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.compare import Difference
from probe.formats import decode
from probe.inputs.draws import Block, DrawKind, make, windows
from probe.inputs.probes import ProbeOperands, pair_for
from probe.proof import compare_draws, sides
from probe.schedule import Term, inside, joined
from probe.simulator.library import SimulatedSumming
from probe.summing import Cells, Summing
from probe.walks.reader import Places, Reader, places_for

_PAIRS = 512  # looked at; a launch takes as many of those that tell as the output has rows or columns
_NEAR = 40
_DRAW_KINDS = (DrawKind.CANCELLING, DrawKind.EDGE, DrawKind.SPREAD, DrawKind.TIE)
_BLOCKS = 16  # of each kind
_ELEMENTS, _SIDE = 512, 32  # dot products of a block at least, where the output is thin; its rows and columns at most


@dataclass(frozen=True)
class Contrast:
    """Elements on which the two schedules differ, as the library computes them. how: the inputs, in words. compared: elements looked at.
    refuted: how many contradict the first schedule, upheld: how many of these are what the second says. first: one that contradicts,
    with the bits of the first schedule as model."""

    how: str
    compared: int
    refuted: int
    upheld: int
    first: Difference


def contrast(summing: Summing, first: Term, second: Term, extents: tuple[int, int], seed: int,
             where: np.ndarray[Any, Any] | None = None) -> Contrast | None:
    """Look for inputs on which the library contradicts the first schedule; None where none was found.

    extents: how much of K each sums. where: bool (m, n), the elements that are looked at; None for all.
    """
    pair = pair_for(summing.input_dtype)
    places = places_for(where, summing.m, summing.n, pair.both)
    if len(places.rows):
        capacity = Reader(summing, pair, places).capacity
        experiments = _telling(first, second, extents, capacity, np.random.Generator(np.random.Philox(seed)))
        if len(experiments):
            found = _probed(summing, first, second, experiments[:len(places.rows)], places)
            if found is not None:
                return found
    return _drawn(summing, first, second, extents, seed, where)


def _telling(first: Term, second: Term, extents: tuple[int, int], capacity: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Experiments (plus, minus, first unit, one past the last) that count differently under the two trees."""
    low, high = min(extents), max(extents)
    out = [] if low == high else [(-1, -1, low, min(high, low + capacity))]
    for near in ([True, False] * (_PAIRS // 2) if low > 1 else []):
        i = int(rng.integers(0, low))
        j = (i + 1 + int(rng.integers(0, min(_NEAR, low - 1) if near else low - 1))) % low
        window = None if i == j else _window(joined(first, i, j), joined(second, i, j), low, capacity)
        if window is not None:
            out.append((i, j, *window))
    return np.asarray(out, np.int64).reshape(-1, 4)


def _window(one: Term, other: Term, stop: int, capacity: int) -> tuple[int, int] | None:
    """At most `capacity` neighbours of which the two nodes hold different numbers. None where both hold as many of all."""
    lo, hi = 0, stop
    if inside(one, lo, hi) == inside(other, lo, hi):
        return None
    while hi - lo > capacity:
        middle = (lo + hi) // 2
        lo, hi = (lo, middle) if inside(one, lo, middle) != inside(other, lo, middle) else (middle, hi)
    return lo, hi


def _probed(summing: Summing, first: Term, second: Term, experiments: np.ndarray[Any, Any], places: Places) -> Contrast | None:
    rows, columns = places.rows[:len(experiments)], places.columns[:len(experiments)]
    own, facing = (columns, rows) if places.axis == "columns" else (rows, columns)
    operands = ProbeOperands(summing.m, summing.n, summing.k, pair_for(summing.input_dtype), places.axis, experiments, own, facing)
    batch = [(operands, Cells(rows, columns))]
    [got] = summing.outputs(batch)
    one, other = (SimulatedSumming(summing.m, summing.n, summing.k, schedule, summing.input_dtype, summing.output_dtype).outputs(batch)[0]
                  for schedule in (first, second))
    wrong = np.nonzero(got != one)[0]
    if not len(wrong):
        return None
    at = int(wrong[0])
    plus, minus, lo, hi = experiments[at].tolist()
    units = f"units at k = {lo} to {hi - 1}"
    how = f"a walk's probe with {units} and no pair" if plus < 0 else f"a walk's probe with a pair at {plus} and {minus} and {units}"
    difference = Difference(int(rows[at]), int(columns[at]), int(got[at]), int(one[at]),
                            *(float(decode(bits[at:at + 1], summing.output_dtype)[0]) for bits in (got, one)))
    return Contrast(how, len(experiments), len(wrong), int((got[wrong] == other[wrong]).sum()), difference)


def _drawn(summing: Summing, first: Term, second: Term, extents: tuple[int, int], seed: int,
           where: np.ndarray[Any, Any] | None) -> Contrast | None:
    compared = 0
    rows, columns = sides(summing.m, summing.n, _ELEMENTS, _SIDE)
    for kind in _DRAW_KINDS:
        draws = [draw for i in range(_BLOCKS) for draw in windows(
            summing.m, summing.n, Block(rows, columns, summing.k, summing.input_dtype, kind, seed, i, min(extents)))]
        make(draws)
        outs = summing.outputs([(draw, None) for draw in draws])
        against, upheld = (compare_draws(schedule, draws, outs, summing.output_dtype, where) for schedule in (first, second))
        compared += sum(result.elements for result in against)
        for draw, wrong, right in zip(draws, against, upheld, strict=True):
            if wrong.first is not None:
                return Contrast(f"{draw.name} of those that settle", compared, wrong.differing,
                                max(0, wrong.differing - right.differing), wrong.first)
    return None
