"""The flat row of one problem of the coverage benchmark, and the Parquet files that hold rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from probe.answer import CONFIG_ATTRIBUTES, Answer
from probe.capture import Capture
from probe.errors import Declined, DeclineReason, UsageError
from probe.newfile import new_file
from probe.records import now
from probe.stream import Asked

VERSION = 1
KIND = "coverage"
STEPS = ("ask", "capture", "prepare", "agree", "walk", "recover", "settle", "prove", "record")
_TEXT = 400  # characters of a schedule that a row keeps
_LONG = ("problem", "preference", "gemm_desc", "ambiguous_text", "schedule_text", "date", "launched", "outputs_compared", "candidates")
SAME = ("target", "library", "seed", "draw", "problems", "limit")  # of a run and those that resume it
Row = dict[str, Any]


class Outcome(StrEnum):
    """What became of a problem. refuted: recovered and not confirmed. error: a failure of the process, its time, its memory or its device,
    or a bug. misaligned: its operands lie worse than the library was told, and the call was refused or failed."""

    CONFIRMED = "confirmed"
    AMBIGUOUS = "ambiguous"
    REFUTED = "refuted"
    DECLINED = "declined"
    ERROR = "error"
    MISALIGNED = "misaligned"


RECOVERED = (Outcome.CONFIRMED, Outcome.AMBIGUOUS, Outcome.REFUTED)

# Column -> Arrow type.
COLUMNS: dict[str, str] = {
    "date": "string", "index": "int64", "regime": "string", "m": "int64", "n": "int64", "k": "int64", "input_dtype": "string",
    "output_dtype": "string", "layout": "string", "fast_accumulation": "bool", "lda": "int64", "ldb": "int64", "ldd": "int64",
    "a_offset": "int64", "b_offset": "int64", "d_offset": "int64", "workspace_limit": "int64", "reduction_mask": "int64",
    "told_alignment": "int64", "problem": "string", "preference": "string", **dict.fromkeys(CONFIG_ATTRIBUTES, "int64"),
    "workspace_bytes": "int64", "kernels": "string", "launched": "string", "family": "string", "outcome": "string", "reason": "string",
    "text": "string", "at_step": "string", "classes": "int64", "k_summed": "int64", "candidates": "int64", "elements_compared": "int64",
    "outputs_compared": "int64", "outputs_differing": "int64", "first_difference": "string", "schedule_text": "string",
    "ambiguous_text": "string", "gemm_desc": "string", "launches": "int64", "walk_launches": "int64",
    **{f"seconds_{step}": "float" for step in STEPS}, "seconds": "float", "wall_seconds": "float"}


@dataclass(frozen=True)
class Ended:
    """How a problem ended. reply: the point's document; or a decline; or what was raised. at_step: the last step that began.
    lost: whether the child was gone afterwards. answer, captured: asked again where there is no point; None where even that failed."""

    reply: Mapping[str, Any] | Declined | Exception
    at_step: str
    wall_seconds: float
    lost: bool = False
    answer: Answer | None = None
    captured: Capture | None = None


def row_of(index: int, asked: Asked, ended: Ended) -> Row:
    """The row of a problem. What was not reached is None, or "" for text."""
    p, preference = asked.problem, asked.preference
    row: Row = dict.fromkeys(COLUMNS)
    row |= {name: "" for name, kind in COLUMNS.items() if kind == "string"}
    row |= {
        "date": now(), "index": index, "regime": asked.source, "m": p.m, "n": p.n, "k": p.k, "input_dtype": str(p.a_dtype),
        "output_dtype": str(p.d_dtype), "layout": str(p.layout), "fast_accumulation": p.fast_accumulation,
        **{f"ld{x}": p.leading_dimension(x) for x in "abd"}, **{f"{x}_offset": getattr(p, f"{x}_offset_bytes") for x in "abd"},
        "workspace_limit": preference.workspace_bytes, "reduction_mask": preference.reduction_scheme_mask,
        "told_alignment": preference.a_alignment, "problem": p.to_json(), "preference": preference.to_json(),
        "at_step": ended.at_step, "wall_seconds": ended.wall_seconds}
    if isinstance(ended.reply, Mapping):
        return row | _of_point(ended.reply)
    row |= _of_failure(ended.reply, ended.lost)
    if promise_broken(asked) and (row["outcome"] == Outcome.ERROR or row["reason"] == DeclineReason.CANNOT_RUN):
        row["outcome"] = str(Outcome.MISALIGNED)
    if ended.answer is not None:
        row |= _of_answer(ended.answer.to_document())
    if ended.captured is not None:
        row |= _of_capture(ended.captured.to_document())
    return row


def promise_broken(asked: Asked) -> bool:
    """Whether the library is told more of the addresses than is true."""
    told, true = asked.problem.alignments(asked.preference), map(asked.problem.alignment, "abcd")
    return any(t > real for t, real in zip(told, true, strict=True))


def _of_answer(answer: Mapping[str, Any]) -> Row:
    return {name: answer[name] for name in (*CONFIG_ATTRIBUTES, "workspace_bytes")}


def _of_capture(captured: Mapping[str, Any]) -> Row:
    names = [node.get("name", node["kind"]) for node in captured["nodes"]]
    return {"kernels": ", ".join(names), "launched": json.dumps(captured, separators=(",", ":"))}


def _of_failure(reply: Declined | Exception, lost: bool) -> Row:
    if isinstance(reply, Declined):
        outcome = Outcome.ERROR if lost and reply.text.startswith("the child process ") else Outcome.DECLINED
        return {"outcome": str(outcome), "reason": str(reply.reason), "text": reply.text}
    cause = f"\n{reply.__cause__}" if reply.__cause__ is not None else ""
    return {"outcome": str(Outcome.ERROR), "reason": type(reply).__name__, "text": f"{reply}{cause}"}


def _of_point(point: Mapping[str, Any]) -> Row:
    classes = point["classes"]
    proofs = [c["proof"] for c in classes if c["proof"] is not None]
    phases = {phase["name"]: phase for phase in point["phases"]}
    bad = next((p for p in proofs if p["outcome"] != "confirmed" and p["first"] is not None), None)
    ambiguous = [_shortened(json.dumps(t, separators=(",", ":"))) for c in classes for t in c["ambiguous"]]
    return {
        **_of_answer(point["answer"]), **_of_capture(point["capture"]), "outcome": point["outcome"],
        "family": "; ".join(dict.fromkeys(c["family"] for c in classes)), "classes": len(classes),
        "k_summed": min(c["k_summed"] for c in classes), "candidates": max(c["candidates"] for c in classes),
        "elements_compared": sum(p["elements"] for p in proofs), "outputs_compared": sum(p["compared"] for p in proofs),
        "outputs_differing": sum(p["differing"] for p in proofs),
        "first_difference": "" if bad is None else f"{bad['first_draw']}: {json.dumps(bad['first'])}",
        "schedule_text": "; ".join(_shortened(c["schedule_text"]) for c in classes[:4]), "ambiguous_text": "; ".join(ambiguous[:4]),
        "gemm_desc": "" if classes[0]["gemm_desc"] is None else json.dumps(classes[0]["gemm_desc"], separators=(",", ":")),
        "launches": sum(p["launches"] for p in phases.values()), "walk_launches": phases["walk"]["launches"],
        **{f"seconds_{step}": phases[step]["seconds"] for step in STEPS if step in phases},
        "seconds": sum(p["seconds"] for p in phases.values())}


def _shortened(text: str) -> str:
    half = _TEXT // 2
    return text if len(text) <= _TEXT else f"{text[:half]} ... {text[-half:]}"


# Files

@dataclass(frozen=True)
class Dataset:
    """Rows in the order of their index, and what is said of the whole run: target, seed, draw, problems asked, processes and so on."""

    facts: Mapping[str, Any]
    rows: Sequence[Row]

    @property
    def not_begun(self) -> int:
        """Problems that the run was asked for and did not finish."""
        return int(self.facts["problems"]) - len(self.rows)


def write(rows: Iterable[Row], facts: Mapping[str, Any], path: Path, columns: Sequence[str] = tuple(COLUMNS)) -> None:
    """One Parquet file, made aside and then named; an existing one is never replaced. Raises UsageError, EnvironmentProblem."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field(name, pa.type_for_alias(COLUMNS[name])) for name in columns],
                       {"probe.kind": KIND, "probe.version": str(VERSION), "probe.facts": json.dumps(dict(facts), sort_keys=True)})
    table = pa.Table.from_pylist([{name: row[name] for name in columns} for row in rows], schema)
    with new_file(path) as aside:
        pq.write_table(table, aside, compression="zstd", compression_level=15)


def read(paths: Sequence[Path]) -> Dataset:
    """The dataset that files of one run are, and of those that resumed it: their seconds are added. Raises UsageError for files that are
    none, or of another target, seed or draw, or that share an index."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not paths:
        raise UsageError("no files are given", "the .parquet files of a run")
    rows: list[Row] = []
    runs: dict[str, Mapping[str, Any]] = {}
    for path in paths:
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise UsageError(f"{path} cannot be read: {str(error).splitlines()[0]}", "a .parquet file of a run") from None
        said = table.schema.metadata or {}
        if said.get(b"probe.kind") != KIND.encode() or said.get(b"probe.version") != str(VERSION).encode():
            raise UsageError(f"{path} holds no coverage rows of version {VERSION}",
                             "a .parquet file of `python -m benchmarks.coverage run`")
        found = json.loads(said[b"probe.facts"])
        first = next(iter(runs.values()), found)
        if any(found[name] != first[name] for name in SAME):
            raise UsageError(f"{path} is of another run than {paths[0]}", "the files of one run, and of those that resumed it")
        runs[found["date"]] = found
        rows += table.to_pylist()
    rows.sort(key=lambda row: row["index"])
    if len({row["index"] for row in rows}) != len(rows):
        raise UsageError("two files hold the same problem", "each file once")
    parts = [runs[date] for date in sorted(runs)]
    return Dataset({**parts[0], "seconds": sum(p["seconds"] for p in parts), "processes": max(p["processes"] for p in parts)}, rows)


def compact(dataset: Dataset, path: Path) -> None:
    """The dataset as one file without what follows from (seed, index) or is long; what is not confirmed keeps its schedule and text."""
    kept = [name for name in COLUMNS if name not in _LONG or name in ("schedule_text", "ambiguous_text")]

    def short(row: Row, name: str) -> Any:
        if name in _LONG and row["outcome"] == Outcome.CONFIRMED:
            return ""
        return float(f"{row[name]:.3g}") if COLUMNS[name] == "float" and row[name] is not None else row[name]

    rows = [{name: short(row, name) for name in kept} for row in dataset.rows]
    write(rows, dataset.facts, path, kept)
