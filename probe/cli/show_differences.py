"""How the comparison of two libraries looks to a person: the counts, then every problem for which something moved."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from probe.cli.picture import schedule_line
from probe.cli.show import WIDTH, short_name
from probe.cli.stream import emit
from probe.difference.rows import Row, Verdict
from probe.difference.run import Differences
from probe.schedule import term_from_json
from probe.target import Target

_LABEL = 13
_STYLES = {Verdict.NEITHER: "green", Verdict.ANSWER: "yellow", Verdict.ORDER: "bold red", Verdict.BOTH: "bold red",
           Verdict.UNSETTLED: "bold yellow", Verdict.INCONSISTENT: "bold magenta"}
_QUIET = (Verdict.NEITHER, Verdict.DECLINED_BOTH)


def print_differences(differences: Differences, name_a: str, name_b: str) -> None:
    """The whole comparison; colour on a terminal only."""
    lines = list(difference_lines(differences, name_a, name_b))
    if not sys.stdout.isatty():
        emit("\n".join(f"{label:<{_LABEL}}{text}".rstrip() for label, text, _ in lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for label, text, style in lines:
        console.print(Text.assemble((f"{label:<{_LABEL}}", style or "bold cyan"), (text, style)), soft_wrap=True)


def difference_lines(differences: Differences, name_a: str, name_b: str) -> Iterator[tuple[str, str, str]]:
    """(label, text, style) of every line."""
    yield from _wrapped("A", _library(differences.target_a, name_a))
    yield from _wrapped("B", _library(differences.target_b, name_b))
    yield "seed", f"{differences.seed} (--seed {differences.seed} repeats every draw)", ""
    for verdict, count in differences.counts.items():
        if count:
            yield "", f"{count:>6} {verdict}", _STYLES.get(verdict, "")
    total = len(differences.rows)
    kernels = sum(row["kernels"] == "moved" for row in differences.rows)
    yield "", f"{total:>6} problems in all" + (f"; on {kernels} of them other kernels are launched" if kernels else ""), ""
    for row in differences.rows:
        if row["verdict"] not in _QUIET:
            yield "", "", ""
            yield from _row(row)


def _library(target: Target, name: str) -> str:
    return (f"{name}: {target.library} {target.version}, sha256 {target.sha256[:16]}, on {target.device_name}, {target.sm}, "
            f"driver {target.driver}")


def _row(row: Row) -> Iterator[tuple[str, str, str]]:
    verdict = Verdict(row["verdict"])
    yield "problem", f"{row['case']}: {verdict}", _STYLES.get(verdict, "")
    if row["note"]:
        yield from _wrapped("because", row["note"])
    if row["answer"] == "moved":
        a, b = json.loads(row["answer_a"]), json.loads(row["answer_b"])
        changes = [f"{name} {a[name]} -> {b[name]}" for name in row["moved_attributes"].split(", ")]
        yield from _wrapped("answer", ", ".join(changes))
    elif row["answer"] == "same":
        yield "answer", f"the same: algo {row['algo_id_a']}, split-K {row['splitk_num_a']}", ""
    if row["kernels"] == "moved":
        for side in "ab":
            yield from _wrapped(f"kernels {side.upper()}", ", ".join(map(short_name, row[f"kernels_{side}"].split(", "))))
    if row["order"] == "same":
        yield from _wrapped("order", f"the same, confirmed on both: {row['family_a']}")
    if row["order"] != "moved":
        return
    for side in "ab":
        yield from _orders(side, json.loads(row[f"orders_{side}"]), row["k"])
    for name, one, other in json.loads(row["moved_fields"]):
        yield from _wrapped("field", f"{name}: {one} -> {other}")
    yield from _wrapped("on B's bytes", f"A's order is refuted: {row['a_on_b_differing']:,} of {row['a_on_b_outputs']:,} output elements "
                                        f"differ; the first, in {row['a_on_b_first']}")


def _orders(side: str, classes: list[dict[str, Any]], k: int) -> Iterator[tuple[str, str, str]]:
    for index, one in enumerate(classes):
        label = f"order {side.upper()}" if index == 0 else ""
        share = f"{one['elements']:,} elements: " if len(classes) > 1 else ""
        lost = f"; {k - one['k_summed']} of {k} products are dropped" if one["k_summed"] < k else ""
        yield from _wrapped(label, f"{share}{one['family']}{lost}; confirmed on {one['elements_compared']:,} dot products")
        yield from _wrapped("", schedule_line(term_from_json(one["schedule"]), WIDTH - _LABEL)[0])


def _wrapped(label: str, text: str) -> Iterator[tuple[str, str, str]]:
    pieces = textwrap.wrap(text, WIDTH - _LABEL, break_long_words=False, break_on_hyphens=False) or [""]
    for index, piece in enumerate(pieces):
        yield (label if index == 0 else ""), piece, ""
