"""Draws: operands of whole products, cut from blocks of seeded rows and columns, for comparing bytes.

A draw has at most as many different rows of A and columns of B as its block, repeated over the output, so that a simulator computes each
different dot product once and a comparison still looks at every element. Where the output is smaller than the block, several draws are
windows of one block: every row meets every column in one of them, and few numbers are drawn for many dot products.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from probe.inputs.blocks import Block, DrawKind
from probe.parallel import side_by_side
from probe.problem import DType

__all__ = ["LARGE", "Block", "Draw", "DrawKind", "make", "windows"]

Array = Any
DISTINCT = 64
LARGE = 2**22  # numbers of a block from which threads pay: below, they wait for each other longer than they work (16 cores, H200 host)


@dataclass(frozen=True)
class Draw:
    """One pair of operands, A (m x k) and B (k x n): row i of A is row first_row + i of the block, counted in a circle, B likewise."""

    m: int
    n: int
    block: Block
    first_row: int = 0
    first_column: int = 0

    @classmethod
    def of(cls, m: int, n: int, k: int, dtype: DType, kind: DrawKind, seed: int, index: int, extent: int = 0,
           distinct: int = DISTINCT) -> Draw:
        """A draw with a block of its own, of at most `distinct` rows and columns."""
        return cls(m, n, Block(min(m, distinct), min(n, distinct), k, dtype, kind, seed, index, extent))

    @property
    def k(self) -> int:
        return self.block.k

    @property
    def dtype(self) -> DType:
        return self.block.dtype

    @property
    def kind(self) -> DrawKind:
        return self.block.kind

    @property
    def rows(self) -> np.ndarray:
        """Which row of the block each different row of A is."""
        return (self.first_row + np.arange(min(self.m, self.block.rows))) % self.block.rows

    @property
    def columns(self) -> np.ndarray:
        """Which column of the block each different column of B is."""
        return (self.first_column + np.arange(min(self.n, self.block.columns))) % self.block.columns

    @property
    def elements(self) -> int:
        """Different dot products in the output."""
        return min(self.m, self.block.rows) * min(self.n, self.block.columns)

    @property
    def name(self) -> str:
        """The kind, the index and, in a block of several draws, the window: "flat draw 3", "flat draw 3 at (8, 16)"."""
        window = "" if self.m >= self.block.rows and self.n >= self.block.columns else f" at ({self.first_row}, {self.first_column})"
        return f"{self.block.kind} draw {self.block.index}{window}"

    @property
    def a_key(self) -> Hashable:
        return ("draw a", self.m, self.block, self.first_row)

    @property
    def b_key(self) -> Hashable:
        return ("draw b", self.n, self.block, self.first_column)

    def a(self, xp: ModuleType, rows: Array | None = None) -> Array:
        return _spread_out(xp, self.block.different_rows[self.rows], self.m, rows)

    def b(self, xp: ModuleType, columns: Array | None = None) -> Array:
        return _spread_out(xp, self.block.different_columns[self.columns], self.n, columns)

    def whole(self, different: np.ndarray) -> np.ndarray:
        """The output (m, n) whose different elements (rows, columns) are given."""
        if different.shape == (self.m, self.n):
            return different
        times = -(-self.m // different.shape[0]), -(-self.n // different.shape[1])
        return np.tile(different, times)[:self.m, :self.n]


def _spread_out(xp: ModuleType, different: np.ndarray, extent: int, chosen: Array | None) -> Array:
    if chosen is None and extent == len(different):
        return xp.asarray(different)
    index = np.arange(extent) if chosen is None else np.asarray(chosen if isinstance(chosen, np.ndarray) else chosen.get())
    return xp.asarray(different)[xp.asarray(index % len(different))]


def windows(m: int, n: int, block: Block) -> list[Draw]:
    """Draws of an (m, n) output in which every row of the block meets every column; a row of A stays while the columns go by."""
    return [Draw(m, n, block, i, j) for i in range(0, block.rows, m) for j in range(0, block.columns, n)]


def make(draws: Sequence[Draw]) -> None:
    """Make the rows and columns of all blocks now, large ones side by side; they are kept with each block."""
    blocks = list(dict.fromkeys(draw.block for draw in draws))
    side_by_side(lambda block: (block.different_rows, block.different_columns), blocks,
                 any(block.values >= LARGE for block in blocks))
