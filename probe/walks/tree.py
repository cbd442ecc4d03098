"""A summation tree as walks see it: which indices meet where, with no arithmetic attached yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from probe.problem import DType
from probe.schedule import ZERO, Row, Run, Term, add, fma, mma, shift
from probe.schedule.terms import after, join_runs, run_of


@dataclass(frozen=True, eq=False)
class Loop:
    """`before` (or nothing), then steps: each step's indices join all that came before at one node.

    chained: the runs hold single indices, one after the other, those of several offsets being slices of neighbours.
    """

    before: SumTree | None
    runs: tuple[Run, ...]
    chained: bool = False

    def __eq__(self, other: object) -> bool:
        return same_tree(self, other)


@dataclass(frozen=True, eq=False)
class Joint:
    """Two or more sums that meet at one node, with no index of their own there."""

    parts: tuple[SumTree, ...]

    def __eq__(self, other: object) -> bool:
        return same_tree(self, other)


@dataclass(frozen=True, eq=False)
class Moved:
    """Another sum with every index `distance` further on: a lane or part of the same form."""

    tree: SumTree
    distance: int

    def __eq__(self, other: object) -> bool:
        return same_tree(self, other)


SumTree = Loop | Joint | Moved
_R = TypeVar("_R")
_ANY_ROW = Row(64, 64)  # stands for any instruction where only the tree matters


def below_of(tree: SumTree) -> tuple[SumTree, ...]:
    """The trees right below one."""
    match tree:
        case Joint(parts):
            return parts
        case Moved(inner, _):
            return (inner,)
        case Loop(before):
            return () if before is None else (before,)


def walk_up(tree: SumTree, make: Callable[[SumTree, list[_R]], _R]) -> _R:
    """make(tree, what it made of each tree below), from the leaves up, each object once however often it stands in the tree."""
    known: dict[int, _R] = {}

    def once(one: Any, values: list[_R]) -> _R:
        if id(one) not in known:
            known[id(one)] = make(one, values)
        return known[id(one)]

    return after(tree, once, lambda one: () if id(one) in known else below_of(one))


def same_tree(one: object, two: object) -> bool:
    """True for equal trees."""
    todo: list[tuple[Any, Any]] = [(one, two)]
    while todo:
        a, b = todo.pop()
        if a is b:
            continue
        if type(a) is not type(b) or not isinstance(a, Loop | Joint | Moved):
            return False
        below, others = below_of(a), below_of(b)
        if len(below) != len(others) or (isinstance(a, Loop) and (a.runs, a.chained) != (b.runs, b.chained)):
            return False
        if isinstance(a, Moved) and a.distance != b.distance:
            return False
        todo.extend(zip(below, others, strict=True))
    return True


def loops(tree: SumTree) -> Iterator[Loop]:
    """Every loop of a tree, leftmost first; of moved copies the original."""
    todo: list[tuple[SumTree, bool]] = [(tree, False)]
    seen: set[int] = set()
    while todo:
        one, below_done = todo.pop()
        if below_done and isinstance(one, Loop):
            yield one
        elif id(one) not in seen:
            seen.add(id(one))
            if isinstance(one, Loop):
                todo.append((one, True))
            todo += [(below, False) for below in reversed(below_of(one))]


def single_steps(loop: Loop) -> Loop | None:
    """The loop with a first step of two indices taken as two single steps, where all other steps are single; else None."""
    if loop.before is not None or loop.chained:
        return loop if loop.chained else None
    if loop.runs[0].width > 2 or any(r.width > 1 for r in loop.runs[1:]) or (loop.runs[0].width == 2 and loop.runs[0].count > 1):
        return None
    if loop.runs[0].width == 1:
        return loop
    a, b = loop.runs[0].step(0)
    return Loop(None, join_runs((), (run_of((a,)), run_of((b,)), *loop.runs[1:])))


def shape_term(tree: SumTree) -> Term:
    """The tree as a schedule with stand-in arithmetic: for questions about its nodes only."""
    return as_term(tree, _ANY_ROW)


def as_term(tree: SumTree, row: Row | None) -> Term:
    """The tree with every step one instruction of `row` (None: scalar fused multiply-adds) and every joint an fp32 addition."""

    def make(one: SumTree, below: list[Term]) -> Term:
        if isinstance(one, Moved):
            return shift(below[0], one.distance)
        if isinstance(one, Loop):
            before = below[0] if below else ZERO
            return fma(before, one.runs) if row is None or one.chained else mma(before, row, one.runs)
        term = below[0]
        for part in below[1:]:
            term = add(DType.FP32, term, part)
        return term

    return walk_up(tree, make)
