"""The verb `diff_libraries`: for which problems two libraries give another answer, and for which they sum in another order.

Both libraries are walked, each in a child process of its own: its order is recovered, and confirmed on its own bytes. Where the two orders
differ, A's is held against B's bytes as well, which must refute it. That B's bytes do not refute A's order would not be enough to call them
the same: a 16-bit output can hide a moved cut from thousands of ordinary dot products.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from probe.answer import Answer
from probe.apart import finished
from probe.children import Child
from probe.contrast import Contrast
from probe.difference.file import Journal, check_dataset, header_of, write_dataset
from probe.difference.rows import (
    DIFFERENCE_VERSION,
    JSON_COLUMNS,
    KIND,
    Compared,
    Row,
    Seeds,
    Verdict,
    confirmed,
    counts_of,
    exit_code_of,
    row_of,
    same_order,
)
from probe.errors import Declined, ExitCode, UsageError
from probe.oracle import SIMULATED_LIBRARIES
from probe.preference import Preference
from probe.proof import Outcome, Proof
from probe.records import now
from probe.regimes import Case, Chosen, cases_of
from probe.target import Target
from probe.values import check_int
from probe.verbs import MAX_SEED, check_time
from probe.wire import Request, Walked, asking, contrasting, proving, walking

T = TypeVar("T")
TIME_LIMIT = 300.0  # seconds for one request to a child
_TRIES = 3  # of a walk that ends ambiguous
_SEEDS_A_CASE = 8  # walks of A, walks of B, and the draws on which A's order meets B's bytes: no two share a draw
Progress = Callable[[int, int, str, str], None]  # problems done, of how many, the last case, its verdict ("" at the start)


@dataclass(frozen=True)
class Differences:
    """What became of every problem: rows as `probe.difference.rows.COLUMNS` names them, in the order that was asked."""

    target_a: Target
    target_b: Target
    preference: Preference
    seed: int
    rows: tuple[Row, ...]

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """Problems of each verdict."""
        return counts_of(self.rows)

    @property
    def exit_code(self) -> ExitCode:
        """0 nothing moved, 1 something moved or was not confirmed, 3 nothing but declines."""
        return exit_code_of(self.rows)

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON; what is JSON text in a row is unfolded."""
        import json

        rows = [{name: json.loads(v) if name in JSON_COLUMNS and v is not None else v for name, v in row.items()} for row in self.rows]
        return {"kind": KIND, "version": DIFFERENCE_VERSION, "a": self.target_a.to_document(), "b": self.target_b.to_document(),
                "preference": self.preference.to_document(), "seed": self.seed, "counts": {str(v): n for v, n in self.counts.items()},
                "exit_code": int(self.exit_code), "rows": rows}


def diff_libraries(a: str, b: str, shapes: str | Path, dtype: str | None = None, out: str | None = None, layout: str | None = None, *,
                   fast_accumulation: bool | None = None, workspace_bytes: int = 32 * 2**20, reduction_schemes: int = 7, gpu: int = 0,
                   seed: int | None = None, time_limit: float = TIME_LIMIT, output: Path | str | None = None, resume: bool = False,
                   progress: Progress = lambda done, total, case, verdict: None, notice: Callable[[str], None] = lambda text: None,
                   ) -> Differences:
    """Compare two libraries, problem by problem: answers, kernels, and the order of the sum, confirmed on bytes.

    a, b: libraries as `walk` takes them. shapes: a regime (`probe.regimes.Regime`) or a file of shapes; dtype, out, layout and
    fast_accumulation choose cases of a regime, and fill in what a line of a file leaves out. workspace_bytes and reduction_schemes: as
    for `walk`, the same for both. seed: 0 to 2^60 - 1, of all draws; None is a fresh one. time_limit: seconds for one request to a
    library; a problem that takes longer is declined. output: a new .parquet file; until it is whole, finished problems lie beside it,
    and `resume` goes on with them. progress: see `Progress`. notice: called with lines for the person.
    Raises UsageError, EnvironmentProblem or LibraryError, ChildBug for a bug in a child.
    """
    cases, repeats = cases_of(shapes, Chosen(dtype, out, layout, fast_accumulation))
    check_int("reduction_schemes", reduction_schemes, 0, 7, "0 to 7, a sum of 1 in place, 2 compute type, 4 output type")
    preference = Preference(workspace_bytes=workspace_bytes, reduction_scheme_mask=reduction_schemes)
    check_int("gpu", gpu, 0, 1023)
    if gpu and {a, b} <= set(SIMULATED_LIBRARIES):
        raise UsageError(f"simulated libraries run on no GPU, so there is no number {gpu}", "leave out gpu, or name another library")
    if seed is not None:
        check_int("seed", seed, 0, MAX_SEED)
    check_time("time_limit", time_limit)
    path = None if output is None else Path(output)
    if path is not None:
        check_dataset(path)
    elif resume:
        raise UsageError("resume needs the output of the run that was interrupted", "-o DATASET.parquet")
    if repeats:
        notice(f"{repeats} repeated shapes are compared once")
    with Child(a, gpu) as child_a, Child(b, gpu) as child_b:
        return _run(child_a, child_b, cases, preference, seed, time_limit, path, resume, progress, notice)


def _run(child_a: Child, child_b: Child, cases: tuple[Case, ...], preference: Preference, seed: int | None, time_limit: float,
         path: Path | None, resume: bool, progress: Progress, notice: Callable[[str], None]) -> Differences:
    identities = child_a.identify(), child_b.identify()
    for text in dict.fromkeys(text for i in identities for text in (i.notice, i.announcement)):
        if text:
            notice(text)
    targets = identities[0].target, identities[1].target
    if targets[0] == targets[1]:
        notice(f"{child_a.name} and {child_b.name} are one and the same library")
    fresh = secrets.randbits(48) if seed is None else seed
    journal = None if path is None else Journal.open(path, header_of(cases, preference, targets, seed), fresh, resume)
    with journal or nullcontext():
        rows = [] if journal is None else list(journal.rows)
        used = fresh if journal is None else journal.seed
        if resume:
            notice(f"{len(rows)} of {len(cases)} problems were finished before" if rows else "there was nothing to resume")
        done = {row["index"] for row in rows}
        todo = [(index, case) for index, case in enumerate(cases) if index not in done]
        try:
            if todo:
                progress(len(rows), len(cases), todo[0][1].name, "")
            for compared in compare_cases(child_a, child_b, todo, preference, used, time_limit):
                row = row_of(compared, *targets, used)
                if journal is not None:
                    journal.append(row)
                rows.append(row)
                progress(len(rows), len(cases), row["case"], row["verdict"])
        except BaseException:
            if journal is not None and path is not None:
                notice(f"{len(rows)} of {len(cases)} problems are finished and kept; the same command with --resume goes on")
            raise
        rows.sort(key=lambda row: row["index"])
        if journal is not None and path is not None:
            write_dataset(rows, path)
            journal.remove()
    return Differences(*targets, preference, used, tuple(rows))


def compare_cases(child_a: Child, child_b: Child, cases: Iterable[tuple[int, Case]], preference: Preference, seed: int,
                  time_limit: float = TIME_LIMIT) -> Iterator[Compared]:
    """Compare case by case, the two children side by side. Each case comes with its number, which with `seed` gives its draws."""
    for index, case in cases:
        yield _Comparison(child_a, child_b, index, case, preference, seed, time_limit).run()


_WalkedWith = tuple[Walked | Declined | None, int]  # and its seed


class _Comparison:
    """One case on both sides."""

    def __init__(self, child_a: Child, child_b: Child, index: int, case: Case, preference: Preference, seed: int,
                 time_limit: float) -> None:
        self._children, self._index, self._case, self._limit = (child_a, child_b), index, case, time_limit
        self._problem, self._preference = case.problem(), preference
        self._seeds = [(seed + _SEEDS_A_CASE * index + use) % (MAX_SEED + 1) for use in range(_SEEDS_A_CASE)]

    def run(self) -> Compared:
        began = time.perf_counter()
        answer_a, answer_b = (self._ask(child) for child in self._children)
        (a, seed_a), (b, seed_b), against_b = (None, self._seeds[0]), (None, self._seeds[_TRIES]), self._seeds[2 * _TRIES]
        on_b: tuple[Proof, ...] | Declined | None = None
        found: Contrast | Declined | None = None
        if isinstance(answer_a, Answer) and isinstance(answer_b, Answer):
            (a, seed_a), (b, seed_b) = self._walk_both()
            if confirmed(a) and confirmed(b) and not same_order(a, b):
                on_b = self._call(self._children[1], proving(self._problem, self._preference, answer_b, a.classes, against_b))
                if isinstance(on_b, tuple) and all(proof.outcome is Outcome.CONFIRMED for proof in on_b):
                    request = contrasting(self._problem, self._preference, answer_b, a.classes, b.classes, against_b)
                    found = self._call(self._children[1], request)
        return Compared(self._index, self._case, self._preference, Seeds(seed_a, seed_b, against_b), answer_a, answer_b, a, b, on_b, found,
                        time.perf_counter() - began, now())

    def _walk_both(self) -> tuple[_WalkedWith, _WalkedWith]:
        """Both walks, side by side. What is ambiguous is walked again on fresh draws, which may tell its candidates apart."""
        got: list[_WalkedWith] = [(None, 0), (None, 0)]
        for attempt in range(_TRIES):
            begun: list[tuple[int, Request[Walked | Declined], int]] = []
            for side, child in enumerate(self._children):
                last = got[side][0]
                if last is None or (isinstance(last, Walked) and last.point.outcome is Outcome.AMBIGUOUS):
                    seed = self._seeds[side * _TRIES + attempt]
                    request = walking(self._problem, self._preference, seed)
                    child.begin(request, self._limit)
                    begun.append((side, request, seed))
            for side, request, seed in begun:
                walked = finished(self._children[side], request)
                got[side] = walked, seed
        return got[0], got[1]

    def _ask(self, child: Child) -> Answer | Declined:
        asked = self._call(child, asking([self._problem], self._preference))
        return asked if isinstance(asked, Declined) else asked[0]

    def _call(self, child: Child, request: Request[T]) -> T | Declined:
        child.begin(request, self._limit)
        return finished(child, request)
