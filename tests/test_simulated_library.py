"""The simulated library: every family can be asked for, it declines with a reason, and a walk finds what its kernel does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probe.answer import Answer
from probe.describe import canonical
from probe.errors import Declined, DeclineReason
from probe.formats import encode_rn
from probe.inputs import Draw, DrawKind
from probe.names import ComputeType, Epilogue, Layout
from probe.oracle import Opened, SimulatedOracle
from probe.pipeline import walk_problem
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.proof import Outcome
from probe.records import Point
from probe.simulator import execute_exact
from probe.simulator.library import (
    COMPUTE_TYPE,
    CUTLASS_SHORT_FIRST,
    CUTLASS_SINGLE,
    FFMA,
    NVJET,
    OUTPUT_TYPE,
    SimulatedLibrary,
)
from probe.summing import Cells
from probe.target import LibraryKind

LIBRARY = SimulatedLibrary()
PLAIN = Preference()
IN_OUTPUT_TYPE = Preference(reduction_scheme_mask=OUTPUT_TYPE)
FP16, BF16, E4M3, FP32 = DType.FP16, DType.BF16, DType.E4M3, DType.FP32


def gemm(m: int, n: int, k: int, dtype: DType = FP16, output: DType | None = None, **others: object) -> Problem:
    return Problem.gemm(m, n, k, dtype, output, **others)  # type: ignore[arg-type]


# A small problem of each family, what it is allowed, and what its answer and kernel must be: algorithm, parts, family, scheme
FAMILIES = {
    "single": (gemm(16, 16, 576), PLAIN, NVJET, 1, "single accumulator"),
    "split": (gemm(16, 16, 2056, BF16, FP32), PLAIN, NVJET, 3, "split-K in 3 parts, single accumulator"),
    "split, parts in the output type": (gemm(16, 16, 2056, FP16), IN_OUTPUT_TYPE, NVJET, 3, "split-K in 3 parts, single accumulator"),
    "short first": (gemm(16, 9, 100), PLAIN, CUTLASS_SHORT_FIRST, 1, "single accumulator"),
    "short first, of one index": (gemm(16, 9, 129), PLAIN, CUTLASS_SHORT_FIRST, 1, "single accumulator"),
    "split, short first, of one index": (gemm(16, 9, 257), PLAIN, CUTLASS_SHORT_FIRST, 4, "split-K in 4 parts, single accumulator"),
    "split, short first": (gemm(9, 16, 513), PLAIN, CUTLASS_SHORT_FIRST, 8, "split-K in 8 parts, single accumulator"),
    "per instruction": (gemm(16, 9, 100, layout=Layout.NT), PLAIN, CUTLASS_SINGLE, 1, "per-instruction accumulation"),
    "split, per instruction": (gemm(9, 16, 513, layout=Layout.TT), PLAIN, CUTLASS_SINGLE, 8,
                               "split-K in 8 parts, per-instruction accumulation"),
    "e4m3, fast accumulation": (gemm(16, 16, 512, E4M3, fast_accumulation=True), PLAIN, NVJET, 1, "single accumulator"),
    "e4m3, promoted": (gemm(16, 16, 512, E4M3), PLAIN, NVJET, 1, "promoted every 128"),
    "e4m3, split, fast accumulation": (gemm(16, 16, 2048, E4M3, fast_accumulation=True), PLAIN, NVJET, 3, "split-K in 3 parts"),
    "e4m3, split, promoted": (gemm(16, 16, 2048, E4M3, FP32), PLAIN, NVJET, 3, "split-K in 3 parts, promoted every 128"),
    "fma chain": (gemm(16, 16, 24), PLAIN, FFMA, 1, "ascending fma chain"),
    "dropped tail": (gemm(8, 8, 11528), PLAIN, NVJET, 9, "split-K in 9 parts, single accumulator"),
}


def ask(problem: Problem, preference: Preference = PLAIN, library: SimulatedLibrary = LIBRARY) -> Answer:
    answer = library.ask(problem, preference)
    assert isinstance(answer, Answer), answer
    return answer


# Asking


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_can_be_asked_for(name: str) -> None:
    problem, preference, algorithm, parts, _ = FAMILIES[name]
    answer = ask(problem, preference)
    assert (answer.algo_id, answer.splitk_num) == (algorithm, parts)
    assert answer.workspace_bytes == (parts * problem.m * problem.n * 4 if parts > 1 else 0)
    record = LIBRARY.descriptor(problem, answer)
    assert (record.k, record.input_dtype, record.output_dtype) == (problem.k, problem.a_dtype, problem.d_dtype)
    if parts > 1:
        assert -(-record.k_summed // record.k_cuts[0].span) == parts
    assert (record.partial_dtype is not FP32) == (answer.reduction_scheme == OUTPUT_TYPE)
    names = LIBRARY.kernels(problem, answer)
    assert len(names) == (2 if parts > 1 else 1) and all("simulated" in n for n in names)


def test_513_products_are_dealt_to_eight_parts_of_72_as_read_on_a_device() -> None:
    problem = FAMILIES["split, short first"][0]
    assert LIBRARY.descriptor(problem, ask(problem)).k_cuts[0].span == 72  # DESIGN fact 3, on 129x65x513


def test_the_families_differ_in_their_schedules() -> None:
    schedules = {LIBRARY.descriptor(p, ask(p, pref)).schedule() for p, pref, *_ in FAMILIES.values()}
    assert len(schedules) == len(FAMILIES)


def test_the_answer_depends_on_the_question_alone() -> None:
    for problem, preference, *_ in FAMILIES.values():
        assert ask(problem, preference) == ask(problem, preference, SimulatedLibrary())


def test_a_workspace_that_is_one_byte_too_small_means_no_split() -> None:
    problem, _, _, parts, _ = FAMILIES["split"]
    wanted = ask(problem).workspace_bytes
    assert wanted == parts * 16 * 16 * 4
    assert ask(problem, Preference(workspace_bytes=wanted)).splitk_num == parts
    for less in (wanted - 1, 0):
        answer = ask(problem, Preference(workspace_bytes=less))
        assert (answer.splitk_num, answer.reduction_scheme, answer.workspace_bytes) == (1, 0, 0)
        assert LIBRARY.descriptor(problem, answer).k_cuts == ()


@pytest.mark.parametrize(("mask", "scheme", "parts"), [
    (0, 0, 1), (1, 0, 1), (2, COMPUTE_TYPE, 3), (4, OUTPUT_TYPE, 3), (6, COMPUTE_TYPE, 3), (7, COMPUTE_TYPE, 3)])
def test_the_reduction_mask_chooses_how_parts_are_held(mask: int, scheme: int, parts: int) -> None:
    answer = ask(gemm(16, 16, 2056), Preference(reduction_scheme_mask=mask))
    assert (answer.reduction_scheme, answer.splitk_num) == (scheme, parts)


def test_a_dropped_tail_follows_the_rule_measured_on_13_1_and_can_be_switched_off() -> None:
    # DESIGN fact 4: round_up(floor(K / s), 64), and s of them cover K or do not; 8 are lost at K = 11528
    problem = FAMILIES["dropped tail"][0]
    answer = ask(problem)
    record = LIBRARY.descriptor(problem, answer)
    assert (record.k_cuts[0].span, record.k_summed) == (1280, 11520)
    whole = SimulatedLibrary(drops_tail=False)
    assert whole.descriptor(problem, ask(problem, library=whole)).k_summed == 11528
    for k in range(8192, 12000, 8):
        one = gemm(8, 8, k)
        given = ask(one)
        span = -(-(k // given.splitk_num) // 64) * 64
        assert LIBRARY.descriptor(one, given).k_summed == min(k, span * given.splitk_num)


@pytest.mark.parametrize(("problem", "word"), [
    (gemm(16, 16, 64, batch_count=2), "batch"), (gemm(16, 16, 64, epilogue=Epilogue.RELU), "epilogue"),
    (gemm(16, 16, 64, alpha=2.0), "alpha"), (gemm(16, 16, 64, beta=1.0), "beta"),
    (gemm(16, 16, 64, compute_type=ComputeType.FP16), "compute type"), (gemm(16, 16, 64, FP32), "fp32"),
    (gemm(16, 16, 64, FP16, BF16), "output"), (gemm(16, 16, 64, E4M3, FP16, d_scale=False, a_scale=True), "scales"),
    (replace(gemm(16, 16, 64, E4M3), b_dtype=DType.E5M2), "e5m2"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_what_it_does_not_do_is_declined_with_a_reason(problem: Problem, word: str) -> None:
    declined = LIBRARY.ask(problem, PLAIN)
    assert isinstance(declined, Declined) and declined.reason is DeclineReason.UNSUPPORTED
    assert word in declined.text and declined.hint


def test_offsets_and_leading_dimensions_change_nothing() -> None:
    assert ask(gemm(16, 16, 576, a_offset_bytes=16, lda=640)) == ask(gemm(16, 16, 576))


def test_a_target_names_its_settings_and_is_no_device() -> None:
    targets = [SimulatedLibrary(), SimulatedLibrary(drops_tail=False), SimulatedLibrary(sm=80)]
    assert len({t.target.sha256 for t in targets}) == 3
    assert all(t.target.library is LibraryKind.SIMULATED for t in targets)
    assert targets[2].target.sm_number == 80
    assert "simulated" in LIBRARY.announcement and "not" in LIBRARY.announcement


# Running


def test_its_bytes_are_those_of_its_record_element_by_element() -> None:
    """Against the second executor, which shares no arithmetic with the first."""
    for name in ("split, short first", "e4m3, promoted", "per instruction"):
        problem, preference, *_ = FAMILIES[name]
        answer = ask(problem, preference)
        draw = Draw.of(problem.m, problem.n, problem.k, problem.a_dtype, DrawKind.CANCELLING, 3, 0)
        summing = LIBRARY.summing(problem, answer)
        (whole,) = summing.outputs([(draw, None)])
        assert whole.shape == (problem.m, problem.n) and summing.launches == 1
        schedule = LIBRARY.descriptor(problem, answer).schedule()
        a, b = draw.a(np), draw.b(np)
        for row, column in ((0, 0), (problem.m - 1, 2), (3, problem.n - 1)):
            assert int(whole[row, column]) == execute_exact(schedule, a[row].tolist(), b[column].tolist(), problem.a_dtype)


def test_chosen_cells_are_the_cells_of_the_whole_output() -> None:
    problem = gemm(16, 9, 100)
    summing = LIBRARY.summing(problem, ask(problem))
    draw = Draw.of(16, 9, 100, FP16, DrawKind.SPREAD, 3, 0, distinct=5)
    rows, columns = np.array([15, 0, 7, 7]), np.array([0, 8, 3, 4])
    whole, cells, row, column = summing.outputs([(draw, None), (draw, Cells(rows, columns)), (draw, Cells(np.zeros(9, int), np.arange(9))),
                                                 (draw, Cells(np.arange(16), np.full(16, 2)))])
    assert np.array_equal(cells, whole[rows, columns])
    assert np.array_equal(row, whole[0]) and np.array_equal(column, whole[:, 2])
    assert summing.launches == 4


def test_the_dropped_tail_is_not_summed() -> None:
    problem = FAMILIES["dropped tail"][0]

    class Ones:
        m, n, k, dtype, a_key, b_key = 8, 8, 11528, FP16, "ones", "ones"

        def a(self, xp, rows=None):  # type: ignore[no-untyped-def]
            return np.full((8, self.k), encode_rn(np.array([0.5], np.float32), FP16)[0])

        b = a

    wide = replace(problem, c_dtype=FP32, d_dtype=FP32)
    for library, summed in ((LIBRARY, 11520), (SimulatedLibrary(drops_tail=False), 11528)):
        (out,) = library.summing(wide, ask(wide, library=library)).outputs([(Ones(), None)])
        assert (out.view(np.float32) == summed / 4).all()


# From the question to the proof


@pytest.mark.parametrize("name", FAMILIES)
def test_a_walk_finds_and_proves_what_the_kernel_does(name: str) -> None:
    problem, preference, _, _, family = FAMILIES[name]
    point = walk_problem(problem, preference, Opened(SimulatedOracle(), ""), seed=2024)
    assert isinstance(point, Point), point
    (result,) = point.classes
    truth = LIBRARY.descriptor(problem, ask(problem, preference))
    assert result.outcome is Outcome.CONFIRMED, result.ambiguous
    assert result.schedule == truth.schedule()
    assert result.desc is not None and canonical(result.desc) == canonical(truth)
    assert result.extent == truth.k_summed
    assert result.family == family
    assert result.proof is not None and result.proof.elements >= 4096
    assert point.answer == ask(problem, preference)


@pytest.mark.parametrize("sm", [80, 89, 100])
def test_the_instructions_of_other_chips_are_told_apart(sm: int) -> None:
    library = SimulatedLibrary(sm=sm)
    problem = gemm(16, 16, 320, FP16, FP32)
    point = walk_problem(problem, PLAIN, Opened(SimulatedOracle(library), ""), seed=7)
    assert isinstance(point, Point), point
    truth = library.descriptor(problem, ask(problem, library=library))
    assert point.outcome is Outcome.CONFIRMED
    assert [c.schedule for c in point.classes] == [truth.schedule()]


def test_a_walk_says_the_seed_that_repeats_it() -> None:
    problem = gemm(8, 8, 96)
    first = walk_problem(problem, PLAIN, Opened(SimulatedOracle(), ""))
    assert isinstance(first, Point)
    again = walk_problem(problem, PLAIN, Opened(SimulatedOracle(), ""), seed=first.seed)
    assert isinstance(again, Point)
    assert first.classes == again.classes


@pytest.mark.parametrize(("problem", "word"), [
    (gemm(16, 16, 64, FP32), "fp32"), (gemm(16, 16, 64, batch_count=2), "batch"), (gemm(16, 16, 64, alpha=2.0), "alpha"),
    (gemm(16, 16, 64, epilogue=Epilogue.RELU), "epilogue"), (gemm(16, 16, 64, E4M3, a_scale=True), "scales")],
    ids=["fp32", "batch", "alpha", "relu", "scale"])
def test_what_no_walk_is_known_for_is_declined_before_asking(problem: Problem, word: str) -> None:
    class Untouchable(SimulatedOracle):
        def ask(self, problem: Problem, preference: Preference) -> Answer | Declined:
            raise AssertionError("asked")

    got = walk_problem(problem, PLAIN, Opened(Untouchable(), ""))
    assert isinstance(got, Declined) and got.reason is DeclineReason.UNSUPPORTED and word in got.text


def test_inputs_that_its_sm_has_no_instruction_for_are_declined() -> None:
    declined = SimulatedLibrary(sm=80).ask(Problem.gemm(16, 16, 64, DType.E4M3), Preference())
    assert isinstance(declined, Declined) and declined.reason is DeclineReason.UNSUPPORTED and "e4m3" in declined.text
    assert not isinstance(SimulatedLibrary(sm=80).ask(Problem.gemm(16, 16, 64, DType.FP16), Preference()), Declined)
