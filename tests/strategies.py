"""Hypothesis strategies shared by tests: random GEMMDescs of the typed families, and random general schedules."""

from __future__ import annotations

from hypothesis import strategies as st

from probe.descriptor import CutLayout, Direction, GEMMDesc, Instruction, Join, KCut, ShortTurn
from probe.problem import DType
from probe.schedule import ZERO, Row, Term, add, fma, mma, run_of
from probe.tensorcore import row_for


@st.composite
def gemm_descs(draw: st.DrawFn, sm: int = 90) -> GEMMDesc:
    """Single accumulator, split-K with each merge, per-instruction accumulation and split of it, e4m3 in both modes, the fma chain."""
    dtype = draw(st.sampled_from([DType.FP16, DType.BF16, DType.E4M3]))
    output = draw(st.sampled_from([DType.FP32, DType.BF16] if dtype is not DType.FP16 else [DType.FP32, DType.FP16]))
    k = draw(st.integers(2, 900))
    k_summed = k - draw(st.sampled_from([0, 0, 0, 1, 8, 64])) if k > 80 else k
    common: dict[str, object] = {"k": k, "k_summed": k_summed, "input_dtype": dtype, "output_dtype": output}
    if dtype is not DType.E4M3 and draw(st.integers(0, 4)) == 0:
        return GEMMDesc(**common, row=None, instruction_k=1, instruction=Instruction.FMA)  # type: ignore[arg-type]
    row = row_for(sm, dtype)
    width = row.products
    common |= {"row": row, "instruction": Instruction.WGMMA, "instruction_k": width}
    cuts: list[KCut] = []
    if draw(st.booleans()):
        join = draw(st.sampled_from([Join.CHAIN, Join.CHAIN, Join.BUTTERFLY]))
        direction = draw(st.sampled_from([Direction.FORWARD, Direction.BACKWARD] if join is Join.CHAIN else [Direction.UP, Direction.DOWN]))
        cuts.append(KCut(8 * draw(st.integers(2, 60)), join=join, direction=direction))
        partial, merge = draw(st.sampled_from([(DType.FP32, DType.FP32), (output, DType.FP32), (output, output)]))
        common |= {"partial_dtype": partial, "merge_dtype": merge}
    if dtype is DType.E4M3:
        if draw(st.booleans()):
            cuts.append(KCut(128))
        return GEMMDesc(**common, k_cuts=tuple(cuts))  # type: ignore[arg-type]
    return GEMMDesc(**common, k_cuts=tuple(cuts), k_loop_step=width * draw(st.sampled_from([1, 2, 4, 8])),  # type: ignore[arg-type]
                    short_turn=draw(st.sampled_from(list(ShortTurn))), use_fast_accum=draw(st.integers(0, 3)) > 0)


_JOINS = [(Join.BUTTERFLY, Direction.UP), (Join.BUTTERFLY, Direction.DOWN),
          (Join.CHAIN, Direction.FORWARD), (Join.CHAIN, Direction.BACKWARD)]


@st.composite
def lane_descs(draw: st.DrawFn) -> GEMMDesc:
    """Lanes of single multiply-adds: tiles of 1 to 8, 2 to 512 lanes, every join; in a split, in groups, closed every so many indices."""
    dtype = draw(st.sampled_from([DType.FP16, DType.BF16]))
    width = draw(st.sampled_from([1, 1, 2, 3, 4, 8]))
    count = draw(st.sampled_from([2, 3, 4, 5, 8, 16, 32, 32, 64, 100, 128, 256, 512]))
    join, direction = draw(st.sampled_from(_JOINS))
    cuts = [KCut(width, CutLayout.STRIDED, count, join, direction)]
    kind = draw(st.integers(0, 4))
    if kind == 0:
        cuts.insert(0, KCut(width * count * draw(st.integers(2, 5)), CutLayout.CONTIGUOUS, None, *draw(st.sampled_from(_JOINS))))
    elif kind == 1 and count % 4 == 0:
        cuts = [KCut(width * count // 4, CutLayout.STRIDED, 4, *draw(st.sampled_from(_JOINS))),
                KCut(width, CutLayout.STRIDED, count // 4, join, direction)]
    if draw(st.integers(0, 2)) == 0:
        cuts.append(KCut(width * draw(st.integers(2, 6))))
    k = draw(st.integers(2, min(4000, 8 * width * count)))
    return GEMMDesc(k=k, k_summed=k, input_dtype=dtype, output_dtype=DType.FP32, row=None, instruction_k=1, instruction=Instruction.FMA,
                    k_cuts=tuple(cuts))


@st.composite
def general_terms(draw: st.DrawFn, row: Row, most: int = 40) -> Term:
    """A random multiway tree with its indices permuted: fused steps of several widths, chained or added, any index anywhere."""
    k = draw(st.integers(2, most))
    order = draw(st.permutations(range(k)))

    def build(lo: int, hi: int, depth: int) -> Term:
        size = hi - lo
        if size <= row.products and (depth == 0 or draw(st.booleans())):
            return mma(ZERO, row, (run_of(tuple(order[lo:hi])),))
        shape = draw(st.integers(0, 2)) if depth else 1
        if shape == 0 and size >= 4:
            middle = draw(st.integers(lo + 2, hi - 2))  # a sum of one index beside another sum looks like a step of one index
            return add(DType.FP32, build(lo, middle, depth - 1), build(middle, hi, depth - 1))
        width = draw(st.integers(1, min(row.products, max(1, size - 1))))
        if size - width >= 1 and depth:
            return mma(build(lo, hi - width, depth - 1), row, (run_of(tuple(order[hi - width:hi])),))
        return _chain(order[lo:hi], row)

    return build(0, k, draw(st.integers(0, 5)))


def _chain(ks: list[int] | tuple[int, ...], row: Row) -> Term:
    term: Term = ZERO
    for i in range(0, len(ks), row.products):
        term = mma(term, row, (run_of(tuple(ks[i:i + row.products])),))
    return term


def fma_chain(ks: list[int]) -> Term:
    """Single multiply-adds in the given order."""
    term: Term = ZERO
    for k in ks:
        term = fma(term, (run_of((k,)),))
    return term
