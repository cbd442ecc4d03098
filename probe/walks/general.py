"""A summation tree of any form, from the sizes of the nodes that join pairs of leaves.

The idea is FPRev's (Xie et al., ATC 2025): the sizes l(i, j) seen from one leaf i sort all other leaves by the nested nodes
above i; each group is then looked at from within. All groups of one round share launches, and a group is asked only
against one of its members at a time until its parts are known. Works on single indices, or on known sums through one
index of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from probe.errors import Declined, DeclineReason
from probe.schedule.terms import join_runs, run_of
from probe.walks.reader import UNCANCELLED, Reader
from probe.walks.tree import Joint, Loop, SumTree


@dataclass
class Node:
    """A node of the tree in the making: leaves (positions in the list of representatives) and child nodes."""

    leaves: list[int] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)


@dataclass
class _Task:
    """`members` are split among the children of `target`; `size` is the number of leaves under the target node."""

    members: list[int]
    size: int
    target: Node


def tree_over(reader: Reader, representatives: np.ndarray) -> Node | Declined:
    """The tree over the given indices of K (ascending). Units stand on the representatives only, so sizes count representatives."""
    count = len(representatives)
    root = Node()
    if count == 1:
        root.leaves = [0]
        return root
    mask = np.zeros(reader.k, bool)
    mask[representatives] = True
    tasks = [_Task(list(range(count)), count, root)]
    while tasks:
        asked = [(task.members[0], other) for task in tasks for other in task.members[1:]]
        sizes = _sizes(reader, representatives, asked, mask)
        if sizes is None:
            return Declined(DeclineReason.TREE_UNREADABLE, "a pair of summed indices did not cancel")
        follow: list[_Task] = []
        start = 0
        for task in tasks:
            stop = start + len(task.members) - 1
            found = _split(task, sizes[start:stop], follow)
            start = stop
            if not found:
                return Declined(DeclineReason.TREE_UNREADABLE, "node sizes do not nest: the readings fit no summation tree")
        tasks = follow
    return root


def _sizes(reader: Reader, representatives: np.ndarray, asked: list[tuple[int, int]], mask: np.ndarray) -> list[int] | None:
    if not asked:
        return []
    pairs = representatives[np.asarray(asked, np.int64)]
    windows = np.tile(np.array([[0, reader.k]], np.int64), (len(pairs), 1))
    lost = reader.lost(pairs, windows, mask)
    if (lost == UNCANCELLED).any():
        return None
    return [int(x) + 2 for x in lost]


def _split(task: _Task, sizes: list[int], follow: list[_Task]) -> bool:
    """Place the first member of a task, and whatever shares a child with it, under the target; the rest is asked again."""
    first, others = task.members[0], task.members[1:]
    groups: dict[int, list[int]] = {}
    for other, size in zip(others, sizes, strict=True):
        groups.setdefault(size, []).append(other)
    if any(size > task.size for size in groups):
        return False
    below = sorted(size for size in groups if size < task.size)
    inner: Node | None = None
    seen = 1
    for size in below:
        node = Node()
        if inner is None:
            node.leaves.append(first)
        else:
            node.children.append(inner)
        seen += len(groups[size])
        if seen != size:
            return False
        follow.append(_Task(groups[size], size, node))
        inner = node
    if inner is None:
        task.target.leaves.append(first)
    else:
        task.target.children.append(inner)
    rest = groups.get(task.size, [])
    if rest:
        follow.append(_Task(rest, task.size, task.target))
    return True


def loops_of(node: Node, representatives: np.ndarray) -> SumTree | Declined:
    """The tree over single indices as loops and joints; declined where one node joins several sums and single products."""
    spine = [node]
    while len(spine[-1].children) == 1:
        spine.append(spine[-1].children[0])
    tree: SumTree | None = None
    for one in reversed(spine):
        if len(one.children) > 1:
            if one.leaves or len(one.children) > 2:
                return Declined(DeclineReason.TREE_UNREADABLE, "one node joins more than two sums, or sums and single products")
            parts = [loops_of(child, representatives) for child in one.children]
            for part in parts:
                if isinstance(part, Declined):
                    return part
            tree = Joint(tuple(p for p in parts if not isinstance(p, Declined)))
            continue
        run = run_of(tuple(int(representatives[leaf]) for leaf in one.leaves))
        tree = Loop(tree.before, join_runs(tree.runs, (run,))) if isinstance(tree, Loop) else Loop(tree, (run,))
    assert tree is not None
    return tree
