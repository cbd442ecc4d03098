"""On a real device with the installed cuBLASLt: layouts, determinism of the path, and the shapes that a user tries first."""

from __future__ import annotations

import numpy as np
import pytest

from probe.errors import Declined
from probe.formats import encode_rn
from probe.oracle import Opened, open_oracle
from probe.pipeline import walk_problem
from probe.preference import Preference
from probe.problem import DType, Layout, Problem
from probe.proof import Outcome
from probe.records import Point

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def opened() -> Opened:
    found = open_oracle(None, 0)
    assert found.notice == ""
    return found


class Whole:
    """Integer operands that every dtype holds exactly: element (i, k) of A and (k, j) of B all differ in pattern."""

    def __init__(self, problem: Problem) -> None:
        self.m, self.n, self.k, self.dtype = problem.m, problem.n, problem.k, problem.a_dtype
        rng = np.random.default_rng(3)
        self.left = rng.integers(-3, 4, (self.m, self.k)).astype(np.float32)
        self.right = rng.integers(-3, 4, (self.k, self.n)).astype(np.float32)
        self.a_key, self.b_key = object(), object()

    def a(self, xp: object, rows: object = None) -> object:
        return xp.asarray(encode_rn(self.left, self.dtype))  # type: ignore[attr-defined]

    def b(self, xp: object, columns: object = None) -> object:
        return xp.asarray(encode_rn(np.ascontiguousarray(self.right.T), self.dtype))  # type: ignore[attr-defined]


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("shape", [(24, 40, 72), (33, 17, 50)])
def test_each_layout_multiplies_what_its_name_says(opened: Opened, layout: Layout, shape: tuple[int, int, int]) -> None:
    problem = Problem.gemm(*shape, DType.FP16, DType.FP32, layout)
    answer = opened.oracle.ask(problem, Preference())
    assert not isinstance(answer, Declined)
    summing = opened.oracle.summing(problem, answer, Preference())
    assert not isinstance(summing, Declined)
    operands = Whole(problem)
    (out,) = summing.outputs([(operands, None)])  # type: ignore[list-item]
    assert (out.view(np.float32) == operands.left @ operands.right).all()


@pytest.mark.parametrize(("shape", "dtype", "out", "fast", "extent"), [
    ("64x64x576", "fp16", "fp32", False, 576), ("1x8x11528", "fp16", "fp32", False, None), ("100x100x100", "bf16", "bf16", False, 100),
    ("64x64x512", "e4m3", "fp32", True, 512), ("64x64x512", "e4m3", "bf16", False, 512)])
def test_a_shape_is_recovered_and_confirmed(opened: Opened, shape: str, dtype: str, out: str, fast: bool, extent: int | None) -> None:
    m, n, k = Problem.parse_shape(shape)
    point = walk_problem(Problem.gemm(m, n, k, DType(dtype), DType(out), fast_accumulation=fast), Preference(), opened)
    assert isinstance(point, Point), point
    assert point.outcome is Outcome.CONFIRMED
    assert extent is None or point.classes[0].extent == extent


def test_exhaustive_and_adaptive_walks_agree(opened: Opened) -> None:
    problem = Problem.gemm(32, 32, 600, DType.FP16, DType.FP32)
    points = [walk_problem(problem, Preference(), opened, exhaustive=flag) for flag in (False, True)]
    assert all(isinstance(p, Point) for p in points)
    assert points[0].classes[0].schedule == points[1].classes[0].schedule  # type: ignore[union-attr]
    assert points[1].phase("walk").launches > points[0].phase("walk").launches  # type: ignore[union-attr]
