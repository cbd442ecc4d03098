"""The report of a coverage dataset, as Markdown: by family and algorithm, by regime, dtypes and layout, and what was not confirmed."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.coverage.regimes import Draw
from benchmarks.coverage.rows import RECOVERED, STEPS, Dataset, Outcome, Row

_LISTED = 60
_PROBLEMS, _DECLINES, _MEDIAN = 5000, 1 / 1000, 0.050  # issue D
_HEAD = ("problems", "recovered", "confirmed", "ambiguous", "refuted", "declined", "error", "walk ms", "walk ms, 95 %", "all ms",
         "all ms, 95 %")


def report(dataset: Dataset, source: str, command: str = "") -> str:
    """source: how the dataset is named. command: the one that this report came from."""
    facts, target = dataset.facts, dataset.facts["target"]
    counted = [row for row in dataset.rows if row["outcome"] != Outcome.MISALIGNED]
    out = [
        f"# Coverage of random problems on {target['device_name']}", "",
        f"Target: {target['sm']}, {target['sm_count']} SMs, driver {target['driver']}, {target['library']} {target['version']} "
        f"(sha256 {target['sha256'][:16]}), {facts['date'][:10]}. {facts['announcement']}".rstrip(),
        f"Run: seed {facts['seed']}, draw `{facts['draw']}`, {facts['problems']:,} problems asked, {len(dataset.rows):,} done, "
        f"{dataset.not_begun:,} not begun when the {facts['seconds']:g} s were over; {facts['processes']} processes side by side, "
        f"{facts['limit']:g} s for one problem.", "",
        f"Written by `{command or 'python -m benchmarks.coverage report'}` from {source}.", "",
        "One problem is one walk, from the question to the proof: the library is asked, the order is read by experiments, every other "
        "candidate is ruled out on bytes, and the one that is left is simulated and compared with the library's bytes on fresh draws of "
        "six kinds. confirmed: no byte differs. ambiguous: candidates stand that nothing told apart. refuted: recovered, and bytes differ. "
        "declined: a reason in place of an order. error: a fault, a hang, the memory, or a bug; it costs its process. recovered: the first "
        "three. walk ms: median time from the first experiment to the tree, its kernels loaded; all ms: every step, the simulation "
        f"on the host included, while {facts['processes']} processes share one device and its host. Both of recovered problems.", "",
        *_goals(dataset, counted), "",
        "## By family and algorithm", "", *_table(counted, ("family", "algorithm"), lambda r: (_family(r), _algorithm(r))), ""]
    for title, name in (("regime", "regime"), ("input dtype", "input_dtype"), ("output dtype", "output_dtype"), ("layout", "layout")):
        out += [f"## By {title}", "", *_table(counted, (title,), _column(name)), ""]
    out += ["## By placement", "", *_table(counted, ("operands",), lambda r: (_placement(r),)), ""]
    out += ["## Where the time goes", "", *_times(counted), ""]
    out += ["## Declines and errors by reason", "", *_reasons(counted), ""]
    for outcome in (Outcome.REFUTED, Outcome.AMBIGUOUS, Outcome.DECLINED, Outcome.ERROR):
        out += _listed(outcome, [r for r in counted if r["outcome"] == outcome], facts)
    out += _misaligned([r for r in dataset.rows if r["outcome"] == Outcome.MISALIGNED])
    return "\n".join(out).rstrip() + "\n"


def _goals(dataset: Dataset, counted: Sequence[Row]) -> list[str]:
    outcomes = Counter(row["outcome"] for row in counted)
    refuted, ambiguous = outcomes[Outcome.REFUTED], outcomes[Outcome.AMBIGUOUS]
    declined, errors = outcomes[Outcome.DECLINED], outcomes[Outcome.ERROR]
    done = len(counted)
    recovered = [row for row in counted if row["outcome"] in RECOVERED]
    walk, total = (statistics.median([row[name] for row in recovered]) if recovered else None for name in ("seconds_walk", "seconds"))
    share = f"{(declined + errors) / done:.2%}" if done else "-"
    goals = [
        (f"at least {_PROBLEMS:,} problems", f"{done:,}", done >= _PROBLEMS),
        ("recovered but not confirmed: none", f"{refuted + ambiguous} ({refuted} refuted, {ambiguous} ambiguous)",
         bool(done) and not refuted + ambiguous),
        ("declines and errors: below 1 in 1,000", f"{declined + errors} of {done:,} ({share}; {declined} declined, {errors} errors)",
         bool(done) and declined + errors < _DECLINES * done),
        (f"median of the walk below {_MEDIAN * 1e3:.0f} ms", "-" if walk is None else f"{walk * 1e3:.1f} ms",
         walk is not None and walk < _MEDIAN),
        (f"median of all steps below {_MEDIAN * 1e3:.0f} ms", "-" if total is None else f"{total * 1e3:.1f} ms",
         total is not None and total < _MEDIAN)]
    return ["| goal | measured | met |", "| --- | --- | --- |",
            *(f"| {goal} | {measured} | {'yes' if met else 'no'} |" for goal, measured, met in goals)]


def _algorithm(row: Row) -> str:
    return "none" if row["algo_id"] is None else str(row["algo_id"])


def _family(row: Row) -> str:
    """The family with its counts left open: a split into 3 parts and one into 24 are one family."""
    return re.sub(r"\bin \d+ ", "in s ", row["family"]) or "(none)"


def _column(name: str) -> Callable[[Row], tuple[str, ...]]:
    return lambda row: (str(row[name]),)


def _placement(row: Row) -> str:
    padded = any(row[f"ld{x}"] != columns for x, columns in zip("abd", _columns(row), strict=True))
    moved = any(row[f"{x}_offset"] for x in "abd")
    words = " and ".join(w for w, there in (("offset", moved), ("padded", padded)) if there) or "packed at 256 bytes"
    return words + (", default alignment told" if row["told_alignment"] else "")


def _columns(row: Row) -> tuple[int, int, int]:
    first, second = row["layout"][0], row["layout"][1]
    return (row["m"] if second == "t" else row["k"], row["k"] if first == "t" else row["n"], row["n"])


def _table(rows: Sequence[Row], names: tuple[str, ...], key: Callable[[Row], tuple[str, ...]]) -> list[str]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    out = ["| " + " | ".join((*names, *_HEAD)) + " |", "|" + " --- |" * (len(names) + len(_HEAD))]
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    for group, members in [*ordered, (("all", *("" for _ in names[1:])), list(rows))]:
        outcomes = Counter(row["outcome"] for row in members)
        recovered = [row for row in members if row["outcome"] in RECOVERED]
        out.append("| " + " | ".join((
            *group, f"{len(members):,}", f"{len(recovered):,}", *(f"{outcomes[o]:,}" for o in (
                Outcome.CONFIRMED, Outcome.AMBIGUOUS, Outcome.REFUTED, Outcome.DECLINED, Outcome.ERROR)),
            *_spread([row["seconds_walk"] for row in recovered]), *_spread([row["seconds"] for row in recovered]))) + " |")
    return out


def _spread(seconds: Sequence[float]) -> tuple[str, str]:
    """Median and 95th percentile (the smallest that 95 % do not pass), in milliseconds."""
    if not seconds:
        return "-", "-"
    ordered = sorted(seconds)
    return f"{statistics.median(ordered) * 1e3:.1f}", f"{ordered[-(-95 * len(ordered) // 100) - 1] * 1e3:.1f}"


def _times(rows: Sequence[Row]) -> list[str]:
    recovered = [row for row in rows if row["outcome"] in RECOVERED]
    out = ["| step | median ms | ms, 95 % | share of all time |", "| --- | --- | --- | --- |"]
    whole = sum(row["seconds"] for row in recovered) or 1.0
    for step in STEPS:
        seconds = [row[f"seconds_{step}"] for row in recovered if row[f"seconds_{step}"] is not None]
        middle, late = _spread(seconds)
        out.append(f"| {step} | {middle} | {late} | {sum(seconds) / whole:.0%} |")
    return out


def _reasons(rows: Sequence[Row]) -> list[str]:
    groups = Counter((r["outcome"], r["reason"], _algorithm(r), r["at_step"] or "-") for r in rows
                     if r["outcome"] in (Outcome.DECLINED, Outcome.ERROR))
    if not groups:
        return ["None."]
    return ["| outcome | reason | algorithm | last step | problems |", "| --- | --- | --- | --- | --- |",
            *(f"| {' | '.join(group)} | {count} |" for group, count in sorted(groups.items(), key=lambda item: (-item[1], item[0])))]


def _listed(outcome: Outcome, rows: Sequence[Row], facts: Any) -> list[str]:
    out = [f"## {str(outcome).capitalize()}", ""]
    if not rows:
        return [*out, "None.", ""]
    for row in rows[:_LISTED]:
        what = {Outcome.REFUTED: f"{row['outputs_differing']} outputs differ; {row['first_difference']}; {row['schedule_text']}",
                Outcome.AMBIGUOUS: f"also fits: {row['ambiguous_text'] or '-'}; first: {row['schedule_text']}"}.get(
                    outcome, f"{row['reason']}: {row['text']}")
        kernels = row["kernels"] or "no kernels"
        out += [f"- {row['index']}, {row['regime']}: algorithm {_algorithm(row)}, split {row['splitk_num']}, "
                f"{row['family'] or 'no family'}, {kernels[:160]}", f"  `{command_of(row, facts)}`",
                f"  {_ends(what)}"]
    if len(rows) > _LISTED:
        out += ["", f"and {len(rows) - _LISTED} more, in the dataset."]
    return [*out, ""]


def _ends(text: str) -> str:
    """In one line, and of a long text its start and its end, where a traceback says what happened."""
    line = " ".join(text.split())
    return line if len(line) <= 900 else f"{line[:400]} ... {line[-500:]}"


def _misaligned(rows: Sequence[Row]) -> list[str]:
    out = ["## Told a better alignment than is true", "",
           f"{len(rows)} problems had offsets under the default alignment of 256 bytes, and the call was refused or failed, as it may. "
           "They are counted nowhere above; those that ran are counted there.", ""]
    reasons = Counter((r["reason"], _algorithm(r), " ".join(r["text"].split())[:200]) for r in rows)
    for (reason, algorithm, text), count in reasons.most_common(_LISTED):
        out.append(f"- {count}: algorithm {algorithm}, {reason}: {text}")
    return out


def command_of(row: Row, facts: Any) -> str:
    """The command that walks the problem again, on the same draws where its offsets and paddings are none."""
    from benchmarks.coverage.regimes import stream_of

    library = f" --library {facts['library']}" if facts["library"] else ""
    if _placement(row) != "packed at 256 bytes":
        draw = "" if facts["draw"] == Draw.ALL else f" --draw {facts['draw']}"
        return f"python -m benchmarks.coverage one --seed {facts['seed']} --index {row['index']}{draw}{library}"
    seed = stream_of(facts["seed"], Draw(facts["draw"])).draw_seed(row["index"])
    fast = " --fast-accumulation" if row["fast_accumulation"] else ""
    return (f"probe walk --shape {row['m']}x{row['n']}x{row['k']} --dtype {row['input_dtype']} --out {row['output_dtype']} "
            f"--layout {row['layout']}{fast} --workspace {row['workspace_limit']} --reduction-schemes {row['reduction_mask']}"
            f"{library} --seed {seed}")
