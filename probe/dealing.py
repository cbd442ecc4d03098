"""Dealing the K axis to the parts of a cut: sets of intervals in compact form, and how a cut slices or deals them.

A part of a nest of cuts is a sequence of intervals of K. Lanes of K = 4,000,000 hold millions of them at even distance, so a sequence is
written as blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """`count` intervals of `width` indices, `advance` apart (0 for one)."""

    first: int
    width: int
    count: int = 1
    advance: int = 0

    @property
    def size(self) -> int:
        """Indices in all intervals."""
        return self.width * self.count

    def interval(self, t: int) -> int:
        """Where interval t starts."""
        return self.first + t * self.advance


Axis = tuple[Block, ...]


def size_of(axis: Axis) -> int:
    """Indices of an axis."""
    return sum(block.size for block in axis)


def moved(axis: Axis, distance: int) -> Axis:
    """The same axis, every index moved by `distance`."""
    return tuple(Block(b.first + distance, b.width, b.count, b.advance) for b in axis)


def take(axis: Axis, start: int, stop: int) -> Axis:
    """Elements [start, stop) of an axis, counted along it."""
    out: list[Block] = []
    before = 0
    for block in axis:
        lo, hi = max(start - before, 0), min(stop - before, block.size)
        before += block.size
        if lo >= hi:
            continue
        (one, left), (two, right) = divmod(lo, block.width), divmod(hi, block.width)
        if one == two:
            _append(out, Block(block.interval(one) + left, right - left))
            continue
        if left:
            _append(out, Block(block.interval(one) + left, block.width - left))
            one += 1
        if two > one:
            _append(out, Block(block.interval(one), block.width, two - one, block.advance if two - one > 1 else 0))
        if right:
            _append(out, Block(block.interval(two), right))
    return tuple(out)


def _append(out: list[Block], block: Block) -> None:
    """Append a block, joined with the one before where that is one interval or one even sequence."""
    last = out[-1] if out else None
    if last is not None and last.count == block.count == 1 and last.first + last.width == block.first:
        out[-1] = Block(last.first, last.width + block.width)
    elif last is not None and last.width == block.width and (block.count == 1 or last.count == 1 or block.advance == last.advance):
        distance = block.first - last.interval(last.count - 1)
        advance = last.advance or block.advance or distance
        if distance == advance and distance > last.width:
            out[-1] = Block(last.first, last.width, last.count + block.count, advance)
        else:
            out.append(block)
    else:
        out.append(block)


def parts_of(axis: Axis, span: int) -> Iterator[Axis]:
    """Consecutive parts of `span` elements, the last one short when it must be."""
    size = size_of(axis)
    for start in range(0, size, span):
        yield take(axis, start, min(start + span, size))


def lanes_of(axis: Axis, span: int, count: int) -> list[Axis]:
    """Lane j takes every count-th tile of `span` elements; a lane that gets none is empty."""
    size = size_of(axis)
    tiles = -(-size // span)
    out: list[Axis] = []
    for lane in range(count):
        if lane >= tiles:
            out.append(())
            continue
        rounds = (tiles - lane - 1) // count + 1
        last = lane + (rounds - 1) * count
        short = min(span, size - last * span)
        whole = rounds if short == span else rounds - 1
        local: list[Block] = []
        if whole:
            local.append(Block(lane * span, span, whole, count * span if whole > 1 else 0))
        if short < span:
            local.append(Block(last * span, short))
        mapped: list[Block] = []
        for block in local:
            for piece in _mapped(axis, block):
                _append(mapped, piece)
        out.append(tuple(mapped))
    return out


def _mapped(axis: Axis, block: Block) -> Iterator[Block]:
    """The elements of `axis` that a block of positions along it stands for."""
    head = axis[0]
    inside = block.first % head.width + block.width <= head.width
    within = 0
    if inside and (block.count == 1 or block.advance % head.width == 0 or head.count == 1):
        # intervals that lie within the head block, each in one interval of it, an even number of them apart
        reach = head.size - block.first - block.width
        within = 0 if reach < 0 else min(block.count, reach // block.advance + 1 if block.advance else 1)
    if within:
        row, offset = divmod(block.first, head.width)
        advance = block.advance if head.count == 1 else block.advance // head.width * head.advance
        yield Block(head.interval(row) + offset, block.width, within, advance if within > 1 else 0)
    for t in range(within, block.count):
        start = block.interval(t)
        yield from take(axis, start, start + block.width)
