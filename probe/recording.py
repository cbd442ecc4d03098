"""Readings taken on a device, kept so that recovery runs on them again anywhere: a summing that records, and one that replays.

A recording holds single experiments and single draws, each under what was asked, so that a replay may pack or order them in its own way; it
answers nothing that was not recorded. Outputs of a draw repeat its different dot products, so only those are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.errors import UsageError
from probe.formats import bits_dtype
from probe.inputs.draws import Draw
from probe.inputs.operands import Operands
from probe.inputs.probes import ProbeOperands
from probe.problem import DType
from probe.summing import Cells, Summing

RECORDING_VERSION = 2
_AGAIN = "record the readings again with this version: tools/record_readings.py"


def _mask_key(mask: np.ndarray | None) -> str:
    return "" if mask is None else hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()[:16]


def _draw_key(draw: Draw) -> str:
    block = draw.block
    return (f"{block.kind}:{block.seed}:{block.index}:{block.extent}:{block.rows}x{block.columns}:{draw.first_row},{draw.first_column}")


class Recorder:
    """Passes everything on to a summing and keeps what came back."""

    def __init__(self, inner: Summing) -> None:
        self._inner = inner
        self.m, self.n, self.k = inner.m, inner.n, inner.k
        self.input_dtype, self.output_dtype = inner.input_dtype, inner.output_dtype
        self._probes: dict[tuple[str, int, int, int, int], int] = {}
        self._draws: dict[str, np.ndarray] = {}

    @property
    def launches(self) -> int:
        return self._inner.launches

    def outputs(self, batch: Sequence[tuple[Operands, Cells | None]]) -> list[np.ndarray]:
        outs = self._inner.outputs(batch)
        for (operands, cells), out in zip(batch, outs, strict=True):
            if isinstance(operands, ProbeOperands) and cells is not None:
                key = _mask_key(operands.mask)
                for experiment, bits in zip(operands.experiments.tolist(), out.tolist(), strict=True):
                    self._probes[(key, *experiment)] = bits
            elif isinstance(operands, Draw) and cells is None:
                block = out[:len(operands.rows), :len(operands.columns)]
                self._draws[_draw_key(operands)] = (block if (operands.whole(block) == out).all() else out).copy()
            else:
                raise UsageError(f"a recording holds probes and whole draws, not {type(operands).__name__}")
        return outs

    def save(self, path: Path, about: dict[str, Any]) -> None:
        """Write everything so far, with `about` (target, problem, answer, ... as plain values), as one npz file."""
        masks = sorted({key[0] for key in self._probes})
        probes = np.array([(masks.index(key), *experiment) for key, *experiment in self._probes], np.int32).reshape(-1, 5)
        order = np.lexsort(probes.T[::-1])
        bits = np.array(list(self._probes.values()), bits_dtype(self.output_dtype))
        names = sorted(self._draws)
        meta = {"version": RECORDING_VERSION, "m": self.m, "n": self.n, "k": self.k, "input_dtype": str(self.input_dtype),
                "output_dtype": str(self.output_dtype), "masks": masks, "draws": names,
                "shapes": [list(self._draws[n].shape) for n in names], "about": about}
        flat = np.concatenate([self._draws[n].reshape(-1) for n in names]) if names else np.zeros(0, bits_dtype(self.output_dtype))
        with path.open("wb") as file:
            np.savez_compressed(file, meta=np.array(json.dumps(meta)), probes=probes[order], bits=bits[order], draws=flat)


class Recorded:
    """A summing that answers from a recording. `about` is what was saved beside it. Raises UsageError for what was not recorded."""

    def __init__(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as data:
                meta = json.loads(str(data["meta"]))
                probes, bits, flat = data["probes"], data["bits"], data["draws"]
        except (OSError, KeyError, ValueError) as error:
            raise UsageError(f"{path.name} is no recording: {error}") from error
        if meta.get("version") != RECORDING_VERSION:
            raise UsageError(f"{path.name} is a recording of version {meta.get('version')}", f"version {RECORDING_VERSION}")
        self.m, self.n, self.k = meta["m"], meta["n"], meta["k"]
        self.input_dtype, self.output_dtype = DType(meta["input_dtype"]), DType(meta["output_dtype"])
        self.about: dict[str, Any] = meta["about"]
        self.launches = 0
        keys = [(meta["masks"][mask], *rest) for mask, *rest in probes.tolist()]
        self._probes: dict[tuple[Any, ...], int] = dict(zip(keys, bits.tolist(), strict=True))
        self._draws: dict[str, np.ndarray] = {}
        start = 0
        for name, (rows, columns) in zip(meta["draws"], meta["shapes"], strict=True):
            self._draws[name] = flat[start:start + rows * columns].reshape(rows, columns)
            start += rows * columns

    @property
    def readings(self) -> int:
        """Experiments and draws in the recording."""
        return len(self._probes) + len(self._draws)

    def outputs(self, batch: Sequence[tuple[Operands, Cells | None]]) -> list[np.ndarray]:
        outs = []
        for operands, cells in batch:
            self.launches += 1
            if isinstance(operands, ProbeOperands) and cells is not None:
                key = _mask_key(operands.mask)
                try:
                    found = [self._probes[(key, *e)] for e in operands.experiments.tolist()]
                except KeyError as error:
                    raise UsageError(f"experiment {error.args[0]} was not recorded", _AGAIN) from error
                outs.append(np.array(found, bits_dtype(self.output_dtype)))
            elif isinstance(operands, Draw) and cells is None:
                block = self._draws.get(_draw_key(operands))
                if block is None:
                    raise UsageError(f"draw {_draw_key(operands)} was not recorded", _AGAIN)
                outs.append(operands.whole(block))
            else:
                raise UsageError(f"a recording holds probes and whole draws, not {type(operands).__name__}")
        return outs
