"""Questions about the summation tree of a schedule: which node joins two indices, and how many leaves lie under it.

These are the answers that a walk reads from a device (DESIGN fact 2), computed from a schedule instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from probe.errors import UsageError
from probe.schedule.terms import Add, Call, Cast, Fma, Fold, Mma, Mul, Run, Term, Zero, below_of, copies, first_k, leaf_count, shift, stop_k


def span(term: Term) -> tuple[int, int]:
    """(smallest index, one past the largest) under a term; (0, 0) for none."""
    return (max(0, first_k(term)), stop_k(term))


def inside(term: Term, lo: int, hi: int) -> int:
    """How many leaves of the term have an index in [lo, hi)."""
    total = 0
    todo = [term]
    while todo:
        one = todo.pop()
        match one:
            case Mma(previous, _, runs) | Fma(previous, runs):
                total += sum(r.inside(lo, hi) for r in runs)
                todo.append(previous)
            case Mul(k):
                total += lo <= k < hi
            case Fold(previous, _, body, count, advance):
                total += _inside_copies(body, count, advance, lo, hi)
                todo.append(previous)
            case _:
                todo.extend(below_of(one))
    return total


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


def contains(term: Term, k: int) -> bool:
    """True when the product at index k is summed by the term."""
    return inside(term, k, k + 1) > 0


def joined(term: Term, i: int, j: int) -> Term:
    """The smallest node that holds both indices, as a term: its leaves are those lost when a pair sits at i and j."""
    if i == j or not contains(term, i) or not contains(term, j):
        raise UsageError(f"{i} and {j} are not two indices of this schedule")
    return _joined(term, i, j)


def _joined(term: Term, i: int, j: int) -> Term:
    while True:
        match term:
            case Mma(previous, _, runs) | Fma(previous, runs):
                a, b = _position(runs, i), _position(runs, j)
                if a is None and b is None:
                    term = previous
                    continue
                index, t, offset = max(a or (-1, -1, -1), b or (-1, -1, -1))
                if isinstance(term, Mma):
                    return Mma(previous, term.row, (*runs[:index], runs[index].prefix(t + 1)))
                run = runs[index]  # slices are taken index by index: whole ones, then the start of one
                whole = (run.prefix(t),) if t else ()
                return Fma(previous, (*runs[:index], *whole, Run(run.first + t * run.advance, run.pattern[:offset + 1])), term.rounded)
            case Add(_, left, right):
                a_left, b_left = contains(left, i), contains(left, j)
                if a_left != b_left:
                    return term
                term = left if a_left else right
            case Cast(_, x):
                term = x
            case Fold(previous, dtype, body, _, advance):
                p, q = _copy(term, i), _copy(term, j)
                if p != q:
                    return Fold(previous, dtype, body, max(p, q) + 1, advance)
                term = previous if p < 0 else shift(body, p * advance)
            case Call(_, args):
                both = [arg for arg in args if contains(arg, i) and contains(arg, j)]
                if not both:
                    return term
                term = both[0]
            case _:
                return term


def _position(runs: tuple[Run, ...], k: int) -> tuple[int, int, int] | None:
    """Which run, which of its steps, and which offset of the pattern holds index k."""
    for index, run in enumerate(runs):
        t = run.find(k)
        if t is not None:
            return index, t, run.pattern.index(k - run.first - t * run.advance)
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
    todo: list[Term | tuple[Run, bool]] = [term]
    while todo:
        one = todo.pop()
        match one:
            case Mma(previous, _, runs) | Fma(previous, runs):
                todo.extend((run, isinstance(one, Mma)) for run in reversed(runs))
                todo.append(previous)
            case (run, at_once):
                for t in range(run.count):
                    yield from (run.step(t),) if at_once else ((k,) for k in run.step(t))
            case Mul(k):
                yield (k,)
            case Fold(previous, _, _, _, _):
                todo.extend(reversed(list(copies(one))))
                todo.append(previous)
            case _:
                todo.extend(reversed(below_of(one)))


def prefix_terms(term: Term) -> Iterator[Term]:
    """A term and every term below it (a fold's body once)."""
    todo = [term]
    while todo:
        one = todo.pop()
        yield one
        todo.extend(reversed(below_of(one)))


def single_run(term: Term) -> tuple[int, int] | None:
    """(start, stop) when the leaves of the term are exactly the indices of one interval; else None."""
    start, stop = span(term)
    return (start, stop) if leaf_count(term) == stop - start and not isinstance(term, Zero) else None


__all__ = ["contains", "first_k", "inside", "joined", "leaf_count", "prefix_terms", "single_run", "span", "steps"]
