"""The lane walk: trees whose parts interleave along K, found by their period.

Vector kernels deal K to lanes in turn: lane j takes every so many-th tile of a few neighbours and sums them in one chain, perhaps closed
every so often; the lanes are then joined, and K may be cut into contiguous parts before all that. The walk reads how wide the first
tile is, searches for the tile that its chain goes on with, reads one lane as the adaptive walk reads a sum of intervals, and asks how the
lanes meet. All of it is a guess until readings that it did not come from agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe.errors import Declined
from probe.schedule import Run
from probe.schedule.terms import after, join_chain
from probe.walks.check import predicted
from probe.walks.contiguous import contiguous_tree, prefix_experiments
from probe.walks.general import Node, tree_over
from probe.walks.joining import usual_join
from probe.walks.lane_axis import LaneReader, Lanes
from probe.walks.reader import UNCANCELLED, Reader
from probe.walks.tree import Joint, Loop, Moved, SumTree, shape_term, single_steps, walk_up

FEWEST = 3  # indices: below, every tree is a chain
MOST_PARTS = 4096  # lanes of a part, and parts of K
_SCANNED = 8192  # indices after a tile among which the next one of its chain is searched for one by one
_LATER = 8192  # indices among which a lane has a further tile
_FINE = 64  # indices of a first part: lanes may have tiles so short
_MANY = 256  # parts of that length: contiguous parts so short and so many are not to be expected
_CHECKS = 64


def lane_tree(reader: Reader, extent: int, rng: np.random.Generator) -> SumTree | None:
    """The tree over [0, extent), or None where it is not made of lanes in contiguous parts."""
    if extent < FEWEST:
        return None
    for width in _tile_widths(reader, extent):
        period = _period(reader, extent, width)
        if period is None or period % width or not 2 <= period // width <= MOST_PARTS:
            continue
        end = _part_end(reader, extent, width, period)
        if end is None:
            continue
        tree = _Walk(reader, extent, width, period, rng).tree(end)
        if tree is not None and _lanes_hold(reader, tree, extent, period, rng):
            return tree
    return None


def looks_dealt(reader: Reader, extent: int) -> bool:
    """True where the start of K is cut so finely, or its first two indices meet so late, that lanes are likelier than contiguous parts."""
    pairs, windows = prefix_experiments(reader, extent)
    sizes = reader.lost(pairs, windows) + 2
    drops = np.nonzero(sizes[1:] < sizes[:-1])[0]
    fine = len(drops) > 0 and drops[0] + 1 <= _FINE and extent > _MANY * (drops[0] + 1)
    return bool(fine or (len(sizes) > _FINE and sizes[0] == windows[0, 1]))


def _counted(reader: Reader, first: int, others: Sequence[int], windows: Sequence[tuple[int, int]]) -> list[int]:
    """Indices of each window under the node that joins `first` and the other, both counted; -1 where the pair did not cancel."""
    pairs = np.array([(first, other) for other in others], np.int64).reshape(-1, 2)
    bounds = np.array(windows, np.int64).reshape(-1, 2)
    gone = reader.lost(pairs, bounds)
    legs = ((pairs >= bounds[:, :1]) & (pairs < bounds[:, 1:])).sum(axis=1)
    return np.where(gone == UNCANCELLED, -1, gone + legs).tolist()  # type: ignore[no-any-return]


# -- the first tile and the next of its chain -----------------------------------------------------------------------


def _tile_widths(reader: Reader, extent: int) -> list[int]:
    """How many neighbours the first tile may hold, likeliest first: as many as are joined before any later index is, or one."""
    pairs, windows = prefix_experiments(reader, extent)
    sizes = reader.lost(pairs, windows) + 2
    drops = np.nonzero(sizes[1:] < sizes[:-1])[0]
    width = int(drops[0]) + 1 if len(drops) else 1
    if width > 1:
        middle = max(width, (extent - _LATER) // 2)
        ahead = [(lo, min(lo + reader.capacity, extent)) for lo in range(middle, min(middle + _LATER, extent), reader.capacity)]
        own = _counted(reader, 0, [width - 1] * (len(ahead) + 1), [(0, width), *ahead])
        if own[0] == width and not any(own[1:]):
            return [width, 1]
    return [1]


def _period(reader: Reader, extent: int, width: int) -> int | None:
    """How far behind the first tile the next one of its chain begins. None where there is none, or it is not found.

    What meets the tile later than index y does has y under its node with the tile; so each index that leaves y out meets the tile
    earlier, until one meets the tile alone.
    """
    last = width
    if last >= extent:
        return None
    for _ in range(64):
        nearer = _nearer(reader, extent, width, last)
        if nearer is None:
            return None
        last = nearer
        if _alone(reader, extent, width, last):
            return last
    return None


def _alone(reader: Reader, extent: int, width: int, other: int) -> bool:
    """True where the tile meets the tile of `other` and nothing else nearby."""
    stop = min(extent, other + width + _LATER)
    windows = [(lo, min(lo + reader.capacity, end)) for start, end in ((width, other), (other + width, stop))
               for lo in range(start, end, reader.capacity)]
    return not any(_counted(reader, 0, [other] * len(windows), windows))


def _nearer(reader: Reader, extent: int, width: int, last: int) -> int | None:
    """An index behind `last` whose node with the tile leaves `last` out."""
    quick = [x for x in {2 * last, _next_under(reader, extent, width, last)} if x is not None and last < x < extent]
    batches = [sorted(quick)] if quick else []
    step, start = 64, last + width
    while start < min(extent, last + _SCANNED * width):
        batches.append(list(range(start, min(extent, start + step * width), width)))
        start, step = start + step * width, min(2 * step, 1024)
    for batch in batches:
        under = _counted(reader, 0, batch, [(last, last + 1)] * len(batch))
        for x, held in zip(batch, under, strict=True):
            if held == 0:
                return x
    return None


def _next_under(reader: Reader, extent: int, width: int, last: int) -> int | None:
    """The first index behind the tile of `last` under the node that joins it with the first tile."""
    size, start = 16, last + width
    while start < extent:
        stop = min(extent, start + min(size, reader.capacity))
        if _counted(reader, 0, [last], [(start, stop)])[0]:
            break
        start, size = stop, 2 * size
    else:
        return None
    while stop - start > 1:
        middle = (start + stop) // 2
        if _counted(reader, 0, [last], [(start, middle)])[0]:
            stop = middle
        else:
            start = middle
    return start


def _part_end(reader: Reader, extent: int, width: int, period: int) -> int | None:
    """Where the contiguous part that index 0 lies in ends."""

    def outside(k: int) -> bool:
        if k % period < width:  # tiles of the first lane: were its lanes joined before this one is met?
            return _counted(reader, 0, [k], [(width, width + 1)])[0] == 1
        return _counted(reader, k, [k - period], [(0, 1)])[0] == 1  # one tile apart: not in one chain?

    low, high = 1, (extent - 1) // period
    if outside(low * period):
        return None
    if not outside(high * period):
        low, high = high * period, extent
    else:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if outside(middle * period) else (middle, high)
        low, high = low * period, high * period
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if outside(middle) else (middle, high)
    return high


# -- lanes, parts, and how they meet --------------------------------------------------------------------------------


class _Walk:
    """What is known while the tree is put together: forms of lanes by their length, how so many parts of one kind meet."""

    def __init__(self, reader: Reader, extent: int, width: int, period: int, rng: np.random.Generator) -> None:
        self.reader, self.extent, self.width, self.period, self.rng = reader, extent, width, period, rng
        self._forms: dict[int, SumTree | None] = {}

    def tree(self, end: int) -> SumTree | None:
        starts = list(range(0, self.extent, end))
        if len(starts) > MOST_PARTS:
            return None
        first = self._part(0, min(end, self.extent))
        if first is None:
            return None
        if len(starts) == 1:
            return first
        last = first if self.extent - starts[-1] == end else self._part(starts[-1], self.extent)
        if last is None:
            return None
        parts: list[SumTree] = [first, *(Moved(first, start) for start in starts[1:-1])]
        parts.append(Moved(first, starts[-1]) if last is first else last)
        return self._joined(parts, starts)

    def _part(self, start: int, stop: int) -> SumTree | None:
        """The sum over [start, stop), which its lanes share."""
        lanes = Lanes(start, stop, self.width, self.period)
        parts: list[SumTree] = []
        for lane in range(lanes.count):
            length = lanes.length(lane)
            if length not in self._forms:
                self._forms[length] = self._lane(lanes, lane, length)
            form = self._forms[length]
            if form is None:
                return None
            parts.append(Moved(form, lanes.first(lane)) if lanes.first(lane) else form)
        return self._joined(parts, [lanes.first(lane) for lane in range(lanes.count)])

    def _lane(self, lanes: Lanes, lane: int, length: int) -> SumTree | None:
        """A lane of this length that starts at index 0."""
        local = contiguous_tree(LaneReader(self.reader, lanes, lane), length, self.rng)
        return None if local is None else _spread(local, self.width, self.period)

    def _joined(self, parts: list[SumTree], starts: list[int]) -> SumTree | None:
        """The tree over parts, from the tree over the first index of each."""
        if len(parts) == 1:
            return parts[0]
        joined = usual_join(self.reader, parts, starts, self.rng)
        if joined is not None:
            return joined
        node = tree_over(self.reader, np.array(starts, np.int64))
        return None if isinstance(node, Declined) else _assembled(node, parts)


def _assembled(node: Node, parts: list[SumTree]) -> SumTree | None:
    """The tree over parts from the tree over one index of each; None where more than two meet at once."""

    def make(one: Node, below: list[SumTree | None]) -> SumTree | None:
        own = [*below, *(parts[leaf] for leaf in one.leaves)]
        there = [p for p in own if p is not None]
        if len(there) < len(own) or len(own) > 2:
            return None
        return there[0] if len(there) == 1 else Joint(tuple(there))

    return after(node, make, lambda one: tuple(one.children))


def _spread(local: SumTree, width: int, period: int) -> SumTree | None:
    """A tree along a lane as a tree along K. None where a step is more than one index: no lane of such was seen."""

    def make(one: SumTree, below: list[SumTree | None]) -> SumTree | None:
        there = [b for b in below if b is not None]
        if len(there) < len(below):
            return None
        if isinstance(one, Joint):
            return Joint(tuple(there))
        single = single_steps(one) if isinstance(one, Loop) else None
        if single is None:
            return None
        pieces: list[Run] = []
        for run in single.runs:
            if run.width > 1 or (run.count > 1 and run.advance != 1):
                return None
            pieces += _spread_run(run.first, run.count, width, period)
        return Loop(None, join_chain((), tuple(pieces)), chained=True)

    return walk_up(local, make)


def _spread_run(first: int, count: int, width: int, period: int) -> list[Run]:
    """Positions [first, first + count) of a lane as runs along K: the rest of a tile, whole tiles, the start of one."""
    out: list[Run] = []
    stop = first + count
    if first % width:
        head = min(stop, first - first % width + width)
        out.append(Run(first // width * period + first % width, (0,), head - first, 1 if head - first > 1 else 0))
        first = head
    whole = (stop - first) // width
    if whole:
        start = first // width * period
        if width == 1:
            out.append(Run(start, (0,), whole, period if whole > 1 else 0))
        elif whole == 1:
            out.append(Run(start, (0,), width, 1))
        else:
            out.append(Run(start, tuple(range(width)), whole, period))
        first += whole * width
    if first < stop:
        out.append(Run(first // width * period, (0,), stop - first, 1 if stop - first > 1 else 0))
    return out


# -- readings that the guess did not come from ----------------------------------------------------------------------


def _lanes_hold(reader: Reader, tree: SumTree, extent: int, period: int, rng: np.random.Generator) -> bool:
    """Pairs of one lane, one tile apart and many, each with a window about one of its legs: as the tree predicts?"""
    rounds = (extent - 1) // period
    if not rounds:
        return True
    one = rng.integers(0, extent - period, _CHECKS)
    far = rng.integers(1, rounds + 1, _CHECKS)
    far[::2] = 1
    other = one + np.minimum(far, (extent - 1 - one) // period) * period
    size = min(reader.capacity, extent)
    lo = np.clip(np.where(np.arange(_CHECKS) % 4 < 2, one, other) - rng.integers(0, size, _CHECKS), 0, extent - size)
    pairs, windows = np.stack([one, other], axis=1), np.stack([lo, lo + size], axis=1)
    return bool((reader.lost(pairs, windows) == predicted(shape_term(tree), pairs, windows)).all())
