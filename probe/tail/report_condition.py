"""Of the report: which sums are short, by both conditions against random shapes, and how long the parts are before and after the mend."""

from __future__ import annotations

from typing import Any

from probe.problem import DType
from probe.tail.results import Release, Results
from probe.tail.rule import NVJET, Condition, Fit, block, lost_ours, lost_paper
from probe.tail.search import Role
from probe.tail.spans import Span
from probe.tail.table import ANY, Row, summary
from probe.tail.text import listed, table

_MOST_SPANS = 12  # shapes in the table of spans
# Appendix D: what it says of them on its GPUs
_PAPER = {8648: "which loses 8 on its GB300 with 13.1.1", 11528: "the smallest that loses on its H100",
          57616: "its control, whole there"}


def condition(results: Results) -> list[str]:
    """What the conditions say, and how they fare."""
    wide, narrow = block(DType.FP16), block(DType.E4M3)
    lines = ["## The condition", "",
             f"ALGO_ID is {NVJET} and SPLITK_NUM is s > 1. The launched part is P = round_up(floor(K / s), b) values of k, with b = {wide} "
             f"for 16-bit inputs and {narrow} for e4m3, and the K - s * P values that s parts do not cover are lost. With ceil(K / s) in "
             "place of floor(K / s) they would cover K.", "",
             "The paper's (Taming Bitwise Behavior in GPU Kernels with Tensor Core, Appendix D): ALGO_ID 66, t = K mod b is not 0, "
             "floor(K / b) mod s = 0 and s > t; then t values are lost. For s <= b both name the same sums.", ""]
    if any(r.role is Role.NAMED for f in results.findings for r in f.runs):
        told = [f"{sum(r.lost == r.predicted for r in f.runs if r.role is Role.NAMED)} of {sum(r.role is Role.NAMED for r in f.runs)} "
                f"with {f.target.version}" for f in results.findings]
        lines += [f"Sums of the search that lost just what our condition names: {', '.join(told)}.", ""]
    if not any(one.scans for one in results.releases):
        return [*lines, "The scan with random shapes was not run.", ""]
    head = ["cuBLASLt", "GPU", "sums", f"of ALGO_ID {NVJET}, split", "short", *(f"{c}: {w}" for c in ("ours", "paper") for w in (
        "hits", "misses", "false alarms", "other amount"))]
    rows = []
    for one in results.releases:
        if one.scans:
            total = summary(one.rows)
            split = sum(r["sums"] for r in one.rows if r["row"] == "count" and r["algo_id"] == NVJET and r["splitk_num"] != ANY)
            cells = [total[f"{c}_{fit}"] for c in Condition for fit in (Fit.HIT, Fit.MISS, Fit.FALSE_ALARM, Fit.AMOUNT)]
            rows.append([one.version, one.target.device_name, total["sums"], split, total["lost"], *cells])
    several = any(len(one.scans) > 1 for one in results.releases)
    added = " Scans of one release, with different seeds, are added up." if several else ""
    lines += [*table(head, rows), "Shapes drawn at random (M and N from 1 to 64), not chosen by a prediction. In a release that loses "
              f"nothing, a false alarm is a sum that the condition names and that is whole.{added}", ""]
    lines += [_scan_words(name, some, about) for _, name, some, about in results.scans]
    lines += [f"- `{name}` is not counted: its seed is that of a larger scan of {one.version}, so that its draws are among those."
              for one in results.releases for name in one.repeated]
    return [*lines, ""]


def _scan_words(name: str, rows: list[Row], about: dict[str, Any]) -> str:
    short = [r for r in rows if r["row"] == "sum" and r["lost"]]
    beyond = [r for r in short if r["splitk_num"] > (128 if r["input_dtype"] == "e4m3" else 64)]
    counted = [r for r in rows if r["row"] == "count"]
    most = max((r["splitk_num"] for r in counted), default=0)
    totals = {dtype: summary(rows, input_dtype=dtype) for dtype in sorted({r["input_dtype"] for r in counted})}
    by_dtype = ", ".join(f"{dtype} {total['sums']:,} ({total['lost']:,} short)" for dtype, total in totals.items())
    others = sum(r["lost"] for r in counted if r["splitk_num"] == ANY)
    return (f"- `{name}`: {by_dtype}; K to {about['most_k']:,}, split counts to {most}, {len(beyond):,} short sums with more parts than b; "
            f"{others:,} short sums of other algorithms or without a split; {about['declined']:,} draws without an algorithm, "
            f"{about['failed']:,} answers that did not run; seed {about['seed']}, {about['processes']} processes"
            + (f" ({about['processes_lost']} ended early)" if about["processes_lost"] else "") + ".")


# The spans

def spans(results: Results) -> list[str]:
    """How long the parts were found to be, and which of the two rules that is."""
    have = [one for one in results.releases if one.spans]
    lines = ["## The span rule before and after", ""]
    if not have:
        return [*lines, "No walk of a split sum is in the folder.", ""]
    sources = listed(sorted({f"`{s.source}`" for one in have for s in one.spans}))
    lines += ["Before: P = round_up(floor(K / s), b), in s parts. After: P = b * ceil(ceil(K / b) / s), which is round_up(ceil(K / s), b); "
              "ceil(K / P) of the s parts hold values of k, which can be fewer than s. The two differ just where the first loses a tail. "
              f"Below are spans that walks along K recovered, of split sums of ALGO_ID {NVJET} (datasets {sources}).", ""]
    rows = []
    for one in have:
        differ = [s for s in one.spans if s.before != s.after]
        rows.append([one.version, one.target.device_name, len(one.spans), sum(s.span == s.before for s in one.spans),
                     sum(s.span == s.after for s in one.spans), len(differ), sum(s.span == s.before for s in differ),
                     sum(s.span == s.after for s in differ), sum(s.outcome == "confirmed" for s in one.spans)])
    lines += table(["cuBLASLt", "GPU", "sums", "as before", "as after", "where they differ", "as before there", "as after there",
                    "order confirmed on bytes"], rows)
    lines += [f"{_rule(one)}" for one in have]
    return [*lines, "", *_side_by_side(have), *_papers(have)]


def _rule(one: Release) -> str:
    """Which rule a release follows, as far as its spans tell."""
    differ = [s for s in one.spans if s.before != s.after]
    dtypes = listed(sorted({str(s.input_dtype) for s in differ}))
    for word, as_said in (("before", [s.span == s.before for s in differ]), ("after", [s.span == s.after for s in differ])):
        if differ and all(as_said):
            return f"- {one.version}: the rule {word}, in all {len(differ)} sums that tell ({dtypes})."
    return f"- {one.version}: " + ("neither rule in all of them." if differ else "no sum here tells which.")


def _side_by_side(have: list[Release]) -> list[str]:
    """Where the rules differ, the same sum in every release: of each shape the one that most releases have."""
    telling: dict[str, dict[str, Span]] = {}
    for one in have:
        for s in one.spans:
            if s.before != s.after:
                telling.setdefault(s.problem, {})[one.version] = s
    chosen: dict[str, str] = {}
    for problem in sorted(telling, key=lambda p: (-len(telling[p]), "fp32" not in p.split(".")[1], p)):
        chosen.setdefault(problem.split(".")[0], problem)
    picked = sorted(chosen.values(), key=lambda p: (-len(telling[p]), next(iter(telling[p].values())).k, p))[:_MOST_SPANS]
    if not picked:
        return []
    rows = [[f"`{p}`", next(iter(telling[p].values())).split, *(_cell(telling[p].get(one.version)) for one in have)] for p in picked]
    left = len(telling) - len(picked)
    note = [f"{left} more sums tell; the file of spans has them.", ""] if left else []
    return ["Parts that hold values x span, values summed, and the grid of the summing kernel:", "",
            *table(["sum", "parts asked", *(one.version for one in have)], rows), *note]


def _papers(have: list[Release]) -> list[str]:
    """What the shapes that the paper names do here, by split count."""
    lines = []
    for k, said in _PAPER.items():
        told: dict[tuple[int, int], list[str]] = {}
        for one in have:
            for s in one.spans:
                if s.k == k and s.input_dtype is DType.FP16 and s.problem.startswith("1x8x"):
                    told.setdefault((s.split, k - s.k_summed), []).append(one.version)
        if told:
            each = [f"{listed(versions)}: {split} parts, {lost} lost (our condition names {lost_ours(k, split, block(DType.FP16))}, the "
                    f"paper's {lost_paper(k, split, block(DType.FP16))})" for (split, lost), versions in told.items()]
            lines.append(f"- 1x8x{k}, {said}. {'; '.join(each)}.")
    if not lines:
        return []
    return ["The paper's own shapes, in fp16. Which of them are short follows from the split count that a GPU and release pick:", "",
            *lines, ""]


def _cell(s: Span | None) -> str:
    if s is None:
        return "not walked"
    left = s.k - s.k_summed
    return f"{s.parts} x {s.span}, {s.k_summed}" + (f", {left} LOST" if left else "") + f" (grid {'x'.join(map(str, s.grid))})"
