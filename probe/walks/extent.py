"""Which part of K is summed at all: units with no pair, counted in windows."""

from __future__ import annotations

import numpy as np

from probe.errors import Declined, DeclineReason
from probe.walks.reader import UNCANCELLED, Reader

_MOST_LAUNCHES = 128  # to count all of K
_SAMPLED = 64  # windows where that is too many
_GOLDEN = (5**0.5 - 1) / 2


def extent_windows(reader: Reader) -> np.ndarray:
    """Windows that cover K, each of no more units than one experiment counts. Where that takes too many launches (a bf16 output counts to
    256), windows at the ends of K and at places between, spread by the golden ratio so that no period of K meets them."""
    size = min(reader.capacity, reader.k)
    if -(-reader.k // size) <= _MOST_LAUNCHES * reader.width:
        return np.array([(lo, min(lo + size, reader.k)) for lo in range(0, reader.k, size)], np.int64)
    room = reader.k - size
    starts = sorted({0, room, *(int(i * _GOLDEN % 1 * room) for i in range(1, _SAMPLED - 1))})
    return np.array([(lo, lo + size) for lo in starts], np.int64)


def summed_extent(reader: Reader) -> int | Declined:
    """S when exactly the indices [0, S) are summed; declined when units are missing elsewhere. Where windows are sampled, S is the end of
    the indices that cancel a pair with the first one, and the windows must agree; the draws of the proof, which give each index a number
    of its own, stand for the rest."""
    k = reader.k
    windows = extent_windows(reader)
    covered = int((windows[:, 1] - windows[:, 0]).sum()) == k
    short = _missing(reader, windows)
    if isinstance(short, Declined):
        return short
    extent = k - int(short.sum()) if covered else _last_summed(reader) + 1
    total = k - extent
    # what is missing must be the tail: every window wholly behind the extent empty, the one that holds it short by its tail
    ends = np.maximum(windows[:, 0], np.minimum(windows[:, 1], extent))
    missing = total or int(short.sum())
    holes = Declined(DeclineReason.TREE_UNREADABLE, f"{missing} of {k} indices are not summed, and they are not the last ones")
    if extent < 1 or (short != windows[:, 1] - ends).any():
        return holes
    if extent == k:
        return k
    size = min(reader.capacity, k)
    edges = np.array([(max(0, extent - size // 2), extent), (extent, min(k, extent + size))], np.int64)
    check = _missing(reader, edges)
    if isinstance(check, Declined):
        return check
    if check[0] != 0 or check[1] != edges[1][1] - edges[1][0]:
        return holes
    return extent


def _last_summed(reader: Reader) -> int:
    """The last index that cancels a pair with index 0, if those that do are the first ones; 0 where the next one does not."""
    low, high = 0, reader.k
    ahead = np.array([reader.k - 1], np.int64)  # all of K, most often
    while high - low > 1:
        pairs = np.stack([np.zeros_like(ahead), ahead], axis=1)
        good = reader.survivors(pairs, np.zeros_like(pairs)) != UNCANCELLED
        low = max(low, int(ahead[good].max(initial=0)))
        high = min(high, int(ahead[~good].min(initial=reader.k)))
        if high <= low:
            break  # not the first ones: the windows will tell
        ahead = np.unique(np.linspace(low, high, reader.width + 2).astype(np.int64)[1:-1])
        ahead = ahead[(ahead > low) & (ahead < high)]
    return low


def _missing(reader: Reader, windows: np.ndarray) -> np.ndarray | Declined:
    left = reader.survivors(np.full((len(windows), 2), -1, np.int64), windows)
    if (left == UNCANCELLED).any():
        return Declined(DeclineReason.TREE_UNREADABLE, "units alone do not add up to a whole number")
    return np.asarray((windows[:, 1] - windows[:, 0]) - left)
