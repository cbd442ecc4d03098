"""The text about the lost tail that can be sent to a vendor, made from the result files of one folder and from nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from probe.tail.report_condition import condition, spans
from probe.tail.report_reach import reach, torch
from probe.tail.results import Release, Results, State, read_results
from probe.tail.search import DTYPES, Role, TailRun, Verdict, parts_of
from probe.tail.table import Row, summary
from probe.tail.text import listed, table
from probe.vendor import numbers, short_name

SCRIPT = "splitk_tail_repro.py"
_CONTROLS = {Role.NO_WORKSPACE: "workspace 0", Role.NO_SPLIT: "reduction mask 0", Role.DIVIDED: "K rounded down to what the parts divide",
             Role.OTHER_ALGORITHM: "another algorithm"}
_SHORT_SUMS = 6  # of a scan, in the table of the smallest


def render_report(folder: Path) -> str:
    """The whole text, Markdown. Raises UsageError where the folder holds no results or a file that cannot be read as what it says it is."""
    results = read_results(folder)
    sections: list[Callable[[Results], list[str]]] = [_what, _where, _smallest, _script, condition, spans, _mended, reach, torch,
                                                      _workarounds, _unrun]
    return "\n".join(line for section in sections for line in section(results)).rstrip() + "\n"


def _shape(run: TailRun) -> str:
    p = run.problem
    return f"{p.m}x{p.n}x{p.k} {p.a_dtype} -> {p.d_dtype}, {p.layout}"


def _scanned_shape(row: Row) -> str:
    return f"{row['m']}x{row['n']}x{row['k']} {row['input_dtype']} -> {row['output_dtype']}, {row['layout']}"


def _what(results: Results) -> list[str]:
    lines = ["# cuBLASLt leaves the last values of k out of a split-K matrix multiplication", ""]
    ones = "With every element of A and B equal to 1, each element of C must be K."
    short = [run for f in results.showing for run in f.short]
    if short:
        run = min(short, key=lambda r: (r.problem.k, r.problem.m * r.problem.n))
        return [*lines, f"{ones} At {_shape(run)} cublasLtMatmul returns success, "
                f"and {run.problem.k - run.lost} in place of {run.problem.k}.{_which(results)}", ""]
    scanned = [(r, one) for one in results.releases for r in one.short_sums if r["units"] == r["k"]]
    if scanned:
        row, one = min(scanned, key=lambda pair: (pair[0]["k"], pair[0]["m"] * pair[0]["n"]))
        return [*lines, f"{ones} At {_scanned_shape(row)} cublasLtMatmul returns success, and {row['k'] - row['lost']} in place of "
                f"{row['k']} (cuBLASLt {one.version} on {one.target.device_name}, a sum of the scan of random shapes; the search for "
                "smaller ones was not run).", ""]
    if results.in_state(State.SHORT):
        return [*lines, f"Some sums are short with {listed(o.version for o in results.in_state(State.SHORT))}: see below.", ""]
    return [*lines, "No result in this folder shows the fault on a GPU.", ""]


def _which(results: Results) -> str:
    """Which values are lost, as far as it was run."""
    tails = [r for f in results.showing for r in f.tails]
    if not tails:
        return ""
    zero = sum(r.reading.most == 0 for r in tails)
    return (f" It is the end of K that is lost: with ones only in as many last values of k as are missing, C is 0 in {zero} of "
            f"{len(tails)} short sums.")


def _where(results: Results) -> list[str]:
    lines = ["## Where", ""]
    if not results.releases:
        return [*lines, "Not run on a GPU.", ""]
    if results.findings:
        rows = []
        for f in results.findings:
            named = [r for r in f.runs if r.role is Role.NAMED]
            whole = sum(not r.lost for r in f.controls)
            words = {Verdict.SHOWS: "yes", Verdict.ABSENT: "no sum is short",
                     Verdict.UNCLEAR: "unclear: a control is short as well"}[f.verdict]
            smallest = f"{f.short[0].problem.m}x{f.short[0].problem.n}x{f.short[0].problem.k}" if f.short else "-"
            rows.append([f.target.version, f"{f.target.device_name}, {f.target.sm}", f.target.driver, words,
                         f"{len(f.short)} of {len(named)}", smallest, f"{whole} of {len(f.controls)}", f"`{f.target.sha256[:16]}`"])
        head = ["cuBLASLt", "GPU", "driver", "fault", "short of the sums run", "smallest", "controls whole", "SHA-256 of the file"]
        most = max(f.most_k for f in results.findings)
        lines += [*table(head, rows), f"K was asked in steps of 16 bytes up to {most:,}; for each dtype and (M, N) the first shapes that "
                  "the condition below names were run until one was short. Workspace 32 MiB, alignments of the pointers.", ""]
    scanned = [one for one in results.releases if one.scans and not one.findings]
    if scanned:
        rows = [[one.version, f"{one.target.device_name}, {one.target.sm}", one.target.driver, _state_words(one),
                 f"{summary(one.rows)['lost']:,} of {summary(one.rows)['sums']:,}", _smallest_of(one), f"`{one.target.sha256[:16]}`"]
                for one in scanned]
        lines += ["Seen in the scan of random shapes alone, the search was not run:", "",
                  *table(["cuBLASLt", "GPU", "driver", "fault", "short of the sums run", "smallest K that it met",
                          "SHA-256 of the file"], rows)]
    return lines if results.findings or scanned else [*lines, "Neither the search nor the scan was run on a GPU.", ""]


def _state_words(one: Release) -> str:
    return {State.SHORT: "yes", State.WHOLE: "no sum is short",
            State.UNTESTED: "not tested: the condition names no sum that was run"}[one.state]


def _smallest_of(one: Release) -> str:
    short = one.short_sums
    return f"{short[0]['m']}x{short[0]['n']}x{short[0]['k']} {short[0]['input_dtype']}" if short else "-"


def _smallest(results: Results) -> list[str]:
    lines = ["## Smallest cases", ""]
    head = ["shape, dtypes, layout", "values summed", "lost", "ALGO_ID", "tile", "SPLITK_NUM", "reduction"]
    for f in results.showing:
        rows: list[list[object]] = [
            [_shape(r), str(r.problem.k - r.lost), str(r.lost), r.answer.algo_id, r.answer.name("tile", f.target.version),
             r.answer.splitk_num, r.answer.name("reduction_scheme", f.target.version), parts_of(r)] for r in f.short]
        lines += [f"cuBLASLt {f.target.version} on {f.target.device_name}:", "", *table([*head, "parts"], rows)]
    searched = {id(f) for f in results.showing}
    for one in results.releases:
        if one.short_sums and not any(id(f) in searched for f in one.findings):
            rows = [[_scanned_shape(r), str(r["k"] - r["lost"]), str(r["lost"]), r["algo_id"],
                     short_name("cublasLtMatmulTile_t", r["tile"], one.version), r["splitk_num"],
                     short_name("cublasLtReductionScheme_t", r["reduction_scheme"], one.version)]
                    for r in one.short_sums[:_SHORT_SUMS]]
            lines += [f"cuBLASLt {one.version} on {one.target.device_name}, the smallest K that random shapes met:", "", *table(head, rows)]
    return lines if len(lines) > 2 else [*lines, "None was found.", ""]


def _script(results: Results) -> list[str]:
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
            *table(["fp16, fp32 output, nn", *(f.target.version for f, _ in ran)], rows)]


def _mended(results: Results) -> list[str]:
    lines = ["## Which release has it no more", ""]
    have, free = results.in_state(State.SHORT), results.in_state(State.WHOLE)
    tested = [*have, *free]
    if not tested:
        lines += ["Not run.", ""]
    else:
        tested.sort(key=lambda one: numbers(one.version))
        rows: list[list[object]] = []
        for one in tested:
            total = summary(one.rows)
            scanned = f"{total['lost']:,} of {total['sums']:,}" if one.scans else "not run"
            words = {Verdict.SHOWS: "short", Verdict.ABSENT: "whole", Verdict.UNCLEAR: "unclear"}
            searched = listed(words[f.verdict] for f in one.findings) if one.findings else "not run"
            rows.append([one.version, one.target.device_name, "yes" if one.state is State.SHORT else "no", searched, scanned, one.named])
        lines += table(["cuBLASLt", "GPU", "fault", "search", "random shapes: short", "sums run that the condition names"], rows)
        lines += _between(tested)
    untested = results.in_state(State.UNTESTED)
    if untested:
        lines += [f"Not tested, since no sum that the condition names was run: {listed(one.version for one in untested)}.", ""]
    if not results.forced:
        return [*lines, "Forcing the answers of one release onto another was not run.", ""]
    forced: list[list[object]] = []
    for name, document in results.forced:
        cases = document["cases"]
        ran = [c for c in cases if "lost" in c.get("forced", {})]
        forced.append([document["recorded_on"]["version"], document["target"]["version"], len(cases), len(ran),
                     sum(bool(c["forced"]["lost"]) for c in ran), sum(bool(c.get("own_is_the_same")) for c in cases), f"`{name}`"])
    head = ["answers of", "run on", "answers", "that ran", "short", "same answer unforced", "file"]
    return [*lines, "Sums that are short on one release, with the very same answer (nine attributes) on another:", "", *table(head, forced)]


def _between(tested: list[Release]) -> list[str]:
    """By major release: the last that has the fault and the first after it that has not."""
    lines = []
    for major in dict.fromkeys(numbers(one.version)[0] for one in tested):
        branch = [one for one in tested if numbers(one.version)[0] == major]
        have = [one for one in branch if one.state is State.SHORT]
        free = [one for one in branch if one.state is State.WHOLE]
        if not have or not free:
            lines.append(f"- {major}: only releases that {'have' if have else 'do not have'} the fault were run "
                         f"({listed(one.version for one in branch)}).")
            continue
        last = have[-1].version
        after = [one.version for one in free if numbers(one.version) > numbers(last)]
        if len(after) == len(free):
            lines.append(f"- {major}: the last release with the fault that was run is {last}, the first without it {after[0]}.")
        else:
            lines.append(f"- {major}: no single release mends it: {listed(one.version for one in have)} have it, "
                         f"{listed(one.version for one in free)} have it not.")
    return [*lines, ""]


def _workarounds(results: Results) -> list[str]:
    lines = ["## Work-arounds", ""]
    texts = {Role.NO_WORKSPACE: "Workspace 0 (CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, and that of the call): K is not split this way.",
             Role.NO_SPLIT: "Reduction mask 0 (CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK), then the explicit answer: K is not split.",
             Role.DIVIDED: "Padding K with zeros to a multiple of b * s (by the condition, of b where s <= b). Run was K rounded down.",
             Role.OTHER_ALGORITHM: "Another answer of cublasLtMatmulAlgoGetHeuristic: another ALGO_ID, or SPLITK_NUM 1."}
    for role, text in texts.items():
        runs = [r for f in results.showing for r in f.controls if r.role is role]
        told = f"{sum(not r.lost for r in runs)} of {len(runs)} sums whole" if runs else "not run"
        if runs and role is not Role.DIVIDED:
            told += f", by ALGO_ID {listed(str(a) for a in sorted({r.answer.algo_id for r in runs}))}"
        lines.append(f"- {text} Control `{_CONTROLS[role]}`: {told}.")
    free = results.in_state(State.WHOLE)
    lines.append(f"- Upgrading: no short sum with {listed(one.version for one in free)}." if free
                 else "- Upgrading: no release without the fault was run.")
    return [*lines, ""]


def _missing(results: Results) -> list[str]:
    """Controls that were not run, one line for each reason: its control, the sums by number, one of them by name."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for f in results.findings:
        for text in f.missing:
            head, _, why = text.partition(": ")
            role, _, problem = head.partition(" of ")
            said = why.replace(problem, "it") if problem else why
            grouped.setdefault((f.target.version, role, re.sub(r"\b\d+\b", "n", said)), []).append(text)
    return [f"- cuBLASLt {version}: {texts[0]}." if len(texts) == 1 else f"- cuBLASLt {version}: {role} of {len(texts)} sums, "
            f"as {texts[0].partition(' of ')[2]}." for (version, role, _), texts in grouped.items()]


def _unrun(results: Results) -> list[str]:
    lines = ["## What was not run", ""]
    if not results.findings:
        lines.append("- The search on a GPU, its controls and the script.")
    elif unsearched := [one.version for one in results.releases if not one.findings]:
        lines.append(f"- The search and the script on {listed(unsearched)}.")
    if results.simulated:
        named = ", ".join(f"`{name}`" for name in results.simulated)
        lines.append(f"- The folder also holds results of probe's simulated library: not measurements, left out above ({named}).")
    for f in results.findings:
        none = [str(d) for d in DTYPES if not any(r.role is Role.NAMED and r.problem.a_dtype is d for r in f.runs)]
        if none:
            words = f"the condition names no shape up to K = {f.most_k:,}, so none was run"
            lines.append(f"- {', '.join(none)} with {f.target.version}: {words}.")
    lines += _missing(results)
    unscanned = [one.version for one in results.releases if not one.scans]
    if unscanned:
        lines.append(f"- The scan with random shapes on {listed(unscanned)}.")
    lines += [f"- The script on {f.target.version}." for f in results.findings if not f.script]
    unreached = [one.version for one in results.in_state(State.SHORT) if not one.reaches]
    if unreached:
        lines.append(f"- Other layouts, epilogues, workspaces and masks, and layers of models, on {listed(unreached)}.")
    if not results.torch:
        lines.append("- PyTorch, and other callers above cuBLASLt.")
    lines.append("- Other GPUs than those named above, batches, and epilogues with an auxiliary buffer: nothing in this folder "
                 "measures them.")
    return [*lines, ""]
