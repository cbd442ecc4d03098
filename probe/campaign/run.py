"""The verbs that run a campaign: `run_campaign` and `resume_campaign`. A thread a worker waits for its child; this thread writes rows."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from probe.campaign.folder import Folder, Frozen, Writer
from probe.campaign.lane import Lane, LaneLost
from probe.campaign.parse import read_budget, read_campaign
from probe.campaign.progress import Event, EventKind, Gauge, Listener, status
from probe.campaign.rows import Done, Job, Row, Tally, row_of_done, tally
from probe.campaign.spec import Budget, Campaign, Mode, gpu_of
from probe.children import Child
from probe.errors import Declined, DeclineReason, EnvironmentProblem, ExitCode, LibraryError, UsageError
from probe.records import now
from probe.stream import ProblemStream
from probe.target import Target
from probe.values import check_int
from probe.wire import ChildBug

MakeChild = Callable[[str, int], Child]
_TURN = 0.2  # seconds between looks for a stop
_STATUS = 5.0  # seconds between status events


@dataclass(frozen=True)
class Ran:
    """How a run ended. counts: over all rows of the folder. rows: finished by this run. ended: "finished", "budget", "stopped",
    "interrupted" or "lost". lost: a line for each worker that was lost."""

    folder: Path
    counts: Tally
    rows: int
    total: int | None
    ended: str
    lost: tuple[str, ...]
    seconds: float

    @property
    def exit_code(self) -> ExitCode:
        """4 where a worker was lost, else that of the rows."""
        return ExitCode.ENVIRONMENT if self.lost else self.counts.exit_code

    def to_document(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "ended": self.ended, "rows": self.rows, "total": self.total, "lost": list(self.lost),
                "seconds": round(self.seconds, 3), "counts": self.counts.to_document(), "exit_code": int(self.exit_code)}


def run_campaign(file: Path | str, output: Path | str | None = None, *, libraries: Sequence[str] = (), gpus: Sequence[int] | None = None,
                 budget: str | None = None, begin: int = 0, progress: Listener = lambda event: None,
                 make_child: MakeChild | None = None) -> Ran | Declined:
    """Begin a campaign in a new folder and run it.

    file: a campaign file (docs/campaigns.md). output: the folder, by default the campaign's name, here. libraries and gpus replace those of
    the file. budget: of this run alone, "500 problems" or "9min"; the file's holds as well. begin: the first problem of the stream that
    this folder runs, for a campaign that is run in pieces. progress: called with events, in this thread. make_child: starts another
    worker than probe's own.
    Ctrl-C and SIGTERM end it after the problems in flight, and the second one at once; what is finished is kept, and KeyboardInterrupt is
    raised. Declined for the mode confirm. Raises UsageError, EnvironmentProblem, LibraryError.
    """
    campaign = read_campaign(Path(file)).on(tuple(libraries) or None, None if gpus is None else tuple(gpus))
    check_int("begin", begin, 0, 2**53)
    if campaign.mode is Mode.CONFIRM:
        return Declined(DeclineReason.NOT_COVERED, "mode confirm looks descriptors up in an arch profile, and this probe has none yet",
                        'mode = "recover"')
    session = Budget() if budget is None else read_budget(budget)
    path = Path(output) if output is not None else Path(campaign.name)
    Folder.check_new(path, campaign)
    stream = campaign.stream()
    with ExitStack() as stack:
        children = _children(campaign, make_child, stack)
        targets = _targets(children, progress)
        folder = Folder.create(path, Frozen(campaign, targets, begin, now()))
        with folder.held():
            return _Run(folder, stream, [], children, session, progress).run()


def resume_campaign(folder: Path | str, *, budget: str | None = None, gpus: Sequence[int] | None = None,
                    progress: Listener = lambda event: None, make_child: MakeChild | None = None) -> Ran:
    """Go on with a campaign: the problems that are not finished. Arguments and errors as for `run_campaign`; gpus may be others than
    before, of the same kind. A library that cannot be opened any more, or is another, loses its workers, and the others go on."""
    opened = Folder(Path(folder))
    campaign = opened.frozen.campaign.on(None, None if gpus is None else tuple(gpus))
    session = Budget() if budget is None else read_budget(budget)
    with opened.held(), ExitStack() as stack:
        before = opened.read(("outcome", "family", "reason", "source"))
        children = _children(campaign, make_child, stack)
        return _Run(opened, campaign.stream(), before, children, session, progress).run()


Lanes = Mapping[tuple[int, str], Child]


def _children(campaign: Campaign, make_child: MakeChild | None, stack: ExitStack) -> Lanes:
    """A started child for each worker, all opening their libraries side by side."""
    make = make_child or (lambda library, gpu: Child(library, gpu_of(library, gpu), name=f"{library} on GPU {gpu}"))
    return {(gpu, library): stack.enter_context(make(library, gpu)) for gpu, library in campaign.lanes()}


def _targets(children: Lanes, progress: Listener) -> dict[str, Target]:
    """The target of each library. Raises what opening one raised, and UsageError where two GPUs are of two kinds."""
    targets: dict[str, Target] = {}
    said: set[str] = set()
    for (gpu, library), child in children.items():
        identity = child.identify()
        for text in (identity.notice, identity.announcement):
            if text and text not in said:
                said.add(text)
                progress(Event(EventKind.NOTICE, {"text": text}))
        if targets.setdefault(library, identity.target) != identity.target:
            raise UsageError(f"GPU {gpu} is another target for {library} than the first: {identity.target}",
                             "a campaign for each kind of GPU: its rows could not be told from the others'")
    return targets


class _Interrupts:
    """Counts Ctrl-C and SIGTERM in place of raising in the middle of a write."""

    def __init__(self) -> None:
        self.count = 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach the main thread alone, and whoever has that one deals with them
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


_Ended = tuple[tuple[int, str], str]  # a worker that ended, and why it was lost ("" where it was not)


class _Run:
    """One run over a folder that is held. before: the rows that it has, with the columns that are counted."""

    def __init__(self, folder: Folder, stream: ProblemStream, before: Sequence[Row], children: Lanes, session: Budget,
                 progress: Listener) -> None:
        self._folder, self._stream, self._progress, self._session = folder, stream, progress, session
        self._campaign, self._before = folder.frozen.campaign, before
        self._children = children
        self._lanes = {key: Lane(child, stream.draw_seed, self._campaign.draws, self._campaign.time_limit)
                       for key, child in children.items()}
        self._out: queue.SimpleQueue[Done | _Ended | BaseException] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> Ran:
        interrupts = _Interrupts()
        with interrupts.counted():
            self._folder.stop_path.unlink(missing_ok=True)
            self._plan(self._before)
            with self._folder.writer() as writer:
                ran = self._loop(writer, tally(self._before), interrupts)
        if ran.ended == "interrupted":
            raise KeyboardInterrupt
        return ran

    def _plan(self, before: Sequence[Row]) -> None:
        """What is to do: for each library, the problems from `begin` to the end that have no row."""
        begin, libraries = self._folder.frozen.begin, self._campaign.libraries
        done: dict[str, set[int]] = {library: set() for library in libraries}
        for row in before:
            done[row["library_name"]].add(row["index"])
        ends = [end for end in (self._stream.length, self._campaign.budget.problems) if end is not None]
        end = min(ends) if ends else None
        self.total = None if end is None else sum(
            len(indices | set(range(begin, end))) if begin else max(end, len(indices)) for indices in done.values())
        if self._session.problems is not None:
            complete = set.intersection(*done.values())
            left, index = self._session.problems, begin
            while left and (end is None or index < end):
                left -= index not in complete
                index += 1
            end = index
        self._todo = {library: _pending(begin, end, done[library]) for library in libraries}

    def _take(self, library: str) -> int | None:
        with self._lock:
            return None if self._ending.is_set() else next(self._todo[library], None)

    # The threads of the workers

    def _work(self, key: tuple[int, str]) -> None:
        gpu, library = key
        lane = self._lanes[key]
        try:
            target = self._open(key)
            while (index := self._take(library)) is not None:
                done = lane.run(Job(index, library, gpu, self._stream.at(index), target))
                if done is None:
                    break
                self._out.put(done)
            self._out.put((key, ""))
        except LaneLost as lost:
            self._out.put((key, str(lost)))
        except BaseException as error:  # a bug of ours: raised in the main thread, after what is finished is written
            self._out.put(error)
            self._out.put((key, "a bug"))

    def _open(self, key: tuple[int, str]) -> Target:
        library = key[1]
        wanted = self._folder.frozen.targets[library]
        try:
            target = self._children[key].identify().target
        except (EnvironmentProblem, LibraryError, UsageError, ChildBug) as error:
            raise LaneLost(str(error)) from None
        if target != wanted:
            raise LaneLost(f"it is {target} with hash {target.sha256[:12]}, and the campaign began with {wanted}, {wanted.sha256[:12]}")
        return target

    # The thread that writes

    def _loop(self, writer: Writer, counts: Tally, interrupts: _Interrupts) -> Ran:
        began = time.monotonic()
        limits = [s for s in (self._campaign.budget.seconds, self._session.seconds) if s is not None]
        deadline = began + min(limits) if limits else None
        gauges = {key: Gauge(*key, began) for key in self._lanes}
        threads = [threading.Thread(target=self._work, args=(key,), daemon=True) for key in self._lanes]
        ended, rows, lost, bug, at_work = "finished", 0, [], None, set(self._lanes)
        self._tell(EventKind.BEGIN, {"folder": str(self._folder.path), "identity": self._folder.frozen.identity,
                                     "finished": counts.rows, "total": self.total, "workers": len(threads)})
        told = began
        for thread in threads:
            thread.start()
        try:
            while at_work or not self._out.empty():
                got = self._drain()
                fresh = [row_of_done(one) for one in got if isinstance(one, Done)]
                if fresh:
                    writer.append(fresh)
                    rows += len(fresh)
                when = time.monotonic()
                for row in fresh:
                    counts.add(row)
                    gauges[row["gpu"], row["library_name"]].add(row, when)
                    self._tell(EventKind.ROW, {name: row[name] for name in _TOLD})
                for one in got:
                    if isinstance(one, BaseException):
                        bug = bug or one
                        self._ending.set()
                    elif isinstance(one, tuple):
                        at_work.discard(one[0])
                        if one[1]:
                            gauges[one[0]].lost = one[1]
                            lost.append(f"{one[0][1]} on GPU {one[0][0]}: {one[1]}")
                            self._tell(EventKind.LOST, {"gpu": one[0][0], "library": one[0][1], "reason": one[1]})
                ended = self._should_end(ended, deadline, interrupts)
                if when - told >= _STATUS:
                    told = when
                    self._tell_status(gauges, counts, deadline)
        finally:
            self._ending.set()
            if any(thread.is_alive() for thread in threads):  # the disk is full, or a bug: nothing that is at work can be kept
                for lane in self._lanes.values():
                    lane.kill()
            for thread in threads:
                thread.join()
        if bug is not None:
            raise bug
        if ended == "finished" and (self.total is None or counts.rows < self.total):
            ended = "lost" if lost else "budget"
        self._tell_status(gauges, counts, deadline)
        ran = Ran(self._folder.path, counts, rows, self.total, ended, tuple(lost), time.monotonic() - began)
        self._tell(EventKind.END, ran.to_document())
        return ran

    def _drain(self) -> list[Done | _Ended | BaseException]:
        """Whatever is ready, after waiting for the first a little."""
        got: list[Done | _Ended | BaseException] = []
        try:
            got.append(self._out.get(timeout=_TURN))
            while True:
                got.append(self._out.get_nowait())
        except queue.Empty:
            return got

    def _should_end(self, ended: str, deadline: float | None, interrupts: _Interrupts) -> str:
        """Why the run is ending; tells the workers to take no more."""
        if interrupts.count and ended != "interrupted":
            ended = "interrupted"
            self._tell(EventKind.NOTICE, {"text": "ending after the problems in flight; once more ends at once"})
        elif ended == "finished" and self._folder.stop_path.exists():
            ended = "stopped"
        elif ended == "finished" and deadline is not None and time.monotonic() >= deadline:
            ended = "budget"
        if ended != "finished":
            self._ending.set()
        if interrupts.count > 1:
            for lane in self._lanes.values():
                lane.kill()
        return ended

    def _tell(self, kind: EventKind, values: dict[str, Any]) -> None:
        self._progress(Event(kind, values))

    def _tell_status(self, gauges: Mapping[tuple[int, str], Gauge], counts: Tally, deadline: float | None) -> None:
        when = time.monotonic()
        left = None if deadline is None else max(0.0, deadline - when)
        self._progress(status(list(gauges.values()), counts.rows, self.total, left, when))


_TOLD = ("index", "library_name", "gpu", "source", "m", "n", "k", "input_dtype", "output_dtype", "layout", "outcome", "family", "reason",
         "elapsed_seconds")


def _pending(begin: int, end: int | None, done: set[int]) -> Iterator[int]:
    index = begin
    while end is None or index < end:
        if index not in done:
            yield index
        index += 1
