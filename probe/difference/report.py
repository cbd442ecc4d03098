"""The Markdown report of one or more datasets of differences. Every word of it comes from the datasets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.difference.file import read_dataset
from probe.difference.rows import Row, Verdict, counts_of
from probe.errors import UsageError
from probe.preference import Preference
from probe.proof import Outcome

_MOVED_ORDER = (Verdict.ORDER, Verdict.BOTH)
_COLUMNS = {Verdict.NEITHER: "neither", Verdict.ANSWER: "answer only", Verdict.ORDER: "order only", Verdict.BOTH: "both",
            Verdict.UNSETTLED: "unsettled", Verdict.INCONSISTENT: "inconsistent", Verdict.DECLINED_A: "declined by A",
            Verdict.DECLINED_B: "declined by B", Verdict.DECLINED_BOTH: "declined by both"}
_COUNTED = ("dataset", "A and B", "problems", "confirmed on A", "confirmed on B", *_COLUMNS.values(), "other kernels")
_EXPLAINED = """\
Per problem, both libraries are asked and walked: each order is recovered, and confirmed on its own library's bytes, on fresh draws. Where \
the two differ, A's order is held against B's bytes too, and counts as moved only where these refute it. answer: the nine algorithm \
attributes and the workspace. unsettled: an order was recovered and not confirmed, so nothing is said about it. inconsistent: what was \
found contradicts itself."""


@dataclass(frozen=True)
class _Pair:
    """One dataset."""

    name: str
    rows: list[Row]

    def library(self, side: str) -> str:
        """ "cublasLt 13.1.0" """
        first = self.rows[0]
        return f"{first[f'library_{side}']} {first[f'library_version_{side}']}"

    @property
    def title(self) -> str:
        return f"{self.library('a')} and {self.library('b')}"


def report_of(paths: Sequence[Path | str]) -> str:
    """The report of these datasets, a pair of libraries each, as Markdown text.

    Raises UsageError for a file that is no dataset of differences, or holds no row.
    """
    pairs = [_Pair(Path(path).name, read_dataset(Path(path))) for path in paths]
    for pair in pairs:
        if not pair.rows:
            raise UsageError(f"{pair.name} holds no problem", "a dataset of a run that finished")
    devices = dict.fromkeys(json.loads(row[f"target_{side}"])["device_name"] for pair in pairs for row in pair.rows for side in "ab")
    options = " ".join(f"--report {pair.name}" for pair in pairs)
    out = [f"# What moved between two libraries, on {' and '.join(devices)}", "",
           f"Written by `probe diff-libraries {options}` from these datasets. Runs:", "", *map(_run_line, pairs), "", _EXPLAINED, "",
           "## Counts", "", *_table(_COUNTED, [_counts(pair) for pair in pairs])]
    for pair in pairs:
        out += ["", f"## {pair.title}: {Path(pair.name).stem}", "", *_pair(pair)]
    return "\n".join(out)


def _run_line(pair: _Pair) -> str:
    first = pair.rows[0]
    dates = sorted(row["date"][:10] for row in pair.rows)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    target = json.loads(first["target_b"])
    preference = Preference.from_json(first["preference"])
    sides = "; ".join(f"{side.upper()} is {pair.library(side)}, sha256 {first[f'library_sha256_{side}'][:16]}" for side in "ab")
    return (f"- `{pair.name}`: {sides}; {target['sm']}, {target['sm_count']} SMs, driver {target['driver']}; {when}, seed {first['seed']}, "
            f"workspace {preference.workspace_bytes / 2**20:g} MiB, reduction schemes {preference.reduction_scheme_mask}; "
            f"{sum(row['seconds'] for row in pair.rows):.0f} s in all problems.")


def _counts(pair: _Pair) -> tuple[str, ...]:
    counts = counts_of(pair.rows)
    confirmed = (str(sum(row[f"outcome_{side}"] == Outcome.CONFIRMED for row in pair.rows)) for side in "ab")
    return (f"`{Path(pair.name).stem}`", pair.title, str(len(pair.rows)), *confirmed, *(str(counts[verdict]) for verdict in _COLUMNS),
            str(sum(row["kernels"] == "moved" for row in pair.rows)))


def _pair(pair: _Pair) -> list[str]:
    rows = pair.rows
    out = [*_attributes(rows), *_dropped(pair)]
    moved = [row for row in rows if row["verdict"] in _MOVED_ORDER]
    for row in moved:
        out += [f"### {row['case']}: {row['verdict']}", "", *_order_lines(pair, row), ""]
    only = [row for row in rows if row["verdict"] == Verdict.ANSWER]
    if only:
        cells = [(row["case"], _answer_words(row), row["family_a"]) for row in only]
        out += ["### Answer moved, order the same", "", *_table(("problem", "what moved", "order of both"), cells), ""]
    for verdict in (Verdict.INCONSISTENT, Verdict.UNSETTLED, Verdict.DECLINED_A, Verdict.DECLINED_B, Verdict.DECLINED_BOTH):
        some = [row for row in rows if row["verdict"] == verdict]
        if some:
            out += [f"### {verdict[0].upper()}{verdict[1:]}", "", *(f"- {row['case']}: {row['note']}" for row in some), ""]
    return out[:-1] if out and not out[-1] else out


def _attributes(rows: list[Row]) -> list[str]:
    counted = Counter(name for row in rows for name in row["moved_attributes"].split(", ") if name)
    if not counted:
        return []
    words = ", ".join(f"{name} on {count}" for name, count in counted.most_common())
    return [f"Attributes that moved, by number of problems: {words}.", ""]


def _dropped(pair: _Pair) -> list[str]:
    out = []
    for side in "ab":
        lost = [(row["case"], row["k"] - row[f"k_summed_{side}"]) for row in pair.rows if (row[f"k_summed_{side}"] or row["k"]) < row["k"]]
        if lost:
            cases = ", ".join(f"{case} ({count})" for case, count in lost)
            out += [f"{pair.library(side)} drops products of {len(lost)} problems (how many): {cases}.", ""]
    return out


def _answer_words(row: Row) -> str:
    if row["answer"] != "moved":
        return f"algo {row['algo_id_a']}, split-K {row['splitk_num_a']}, workspace {row['workspace_bytes_a']} B, of both"
    a, b = json.loads(row["answer_a"]), json.loads(row["answer_b"])
    return ", ".join(f"{name} {a[name]} -> {b[name]}" for name in row["moved_attributes"].split(", "))


def _order_lines(pair: _Pair, row: Row) -> list[str]:
    out = [f"Answer: {_answer_words(row)}.", "", "```text"]
    for name, side in (("A", "a"), ("B", "b")):
        for one in json.loads(row[f"orders_{side}"]):
            out += [f"{name}  {_order_words(one, row['k'])}", f"   {one['schedule_text']}"]
    out += ["```", ""]
    fields: list[list[str]] = json.loads(row["moved_fields"])
    out += _table(("field", f"A, {pair.library('a')}", f"B, {pair.library('b')}"), [tuple(field) for field in fields])
    if row["kernels"] == "moved":
        out += ["", f"Kernels: A `{row['kernels_a']}`, B `{row['kernels_b']}`."]
    return [*out, "", f"A's order on B's bytes: refuted, {row['a_on_b_differing']:,} of {row['a_on_b_outputs']:,} output elements differ; "
                      f"the first, in {row['a_on_b_first']} (the model is A's order)."]


def _order_words(one: dict[str, Any], k: int) -> str:
    lost = f", drops the last {k - one['k_summed']} of {k}" if one["k_summed"] < k else ""
    return f"{one['family']}{lost}; {one['outcome']} on {one['elements_compared']:,} dot products of {one['elements']:,} elements"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [tuple(head), ("---",) * len(head), *map(tuple, rows)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
