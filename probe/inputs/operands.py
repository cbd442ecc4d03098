"""What every set of operands offers: A by rows and B by columns, as raw bits, made where they are needed."""

from __future__ import annotations

from collections.abc import Hashable
from types import ModuleType
from typing import Any, Protocol

from probe.problem import DType

Array = Any  # numpy.ndarray or cupy.ndarray of raw bits


class Operands(Protocol):
    """A (m x k) and B (k x n) of one GEMM. The same call gives the same bits, on numpy and on cupy.

    `a_key` and `b_key` name the contents: equal keys mean equal operands, so that a device need not write one twice.
    """

    # Properties and not attributes: an attribute of a protocol can be assigned, and a frozen record has none such.
    @property
    def m(self) -> int: ...

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def a_key(self) -> Hashable: ...

    @property
    def b_key(self) -> Hashable: ...

    def a(self, xp: ModuleType, rows: Array | None = None) -> Array:
        """Rows of A, all or the chosen ones: shape (rows, k), raw bits."""
        ...

    def b(self, xp: ModuleType, columns: Array | None = None) -> Array:
        """Columns of B, all or the chosen ones, one a row: shape (columns, k), raw bits."""
        ...
