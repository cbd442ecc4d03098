"""The child that holds one library: reads requests from stdin, one JSON line each, and answers them on stdout (probe.wire has the forms).

    python -m probe.worker --library X [--gpu N] [--parent PID]

Everything else that is printed here, by whatever library, goes to stderr. It ends when stdin ends and its work is done, and at once
when its parent is gone, whatever it is doing.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, TextIO

import numpy as np

from probe.answer import Answer
from probe.answering import Answering, batch_to_text, distinct
from probe.contrast import contrast
from probe.errors import Declined, DeclineReason, UsageError
from probe.oracle import Opened, open_oracle
from probe.pipeline import Stream, stream_of, walk_problem
from probe.preference import Preference
from probe.problem import Problem
from probe.proof import prove
from probe.questions import Questions, draw
from probe.records import Point
from probe.stream import ProblemStream, RandomRegime
from probe.walks.agreement import agreement
from probe.wire import (
    PROTOCOL,
    Document,
    class_from_document,
    contrast_document,
    declined_document,
    error_document,
    mask_document,
    proof_document,
)

_PARENT_CHECKS = 0.2  # seconds between two looks whether the parent still lives
Say = Callable[[str], None]


class Worker:
    """The operations, over one opened library. Each takes the request's plain values and returns plain values.

    `open_library` is called once, at the start; where it fails every request fails with its error.
    """

    def __init__(self, open_library: Callable[[], Opened]) -> None:
        self._opened: Opened | None = None
        self._answering: Answering | None = None
        self._failure: Exception | None = None
        try:
            self._opened = open_library()
        except Exception as error:
            self._failure = error
        self._operations: dict[str, Callable[[Document, Say], Any]] = {
            "identify": self._identify, "ask": self._ask, "ask_batch": self._ask_batch, "capture": self._capture, "walk": self._walk,
            "prove": self._prove, "contrast": self._contrast}

    def reply(self, request: Document, step: Say = lambda name: None) -> Document:
        """{"ok": value} or {"error": {...}}, without the id. step: called with the name of each step of a walk."""
        try:
            if request.get("op") not in self._operations:
                raise UsageError(f"the child knows no operation {request.get('op')!r}", "one of " + ", ".join(self._operations))
            return {"ok": self._operations[request["op"]](request, step)}
        except Exception as error:
            return {"error": error_document(error)}

    @property
    def opened(self) -> Opened:
        """The library. Raises what its opening raised."""
        if self._opened is None:
            assert self._failure is not None
            raise self._failure
        return self._opened

    def _identify(self, request: Document, step: Say) -> Document:
        oracle = self.opened.oracle
        return {"protocol": PROTOCOL, "target": oracle.target.to_document(), "found_by": oracle.found_by,
                "announcement": oracle.announcement, "notice": self.opened.notice}

    def _ask(self, request: Document, step: Say) -> list[Document]:
        preference = Preference.from_document(request["preference"])
        answers = [self.opened.oracle.ask(Problem.from_document(one), preference) for one in request["problems"]]
        return [declined_document(a) if isinstance(a, Declined) else a.to_document() for a in answers]

    def _ask_batch(self, request: Document, step: Say) -> str:
        if self._answering is None:
            self._answering = Answering(self.opened.oracle)
        if "listed" in request:
            questions = Questions.from_document(request["listed"])
        else:
            questions = draw(ProblemStream(request["seed"], (), _regimes(json.dumps(request["regimes"]))), request["begin"], request["end"])
        batch = self._answering.batch(questions)
        return batch_to_text(distinct(batch) if request["distinct"] else batch)

    def _capture(self, request: Document, step: Say) -> Document:
        captured = self.opened.oracle.capture(*_call(request))
        return declined_document(captured) if isinstance(captured, Declined) else captured.to_document()

    def _walk(self, request: Document, step: Say) -> Document:
        problem, preference = Problem.from_document(request["problem"]), Preference.from_document(request["preference"])
        point = walk_problem(problem, preference, self.opened, exhaustive=request["exhaustive"], seed=request["seed"], progress=step)
        if isinstance(point, Declined):
            return declined_document(point)
        masks = self._masks(point)
        if isinstance(masks, Declined):
            return declined_document(masks)
        return {"point": point.to_document(), "masks": [mask_document(mask) for mask in masks]}

    def _masks(self, point: Point) -> list[np.ndarray[Any, Any] | None] | Declined:
        """Which elements belong to each class: the check that the walk began with, once more on the same draws."""
        if len(point.classes) == 1:
            return [None]
        summing = self.opened.oracle.summing(point.problem, point.answer, point.preference)
        if isinstance(summing, Declined):
            return summing
        agreed = agreement(summing, stream_of(point.seed, Stream.AGREE))
        if isinstance(agreed, Declined):
            return agreed
        masks = [agreed.labels == label for label in range(agreed.classes)] if agreed.labels is not None else []
        if [int(mask.sum()) for mask in masks] != [c.elements for c in point.classes]:
            return Declined(DeclineReason.NONDETERMINISTIC, "the elements that share an order changed between two looks at the same inputs")
        return list(masks)

    def _prove(self, request: Document, step: Say) -> Document | list[Document]:
        problem, answer, preference = _call(request)
        step("prove")
        summing = self.opened.oracle.summing(problem, answer, preference)
        if isinstance(summing, Declined):
            return declined_document(summing)
        classes, seed = [class_from_document(one) for one in request["classes"]], stream_of(request["seed"], Stream.PROVE)
        return [proof_document(prove(summing, c.schedule, c.extent, seed, c.where)) for c in classes]

    def _contrast(self, request: Document, step: Say) -> Document | None:
        problem, answer, preference = _call(request)
        step("contrast")
        summing = self.opened.oracle.summing(problem, answer, preference)
        if isinstance(summing, Declined):
            return declined_document(summing)
        against, own = ([class_from_document(one) for one in request[side]] for side in ("against", "own"))
        for one, other in product(against, own):
            where = one.where if other.where is None else other.where if one.where is None else one.where & other.where
            if one.schedule != other.schedule and (where is None or where.any()):
                seed = stream_of(request["seed"], Stream.SETTLE)
                found = contrast(summing, one.schedule, other.schedule, (one.extent, other.extent), seed, where)
                if found is not None:
                    return contrast_document(found)
        return None


@cache
def _regimes(text: str) -> tuple[RandomRegime, ...]:
    return tuple(map(RandomRegime.from_document, json.loads(text)))


def _call(request: Document) -> tuple[Problem, Answer, Preference]:
    return (Problem.from_document(request["problem"]), Answer.from_document(request["answer"]),
            Preference.from_document(request["preference"]))


def serve(open_library: Callable[[], Opened], parent: int | None = None) -> None:
    """Answer the requests of stdin until it ends. Takes stdout for the replies: what else prints to it goes to stderr from here on.

    parent: the process whose end ends this one; by default the one that is the parent now.
    """
    faulthandler.enable()
    requests, replies = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_watch, args=(os.getppid() if parent is None else parent,), daemon=True).start()
    threading.Thread(target=_listen, args=(requests, lines), daemon=True).start()
    worker = Worker(open_library)
    while (line := lines.get()) is not None:
        _answer(worker, line, replies)


def _answer(worker: Worker, line: str, replies: TextIO) -> None:
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise UsageError(f"a request is a JSON object, not {type(request).__name__}")
    except ValueError as error:  # also what json raises
        _write(replies, {"id": None, "error": error_document(UsageError(f"a request is one JSON object a line: {error}"))})
        return
    number = request.get("id")
    reply = worker.reply(request, lambda name: _write(replies, {"id": number, "step": name}))
    try:
        _write(replies, {"id": number, **reply})
    except ValueError as error:  # a number that JSON lacks: our bug, told as one
        _write(replies, {"id": number, "error": error_document(error)})


def _listen(requests: TextIO, lines: queue.Queue[str | None]) -> None:
    for line in requests:
        lines.put(line)
    lines.put(None)


def _watch(parent: int) -> None:
    """Leave as soon as the parent is gone. The end of stdin does not tell: a program may ask, close the pipe and wait for the answers."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECKS)
    os._exit(0)


def _write(replies: TextIO, document: Document) -> None:
    text = json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"
    try:
        replies.write(text)
        replies.flush()
    except BrokenPipeError:  # nobody reads any more
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m probe.worker", description="The child that holds one library, for other programs.")
    parser.add_argument("--library", help="a path, a name or a version as probe takes it; left out: what is installed")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--parent", type=int, help="process whose end ends this one")
    options = parser.parse_args()
    serve(lambda: open_oracle(options.library, options.gpu), options.parent)


if __name__ == "__main__":
    main()
