"""A walk in a child process with a time limit: what may fault, hang or exhaust memory costs the child and one line of reason.

The GPU context that a fault breaks is the child's. The next walk starts another child, in which everything works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from probe.children import Child
from probe.errors import Declined, DeclineReason, EnvironmentProblem, LibraryError
from probe.pipeline import Progress
from probe.preference import Preference
from probe.problem import Problem
from probe.records import Point
from probe.wire import Request, walking

T = TypeVar("T")
TIME_LIMIT = 300.0  # seconds of one walk in a child, where the caller names none


def needs_child(problem: Problem, preference: Preference) -> bool:
    """Whether a call may fault or hang: its answer is forced, or the preference promises alignment that the addresses lack."""
    return preference.forced is not None or bool(problem.overpromised(preference))


def walk_apart(child: Child, problem: Problem, preference: Preference, seed: int, *, exhaustive: bool = False,
               time_limit: float = TIME_LIMIT, progress: Progress = lambda step: None) -> Point | Declined:
    """`probe.pipeline.walk_problem` in a child. Declined, too, where the child died, ran out of time (seconds) or its device failed.

    Raises what opening the library raises, UsageError, and ChildBug for a bug in the child.
    """
    request = walking(problem, preference, seed, exhaustive)
    child.begin(request, time_limit)  # no child or no library: an error, not this walk's decline
    walked = finished(child, request, progress)
    if isinstance(walked, Declined):
        for what in _suspicions(problem, preference):
            return Declined(walked.reason, f"{walked.text}; {what}", walked.hint)
        return walked
    return walked.point


def finished(child: Child, request: Request[T], step: Callable[[str], None] | None = None) -> T | Declined:
    """The reply to what was begun. What the device or the library failed at declines this request; the child is new for the next."""
    try:
        return child.finish(request, step)
    except (EnvironmentProblem, LibraryError) as error:
        text = str(error) if isinstance(error, LibraryError) else error.message
        return Declined(DeclineReason.CANNOT_RUN, text)


def _suspicions(problem: Problem, preference: Preference) -> list[str]:
    """What about this call was the caller's own, as a half sentence, for the reason of its decline."""
    over = problem.overpromised(preference)
    return [f"the preference promises more alignment than {' and '.join(over)} {'has' if len(over) == 1 else 'have'}"] if over else []
