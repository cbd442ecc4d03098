"""Packs experiments into launches and turns output bytes into counts of surviving units.

Every limit of the counting walk (DESIGN fact 2) is kept here: windows are cut so that no more units stand in one experiment than the
output counts exactly and than may precede L.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from probe.errors import UsageError
from probe.formats import decode
from probe.inputs.operands import Operands
from probe.inputs.probes import Axis, Pair, ProbeOperands
from probe.problem import DType
from probe.summing import Cells, Summing

UNCANCELLED = -1  # the pair did not cancel: one of its legs is not summed
# Integers that each output dtype counts without a gap, measured on H200 (DESIGN fact 2); the e4m3 accumulator has 13 fraction bits.
_EXACT = {DType.FP32: 2**24, DType.FP16: 2**11, DType.BF16: 2**8}
_LAUNCHES_AT_ONCE = 256
# Indices at the start of K that are read one by one: more than a turn of any loop seen (128), and their window fits every output's exact
# count. An output of one element reads one in a launch, and so reads fewer.
_PREFIX, _LONE_PREFIX = 252, 136


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
        self.prefix = _PREFIX if self.width > 1 else _LONE_PREFIX
        self.launches = 0
        self.experiments = 0
        self._ahead: dict[tuple[int, ...], float] = {}

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
        owners, cut = self._cut_all(windows, mask)
        table = np.concatenate([pairs[owners], cut], axis=1).astype(np.int64)
        counts = (self.raw(table, mask) if mask is not None or not self._ahead else self._known(table)) / self.pair.unit_value
        whole = np.isfinite(counts) & (counts == np.rint(counts)) & (counts >= 0) & (counts <= self.capacity)
        out = np.zeros(len(pairs), np.int64)
        np.add.at(out, owners, np.where(whole, counts, 0).astype(np.int64))
        out[owners[~whole]] = UNCANCELLED
        return out

    def read_ahead(self, pairs: np.ndarray, windows: np.ndarray) -> None:
        """Read experiments that are certain to be asked soon, so that stages which would each leave a launch half empty share them."""
        owners, cut = self._cut_all(windows, None)
        table = np.concatenate([pairs[owners], cut], axis=1).astype(np.int64)
        self._ahead |= dict(zip(map(tuple, table.tolist()), self.raw(table).tolist(), strict=True))

    def _known(self, table: np.ndarray) -> np.ndarray:
        """Values of experiments, from those read ahead where they are among them."""
        keys = list(map(tuple, table.tolist()))
        missing = np.array([k not in self._ahead for k in keys], bool)
        out = np.array([self._ahead.get(k, 0.0) for k in keys], np.float64)
        if missing.any():
            out[missing] = self.raw(table[missing])
        return out

    def lost(self, pairs: np.ndarray, windows: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """How many indices of each window lie under the node that joins the pair, the legs themselves left out; UNCANCELLED as above."""
        left = self.survivors(pairs, windows, mask)
        return np.where(left == UNCANCELLED, UNCANCELLED, self._units(pairs, windows, mask) - left)

    @staticmethod
    def _units(pairs: np.ndarray, windows: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Units that stand in each window once the pair has taken its places."""
        lo, hi = windows[:, :1], windows[:, 1:]
        taken = (pairs >= lo) & (pairs < hi)
        if mask is None:
            return np.asarray(hi[:, 0] - lo[:, 0] - taken.sum(axis=1))
        before = np.concatenate([[0], np.cumsum(mask)])
        return np.asarray(before[hi[:, 0]] - before[lo[:, 0]] - (taken & mask[np.maximum(pairs, 0)]).sum(axis=1))

    def _cut_all(self, windows: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Every window in pieces that hold no more units than one experiment may, and which window each piece is of."""
        if mask is None and len(windows) and int((windows[:, 1] - windows[:, 0]).max()) <= self.capacity:
            return np.arange(len(windows)), windows
        known: dict[tuple[int, int], list[tuple[int, int]]] = {}
        owners: list[int] = []
        pieces: list[tuple[int, int]] = []
        for index, (lo, hi) in enumerate(windows.tolist()):
            cut = known.setdefault((lo, hi), []) or self._cut(lo, hi, mask)
            known[(lo, hi)] = cut
            owners.extend([index] * len(cut))
            pieces.extend(cut)
        return np.asarray(owners, np.int64), np.asarray(pieces, np.int64).reshape(-1, 2)

    def _cut(self, lo: int, hi: int, mask: np.ndarray | None) -> list[tuple[int, int]]:
        if mask is None:
            return [(a, min(a + self.capacity, hi)) for a in range(lo, hi, self.capacity)] or [(lo, hi)]
        spots = lo + np.nonzero(mask[lo:hi])[0]
        if len(spots) <= self.capacity:
            return [(lo, hi)]
        edges = [lo, *(int(s) for s in spots[self.capacity::self.capacity]), hi]
        return list(pairwise(edges))
