"""The text about the lost tail that can be sent to a vendor, made from the result files of one folder and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.errors import UsageError
from probe.problem import DType
from probe.tail.rule import NVJET, Condition, Fit, block
from probe.tail.search import DTYPES, Role, TailFindings, TailRun, Verdict, parts_of
from probe.tail.table import ANY, Row, read_scan, summary
from probe.target import LibraryKind, Target
from probe.vendor import numbers

SCRIPT = "splitk_tail_repro.py"
_FORCED = "splitk-tail-forced"  # kinds of JSON that tools.tail_scan writes
_ANSWERS = "splitk-tail-answers"
_CONTROLS = {Role.NO_WORKSPACE: "workspace 0", Role.NO_SPLIT: "reduction mask 0", Role.DIVIDED: "K rounded down to what the parts divide",
             Role.OTHER_ALGORITHM: "another algorithm"}


@dataclass
class _Results:
    """What the folder holds: findings, scans and forced answers of devices, by version; simulated: names of files that are of no device."""

    findings: list[TailFindings] = field(default_factory=list)
    simulated: list[str] = field(default_factory=list)
    scans: list[tuple[str, list[Row], dict[str, Any]]] = field(default_factory=list)
    forced: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def render_report(folder: Path) -> str:
    """The whole text, Markdown. Raises UsageError where the folder holds no results or a file that cannot be read as what it says it is."""
    results = _read(folder)
    sections: list[Callable[[_Results], list[str]]] = [_what, _where, _smallest, _script, _condition, _mended, _workarounds, _unrun]
    return "\n".join(line for section in sections for line in section(results)).rstrip() + "\n"


def _read(folder: Path) -> _Results:
    out = _Results()
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UsageError(f"{path} is no JSON that can be read", "remove it, or run again what wrote it") from None
        kind = document.get("kind") if isinstance(document, dict) else None
        if kind == TailFindings.KIND:
            findings = TailFindings.from_document(document)
            if _of_a_device(findings.target, path, out):
                out.findings.append(findings)
        elif kind == _FORCED:
            if _of_a_device(Target.from_document(document["target"]), path, out):
                out.forced.append((path.name, document))
        elif kind != _ANSWERS:
            raise UsageError(f"{path} holds no result of this command: kind {kind!r}", "move it elsewhere")
    for path in sorted(folder.glob("*.parquet")):
        rows, about = read_scan(path)
        if _of_a_device(Target.from_document(about["target"]), path, out):
            out.scans.append((path.name, rows, about))
    if not (out.findings or out.simulated or out.scans or out.forced):
        raise UsageError(f"{folder} holds no results", "`probe bug splitk-tail -o` writes some")
    out.findings.sort(key=lambda f: numbers(f.target.version))
    out.scans.sort(key=lambda s: numbers(s[2]["target"]["version"]))
    return out


def _of_a_device(target: Target, path: Path, out: _Results) -> bool:
    """Whether this is a measurement; the names of others are kept, to be said."""
    if target.library is LibraryKind.SIMULATED:
        out.simulated.append(path.name)
    return target.library is not LibraryKind.SIMULATED


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def _shape(run: TailRun) -> str:
    p = run.problem
    return f"{p.m}x{p.n}x{p.k} {p.a_dtype} -> {p.d_dtype}, {p.layout}"


def _showing(results: _Results) -> list[TailFindings]:
    return [f for f in results.findings if f.verdict is Verdict.SHOWS]


def _what(results: _Results) -> list[str]:
    lines = ["# cuBLASLt leaves the last values of k out of a split-K matrix multiplication", ""]
    short = [run for f in _showing(results) for run in f.short]
    if not short:
        return [*lines, "No result in this folder shows the fault on a GPU.", ""]
    run = min(short, key=lambda r: (r.problem.k, r.problem.m * r.problem.n))
    return [*lines,
            f"With every element of A and B equal to 1, each element of C must be K. At {_shape(run)} cublasLtMatmul returns success, "
            f"and {run.problem.k - run.lost} in place of {run.problem.k}.{_which(results)}", ""]


def _which(results: _Results) -> str:
    """Which values are lost, as far as it was run."""
    tails = [r for f in _showing(results) for r in f.tails]
    if not tails:
        return ""
    zero = sum(r.reading.most == 0 for r in tails)
    return (f" It is the end of K that is lost: with ones only in as many last values of k as are missing, C is 0 in {zero} of "
            f"{len(tails)} short sums.")


def _where(results: _Results) -> list[str]:
    lines = ["## Where", ""]
    if not results.findings:
        return [*lines, "Not run on a GPU.", ""]
    rows = []
    for f in results.findings:
        named = [r for r in f.runs if r.role is Role.NAMED]
        whole = sum(not r.lost for r in f.controls)
        words = {Verdict.SHOWS: "yes", Verdict.ABSENT: "no sum is short", Verdict.UNCLEAR: "unclear: a control is short as well"}[f.verdict]
        smallest = f"{f.short[0].problem.m}x{f.short[0].problem.n}x{f.short[0].problem.k}" if f.short else "-"
        rows.append([f.target.version, f"{f.target.device_name}, {f.target.sm}", f.target.driver, words, f"{len(f.short)} of {len(named)}",
                     smallest, f"{whole} of {len(f.controls)}", f"`{f.target.sha256[:16]}`"])
    head = ["cuBLASLt", "GPU", "driver", "fault", "short of the sums run", "smallest", "controls whole", "SHA-256 of the file"]
    most = max(f.most_k for f in results.findings)
    note = (f"K was asked in steps of 16 bytes up to {most:,}; for each dtype and (M, N) the first shapes that the "
            "condition below names were run until one was short. Workspace 32 MiB, alignments of the pointers.")
    return [*lines, *_table(head, rows), note, ""]


def _smallest(results: _Results) -> list[str]:
    lines = ["## Smallest cases", ""]
    showing = _showing(results)
    if not showing:
        return [*lines, "None was found.", ""]
    for f in showing:
        rows = [[_shape(r), r.problem.k - r.lost, r.lost, r.answer.algo_id, r.answer.name("tile", f.target.version), r.answer.splitk_num,
                 r.answer.name("reduction_scheme", f.target.version), parts_of(r)] for r in f.short]
        head = ["shape, dtypes, layout", "values summed", "lost", "ALGO_ID", "tile", "SPLITK_NUM", "reduction", "parts"]
        lines += [f"cuBLASLt {f.target.version} on {f.target.device_name}:", "", *_table(head, rows)]
    return lines


def _script(results: _Results) -> list[str]:
    lines = ["## How to reproduce", "", f"    python {SCRIPT} /path/to/libcublasLt.so.13", "",
             "Python and ctypes only; exit code 0 where the fault shows and every control is whole, 1 where no shape loses anything, "
             "2 where it cannot run, 3 where a control is short as well. What it said:", ""]
    ran = [(f, json.loads(f.script)) for f in results.findings if f.script]
    if not ran:
        return [*lines, "The script was not run.", ""]
    shapes = list(dict.fromkeys((r["m"], r["n"], r["k"]) for _, said in ran for r in said["runs"]))
    rows = []
    for m, n, k in shapes:
        cells = []
        for _, said in ran:
            mine = [r for r in said["runs"] if (r["m"], r["n"], r["k"]) == (m, n, k)]
            sums = [str(r["sum"]) for r in mine]
            split = [str(r["splitk_num"]) for r in mine if "splitk_num" in r]
            cells.append(f"{' / '.join(sums)} ({', '.join(split) or '?'})" if mine else "-")
        rows.append([f"{m}x{n}x{k}", *cells])
    rows.append(["controls whole", *(f"{sum(not c['lost'] for c in said['controls'])} of {len(said['controls'])}" for _, said in ran)])
    rows.append(["exit code", *(str(said["exit_code"]) for _, said in ran)])
    return [*lines, "Sum with algo = NULL / with the explicit answer (its SPLITK_NUM):", "",
            *_table(["fp16, fp32 output, nn", *(f.target.version for f, _ in ran)], rows)]


def _condition(results: _Results) -> list[str]:
    wide, narrow = block(DType.FP16), block(DType.E4M3)
    lines = ["## The condition", "",
             f"ALGO_ID is {NVJET} and SPLITK_NUM is s > 1. The launched part is P = round_up(floor(K / s), b) values of k, with b = {wide} "
             f"for 16-bit inputs and {narrow} for e4m3, and the K - s * P values that s parts do not cover are lost. With ceil(K / s) in "
             "place of floor(K / s) they would cover K.", "",
             "The paper's (Taming Bitwise Behavior in GPU Kernels with Tensor Core, Appendix D): ALGO_ID 66, t = K mod b is not 0, "
             "floor(K / b) mod s = 0 and s > t; then t values are lost. For s <= b both name the same sums.", ""]
    named = [r for f in results.findings for r in f.runs if r.role is Role.NAMED]
    if named:
        told = [f"{sum(r.lost == r.predicted for r in f.runs if r.role is Role.NAMED)} of {sum(r.role is Role.NAMED for r in f.runs)} "
                f"with {f.target.version}" for f in results.findings]
        lines += [f"Sums of the search that lost just what our condition names: {', '.join(told)}.", ""]
    if not results.scans:
        return [*lines, "The scan with random shapes was not run.", ""]
    head = ["cuBLASLt", "GPU", "sums", f"of ALGO_ID {NVJET}, split", "short", *(f"{c}: {w}" for c in ("ours", "paper") for w in (
        "hits", "misses", "false alarms", "other amount"))]
    rows = []
    for _, table, about in results.scans:
        target = Target.from_document(about["target"])
        everything = summary(table)
        split = sum(r["sums"] for r in table if r["row"] == "count" and r["algo_id"] == NVJET and r["splitk_num"] != ANY)
        cells = [everything[f"{c}_{one}"] for c in Condition for one in (Fit.HIT, Fit.MISS, Fit.FALSE_ALARM, Fit.AMOUNT)]
        rows.append([target.version, target.device_name, f"{everything['sums']:,}", f"{split:,}", f"{everything['lost']:,}",
                     *(f"{cell:,}" for cell in cells)])
    lines += [*_table(head, rows), "Shapes drawn at random (M and N from 1 to 64), not chosen by a prediction:", ""]
    for name, table, about in results.scans:
        lines += _scan_words(name, table, about)
    return [*lines, ""]


def _scan_words(name: str, table: list[Row], about: dict[str, Any]) -> list[str]:
    short = [r for r in table if r["row"] == "sum" and r["lost"]]
    beyond = [r for r in short if r["splitk_num"] > (128 if r["input_dtype"] == "e4m3" else 64)]
    counted = [r for r in table if r["row"] == "count"]
    most = max((r["splitk_num"] for r in counted), default=0)
    totals = {dtype: summary(table, input_dtype=dtype) for dtype in sorted({r["input_dtype"] for r in counted})}
    by_dtype = ", ".join(f"{dtype} {total['sums']:,} ({total['lost']:,} short)" for dtype, total in totals.items())
    others = sum(r["lost"] for r in counted if r["splitk_num"] == ANY)
    return [f"- `{name}`: {by_dtype}; K to {about['most_k']:,}, split counts to {most}, {len(beyond):,} short sums with more parts than b; "
            f"{others:,} short sums of other algorithms or without a split; {about['declined']:,} draws without an algorithm, "
            f"{about['failed']:,} answers that did not run; seed {about['seed']}, {about['processes']} processes"
            + (f" ({about['processes_lost']} ended early)" if about["processes_lost"] else "") + "."]


def _mended(results: _Results) -> list[str]:
    lines = ["## Which release has it no more", ""]
    have = [f for f in results.findings if f.verdict is Verdict.SHOWS]
    free = [f for f in results.findings if f.verdict is Verdict.ABSENT]
    if have and free:
        lines += [f"Releases that have the fault: {_versions(have)}. "
                  f"Releases in which the same search found no short sum: {_versions(free)}.", ""]
    else:
        lines += [f"Only releases that {'have' if have else 'do not have'} the fault were run." if results.findings else "Not run.", ""]
    if not results.forced:
        return [*lines, "Forcing the answers of one release onto another was not run.", ""]
    rows = []
    for name, document in results.forced:
        cases = document["cases"]
        ran = [c for c in cases if "lost" in c.get("forced", {})]
        rows.append([document["recorded_on"]["version"], document["target"]["version"], len(cases), len(ran),
                     sum(bool(c["forced"]["lost"]) for c in ran), sum(bool(c.get("own_is_the_same")) for c in cases), f"`{name}`"])
    head = ["answers of", "run on", "answers", "that ran", "short", "same answer unforced", "file"]
    return [*lines, "Sums that are short on one release, with the very same answer (nine attributes) on another:", "", *_table(head, rows)]


def _versions(findings: Sequence[TailFindings]) -> str:
    return ", ".join(dict.fromkeys(f.target.version for f in findings))


def _workarounds(results: _Results) -> list[str]:
    lines = ["## Work-arounds", ""]
    showing = _showing(results)
    texts = {Role.NO_WORKSPACE: "Workspace 0 (CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, and that of the call): K is not split this way.",
             Role.NO_SPLIT: "Reduction mask 0 (CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK), then the explicit answer: K is not split.",
             Role.DIVIDED: "Padding K with zeros to a multiple of b * s (by the condition, of b where s <= b). Run was K rounded down.",
             Role.OTHER_ALGORITHM: "Another answer of cublasLtMatmulAlgoGetHeuristic: another ALGO_ID, or SPLITK_NUM 1."}
    for role, text in texts.items():
        runs = [r for f in showing for r in f.controls if r.role is role]
        told = f"{sum(not r.lost for r in runs)} of {len(runs)} sums whole" if runs else "not run"
        lines.append(f"- {text} Control `{_CONTROLS[role]}`: {told}.")
    free = [f for f in results.findings if f.verdict is Verdict.ABSENT]
    lines.append(f"- Upgrading: no short sum with {_versions(free)}." if free else "- Upgrading: no release without the fault was run.")
    return [*lines, ""]


def _unrun(results: _Results) -> list[str]:
    lines = ["## What was not run", ""]
    if not results.findings:
        lines.append("- The search on a GPU.")
    if results.simulated:
        named = ", ".join(f"`{name}`" for name in results.simulated)
        lines.append(f"- The folder also holds results of probe's simulated library: not measurements, left out above ({named}).")
    for f in results.findings:
        none = [str(d) for d in DTYPES if not any(r.role is Role.NAMED and r.problem.a_dtype is d for r in f.runs)]
        if none:
            words = f"the condition names no shape up to K = {f.most_k:,}, so none was run"
            lines.append(f"- {', '.join(none)} with {f.target.version}: {words}.")
    lines += [f"- cuBLASLt {f.target.version}: {text}." for f in results.findings for text in f.missing]
    scanned = {about["target"]["version"] for _, _, about in results.scans}
    unscanned = [f.target.version for f in results.findings if f.target.version not in scanned]
    if unscanned:
        lines.append(f"- The scan with random shapes on {', '.join(dict.fromkeys(unscanned))}.")
    lines += [f"- The script on {f.target.version}." for f in results.findings if not f.script]
    lines.append("- Other GPUs than those named above, other epilogues and batches, and callers above cuBLASLt such as PyTorch: nothing in "
                 "this folder measures them.")
    return [*lines, ""]
