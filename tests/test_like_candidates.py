"""Schedules that only zeros, overflow and underflow tell apart: which are proven equal, and that a walk ends at the true one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import lane_descs

from probe.answer import Answer
from probe.capture import Capture
from probe.describe import canonical, describe
from probe.descriptor import CutLayout, Direction, GEMMDesc, Instruction, Join, KCut
from probe.errors import Declined, UsageError
from probe.formats import bits_dtype, encode_rn
from probe.inputs.draws import Block, DrawKind
from probe.oracle import SIMULATED_LIBRARIES, Opened, SimulatedOracle
from probe.pipeline import walk_problem
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.proof import Outcome
from probe.records import ClassResult, Point
from probe.recovery.candidates import Candidate, Context
from probe.recovery.twins import twins
from probe.schedule import (
    ZERO,
    ChainStart,
    Mma,
    Mul,
    Products,
    Term,
    add,
    bits_key,
    fma,
    mma,
    plain_of,
    run_of,
    term_from_json,
    term_to_json,
)
from probe.simulator import execute, execute_exact
from probe.simulator.library import SimulatedSumming
from probe.tensorcore import row_for

CHAINS = [(s, p, z) for s in ChainStart for p in Products for z in (False, True)]
IN_FOUR = KCut(1, CutLayout.STRIDED, 4, Join.BUTTERFLY, Direction.DOWN)


def chain(k: int, *cuts: KCut, dtype: DType = DType.BF16, out: DType = DType.FP32, **others: object) -> GEMMDesc:
    return GEMMDesc(k=k, k_summed=k, input_dtype=dtype, output_dtype=out, row=None, instruction_k=1, instruction=Instruction.FMA,
                    k_cuts=cuts, **others)  # type: ignore[arg-type]


# The record


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(lane_descs(), st.sampled_from(CHAINS))
def test_a_record_of_chains_is_described_and_survives_json(record: GEMMDesc, how: tuple[ChainStart, Products, bool]) -> None:
    record = replace(canonical(record), chain_start=how[0], products=how[1], adds_zero=how[2])
    schedule = record.schedule()
    assert plain_of(schedule) == replace(record, chain_start=ChainStart.ZERO, products=Products.FUSED, adds_zero=False).schedule()
    found = describe(schedule, record.k, record.input_dtype, record.output_dtype)
    assert found is not None and found.schedule() == schedule
    assert GEMMDesc.from_json(record.to_json()) == record
    assert term_from_json(json.loads(json.dumps(term_to_json(schedule)))) == schedule


def test_plain_chains_leave_the_form_of_a_record_as_it_was() -> None:
    assert not {"chain_start", "products", "adds_zero"} & chain(9).to_document().keys()
    assert chain(9, adds_zero=True).to_document()["chain_start"] == "zero"
    row = row_for(90, DType.FP16)
    with pytest.raises(UsageError):
        replace(chain(16), row=row, instruction=Instruction.WGMMA, adds_zero=True)


# What is equal, and what is not


def special(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Zeros of both signs, infinities, NaN, numbers at both ends and in the middle of the range."""
    fmt_low, fmt_high = {DType.FP16: (-24, 15), DType.BF16: (-133, 127), DType.E4M3: (-9, 8)}[dtype]
    exponents = rng.choice([fmt_low, fmt_low // 2 - 8, fmt_low // 2 - 10, -1, 0, 1, fmt_high // 2, fmt_high // 2 + 1, fmt_high], shape)
    values = np.exp2(exponents.astype(np.float64)) * rng.choice([1.0, 1.25, 1.5], shape) * rng.choice([-1.0, 1.0], shape)
    values = np.where(rng.random(shape) < 0.4, rng.choice([0.0, -0.0], shape), values)
    odd = rng.random(shape) < 0.02
    values = np.where(odd, rng.choice([np.inf, -np.inf, np.nan], shape), values)
    return np.asarray(encode_rn(values, dtype))


def like_terms(dtype: DType) -> Iterator[Term]:
    """Every rewriting of a few small sums, also those that are proven equal."""
    for k, cuts in [(1, ()), (2, ()), (3, ()), (5, ()), (5, (KCut(2),)), (9, (KCut(3), KCut(2))), (5, (KCut(4),)), (6, (IN_FOUR,)),
                    (3, (KCut(1),))]:
        for start, products, adds_zero in CHAINS:
            yield chain(k, *cuts, dtype=dtype, chain_start=start, products=products, adds_zero=adds_zero).schedule()
    row = row_for(90, dtype)
    yield mma(ZERO, row, (run_of((0,)),))
    yield mma(ZERO, replace(row, nearest=True), (run_of((0,)),))


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.E4M3])
def test_equal_keys_are_equal_bytes(dtype: DType) -> None:
    rng = np.random.default_rng(9)
    blocks = [(b.different_rows, b.different_columns) for kind in (DrawKind.SIGNS, DrawKind.EXTREMES, DrawKind.FLAT) for i in range(4)
              for b in [Block(16, 16, 9, dtype, kind, 1, i)]]
    blocks += [(special(rng, (64, 9), dtype), special(rng, (64, 9), dtype)) for _ in range(6)]
    by_key: dict[object, list[Term]] = {}
    for term in like_terms(dtype):
        by_key.setdefault(bits_key(term, dtype), []).append(term)
    assert sum(len(terms) > 1 for terms in by_key.values()) >= 9
    for terms in by_key.values():
        first, *others = terms
        for a, b in blocks:
            want = execute(first, a, b.T, dtype)
            for other in others:
                assert (execute(other, a, b.T, dtype) == want).all(), (first, other)


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
def test_both_executors_agree_on_every_kind_of_chain(dtype: DType) -> None:
    rng = np.random.default_rng(4)
    a, b = special(rng, (5, 9), dtype), special(rng, (5, 9), dtype)
    for term in like_terms(dtype):
        got = execute(term, a, b.T, dtype)
        for i in range(5):
            for j in range(5):
                assert int(got[i, j]) == execute_exact(term, a[i].tolist(), b[j].tolist(), dtype), term


# The walk


class OneSchedule:
    """The simulated library with one schedule in place of those of its kernels."""

    found_by, announcement = "a test", ""

    def __init__(self, truth: Term) -> None:
        self.truth = truth
        self.inner = SimulatedOracle(SIMULATED_LIBRARIES["sim"])
        self.target = self.inner.target

    def ask(self, problem: Problem, preference: Preference) -> Answer | Declined:
        return self.inner.ask(problem, preference)

    def capture(self, problem: Problem, answer: Answer, preference: Preference) -> Capture | Declined:
        return self.inner.capture(problem, answer, preference)

    def summing(self, problem: Problem, answer: Answer, preference: Preference) -> SimulatedSumming:
        return SimulatedSumming(problem.m, problem.n, problem.k, self.truth, problem.a_dtype, problem.d_dtype)


def walked(truth: Term, k: int, dtype: DType, out: DType, m: int = 5, n: int = 6, seed: int = 7) -> ClassResult:
    point = walk_problem(Problem.gemm(m, n, k, dtype, out), Preference(), Opened(OneSchedule(truth), ""), seed=seed)  # type: ignore[arg-type]
    assert isinstance(point, Point), point
    (result,) = point.classes
    return result


def truths(k: int, cuts: tuple[KCut, ...], dtype: DType, out: DType) -> list[Term]:
    """A plain chain and all that are like it."""
    record = chain(k, *cuts, dtype=dtype, out=out)
    return [c.schedule for c in twins(Candidate(record.schedule(), record, ()), Context(k, dtype, out, 90))]


SHAPES = [(1, ()), (2, ()), (3, (IN_FOUR,)), (5, (KCut(2),)), (11, (KCut(3),)), (33, (KCut(9),))]
CASES = [(k, cuts, dtype, out) for k, cuts in SHAPES for dtype in (DType.FP16, DType.BF16) for out in (dtype, DType.FP32)]


def told(k: int, cuts: tuple[KCut, ...], dtype: DType, out: DType, seed: int) -> list[str]:
    """Those of all like schedules at which a walk did not end, confirmed."""
    wrong = []
    for truth in truths(k, cuts, dtype, out):
        result = walked(truth, k, dtype, out, seed=seed)
        if result.outcome is not Outcome.CONFIRMED or bits_key(result.schedule, dtype) != bits_key(truth, dtype):
            wrong.append(f"{result.outcome}: {result.schedule} for {truth}")
    return wrong


@pytest.mark.parametrize(("k", "cuts", "dtype", "out"), 
                         [c for c in CASES if c[0] <= 2 and c[3] is DType.FP32], ids=str)
def test_a_walk_ends_at_the_true_one_of_all_that_are_alike(k: int, cuts: tuple[KCut, ...], dtype: DType, out: DType) -> None:
    assert told(k, cuts, dtype, out, 7) == []


@pytest.mark.slow
@pytest.mark.parametrize(("k", "cuts", "dtype", "out"), CASES, ids=str)
def test_a_walk_ends_at_the_true_one_of_all_that_are_alike_in_every_shape(k: int, cuts: tuple[KCut, ...], dtype: DType, out: DType) -> None:
    assert told(k, cuts, dtype, out, 3) == []


def test_one_product_kept_as_it_is_is_told_from_one_added_to_zero() -> None:
    """Measured: gemmk1 (ALGO_ID 12) gives -0 for a product of -0, instructions give +0."""
    kept, added = walked(Mul(0), 1, DType.FP16, DType.FP32), walked(fma(ZERO, (run_of((0,)),)), 1, DType.FP16, DType.FP32)
    assert kept.outcome is added.outcome is Outcome.CONFIRMED
    assert kept.desc is not None and kept.desc.chain_start is ChainStart.PRODUCT
    assert added.desc is not None and added.desc.chain_start is ChainStart.ZERO
    assert dict((e.field, e.value) for e in kept.evidence)["chain_start"] == "product"


def test_a_sum_of_matrix_instructions_has_none_that_is_like_it() -> None:
    term = mma(ZERO, row_for(90, DType.BF16), (run_of((0, 1, 2)),))
    assert isinstance(term, Mma)
    assert len(twins(Candidate(term, None, ()), Context(3, DType.BF16, DType.FP32, 90))) == 1


def test_a_chain_that_nothing_is_like_is_confirmed_with_no_more_launches_than_before() -> None:
    """Rivals fall on the outputs of the proof: a plain chain costs one settling and one proof."""
    record = chain(12, dtype=DType.FP16, out=DType.FP16)
    point = walk_problem(Problem.gemm(5, 6, 12, DType.FP16), Preference(), Opened(OneSchedule(record.schedule()), ""), seed=1)  # type: ignore[arg-type]
    assert isinstance(point, Point) and point.outcome is Outcome.CONFIRMED
    (result,) = point.classes
    assert result.proof is not None and "signs" not in dict(result.proof.draws)


def test_bits_are_those_of_the_dtype() -> None:
    """Two lone products added are one chain for fp16, not for bf16, whose first product can overflow alone."""
    two, apart = fma(ZERO, (run_of((0,)), run_of((1,)))), add(DType.FP32, fma(ZERO, (run_of((0,)),)), fma(ZERO, (run_of((1,)),)))
    assert bits_key(two, DType.FP16) == bits_key(apart, DType.FP16)
    assert bits_key(two, DType.BF16) != bits_key(apart, DType.BF16)
    a = np.array([[1.0, 2.0**127]], np.float32).astype(np.float64) * np.array([[-(2.0**126), 1.0]])
    bits = [encode_rn(x, DType.BF16).astype(bits_dtype(DType.BF16)) for x in (a, np.array([[2.0], [2.0]]))]
    assert execute(two, *bits, DType.BF16) != execute(apart, *bits, DType.BF16)
