"""Lanes at even distance, chained side by side along the axis on which they lie, with no operand copied."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from probe.schedule.terms import Run
from probe.tensorcore import canonical_nan

Array = np.ndarray[Any, np.dtype[Any]]
_FEWEST = 16  # lanes: numpy is fast along the last axis, so that fewer go better as they stand


def even_lanes(a: Array, b: Array, run: Run, shifts: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Array, Array] | None:
    """a (steps, slice, ..., M, lanes) and b (steps, slice, ..., N, lanes) as views of the operands a (..., M, K) and b (..., K, N); None
    where the lanes are few or at uneven distance."""
    distances = np.diff(shifts)
    if len(shifts) < _FEWEST or run.pattern[-1] != run.width - 1 or distances[0] <= 0 or (distances != distances[0]).any():
        return None
    first, distance = run.first + int(shifts[0]), int(distances[0])
    assert first >= 0 and run.stop + int(shifts[-1]) <= a.shape[-1]
    out = []
    for lines in (a, b.swapaxes(-1, -2)):
        start = lines[..., first:]
        step = lines.strides[-1]
        out.append(as_strided(start, (run.count, run.width, *lines.shape[:-1], len(shifts)),
                              (run.advance * step, step, *lines.strides[:-1], distance * step), writeable=False))
    return out[0], out[1]


def lane_chain(acc: Array, columns: Array, rows: Array) -> Array:
    """Products that float32 holds exactly, chained step by step onto acc (lanes, ..., M, N): fused or not, each addition rounds once."""
    total = np.ascontiguousarray(np.moveaxis(acc, 0, -1))
    product = np.empty_like(total)
    with np.errstate(over="ignore", invalid="ignore"):
        for some, facing in zip(columns, rows, strict=True):
            for column, row in zip(some, facing, strict=True):
                np.multiply(column[..., :, None, :], row[..., None, :, :], out=product)
                total += product
    return np.asarray(canonical_nan(np, np.ascontiguousarray(np.moveaxis(total, -1, 0))))
