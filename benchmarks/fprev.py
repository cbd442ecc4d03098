"""How many launches FPRev's algorithm would need for a known tree, with its probes packed by output row too.

FPRev (Xie et al., ATC 2025) asks, for a set of leaves, the node sizes l(i, j) from its first leaf i to all others, groups the others
by size and asks each group again by itself; members of one group that are single leaves of one fused node are peeled off one by one.
The count here follows the tree instead of asking it, which is the same count (tests/test_fprev_count.py asks).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from probe.schedule import Add, Cast, Fma, Fold, Mma, Term, Zero, leaf_count


@dataclass
class FPRevCost:
    """Probes of every call, by recursion depth. calls[(depth, probes)]: how many calls of that many probes."""

    calls: Counter[tuple[int, int]] = field(default_factory=Counter)

    @property
    def probes(self) -> int:
        return sum(probes * count for (_, probes), count in self.calls.items())

    def launches(self, width: int) -> int:
        """Launches when one holds `width` probes, all of one call."""
        return sum(-(-probes // width) * count for (_, probes), count in self.calls.items())

    def launches_by_depth(self, width: int) -> int:
        """The kindest packing: all calls of one depth share launches, though FPRev makes them one after the other."""
        depths: Counter[int] = Counter()
        for (depth, probes), count in self.calls.items():
            depths[depth] += probes * count
        return sum(-(-probes // width) for probes in depths.values())


def fprev_cost(term: Term) -> FPRevCost:
    """What FPRev would ask to find the tree of a schedule."""
    cost = FPRevCost()
    _build(term, 0, 1, cost)
    return cost


def _build(term: Term, depth: int, times: int, cost: FPRevCost) -> None:
    size = leaf_count(term)
    if size > 1:
        cost.calls[(depth, size - 1)] += times
        _descend(term, depth, times, cost)


def _descend(term: Term, depth: int, times: int, cost: FPRevCost) -> None:
    """The groups that the first leaf of a term sees: what joins its path from outside is built one level down."""
    match term:
        case Mma(previous, _, runs) | Fma(previous, runs):
            first = isinstance(previous, Zero)
            for run in runs:
                count = run.count
                if first:
                    _siblings(run.width - 1, depth + 1, times, cost)
                    count, first = count - 1, False
                _siblings(run.width, depth + 1, times * count, cost)
            _descend(previous, depth, times, cost)
        case Add(_, left, right):
            _descend(left, depth, times, cost)
            _build(right, depth + 1, times, cost)
        case Fold(previous, _, body, count, _):
            _descend(previous, depth, times, cost)
            _build(body, depth + 1, times * count, cost)
        case Cast(_, x):
            _descend(x, depth, times, cost)
        case _:
            return


def _siblings(size: int, depth: int, times: int, cost: FPRevCost) -> None:
    """Single leaves of one fused node: each call sees the rest at one and the same size."""
    if times:
        for left in range(size, 1, -1):
            cost.calls[(depth + size - left, left - 1)] += times
