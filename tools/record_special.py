"""Record what small products give for zeros of both signs, infinities, NaN and numbers that underflow, for tests/data/special.

    python -m tools.record_special OUT.npz [cu12 | cu13 | PATH]

Each case has a number, which seeds its special values; the other draws have seed 77. OUT.npz holds, for each case and draw, the first 12
rows of A, 12 columns of B (one a row) and their outputs, as raw bits, and a JSON index.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from probe.errors import Declined
from probe.formats import encode_rn
from probe.inputs.draws import Draw, DrawKind
from probe.oracle import open_oracle
from probe.preference import Preference
from probe.problem import DType, Layout, Problem

SEED, SIDE = 77, 12
SPECIAL = ("zeros", "negzero", "inf", "nan", "rare", "sub")
KINDS = (DrawKind.FLAT, DrawKind.CANCELLING, DrawKind.EDGE, DrawKind.EXTREMES)
# number, m, n, k, input, output, layout; the last: only the draws of KINDS, for the operands are long
CASES = [(3, 365, 529, 1, "fp16", "fp16", "nn"), (5, 25, 1, 2, "bf16", "bf16", "nn"), (7, 9, 16, 513, "bf16", "bf16", "nn"),
         (10, 5, 793, 539, "bf16", "bf16", "tn"), (333, 8, 8, 1, "bf16", "bf16", "nn"), (410, 5, 6, 16, "bf16", "bf16", "nt"),
         (434, 32, 32, 2, "bf16", "bf16", "nt"), (502, 1, 28, 8, "bf16", "fp32", "nn"), (577, 28, 1, 7, "bf16", "fp32", "nt"),
         (581, 28, 1, 8, "bf16", "fp32", "nt")]


@dataclass(frozen=True)
class Given:
    """Operands as they are."""

    rows: np.ndarray[Any, Any]
    columns: np.ndarray[Any, Any]
    a_key: str
    b_key: str

    def a(self, xp: ModuleType, rows: Any = None) -> Any:
        return xp.asarray(self.rows if rows is None else self.rows[rows])

    def b(self, xp: ModuleType, columns: Any = None) -> Any:
        return xp.asarray(self.columns if columns is None else self.columns[columns])


def special(rng: np.random.Generator, shape: tuple[int, int], dtype: DType, style: str) -> np.ndarray[Any, Any]:
    """Raw bits of one style."""
    if style == "rare":
        values = rng.choice([0.0, -0.0, 1.0, -1.0], shape).astype(np.float64)
        values[rng.random(shape) < 0.08] = np.inf
    elif style == "sub":
        tiny = {DType.FP16: 2.0**-24, DType.BF16: 2.0**-133, DType.E4M3: 2.0**-9}[dtype]
        values = rng.choice([0.0, -0.0, tiny, -tiny, 3 * tiny, 2.0**-20, 1.0, -1.0, 1.5], shape)
    else:
        values = rng.choice({"zeros": [0.0, -0.0, 1.0, -1.0], "inf": [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf],
                             "nan": [0.0, 1.0, -1.0, np.inf, np.nan], "negzero": [0.0, -0.0]}[style], shape)
    return np.asarray(encode_rn(values, dtype))


def main() -> None:
    opened = open_oracle(None if len(sys.argv) < 3 else sys.argv[2], 0)
    kept: dict[str, Any] = {}
    index = []
    for number, m, n, k, a, d, layout in CASES:
        problem = Problem.gemm(m, n, k, DType(a), DType(d), layout=Layout(layout))
        answer = opened.oracle.ask(problem, Preference())
        assert not isinstance(answer, Declined), answer
        captured = opened.oracle.capture(problem, answer, Preference())
        summing = opened.oracle.summing(problem, answer, Preference())
        assert not isinstance(captured, Declined) and not isinstance(summing, Declined)
        batch: dict[str, Any] = {}
        if m * n <= 4096:
            batch |= {f"{kind}{i}": Draw.of(m, n, k, DType(a), kind, SEED, i) for kind in KINDS for i in range(2 if m * n < 200 else 1)}
        rng = np.random.Generator(np.random.Philox(number))
        for style in SPECIAL:
            for i in range(2):
                rows, columns = special(rng, (m, k), DType(a), style), special(rng, (n, k), DType(a), style)
                if k < 100:
                    batch[f"{style}{i}"] = Given(rows, columns, f"{number}{style}{i}a", f"{number}{style}{i}b")
        outs = summing.outputs([(x, None) for x in batch.values()])
        index.append({"case": number, "m": m, "n": n, "k": k, "a": a, "d": d, "layout": layout, "algo": answer.algo_id,
                      "kernels": [kernel.name for kernel in captured.kernels], "draws": list(batch)})
        for (name, one), out in zip(batch.items(), outs, strict=True):
            kept |= {f"{number}.{name}.a": np.asarray(one.a(np))[:SIDE], f"{number}.{name}.b": np.asarray(one.b(np))[:SIDE],
                     f"{number}.{name}.d": out[:SIDE, :SIDE]}
    target = opened.oracle.target.to_document()
    np.savez_compressed(sys.argv[1], index=np.array(json.dumps({"target": target, "cases": index})), **kept)


if __name__ == "__main__":
    main()
