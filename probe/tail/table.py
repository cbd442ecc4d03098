"""The table of a scan for lost tails: counts of what was summed and every sum that was short or contradicts a condition, as Parquet."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.answer import Answer
from probe.errors import UsageError
from probe.newfile import new_file
from probe.problem import Problem
from probe.tail.count import Reading
from probe.tail.rule import NVJET, Condition, Fit, block, fit, predicted

KIND, VERSION = "splitk-tail-scan", 1
FITS = [f"{condition}_{one}" for condition in Condition for one in Fit if one is not Fit.WHOLE]
# A row is a count ("count") of sums that share what stands in the key columns, or one sum ("sum"), which the counts hold as well.
_KEY = {"row": "string", "input_dtype": "string", "output_dtype": "string", "fast_accumulation": "bool", "algo_id": "int64",
        "splitk_num": "int64", "residue": "int64"}
_SUM = {"m": "int64", "n": "int64", "k": "int64", "layout": "string", "tile": "int64", "stages": "int64", "cluster_shape": "int64",
        "reduction_scheme": "int64", "units": "int64", "least": "int64", "most": "int64"}
COLUMNS = {**_KEY, **_SUM, "sums": "int64", "lost": "int64", **dict.fromkeys(FITS, "int64")}
ANY = -1  # of splitk_num and residue: other algorithms are counted together
Row = dict[str, Any]


@dataclass
class Tally:
    """What a scan has seen. declined: problems that the library offers nothing for; failed: answers that did not run; left: not run."""

    counts: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    sums: list[Row] = field(default_factory=list)
    answers: dict[tuple[str, int], tuple[Problem, Answer, Reading]] = field(default_factory=dict)
    declined: int = 0
    failed: int = 0
    left: int = 0

    def add(self, problem: Problem, answer: Answer, reading: Reading) -> None:
        """One sum."""
        split = answer.algo_id == NVJET and answer.splitk_num > 1
        fits = {c: fit(predicted(c, problem, answer), reading.lost) for c in Condition}
        key = (str(problem.a_dtype), str(problem.d_dtype), problem.fast_accumulation, answer.algo_id,
               answer.splitk_num if split else ANY, problem.k % block(problem.a_dtype) if split else ANY)
        self.counts[(*key, bool(reading.lost), *(str(fits[c]) for c in Condition))] += 1
        if reading.lost or set(fits.values()) - {Fit.WHOLE, Fit.HIT}:
            row = dict.fromkeys(COLUMNS) | {"row": "sum"} | dict(zip(list(_KEY)[1:], key, strict=True))
            row |= {"m": problem.m, "n": problem.n, "k": problem.k, "layout": str(problem.layout), "tile": answer.tile,
                    "stages": answer.stages, "cluster_shape": answer.cluster_shape, "reduction_scheme": answer.reduction_scheme,
                    "units": reading.units, "least": reading.least, "most": reading.most, "sums": 1, "lost": reading.lost,
                    "splitk_num": answer.splitk_num, "residue": problem.k % block(problem.a_dtype)}
            self.sums.append(row | {name: int(name in _named(fits)) for name in FITS})
        if reading.lost:
            where = (str(problem.a_dtype), answer.splitk_num)
            if where not in self.answers or self.answers[where][0].k > problem.k:
                self.answers[where] = (problem, answer, reading)

    def merge(self, other: Tally) -> None:
        """Take in what another process has seen."""
        self.counts.update(other.counts)
        self.sums += other.sums
        for where, case in other.answers.items():
            if where not in self.answers or self.answers[where][0].k > case[0].k:
                self.answers[where] = case
        self.declined += other.declined
        self.failed += other.failed
        self.left += other.left

    @property
    def total(self) -> int:
        """Sums that were read."""
        return sum(self.counts.values())

    def rows(self) -> list[Row]:
        """Every row of the table: the counts, then the sums."""
        out: dict[tuple[Any, ...], Row] = {}
        for (*key, lost, ours, paper), number in self.counts.items():
            row = out.setdefault(tuple(key), dict.fromkeys(COLUMNS) | {"row": "count", "sums": 0, "lost": 0} | dict.fromkeys(FITS, 0)
                                 | dict(zip(list(_KEY)[1:], key, strict=True)))
            row["sums"] += number
            row["lost"] += number * lost
            for name in _named({Condition.OURS: Fit(ours), Condition.PAPER: Fit(paper)}):
                row[name] += number
        counts = [out[key] for key in sorted(out)]
        return counts + sorted(self.sums, key=lambda r: (r["input_dtype"], r["k"], r["m"], r["n"], r["output_dtype"]))

    def cases(self, most: int = 40) -> list[Row]:
        """Short sums with their answers, the smallest K of a dtype and split count, as `tools.tail_scan --force-from` reads them."""
        found = sorted(self.answers.values(), key=lambda case: case[0].k)[:most]
        return [{"problem": p.to_document(), "answer": a.to_document(), "reading": r.to_document()} for p, a, r in found]


def _named(fits: Mapping[Condition, Fit]) -> set[str]:
    return {f"{condition}_{one}" for condition, one in fits.items() if one is not Fit.WHOLE}


def summary(rows: Iterable[Row], **wanted: Any) -> dict[str, int]:
    """Totals over the count rows whose columns equal `wanted`: sums, lost, and each fit of each condition."""
    out = dict.fromkeys(["sums", "lost", *FITS], 0)
    for row in rows:
        if row["row"] == "count" and all(row[name] == value for name, value in wanted.items()):
            for name in out:
                out[name] += row[name]
    return out


def write_scan(rows: list[Row], about: Mapping[str, Any], path: Path) -> None:
    """Write a new table, with what was run (`about`, JSON values) in its metadata. Raises UsageError, EnvironmentProblem."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from probe.records import check_output

    check_output(path)
    schema = pa.schema([pa.field(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()],
                       {"probe.kind": KIND, "probe.version": str(VERSION), "probe.about": json.dumps(about, sort_keys=True)})
    with new_file(path) as aside:
        pq.write_table(pa.Table.from_pylist(rows, schema), aside, compression="zstd")


def read_scan(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Rows and what was run. Raises UsageError for a file that is no table of this version."""
    import pyarrow
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pyarrow.ArrowException, OSError):
        raise UsageError(f"{path} is no Parquet file that can be read", "a table that tools.tail_scan wrote") from None
    meta = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    if meta.get("probe.kind") != KIND or meta.get("probe.version") != str(VERSION):
        raise UsageError(f"{path} holds {meta.get('probe.kind', 'something else')}", f"{KIND}, version {VERSION}, of tools.tail_scan")
    return table.to_pylist(), json.loads(meta["probe.about"])
