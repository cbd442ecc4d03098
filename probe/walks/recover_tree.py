"""One walk from start to end: extent, adaptive tree, checks, and the general walk where the adaptive one does not fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.errors import Declined, DeclineReason
from probe.walks.check import every_index, random_check
from probe.walks.contiguous import contiguous_tree, prefix_experiments
from probe.walks.extent import extent_windows, summed_extent
from probe.walks.general import loops_of, tree_over
from probe.walks.lanes import lane_tree, looks_dealt
from probe.walks.reader import Reader
from probe.walks.tree import SumTree, shape_term

CHECKS = 96
GENERAL_LIMIT = 4096  # indices: the general walk asks each of them at least once, and up to 16 times inside an instruction


@dataclass(frozen=True)
class WalkResult:
    """The tree, how far K is summed, how it was found ("adaptive", "lanes", "general"), what it cost."""

    tree: SumTree
    extent: int
    instrument: str
    launches: int
    experiments: int


def recover_tree(reader: Reader, seed: int, exhaustive: bool = False) -> WalkResult | Declined:
    """Read the summation tree of one output element. Deterministic for a seed."""
    rng = np.random.Generator(np.random.Philox(seed))
    pairs, windows = prefix_experiments(reader, reader.k)
    whole = extent_windows(reader)
    reader.read_ahead(np.concatenate([np.full((len(whole), 2), -1, np.int64), pairs]), np.concatenate([whole, windows]))
    extent = summed_extent(reader)
    if isinstance(extent, Declined):
        return extent
    walks = [("adaptive", contiguous_tree), ("lanes", lane_tree)]
    for name, walk in walks[::-1] if looks_dealt(reader, extent) else walks:
        tree = walk(reader, extent, rng)
        if tree is not None and _confirmed(reader, tree, extent, rng, exhaustive):
            return WalkResult(tree, extent, name, reader.launches, reader.experiments)
    if extent > GENERAL_LIMIT:
        return Declined(DeclineReason.TREE_UNREADABLE,
                        f"the sum is not made of regular intervals or lanes, and {extent} indices are too many for the general walk",
                        f"K up to {GENERAL_LIMIT}")
    everything = np.arange(extent, dtype=np.int64)
    node = tree_over(reader, everything)
    if isinstance(node, Declined):
        return node
    general = loops_of(node, everything)
    if isinstance(general, Declined):
        return general
    if not _confirmed(reader, general, extent, rng, exhaustive):
        return Declined(DeclineReason.TREE_UNREADABLE, "the tree that was found does not predict further readings")
    return WalkResult(general, extent, "general", reader.launches, reader.experiments)


def _confirmed(reader: Reader, tree: SumTree, extent: int, rng: np.random.Generator, exhaustive: bool) -> bool:
    term = shape_term(tree)
    if not random_check(reader, term, extent, rng, CHECKS):
        return False
    return not exhaustive or every_index(reader, term, extent)
