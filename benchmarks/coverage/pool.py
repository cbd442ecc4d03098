"""Many problems on one library: processes side by side, each a child with its own library. What goes wrong in one costs one problem."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.coverage.regimes import Draw, stream_of
from benchmarks.coverage.rows import SAME, Ended, Outcome, Row, read, row_of, write
from probe.answer import Answer
from probe.children import START_SECONDS, Child
from probe.errors import Declined, EnvironmentProblem, LibraryError, UsageError
from probe.names import DType, Layout
from probe.preference import Preference
from probe.problem import Problem
from probe.records import now
from probe.stream import Asked
from probe.values import check_int
from probe.wire import ChildBug, Request, asking, capturing, value_or_declined, walking

_PART_ROWS, _PART_SECONDS = 1000, 60.0  # a file is written when it has so many rows, or so long after the last
_SAY_SECONDS = 10.0
_ASK_SECONDS = 10.0  # to ask and to capture once more, where a walk gave no point
_LEAST_SECONDS = 0.05  # of a run's time, below which no problem is begun
_FAILURES = 3  # starts of a child in a row that fail before its place in the pool is given up
# Walked before the clock runs, in each child: both kinds of input makers (host and device), every dtype, packed and padded matrices.
_WARM = (Problem.gemm(64, 64, 576, DType.FP16), Problem.gemm(1, 4096, 512, DType.BF16),
         Problem.gemm(520, 520, 640, DType.BF16, DType.FP32), Problem.gemm(520, 528, 640, DType.E4M3),
         Problem.gemm(520, 520, 640, DType.FP16, layout=Layout.TN, lda=648, ldb=648, ldd=528))
_WARM_SMALL = (Problem.gemm(16, 16, 96, DType.FP16), Problem.gemm(16, 16, 96, DType.E4M3))


@dataclass(frozen=True)
class Plan:
    """library and gpu: as `probe walk` takes them. problems: indices 0 to problems - 1 of the stream of (seed, draw). seconds: of wall
    clock once all children are warm. limit: seconds for one problem. Raises UsageError."""

    library: str | None
    problems: int
    processes: int
    seed: int
    seconds: float
    limit: float = 20.0
    draw: Draw = Draw.ALL
    gpu: int = 0

    def __post_init__(self) -> None:
        check_int("problems", self.problems, 1, 10**9)
        check_int("processes", self.processes, 1, 1024)
        for name in ("seconds", "limit"):
            if not 0 < getattr(self, name) < 10**6:
                raise UsageError(f"{name} = {getattr(self, name)} is no time", "seconds, more than 0")


class Pool:
    """One run. done: indices that are left out. target: that the library must have, if any. Rows come to `take` in the order in which they
    are finished."""

    def __init__(self, plan: Plan, say: Callable[[str], None], done: Collection[int] = (),
                 target: Mapping[str, Any] | None = None) -> None:
        self.plan, self._say, self._target = plan, say, target
        self._stream = stream_of(plan.seed, plan.draw)
        self._left = iter([index for index in range(plan.problems) if index not in done])
        self._lock = threading.Lock()
        self._said: queue.Queue[Row | Exception | Child | None] = queue.Queue()  # a child: it is warm; None: a thread has ended
        self._go, self._stop = threading.Event(), threading.Event()
        self._deadline = 0.0
        self.children: list[Child] = []
        self.facts: dict[str, Any] = {}

    def run(self, take: Callable[[Row], None], tick: Callable[[], None]) -> None:
        """Walk until the problems or the seconds are used up. take: called with each row, tick: at least once a second; both in this
        thread. Raises what the start of the children raises."""
        with ExitStack() as stack:
            self.children = [stack.enter_context(Child(self.plan.library, self.plan.gpu)) for _ in range(self.plan.processes)]
            threads = [threading.Thread(target=self._work, args=(child,), daemon=True) for child in self.children]
            for thread in threads:
                thread.start()
            try:
                self._await_warm()
                self._deadline = time.monotonic() + self.plan.seconds
                self._go.set()
                left = len(threads)
                while left:
                    with suppress(queue.Empty):
                        said = self._said.get(timeout=1.0)
                        left -= said is None
                        if isinstance(said, Exception):
                            self._say(f"a place in the pool is given up: {said}")
                        elif isinstance(said, dict):
                            take(said)
                    tick()
            finally:
                self._stop.set()
                self._go.set()
                for child, thread in zip(self.children, threads, strict=True):
                    while thread.is_alive():
                        with suppress(ProcessLookupError, TypeError):  # a child that is at work does not hear of the end
                            os.killpg(child.pid, signal.SIGKILL)  # type: ignore[arg-type]
                        thread.join(0.2)

    def _await_warm(self) -> None:
        start = time.monotonic()
        for number in range(len(self.children)):
            said = self._said.get()
            if isinstance(said, Exception):
                raise said
            self._say(f"{number + 1} of {len(self.children)} processes warm after {time.monotonic() - start:.0f} s")
        identity = self.children[0].identify()
        plan = asdict(self.plan) | {"draw": str(self.plan.draw)}
        if self._target not in (None, identity.target.to_document()):
            raise UsageError("this is another library or device than that of the run to resume", "the same")
        self.facts = plan | {"target": identity.target.to_document(), "announcement": identity.announcement, "date": now()}

    def _work(self, child: Child) -> None:
        """One thread: it has a child and takes problems until there are none."""
        warm, failures = None, 0
        try:
            while not self._stop.is_set():
                if child.pid is None or warm != child.pid:
                    try:
                        self._warm_up(child)
                    except (EnvironmentProblem, LibraryError, ChildBug, UsageError) as error:
                        failures += 1
                        if not self._go.is_set() or failures == _FAILURES:
                            self._said.put(error)
                            return
                        continue
                    warm, failures = child.pid, 0
                    if not self._go.is_set():
                        self._said.put(child)
                        self._go.wait()
                index = self._take()
                if index is None:
                    return
                row = self._walk(child, index)
                if row is not None:
                    self._said.put(row)
        except Exception as error:  # a bug of this benchmark
            self._said.put(error)
            raise
        finally:
            self._said.put(None)

    def _take(self) -> int | None:
        with self._lock:
            if self._stop.is_set() or self._deadline - time.monotonic() < _LEAST_SECONDS:
                return None
            return next(self._left, None)

    def _warm_up(self, child: Child) -> None:
        child.identify()
        for problem in _WARM if self.plan.draw is Draw.ALL else _WARM_SMALL:
            child.call(walking(problem, Preference(), 1), START_SECONDS)

    def _walk(self, child: Child, index: int) -> Row | None:
        """The row of one problem; None where the run's time ended first."""
        asked, seed = self._stream.at(index), self._stream.draw_seed(index)
        steps = [""]
        start = time.monotonic()
        room = self._deadline - start
        reply: Any
        try:
            reply = child.call(_document_of(asked, seed), min(self.plan.limit, room), steps.append)
        except (EnvironmentProblem, LibraryError, ChildBug, UsageError) as error:
            reply = error
        wall, lost = time.monotonic() - start, child.pid is None
        failed = isinstance(reply, Declined | Exception)
        if failed and (self._stop.is_set() or (lost and time.monotonic() >= self._deadline)):
            return None
        answer, captured = self._ask(child, asked) if failed else (None, None)
        return row_of(index, asked, Ended(reply, steps[-1], wall, lost, answer, captured))

    def _ask(self, child: Child, asked: Asked) -> tuple[Answer | None, Any]:
        """The answer and the kernels of a problem that gave no point, as far as they can be had."""
        try:
            answers = child.call(asking([asked.problem], asked.preference), _ASK_SECONDS)
            answer = None if isinstance(answers, Declined) or isinstance(answers[0], Declined) else answers[0]
            if answer is None:
                return None, None
        except (EnvironmentProblem, LibraryError, ChildBug, UsageError):
            return None, None
        try:
            captured = child.call(capturing(asked.problem, asked.preference, answer), _ASK_SECONDS)
        except (EnvironmentProblem, LibraryError, ChildBug, UsageError):
            return answer, None
        return answer, None if isinstance(captured, Declined) else captured


def _document_of(asked: Asked, seed: int) -> Request[Any]:
    """`walking`, its point left as the plain values that it travels as: a row needs no more."""
    request = walking(asked.problem, asked.preference, seed)
    return Request(request.op, request.arguments, lambda reply: value_or_declined(reply, lambda document: document["point"]))


def run(plan: Plan, folder: Path, say: Callable[[str], None], watch: Callable[[Pool], None] = lambda pool: None,
        resume: bool = False) -> Counter[str]:
    """Walk the problems of a plan, writing part-*.parquet into `folder`. Returns how many have each outcome, of this call.

    say: called with a line for the person, at least every 10 s. watch: called with the pool after each row. resume: walk only what the
    files of the folder lack; else it must be new or empty. What an interrupted run has is written. Raises UsageError,
    EnvironmentProblem, LibraryError, ChildBug.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(folder.glob("part-*.parquet"))
        if any(folder.iterdir()) and not resume:
            raise UsageError(f"{folder} is not empty", "a new folder, or --resume")
    except OSError as error:
        raise EnvironmentProblem(f"{folder} cannot be used: {error.strerror}", "another folder") from None
    before = read(files) if files else None
    if before is not None and any(before.facts[name] != getattr(plan, name) for name in SAME if name != "target"):
        raise UsageError(f"{folder} is of another run", "the same library, seed, draw, problems and limit")
    done = frozenset() if before is None else frozenset(row["index"] for row in before.rows)
    pool = Pool(plan, say, done, None if before is None else before.facts["target"])
    rows: list[Row] = []
    counts: Counter[str] = Counter()
    parts, written, said, begun = len(files), 0.0, 0.0, 0.0

    most = plan.problems - len(done)

    def save() -> None:
        nonlocal parts, written
        if rows:
            write(rows, pool.facts, folder / f"part-{parts:05d}.parquet")
            rows.clear()
            parts += 1
        written = time.monotonic()

    def take(row: Row) -> None:
        rows.append(row)
        counts[row["outcome"]] += 1
        watch(pool)

    def tick() -> None:
        nonlocal said, begun, written
        moment = time.monotonic()
        if not begun:
            begun = said = written = moment
        if moment - said >= _SAY_SECONDS:
            said = moment
            rate = counts.total() / (moment - begun)
            say(f"{moment - begun:.0f} s: {counts.total()} of {most}, {rate:.1f} a second; {told(counts)}")
        if len(rows) >= _PART_ROWS or moment - written >= _PART_SECONDS:
            save()

    try:
        pool.run(take, tick)
    finally:
        save()
    say(f"{counts.total()} of {most} done, {most - counts.total()} not begun; {told(counts)}")
    return counts


def told(counts: Counter[str]) -> str:
    """The counts in words."""
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]) or "nothing yet"
