"""Operands of walks: a +L/-L pair and units along K, one experiment for each row or column of the output.

The pair cancels at the node of the summation tree that joins its two indices; a unit that reaches that node, or comes to
either leg before it, is lost beside L, any other unit survives to the output (DESIGN fact 2).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any

import numpy as np

from probe.errors import UsageError
from probe.formats import bits_dtype
from probe.problem import DType

Array = Any

EXPERIMENT_FIELDS = 4  # plus, minus, first unit, one past the last unit; plus = minus = -1: no pair


class Axis(StrEnum):
    """Which operand carries the experiments: A by rows, B by columns, or both along the diagonal of the output."""

    ROWS = "rows"
    COLUMNS = "columns"
    DIAGONAL = "diagonal"


@dataclass(frozen=True)
class Pair:
    """The two magnitudes of a walk as raw bits of one dtype.

    `large` stands on the carrying operand and `large_other` faces it; `unit` and `unit_other` likewise. `unit_value` is
    the product of a unit, `most_units` how many units may reach a leg of the pair and still be lost with it.
    """

    dtype: DType
    large: int
    large_other: int
    unit: int
    unit_other: int
    unit_value: float
    most_units: int

    @property
    def both(self) -> bool:
        """True when both operands must carry the pair, so that only the diagonal of the output can be read."""
        return self.large_other != self.unit_other


# Measured on an H200 (DESIGN facts 2 and 5): an instruction cuts F bits below L, so u times the number of units before L must
# stay below L * 2**-F: 2**15 * 2**-25 / 2**-24 = 2**14 units for fp16. bf16 has room to spare. e4m3 spans 2**17 only, so both operands
# carry it; L is 2**15, not 2**16, so that a partial sum written as fp16 does not overflow. Where parts are merged in fp32, to nearest,
# units must also stay below a quarter of an ulp of L (they may come to -L, and the spacing halves below a power of two): 2**-10 / 2**-18 =
# 256 for e4m3, a limit that DESIGN fact 2 did not have; seen on the simulated split, where 500 units pulled -L off its value.
_PAIRS = {
    DType.FP16: Pair(DType.FP16, 0x7800, 0x3C00, 0x0001, 0x3C00, 2.0**-24, 2**14 - 1),
    DType.BF16: Pair(DType.BF16, (127 + 60) << 7, 0x3F80, (127 - 60) << 7, 0x3F80, 2.0**-60, 2**24 - 1),
    DType.E4M3: Pair(DType.E4M3, 0x78, 0x70, 0x01, 0x01, 2.0**-18, 2**8 - 1),
}


def pair_for(dtype: DType) -> Pair:
    """The wide pair that reads every index. Raises UsageError for a dtype without one."""
    if dtype not in _PAIRS:
        raise UsageError(f"no walk is known for {dtype} inputs", "fp16, bf16 or e4m3")
    return _PAIRS[dtype]


def paper_pair() -> Pair:
    """The paper's own fp16 pair, L = 2**10 and r = 2**-15 (section 4): too narrow inside a group of sm_90, kept to show it."""
    return Pair(DType.FP16, 0x6400, 0x3C00, 0x0200, 0x3C00, 2.0**-15, 1)


@dataclass(frozen=True)
class ProbeOperands:
    """Experiments packed into one launch. experiments: int64 (count, 4); experiment e sits in row `places[e]` of A (axis rows),
    column `places[e]` of B (columns), or both `places[e]` and `facing[e]` (diagonal). `mask`: bool (k,) or None: where units may stand."""

    m: int
    n: int
    k: int
    pair: Pair
    axis: Axis
    experiments: np.ndarray
    places: np.ndarray
    facing: np.ndarray
    mask: np.ndarray | None = None

    def __post_init__(self) -> None:
        e = self.experiments
        if e.ndim != 2 or e.shape[1] != EXPERIMENT_FIELDS or len(self.places) != len(e) or len(self.facing) != len(e):
            raise UsageError(f"experiments have {EXPERIMENT_FIELDS} fields and one place each")
        if len(e) and (e.min() < -1 or e[:, :2].max() >= self.k or e[:, 2:].max() > self.k):
            raise UsageError("an experiment points outside K")
        if self.pair.both != (self.axis is Axis.DIAGONAL):
            raise UsageError(f"the {self.pair.dtype} pair does not go along {self.axis}")

    @property
    def dtype(self) -> DType:
        return self.pair.dtype

    @property
    def a_key(self) -> Hashable:
        return self._key(self.axis is not Axis.COLUMNS)

    @property
    def b_key(self) -> Hashable:
        return self._key(self.axis is not Axis.ROWS)

    def _key(self, carrying: bool) -> Hashable:
        return object() if carrying else ("units", self.pair.unit_other)

    def a(self, xp: ModuleType, rows: Array | None = None) -> Array:
        if self.axis is Axis.COLUMNS:
            return self._constant(xp, self.m if rows is None else len(rows))
        return self._carry(xp, self.m, self.places, rows, self.pair.unit, self.pair.large, signed=True)

    def b(self, xp: ModuleType, columns: Array | None = None) -> Array:
        if self.axis is Axis.ROWS:
            return self._constant(xp, self.n if columns is None else len(columns))
        if self.axis is Axis.COLUMNS:
            return self._carry(xp, self.n, self.places, columns, self.pair.unit, self.pair.large, signed=True)
        return self._carry(xp, self.n, self.facing, columns, self.pair.unit_other, self.pair.large_other, signed=False)

    def _constant(self, xp: ModuleType, count: int) -> Array:
        return xp.full((count, self.k), self.pair.unit_other, dtype=bits_dtype(self.dtype))

    def _carry(self, xp: ModuleType, extent: int, places: np.ndarray, chosen: Array | None, unit: int, large: int, signed: bool) -> Array:
        kind = bits_dtype(self.dtype)
        table = np.full((extent, EXPERIMENT_FIELDS), -1, dtype=np.int64)
        table[:, 2:] = 0
        table[places] = self.experiments
        if chosen is not None:
            table = table[np.asarray(chosen if isinstance(chosen, np.ndarray) else chosen.get())]
        if xp is np:
            return self._filled(table, unit, large, signed)
        where = xp.asarray(table)
        ks = xp.arange(self.k, dtype=xp.int64)[None, :]
        units = (ks >= where[:, 2:3]) & (ks < where[:, 3:4])
        if self.mask is not None:
            units &= xp.asarray(self.mask)[None, :]
        out = units.astype(kind)
        out *= kind.type(unit)
        sign = 1 << (kind.itemsize * 8 - 1)
        rows = np.nonzero(table[:, 0] >= 0)[0]
        if len(rows):
            at = xp.asarray(rows)
            out[at, where[at, 0]] = kind.type(large)
            out[at, where[at, 1]] = kind.type(large | (sign if signed else 0))
        return out

    def _filled(self, table: np.ndarray, unit: int, large: int, signed: bool) -> np.ndarray:
        """The same bits on the host, each window filled by itself: what is zero is never touched, which at K = 4,000,000 is nearly all."""
        kind = bits_dtype(self.dtype)
        out = np.zeros((len(table), self.k), kind)
        units = None if self.mask is None else self.mask.astype(kind) * kind.type(unit)
        for line, (plus, minus, lo, hi) in zip(out, table.tolist(), strict=True):
            line[lo:max(lo, hi)] = kind.type(unit) if units is None else units[lo:max(lo, hi)]
            if plus >= 0:
                line[plus] = kind.type(large)
                line[minus] = kind.type(large | (1 << (kind.itemsize * 8 - 1) if signed else 0))
        return out
