"""A summation tree as walks see it: which indices meet where, with no arithmetic attached yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from probe.schedule.terms import Run


@dataclass(frozen=True)
class Loop:
    """`before` (or nothing), then steps: each step's indices join all that came before at one node."""

    before: SumTree | None
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Joint:
    """Two or more sums that meet at one node, with no index of their own there."""

    parts: tuple[SumTree, ...]


SumTree = Loop | Joint


def loops(tree: SumTree) -> Iterator[Loop]:
    """Every loop of a tree, leftmost first."""
    if isinstance(tree, Joint):
        for part in tree.parts:
            yield from loops(part)
    else:
        if tree.before is not None:
            yield from loops(tree.before)
        yield tree
