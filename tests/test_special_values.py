"""What an H200 gave for zeros of both signs, infinities, NaN and products out of range (tests/data/special, cuBLASLt 13.1.0, recorded with
the cases, draws and seeds of tools/record_special.py): each rule of docs/semantics.md against its bytes, and against its neighbours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.descriptor import CutLayout, Direction, GEMMDesc, Instruction, Join, KCut
from probe.names import DType
from probe.recovery.candidates import Candidate, Context
from probe.recovery.twins import twins
from probe.schedule import ZERO, ChainStart, Products, Term, cast, mma, run_of
from probe.simulator import execute
from probe.tensorcore import row_for

DATA = np.load(Path(__file__).parent / "data" / "special" / "h200-13.1.0.npz")
CASES: dict[int, dict[str, Any]] = {case["case"]: case for case in json.loads(str(DATA["index"]))["cases"]}
PRODUCT, ROUNDED, PLUS_ZERO = {"chain_start": ChainStart.PRODUCT}, {"products": Products.ROUNDED}, {"adds_zero": True}
FORWARD = KCut(1, CutLayout.STRIDED, 16, Join.CHAIN, Direction.FORWARD)


def chain(number: int, *cuts: KCut, **others: Any) -> Term:
    case = CASES[number]
    return GEMMDesc(k=case["k"], k_summed=case["k"], input_dtype=DType(case["a"]), output_dtype=DType(case["d"]), row=None, instruction_k=1,
                    instruction=Instruction.FMA, k_cuts=cuts, **others).schedule()


def wrong(number: int, term: Term) -> list[str]:
    """The draws of a case to which a schedule gives other bytes than the library gave."""
    case = CASES[number]
    out = []
    for draw in case["draws"]:
        a, b, d = (DATA[f"{number}.{draw}.{x}"] for x in "abd")
        if not np.array_equal(execute(term, a, np.ascontiguousarray(b.T), DType(case["a"])), d):
            out.append(draw)
    return out


@pytest.mark.parametrize(("number", "kernel", "true", "false"), [
    (3, "gemmk1", chain(3, **PRODUCT), [chain(3), chain(3, **PLUS_ZERO)]),
    (5, "gemvx", chain(5, **ROUNDED), [chain(5, **PRODUCT), chain(5, chain_start=ChainStart.PRODUCT, products=Products.ROUNDED)]),
    (7, "gemmSN_NN", chain(7, KCut(129), KCut(128)),
     [chain(7, KCut(129)), chain(7, KCut(129), **ROUNDED), chain(7, KCut(129), **PLUS_ZERO)]),
    (10, "gemmSN_TN", chain(10, FORWARD, KCut(16)), [chain(10, FORWARD), chain(10, FORWARD, KCut(16), **PRODUCT)]),
    (410, "magma_sgemmEx", chain(410, **PLUS_ZERO), [chain(410), chain(410, **PRODUCT), chain(410, **ROUNDED)]),
    (502, "gemv2N", chain(502, **PLUS_ZERO), [chain(502), chain(502, **PRODUCT)]),
    (577, "gemv2N", chain(577, **PLUS_ZERO), [chain(577), chain(577, **PRODUCT), chain(577, **ROUNDED)]),
], ids=lambda x: x if isinstance(x, str) else "")
def test_the_bytes_of_a_kernel_follow_its_rule_and_no_other(number: int, kernel: str, true: Term, false: list[Term]) -> None:
    assert kernel in CASES[number]["kernels"][0]
    assert wrong(number, true) == []
    for other in false:
        assert wrong(number, other) != []


@pytest.mark.parametrize("number", [333, 434])
def test_zeros_of_a_matrix_instruction_are_positive(number: int) -> None:
    case = CASES[number]
    term = cast(DType(case["d"]), mma(ZERO, row_for(90, DType(case["a"])), (run_of(tuple(range(case["k"]))),)))
    assert wrong(number, term) == []
    assert "negzero0" in wrong(number, chain(number, **PRODUCT))


@pytest.mark.parametrize(("number", "cuts"), [(3, ()), (5, ()), (7, (KCut(129),)), (333, ()), (410, ()), (502, ()), (577, ()), (581, ())])
def test_the_true_rule_is_among_those_that_count_as_like_the_tree(number: int, cuts: tuple[KCut, ...]) -> None:
    case = CASES[number]
    context = Context(case["k"], DType(case["a"]), DType(case["d"]), 90)
    like = [c.schedule for c in twins(Candidate(chain(number, *cuts), None, ()), context)]
    assert len(like) > 1
    assert 1 <= sum(wrong(number, term) == [] for term in like) < len(like)
