"""Random problems of the scan for lost tails: small M and N, K to a limit, drawn without a look at what is predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from probe.errors import UsageError
from probe.problem import DType, Problem
from probe.values import check_int

MOST_SIDE = 64
LEAST_K = 64
_FP8_STEP, _WIDE_STEP = 16, 8  # values of k and n that the fast kernels of these dtypes want in multiples: 16 bytes


@dataclass(frozen=True)
class Drawing:
    """dtypes: input dtypes, equally often. most_k: largest K. aligned: share of the 16-bit problems whose N and K are multiples of 8.

    M and N are uniform in 1 to 64. Half of the K are uniform, half log-uniform, from 64 on. 16-bit inputs: layout nn, fp32 output. e4m3:
    layout tn, N and K multiples of 16 (the library takes no other), output fp32 or bf16, with fast accumulation or without. Unaligned
    16-bit problems hardly ever get the nvjet kernels, so that without `aligned` most draws would say nothing about them.
    """

    dtypes: tuple[DType, ...] = (DType.FP16, DType.BF16, DType.E4M3)
    most_k: int = 1_000_000
    aligned: float = 0.75

    def __post_init__(self) -> None:
        check_int("most_k", self.most_k, LEAST_K, 2**24)
        if not self.dtypes or not set(self.dtypes) <= {DType.FP16, DType.BF16, DType.E4M3}:
            raise UsageError(f"no draws of {', '.join(self.dtypes) or 'nothing'}", "some of fp16, bf16, e4m3")
        if not 0 <= self.aligned <= 1:
            raise UsageError(f"aligned = {self.aligned} is no share", "0 to 1")

    def problems(self, seed: int, stream: int) -> Iterator[Problem]:
        """Without end. Equal seed and stream give equal problems."""
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(stream,))))
        while True:
            yield self._one(rng)

    def _one(self, rng: np.random.Generator) -> Problem:
        dtype = self.dtypes[int(rng.integers(len(self.dtypes)))]
        m, n = (int(x) for x in rng.integers(1, MOST_SIDE + 1, 2))
        if rng.random() < 0.5:
            k = int(rng.integers(LEAST_K, self.most_k + 1))
        else:
            k = int(np.exp(rng.uniform(np.log(LEAST_K), np.log(self.most_k))))
        if dtype is DType.E4M3:
            output = DType.FP32 if rng.random() < 0.5 else DType.BF16
            return Problem.gemm(m, _multiple(n, _FP8_STEP), _multiple(k, _FP8_STEP), dtype, output,
                                fast_accumulation=bool(rng.random() < 0.5))
        if rng.random() < self.aligned:
            n, k = _multiple(n, _WIDE_STEP), _multiple(k, _WIDE_STEP)
        return Problem.gemm(m, n, k, dtype, DType.FP32)


def _multiple(value: int, step: int) -> int:
    """The multiple of `step` below, at least one step."""
    return max(step, value - value % step)
