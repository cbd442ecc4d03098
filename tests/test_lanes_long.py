"""Lane walks of sums as long as the vector kernels take them, on the simulated library: K = 300,000 and 4,000,000."""

from __future__ import annotations

import pytest

from probe.errors import Declined
from probe.inputs import pair_for
from probe.names import Layout
from probe.oracle import SIMULATED_LIBRARIES, Opened, SimulatedOracle
from probe.pipeline import walk_problem
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.proof import Outcome
from probe.records import Point
from probe.recovery.candidates import Context, candidates
from probe.schedule import exact_form
from probe.walks.reader import Reader, places_for
from probe.walks.recover_tree import WalkResult, recover_tree

VECTORS = SIMULATED_LIBRARIES["sim-vectors"]
MOST_LAUNCHES = 999  # hundreds


def walk_only(problem: Problem) -> WalkResult:
    """The walk, held to the truth: what it found is among the candidates of its tree."""
    answer = VECTORS.ask(problem, Preference())
    assert not isinstance(answer, Declined)
    truth = VECTORS.descriptor(problem, answer)
    reader = Reader(VECTORS.summing(problem, answer), pair_for(problem.a_dtype), places_for(None, problem.m, problem.n, False))
    found = recover_tree(reader, 5)
    assert isinstance(found, WalkResult), found
    assert found.extent == problem.k and found.instrument == "lanes"
    possible = candidates(found.tree, Context(problem.k, problem.a_dtype, problem.d_dtype, 90))
    assert not isinstance(possible, Declined)
    assert exact_form(truth.schedule()) in [exact_form(c.schedule) for c in possible]
    return found


@pytest.mark.parametrize("problem", [
    pytest.param(Problem.gemm(1, 8, 300_000, DType.FP16), id="128 lanes"),
    pytest.param(Problem.gemm(8, 1, 300_007, DType.BF16, layout=Layout.TN), id="32 lanes of 8, bf16 out", marks=pytest.mark.slow),
    pytest.param(Problem.gemm(1, 8, 300_007, DType.BF16, DType.FP32, layout=Layout.NT), id="split, 64 lanes of 2", marks=pytest.mark.slow),
])
def test_three_hundred_thousand_indices_take_some_hundred_launches(problem: Problem) -> None:
    assert walk_only(problem).launches <= MOST_LAUNCHES


@pytest.mark.slow
@pytest.mark.timeout(1200)  # 190 s for one of them on a busy machine
@pytest.mark.parametrize("problem", [
    pytest.param(Problem.gemm(8, 1, 4_000_000, DType.FP16, DType.FP32), id="8x1, 128 lanes"),
    pytest.param(Problem.gemm(1, 8, 4_000_003, DType.BF16, layout=Layout.TN), id="1x8, 32 lanes of 8"),
    pytest.param(Problem.gemm(1, 1, 4_000_003, DType.FP16, DType.FP32), id="1x1, dot"),
])
def test_four_million_indices_take_some_hundred_launches(problem: Problem) -> None:
    assert walk_only(problem).launches <= MOST_LAUNCHES


@pytest.mark.slow
def test_a_vector_product_of_three_hundred_thousand_is_confirmed() -> None:
    problem = Problem.gemm(1, 8, 300_000, DType.FP16)
    point = walk_problem(problem, Preference(), Opened(SimulatedOracle(VECTORS), ""), seed=2024)
    assert isinstance(point, Point), point
    assert point.outcome is Outcome.CONFIRMED
    assert point.classes[0].family == "128 lanes of 1 joined by a butterfly down, ascending fma chain"
