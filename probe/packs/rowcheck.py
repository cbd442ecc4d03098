"""What a pack says, field by field: its campaign, and of each row the types and what a field says of the others and of the stream."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.answer import CONFIG_ATTRIBUTES, Answer
from probe.campaign.folder import Frozen
from probe.campaign.rows import COLUMNS, FailureKind, Result, Row
from probe.capture import Capture
from probe.descriptor import GEMMDesc
from probe.errors import DeclineReason, UsageError
from probe.evidence import family_of
from probe.preference import Preference
from probe.problem import Problem
from probe.proof import LEAST_ELEMENTS
from probe.schedule import Term, render_text, term_from_json, term_to_json
from probe.stream import ProblemStream
from probe.target import Target
from probe.wire import result_from_document

_TYPES: dict[str, type] = {"int64": int, "string": str, "double": float, "bool": bool}
_MOST_PARTS = 2**20  # steps that a descriptor may spell out one by one: its schedule is made here
_MOST_LISTED = 2**17
_ALWAYS_DRAWN = 1000  # a campaign that asks for more may give up before it has them (campaign.lane)
_MOST_ATTEMPTS = 8  # walks of one problem, far above what a campaign takes
_TARGET = {"sm": "sm", "sm_count": "sm_count", "device_name": "device_name", "driver": "driver", "library": "library",
           "library_version": "version", "library_sha256": "sha256"}
_PROOF = ("elements_compared", "outputs_compared", "outputs_differing", "first_difference", "draws")
_POINT = (*_PROOF, "k_summed", "family", "schedule", "schedule_text", "elements_in_class", "ambiguous", "candidates", "instrument",
          "walk_launches", "walk_experiments", "exhaustive", "classes")


# What reading a stranger's values may raise; UsageError is a ValueError. It is told as malformed data, never as a bug.
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError, AssertionError)


def campaign_of(document: Any, where: Path) -> tuple[Frozen, ProblemStream]:
    """The campaign of a manifest and its stream. Raises UsageError that names `where`."""
    try:
        frozen = Frozen.from_document(document, where)
        if not isinstance(frozen.date, str) or not 0 <= frozen.begin < 2**53:
            raise UsageError("date or begin is malformed")
        if sum(len(x.cases) * len(x.workspaces) * len(x.reduction_schemes) for x in frozen.campaign.lists) > _MOST_LISTED:
            raise UsageError(f"its lists have more than {_MOST_LISTED:,} problems")
        return frozen, frozen.campaign.stream()
    except _MALFORMED as error:
        text = " ".join(str(error).split())[:300]
        raise UsageError(text if str(where) in text else f"{where}: its campaign is malformed: {text}") from None


def check_row(row: Any, frozen: Frozen, stream: ProblemStream) -> None:
    """Raises UsageError that names the field. What is checked: docs/packs.md."""
    _check_types(row)
    _need(row["library_name"] in frozen.campaign.libraries, "library_name", "names no library of the campaign")
    target = frozen.targets[row["library_name"]]
    asked = stream.at(row["index"])
    _need(row["source"] == asked.source, "source", "is not where the stream takes this problem from")
    problem, preference = _read("problem", Problem.from_json, row), _read("preference", Preference.from_json, row)
    _need(problem == asked.problem, "problem", "is not the one that the stream has at this index")
    _need(preference == asked.preference, "preference", "is not the one that the stream has at this index")
    _need(row["forced"] == "", "forced", "is not empty, and a campaign forces nothing")
    _need(row["gpu"] in range(1024), "gpu", "is no number of a GPU")
    _check_problem(row, problem, target)
    attempts = row["attempts"]
    _need(attempts is not None and 1 <= attempts <= _MOST_ATTEMPTS, "attempts", "is no number of walks")
    seeds = [stream.draw_seed(row["index"], number) for number in range(attempts)]
    _need(row["seed"] in seeds, "seed", "is none that this campaign gives the problem")
    answer = _answer(row)
    if row["capture"] is not None:
        captured = _read("capture", Capture.from_json, row)
        _need(row["kernels"] == " + ".join(kernel.name for kernel in captured.kernels), "kernels", "are not those of the capture")
    outcome = _read("outcome", Result, row)
    if outcome in (Result.DECLINED, Result.FAILED):
        reasons: type[DeclineReason] | type[FailureKind] = DeclineReason if outcome is Result.DECLINED else FailureKind
        _read("reason", reasons, row)
        _need(bool(row["reason_text"]), "reason_text", "is empty")
        present = [name for name in (*_POINT, "gemm_desc", "more_classes") if row[name] is not None]
        _need(not present, present[0] if present else "", f"has a value and the problem {outcome}")
        return
    _need(answer is not None, "algo_id", "is null and the problem was walked")
    _need(row["reason"] is None and row["reason_text"] is None, "reason", "is given for a problem that was walked")
    missing = [name for name in _POINT if row[name] is None]
    _need(not missing, missing[0] if missing else "", "is null and the problem was walked")
    _check_order(row, problem)
    _check_verdict(row, problem, outcome, frozen.campaign.draws)


def _need(good: bool, field: str, what: str) -> None:
    if not good:
        raise UsageError(f"{field} {what}")


def _read(field: str, read: Any, row: Row) -> Any:
    try:
        return read(row[field])
    except _MALFORMED as error:
        raise UsageError(f"{field} is malformed: {' '.join(str(error).split())[:200]}") from None


def _check_types(row: Any) -> None:
    if not isinstance(row, Mapping) or set(row) != set(COLUMNS):
        raise UsageError("the columns are not those of a campaign's rows")
    for name, kind in COLUMNS.items():
        value = row[name]
        if value is None:
            continue
        _need(type(value) is _TYPES[kind], name, f"is {str(value)[:40]!r}, no {kind}")
        if kind == "int64":
            _need(-(2**63) <= value < 2**63, name, "does not fit 64 bits")
        if kind == "double":
            _need(math.isfinite(value) and value >= 0, name, "is no time")
    needed = ("index", "source", "library_name", "problem", "preference", "outcome", "seed", "gpu", "date")
    missing = [name for name in needed if row[name] is None]
    _need(not missing, missing[0] if missing else "", "is null")


def _check_problem(row: Row, p: Problem, target: Target) -> None:
    says = {"m": p.m, "n": p.n, "k": p.k, "input_dtype": str(p.a_dtype), "output_dtype": str(p.d_dtype), "layout": str(p.layout),
            "fast_accumulation": p.fast_accumulation}
    says |= {column: getattr(target, name) for column, name in _TARGET.items()}
    for name, value in says.items():
        _need(row[name] == value, name, f"is {row[name]!r} and not {value!r}, as the problem or the target says")


def _answer(row: Row) -> Answer | None:
    names = (*CONFIG_ATTRIBUTES, "workspace_bytes")
    missing = [name for name in names if row[name] is None]
    if len(missing) == len(names):
        return None
    _need(not missing, missing[0] if missing else "", "is null and the rest of the answer is not")
    return Answer(**{name: row[name] for name in names}, waves=0.0)


def _check_order(row: Row, problem: Problem) -> None:
    """The descriptor gives the schedule, the schedule its text and its family."""
    schedule: Term = _read("schedule", lambda text: term_from_json(json.loads(text)), row)
    desc = None
    if row["gemm_desc"] is not None:
        desc = _read("gemm_desc", GEMMDesc.from_json, row)
        numbers = [desc.k, desc.k_summed, desc.instruction_k, desc.k_loop_step, *(c.span for c in desc.k_cuts)]
        _need(all(type(number) is int for number in numbers) and len(desc.k_cuts) <= 8, "gemm_desc", "is malformed")
        finest = min([desc.instruction_k if not desc.use_fast_accum else desc.k_loop_step, *(c.span for c in desc.k_cuts)])
        _need(desc.k_summed <= _MOST_PARTS * finest, "gemm_desc", "has more parts than a pack may have")
        _need((desc.k, desc.input_dtype, desc.output_dtype) == (problem.k, problem.a_dtype, problem.d_dtype), "gemm_desc",
              "is of another problem")
        _need(row["k_summed"] == desc.k_summed, "k_summed", "is not the descriptor's")
        _need(term_to_json(_read("gemm_desc", lambda text: desc.schedule(), row)) == term_to_json(schedule), "schedule",
              "is not what the descriptor gives")
    _need(row["schedule_text"] == _read("schedule", lambda text: render_text(schedule), row), "schedule_text", "is not the schedule's")
    _need(row["family"] == family_of(schedule, desc), "family", "is not the descriptor's")
    _need(1 <= row["k_summed"] <= problem.k, "k_summed", f"is not within 1..{problem.k}")
    for term in _read("ambiguous", json.loads, row):
        _read("ambiguous", lambda _, term=term: term_from_json(term), row)
    if row["evidence"] is not None:
        lines = _read("evidence", json.loads, row)
        good = isinstance(lines, list) and all(
            isinstance(line, dict) and set(line) == {"field", "value", "instrument"} and all(isinstance(v, str) for v in line.values())
            for line in lines)
        _need(good, "evidence", "is malformed")


def _check_verdict(row: Row, problem: Problem, outcome: Result, draws: int) -> None:
    outputs, elements = problem.m * problem.n, row["elements_in_class"]
    others = [] if row["more_classes"] is None else _read("more_classes", lambda text: [result_from_document(x) for x in json.loads(text)],
                                                          row)
    _need(row["classes"] == 1 + len(others), "classes", "is not the number of classes that are there")
    _need(elements >= 1 and elements + sum(other.elements for other in others) == outputs, "elements_in_class",
          "and those of the other classes are not all outputs")
    compared, differing = row["outputs_compared"], row["outputs_differing"]
    _need(0 <= differing <= compared and row["elements_compared"] >= 0, "outputs_differing", "is not within what was compared")
    counts = _read("draws", lambda text: [int(part.split(":")[1]) for part in text.split(",")] if text else [], row)
    if outcome is Result.CONFIRMED:
        _need(differing == 0 and row["first_difference"] == "", "outputs_differing", "is not 0 and the row is confirmed")
        _need(row["elements_compared"] >= LEAST_ELEMENTS, "elements_compared", f"is below {LEAST_ELEMENTS} and the row is confirmed")
        least = min(draws, _ALWAYS_DRAWN)
        _need(min(counts, default=0) >= 1 and sum(counts) >= least, "draws", f"are fewer than {least}, as the campaign asks for")
        _need(row["ambiguous"] == "[]", "ambiguous", "names candidates and the row is confirmed")
        _need(all(str(other.outcome) == "confirmed" for other in others), "more_classes", "hold one that is not confirmed")
    elif outcome is Result.REFUTED:
        _need(differing > 0 and row["first_difference"] != "", "outputs_differing", "is 0 and the row is refuted")
