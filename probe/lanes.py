"""Reading a cut off a schedule: which cut of K, strided or contiguous, the root of a term joins the parts of.

The term sums [0, n). Whatever holds index 0 on the way from its leaf to the root may be the first part; its own indices say how the cut
deals, and then every other part must be one node of the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from probe.descriptor import CutLayout, Direction, Join, KCut, join_parts
from probe.problem import DType
from probe.schedule import (
    Add,
    Cast,
    Fma,
    Fold,
    Mma,
    Mul,
    Run,
    Term,
    Zero,
    add,
    cast,
    dtype_of,
    first_k,
    fma,
    fold,
    inside,
    leaf_count,
    mma,
    shift,
    span,
)
from probe.schedule.terms import after, copies

MOST_LANES = 4096
# plainest first: few parts are a chain and a butterfly at once
_WAYS = ((Join.CHAIN, Direction.FORWARD), (Join.BUTTERFLY, Direction.DOWN),
         (Join.BUTTERFLY, Direction.UP), (Join.CHAIN, Direction.BACKWARD))


@dataclass(frozen=True)
class Parting:
    """A cut and its parts, in order, each counted along its own axis; `partial` is the dtype that they are written in."""

    cut: KCut
    parts: tuple[Term, ...]
    partial: DType


def partings(term: Term) -> Iterator[Parting]:
    """Every cut whose parts the root of `term` joins, that of the smallest parts first. Each is checked against the term."""
    total = leaf_count(term)
    for node in _path(term)[:-1]:
        dealt = _dealt(node, total)
        if dealt is None:
            continue
        width, count = dealt
        parts = _collect(term, total, width, count)
        if parts is None:
            continue
        partials = {dtype_of(p) for p in parts if p is not None}
        bare = [p.x if isinstance(p, Cast) else p for p in parts if p is not None]
        local = [plain for lane, p in enumerate(bare) if (plain := _along(p, lane, width, count)) is not None]
        if len(partials) != 1 or len(local) != len(bare):
            continue
        for join, direction in _WAYS:
            if join_parts(parts, join, direction, dtype_of(term)) == term:
                layout = CutLayout.CONTIGUOUS if count == 0 else CutLayout.STRIDED
                yield Parting(KCut(width, layout, count or None, join, direction), tuple(local), partials.pop())
                break


def in_one_piece(term: Term) -> bool:
    """True where the sum that holds index 0 first is over neighbours: no lane of several tiles."""
    path = _path(term)
    first = path[0] if path else term
    return span(first) == (0, leaf_count(first))


def _path(term: Term) -> list[Term]:
    """The nodes that hold index 0, from its leaf to the root."""
    out = []
    node: Term | None = term
    while node is not None:
        out.append(node)
        match node:
            case Add(_, left, right):
                node = left if first_k(left) == 0 else right
            case Fold(previous, _, body, _, _):
                node = previous if first_k(previous) == 0 else body
            case _:
                node = None
    return out[::-1]


def _dealt(first: Term, total: int) -> tuple[int, int] | None:
    """(width of a tile, how many lanes; 0 for a contiguous cut) if the term is the first of several parts; None where it cannot be."""
    bare = first.x if isinstance(first, Cast) else first
    start, stop = span(bare)
    size = leaf_count(bare)
    if start != 0:
        return None
    if size == stop:  # one interval: parts of this span, or lanes that got one tile each
        return size, 0
    width = _least(lambda x: inside(bare, 0, x + 1) <= x, stop)
    period = _least(lambda x: inside(bare, width, x + 1) > 0, stop)
    return (width, period // width) if period % width == 0 and period // width <= MOST_LANES and period < total else None


def _least(holds, stop: int) -> int:  # type: ignore[no-untyped-def]
    """The least x below stop for which `holds`, which stays true from there on."""
    low, high = 0, stop
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _share(total: int, width: int, count: int, lane: int) -> int:
    """How many of `total` indices lane `lane` gets; of a contiguous cut (count 0), part `lane`."""
    if count == 0:
        return max(0, min(width, total - lane * width))
    rounds, rest = divmod(total, width * count)
    return rounds * width + max(0, min(width, rest - lane * width))


def _collect(term: Term, total: int, width: int, count: int) -> list[Term | None] | None:
    """The nodes that are whole parts, by their place; None where some part is no node of the tree."""
    places = count or -(-total // width)
    if places > max(MOST_LANES, 2) and count:
        return None
    parts: list[Term | None] = [None] * places
    dtype, todo, found, due = dtype_of(term), [term], 0, sum(_share(total, width, count, lane) > 0 for lane in range(places))
    while todo:
        node = todo.pop()
        if isinstance(node, Zero):
            continue
        lane = first_k(node) // width % places
        size, share = leaf_count(node), _share(total, width, count, lane)
        if size == share and node is not term:
            if parts[lane] is not None:
                return None
            parts[lane] = node
            found += 1
        elif size < share:
            return None
        elif isinstance(node, Add) and node.dtype == dtype:
            todo += [node.left, node.right]
        elif isinstance(node, Fold) and node.dtype == dtype and node.count <= due:
            todo += [node.previous, *copies(node)]
        else:
            return None
        if found + len(todo) > due + 1:
            return None
    return parts if found == due else None


def _along(term: Term, lane: int, width: int, count: int) -> Term | None:
    """A part with its indices counted along its own axis; None where it holds others."""
    try:
        return _local(term, lane * width, width, width * count if count else 0)
    except _ElsewhereError:
        return None


class _ElsewhereError(Exception):
    """An index lies outside the lane."""


def _local(term: Term, base: int, width: int, period: int) -> Term:
    def make(one: Term, below: list[Term]) -> Term:
        match one:
            case Mma(_, row, runs):
                return mma(below[0], row, tuple(_local_run(r, base, width, period) for r in runs))
            case Fma(_, runs, rounded):
                return fma(below[0], tuple(_local_run(r, base, width, period) for r in runs), rounded)
            case Mul(k):
                return Mul(_position(k, 1, base, width, period))
            case Add(dtype, _, _):
                return add(dtype, *below)
            case Fold(_, dtype, body, count, advance):
                if period and advance < width:  # copies within a tile: the last one tells that all of them are
                    if _local(shift(body, (count - 1) * advance), base, width, period) != shift(below[1], (count - 1) * advance):
                        raise _ElsewhereError
                else:
                    advance = _distance(advance, width, period)
                return fold(below[0], dtype, below[1], count, advance)
            case Cast(dtype, _):
                return cast(dtype, below[0])
            case Zero():
                return one
            case _:
                raise _ElsewhereError

    return after(term, make)


def _local_run(run: Run, base: int, width: int, period: int) -> Run:
    reach = run.pattern[-1] + 1
    if run.count > 1 and run.pattern[-1] + (run.count - 1) * run.advance < width:
        reach += (run.count - 1) * run.advance  # all of it within one tile
        return Run(_position(run.first, reach, base, width, period), run.pattern, run.count, run.advance)
    first = _position(run.first, reach, base, width, period)
    advance = _distance(run.advance, width, period) if run.count > 1 else 0
    return Run(first, run.pattern, run.count, advance)


def _position(k: int, reach: int, base: int, width: int, period: int) -> int:
    """Where [k, k + reach) begins along the lane."""
    if not period:
        return k - base
    tile, offset = divmod(k - base, period)
    if k < base or offset + reach > width:
        raise _ElsewhereError
    return tile * width + offset


def _distance(advance: int, width: int, period: int) -> int:
    if not period:
        return advance
    if advance % period:
        raise _ElsewhereError
    return advance // period * width
