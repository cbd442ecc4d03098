"""The shapes that benchmarks and recordings run: the regime `acceptance`, and further readings."""

from __future__ import annotations

from probe.regimes import Case, Regime, regime_cases


def acceptance() -> list[Case]:
    """Every shape of issue A, both 16-bit inputs, fp32 and 16-bit output, and e4m3 in both accumulation modes."""
    return list(regime_cases(Regime.ACCEPTANCE))


def more() -> list[Case]:
    """Further readings: other layouts, an unsplit e4m3, the chain of single multiply-adds, small and odd shapes."""
    cases = [Case(shape, "fp16", "fp32", layout) for shape in ("64x64x576", "100x100x100") for layout in ("tn", "nt", "tt")]
    cases += [Case("64x64x512", "e4m3", "fp32", "tn", fast) for fast in (False, True)]
    cases += [Case(shape, "fp16", "fp16") for shape in ("8x8x64", "8x16x8", "33x5x7", "96x80x6", "24x24x12", "40x8x16", "129x65x24")]
    # cuBLASLt 13.1.0 answers these with ALGO_ID 56 (sm80_xmma_gemm ... ffma): 15 of 112,566 random problems, all fp16 to fp16, K of 6 to 18
    cases += [Case("425x3567x12", "fp16", "fp16"), Case("633x1915x16", "fp16", "fp16"), Case("3461x1288x7", "fp16", "fp16"),
              Case("891x3560x8", "fp16", "fp16", "nt"), Case("3729x733x8", "fp16", "fp16", "tt")]
    return [*cases, Case("256x512x1000", "bf16", "bf16", "tn")]
