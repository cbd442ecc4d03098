"""Bytes against bytes: identical, or the first element that differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.errors import UsageError
from probe.formats import decode
from probe.problem import DType


@dataclass(frozen=True)
class Difference:
    """The first element that differs: row, column, raw bits and values of both sides ("library" and "model")."""

    row: int
    column: int
    library_bits: int
    model_bits: int
    library_value: float
    model_value: float

    def __str__(self) -> str:
        return (f"element ({self.row}, {self.column}): library {self.library_value!r} (0x{self.library_bits:x}), "
                f"model {self.model_value!r} (0x{self.model_bits:x})")


@dataclass(frozen=True)
class Comparison:
    """elements compared, how many differ, and the first that does."""

    elements: int
    differing: int
    first: Difference | None

    @property
    def identical(self) -> bool:
        return self.differing == 0


def compare(library: np.ndarray[Any, Any], model: np.ndarray[Any, Any], dtype: DType,
            where: np.ndarray[Any, Any] | None = None) -> Comparison:
    """Compare two outputs of shape (m, n), raw bits of `dtype`; only where the bool (m, n) array `where` is True, if it is given.

    Raises UsageError where shape or type differ.
    """
    if library.shape != model.shape or library.dtype != model.dtype or library.ndim != 2:
        raise UsageError(f"cannot compare {library.dtype}{library.shape} with {model.dtype}{model.shape}")
    wrong = library != model
    elements = library.size
    if where is not None:
        wrong &= where
        elements = int(np.count_nonzero(where))
    count = int(np.count_nonzero(wrong))
    if not count:
        return Comparison(elements, 0, None)
    row, column = (int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
    one, other = library[row:row + 1, column], model[row:row + 1, column]
    return Comparison(elements, count, Difference(
        row, column, int(one[0]), int(other[0]), float(decode(one, dtype)[0]), float(decode(other, dtype)[0])))
