"""One worker of a campaign: the child that holds one library on one GPU, and what it makes of a problem.

Whatever breaks costs one problem. After something broke the worker must do a small problem well before the failure counts; where it
cannot, the worker is lost (a GPU gone, a library that vanished) and its problem is left for a resume. A child that died is asked once more.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from probe.answer import Answer
from probe.campaign.rows import Done, Failure, FailureKind, Job
from probe.capture import Capture
from probe.children import Child
from probe.errors import Declined, DeclineReason, EnvironmentProblem, LibraryError, UsageError
from probe.names import DType
from probe.preference import Preference
from probe.problem import Problem
from probe.proof import Outcome, Proof
from probe.records import Point
from probe.wire import ChildBug, Request, Walked, asking, capturing, proving, walking

T = TypeVar("T")
_TRIES = 3  # of a walk that ends ambiguous, as for diff-libraries
_MORE = 8  # the number of the first seed of further proofs: the walks have those below
_MOST_PROOFS = 64  # further ones of one problem
_SMALL = Problem.gemm(16, 16, 96, DType.FP16)


class LaneLost(Exception):
    """The worker cannot go on; its text says why."""


class Lane:
    """One worker. `seeds(index, number)` gives the seed of a problem's walk or proof. Used by one thread; `kill` by any."""

    def __init__(self, child: Child, seeds: Callable[[int, int], int], draws: int, time_limit: float) -> None:
        self.child = child
        self._seeds, self._draws, self._limit = seeds, draws, time_limit
        self._killed = threading.Event()

    def run(self, job: Job) -> Done | None:
        """What becomes of one problem; None where the lane was killed meanwhile. Raises LaneLost."""
        began = time.perf_counter()
        done = self._attempt(job)
        if isinstance(done.result, Failure):
            self._check_health()
            if done.result.kind is FailureKind.DIED and not self._killed.is_set():
                done = replace(self._attempt(job), attempts=done.attempts + 1)
                if isinstance(done.result, Failure):
                    self._check_health()
        return None if self._killed.is_set() else replace(done, seconds=time.perf_counter() - began)

    def kill(self) -> None:
        """End the child now, whatever it is doing."""
        self._killed.set()
        pid = self.child.pid
        if pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    # One problem

    def _attempt(self, job: Job) -> Done:
        problem, preference, seed = job.asked.problem, job.asked.preference, self._seeds(job.index, 0)
        deadline = time.monotonic() + self._limit

        def call(request: Request[T]) -> T | Declined | Failure:
            return self._call(request, max(0.001, deadline - time.monotonic()))

        asked = call(asking([problem], preference))
        answer = asked[0] if isinstance(asked, tuple) else asked
        if not isinstance(answer, Answer):
            return Done(job, None, None, answer, (), 1, seed, 0.0)
        walked: Walked | Declined | Failure | None = None
        attempts = 0
        while walked is None or (isinstance(walked, Walked) and walked.point.outcome is Outcome.AMBIGUOUS and attempts < _TRIES):
            seed = self._seeds(job.index, attempts)
            walked = call(walking(problem, preference, seed))
            attempts += 1
        if isinstance(walked, Walked):
            more = self._prove_more(job, answer, walked, call)
            if isinstance(more, Failure):
                return Done(job, answer, walked.point.capture, more, (), attempts, seed, 0.0)
            return Done(job, answer, walked.point.capture, walked.point, more, attempts, seed, 0.0)
        captured: Capture | Declined | Failure | None = None
        if isinstance(walked, Declined):
            captured = call(capturing(problem, preference, answer))
        return Done(job, answer, captured if isinstance(captured, Capture) else None, walked, (), attempts, seed, 0.0)

    def _prove_more(self, job: Job, answer: Answer, walked: Walked,
                    call: Callable[[Request[tuple[Proof, ...] | Declined]], tuple[Proof, ...] | Declined | Failure],
                    ) -> tuple[tuple[Proof, ...], ...] | Failure:
        """Further proofs on fresh draws, until every class has as many draws as the campaign asks for."""
        more: list[tuple[Proof, ...]] = []
        have = _fewest_draws(walked.point)
        while have is not None and have < self._draws and len(more) < _MOST_PROOFS:
            seed = self._seeds(job.index, _MORE + len(more))
            proofs = call(proving(job.asked.problem, job.asked.preference, answer, walked.classes, seed))
            if isinstance(proofs, Failure):
                return proofs
            if isinstance(proofs, Declined):
                return Failure(FailureKind.CANNOT_RUN, f"a further proof was declined: {proofs}")
            more.append(proofs)
            have += min(sum(count for _, count in proof.draws) for proof in proofs)
        return tuple(more)

    def _call(self, request: Request[T], limit: float) -> T | Declined | Failure:
        """A reply, or what broke. Raises LaneLost where no child can be started."""
        try:
            self.child.begin(request, limit)
        except (EnvironmentProblem, LibraryError, UsageError, ChildBug) as error:
            raise LaneLost(str(error)) from None
        try:
            got = self.child.finish(request)
        except EnvironmentProblem as error:
            return Failure(FailureKind.ENVIRONMENT, str(error))
        except LibraryError as error:
            return Failure(FailureKind.LIBRARY, str(error))
        except UsageError as error:
            return Failure(FailureKind.USAGE, str(error))
        except ChildBug as error:
            return Failure(FailureKind.BUG, f"{error}{error.__cause__ or ''}")
        if isinstance(got, Declined) and got.reason is DeclineReason.TIMED_OUT:
            return Failure(FailureKind.TIMED_OUT, f"{got.text} ({self._limit:g} s a problem)")
        if isinstance(got, Declined) and got.reason is DeclineReason.CANNOT_RUN:
            # a child that is gone says so in these words (probe.children); the library's own refusal has others
            died = got.text.startswith("the child process ")
            return Failure(FailureKind.DIED if died else FailureKind.CANNOT_RUN, got.text)
        return got

    def _check_health(self) -> None:
        """A small problem, done well. Raises LaneLost."""
        if self._killed.is_set():
            return
        got = self._call(walking(_SMALL, Preference(), 1), max(self._limit, 30.0))
        if isinstance(got, Failure) and not self._killed.is_set():
            raise LaneLost(f"a small problem fails as well: {got.text}")


def _fewest_draws(point: Point) -> int | None:
    """Draws of the class that has the fewest; None where some class has no proof, or one that was refuted."""
    if point.outcome is not Outcome.CONFIRMED:
        return None
    return min(sum(count for _, count in c.proof.draws) for c in point.classes if c.proof is not None)
