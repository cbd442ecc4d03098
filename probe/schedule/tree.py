"""Questions about the summation tree of a schedule: which node joins two indices, and how many leaves lie under it.

These are the answers that a walk reads from a device (DESIGN fact 2), computed from a schedule instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from probe.errors import UsageError
from probe.schedule.terms import Add, Call, Cast, Fma, Fold, Mma, Mul, Run, Term, Zero, copies, first_k, shift


def span(term: Term) -> tuple[int, int]:
    """(smallest index, one past the largest) under a term; (0, 0) for none."""
    match term:
        case Mma(previous, _, runs) | Fma(previous, runs):
            bounds = [(r.first, r.stop) for r in runs]
            inner = span(previous)
            if inner[1]:
                bounds.append(inner)
            return min(b[0] for b in bounds), max(b[1] for b in bounds)
        case Mul(k):
            return k, k + 1
        case Fold(previous, _, body, count, advance):
            lo, hi = span(body)
            inner = span(previous)
            hi += (count - 1) * advance
            return (min(lo, inner[0]), max(hi, inner[1])) if inner[1] else (lo, hi)
        case Add(_, left, right):
            return _union(span(left), span(right))
        case Cast(_, x):
            return span(x)
        case Call(_, args):
            out = (0, 0)
            for arg in args:
                out = _union(out, span(arg))
            return out
        case _:
            return 0, 0


def _union(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    if not a[1] or not b[1]:
        return a if a[1] else b
    return min(a[0], b[0]), max(a[1], b[1])


def inside(term: Term, lo: int, hi: int) -> int:
    """How many leaves of the term have an index in [lo, hi)."""
    match term:
        case Mma(previous, _, runs) | Fma(previous, runs):
            return sum(r.inside(lo, hi) for r in runs) + inside(previous, lo, hi)
        case Mul(k):
            return int(lo <= k < hi)
        case Add(_, left, right):
            return inside(left, lo, hi) + inside(right, lo, hi)
        case Cast(_, x):
            return inside(x, lo, hi)
        case Call(_, args):
            return sum(inside(a, lo, hi) for a in args)
        case Fold(previous, _, body, count, advance):
            return inside(previous, lo, hi) + _inside_copies(body, count, advance, lo, hi)
        case _:
            return 0


def _inside_copies(body: Term, count: int, advance: int, lo: int, hi: int) -> int:
    start, stop = span(body)
    if advance <= 0:
        return sum(inside(body, lo - t * advance, hi - t * advance) for t in range(count))
    # copy t covers [start + t*advance, stop + t*advance): whole, outside, or cut by an end of the window
    first_touch = max(0, (lo - stop) // advance + 1)
    last_touch = min(count - 1, -((start - hi) // advance) - 1)
    if first_touch > last_touch:
        return 0
    first_whole = max(first_touch, -((start - lo) // advance))
    last_whole = min(last_touch, (hi - stop) // advance)
    total = 0
    if first_whole <= last_whole:
        total = (last_whole - first_whole + 1) * leaf_count(body)
        cut = [*range(first_touch, first_whole), *range(last_whole + 1, last_touch + 1)]
    else:
        cut = [*range(first_touch, last_touch + 1)]
    return total + sum(inside(body, lo - t * advance, hi - t * advance) for t in cut)


def leaf_count(term: Term) -> int:
    """How many products the term sums."""
    match term:
        case Mma(previous, _, runs) | Fma(previous, runs):
            return leaf_count(previous) + sum(r.width * r.count for r in runs)
        case Mul():
            return 1
        case Add(_, left, right):
            return leaf_count(left) + leaf_count(right)
        case Fold(previous, _, body, count, _):
            return leaf_count(previous) + count * leaf_count(body)
        case Cast(_, x):
            return leaf_count(x)
        case Call(_, args):
            return sum(map(leaf_count, args))
        case _:
            return 0


def contains(term: Term, k: int) -> bool:
    """True when the product at index k is summed by the term."""
    return inside(term, k, k + 1) > 0


def joined(term: Term, i: int, j: int) -> Term:
    """The smallest node that holds both indices, as a term: its leaves are those lost when a pair sits at i and j."""
    if i == j or not contains(term, i) or not contains(term, j):
        raise UsageError(f"{i} and {j} are not two indices of this schedule")
    return _joined(term, i, j)


def _joined(term: Term, i: int, j: int) -> Term:
    match term:
        case Mma(previous, _, runs) | Fma(previous, runs):
            a, b = _position(runs, i), _position(runs, j)
            last = max(a, b, key=lambda p: p if p is not None else (-1, -1)) if a or b else None
            if last is None:
                return _joined(previous, i, j)
            cut = (*runs[:last[0]], runs[last[0]].prefix(last[1] + 1))
            return Mma(previous, term.row, cut) if isinstance(term, Mma) else Fma(previous, cut)
        case Add(_, left, right):
            a_left, b_left = contains(left, i), contains(left, j)
            if a_left != b_left:
                return term
            return _joined(left if a_left else right, i, j)
        case Cast(_, x):
            return _joined(x, i, j)
        case Fold(previous, dtype, body, _, advance):
            p, q = _copy(term, i), _copy(term, j)
            if p == q:
                return _joined(previous, i, j) if p < 0 else _joined(shift(body, p * advance), i, j)
            return Fold(previous, dtype, body, max(p, q) + 1, advance)
        case Call(_, args):
            for arg in args:
                if contains(arg, i) and contains(arg, j):
                    return _joined(arg, i, j)
            return term
        case _:
            return term


def _position(runs: tuple[Run, ...], k: int) -> tuple[int, int] | None:
    for index, run in enumerate(runs):
        t = run.find(k)
        if t is not None:
            return index, t
    return None


def _copy(term: Fold, k: int) -> int:
    """Which copy of a fold's body holds index k; -1 for `previous`."""
    start, stop = span(term.body)
    if term.advance > 0:
        low = max(0, -((stop - 1 - k) // term.advance))
        high = min(term.count - 1, (k - start) // term.advance)
    else:
        low, high = 0, term.count - 1
    for t in range(low, high + 1):
        if contains(term.body, k - t * term.advance):
            return t
    return -1


def steps(term: Term) -> Iterator[tuple[int, ...]]:
    """The index sets that share one rounding, in the order in which the schedule executes them."""
    match term:
        case Mma(previous, _, runs) | Fma(previous, runs):
            yield from steps(previous)
            for run in runs:
                for t in range(run.count):
                    yield run.step(t)
        case Mul(k):
            yield (k,)
        case Add(_, left, right):
            yield from steps(left)
            yield from steps(right)
        case Fold(previous, _, _, _, _):
            yield from steps(previous)
            for copy in copies(term):
                yield from steps(copy)
        case Cast(_, x):
            yield from steps(x)
        case Call(_, args):
            for arg in args:
                yield from steps(arg)
        case _:
            return


def prefix_terms(term: Term) -> Iterator[Term]:
    """A term and every term below it (a fold's body once)."""
    yield term
    match term:
        case Mma(previous, _, _) | Fma(previous, _):
            yield from prefix_terms(previous)
        case Add(_, left, right):
            yield from prefix_terms(left)
            yield from prefix_terms(right)
        case Fold(previous, _, body, _, _):
            yield from prefix_terms(previous)
            yield from prefix_terms(body)
        case Cast(_, x):
            yield from prefix_terms(x)
        case Call(_, args):
            for arg in args:
                yield from prefix_terms(arg)
        case _:
            return


def single_run(term: Term) -> tuple[int, int] | None:
    """(start, stop) when the leaves of the term are exactly the indices of one interval; else None."""
    start, stop = span(term)
    return (start, stop) if leaf_count(term) == stop - start and not isinstance(term, Zero) else None


__all__ = ["contains", "first_k", "inside", "joined", "leaf_count", "prefix_terms", "single_run", "span", "steps"]
