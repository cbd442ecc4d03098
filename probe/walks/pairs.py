"""The +L/-L/r walks of the paper (section 4): one unit r, and a pair that walks past it or that it walks past."""

from __future__ import annotations

import numpy as np

from probe.walks.reader import UNCANCELLED, Reader


def contiguous_walk(reader: Reader, r: int, positions: np.ndarray) -> np.ndarray:
    """r pinned, the pair (m, m + 1) walked over `positions`: True where r survives, so where the pair's node leaves r out."""
    pairs = np.stack([positions, positions + 1], axis=1).astype(np.int64)
    return _survives(reader, pairs, np.full(len(pairs), r))


def strided_walk(reader: Reader, plus: int, minus: int, positions: np.ndarray) -> np.ndarray:
    """The pair pinned, r walked over `positions`: True where r survives, so where it lies outside the pair's node."""
    pairs = np.tile(np.array([[plus, minus]], np.int64), (len(positions), 1))
    return _survives(reader, pairs, positions)


def _survives(reader: Reader, pairs: np.ndarray, units: np.ndarray) -> np.ndarray:
    windows = np.stack([units, units + 1], axis=1).astype(np.int64)
    left = reader.survivors(pairs, windows)
    return np.where(left == UNCANCELLED, False, left == 1)
