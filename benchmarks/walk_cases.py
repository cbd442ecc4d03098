"""The shapes that benchmarks and recordings run, and one problem from their text."""

from __future__ import annotations

from dataclasses import dataclass

from probe.problem import DType, Layout, Problem

SHAPES = ("64x64x576", "64x64x4096", "1x8x11528", "32x32x11528", "4096x4096x1000", "129x65x513", "100x100x100", "2x2x5000", "7x13x1031",
          "1x4096x4096", "2048x2048x4096", "16x16x300000")


@dataclass(frozen=True)
class Case:
    shape: str
    dtype: str
    out: str
    layout: str = "nn"
    fast: bool = False

    @property
    def name(self) -> str:
        return f"{self.shape}.{self.dtype}.{self.out}.{self.layout}" + (".fast" if self.fast else "")

    def problem(self) -> Problem:
        m, n, k = Problem.parse_shape(self.shape)
        return Problem.gemm(m, n, k, DType(self.dtype), DType(self.out), Layout(self.layout), self.fast)


def acceptance() -> list[Case]:
    """Every shape of issue A, both 16-bit inputs, fp32 and 16-bit output, and e4m3 in both accumulation modes."""
    cases = [Case(shape, dtype, out) for shape in SHAPES for dtype, out in
             (("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "fp32"), ("bf16", "bf16"))]
    return cases + [Case("16x16x8192", "e4m3", out, "tn", fast) for fast in (False, True) for out in ("fp32", "bf16", "fp16")]


def more() -> list[Case]:
    """Further readings: other layouts, an unsplit e4m3, the chain of single multiply-adds, small and odd shapes."""
    cases = [Case(shape, "fp16", "fp32", layout) for shape in ("64x64x576", "100x100x100") for layout in ("tn", "nt", "tt")]
    cases += [Case("64x64x512", "e4m3", "fp32", "tn", fast) for fast in (False, True)]
    cases += [Case(shape, "fp16", "fp16") for shape in ("8x8x64", "8x16x8", "33x5x7", "96x80x6", "24x24x12", "40x8x16", "129x65x24")]
    # cuBLASLt 13.1.0 answers these with ALGO_ID 56 (sm80_xmma_gemm ... ffma): 15 of 112,566 random problems, all fp16 to fp16, K of 6 to 18
    cases += [Case("425x3567x12", "fp16", "fp16"), Case("633x1915x16", "fp16", "fp16"), Case("3461x1288x7", "fp16", "fp16"),
              Case("891x3560x8", "fp16", "fp16", "nt"), Case("3729x733x8", "fp16", "fp16", "tt")]
    return [*cases, Case("256x512x1000", "bf16", "bf16", "tn")]
