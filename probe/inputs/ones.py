"""Operands whose sum is a count: ones against ones, or against zeros up to an index, so that only the end of K is counted."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from probe.errors import UsageError
from probe.formats import bits_dtype, encode_rn
from probe.names import DType
from probe.values import check_int

Array = Any


def one_bits(dtype: DType) -> int:
    """The raw bits of 1.0."""
    return int(encode_rn(np.ones(1, np.float32), dtype)[0])


@dataclass(frozen=True)
class Ones:
    """A (m x k) holds ones from index `first` of K on and zeros before it, B (k x n) holds ones: every output is k - first.

    The outputs are exact as long as neither an accumulator nor the output format rounds a number up to k - first: the caller's business.
    """

    m: int
    n: int
    k: int
    dtype: DType
    first: int = 0

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            check_int(name, getattr(self, name), 1, 2**31 - 1)
        if not 0 <= self.first < self.k:
            raise UsageError(f"first = {self.first} leaves nothing to count in K = {self.k}", f"0 to {self.k - 1}")

    @property
    def a_key(self) -> Hashable:
        return ("ones", self.dtype, self.m, self.k, self.first)

    @property
    def b_key(self) -> Hashable:
        return ("ones", self.dtype, self.n, self.k, 0)

    def a(self, xp: ModuleType, rows: Array | None = None) -> Array:
        """Rows of A, all or the chosen ones: shape (rows, k), raw bits."""
        return self._lines(xp, self.m if rows is None else len(rows), self.first)

    def b(self, xp: ModuleType, columns: Array | None = None) -> Array:
        """Columns of B, all or the chosen ones, one a row: shape (columns, k), raw bits."""
        return self._lines(xp, self.n if columns is None else len(columns), 0)

    def _lines(self, xp: ModuleType, count: int, first: int) -> Array:
        out = xp.full((count, self.k), one_bits(self.dtype), bits_dtype(self.dtype))
        out[:, :first] = 0
        return out
