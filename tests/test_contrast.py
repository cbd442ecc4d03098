"""Where a library contradicts a schedule: inputs are found on which two orders owe different bits, also where ordinary draws hide it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probe.contrast import contrast
from probe.descriptor import GEMMDesc, Instruction, KCut
from probe.formats import encode_rn
from probe.problem import DType
from probe.proof import Outcome, prove
from probe.schedule import Row, Term
from probe.simulator.library import SimulatedSumming
from probe.tensorcore import row_for

E4M3, BF16, FP16, FP32 = DType.E4M3, DType.BF16, DType.FP16, DType.FP32


def desc(k: int, dtype: DType, out: DType, *cuts: KCut, **others: Any) -> GEMMDesc:
    row = row_for(90, dtype)
    return GEMMDesc(**{"k": k, "k_summed": k, "input_dtype": dtype, "output_dtype": out, "row": row, "instruction_k": row.products,
                       "k_cuts": cuts, "instruction": Instruction.WGMMA, **others})


def library(one: GEMMDesc, m: int = 16, n: int = 16) -> SimulatedSumming:
    return SimulatedSumming(m, n, one.k, one.schedule(), one.input_dtype, one.output_dtype)


def look(first: GEMMDesc, second: GEMMDesc, true: GEMMDesc, **others: Any) -> Any:
    return contrast(library(true), first.schedule(), second.schedule(), (first.k_summed, second.k_summed), 5, **others)


HIDDEN = (desc(2048, E4M3, BF16, KCut(768), KCut(128)), desc(2048, E4M3, BF16, KCut(512), KCut(128)))
PAIRS = {
    "cuts that bf16 hides from ordinary draws": HIDDEN,
    "other cuts": (desc(4096, FP16, FP32, KCut(1408)), desc(4096, FP16, FP32, KCut(1536))),
    "a tail that is dropped": (desc(520, FP16, FP16, KCut(256), k_summed=512), desc(520, FP16, FP16, KCut(256), k_summed=520)),
    "only the dtype of the parts": (desc(512, FP16, FP16, KCut(256)), desc(512, FP16, FP16, KCut(256), partial_dtype=FP16)),
    "only what a step keeps": (desc(96, FP16, FP32), desc(96, FP16, FP32, row=Row(16, 24))),
    "a windowed count: bf16 counts to 256": (desc(8192, BF16, BF16, KCut(2048)), desc(8192, BF16, BF16, KCut(4096))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_wrong_order_is_refuted_and_the_right_one_upheld(name: str) -> None:
    wrong, right = PAIRS[name]
    found = look(wrong, right, right)
    assert found is not None and 0 < found.refuted <= found.compared and found.upheld == found.refuted
    assert found.first.library_bits != found.first.model_bits and found.how


@pytest.mark.parametrize("name", PAIRS)
def test_the_right_order_is_never_refuted(name: str) -> None:
    wrong, right = PAIRS[name]
    assert look(right, wrong, right) is None


def test_what_is_hidden_from_ordinary_draws_is_really_hidden() -> None:
    wrong, right = HIDDEN
    assert prove(library(right), wrong.schedule(), 2048, 26).outcome is Outcome.CONFIRMED
    found = look(wrong, right, right)
    assert found is not None and "probe" in found.how


def test_a_library_that_follows_neither_upholds_nothing() -> None:
    first, second = PAIRS["other cuts"]
    found = look(first, second, desc(4096, FP16, FP32, KCut(1024)))
    assert found is not None and found.upheld < found.refuted


@pytest.mark.slow
def test_only_the_elements_that_are_asked_for_are_looked_at() -> None:
    """A library whose first row follows the wrong order: looked at alone, that row refutes nothing."""
    wrong, right = PAIRS["other cuts"]

    class Both(SimulatedSumming):
        def outputs(self, batch: Any) -> list[np.ndarray[Any, Any]]:
            out = []
            for (_, cells), top, rest in zip(batch, library(wrong).outputs(batch), super().outputs(batch), strict=True):
                rows = np.arange(16)[:, None] if cells is None else cells.rows
                out.append(np.where(rows == 0, top, rest))
            return out

    summing = Both(16, 16, 4096, right.schedule(), FP16, FP32)
    top = np.zeros((16, 16), bool)
    top[0] = True
    schedules: tuple[Term, Term] = wrong.schedule(), right.schedule()
    assert contrast(summing, *schedules, (4096, 4096), 5, top) is None
    found = contrast(summing, *schedules, (4096, 4096), 5, ~top)
    assert found is not None and found.first.row > 0


def test_bits_and_values_of_the_difference_agree() -> None:
    one_step = desc(4, FP16, FP32)
    chain = replace(one_step, row=None, instruction_k=1, k_loop_step=1, instruction=Instruction.FMA)
    found = look(one_step, chain, chain)
    assert found is not None
    bits = encode_rn(np.array([found.first.library_value, found.first.model_value], np.float32), FP32)
    assert bits.tolist() == [found.first.library_bits, found.first.model_bits]
