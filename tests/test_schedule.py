"""Rounding schedules: equal orders are equal values, questions about the tree agree with a tree built leaf by leaf, JSON and text."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import gemm_descs, general_terms

from probe.descriptor import Direction, GEMMDesc, Instruction, KCut
from probe.errors import UsageError
from probe.problem import DType
from probe.schedule import (
    ZERO,
    Add,
    Call,
    Cast,
    Fma,
    Fold,
    Mma,
    Mul,
    Row,
    Run,
    Term,
    add,
    cast,
    contiguous_runs,
    first_k,
    fma,
    fold,
    inside,
    joined,
    leaf_count,
    mma,
    render_text,
    run_of,
    shift,
    single_run,
    span,
    steps,
    term_from_json,
    term_to_json,
)
from probe.tensorcore import row_for

ROW = row_for(90, DType.FP16)
NARROW = Row(4, 25)
_SETTINGS = settings(max_examples=150, deadline=None, derandomize=True)
_FEW = settings(_SETTINGS, max_examples=60)


# Strategies and the tree built leaf by leaf


@st.composite
def step_lists(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Steps in order of execution, index sets disjoint: stretches of equal steps, even or not, forward or back, and lone odd ones."""
    out: list[tuple[int, ...]] = []
    base = 0
    for _ in range(draw(st.integers(1, 5))):
        pattern = draw(st.sampled_from([(0,), (0, 1), (0, 2), (0, 1, 2, 3), (0, 1, 4, 5)]))
        advance = draw(st.integers(pattern[-1] + 1, pattern[-1] + 3))
        count = draw(st.integers(1, 6))
        starts = [base + t * advance for t in range(count)]
        if draw(st.integers(0, 3)) == 0:
            starts.reverse()
        out += [tuple(s + o for o in pattern) for s in starts]
        base += count * advance + pattern[-1] + draw(st.integers(0, 2))
    return out


@st.composite
def folded_terms(draw: st.DrawFn) -> Term:
    """Random trees with regular sums in them: copies side by side or interleaved like lanes, on top of one another, behind another sum."""
    body: Term = draw(general_terms(NARROW, most=7))
    for _ in range(draw(st.integers(0, 2))):
        count = draw(st.integers(2, 5))
        if isinstance(body, Mma) and draw(st.booleans()):  # lane j takes every count-th index: copies overlap in extent
            order = draw(st.permutations(range(draw(st.integers(2, 6)))))
            body = mma(ZERO, NARROW, tuple(run_of((p * count,)) for p in order))
            advance, count = 1, count - 1
        else:
            advance = span(body)[1] + draw(st.integers(0, 3))
        body = fold(ZERO if draw(st.booleans()) else body, draw(st.sampled_from([DType.FP32, DType.FP16])),
                    shift(body, advance), count, advance)
    if draw(st.booleans()):
        reach = span(body)[1]
        body = add(DType.FP32, cast(DType.FP16, body), shift(draw(general_terms(NARROW, most=9)), reach))
    return body


Leaves = frozenset[int]


def brute_nodes(term: Term) -> list[Leaves]:
    """The leaves under every node of the tree, children before parents; the last is the whole. Copies of a fold are moved here, as sets."""
    match term:
        case Mma(previous=previous, runs=runs) | Fma(previous=previous, runs=runs):
            out = brute_nodes(previous)
            below = out[-1] if out else frozenset()
            for run in runs:
                for t in range(run.count):
                    below = below | {run.first + t * run.advance + o for o in run.pattern}
                    out.append(below)
            return out
        case Mul(k):
            return [frozenset({k})]
        case Add(_, left, right):
            a, b = brute_nodes(left), brute_nodes(right)
            return [*a, *b, (a[-1] if a else frozenset()) | (b[-1] if b else frozenset())]
        case Fold(previous, _, body, count, advance):
            out = brute_nodes(previous)
            below = out[-1] if out else frozenset()
            for t in range(count):
                copy = [frozenset(k + t * advance for k in node) for node in brute_nodes(body)]
                below = below | copy[-1]
                out += [*copy, below]
            return out
        case Cast(_, x):
            return brute_nodes(x)
        case _:
            return []


def check_against_brute_tree(term: Term, ask: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    nodes = brute_nodes(term)
    everything = sorted(nodes[-1])
    assert leaf_count(term) == len(everything)
    assert span(term) == (everything[0], everything[-1] + 1)
    assert first_k(term) == everything[0]
    assert sorted(k for step in steps(term) for k in step) == everything
    for lo, hi in windows:
        assert inside(term, lo, hi) == sum(lo <= k < hi for k in everything)
    for a, b in ask:
        i, j = everything[a % len(everything)], everything[b % len(everything)]
        if i == j:
            continue
        smallest = min((n for n in nodes if i in n and j in n), key=len)
        node = joined(term, i, j)
        assert {k for step in steps(node) for k in step} == smallest
        assert leaf_count(node) == len(smallest)
        for lo, hi in windows:
            assert inside(node, lo, hi) == sum(lo <= k < hi for k in smallest)


_PAIRS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=4, max_size=8)
_WINDOWS = st.lists(st.tuples(st.integers(-3, 60), st.integers(-3, 90)), min_size=3, max_size=5)


# Equal orders are equal values


@_SETTINGS
@given(step_lists(), st.data())
def test_equal_step_sequences_are_equal_however_they_were_grouped(sequence: list[tuple[int, ...]], data: st.DataObject) -> None:
    one_by_one: Term = ZERO
    for step in sequence:
        one_by_one = mma(one_by_one, ROW, (run_of(step),))
    at_once = mma(ZERO, ROW, tuple(run_of(step) for step in sequence))
    grouped: Term = ZERO
    at = 0
    while at < len(sequence):
        size = data.draw(st.integers(1, len(sequence) - at))
        batch = mma(ZERO, ROW, tuple(run_of(step) for step in sequence[at:at + size]))
        assert isinstance(batch, Mma)
        grouped = mma(grouped, ROW, batch.runs)
        at += size
    assert one_by_one == at_once == grouped
    assert list(steps(at_once)) == sequence


@_SETTINGS
@given(st.permutations(range(12)), st.integers(1, 11))
def test_single_multiply_adds_are_equal_however_they_were_grouped(order: list[int], cut: int) -> None:
    whole = fma(ZERO, tuple(run_of((k,)) for k in order))
    head = fma(ZERO, tuple(run_of((k,)) for k in order[:cut]))
    tail = fma(ZERO, tuple(run_of((k,)) for k in order[cut:]))
    assert isinstance(tail, Fma)
    assert fma(head, tail.runs) == whole
    assert [k for (k,) in steps(whole)] == order


@_SETTINGS
@given(st.lists(step_lists(), min_size=2, max_size=2, unique_by=lambda s: tuple(s)))
def test_different_step_sequences_are_different(two: list[list[tuple[int, ...]]]) -> None:
    a, b = (mma(ZERO, ROW, tuple(run_of(step) for step in sequence)) for sequence in two)
    assert a != b


@_SETTINGS
@given(st.integers(0, 50), st.integers(1, 300), st.integers(1, 64), st.sampled_from([1, 4, 8, 16]))
def test_steps_wider_than_the_row_split_into_its_blocks(start: int, length: int, width: int, products: int) -> None:
    row = Row(products, 25)
    blocks = [tuple(range(a, min(a + products, lo + width, start + length)))
              for lo in range(start, start + length, width) for a in range(lo, min(lo + width, start + length), products)]
    assert list(steps(mma(ZERO, row, contiguous_runs(start, start + length, width)))) == blocks


def test_a_wide_step_with_gaps_splits_in_ascending_order() -> None:
    assert list(steps(mma(ZERO, NARROW, (run_of((9, 0, 2, 4, 30, 31)),)))) == [(0, 2, 4, 9), (30, 31)]


@_SETTINGS
@given(folded_terms(), st.integers(2, 7), st.integers(0, 5))
def test_equal_moved_parts_fold_however_they_were_added(part: Term, count: int, gap: int) -> None:
    reach = span(part)[1] + gap
    parts = [shift(part, t * reach) for t in range(count)]
    forward = parts[0]
    for p in parts[1:]:
        forward = add(DType.FP32, forward, p)
    commuted = parts[0]
    for p in parts[1:]:
        commuted = add(DType.FP32, p, commuted)
    assert commuted == forward
    assert fold(parts[0], DType.FP32, parts[1], count - 1, reach) == forward
    if count > 3:
        halfway = fold(parts[0], DType.FP32, parts[1], 2, reach)
        assert fold(halfway, DType.FP32, parts[3], count - 3, reach) == forward
    assert fold(parts[0], DType.FP16, parts[1], count - 1, reach) != forward


@_SETTINGS
@given(folded_terms(), folded_terms(), st.sampled_from([DType.FP32, DType.FP16]))
def test_addition_commutes_and_is_not_associative(a: Term, b: Term, dtype: DType) -> None:
    b = shift(b, span(a)[1])
    c = shift(a, span(b)[1])
    assert add(dtype, a, b) == add(dtype, b, a)
    assert add(dtype, add(dtype, a, b), c) != add(dtype, a, add(dtype, b, c))


@_FEW
@given(folded_terms(), st.integers(0, 40), st.integers(0, 40))
def test_shift_moves_every_step_and_nothing_else(term: Term, one: int, other: int) -> None:
    moved = shift(term, one)
    assert list(steps(moved)) == [tuple(k + one for k in step) for step in steps(term)]
    assert shift(moved, other) == shift(term, one + other)
    assert shift(moved, -one) == term
    assert shift(term, 0) == term


def test_a_cast_to_the_dtype_held_already_is_no_rounding() -> None:
    sum16 = add(DType.FP16, Mul(0), Mul(1))
    assert cast(DType.FP16, sum16) is sum16
    assert cast(DType.FP32, Mul(0)) == Mul(0)
    assert cast(DType.FP32, sum16) != sum16


@pytest.mark.parametrize("make", [
    lambda: Row(0, 25), lambda: Row(16, 25, 10), lambda: Row(16, 65), lambda: Run(-1, (0,)), lambda: Run(0, (1, 2)), lambda: Run(0, ()),
    lambda: Run(0, (0, 0)), lambda: Run(0, (0,), 2, 0), lambda: Run(0, (0,), 1, 4), lambda: Run(0, (0,), 2, -4),
    lambda: Run(0, (0,), 0, 0), lambda: fma(ZERO, (run_of((0, 1)),)),
])
def test_what_is_no_step_is_refused(make: object) -> None:
    with pytest.raises(UsageError):
        make()  # type: ignore[operator]


# Questions about the tree


@_SETTINGS
@given(folded_terms(), _PAIRS, _WINDOWS)
def test_nodes_of_folded_trees_are_those_of_the_tree_built_leaf_by_leaf(term: Term, ask: list[tuple[int, int]],
                                                                      windows: list[tuple[int, int]]) -> None:
    check_against_brute_tree(term, ask, windows)


@_FEW
@given(gemm_descs(), _PAIRS, st.lists(st.tuples(st.integers(0, 950), st.integers(0, 950)), min_size=3, max_size=4))
def test_nodes_of_typed_records_are_those_of_the_tree_built_leaf_by_leaf(desc: GEMMDesc, ask: list[tuple[int, int]],
                                                                       windows: list[tuple[int, int]]) -> None:
    check_against_brute_tree(desc.schedule(), ask, windows)


@_FEW
@given(general_terms(NARROW), _PAIRS, _WINDOWS)
def test_nodes_of_permuted_trees_are_those_of_the_tree_built_leaf_by_leaf(term: Term, ask: list[tuple[int, int]],
                                                                        windows: list[tuple[int, int]]) -> None:
    check_against_brute_tree(term, ask, windows)


def test_indices_that_are_not_summed_have_no_node() -> None:
    term = mma(ZERO, ROW, contiguous_runs(0, 32, 16))
    for i, j in [(0, 32), (32, 0), (5, 5), (-1, 0)]:
        with pytest.raises(UsageError):
            joined(term, i, j)


def test_single_run_knows_an_interval_from_one_with_a_hole() -> None:
    assert single_run(mma(ZERO, ROW, contiguous_runs(3, 40, 16))) == (3, 40)
    assert single_run(mma(ZERO, ROW, (run_of((0, 1, 3)),))) is None
    lanes = add(DType.FP32, fma(ZERO, (Run(0, (0,), 4, 2),)), fma(ZERO, (Run(1, (0,), 4, 2),)))
    assert single_run(lanes) == (0, 8)
    assert single_run(ZERO) is None


# JSON


@_SETTINGS
@given(folded_terms(), st.sampled_from([DType.FP32, DType.FP16, DType.BF16]))
def test_a_random_schedule_survives_json(term: Term, dtype: DType) -> None:
    term = cast(dtype, term)
    assert term_from_json(json.loads(json.dumps(term_to_json(term)))) == term


@_FEW
@given(gemm_descs())
def test_the_schedule_of_a_random_record_survives_json(desc: GEMMDesc) -> None:
    term = desc.schedule()
    assert term_from_json(json.loads(json.dumps(term_to_json(term)))) == term


def test_every_kind_of_term_survives_json() -> None:
    wide = Row(16, 25, 23, nearest=True)
    term = cast(DType.BF16, Call("gelu", (add(DType.FP16, mma(fma(ZERO, (run_of((3,)),)), wide, contiguous_runs(8, 40, 16)), Mul(1)),)))
    assert term_from_json(json.loads(json.dumps(term_to_json(term)))) == term


def test_parts_written_out_in_json_come_back_folded() -> None:
    written_out = ["add", "fp32", ["add", "fp32", ["mul", 2], ["mul", 1]], ["mul", 0]]
    assert term_from_json(written_out) == Add(DType.FP32, Mul(0), Add(DType.FP32, Mul(1), Mul(2)))
    chain = ["add", "fp32", ["add", "fp32", ["mul", 0], ["mul", 1]], ["mul", 2]]
    assert term_from_json(chain) == Fold(Mul(0), DType.FP32, Mul(1), 2, 1)


_STEP = [0, 16, 2, 16]
_MMA = ["mma", ["zero"], [16, 25, 23], [_STEP]]


@pytest.mark.parametrize("junk", [
    None, 3, "zero", [], {}, ["zero", 1], ["mul"], ["mul", "0"], ["mul", 1.5], ["mul", -1], ["mul", True], ["what", ["zero"]],
    ["mma", ["zero"], [16, 25, 23], [[0, 16, 2]]],
    ["mma", ["zero"], [16, 25, 23], [[0, 16, 2, 0]]],
    ["mma", ["zero"], [16, 25, 23], [[-1, 16, 2, 16]]],
    ["mma", ["zero"], [16, 25, 23], [[0.5, 16, 1, 0]]],
    ["mma", ["zero"], [16, 25, 23], [[0, [1, 2], 1, 0]]],
    ["mma", ["zero"], [16, 25, 23], [[0, 0, 1, 0]]],
    ["mma", ["zero"], [16, 25, 23], 5],
    ["mma", ["zero"], [16], [_STEP]],
    ["mma", ["zero"], [16, 25, 24], [_STEP]],
    ["mma", ["zero"], ["16", 25, 23], [_STEP]],
    ["mma", ["nothing"], [16, 25, 23], [_STEP]],
    ["fma", ["zero"], [[0, 2, 1, 0]]],
    ["add", "fp99", ["mul", 0], ["mul", 1]],
    ["add", "fp32", ["mul", 0]],
    ["cast", "half", ["mul", 0]],
    ["fold", _MMA, "fp32", _MMA, "2", 32],
    ["fold", _MMA, "fp32", _MMA, 0, 32],
    ["fold", _MMA, "fp32", _MMA, -2, 32],
    ["fold", _MMA, "fp32", _MMA, 2, "32"],
    ["fold", _MMA, "fp32", _MMA, 2, -32],
    ["call", 7, []],
    ["call", "gelu", ["zero"]],
], ids=lambda junk: json.dumps(junk)[:60])
def test_junk_is_no_schedule(junk: object) -> None:
    with pytest.raises(UsageError):
        term_from_json(junk)  # type: ignore[arg-type]


# K = 300,000


def _long(k: int, **others: object) -> GEMMDesc:
    common: dict[str, object] = {"k": k, "k_summed": k, "input_dtype": DType.FP16, "output_dtype": DType.FP16, "row": ROW,
                                 "instruction_k": 16, "instruction": Instruction.WGMMA}
    return GEMMDesc(**(common | others))  # type: ignore[arg-type]


@pytest.mark.parametrize("desc", [
    _long(300_000), _long(300_007), _long(300_000, k_cuts=(KCut(2368),)), _long(300_007, k_cuts=(KCut(2304),), partial_dtype=DType.FP16),
    _long(300_000, use_fast_accum=False), _long(300_000, use_fast_accum=False, k_cuts=(KCut(2336),)),
    _long(300_007, k_cuts=(KCut(2344, direction=Direction.FORWARD), KCut(128))),
    _long(300_000, row=None, instruction_k=1, instruction=Instruction.FMA),
], ids=["single", "residue", "split", "split fp16", "per instruction", "split per instruction", "nest", "fma"])
def test_a_long_sum_stays_small_and_quick(desc: GEMMDesc) -> None:
    start = time.perf_counter()
    term = desc.schedule()
    text = json.dumps(term_to_json(term))
    assert term_from_json(json.loads(text)) == term
    assert leaf_count(term) == desc.k
    assert inside(term, 0, 150_000) == 150_000
    nodes = [joined(term, i, i + 1) for i in range(0, desc.k - 1, 9973)]
    assert all(inside(node, i * 9973, i * 9973 + 2) == 2 for i, node in enumerate(nodes))
    assert len(text) < 1000
    assert len(render_text(term)) < 1500
    # a step at a time in Python would take a good part of a minute for the pairs above; the bound only tells the two apart
    assert time.perf_counter() - start < 5


def test_a_chain_from_the_last_part_is_as_deep_as_its_parts_and_still_answers() -> None:
    desc = _long(129 * 2368, k_cuts=(KCut(2368, direction=Direction.BACKWARD),))
    term = desc.schedule()
    assert leaf_count(joined(term, 0, 1)) == 16
    assert leaf_count(joined(term, 0, desc.k - 1)) == desc.k
    assert leaf_count(joined(term, desc.k - 1, desc.k - 2368 - 1)) == 2 * 2368
    assert term_from_json(json.loads(json.dumps(term_to_json(term)))) == term


# Text


def test_a_schedule_reads_as_the_line_that_a_user_sees() -> None:
    single = _long(576)
    assert render_text(single.schedule()) == "0 | 0..15 | 16..31 | ... | 560..575 -> fp16"
    three = _long(4096, k_cuts=(KCut(1408),))
    assert render_text(three.schedule()) == (
        "(0 | 0..15 | 16..31 | ... | 1392..1407) + (0 | 1408..1423 | 1424..1439 | ... | 2800..2815)"
        " + (0 | 2816..2831 | 2832..2847 | ... | 4080..4095) -> fp16")
    assert render_text(_long(48).schedule()) == "0 | 0..15 | 16..31 | 32..47 -> fp16"
    assert render_text(_long(64).schedule()) == "0 | 0..15 | 16..31 | ... | 48..63 -> fp16"
    assert render_text(_long(40, use_fast_accum=False).schedule()) == "(0 | 0..15) + (0 | 16..31) + (0 | 32..39) -> fp16"
    assert render_text(_long(5, row=None, instruction_k=1, instruction=Instruction.FMA).schedule()) == "0 | 0 | 1 | ... | 4 -> fp16"


def test_the_text_keeps_apart_what_rounds_apart() -> None:
    held = _long(48, k_cuts=(KCut(16),), partial_dtype=DType.FP16, merge_dtype=DType.FP16)
    assert render_text(held.schedule()) == "(0 | 0..15 -> fp16) +[fp16] (0 | 16..31 -> fp16) +[fp16] (0 | 32..47 -> fp16)"
    backward = _long(48, k_cuts=(KCut(16, direction=Direction.BACKWARD),))
    assert render_text(backward.schedule()) == "(0 | 0..15) + ((0 | 16..31) + (0 | 32..47)) -> fp16"
    assert render_text(mma(ZERO, ROW, (run_of((0, 1, 4, 5)),))) == "0 | {0,1,4,5}"
    assert render_text(Call("gelu", (Mul(3),))) == "gelu(p3)"
    assert render_text(fold(ZERO, DType.FP32, Mul(0), 5, 1)) == "0 + (p0) + (p1) + ... + (p4)"
