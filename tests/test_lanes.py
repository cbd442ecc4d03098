"""Lanes: cuts that deal K in turn, from the record to the schedule, through the simulator and the walk, and back to the same record."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import lane_descs

from probe.dealing import Block, lanes_of, parts_of
from probe.describe import canonical, describe
from probe.descriptor import CutLayout, Direction, GEMMDesc, Instruction, Join, KCut
from probe.errors import Declined
from probe.formats import encode_rn
from probe.inputs import pair_for
from probe.names import Layout
from probe.oracle import SIMULATED_LIBRARIES, Opened, SimulatedOracle
from probe.pipeline import walk_problem
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.proof import Outcome
from probe.records import Point
from probe.recovery.candidates import Context, candidates
from probe.schedule import (
    ZERO,
    Run,
    Term,
    add,
    cast,
    exact_form,
    first_k,
    fma,
    inside,
    joined,
    leaf_count,
    render_text,
    run_of,
    shift,
    span,
    steps,
    term_from_json,
    term_to_json,
)
from probe.simulator import execute, execute_exact
from probe.simulator.library import SimulatedSumming
from probe.walks.check import predicted
from probe.walks.reader import Reader, places_for
from probe.walks.recover_tree import WalkResult, recover_tree
from probe.walks.tree import shape_term

_SETTINGS = settings(max_examples=15, deadline=None, derandomize=True,
                     suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
VECTORS = SIMULATED_LIBRARIES["sim-vectors"]


def lanes(k: int, *cuts: KCut, dtype: DType = DType.FP16) -> GEMMDesc:
    return GEMMDesc(k=k, k_summed=k, input_dtype=dtype, output_dtype=DType.FP32, row=None, instruction_k=1, instruction=Instruction.FMA,
                    k_cuts=cuts)


def dealt(span_: int, count: int, join: Join = Join.BUTTERFLY, direction: Direction = Direction.DOWN) -> KCut:
    return KCut(span_, CutLayout.STRIDED, count, join, direction)


def walked(record: GEMMDesc, m: int = 64, seed: int = 5) -> WalkResult | Declined:
    summing = SimulatedSumming(m, 1, record.k, record.schedule(), record.input_dtype, record.output_dtype)
    return recover_tree(Reader(summing, pair_for(record.input_dtype), places_for(None, m, 1, False)), seed)


# Dealing, and chains of slices


@_SETTINGS
@given(st.integers(0, 5), st.integers(1, 70),
       st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 6)), min_size=1, max_size=3), st.data())
def test_dealing_in_blocks_deals_as_index_by_index(first: int, size: int, cuts: list[tuple[int, int]], data: st.DataObject) -> None:
    axis: tuple[Block, ...] = (Block(first, size),)
    ks = list(range(first, first + size))
    for width, count in cuts:
        if count:
            want = [[k for i, k in enumerate(ks) if i // width % count == lane] for lane in range(count)]
            got = lanes_of(axis, width, count)
        else:
            want = [ks[i:i + width] for i in range(0, len(ks), width)]
            got = list(parts_of(axis, width))
        assert [[b.interval(t) + o for b in part for t in range(b.count) for o in range(b.width)] for part in got] == want
        chosen = data.draw(st.sampled_from([i for i, part in enumerate(want) if part]))
        axis, ks = got[chosen], want[chosen]


@st.composite
def slices(draw: st.DrawFn) -> list[int]:
    out: list[int] = []
    base = 0
    for _ in range(draw(st.integers(1, 4))):
        width, gap, count = draw(st.integers(1, 4)), draw(st.integers(0, 4)), draw(st.integers(1, 5))
        out += [base + t * (width + gap) + o for t in range(count) for o in range(width)]
        base += count * (width + gap) + draw(st.sampled_from([0, 0, 1, 3]))
    return out


@_SETTINGS
@given(slices(), st.data())
def test_a_chain_is_one_value_however_it_is_put_together(ks: list[int], data: st.DataObject) -> None:
    whole = fma(ZERO, tuple(run_of((k,)) for k in ks))
    assert [k for (k,) in steps(whole)] == ks
    cut = data.draw(st.integers(0, len(ks)))
    head = fma(ZERO, tuple(run_of((k,)) for k in ks[:cut]))
    tail = fma(ZERO, tuple(run_of((k,)) for k in ks[cut:]))
    assert fma(head, getattr(tail, "runs", ())) == whole
    assert term_from_json(json.loads(json.dumps(term_to_json(whole)))) == whole
    for i, j in ((0, len(ks) - 1), (0, len(ks) // 2)):
        if i != j:
            assert leaf_count(joined(whole, ks[i], ks[j])) == j + 1


# The record


@_SETTINGS
@given(lane_descs())
def test_a_lane_record_is_described_from_its_schedule_and_survives_json(record: GEMMDesc) -> None:
    schedule = record.schedule()
    assert sorted(k for step in steps(schedule) for k in step) == list(range(record.k))
    plain = canonical(record)
    assert plain.schedule() == schedule and canonical(plain) == plain
    assert describe(schedule, record.k, record.input_dtype, record.output_dtype) == plain
    assert GEMMDesc.from_json(plain.to_json()) == plain
    assert term_from_json(json.loads(json.dumps(term_to_json(schedule)))) == schedule


def test_an_empty_lane_keeps_its_place_in_a_butterfly() -> None:
    eight, twenty = lanes(5, dealt(1, 8)).schedule(), lanes(5, dealt(1, 5)).schedule()
    one = [fma(ZERO, (run_of((k,)),)) for k in range(5)]
    assert eight == add(DType.FP32, add(DType.FP32, add(DType.FP32, one[0], one[4]), one[2]), add(DType.FP32, one[1], one[3]))
    assert twenty != eight


@pytest.mark.parametrize("cuts", [
    (dealt(1, 128),), *(pytest.param(cuts, marks=pytest.mark.slow) for cuts in (
        (dealt(8, 64, direction=Direction.UP), KCut(64)), (dealt(8, 128),),
        (KCut(32768), dealt(2, 32)),
        (dealt(256, 4, Join.CHAIN, Direction.FORWARD), dealt(8, 32)),
        (dealt(1, 512, Join.CHAIN, Direction.BACKWARD),)))], ids=str)
def test_four_million_indices_stay_small(cuts: tuple[KCut, ...]) -> None:
    record = lanes(4_000_003, *cuts)
    start = time.process_time()
    schedule = record.schedule()
    assert time.process_time() - start < 2
    assert leaf_count(schedule) == 4_000_003 and len(json.dumps(term_to_json(schedule))) < 60_000
    found = describe(schedule, record.k, record.input_dtype, record.output_dtype)
    assert found is not None and found.k_cuts == cuts


# The simulator


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
@pytest.mark.parametrize("cuts", [(dealt(1, 8),), (dealt(4, 3, Join.CHAIN, Direction.FORWARD), KCut(8)), (KCut(40), dealt(2, 5))], ids=str)
def test_lanes_side_by_side_give_the_bytes_of_the_exact_executor(cuts: tuple[KCut, ...], dtype: DType) -> None:
    rng = np.random.default_rng(3)
    schedule = lanes(101, *cuts, dtype=dtype).schedule()
    for scale in (1.0, 2.0**-70):  # the second brings bf16 products under the range of fp32
        a = encode_rn((rng.standard_normal((3, 101)) * np.exp2(rng.integers(-6, 7, (3, 101))) * scale).astype(np.float32), dtype)
        b = encode_rn((rng.standard_normal((101, 4)) * scale).astype(np.float32), dtype)
        got = execute(schedule, a, b, dtype)
        for i in range(3):
            for j in range(4):
                assert int(got[i, j]) == execute_exact(schedule, a[i].tolist(), b[:, j].tolist(), dtype)


# The walk


@settings(_SETTINGS, max_examples=3)
@given(lane_descs(), st.integers(0, 2**20))
def test_a_random_lane_record_is_walked_to_the_same_record(record: GEMMDesc, seed: int) -> None:
    is_walked_to_itself(record, seed)


@pytest.mark.slow
@settings(_SETTINGS, max_examples=40)
@given(lane_descs(), st.integers(2**20, 2**21))
def test_many_random_lane_records_are_walked_to_the_same_record(record: GEMMDesc, seed: int) -> None:
    is_walked_to_itself(record, seed)


def is_walked_to_itself(record: GEMMDesc, seed: int) -> None:
    found = walked(record, seed=seed)
    assert isinstance(found, WalkResult), found
    possible = candidates(found.tree, Context(record.k, record.input_dtype, record.output_dtype, 90))
    assert not isinstance(possible, Declined)
    schedules = [c.schedule for c in possible]
    truth = record.schedule()
    if truth in schedules:
        assert possible[schedules.index(truth)].desc == canonical(record)
    else:  # only where products that stand alone were fused: which of two came first, or how one was added, cannot be seen
        assert exact_form(truth) in map(exact_form, schedules)


@pytest.mark.parametrize("cuts", [
    (dealt(8, 32),), (KCut(2500), dealt(4, 32)), *(pytest.param(cuts, marks=pytest.mark.slow) for cuts in (
        (dealt(1, 128),), (dealt(1, 512, Join.CHAIN, Direction.FORWARD),), (dealt(2, 64, direction=Direction.UP), KCut(8)),
        (dealt(8, 100),),
        (dealt(64, 4, Join.CHAIN, Direction.FORWARD), dealt(2, 32)), (dealt(4, 16, Join.CHAIN, Direction.BACKWARD),)))], ids=str)
@pytest.mark.parametrize("k", [pytest.param(6_000, marks=pytest.mark.slow), 6_483])
def test_a_long_lane_sum_is_walked_in_few_readings(cuts: tuple[KCut, ...], k: int) -> None:
    record = lanes(k, *cuts)
    found = walked(record)
    assert isinstance(found, WalkResult) and found.instrument == "lanes"
    assert found.experiments < 2000  # a third of one reading an index
    (plain,) = candidates(found.tree, Context(k, DType.FP16, DType.FP32, 90))
    assert plain.schedule == record.schedule() and plain.desc is not None and plain.desc.k_cuts == cuts


def test_a_lane_that_is_moved_by_one_tile_is_not_recovered_as_if_it_were_not() -> None:
    """Lanes 3 and 4 change places in the second half of K: no form of lanes, so no lane walk may accept one."""
    ks = [[k for k in range(4800) if k % 16 == lane] for lane in range(16)]
    ks[3], ks[4] = ks[3][:150] + ks[4][150:], ks[4][:150] + ks[3][150:]
    term: Term = fma(ZERO, tuple(run_of((k,)) for k in ks[0]))
    for lane in ks[1:]:
        term = add(DType.FP32, term, fma(ZERO, tuple(run_of((k,)) for k in lane)))
    summing = SimulatedSumming(64, 1, 4800, term, DType.FP16, DType.FP32)
    found = recover_tree(Reader(summing, pair_for(DType.FP16), places_for(None, 64, 1, False)), 5)
    assert isinstance(found, Declined)


@pytest.mark.parametrize(("problem", "family"), [
    (Problem.gemm(1, 8, 3001, DType.FP16), "128 lanes of 1 joined by a butterfly down, ascending fma chain"),
    pytest.param(Problem.gemm(8, 1, 3000, DType.BF16, DType.FP32, layout=Layout.TN),
                 "32 lanes of 8 joined by a butterfly down, ascending fma chain", marks=pytest.mark.slow),
    pytest.param(Problem.gemm(8, 1, 5003, DType.FP16, DType.FP32, layout=Layout.NT),
                 "split-K in 3 parts, 64 lanes of 2 joined by a butterfly up, ascending fma chain", marks=pytest.mark.slow),
    pytest.param(Problem.gemm(1, 8, 2070, DType.BF16, layout=Layout.TT),
                 "16 lanes of 4, closed every 64, ascending fma chain", marks=pytest.mark.slow),
], ids=lambda x: "" if isinstance(x, str) else str(x.layout))
def test_a_vector_product_of_the_simulated_library_is_confirmed(problem: Problem, family: str) -> None:
    point = walk_problem(problem, Preference(), Opened(SimulatedOracle(VECTORS), ""), seed=2024)
    assert isinstance(point, Point), point
    (result,) = point.classes
    answer = VECTORS.ask(problem, Preference())
    assert not isinstance(answer, Declined)
    assert result.outcome is Outcome.CONFIRMED
    assert result.schedule == VECTORS.descriptor(problem, answer).schedule()
    assert result.desc is not None and result.family == family


@pytest.mark.slow
def test_the_two_stages_of_a_stand_in_dot_product_are_recovered() -> None:
    problem = Problem.gemm(1, 1, 2001, DType.FP16, DType.FP32)
    answer = VECTORS.ask(problem, Preference())
    assert not isinstance(answer, Declined) and len(VECTORS.kernels(problem, answer)) == 2
    truth = VECTORS.descriptor(problem, answer)
    found = walked(truth)
    assert isinstance(found, WalkResult) and found.instrument == "lanes"
    (plain,) = candidates(found.tree, Context(2001, DType.FP16, DType.FP32, 90))
    assert plain.schedule == truth.schedule() and plain.desc == canonical(truth)


# Long irregular sums


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_a_sum_of_three_thousand_uneven_parts_is_compared_written_and_read(left: bool) -> None:
    def build(parts: int) -> Term:
        term: Term = ZERO
        places = [(k * k % 7 + 20 * k, 1 + k * k % 3) for k in range(parts)]
        for start, size in places if left else reversed(places):
            part = fma(ZERO, tuple(run_of((start + i,)) for i in range(size)))
            term = part if term == ZERO else add(DType.FP32, term, part)
        return term

    one, two = build(3000), build(3000)
    assert one == two and hash(one) == hash(two) and one is not two
    assert one != build(2999) and shift(one, 5) != one and shift(shift(one, 5), 2) == shift(one, 7)
    assert term_from_json(json.loads(json.dumps(term_to_json(one)))) == one
    assert len(render_text(one)) > 3000 and len(repr(one)) > 3000
    assert (first_k(one), leaf_count(one)) == (0, sum(1 + k * k % 3 for k in range(3000)))
    assert inside(one, *span(one)) == leaf_count(one) == sum(1 for _ in steps(one))
    assert describe(one, span(one)[1], DType.FP16, DType.FP32) is None


def test_terms_survive_pickle() -> None:
    deep: Term = fma(ZERO, (run_of((0,)),))
    for k in range(1, 3000):
        deep = add(DType.FP16 if k % 2 else DType.FP32, deep, cast(DType.FP16, fma(ZERO, (run_of((k,)),))))
    for term in (lanes(300, dealt(4, 8), KCut(8)).schedule(), deep):
        assert pickle.loads(pickle.dumps(term)) == term == copy.deepcopy(term)


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
def test_a_gapless_sum_of_five_hundred_uneven_parts_goes_everywhere(left: bool) -> None:
    """No form of record gives it; every use of it must say so, or answer, and none may recurse into it."""
    edges = np.concatenate([[0], np.cumsum([2 + (7 * p + p * p) % 5 for p in range(520)])]).tolist()
    parts = [fma(ZERO, (Run(lo, (0,), hi - lo, 1),)) for lo, hi in itertools.pairwise(edges)]
    term = parts[0] if left else parts[-1]
    for part in parts[1:] if left else parts[-2::-1]:
        term = add(DType.FP32, term, part)
    k = edges[-1]
    assert describe(term, k, DType.FP16, DType.FP32) is None
    assert term_from_json(json.loads(json.dumps(term_to_json(term)))) == term and render_text(term) and exact_form(term) == term
    bits = np.random.default_rng(4).standard_normal((2, k)).astype(np.float16).view(np.uint16)
    got = execute(term, bits[:1], bits[1:].T, DType.FP16)
    assert int(got[0, 0]) == execute_exact(term, bits[0].tolist(), bits[1].tolist(), DType.FP16)
    assert leaf_count(joined(term, 0, k - 1)) == k and span(term) == (0, k)


def test_single_products_are_one_form_whether_fused_or_added() -> None:
    a, b, c = (fma(ZERO, (run_of((k,)),)) for k in range(3))
    chain = fma(ZERO, (Run(0, (0,), 3, 1),))
    assert exact_form(add(DType.FP32, add(DType.FP32, a, b), c)) == exact_form(chain) == chain
    assert exact_form(fma(ZERO, (run_of((1,)), run_of((0,)), run_of((2,))))) == chain
    assert exact_form(add(DType.FP16, a, b)) != exact_form(add(DType.FP32, a, b))
    other = add(DType.FP32, a, add(DType.FP32, b, c))
    assert exact_form(other) != chain  # b + c is rounded first


@pytest.mark.parametrize(("k", "count"), [(66, 16), (141, 32)])
@pytest.mark.parametrize("join", [Join.CHAIN, Join.BUTTERFLY])
def test_a_few_lanes_that_go_on_once_more_are_read_as_that(k: int, count: int, join: Join) -> None:
    """K a little more than lanes of 4 take in one turn: the first lanes go on, and no loop begins there."""
    record = lanes(k, dealt(4, count, join, Direction.FORWARD if join is Join.CHAIN else Direction.DOWN))
    pairs = np.array([(i, j) for i in range(k) for j in range(i + 1, k)], np.int64)
    windows = np.tile(np.array([[0, k]], np.int64), (len(pairs), 1))
    truth = predicted(record.schedule(), pairs, windows)
    found = walked(record)
    assert isinstance(found, WalkResult)
    np.testing.assert_array_equal(predicted(shape_term(found.tree), pairs, windows), truth)
