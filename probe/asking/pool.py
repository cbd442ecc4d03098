"""Batches of questions over several children that hold one library each, and their answers in the order of the questions.

Processes, because threads make asking slower (DESIGN fact 8); a thread a child waits for its replies.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from probe.children import Child
from probe.errors import Declined, EnvironmentProblem
from probe.wire import asking_batch

if TYPE_CHECKING:
    import pyarrow as pa

TIME_LIMIT = 300.0  # seconds of one batch
_AHEAD = 4  # batches a child that may be finished before an earlier one is
_TRIES = 2  # of a batch whose child died

Chunk = tuple[int, dict[str, Any]]


class _Pool:
    def __init__(self, children: Sequence[Child], chunks: Iterable[Chunk], distinct: bool) -> None:
        self._children, self._distinct = children, distinct
        self._chunks = enumerate(chunks)
        self._lock = threading.Lock()
        self._room = threading.Semaphore(_AHEAD * len(children))
        self._done: queue.Queue[tuple[int, pa.RecordBatch] | BaseException | None] = queue.Queue()
        self._stop = threading.Event()

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        threads = [threading.Thread(target=self._serve, args=(child,), daemon=True) for child in self._children]
        for thread in threads:
            thread.start()
        waiting: dict[int, pa.RecordBatch] = {}
        turn, running = 0, len(threads)
        try:
            while running:
                got = self._done.get()
                if isinstance(got, BaseException):
                    raise got
                if got is None:
                    running -= 1
                    continue
                waiting[got[0]] = got[1]
                while turn in waiting:
                    yield waiting.pop(turn)
                    self._room.release()
                    turn += 1
        finally:
            self._stop.set()
            for child, thread in zip(self._children, threads, strict=True):
                self._room.release()
                if thread.is_alive() and child.pid is not None:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(child.pid, signal.SIGKILL)
            for thread in threads:
                thread.join()

    def _serve(self, child: Child) -> None:
        try:
            while True:
                self._room.acquire()
                with self._lock:
                    number, chunk = next(self._chunks, (0, None))
                if chunk is None or self._stop.is_set():
                    break
                self._done.put((number, self._ask(child, chunk)))
            self._done.put(None)
        except BaseException as error:
            self._done.put(error)

    def _ask(self, child: Child, chunk: Chunk) -> pa.RecordBatch:
        begin, questions = chunk
        for last in (False,) * (_TRIES - 1) + (True,):
            got = child.call(asking_batch(questions, self._distinct), TIME_LIMIT)
            if not isinstance(got, Declined):
                return got
            if last or self._stop.is_set():
                raise EnvironmentProblem(f"the questions from {begin} on have no answers: {got.text}",
                                         "fewer processes, or probe doctor looks at what is there")
        raise AssertionError("unreachable")


def ask_over(children: Sequence[Child], chunks: Iterable[Chunk], distinct: bool) -> Generator[pa.RecordBatch, None, None]:
    """The replies to `chunks`, in their order, from children that are started already.

    Raises what asking raised, and EnvironmentProblem where a child dies or hangs twice over one batch; children at work are then killed,
    as they are when the iterator is closed.
    """
    return _Pool(children, chunks, distinct).batches()
