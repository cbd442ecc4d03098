"""The record of one shape: a point, with everything that was asked, captured, read, settled and proven, and its JSON and Parquet forms."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probe.answer import Answer
from probe.capture import Capture
from probe.descriptor import GEMMDesc
from probe.errors import EnvironmentProblem, ExitCode, UsageError
from probe.preference import Preference
from probe.problem import Problem
from probe.proof import Outcome, Proof
from probe.schedule import Term, render_text, term_to_json
from probe.target import Target

POINT_VERSION = 1


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
        proof["outcome"] = str(result.proof.outcome)
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
        "fast_accumulation": p.fast_accumulation, "problem": p.to_json(), "preference": point.preference.to_json(),
        "sm": t.sm, "sm_count": t.sm_count, "device_name": t.device_name, "driver": t.driver, "library": str(t.library),
        "library_version": t.version, "library_sha256": t.sha256,
        "algo_id": a.algo_id, "tile": a.tile, "splitk_num": a.splitk_num, "reduction_scheme": a.reduction_scheme,
        "swizzling": a.swizzling, "custom_option": a.custom_option, "stages": a.stages, "inner_shape": a.inner_shape,
        "cluster_shape": a.cluster_shape, "workspace_bytes": a.workspace_bytes, "capture": point.capture.to_json(),
        "elements_in_class": result.elements, "k_summed": result.extent, "family": result.family,
        "gemm_desc": None if result.desc is None else result.desc.to_json(),
        "schedule": json.dumps(term_to_json(result.schedule), separators=(",", ":")), "schedule_text": render_text(result.schedule),
        "instrument": result.instrument, "candidates": result.candidates, "outcome": str(result.outcome),
        "elements_compared": 0 if proof is None else proof.elements, "elements_differing": 0 if proof is None else proof.differing,
        "draws": "" if proof is None else ",".join(f"{k}:{n}" for k, n in proof.draws),
        "walk_launches": point.phase("walk").launches, "walk_experiments": point.phase("walk").experiments,
        "walk_seconds": point.phase("walk").seconds, "launches": point.launches, "seconds": sum(x.seconds for x in point.phases),
        "seed": point.seed, "exhaustive": point.exhaustive,
    }


def check_output(path: Path) -> None:
    """Refuse, before anything runs, an output that exists or cannot be written, or whose form is not known."""
    if path.suffix not in (".parquet", ".json"):
        raise UsageError(f"{path} is neither .parquet nor .json", "name the form by its ending")
    if path.exists():
        raise UsageError(f"{path} exists and is not overwritten", "another name, or remove it first")
    if not path.parent.is_dir():
        raise EnvironmentProblem(f"{path} cannot be written: there is no folder {path.parent}", "make it first")
    probe = path.with_name(f".{path.name}.probing")
    try:
        probe.touch(exist_ok=True)
        probe.unlink()
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be written: {error.strerror}", "another folder") from error


def write_point(point: Point, path: Path) -> None:
    """Write one point as Parquet (one row a class) or JSON, aside and then renamed; an existing file is never replaced."""
    check_output(path)
    aside = path.with_name(f".{path.name}.part")
    try:
        if path.suffix == ".json":
            aside.write_text(json.dumps(point.to_document(), indent=1) + "\n")
        else:
            write_rows([row_of(point, c) for c in point.classes], aside)
        aside.rename(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise EnvironmentProblem(f"{path} cannot be written: {error.strerror}", "another folder, or more room") from error


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """Rows of `row_of` as one Parquet file with the schema version in its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows)
    table = table.replace_schema_metadata({"probe.kind": "points", "probe.version": str(POINT_VERSION)})
    pq.write_table(table, path, compression="zstd")
