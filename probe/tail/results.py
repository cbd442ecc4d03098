"""What a folder of results holds: findings, scans, forced answers, spans, reaches and torch runs, by the target measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from probe.errors import UsageError
from probe.tail.reach_table import KIND as REACH
from probe.tail.reach_table import read_reach
from probe.tail.search import Role, TailFindings, Verdict
from probe.tail.spans import KIND as SPANS
from probe.tail.spans import Span, spans_of_document
from probe.tail.table import KIND as SCAN
from probe.tail.table import Row, read_scan, summary
from probe.target import LibraryKind, Target
from probe.vendor import numbers

FORCED = "splitk-tail-forced"  # kinds of JSON that tools.tail_scan writes
ANSWERS = "splitk-tail-answers"
TORCH = "splitk-tail-torch"  # that tools/tail_torch.py writes


class State(StrEnum):
    """What everything in the folder says of one release on one GPU. One meaning each."""

    SHORT = "short"  # some sum was short
    WHOLE = "whole"  # no sum was short, sums that the condition names among them
    UNTESTED = "untested"  # no sum was short, and no sum that the condition names was run


@dataclass
class Release:
    """One library on one GPU, and what was measured with it. repeated: scans that are left out, since their draws are another's."""

    target: Target
    findings: list[TailFindings] = field(default_factory=list)
    scans: list[tuple[str, list[Row], dict[str, Any]]] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    reaches: list[tuple[str, list[Row], dict[str, Any]]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def version(self) -> str:
        return self.target.version

    @property
    def rows(self) -> list[Row]:
        """The rows of all its scans, which add up: their draws differ."""
        return [row for _, rows, _ in self.scans for row in rows]

    @property
    def short_sums(self) -> list[Row]:
        """Short sums of its scans, smallest K first."""
        short = [r for r in self.rows if r["row"] == "sum" and r["lost"]]
        return sorted(short, key=lambda r: (r["k"], r["m"] * r["n"], r["input_dtype"]))

    @property
    def named(self) -> int:
        """Sums that our condition names and that were run."""
        total = summary(self.rows)
        scanned = total["ours_hit"] + total["ours_false_alarm"] + total["ours_amount"]
        searched = sum(r.role is Role.NAMED for f in self.findings for r in f.runs)
        reached = sum(r["ran"] for _, rows, _ in self.reaches for r in rows if r["named"])
        return int(scanned + searched + reached)

    @property
    def state(self) -> State:
        reached = any(r["short"] for _, rows, _ in self.reaches for r in rows)
        if summary(self.rows)["lost"] or reached or any(f.short for f in self.findings):
            return State.SHORT
        return State.WHOLE if self.named else State.UNTESTED


@dataclass
class Results:
    """Everything, oldest release first. simulated: names of files that are of no device."""

    releases: list[Release] = field(default_factory=list)
    simulated: list[str] = field(default_factory=list)
    forced: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    torch: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def release(self, target: Target) -> Release:
        """That of a target; the driver does not tell two apart."""
        for one in self.releases:
            if _identity(one.target) == _identity(target):
                return one
        self.releases.append(Release(target))
        return self.releases[-1]

    @property
    def findings(self) -> list[TailFindings]:
        return [f for one in self.releases for f in one.findings]

    @property
    def showing(self) -> list[TailFindings]:
        """Findings with a short sum whose controls are whole."""
        return [f for f in self.findings if f.verdict is Verdict.SHOWS]

    @property
    def scans(self) -> Iterator[tuple[Release, str, list[Row], dict[str, Any]]]:
        return ((one, *scan) for one in self.releases for scan in one.scans)

    def in_state(self, state: State) -> list[Release]:
        return [one for one in self.releases if one.state is state]


def _identity(target: Target) -> tuple[object, ...]:
    return target.version, target.sha256, target.sm, target.sm_count, target.device_name


def read_results(folder: Path) -> Results:
    """What the folder holds. Raises UsageError where that is nothing, or a file that cannot be read as what it says it is."""
    out = Results()
    for path in sorted(folder.glob("*.json")):
        _read_json(path, out)
    for path in sorted(folder.glob("*.parquet")):
        _read_table(path, out)
    if not (out.releases or out.simulated or out.forced or out.torch):
        raise UsageError(f"{folder} holds no results", "`probe bug splitk-tail -o` writes some")
    out.releases.sort(key=lambda one: numbers(one.version))
    for one in out.releases:
        _drop_repeats(one)
    return out


def _read_json(path: Path, out: Results) -> None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UsageError(f"{path} is no JSON that can be read", "remove it, or run again what wrote it") from None
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind == TailFindings.KIND:
        findings = TailFindings.from_document(document)
        if _of_a_device(findings.target, path, out):
            out.release(findings.target).findings.append(findings)
    elif kind == FORCED:
        if _of_a_device(Target.from_document(document["target"]), path, out):
            out.forced.append((path.name, document))
    elif kind == SPANS:
        for span in spans_of_document(document):
            if _of_a_device(span.target, path, out):
                out.release(span.target).spans.append(span)
    elif kind == TORCH:
        out.torch.append((path.name, document))
    elif kind != ANSWERS:
        raise UsageError(f"{path} holds no result of this command: kind {kind!r}", "move it elsewhere")


def _read_table(path: Path, out: Results) -> None:
    import pyarrow
    import pyarrow.parquet as pq

    try:
        kind = (pq.read_schema(path).metadata or {}).get(b"probe.kind", b"").decode()
    except (pyarrow.ArrowException, OSError):
        raise UsageError(f"{path} is no Parquet file that can be read", "remove it, or run again what wrote it") from None
    if kind not in (SCAN, REACH):
        raise UsageError(f"{path} holds {kind or 'something else'}", "move it elsewhere")
    rows, about = read_scan(path) if kind == SCAN else read_reach(path)
    target = Target.from_document(about["target"])
    if _of_a_device(target, path, out):
        release = out.release(target)
        (release.scans if kind == SCAN else release.reaches).append((path.name, rows, about))


def _of_a_device(target: Target, path: Path, out: Results) -> bool:
    """Whether this is a measurement; the names of others are kept, to be said."""
    if target.library is LibraryKind.SIMULATED and path.name not in out.simulated:
        out.simulated.append(path.name)
    return target.library is not LibraryKind.SIMULATED


def _drop_repeats(release: Release) -> None:
    """Equal seeds draw equal problems, so of such scans only the largest counts."""
    best: dict[int, tuple[str, list[Row], dict[str, Any]]] = {}
    for scan in release.scans:
        seed = scan[2]["seed"]
        if seed not in best or scan[2]["sums"] > best[seed][2]["sums"]:
            best[seed] = scan
    kept = {name for name, _, _ in best.values()}
    release.repeated = [name for name, _, _ in release.scans if name not in kept]
    release.scans = [scan for scan in release.scans if scan[0] in kept]
