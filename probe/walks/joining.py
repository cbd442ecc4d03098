"""How many parts of one kind meet: one of the usual ways, guessed, where a few dozen readings agree with it and with no plainer one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from probe.descriptor import Direction, Join, join_parts
from probe.problem import DType
from probe.schedule import Add, Fold, Mul, Term
from probe.schedule.terms import after, copies
from probe.walks.check import predicted
from probe.walks.reader import Reader
from probe.walks.tree import Joint, SumTree

_CHECKS = 48
_MOST_GROUPED = 1024  # parts in two levels: more were not seen, and each such way is as long as its parts are many
_WAYS = ((Join.BUTTERFLY, Direction.DOWN), (Join.BUTTERFLY, Direction.UP),
         (Join.CHAIN, Direction.FORWARD), (Join.CHAIN, Direction.BACKWARD))


def usual_join(reader: Reader, parts: Sequence[SumTree], starts: Sequence[int], rng: np.random.Generator) -> SumTree | None:
    """The parts, whose first indices are `starts`, joined in one of the usual ways; None where none of them predicts the readings."""
    spots, count = np.array(starts, np.int64), len(parts)
    mask = np.zeros(reader.k, bool)
    mask[spots] = True
    one = rng.integers(0, count, _CHECKS)
    one[::2] = 0
    other = (one + rng.integers(1, count, _CHECKS)) % count
    other[:24:2] = [min(2**e, count - 1) for e in range(12)]
    pairs = np.unique(np.stack([one, other], axis=1), axis=0)
    got = reader.lost(spots[pairs], np.tile(np.array([[0, reader.k]], np.int64), (len(pairs), 1)), mask)
    windows = np.tile(np.array([[0, count]], np.int64), (len(pairs), 1))
    for way in _ways(count):
        if (predicted(way, pairs, windows) == got).all():
            return after(way, lambda term, below: _over(term, below, parts), _copied)
    return None


def _ways(count: int) -> Iterator[Term]:
    """The usual sums of so many parts, by place: all at once, and in two levels with a power of two of neighbours inside."""
    places: list[Term] = [Mul(place) for place in range(count)]
    for way in _WAYS:
        yield join_parts(places, *way, DType.FP32)
    for inner in (2**e for e in range(1, 11) if 2**e < count <= _MOST_GROUPED):
        groups = [places[i:i + inner] for i in range(0, count, inner)]
        for way in _WAYS:
            inside = [join_parts(group, *way, DType.FP32) for group in groups]
            for outer in _WAYS:
                yield join_parts(inside, *outer, DType.FP32)


def _copied(term: Term) -> tuple[Term, ...]:
    match term:
        case Add(_, left, right):
            return left, right
        case Fold(previous, _, _, _, _):
            return previous, *copies(term)
        case _:
            return ()


def _over(term: Term, below: list[SumTree], parts: Sequence[SumTree]) -> SumTree:
    if isinstance(term, Mul):
        return parts[term.k]
    total = below[0]
    for part in below[1:]:
        total = Joint((total, part))
    return total
