"""Does a recovered tree predict readings that were not used to find it?"""

from __future__ import annotations

import numpy as np

from probe.schedule import Mma, Term, inside, joined, leaf_count, prefix_terms
from probe.walks.reader import UNCANCELLED, Reader

_NEAR = 40  # half the pairs lie this close together, where steps are; the other half anywhere


def random_check(reader: Reader, term: Term, extent: int, rng: np.random.Generator, count: int) -> bool:
    """Random pairs in random order of sign, each with a random window: True when every reading is the one the tree predicts."""
    if extent < 2:
        return True
    i = rng.integers(0, extent, count)
    reach = np.where(np.arange(count) % 2 == 0, _NEAR, extent)
    j = (i + 1 + rng.integers(0, np.minimum(reach, extent - 1), count)) % extent
    keep = i != j
    pairs = np.stack([i, j], axis=1)[keep]
    size = min(reader.capacity, extent)
    lo = rng.integers(0, extent - size + 1, len(pairs))
    if _lone_last(term, extent):
        pairs[-1], lo[-1] = (extent - 2, extent - 1), extent - size
    windows = np.stack([lo, lo + size], axis=1)
    return bool((reader.lost(pairs, windows) == predicted(term, pairs, windows)).all())


def _lone_last(term: Term, extent: int) -> bool:
    """True where the last index alone is a second step in a sum of loops of one step each: whether it is that, or one more addend, shows in
    no reading but that of the last pair."""
    node = joined(term, extent - 2, extent - 1)
    if not isinstance(node, Mma) or leaf_count(node) == extent or not node.runs[-1].width == node.runs[-1].count == 1:
        return False
    return sum(isinstance(t, Mma) and sum(run.count for run in t.runs) > 1 for t in prefix_terms(term)) == 1


def every_index(reader: Reader, term: Term, extent: int) -> bool:
    """The exhaustive check: every neighbouring pair and every pair (0, j), over all units."""
    if extent < 2:
        return True
    ms = np.arange(extent - 1, dtype=np.int64)
    pairs = np.concatenate([np.stack([ms, ms + 1], axis=1), np.stack([np.zeros_like(ms), ms + 1], axis=1)])
    windows = np.tile(np.array([[0, extent]], np.int64), (len(pairs), 1))
    return bool((reader.lost(pairs, windows) == predicted(term, pairs, windows)).all())


def predicted(term: Term, pairs: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """What `Reader.lost` must return for pairs of summed indices if the tree of `term` is the library's."""
    out = np.empty(len(pairs), np.int64)
    for index, ((i, j), (lo, hi)) in enumerate(zip(pairs.tolist(), windows.tolist(), strict=True)):
        node = joined(term, i, j)
        out[index] = inside(node, lo, hi) - (lo <= i < hi) - (lo <= j < hi)
    assert not (out == UNCANCELLED).any()
    return out
