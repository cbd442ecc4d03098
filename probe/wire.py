"""What crosses the pipe between a parent and the child that holds a library: requests by name, and the JSON forms of their answers.

A request is one line {"id", "op", ...}; its reply is one line {"id", "ok": value} or {"id", "error": {"kind", ...}}, after any number
of lines {"id", "step": name}. A decline is a value, {"kind": "declined", ...}. The four kinds of error travel as usage, environment,
library and bug (with the traceback's text).
"""

from __future__ import annotations

import base64
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from probe.answer import Answer
from probe.capture import Capture
from probe.compare import Difference
from probe.contrast import Contrast
from probe.descriptor import GEMMDesc
from probe.errors import Declined, DeclineReason, EnvironmentProblem, LibraryError, UsageError
from probe.preference import Preference
from probe.problem import Problem
from probe.proof import Outcome, Proof
from probe.records import POINT_VERSION, ClassResult, Evidence, Phase, Point
from probe.schedule import Term, term_from_json, term_to_json
from probe.target import Target

if TYPE_CHECKING:
    import pyarrow as pa

Document = dict[str, Any]
T = TypeVar("T")

PROTOCOL = 1


class ChildBug(RuntimeError):
    """A bug of probe in the child; its traceback is the cause of this one."""


class _ChildTraceback(Exception):
    """Carries the child's traceback as text, to be printed where a cause is."""

    def __str__(self) -> str:
        return f"\n\nin the child:\n{self.args[0]}"


# Errors

def error_document(error: BaseException) -> Document:
    """An exception as a JSON object. What is none of the house's kinds is a bug, but for a lack of memory and what a GPU package raises."""
    if isinstance(error, LibraryError):
        return {"kind": "library", "function": error.function, "status": error.status, "name": error.name, "meaning": error.meaning,
                "action": error.action}
    if isinstance(error, UsageError | EnvironmentProblem):
        kind = "usage" if isinstance(error, UsageError) else "environment"
        return {"kind": kind, "message": error.message, "hint": error.hint}
    if isinstance(error, MemoryError):
        return {"kind": "environment", "message": "this machine ran out of memory", "hint": "a smaller shape"}
    if type(error).__module__.split(".")[0] in ("cupy", "cupy_backends", "cuda"):  # a fault shows in whichever call comes next
        return {"kind": "environment", "message": f"the GPU reported: {' '.join(str(error).split())}", "hint": ""}
    return {"kind": "bug", "what": f"{type(error).__name__}: {error}", "traceback": "".join(traceback.format_exception(error))}


def error_from_document(document: Mapping[str, Any]) -> Exception:
    """The exception that an object of `error_document` stands for, of the same class, a bug as ChildBug. Any other object: ValueError."""
    match document:
        case {"kind": "usage", "message": message, "hint": hint}:
            return UsageError(message, hint)
        case {"kind": "environment", "message": message, "hint": hint}:
            return EnvironmentProblem(message, hint)
        case {"kind": "library", "function": function, "status": status, "name": name, "meaning": meaning, "action": action}:
            return LibraryError(function, status, name, meaning, action)
        case {"kind": "bug", "what": what, "traceback": text}:
            bug = ChildBug(what)
            bug.__cause__ = _ChildTraceback(text)
            return bug
    raise ValueError("no error of this protocol")


# Values

def declined_document(declined: Declined) -> Document:
    return {"kind": "declined", "reason": str(declined.reason), "text": declined.text, "hint": declined.hint}


def is_declined(document: object) -> bool:
    return isinstance(document, Mapping) and document.get("kind") == "declined"


def declined_from_document(document: Mapping[str, Any]) -> Declined:
    return Declined(DeclineReason(document["reason"]), document["text"], document["hint"])


def value_or_declined(document: Any, read: Callable[[Any], T]) -> T | Declined:
    """A decline, or what `read` makes of anything else."""
    return declined_from_document(document) if is_declined(document) else read(document)


def _difference_document(difference: Difference) -> Document:
    """NaN and Inf have no JSON number, so values are their Python text."""
    return asdict(difference) | {name: repr(getattr(difference, name)) for name in ("library_value", "model_value")}


def _difference_from_document(document: Mapping[str, Any]) -> Difference:
    return Difference(**dict(document) | {name: float(document[name]) for name in ("library_value", "model_value")})


def proof_document(proof: Proof) -> Document:
    """A proof as plain values."""
    first = None if proof.first is None else _difference_document(proof.first)
    return asdict(proof) | {"outcome": str(proof.outcome), "first": first}


def contrast_document(contrast: Contrast | None) -> Document | None:
    return None if contrast is None else asdict(contrast) | {"first": _difference_document(contrast.first)}


def proof_from_document(document: Mapping[str, Any]) -> Proof:
    """The proof of `proof_document`, or of a point's JSON."""
    fields = {name: document[name] for name in ("elements", "compared", "differing", "first_draw", "seed")}
    first = None if document["first"] is None else _difference_from_document(document["first"])
    draws = tuple((kind, count) for kind, count in document["draws"])
    return Proof(outcome=Outcome(document["outcome"]), draws=draws, first=first, **fields)


def point_from_document(document: Mapping[str, Any]) -> Point:
    """The point that `Point.to_document` wrote. Raises UsageError for another kind or version."""
    if document.get("kind") != "point" or document.get("version") != POINT_VERSION:
        raise UsageError(f"not a point of version {POINT_VERSION}: {document.get('kind')} {document.get('version')}")
    return Point(
        problem=Problem.from_document(document["problem"]), preference=Preference.from_document(document["preference"]),
        target=Target.from_document(document["target"]), answer=Answer.from_document(document["answer"]),
        capture=Capture.from_document(document["capture"]), classes=tuple(map(result_from_document, document["classes"])),
        phases=tuple(Phase(**phase) for phase in document["phases"]),
        **{name: document[name] for name in ("found_by", "announcement", "seed", "exhaustive", "date")})


def result_from_document(document: Mapping[str, Any]) -> ClassResult:
    """One class of a point's JSON."""
    desc, proof = document["gemm_desc"], document["proof"]
    same = ("elements", "family", "instrument", "candidates", "settling_draws", "settling_elements")
    return ClassResult(
        schedule=term_from_json(document["schedule"]), desc=None if desc is None else GEMMDesc.from_document(desc),
        extent=document["k_summed"], ambiguous=tuple(map(term_from_json, document["ambiguous"])),
        evidence=tuple(Evidence(**e) for e in document["evidence"]), proof=None if proof is None else proof_from_document(proof),
        **{name: document[name] for name in same})


def mask_document(mask: np.ndarray[Any, Any] | None) -> Document | None:
    """A bool (m, n) array, packed; None stays None."""
    if mask is None:
        return None
    return {"shape": list(mask.shape), "bits": base64.b64encode(zlib.compress(np.packbits(mask).tobytes())).decode()}


def mask_from_document(document: Mapping[str, Any] | None) -> np.ndarray[Any, Any] | None:
    if document is None:
        return None
    m, n = document["shape"]
    bits = np.frombuffer(zlib.decompress(base64.b64decode(document["bits"])), np.uint8)
    return np.unpackbits(bits, count=m * n).reshape(m, n).astype(bool)


# Requests

@dataclass(frozen=True)
class Request(Generic[T]):
    """What a child is asked: the operation, its arguments as plain values, and how its reply is read."""

    op: str
    arguments: Document
    read: Callable[[Any], T]


@dataclass(frozen=True)
class Identity:
    """Who a child is. notice: what the opening said ("" for nothing). announcement: of a simulated library, else ""."""

    target: Target
    found_by: str
    announcement: str
    notice: str


@dataclass(frozen=True)
class ElementClass:
    """The schedule of one class of output elements. extent: how much of K it sums. where: bool (m, n), or None for all elements."""

    schedule: Term
    extent: int
    where: np.ndarray[Any, Any] | None


@dataclass(frozen=True)
class Walked:
    """A point, and its classes with the elements that belong to each, which the point itself does not hold."""

    point: Point
    classes: tuple[ElementClass, ...]


def identifying() -> Request[Identity]:
    """Who are you? Opens the library, if it is not open yet."""
    def read(reply: Document) -> Identity:
        if reply["protocol"] != PROTOCOL:
            raise ValueError(f"the child speaks protocol {reply['protocol']}, not {PROTOCOL}")
        return Identity(Target.from_document(reply["target"]), reply["found_by"], reply["announcement"], reply["notice"])

    return Request("identify", {}, read)


def asking(problems: Sequence[Problem], preference: Preference) -> Request[tuple[Answer | Declined, ...]]:
    """What does the cost model return for each problem?"""
    def read(reply: list[Any]) -> tuple[Answer | Declined, ...]:
        if len(reply) != len(problems):
            raise ValueError(f"{len(reply)} answers to {len(problems)} problems")
        return tuple(value_or_declined(one, Answer.from_document) for one in reply)

    return Request("ask", {"problems": [p.to_document() for p in problems], "preference": preference.to_document()}, read)


def asking_batch(questions: Document, distinct: bool) -> Request[pa.RecordBatch]:
    """What does the cost model return for a batch? questions: {"listed": Questions.to_document()}, or {"seed", "regimes", "begin", "end"}
    of a stream without a list. distinct: the different answers alone."""
    from probe.answering import COLUMNS, DISTINCT_COLUMNS, batch_from_text

    columns = DISTINCT_COLUMNS | {"first": "int64"} if distinct else COLUMNS
    count = len(questions["listed"]["index"]) if "listed" in questions else questions["end"] - questions["begin"]

    def read(reply: str) -> pa.RecordBatch:
        return batch_from_text(reply, columns, None if distinct else count)

    return Request("ask_batch", questions | {"distinct": distinct}, read)


def capturing(problem: Problem, preference: Preference, answer: Answer) -> Request[Capture | Declined]:
    """Which kernels does a call with this answer launch?"""
    return Request("capture", _call(problem, preference, answer), lambda reply: value_or_declined(reply, Capture.from_document))


def walking(problem: Problem, preference: Preference, seed: int, exhaustive: bool = False) -> Request[Walked | Declined]:
    """Recover and prove the order of one problem, from asking on."""
    def read(reply: Document) -> Walked:
        point = point_from_document(reply["point"])
        masks = map(mask_from_document, reply["masks"])
        return Walked(point, tuple(ElementClass(c.schedule, c.extent, mask) for c, mask in zip(point.classes, masks, strict=True)))

    arguments = {"problem": problem.to_document(), "preference": preference.to_document(), "seed": seed, "exhaustive": exhaustive}
    return Request("walk", arguments, lambda reply: value_or_declined(reply, read))


def proving(problem: Problem, preference: Preference, answer: Answer, classes: Sequence[ElementClass],
            seed: int) -> Request[tuple[Proof, ...] | Declined]:
    """Does a call with this answer give the bytes of these schedules? One proof a class, on draws of `seed`."""
    def read(reply: list[Any]) -> tuple[Proof, ...]:
        if len(reply) != len(classes):
            raise ValueError(f"{len(reply)} proofs of {len(classes)} classes")
        return tuple(map(proof_from_document, reply))

    return Request("prove", _call(problem, preference, answer) | {"classes": [_class_document(c) for c in classes], "seed": seed},
                   lambda reply: value_or_declined(reply, read))


def contrasting(problem: Problem, preference: Preference, answer: Answer, against: Sequence[ElementClass], own: Sequence[ElementClass],
                seed: int) -> Request[Contrast | Declined | None]:
    """Where does a call with this answer, which sums as `own` says, contradict `against`? None: nowhere that was looked."""
    def read(reply: Document) -> Contrast:
        return Contrast(**reply | {"first": _difference_from_document(reply["first"])})

    arguments = {"against": [_class_document(c) for c in against], "own": [_class_document(c) for c in own], "seed": seed}
    return Request("contrast", _call(problem, preference, answer) | arguments,
                   lambda reply: None if reply is None else value_or_declined(reply, read))


def _call(problem: Problem, preference: Preference, answer: Answer) -> Document:
    return {"problem": problem.to_document(), "preference": preference.to_document(), "answer": answer.to_document()}


def _class_document(one: ElementClass) -> Document:
    return {"schedule": term_to_json(one.schedule), "extent": one.extent, "where": mask_document(one.where)}


def class_from_document(document: Mapping[str, Any]) -> ElementClass:
    """The child's side of a class of elements."""
    return ElementClass(term_from_json(document["schedule"]), document["extent"], mask_from_document(document["where"]))
