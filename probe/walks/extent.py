"""Which part of K is summed at all: units with no pair, counted in windows."""

from __future__ import annotations

import numpy as np

from probe.errors import Declined, DeclineReason
from probe.walks.reader import UNCANCELLED, Reader


def extent_windows(reader: Reader) -> np.ndarray:
    """Windows that cover K, each of no more units than one experiment counts."""
    size = min(reader.capacity, reader.k)
    return np.array([(lo, min(lo + size, reader.k)) for lo in range(0, reader.k, size)], np.int64)


def summed_extent(reader: Reader) -> int | Declined:
    """S when exactly the indices [0, S) are summed; declined when units are missing elsewhere."""
    k = reader.k
    windows = extent_windows(reader)
    size = min(reader.capacity, k)
    short = _missing(reader, windows)
    if isinstance(short, Declined):
        return short
    lost = [(int(lo), int(hi), int(gone)) for (lo, hi), gone in zip(windows, short, strict=True) if gone]
    if not lost:
        return k
    total = sum(gone for _, _, gone in lost)
    extent = k - total
    # what is missing must be the tail: every window wholly behind the extent empty, the one that holds it short by its tail
    expected = [(int(lo), int(hi), int(hi - max(lo, extent))) for lo, hi in windows if hi > extent]
    if lost != expected or extent < 1:
        return Declined(DeclineReason.TREE_UNREADABLE, f"{total} of {k} indices are not summed, and they are not the last ones")
    edges = np.array([(max(0, extent - size // 2), extent), (extent, min(k, extent + size))], np.int64)
    check = _missing(reader, edges)
    if isinstance(check, Declined):
        return check
    if check[0] != 0 or check[1] != edges[1][1] - edges[1][0]:
        return Declined(DeclineReason.TREE_UNREADABLE, f"{total} of {k} indices are not summed, and they are not the last ones")
    return extent


def _missing(reader: Reader, windows: np.ndarray) -> np.ndarray | Declined:
    left = reader.survivors(np.full((len(windows), 2), -1, np.int64), windows)
    if (left == UNCANCELLED).any():
        return Declined(DeclineReason.TREE_UNREADABLE, "units alone do not add up to a whole number")
    return np.asarray((windows[:, 1] - windows[:, 0]) - left)
