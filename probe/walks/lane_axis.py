"""One lane as an axis of its own: positions along it in place of indices of K, so that a lane is walked like any sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.walks.reader import Reader

_PREFIX = 72  # positions of a lane read one by one: chains of up to 64 that close, and longer ones are found by galloping


@dataclass(frozen=True)
class Lanes:
    """[start, stop) dealt in tiles of `width` to the lanes of a `period`."""

    start: int
    stop: int
    width: int
    period: int

    @property
    def count(self) -> int:
        """Lanes that get a tile."""
        return min(self.period // self.width, -(-(self.stop - self.start) // self.width))

    def first(self, lane: int) -> int:
        """The first index of a lane."""
        return self.start + lane * self.width

    def length(self, lane: int) -> int:
        """How many indices a lane gets."""
        rounds, rest = divmod(self.stop - self.start, self.period)
        return rounds * self.width + max(0, min(self.width, rest - lane * self.width))

    def along(self, lane: int, positions: np.ndarray) -> np.ndarray:
        """Indices of K at positions of a lane."""
        return np.asarray(self.first(lane) + positions // self.width * self.period + positions % self.width)


class LaneReader(Reader):
    """A reader whose axis is one lane. Units stand on the lane only."""

    def __init__(self, inner: Reader, lanes: Lanes, lane: int) -> None:
        self._inner, self._lanes, self._lane = inner, lanes, lane
        self.k = lanes.length(lane)
        self.capacity, self.prefix = inner.capacity, min(inner.prefix, _PREFIX)
        self.pair, self.places, self.summing = inner.pair, inner.places, inner.summing
        self._own = np.zeros(inner.k, bool)
        self._own[lanes.along(lane, np.arange(self.k))] = True

    def survivors(self, pairs: np.ndarray, windows: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """As of a reader, with positions along the lane."""
        along = np.where(pairs < 0, -1, self._lanes.along(self._lane, pairs))
        lo, hi = windows[:, 0], windows[:, 1]
        first = self._lanes.along(self._lane, lo)
        bounds = np.stack([first, np.where(hi > lo, self._lanes.along(self._lane, hi - 1) + 1, first)], axis=1)
        units = self._own
        if mask is not None:
            units = np.zeros_like(self._own)
            units[self._lanes.along(self._lane, np.nonzero(mask)[0])] = True
        return self._inner.survivors(along, bounds, units)
