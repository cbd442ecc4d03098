"""Walks on the simulated library: every reading is the one that the tree predicts, and every limit of a reading is kept (DESIGN fact 2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import gemm_descs, general_terms

from probe.descriptor import GEMMDesc, Instruction, KCut, ShortTurn
from probe.errors import Declined, DeclineReason, UsageError
from probe.inputs import Axis, Pair, pair_for, paper_pair
from probe.problem import DType
from probe.schedule import ZERO, Run, Term, add, cast, contiguous_runs, fma, joined, leaf_count, mma, steps
from probe.simulator.library import SimulatedSumming
from probe.tensorcore import row_for
from probe.walks.check import every_index, predicted, random_check
from probe.walks.extent import summed_extent
from probe.walks.pairs import contiguous_walk, strided_walk
from probe.walks.reader import UNCANCELLED, Reader, places_for
from probe.walks.recover_tree import WalkResult, recover_tree, shape_term

ROW = row_for(90, DType.FP16)
_SETTINGS = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def desc(k: int, dtype: DType = DType.FP16, output: DType = DType.FP32, **others: object) -> GEMMDesc:
    row = row_for(90, dtype)
    common: dict[str, object] = {"k": k, "k_summed": k, "input_dtype": dtype, "output_dtype": output, "row": row,
                                 "instruction_k": row.products, "instruction": Instruction.WGMMA}
    return GEMMDesc(**(common | others))  # type: ignore[arg-type]


def reader_of(record: GEMMDesc, m: int = 8, n: int = 8, pair: Pair | None = None) -> Reader:
    return reader_for(record.schedule(), record.k, record.input_dtype, record.output_dtype, m, n, pair)


def reader_for(schedule: Term, k: int, dtype: DType = DType.FP16, output: DType = DType.FP32, m: int = 8, n: int = 8,
               pair: Pair | None = None) -> Reader:
    pair = pair or pair_for(dtype)
    return Reader(SimulatedSumming(m, n, k, schedule, dtype, output), pair, places_for(None, m, n, pair.both))


def rows(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, np.int64)


def raw_count(reader: Reader, plus: int, minus: int, lo: int, hi: int) -> float:
    """What one experiment reads, with no care for how many units stand in it."""
    return float(reader.raw(np.array([[plus, minus, lo, hi]], np.int64))[0] / reader.pair.unit_value)


# Readings are what the tree predicts

_OUTPUTS = {DType.FP16: [DType.FP32, DType.FP16], DType.BF16: [DType.FP32, DType.BF16], DType.E4M3: [DType.FP32, DType.BF16, DType.FP16]}


@_SETTINGS
@given(gemm_descs(), st.data(), st.sampled_from([(8, 8), (16, 2), (3, 12), (1, 1)]))
def test_a_reading_is_what_the_tree_predicts(record: GEMMDesc, data: st.DataObject, shape: tuple[int, int]) -> None:
    record = replace(record, output_dtype=data.draw(st.sampled_from(_OUTPUTS[record.input_dtype])))
    reader = reader_of(record, *shape)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    if record.k_summed < 2:
        return
    pairs = np.array([rng.choice(record.k_summed, 2, replace=False) for _ in range(16)], np.int64)
    pairs[::4, 1] = (pairs[::4, 0] + 1) % record.k_summed  # neighbours, where steps show
    windows = np.sort(rng.integers(0, record.k_summed + 1, (16, 2)), axis=1)
    windows[0] = 0, record.k_summed
    assert reader.lost(pairs, windows).tolist() == predicted(record.schedule(), pairs, windows).tolist()
    swapped = pairs[:, ::-1]
    assert reader.lost(swapped, windows).tolist() == predicted(record.schedule(), pairs, windows).tolist()  # which leg is +L says nothing


@_SETTINGS
@given(st.data(), st.sampled_from([DType.FP16, DType.BF16, DType.E4M3]))
def test_a_reading_of_a_permuted_tree_counts_the_masked_leaves_under_the_node(data: st.DataObject, dtype: DType) -> None:
    term = data.draw(general_terms(row_for(90, dtype)))
    k = leaf_count(term)
    reader = reader_for(term, k, dtype)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=k, max_size=k)))
    two = st.lists(st.integers(0, k - 1), min_size=2, max_size=2, unique=True)
    pairs = np.array(data.draw(st.lists(two, min_size=6, max_size=6)), np.int64)
    under = [{i for step in steps(joined(term, a, b)) for i in step} - {a, b} for a, b in pairs.tolist()]
    windows = np.tile(np.array([[0, k]]), (len(pairs), 1))
    assert reader.lost(pairs, windows, mask).tolist() == [sum(mask[i] for i in node) for node in under]


@pytest.mark.parametrize(("m", "n", "axis"), [(5, 3, Axis.ROWS), (3, 5, Axis.COLUMNS), (4, 4, Axis.ROWS)])
def test_experiments_sit_along_the_longer_side(m: int, n: int, axis: Axis) -> None:
    places = places_for(None, m, n, both=False)
    assert places.axis is axis and len(places.rows) == len(places.columns) == max(m, n)
    diagonal = places_for(None, m, n, both=True)
    assert diagonal.axis is Axis.DIAGONAL and (diagonal.rows == diagonal.columns).all() and len(diagonal.rows) == min(m, n)


@pytest.mark.parametrize(("m", "n"), [(5, 3), (3, 5), (4, 4)])
def test_experiments_of_a_class_sit_on_its_elements(m: int, n: int) -> None:
    labels = np.zeros((m, n), bool)
    labels[1, 2] = labels[2, 1] = labels[2, 2] = True
    for both in (False, True):
        places = places_for(labels, m, n, both)
        assert labels[places.rows, places.columns].all()
        assert len(places.rows) == (1 if both else 2)


def test_a_reader_needs_an_element_to_read() -> None:
    summing = SimulatedSumming(4, 4, 32, desc(32).schedule(), DType.FP16, DType.FP32)
    with pytest.raises(UsageError):
        Reader(summing, pair_for(DType.FP16), places_for(np.zeros((4, 4), bool), 4, 4, both=True))


# Limits


@pytest.mark.parametrize(("dtype", "output", "exact"), [
    (DType.FP16, DType.FP16, 2048), (DType.BF16, DType.BF16, 256), (DType.E4M3, DType.BF16, 256), (DType.E4M3, DType.FP16, 2048)])
def test_an_output_counts_exactly_to_its_precision_and_no_further(dtype: DType, output: DType, exact: int) -> None:
    reader = reader_of(desc(exact + 40, dtype, output))
    assert raw_count(reader, -1, -1, 0, exact) == exact
    assert raw_count(reader, -1, -1, 0, exact + 1) != exact + 1
    windows = rows((0, exact), (0, exact + 1), (3, exact + 40), (0, exact + 40), (7, 7))
    none = np.full((len(windows), 2), -1)
    assert reader.survivors(none, windows).tolist() == [hi - lo for lo, hi in windows.tolist()]
    assert reader.lost(rows((exact + 37, exact + 38)), rows((0, exact + 40))).tolist() == predicted(
        desc(exact + 40, dtype, output).schedule(), rows((exact + 37, exact + 38)), rows((0, exact + 40))).tolist()


def test_the_e4m3_accumulator_sticks_at_16384_and_windows_do_not() -> None:
    reader = reader_of(desc(20_000, DType.E4M3), 2, 2)
    assert raw_count(reader, -1, -1, 0, 20_000) == 16_384
    assert reader.survivors(np.full((1, 2), -1), rows((0, 20_000))).tolist() == [20_000]


def _check_too_many_units(record: GEMMDesc, plus: int, minus: int, lo: int, hi: int) -> None:
    """One experiment with all units of the window reads something else than the truth; the same window cut by the reader reads it."""
    reader = reader_of(record, 2, 2)
    assert hi - lo > reader.pair.most_units
    node = joined(record.schedule(), plus, minus)
    lost = int(predicted(record.schedule(), rows((plus, minus)), rows((lo, hi)))[0])
    legs = sum(lo <= x < hi for x in (plus, minus))
    assert leaf_count(node) > reader.pair.most_units
    want = hi - lo - legs - lost
    assert raw_count(reader, plus, minus, lo, hi) != want
    assert reader.survivors(rows((plus, minus)), rows((lo, hi))).tolist() == [want]


def test_too_many_fp16_units_before_a_pair_survive_it() -> None:
    _check_too_many_units(desc(40_000), 39_990, 39_999, 0, 20_000)
    # 2**14 units reach the last bit that an instruction keeps beside L: one less is still lost
    reader = reader_of(desc(40_000), 2, 2)
    assert raw_count(reader, 39_990, 39_999, 0, 2**14 - 1) == 0
    assert raw_count(reader, 39_990, 39_999, 0, 2**14) == 2**14


def test_too_many_fp16_units_pull_a_leg_off_its_value_where_parts_are_added() -> None:
    split = desc(60_000, k_cuts=(KCut(20_000),))
    _check_too_many_units(split, 40_005, 5, 20_000, 40_000)  # -L comes first: its neighbours towards zero lie closer
    reader = reader_of(split, 2, 2)
    assert raw_count(reader, 40_005, 5, 20_000, 20_000 + reader.pair.most_units) == 0
    assert raw_count(reader, 40_005, 5, 20_000, 40_000) == 2**15


def test_too_many_e4m3_units_pull_a_leg_off_its_value_where_parts_are_added() -> None:
    split = desc(1536, DType.E4M3, k_cuts=(KCut(512),))
    _check_too_many_units(split, 1030, 5, 512, 1012)
    reader = reader_of(split, 2, 2)
    assert raw_count(reader, 1030, 5, 512, 512 + reader.pair.most_units) == 0
    assert raw_count(reader, 1030, 5, 512, 1012) == 512


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.E4M3])
def test_a_window_is_never_given_more_units_than_the_pair_and_the_output_bear(dtype: DType) -> None:
    for output in _OUTPUTS[dtype]:
        reader = reader_of(desc(3000, dtype, output))
        asked: list[np.ndarray] = []
        plain = reader.raw
        reader.raw = lambda table, mask=None, plain=plain, asked=asked: (asked.append(table), plain(table, mask))[1]  # type: ignore[method-assign]
        reader.lost(rows((5, 2000), (2998, 2999)), rows((0, 3000), (100, 2900)))
        most = min(pair_for(dtype).most_units, {DType.FP32: 2**24, DType.FP16: 2048, DType.BF16: 256}[output])
        sizes = np.concatenate([t[:, 3] - t[:, 2] for t in asked])
        assert sizes.max() <= most and sizes.sum() == 3000 + 2800


def test_a_masked_window_is_cut_by_the_units_that_stand_in_it() -> None:
    reader = reader_of(desc(1000, DType.BF16, DType.BF16))
    mask = np.arange(1000) % 2 == 1
    got = reader.survivors(rows((-1, -1), (-1, -1), (600, 601)), rows((0, 1000), (10, 400), (0, 1000)), mask)
    assert got.tolist() == [500, 195, int(mask[608:].sum())]


# Dropped tails


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.E4M3])
def test_a_pair_with_a_leg_in_a_dropped_tail_does_not_cancel(dtype: DType) -> None:
    for output in _OUTPUTS[dtype]:
        reader = reader_of(desc(200, dtype, output, k_summed=192, k_cuts=(KCut(64),)))
        whole = rows((0, 200))
        for pair in ((0, 192), (199, 5), (191, 199)):
            assert reader.survivors(rows(pair), whole).tolist() == [UNCANCELLED], (output, pair)
            assert reader.lost(rows(pair), whole).tolist() == [UNCANCELLED]
        assert reader.survivors(rows((193, 198)), whole).tolist() == [192]  # a pair that is not summed at all is not there
        assert reader.lost(rows((0, 191)), rows((0, 192))).tolist() == [190]


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.E4M3])
@pytest.mark.parametrize("extent", [1, 2, 255, 256, 257, 512, 599, 600])
def test_the_extent_that_is_summed_is_found(dtype: DType, extent: int) -> None:
    for output in _OUTPUTS[dtype]:
        assert summed_extent(reader_of(desc(600, dtype, output, k_summed=extent))) == extent


@pytest.mark.parametrize("summed", [
    [(0, 32), (40, 100)], [(8, 100)], [(0, 32), (40, 92)], [(0, 92), (93, 94)], [(0, 16), (84, 100)], [(50, 100)], [(0, 1), (99, 100)],
], ids=str)
@pytest.mark.parametrize("output", [DType.FP32, DType.FP16])
def test_a_summed_extent_that_is_no_prefix_is_declined(summed: list[tuple[int, int]], output: DType) -> None:
    term: Term = ZERO
    for lo, hi in summed:
        term = mma(term, ROW, contiguous_runs(lo, hi, 16))
    declined = recover_tree(reader_for(cast(output, term), 100, DType.FP16, output), 1)
    assert isinstance(declined, Declined) and declined.reason is DeclineReason.TREE_UNREADABLE
    assert "not the last ones" in declined.text


def test_holes_in_two_windows_of_a_narrow_output_are_declined() -> None:
    term: Term = ZERO
    for lo, hi in [(0, 100), (108, 600), (608, 1000)]:
        term = mma(term, row_for(90, DType.BF16), contiguous_runs(lo, hi, 16))
    got = summed_extent(reader_for(cast(DType.BF16, term), 1000, DType.BF16, DType.BF16))
    assert isinstance(got, Declined) and "16 of 1000" in got.text


@pytest.mark.parametrize("extent", [1, 39_000, 39_999, 40_000])
def test_a_long_extent_is_found_by_samples_where_counting_all_of_it_takes_too_many_launches(extent: int) -> None:
    term = fma(ZERO, (Run(0, (0,), extent, 1 if extent > 1 else 0),))
    reader = reader_for(cast(DType.BF16, term), 40_000, DType.BF16, DType.BF16, m=1, n=1)
    assert summed_extent(reader) == extent
    assert reader.launches < 40_000 / 255  # which counting every window of K would take


def test_a_hole_in_a_sampled_window_is_declined() -> None:
    term = fma(ZERO, (Run(0, (0,), 20_000, 1), Run(24_000, (0,), 16_000, 1)))
    got = summed_extent(reader_for(cast(DType.BF16, term), 40_000, DType.BF16, DType.BF16, m=1, n=1))
    assert isinstance(got, Declined) and "not the last ones" in got.text


def test_a_sum_of_nothing_is_declined() -> None:
    got = recover_tree(reader_for(ZERO, 64), 1)
    assert isinstance(got, Declined) and got.reason is DeclineReason.TREE_UNREADABLE


# The walks of the paper, with its own pair and with the wide one (DESIGN fact 5)


def test_the_paper_s_pair_sees_only_the_borders_of_instruction_groups_on_sm_90() -> None:
    ms = np.arange(1, 63)
    narrow = contiguous_walk(reader_of(desc(64), pair=paper_pair()), 0, ms)
    assert narrow.tolist() == [(m + 1) % 16 != 0 for m in ms.tolist()]
    wide = contiguous_walk(reader_of(desc(64)), 0, ms)
    assert not wide.any()  # index 0 lies under every later node of one accumulator


def test_the_paper_s_pair_misreads_a_strided_walk_inside_the_group_of_its_later_leg() -> None:
    rs = np.array([r for r in range(64) if r not in (3, 20)])
    wide = strided_walk(reader_of(desc(64)), 3, 20, rs)
    assert wide.tolist() == [r >= 32 for r in rs.tolist()]
    narrow = strided_walk(reader_of(desc(64), pair=paper_pair()), 3, 20, rs)
    assert narrow.tolist() == [r >= 16 for r in rs.tolist()]


def test_the_paper_s_pair_sees_every_index_of_an_fma_chain() -> None:
    chain = desc(40, row=None, instruction_k=1, instruction=Instruction.FMA)
    for pair in (paper_pair(), pair_for(DType.FP16)):
        assert not contiguous_walk(reader_of(chain, pair=pair), 0, np.arange(1, 39)).any()
        assert strided_walk(reader_of(chain, pair=pair), 0, 7, np.arange(8, 40)).all()
        assert not strided_walk(reader_of(chain, pair=pair), 0, 7, np.arange(1, 7)).any()


def test_a_unit_survives_a_pair_of_another_part_and_a_lost_leg_is_no_survivor() -> None:
    split = desc(200, k_summed=192, k_cuts=(KCut(64),))
    assert contiguous_walk(reader_of(split), 0, np.array([62, 63, 64, 65])).tolist() == [False, False, True, True]
    assert strided_walk(reader_of(split), 0, 199, np.array([100])).tolist() == [False]


# A walk from start to end

_FAMILIES = {
    "single": desc(576),
    "split": desc(900, k_cuts=(KCut(320),)),
    "short first": desc(600, k_loop_step=64, short_turn=ShortTurn.FIRST),
    "split, short first": desc(576, k_cuts=(KCut(72),), k_loop_step=64, short_turn=ShortTurn.FIRST),
    "per instruction": desc(200, use_fast_accum=False),
    "bf16 output": desc(600, DType.BF16, DType.BF16, k_cuts=(KCut(320),)),
    "e4m3": desc(640, DType.E4M3, DType.BF16),
    "e4m3 promoted": desc(640, DType.E4M3, k_cuts=(KCut(128),)),
    "e4m3 split": desc(600, DType.E4M3, k_cuts=(KCut(256), KCut(128))),
    "fma chain": desc(30, DType.FP16, DType.FP16, row=None, instruction_k=1, instruction=Instruction.FMA),
    "dropped tail": desc(648, k_summed=640, k_cuts=(KCut(64),)),
}


def _same_nodes(found: Term, truth: Term) -> bool:
    k = leaf_count(truth)
    far, near = [(i, j) for i in range(0, k, 7) for j in range(i + 1, k, 5)], [(i, i + 1) for i in range(k - 1)]
    pairs = np.array(far + near, np.int64).reshape(-1, 2)
    windows = np.tile(np.array([[0, k]]), (len(pairs), 1))
    return bool((predicted(found, pairs, windows) == predicted(truth, pairs, windows)).all())


@pytest.mark.parametrize("family", _FAMILIES)
def test_the_exhaustive_walk_agrees_with_the_adaptive_one(family: str) -> None:
    record = _FAMILIES[family]
    adaptive, exhaustive = (recover_tree(reader_of(record, 16, 16), 5, exhaustive=e) for e in (False, True))
    assert isinstance(adaptive, WalkResult) and isinstance(exhaustive, WalkResult)
    assert adaptive.tree == exhaustive.tree
    assert adaptive.extent == exhaustive.extent == record.k_summed
    assert exhaustive.experiments >= adaptive.experiments + record.k_summed - 2  # the pairs (0, j) are new, neighbours may have been read
    assert adaptive.instrument == "adaptive"
    assert _same_nodes(shape_term(adaptive.tree), record.schedule())


def test_the_exhaustive_check_refutes_a_tree_that_is_wrong_at_one_index() -> None:
    truth = desc(700, k_cuts=(KCut(320),))
    moved = add(DType.FP32, add(DType.FP32, _part(0, 320), _part(320, 641)), _part(641, 700))
    reader = reader_of(truth, 16, 16)
    assert every_index(reader, truth.schedule(), 700)
    assert not every_index(reader, moved, 700)


def test_the_random_check_refutes_a_tree_that_is_wrong_throughout() -> None:
    rng = np.random.default_rng(3)
    truth = desc(700, k_cuts=(KCut(320),))
    for wrong in (desc(700), desc(700, k_cuts=(KCut(352),)), replace(truth, instruction_k=8, k_loop_step=8)):
        assert not random_check(reader_of(truth, 16, 16), wrong.schedule(), 700, rng, 96)
    assert random_check(reader_of(truth, 16, 16), truth.schedule(), 700, rng, 96)


def _part(lo: int, hi: int) -> Term:
    return mma(ZERO, ROW, contiguous_runs(lo, hi, 16))


@pytest.mark.parametrize("k", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.E4M3])
def test_the_shortest_sums_and_the_smallest_output_are_read(dtype: DType, k: int) -> None:
    record = desc(k, dtype, _OUTPUTS[dtype][1])
    for exhaustive in (False, True):
        walked = recover_tree(reader_of(record, 1, 1), 9, exhaustive)
        assert isinstance(walked, WalkResult)
        assert walked.extent == k
        width = row_for(90, dtype).products
        assert list(steps(shape_term(walked.tree))) == [tuple(range(lo, min(lo + width, k))) for lo in range(0, k, width)]


def test_three_single_multiply_adds_are_told_from_one_step_of_three() -> None:
    chain = recover_tree(reader_of(desc(3, row=None, instruction_k=1, instruction=Instruction.FMA), 1, 1), 2)
    assert isinstance(chain, WalkResult)
    assert _same_nodes(shape_term(chain.tree), fma(ZERO, contiguous_runs(0, 3, 1)))
    assert not _same_nodes(shape_term(chain.tree), _part(0, 3))


@pytest.mark.parametrize(("k", "turn"), [(225, ShortTurn.FIRST), (233, ShortTurn.FIRST), (249, ShortTurn.FIRST), (249, ShortTurn.LAST)])
def test_a_short_last_part_is_not_taken_for_steps_of_its_neighbours(k: int, turn: ShortTurn) -> None:
    """K = 249 in parts of 72 ends in 16, 16, 1; K = 225 in one step of nine where its neighbours begin with eight and go on."""
    record = desc(k, use_fast_accum=False, k_cuts=(KCut(72),), k_loop_step=64, short_turn=turn)
    for seed in (5, 6, 7):
        walked = recover_tree(reader_of(record, 32, 32), seed)
        assert isinstance(walked, WalkResult)
        assert _same_nodes(shape_term(walked.tree), record.schedule()), seed


def test_a_walk_is_a_function_of_its_seed() -> None:
    record = _FAMILIES["split, short first"]
    one, again = (recover_tree(reader_of(record), 77) for _ in range(2))
    assert one == again


# Packing


@pytest.mark.parametrize(("m", "n", "width"), [(1, 1, 1), (8, 3, 8), (3, 8, 8), (40, 40, 40)])
def test_one_launch_holds_an_experiment_for_each_row_or_column(m: int, n: int, width: int) -> None:
    reader = reader_of(desc(64), m, n)
    table = np.tile(np.array([[3, 4, 0, 64]], np.int64), (81, 1))
    out = reader.raw(table)
    assert len(out) == 81 and (out == out[0]).all()
    assert reader.width == width
    assert (reader.launches, reader.experiments) == (-(-81 // width), 81)
    assert reader.summing.launches == reader.launches


def test_experiments_come_back_in_the_order_in_which_they_were_asked() -> None:
    record = desc(64)
    pairs = np.array([(m, m + 1) for m in range(63)], np.int64)
    windows = np.tile(np.array([[0, 64]]), (63, 1))
    want = predicted(record.schedule(), pairs, windows)
    assert len(set(want.tolist())) > 3
    for shape in ((1, 1), (7, 2), (2, 7), (100, 1)):
        assert (reader_of(record, *shape).lost(pairs, windows) == want).all()


@pytest.mark.parametrize("family", ["single", "split", "split, short first", "dropped tail"])
def test_a_wider_output_takes_fewer_launches(family: str) -> None:
    launches = []
    for size in (4, 32, 256):
        reader = reader_of(_FAMILIES[family], size, 1)
        walked = recover_tree(reader, 5)
        assert isinstance(walked, WalkResult)
        assert walked.launches == reader.summing.launches
        # the stages of the walk each end with a launch that may be part full
        assert walked.launches <= walked.experiments / size + 40
        launches.append(walked.launches)
    assert launches[2] < launches[1] < launches[0]
    assert launches[2] <= 40
