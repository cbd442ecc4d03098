"""Multiply-adds a second of the simulator on one core: python benchmarks/simulator.py [M N K]

Prints one line a case, the best of ten runs, with the machine and the numpy version. Results are not
asserted; the design asks for 1e9 at 512x512x1024 (fp16 and e4m3 on sm_90).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import platform
import sys
import time
from pathlib import Path

import numpy as np

from probe.formats import encode_rn
from probe.names import DType
from probe.schedule.terms import ZERO, Term, contiguous_runs, fold, mma, shift
from probe.simulator import execute
from probe.tensorcore import row_for


def one_chain(sm: int, dtype: DType, k: int) -> Term:
    row = row_for(sm, dtype)
    return mma(ZERO, row, contiguous_runs(0, k, row.products))


def blocks_of_128(sm: int, dtype: DType, k: int) -> Term:
    """e4m3 without fast accumulation: every 128 products close and are added in fp32."""
    block = one_chain(sm, dtype, 128)
    return fold(block, DType.FP32, shift(block, 128), k // 128 - 1, 128)


CASES = (
    ("sm_90 fp16, one chain", 90, DType.FP16, one_chain),
    ("sm_90 bf16, one chain", 90, DType.BF16, one_chain),
    ("sm_80 fp16, one chain", 80, DType.FP16, one_chain),
    ("sm_90 e4m3, fast accumulation", 90, DType.E4M3, one_chain),
    ("sm_90 e4m3, blocks of 128 in fp32", 90, DType.E4M3, blocks_of_128),
)


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    m, n, k = map(int, sys.argv[1:4]) if len(sys.argv) > 3 else (512, 512, 1024)
    print(f"{m}x{n}x{k}, {processor()} ({platform.machine()}), numpy {np.__version__}, "
          f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}")
    rng = np.random.default_rng(0)
    for name, sm, dtype, schedule in CASES:
        a, b = encode_rn(rng.standard_normal((m, k)), dtype), encode_rn(rng.standard_normal((k, n)), dtype)
        term = schedule(sm, dtype, k)
        best = float("inf")
        for _ in range(10):
            start = time.perf_counter()
            execute(term, a, b, dtype)
            best = min(best, time.perf_counter() - start)
        print(f"{name:36s} {m * n * k / best:.2e} multiply-adds/s  ({best * 1e3:.0f} ms)")


if __name__ == "__main__":
    main()
