"""The count of FPRev's probes in benchmarks/fprev.py equals what the algorithm asks when it is run."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fprev import fprev_cost
from probe.descriptor import GEMMDesc, Instruction, KCut, ShortTurn
from probe.problem import DType
from probe.schedule import Term, joined, leaf_count
from probe.tensorcore import row_for


def asked(term: Term, leaves: list[int], depth: int, calls: Counter[tuple[int, int]]) -> None:
    """FPRev's recursion, asking the tree itself: sizes from the first leaf, then each group of one size by itself."""
    if len(leaves) < 2:
        return
    first, others = leaves[0], leaves[1:]
    calls[(depth, len(others))] += 1
    groups: dict[int, list[int]] = {}
    for other in others:
        groups.setdefault(leaf_count(joined(term, first, other)), []).append(other)
    for group in groups.values():
        asked(term, group, depth + 1, calls)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(2, 150), st.integers(2, 9), st.booleans(), st.booleans(), st.sampled_from([16, 64]))
def test_the_count_is_what_the_algorithm_asks(k: int, eighths: int, split: bool, fast: bool, step: int) -> None:
    desc = GEMMDesc(k=k, k_summed=k, input_dtype=DType.FP16, output_dtype=DType.FP32, row=row_for(90, DType.FP16), instruction_k=16,
                    use_fast_accum=fast, k_loop_step=step, short_turn=ShortTurn.FIRST, k_cuts=(KCut(8 * eighths),) if split else (),
                    instruction=Instruction.WGMMA)
    calls: Counter[tuple[int, int]] = Counter()
    term = desc.schedule()
    asked(term, list(range(k)), 0, calls)
    assert fprev_cost(term).calls == calls


def test_a_chain_of_single_products_costs_one_call() -> None:
    desc = GEMMDesc(k=40, k_summed=40, input_dtype=DType.FP16, output_dtype=DType.FP32, row=None, instruction_k=1,
                    instruction=Instruction.FMA)
    cost = fprev_cost(desc.schedule())
    assert cost.probes == 39
    assert cost.launches(39) == cost.launches_by_depth(13) - 2 == 1


@pytest.mark.parametrize("width", [1, 7, 64])
def test_packing_by_depth_never_needs_more_launches(width: int) -> None:
    desc = GEMMDesc(k=512, k_summed=512, input_dtype=DType.FP16, output_dtype=DType.FP32, row=row_for(90, DType.FP16), instruction_k=16,
                    k_cuts=(KCut(128),), instruction=Instruction.WGMMA)
    cost = fprev_cost(desc.schedule())
    assert cost.probes / width <= cost.launches_by_depth(width) <= cost.launches(width)
