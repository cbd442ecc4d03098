"""Ask the cost model: a problem and a preference in, answers or a decline out.

Needs a GPU, launches nothing.
"""

from __future__ import annotations

import ctypes

from probe.answer import Answer
from probe.cublaslt import status
from probe.cublaslt.algo import call_layouts, read_answer
from probe.cublaslt.descriptors import asking_extras, describe, describe_preference
from probe.cublaslt.library import Library
from probe.cublaslt.signatures import HeuristicResult
from probe.errors import Declined, DeclineReason
from probe.preference import Preference
from probe.problem import Problem
from probe.values import check_int

_FUNCTION = "cublasLtMatmulAlgoGetHeuristic"
_HINT = "try another layout, dtype, alignment or more workspace"


def ask(
    library: Library,
    problem: Problem,
    preference: Preference,
    alignments: tuple[int, int, int, int] | None = None,
) -> Answer | Declined:
    """The library's first choice, as cublasLtMatmul callers get it (one result requested), whatever the preference
    forces: that is for `probe.cublaslt.force.force`.

    alignments: bytes, of A, B, C, D; None takes the preference's, or the problem's offsets where it has none.
    Declines with NO_ALGORITHM where the library offers nothing and UNSUPPORTED where it calls the combination
    illegal. Raises LibraryError for any other failure.
    """
    answers = ask_many(library, problem, preference, 1, alignments)
    return answers if isinstance(answers, Declined) else answers[0]


def ask_many(
    library: Library,
    problem: Problem,
    preference: Preference,
    requested: int,
    alignments: tuple[int, int, int, int] | None = None,
) -> tuple[Answer, ...] | Declined:
    """Up to `requested` answers, in the library's order; those whose own state is a failure are left out.

    Whether the first of several is what a request for one returns is the library's business, not assumed
    here.
    """
    check_int("requested", requested, 1, 10_000)
    results = (HeuristicResult * requested)()
    count = ctypes.c_int()
    handle = library.handle
    with (
        describe(library, problem, asking_extras(problem)) as described,
        describe_preference(library, preference, alignments or problem.alignments(preference)) as wishes,
    ):
        code = library.functions.cublasLtMatmulAlgoGetHeuristic(
            handle, *call_layouts(described), wishes.pointer, requested, results, ctypes.byref(count)
        )
        return read_results(library, problem, code, results, count.value)


def refused(code: int) -> DeclineReason | None:
    """What a status of the heuristic means for the question; None for success and for a failure."""
    if code == status.NOT_SUPPORTED:
        return DeclineReason.NO_ALGORITHM
    return DeclineReason.UNSUPPORTED if code in (status.INVALID_VALUE, status.ARCH_MISMATCH) else None


def read_results(
    library: Library, problem: Problem, code: int, results: ctypes.Array[HeuristicResult], count: int
) -> tuple[Answer, ...] | Declined:
    """What a heuristic call said: its status `code`, and `count` results, each with a state of its own."""
    known = status.describe(code)
    if refused(code) is DeclineReason.NO_ALGORITHM:
        return Declined(
            DeclineReason.NO_ALGORITHM, f"the library has no algorithm for {problem.key}: {known.name}", _HINT
        )
    if refused(code) is DeclineReason.UNSUPPORTED:
        return Declined(
            DeclineReason.UNSUPPORTED,
            f"the library refuses {problem.key}: {known.name}, {known.meaning}",
            known.action,
        )
    status.check(_FUNCTION, code)
    if count < 1:
        return Declined(
            DeclineReason.NO_ALGORITHM, f"the library offers no algorithm for {problem.key}", _HINT
        )
    good = [r for r in results[:count] if r.state == status.SUCCESS]
    if not good:
        state = status.describe(results[0].state)
        return Declined(
            DeclineReason.NO_ALGORITHM,
            f"the library offers an algorithm for {problem.key} whose own state is {state.name}",
            state.action,
        )
    return tuple(read_answer(library, r) for r in good)
