"""The one thing that walks and proofs may see: a function from operands to output bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from probe.inputs.operands import Operands
from probe.problem import DType


@dataclass(frozen=True)
class Cells:
    """Chosen elements of the output: element i is (rows[i], columns[i])."""

    rows: np.ndarray
    columns: np.ndarray


class Summing(Protocol):
    """A device with a library, or a simulator, that multiplies. `launches` counts the products it has run."""

    m: int
    n: int
    k: int
    input_dtype: DType
    output_dtype: DType
    launches: int

    def outputs(self, batch: Sequence[tuple[Operands, Cells | None]]) -> list[np.ndarray]:
        """Run one product for each entry; the raw bits of the chosen cells, or of all (m, n) where cells is None."""
        ...
