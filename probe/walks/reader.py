"""Packs experiments into launches and turns output bytes into counts of surviving units.

Every limit of the counting walk (DESIGN fact 2) is kept here: windows are cut so that no more units stand in one experiment than the
output counts exactly and than may precede L.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.errors import UsageError
from probe.formats import decode
from probe.inputs.operands import Operands
from probe.inputs.probes import EXPERIMENT_FIELDS, Axis, Pair, ProbeOperands
from probe.problem import DType
from probe.summing import Cells, Summing

UNCANCELLED = -1  # the pair did not cancel: one of its legs is not summed
# Integers that each output dtype counts without a gap, measured on H200 (DESIGN fact 2); the e4m3 accumulator has 13 fraction bits.
_EXACT = {DType.FP32: 2**24, DType.FP16: 2**11, DType.BF16: 2**8}
_LAUNCHES_AT_ONCE = 256


@dataclass(frozen=True)
class Places:
    """Where experiments are read: one output element for each, along one axis."""

    axis: Axis
    rows: np.ndarray
    columns: np.ndarray


def places_for(labels: np.ndarray | None, m: int, n: int, both: bool) -> Places:
    """One element for each row or column (whichever is more) of the elements where labels is True; all when it is None."""
    if both:
        size = min(m, n)
        index = np.arange(size)
        if labels is not None:
            index = index[labels[index, index]]
        return Places(Axis.DIAGONAL, index, index)
    if m >= n:
        rows = np.arange(m) if labels is None else np.nonzero(labels.any(axis=1))[0]
        columns = np.zeros(m, int) if labels is None else labels[rows].argmax(axis=1)
        return Places(Axis.ROWS, rows, columns)
    columns = np.arange(n) if labels is None else np.nonzero(labels.any(axis=0))[0]
    rows = np.zeros(n, int) if labels is None else labels[:, columns].argmax(axis=0)
    return Places(Axis.COLUMNS, rows, columns)


class Reader:
    """Reads experiments from a summing. Counters: `launches` (products run) and `experiments` (output elements read)."""

    def __init__(self, summing: Summing, pair: Pair, places: Places) -> None:
        if not len(places.rows):
            raise UsageError("there is no output element to read experiments from")
        self.summing, self.pair, self.places = summing, pair, places
        self.k = summing.k
        self.capacity = min(pair.most_units, _EXACT[summing.output_dtype])
        self.launches = 0
        self.experiments = 0

    @property
    def width(self) -> int:
        """Experiments that one launch reads."""
        return len(self.places.rows)

    def raw(self, experiments: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Output values as float64, one an experiment, in as few launches as the output allows."""
        out = np.empty(len(experiments), np.float64)
        width, places = self.width, self.places
        batch: list[tuple[Operands, Cells | None]] = []
        for start in range(0, len(experiments), width):
            chunk = experiments[start:start + width]
            rows, columns = places.rows[:len(chunk)], places.columns[:len(chunk)]
            own, facing = (columns, rows) if places.axis is Axis.COLUMNS else (rows, columns)
            batch.append((ProbeOperands(self.summing.m, self.summing.n, self.k, self.pair, places.axis, chunk, own, facing, mask),
                          Cells(rows, columns)))
        done = 0
        for start in range(0, len(batch), _LAUNCHES_AT_ONCE):
            for bits in self.summing.outputs(batch[start:start + _LAUNCHES_AT_ONCE]):
                out[done:done + len(bits)] = decode(bits, self.summing.output_dtype)
                done += len(bits)
        self.launches += len(batch)
        self.experiments += len(experiments)
        return out

    def survivors(self, pairs: np.ndarray, windows: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """How many units of each window survive each pair; UNCANCELLED where the pair itself came through.

        pairs: int64 (count, 2), the indices of +L and -L, or -1, -1 for none. windows: int64 (count, 2), units stand in
        [first, last) except under the pair, and only where mask (bool, (k,)) allows.
        """
        tables, owners = [], []
        for index, (lo, hi) in enumerate(windows):
            for a, b in self._cut(int(lo), int(hi), mask):
                tables.append((pairs[index][0], pairs[index][1], a, b))
                owners.append(index)
        table = np.asarray(tables, np.int64).reshape(-1, EXPERIMENT_FIELDS)
        counts = self.raw(table, mask) / self.pair.unit_value
        whole = np.isfinite(counts) & (counts == np.rint(counts)) & (counts >= 0) & (counts <= self.capacity)
        out = np.zeros(len(pairs), np.int64)
        np.add.at(out, owners, np.where(whole, counts, 0).astype(np.int64))
        out[np.asarray(owners)[~whole]] = UNCANCELLED
        return out

    def lost(self, pairs: np.ndarray, windows: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """How many indices of each window lie under the node that joins the pair, the legs themselves left out; UNCANCELLED as above."""
        left = self.survivors(pairs, windows, mask)
        stand = np.array([self.units(p, w, mask) for p, w in zip(pairs, windows, strict=True)], np.int64)
        return np.where(left == UNCANCELLED, UNCANCELLED, stand - left)

    @staticmethod
    def units(pair: np.ndarray, window: np.ndarray, mask: np.ndarray | None) -> int:
        """Units that stand in a window once the pair has taken its places."""
        lo, hi = int(window[0]), int(window[1])
        taken = [int(p) for p in pair if lo <= p < hi and (mask is None or mask[p])]
        return (hi - lo if mask is None else int(mask[lo:hi].sum())) - len(taken)

    def _cut(self, lo: int, hi: int, mask: np.ndarray | None) -> list[tuple[int, int]]:
        if mask is None:
            return [(a, min(a + self.capacity, hi)) for a in range(lo, hi, self.capacity)] or [(lo, hi)]
        spots = lo + np.nonzero(mask[lo:hi])[0]
        if len(spots) <= self.capacity:
            return [(lo, hi)]
        edges = [lo, *(int(s) for s in spots[self.capacity::self.capacity]), hi]
        return list(zip(edges[:-1], edges[1:], strict=True))
