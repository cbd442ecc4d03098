"""Do all elements share one order, and do two runs agree? Elements that do not are walked apart, runs that do not are declined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from probe.answer import Answer
from probe.describe import canonical
from probe.descriptor import Direction, GEMMDesc, Instruction, KCut
from probe.errors import Declined, DeclineReason
from probe.inputs.operands import Operands
from probe.oracle import Opened, SimulatedOracle
from probe.pipeline import Stream, stream_of, walk_problem
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.proof import Outcome
from probe.records import Point
from probe.schedule import Term
from probe.simulator.library import SimulatedSumming
from probe.summing import Cells, Summing
from probe.tensorcore import row_for
from probe.walks.agreement import Agreement, agreement


def desc(k: int, dtype: DType = DType.FP16, output: DType = DType.FP32, **others: object) -> GEMMDesc:
    row = row_for(90, dtype)
    common: dict[str, object] = {"k": k, "k_summed": k, "input_dtype": dtype, "output_dtype": output, "row": row,
                                 "instruction_k": row.products, "instruction": Instruction.WGMMA}
    return GEMMDesc(**(common | others))  # type: ignore[arg-type]


class Patchwork:
    """A summing whose elements follow several schedules: labels (m, n) says which, as a library with a different kernel at the edge has."""

    def __init__(self, labels: np.ndarray, schedules: Sequence[Term], k: int, input_dtype: DType, output_dtype: DType) -> None:
        self.m, self.n = labels.shape
        self.k, self.input_dtype, self.output_dtype = k, input_dtype, output_dtype
        self.labels = labels
        self.launches = 0
        self._parts = [SimulatedSumming(self.m, self.n, k, s, input_dtype, output_dtype) for s in schedules]

    def outputs(self, batch: Sequence[tuple[Operands, Cells | None]]) -> list[np.ndarray]:
        self.launches += len(batch)
        parts = [part.outputs(batch) for part in self._parts]
        out = []
        for i, (_, cells) in enumerate(batch):
            labels = self.labels if cells is None else self.labels[cells.rows, cells.columns]
            out.append(np.choose(labels, [part[i] for part in parts]))
        return out


class PatchworkOracle(SimulatedOracle):
    """The simulated library, with one summing put in the place of its own."""

    def __init__(self, instead: Summing) -> None:
        super().__init__()
        self._instead = instead

    def summing(self, problem: Problem, answer: Answer, preference: Preference) -> Summing:  # type: ignore[override]
        return self._instead


def left_right(m: int, n: int, border: int) -> np.ndarray:
    labels = np.zeros((m, n), int)
    labels[:, border:] = 1
    return labels


def checkered(m: int, n: int) -> np.ndarray:
    return np.add.outer(np.arange(m), np.arange(n)) % 2


def walk(problem: Problem, summing: Summing, seed: int = 4) -> Point | Declined:
    return walk_problem(problem, Preference(), Opened(PatchworkOracle(summing), ""), seed=seed)


# Agreement itself


def test_one_order_is_one_class() -> None:
    got = agreement(SimulatedSumming(9, 7, 300, desc(300).schedule(), DType.FP16, DType.FP32), 1)
    assert got == Agreement(1, None, 4)


def test_two_schedules_that_are_equal_are_one_class() -> None:
    summing = Patchwork(left_right(8, 8, 3), [desc(300).schedule(), desc(300, k_cuts=(KCut(400),)).schedule()], 300, DType.FP16, DType.FP32)
    got = agreement(summing, 1)
    assert isinstance(got, Agreement) and got.classes == 1


@pytest.mark.parametrize("labels", [left_right(8, 12, 6), left_right(8, 12, 11), checkered(6, 6), np.array([[0, 1]])],
                         ids=["half", "one", "chess", "2"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_classes_are_exactly_the_elements_that_share_an_order(labels: np.ndarray, seed: int) -> None:
    summing = Patchwork(labels, [desc(600).schedule(), desc(600, k_cuts=(KCut(208),)).schedule()], 600, DType.FP16, DType.FP32)
    got = agreement(summing, seed)
    assert isinstance(got, Agreement) and got.classes == 2 and got.labels is not None
    assert (got.labels == labels).all() or (got.labels == 1 - labels).all()
    assert got.launches == summing.launches == 4


def test_three_orders_are_three_classes() -> None:
    labels = np.arange(48).reshape(6, 8) % 3
    schedules = [desc(600).schedule(), desc(600, k_cuts=(KCut(208),)).schedule(), desc(600, use_fast_accum=False).schedule()]
    got = agreement(Patchwork(labels, schedules, 600, DType.FP16, DType.FP32), 1)
    assert isinstance(got, Agreement) and got.classes == 3 and got.labels is not None
    assert len({(int(a), int(b)) for a, b in zip(got.labels.ravel(), labels.ravel(), strict=True)}) == 3


def test_runs_that_differ_are_declined_with_how_many_elements_moved() -> None:
    schedules = [desc(600).schedule(), desc(600, k_cuts=(KCut(208),)).schedule()]
    labels = np.zeros((8, 8), int)
    labels[5, 6] = 1

    class OneElement(Patchwork):
        def outputs(self, batch: Sequence[tuple[Operands, Cells | None]]) -> list[np.ndarray]:
            out = []
            for turn, one in enumerate(batch):
                self.labels = labels if turn == 2 else np.zeros((8, 8), int)
                out += super().outputs([one])
            return out

    got = agreement(OneElement(labels, schedules, 600, DType.FP16, DType.FP32), 1)
    assert isinstance(got, Declined) and got.reason is DeclineReason.NONDETERMINISTIC
    assert got.text.startswith("1 of 64 elements")


# Through the pipeline


@pytest.mark.parametrize(("dtype", "output", "one", "other"), [
    (DType.FP16, DType.FP32, desc(320), desc(320, k_cuts=(KCut(112),))),
    (DType.BF16, DType.BF16, desc(320, DType.BF16, DType.BF16, use_fast_accum=False),
     desc(320, DType.BF16, DType.BF16, k_cuts=(KCut(112, direction=Direction.BACKWARD),))),
    (DType.E4M3, DType.FP32, desc(320, DType.E4M3), desc(320, DType.E4M3, k_cuts=(KCut(128),))),
])
@pytest.mark.parametrize("border", [8, 12])
def test_each_class_is_walked_apart_and_proven(dtype: DType, output: DType, one: GEMMDesc, other: GEMMDesc, border: int) -> None:
    summing = Patchwork(left_right(16, 16, border), [one.schedule(), other.schedule()], 320, dtype, output)
    point = walk(Problem.gemm(16, 16, 320, dtype, output), summing)
    assert isinstance(point, Point), point
    assert point.outcome is Outcome.CONFIRMED
    assert {c.schedule: c.elements for c in point.classes} == {one.schedule(): 16 * border, other.schedule(): 16 * (16 - border)}
    assert all(c.desc is not None and canonical(c.desc) in (canonical(one), canonical(other)) for c in point.classes)


def test_classes_in_a_chequered_pattern_are_walked_apart() -> None:
    one, other = desc(200), desc(200, k_cuts=(KCut(64),))
    point = walk(Problem.gemm(12, 9, 200, DType.FP16, DType.FP32), Patchwork(checkered(12, 9), [one.schedule(), other.schedule()], 200,
                                                                            DType.FP16, DType.FP32))
    assert isinstance(point, Point), point
    assert {c.schedule: c.elements for c in point.classes} == {one.schedule(): 54, other.schedule(): 54}
    assert point.outcome is Outcome.CONFIRMED


def test_an_e4m3_class_with_no_element_on_the_diagonal_is_declined() -> None:
    one, other = desc(320, DType.E4M3), desc(320, DType.E4M3, k_cuts=(KCut(128),))
    summing = Patchwork(left_right(4, 16, 8), [one.schedule(), other.schedule()], 320, DType.E4M3, DType.FP32)
    got = walk(Problem.gemm(4, 16, 320, DType.E4M3, DType.FP32), summing)
    assert isinstance(got, Declined) and got.reason is DeclineReason.TREE_UNREADABLE and "diagonal" in got.text


@pytest.mark.parametrize("period", [2, 3, 4])
def test_a_library_that_takes_two_orders_in_turn_is_declined(period: int) -> None:
    class InTurn(SimulatedSumming):
        def outputs(self, batch: Sequence[tuple[Operands, Cells | None]]) -> list[np.ndarray]:
            out = []
            for entry in batch:
                self.schedule = orders[self.launches % period == 0]
                out += super().outputs([entry])
            return out

    orders = [desc(600).schedule(), desc(600, k_cuts=(KCut(208),)).schedule()]
    got = agreement(InTurn(8, 8, 600, orders[0], DType.FP16, DType.FP32), 1)
    assert isinstance(got, Declined) and got.reason is DeclineReason.NONDETERMINISTIC


def test_a_library_that_does_not_repeat_itself_is_declined() -> None:
    one, other = desc(200), desc(200, k_cuts=(KCut(64),))
    got = walk(Problem.gemm(8, 8, 200, DType.FP16, DType.FP32), _Drifting(left_right(8, 8, 4), [one.schedule(), other.schedule()], 200,
                                                                         DType.FP16, DType.FP32))
    assert isinstance(got, Declined) and got.reason is DeclineReason.NONDETERMINISTIC


class _Drifting(Patchwork):
    """From the third launch on, every element follows the second schedule."""

    def outputs(self, batch: Sequence[tuple[Operands, Cells | None]]) -> list[np.ndarray]:
        out = []
        for one in batch:
            if self.launches == 2:
                self.labels = np.ones_like(self.labels)
            out += super().outputs([one])
        return out


def test_orders_that_two_draws_do_not_tell_apart_are_told_apart_once_the_proof_fails() -> None:
    """Every second column in an order that is nearly that of the others: read as one class, refuted by bytes, looked at again."""
    labels = np.tile(np.arange(12) % 2, (4, 1))
    orders = [desc(48, output=DType.FP16), desc(48, output=DType.FP16, k_cuts=(KCut(32),))]

    def summing() -> Patchwork:
        return Patchwork(labels, [one.schedule() for one in orders], 48, DType.FP16, DType.FP16)

    def classes(seed: int) -> int:
        got = agreement(summing(), stream_of(seed, Stream.AGREE))
        assert isinstance(got, Agreement)
        return got.classes

    missed = [seed for seed in range(300) if classes(seed) == 1][:2]
    assert missed
    for seed in missed:
        point = walk(Problem.gemm(4, 12, 48, DType.FP16), summing(), seed)
        assert isinstance(point, Point) and point.outcome is Outcome.CONFIRMED and len(point.classes) == 2
        assert {canonical(c.desc) for c in point.classes if c.desc is not None} == {canonical(one) for one in orders}
