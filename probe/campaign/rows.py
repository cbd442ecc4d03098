"""What became of one problem of a campaign: the flat row that the part files, the status and the report read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from probe.answer import Answer
from probe.capture import Capture
from probe.errors import Declined, ExitCode
from probe.preference import Preference
from probe.problem import Problem
from probe.proof import Outcome, Proof
from probe.records import COLUMNS as POINT_COLUMNS
from probe.records import ClassResult, Point, now, row_of
from probe.stream import Asked
from probe.target import Target

KIND = "campaign rows"
CAMPAIGN_VERSION = 2
Row = dict[str, Any]
STEPS = ("ask", "capture", "prepare", "agree", "walk", "recover", "settle", "prove", "record")  # of probe.pipeline
_OWN = {
    "index": "int64", "source": "string", "library_name": "string", "gpu": "int64",
    "reason": "string", "reason_text": "string", "kernels": "string", "classes": "int64", "more_classes": "string", "attempts": "int64",
    **{f"{step}_seconds": "double" for step in STEPS if step != "walk"}, "elapsed_seconds": "double",
}
# Columns and their Arrow types: those of a dataset of points (the schema's version stands in the metadata), and a campaign's own.
# docs/campaigns.md says what each holds, and a test keeps the two equal.
COLUMNS: dict[str, str] = {**{n: t for n, t in _OWN.items() if n in ("index", "source", "library_name")},
                           **{n: t for n, t in POINT_COLUMNS.items() if n != "version"}, **_OWN}
# What differs between two runs of one campaign.
MOVING = frozenset({"date", "gpu", "seconds", "elapsed_seconds", *(f"{step}_seconds" for step in STEPS)})


class Result(StrEnum):
    """What became of one problem; each has exactly one. The first three are a proof's outcomes.

    declined: a sound "no", the same at every run. failed: something broke (a fault, a time limit, no memory, a bug), and the worker that
    it happened to did a small problem well right after.
    """

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    AMBIGUOUS = "ambiguous"
    DECLINED = "declined"
    FAILED = "failed"


class FailureKind(StrEnum):
    """What broke."""

    DIED = "died"  # the worker process ended, or spoke nonsense
    TIMED_OUT = "timed_out"
    CANNOT_RUN = "cannot_run"  # the library offered an algorithm that then failed to run
    ENVIRONMENT = "environment"  # the device, memory
    LIBRARY = "library"  # a status of the library
    USAGE = "usage"
    BUG = "bug"  # of probe


@dataclass(frozen=True)
class Failure:
    """Something broke while one problem was at work."""

    kind: FailureKind
    text: str


@dataclass(frozen=True)
class Job:
    """One problem of the stream on one library. gpu: the number of the one that runs it."""

    index: int
    library: str
    gpu: int
    asked: Asked
    target: Target


@dataclass(frozen=True)
class Done:
    """A job with what came of it. more: further proofs, a tuple of classes each. seconds: wall clock of the whole job."""

    job: Job
    answer: Answer | None
    capture: Capture | None
    result: Point | Declined | Failure
    more: tuple[tuple[Proof, ...], ...]
    attempts: int
    seed: int
    seconds: float


def row_of_done(done: Done) -> Row:
    """The row of a finished job: every column of COLUMNS."""
    row: Row = dict.fromkeys(COLUMNS)
    job, point = done.job, done.result
    if isinstance(point, Point):
        classes = [replace(c, proof=_joined(c, [proofs[i] for proofs in done.more])) for i, c in enumerate(point.classes)]
        point = replace(point, classes=tuple(classes))
        row |= {name: value for name, value in row_of(point, classes[0]).items() if name in COLUMNS}
        assert {phase.name for phase in point.phases} <= set(STEPS), "a step of the pipeline has no column"
        row |= {f"{phase.name}_seconds": phase.seconds for phase in point.phases}
        row |= _totals(classes) | {"outcome": str(point.outcome), "classes": len(classes), "kernels": _kernels(point.capture)}
        if len(classes) > 1:
            row["more_classes"] = json.dumps(point.to_document()["classes"][1:], separators=(",", ":"))
    else:
        row |= _asked(job.asked.problem, job.asked.preference, job.target)
        row |= {"date": now(), "seed": done.seed, "launches": 0, "seconds": 0.0}
        if done.answer is not None:
            row |= {name: getattr(done.answer, name) for name in _ANSWER}
        if done.capture is not None:
            row |= {"capture": done.capture.to_json(), "kernels": _kernels(done.capture)}
        if isinstance(point, Declined):
            row |= {"outcome": str(Result.DECLINED), "reason": str(point.reason), "reason_text": str(point)}
        else:
            row |= {"outcome": str(Result.FAILED), "reason": str(point.kind), "reason_text": point.text}
    return row | {"index": job.index, "source": job.asked.source, "library_name": job.library, "gpu": job.gpu, "attempts": done.attempts,
                  "elapsed_seconds": done.seconds}


_ANSWER = ("algo_id", "tile", "splitk_num", "reduction_scheme", "swizzling", "custom_option", "stages", "inner_shape", "cluster_shape",
           "workspace_bytes")


def _asked(problem: Problem, preference: Preference, target: Target) -> Row:
    p, t = problem, target
    return {"m": p.m, "n": p.n, "k": p.k, "input_dtype": str(p.a_dtype), "output_dtype": str(p.d_dtype), "layout": str(p.layout),
            "fast_accumulation": p.fast_accumulation, "problem": p.to_json(), "preference": preference.to_json(), "sm": t.sm,
            "sm_count": t.sm_count, "device_name": t.device_name, "driver": t.driver, "library": str(t.library),
            "library_version": t.version, "library_sha256": t.sha256,
            "forced": "" if preference.forced is None else str(preference.forced)}


def _joined(one: ClassResult, more: Sequence[Proof]) -> Proof | None:
    """The proof of the walk with further ones of the same schedule on other draws, as one. Its seed stays the walk's."""
    proof = one.proof
    for other in more:
        assert proof is not None
        counts = Counter(dict(proof.draws)) + Counter(dict(other.draws))
        first, name = (other.first, f"a further {other.first_draw}") if proof.first is None else (proof.first, proof.first_draw)
        proof = replace(proof, outcome=Outcome.REFUTED if Outcome.REFUTED in (proof.outcome, other.outcome) else proof.outcome,
                        draws=tuple(counts.items()), elements=proof.elements + other.elements, compared=proof.compared + other.compared,
                        differing=proof.differing + other.differing, first=first, first_draw=name if first is not None else "")
    return proof


def _totals(classes: Sequence[ClassResult]) -> Row:
    """Proof counts over all classes; the first difference of whichever has one."""
    proofs = [c.proof for c in classes if c.proof is not None]
    first = next((f"{p.first_draw}: {p.first}" for p in proofs if p.first is not None), "")
    return {"elements_compared": sum(p.elements for p in proofs), "outputs_compared": sum(p.compared for p in proofs),
            "outputs_differing": sum(p.differing for p in proofs), "first_difference": first}


def _kernels(capture: Capture) -> str:
    return " + ".join(kernel.name for kernel in capture.kernels)


@dataclass
class Tally:
    """Counts over rows, kept while they come. families: of confirmed rows; reasons: of declined and failed ones."""

    results: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        self.results[row["outcome"]] += 1
        self.sources[row["source"]] += 1
        if row["outcome"] == Result.CONFIRMED:
            self.families[row["family"]] += 1
        if row["reason"] is not None:
            self.reasons[f"{row['outcome']}: {row['reason']}"] += 1

    @property
    def rows(self) -> int:
        return sum(self.results.values())

    @property
    def mismatches(self) -> int:
        """Rows that were recovered and not confirmed."""
        return self.results[Result.REFUTED] + self.results[Result.AMBIGUOUS]

    @property
    def exit_code(self) -> ExitCode:
        """0 everything confirmed but for declines, 1 something refuted, ambiguous or failed, 3 nothing but declines."""
        if self.mismatches or self.results[Result.FAILED]:
            return ExitCode.NOT_CONFIRMED
        return ExitCode.DECLINED if self.rows and self.results[Result.DECLINED] == self.rows else ExitCode.OK

    def to_document(self) -> dict[str, Any]:
        return {"rows": self.rows, "outcomes": {str(r): self.results[r] for r in Result}, "families": dict(self.families.most_common()),
                "reasons": dict(self.reasons.most_common()), "sources": dict(self.sources.most_common())}


def tally(rows: Iterable[Row]) -> Tally:
    """The counts of rows."""
    counts = Tally()
    for row in rows:
        counts.add(row)
    return counts


def sorted_rows(rows: Iterable[Row]) -> list[Row]:
    """By problem and library: the order that a table has however its rows came."""
    return sorted(rows, key=lambda row: (row["index"], row["library_name"]))
