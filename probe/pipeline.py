"""One shape from the question to the proof: ask, capture, agree, walk, settle, prove. No step is visited twice."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from probe.answer import Answer
from probe.capture import Capture
from probe.errors import Declined, DeclineReason
from probe.evidence import evidence_for, family_of, preferred_form
from probe.inputs.probes import pair_for
from probe.oracle import Opened
from probe.preference import Preference
from probe.problem import ComputeType, DType, Epilogue, Problem
from probe.proof import SIGN_KINDS, Outcome, Proof, prove, prove_beside, refuted
from probe.records import ClassResult, Phase, Point, now
from probe.recovery.candidates import Candidate, Context, candidates
from probe.recovery.settle import LIKE_INDEX, LIKE_ROUNDS, Settled, settle
from probe.recovery.twins import distinct, twins
from probe.summing import Summing
from probe.walks.agreement import MORE_DRAWS, Agreement, agreement
from probe.walks.reader import Reader, places_for
from probe.walks.recover_tree import GENERAL_LIMIT, recover_tree

Progress = Callable[[str], None]
_AFRESH = 2**62  # streams lie below


class Stream(IntEnum):
    """Streams of one seed: draws that choose a candidate never prove it."""

    WALK = 0
    SETTLE = 1
    PROVE = 2
    AGREE = 3


class Clock:
    """Collects what each step costs, summed over classes."""

    def __init__(self, progress: Progress) -> None:
        self._costs: dict[str, list[float]] = {}
        self._progress = progress

    @contextmanager
    def step(self, name: str, summing: Summing | None = None, reader: Reader | None = None) -> Iterator[None]:
        self._progress(name)
        start, launches = time.perf_counter(), summing.launches if summing else 0
        yield
        cost = self._costs.setdefault(name, [0, 0, 0.0])
        cost[0] += summing.launches - launches if summing else 0
        cost[1] += reader.experiments if reader else 0
        cost[2] += time.perf_counter() - start

    def phases(self) -> tuple[Phase, ...]:
        return tuple(Phase(name, int(c[0]), int(c[1]), c[2]) for name, c in self._costs.items())


def walk_problem(problem: Problem, preference: Preference, opened: Opened, *, exhaustive: bool = False, seed: int | None = None,
                 progress: Progress = lambda step: None) -> Point | Declined:
    """Recover and prove the order in which the library behind `opened` sums `problem`.

    seed: of every draw and random check; None takes a fresh one, which the point records. progress: called with the name
    of each step. Declined where the library or a walk gives a sound "no". Raises UsageError, EnvironmentProblem, LibraryError.
    """
    refused = _walkable(problem)
    if refused is not None:
        return refused
    seed = secrets.randbits(48) if seed is None else seed
    oracle, clock = opened.oracle, Clock(progress)
    with clock.step("ask"):
        answer = oracle.ask(problem, preference)
    if isinstance(answer, Declined):
        return answer
    with clock.step("capture"):
        captured = oracle.capture(problem, answer, preference)
    if isinstance(captured, Declined):
        return captured
    with clock.step("prepare"):
        summing = oracle.summing(problem, answer, preference)
    if isinstance(summing, Declined):
        return summing
    with clock.step("agree", summing):
        agreed = agreement(summing, stream_of(seed, Stream.AGREE))
    if isinstance(agreed, Declined):
        return agreed
    def recovered(agreed: Agreement, exhaustive: bool) -> list[ClassResult] | Declined:
        results = []
        for label in range(agreed.classes):
            where = None if agreed.labels is None else agreed.labels == label
            result = _recover(problem, summing, answer, captured, where, exhaustive, seed, oracle.target.sm_number, clock)
            if isinstance(result, Declined):
                return result
            results.append(result)
        return results

    results = recovered(agreed, exhaustive)
    if _fell(results):  # one reason is that elements of one class do not share their order after all
        with clock.step("agree", summing):
            closer = agreement(summing, stream_of(seed, Stream.AGREE), MORE_DRAWS)
        if isinstance(closer, Declined):
            return closer
        if closer.classes > agreed.classes:
            results = recovered(closer, exhaustive)
        if _fell(results) and not exhaustive and problem.k <= GENERAL_LIMIT:  # another: a few indices lie elsewhere than the tree says
            again = recovered(closer, exhaustive=True)
            results = results if isinstance(again, Declined) else again
    if isinstance(results, Declined):
        return results
    return Point(problem, preference, oracle.target, oracle.found_by, oracle.announcement, answer, captured, tuple(results),
                 clock.phases(), seed, exhaustive, now())


def _fell(results: list[ClassResult] | Declined) -> bool:
    """Whether a sum could not be read, or was read and is refuted by bytes."""
    if isinstance(results, Declined):
        return results.reason is DeclineReason.TREE_UNREADABLE
    return any(r.proof is not None and r.proof.outcome is Outcome.REFUTED for r in results)


def _recover(problem: Problem, summing: Summing, answer: Answer, captured: Capture, where: np.ndarray | None, exhaustive: bool,
             seed: int, sm: int, clock: Clock) -> ClassResult | Declined:
    """One class of elements: walk, candidates, settle, prove."""
    pair = pair_for(problem.a_dtype)
    places = places_for(where, problem.m, problem.n, pair.both)
    if not len(places.rows):
        return Declined(DeclineReason.TREE_UNREADABLE,
                        "a class of elements that sum alike has none on the diagonal, where this dtype is read")
    reader = Reader(summing, pair, places)
    with clock.step("walk", summing, reader):
        walked = recover_tree(reader, stream_of(seed, Stream.WALK), exhaustive)
    if isinstance(walked, Declined):
        return walked
    context = Context(problem.k, problem.a_dtype, problem.d_dtype, sm)
    with clock.step("recover"):
        possible = candidates(walked.tree, context)
    if isinstance(possible, Declined):
        return possible
    with clock.step("settle", summing):
        settled = settle(summing, possible, walked.extent, stream_of(seed, Stream.SETTLE), where)
    told = _tell(summing, possible, settled, context, walked.extent, seed, where, clock)
    settled, chosen, proof = told.settled, told.chosen, told.proof
    with clock.step("record"):
        desc = preferred_form(chosen, context, captured)
    return ClassResult(
        elements=problem.m * problem.n if where is None else int(np.count_nonzero(where)), schedule=chosen.schedule, desc=desc,
        family=family_of(chosen.schedule, desc), extent=walked.extent, instrument=walked.instrument, candidates=len(told.tried),
        settling_draws=settled.draws, settling_elements=settled.elements, ambiguous=tuple(c.schedule for c in settled.standing[1:]),
        evidence=evidence_for(desc, told.tried, walked.instrument, captured, settled), proof=proof)


@dataclass(frozen=True)
class _Told:
    """What telling candidates apart came to: all that were tried, the settling with its counts, the one to report, and its proof."""

    tried: tuple[Candidate, ...]
    settled: Settled
    chosen: Candidate
    proof: Proof | None


def _tell(summing: Summing, possible: tuple[Candidate, ...], settled: Settled, context: Context, extent: int, seed: int,
          where: np.ndarray | None, clock: Clock) -> _Told:
    """Prove what settling left, and tell it from the candidates that are like it: by the outputs of the proof's own extreme draws where
    these can, else by further draws, after which the proof is taken afresh."""
    proof_seed = stream_of(seed, Stream.PROVE)
    chosen = (settled.standing or possible)[0]
    if not settled.standing:  # recovered, and not confirmed: a class of its own, which is no decline
        with clock.step("prove", summing):
            return _Told(possible, settled, chosen, refuted(prove(summing, chosen.schedule, extent, proof_seed, where), settled.first))
    likes = {c.schedule: c for one in settled.standing for c in twins(one, context)}
    tried = tuple({c.schedule: c for c in (*possible, *likes.values())}.values())
    proof = None
    if len(settled.standing) == 1:
        rivals = tuple(likes)[1:]
        with clock.step("prove", summing):
            proof, unrefuted = prove_beside(summing, chosen.schedule, rivals, extent, proof_seed, where)
        if not rivals or (proof.outcome is Outcome.CONFIRMED and not unrefuted):
            return _Told(tried, settled, chosen, proof)
    with clock.step("settle", summing):
        like = settle(summing, distinct(likes.values(), context.input_dtype), extent, stream_of(seed, Stream.SETTLE), where, LIKE_ROUNDS,
                      LIKE_INDEX)
    settled = Settled(like.standing, len(tried) - len(like.standing), settled.draws + like.draws, settled.elements + like.elements,
                      like.first)
    chosen = (like.standing or settled.standing or (chosen,))[0]
    if len(like.standing) > 1:
        return _Told(tried, settled, chosen, None)
    if proof is None or (like.standing and proof.outcome is not Outcome.CONFIRMED) or chosen.schedule != next(iter(likes)):
        with clock.step("prove", summing):
            proof = prove(summing, chosen.schedule, extent, proof_seed + _AFRESH, where, SIGN_KINDS)
    return _Told(tried, settled, chosen, proof if like.standing else refuted(proof, like.first))


def _walkable(problem: Problem) -> Declined | None:
    """What no walk is known for yet is declined before anything is asked."""
    reasons = {
        f"inputs of {problem.a_dtype} and {problem.b_dtype}": problem.a_dtype is not problem.b_dtype
        or problem.a_dtype not in (DType.FP16, DType.BF16, DType.E4M3),
        f"an output of {problem.d_dtype}": problem.d_dtype not in (DType.FP32, DType.FP16, DType.BF16),
        f"compute type {problem.compute_type}": problem.compute_type is not ComputeType.FP32,
        "a batch": problem.batch_count != 1,
        f"epilogue {problem.epilogue}": problem.epilogue is not Epilogue.DEFAULT,
        "alpha other than 1 or beta other than 0": problem.alpha != 1 or problem.beta != 0,
        "scales": problem.a_scale or problem.b_scale or problem.c_scale or problem.d_scale,
    }
    for what, present in reasons.items():
        if present:
            return Declined(DeclineReason.UNSUPPORTED, f"no walk is known for {what}",
                            "fp16, bf16 or e4m3 inputs, fp32 accumulation, alpha 1, beta 0, no epilogue")
    return None


def stream_of(seed: int, use: Stream) -> int:
    """The seed of one stream."""
    return (seed * 4 + use) % 2**62
