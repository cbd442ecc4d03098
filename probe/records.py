"""The record of one shape: a point, with everything that was asked, captured, read, settled and proven, and its JSON and Parquet forms."""

from __future__ import annotations

import datetime
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probe.answer import Answer
from probe.capture import Capture
from probe.descriptor import GEMMDesc
from probe.errors import EnvironmentProblem, ExitCode, UsageError
from probe.newfile import name_aside, new_file
from probe.preference import Preference
from probe.problem import Problem
from probe.proof import Outcome, Proof
from probe.schedule import Term, render_text, term_to_json
from probe.target import Target

POINT_VERSION = 1

# Columns of a Parquet file of points and their Arrow types; docs/walk.md says what each holds, and a test keeps the two equal.
COLUMNS: dict[str, str] = {
    "version": "int64", "date": "string",
    "m": "int64", "n": "int64", "k": "int64", "input_dtype": "string", "output_dtype": "string", "layout": "string",
    "fast_accumulation": "bool", "problem": "string", "preference": "string", "forced": "string",
    "sm": "string", "sm_count": "int64", "device_name": "string", "driver": "string", "library": "string",
    "library_version": "string", "library_sha256": "string",
    "algo_id": "int64", "tile": "int64", "splitk_num": "int64", "reduction_scheme": "int64", "swizzling": "int64",
    "custom_option": "int64", "stages": "int64", "inner_shape": "int64", "cluster_shape": "int64", "workspace_bytes": "int64",
    "capture": "string",
    "elements_in_class": "int64", "k_summed": "int64", "family": "string", "gemm_desc": "string", "schedule": "string",
    "schedule_text": "string", "ambiguous": "string", "evidence": "string", "instrument": "string", "candidates": "int64",
    "outcome": "string", "elements_compared": "int64", "outputs_compared": "int64", "outputs_differing": "int64",
    "first_difference": "string", "draws": "string",
    "walk_launches": "int64", "walk_experiments": "int64", "walk_seconds": "double", "launches": "int64", "seconds": "double",
    "seed": "int64", "exhaustive": "bool",
}


@dataclass(frozen=True)
class Evidence:
    """One field of the descriptor: its value, and the instrument that settled it."""

    field: str
    value: str
    instrument: str


@dataclass(frozen=True)
class Phase:
    """What one step cost: launches of the library's GEMM, output elements read as experiments, seconds of wall clock."""

    name: str
    launches: int
    experiments: int
    seconds: float


@dataclass(frozen=True)
class ClassResult:
    """One class of output elements that share an order (nearly always the only one).

    elements: how many of the output belong to it. schedule: of one element. desc: its GEMMDesc, None for a schedule that no form of record
    produces. ambiguous: the schedules of other candidates that nothing told apart. proof: None when ambiguous.
    """

    elements: int
    schedule: Term
    desc: GEMMDesc | None
    family: str
    extent: int
    instrument: str
    candidates: int
    settling_draws: int
    settling_elements: int
    ambiguous: tuple[Term, ...]
    evidence: tuple[Evidence, ...]
    proof: Proof | None

    @property
    def outcome(self) -> Outcome:
        return Outcome.AMBIGUOUS if self.proof is None else self.proof.outcome


@dataclass(frozen=True)
class Point:
    """One problem with its answer, capture, descriptors and evidence, on one target. date: UTC, ISO 8601."""

    problem: Problem
    preference: Preference
    target: Target
    found_by: str
    announcement: str
    answer: Answer
    capture: Capture
    classes: tuple[ClassResult, ...]
    phases: tuple[Phase, ...]
    seed: int
    exhaustive: bool
    date: str

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of its classes."""
        outcomes = [c.outcome for c in self.classes]
        for bad in (Outcome.REFUTED, Outcome.AMBIGUOUS):
            if bad in outcomes:
                return bad
        return Outcome.CONFIRMED

    @property
    def forced(self) -> str:
        """What the caller forced of the answer, "splitk_num=4"; "" where the library picked it."""
        return "" if self.preference.forced is None else str(self.preference.forced)

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.OK if self.outcome is Outcome.CONFIRMED else ExitCode.NOT_CONFIRMED

    @property
    def launches(self) -> int:
        """Products run from the first agreement check to the last draw of the proof."""
        return sum(p.launches for p in self.phases)

    def phase(self, name: str) -> Phase:
        """The cost of one step. Raises KeyError for a step that did not run."""
        return {p.name: p for p in self.phases}[name]

    def to_document(self) -> dict[str, Any]:
        """The point as plain values, for JSON."""
        return {
            "kind": "point", "version": POINT_VERSION, "date": self.date, "outcome": str(self.outcome),
            "problem": self.problem.to_document(), "preference": self.preference.to_document(),
            "target": self.target.to_document(), "found_by": self.found_by, "announcement": self.announcement,
            "answer": self.answer.to_document(), "capture": self.capture.to_document(),
            "classes": [_class_document(c) for c in self.classes],
            "phases": [asdict(p) for p in self.phases], "seed": self.seed, "exhaustive": self.exhaustive,
        }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat()


def _class_document(result: ClassResult) -> dict[str, Any]:
    proof = None
    if result.proof is not None:
        proof = asdict(result.proof)
        proof |= {"outcome": str(result.proof.outcome), "bound": result.proof.bound}
        if result.proof.first is not None:  # NaN and Inf have no JSON number; the bits say it all
            proof["first"] |= {"library_value": repr(result.proof.first.library_value), "model_value": repr(result.proof.first.model_value)}
    return {
        "elements": result.elements, "outcome": str(result.outcome), "family": result.family,
        "gemm_desc": None if result.desc is None else result.desc.to_document(),
        "schedule": term_to_json(result.schedule), "schedule_text": render_text(result.schedule),
        "k_summed": result.extent, "instrument": result.instrument, "candidates": result.candidates,
        "settling_draws": result.settling_draws, "settling_elements": result.settling_elements,
        "ambiguous": [term_to_json(t) for t in result.ambiguous],
        "evidence": [asdict(e) for e in result.evidence], "proof": proof,
    }


def row_of(point: Point, result: ClassResult) -> dict[str, Any]:
    """One flat row: what is filtered on stands in columns of its own, what is nested in canonical JSON text."""
    p, a, t, proof = point.problem, point.answer, point.target, result.proof
    return {
        "version": POINT_VERSION, "date": point.date,
        "m": p.m, "n": p.n, "k": p.k, "input_dtype": str(p.a_dtype), "output_dtype": str(p.d_dtype), "layout": str(p.layout),
        "fast_accumulation": p.fast_accumulation, "problem": p.to_json(), "preference": point.preference.to_json(), "forced": point.forced,
        "sm": t.sm, "sm_count": t.sm_count, "device_name": t.device_name, "driver": t.driver, "library": str(t.library),
        "library_version": t.version, "library_sha256": t.sha256,
        "algo_id": a.algo_id, "tile": a.tile, "splitk_num": a.splitk_num, "reduction_scheme": a.reduction_scheme,
        "swizzling": a.swizzling, "custom_option": a.custom_option, "stages": a.stages, "inner_shape": a.inner_shape,
        "cluster_shape": a.cluster_shape, "workspace_bytes": a.workspace_bytes, "capture": point.capture.to_json(),
        "elements_in_class": result.elements, "k_summed": result.extent, "family": result.family,
        "gemm_desc": None if result.desc is None else result.desc.to_json(),
        "schedule": _compact(term_to_json(result.schedule)), "schedule_text": render_text(result.schedule),
        "ambiguous": _compact([term_to_json(t) for t in result.ambiguous]), "evidence": _compact([asdict(e) for e in result.evidence]),
        "instrument": result.instrument, "candidates": result.candidates, "outcome": str(result.outcome),
        "elements_compared": 0 if proof is None else proof.elements, "outputs_compared": 0 if proof is None else proof.compared,
        "outputs_differing": 0 if proof is None else proof.differing,
        "first_difference": "" if proof is None or proof.first is None else f"{proof.first_draw}: {proof.first}",
        "draws": "" if proof is None else ",".join(f"{k}:{n}" for k, n in proof.draws),
        "walk_launches": point.phase("walk").launches, "walk_experiments": point.phase("walk").experiments,
        "walk_seconds": point.phase("walk").seconds, "launches": point.launches, "seconds": sum(x.seconds for x in point.phases),
        "seed": point.seed, "exhaustive": point.exhaustive,
    }


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def check_output(path: Path) -> None:
    """Refuse, before anything runs, an output that exists or cannot be written, or whose form is not known. Leaves no trace.

    Raises UsageError for a name that cannot be used and EnvironmentProblem for a folder that cannot be written to.
    """
    if path.suffix not in (".parquet", ".json"):
        raise UsageError(f"output {path} ends in neither .parquet nor .json", "name the form by its ending")
    if os.path.lexists(path):
        raise UsageError(f"output {path} exists and is not overwritten", "another name, or remove it first")
    if not os.path.isdir(path.parent):
        raise EnvironmentProblem(f"output {path} cannot be written: there is no folder {path.parent}", "make the folder first")
    aside = name_aside(path)
    try:
        aside.touch(exist_ok=False)
    except OSError as error:
        raise EnvironmentProblem(f"output {path} cannot be written: {error.strerror}", "another folder or name") from error
    finally:
        with suppress(OSError):
            aside.unlink()


def write_point(point: Point, path: Path) -> None:
    """Write one point as Parquet (one row a class) or JSON. The file appears whole or not at all; an existing one is never replaced.

    Raises as `check_output` does.
    """
    check_output(path)
    with new_file(path) as aside:
        if path.suffix == ".json":
            aside.write_text(json.dumps(point.to_document(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        else:
            write_rows([row_of(point, c) for c in point.classes], aside)


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """Rows of `row_of` as one Parquet file with the schema version in its metadata. Columns beyond `COLUMNS` keep their values' type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = pa.Table.from_pylist(rows)
    schema = pa.schema([pa.field(f.name, pa.type_for_alias(COLUMNS[f.name])) if f.name in COLUMNS else f for f in found.schema],
                       {"probe.kind": "points", "probe.version": str(POINT_VERSION)})
    pq.write_table(found.cast(schema), path, compression="zstd")
