"""`probe bug splitk-tail`: find and show the lost tail on one GPU and library, and write a script that shows it without probe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from probe.errors import EnvironmentProblem, UsageError
from probe.newfile import new_file
from probe.oracle import SIMULATED_LIBRARIES, DeviceOracle, Opened, open_oracle
from probe.records import now
from probe.tail.report import SCRIPT, render_report
from probe.tail.search import MOST_K, Progress, TailFindings, search
from probe.target import LibraryKind, Target
from probe.values import check_int

REPORT = "report.md"
_TEMPLATE = "splitk_tail_repro.py.txt"
_SHAPES = re.compile(r"^SHAPES = \[.*?\]$", re.MULTILINE | re.DOTALL)
_SCRIPT_SECONDS = 180.0
Shape = tuple[int, int, int]


def bug_splitk_tail(folder: Path | str, *, library: str | None = None, gpu: int = 0, most_k: int = MOST_K,
                    progress: Progress = lambda step: None, notice: Progress = lambda text: None) -> TailFindings:
    """Find the smallest shapes that lose their tail, show them by running, and write the standalone script and the findings to `folder`.

    folder: made where it is not there. library: as `probe walk` takes it; None is the GPU with the installed cuBLASLt or, said through
    `notice`, the simulated library. most_k: how far K is asked. progress: called with the name of each step.
    The findings go to VERSION-SM.json, and where there is a GPU the script runs too, in a process of its own, and its words go into them.
    Raises UsageError where the folder holds a changed script or findings of this target, EnvironmentProblem, LibraryError.
    """
    place = Path(folder)
    check_int("gpu", gpu, 0, 1023)
    check_int("most_k", most_k, 64, 2**24, "64 to 16777216: so far fp32 counts exactly")
    if library in SIMULATED_LIBRARIES and gpu != 0:
        raise UsageError(f"the simulated library runs on no GPU, so there is no number {gpu}", "leave out gpu, or name another library")
    kept = _kept_shapes(place / SCRIPT)
    opened = open_oracle(library, gpu)
    for text in (opened.notice, opened.oracle.announcement):
        if text:
            notice(text)
    output = place / findings_name(opened.oracle.target)
    if output.exists():
        raise UsageError(f"{output} exists and is not overwritten", "another folder, or remove it first")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(f"folder {place} cannot be made: {error.strerror}", "another folder") from None
    findings = search(opened.oracle, most_k, now(), progress)
    # what the simulated library loses says nothing about a GPU, so the script's shapes come from devices only
    found = [] if findings.target.library is LibraryKind.SIMULATED else [
        (r.problem.m, r.problem.n, r.problem.k) for r in findings.short if r.problem.a_dtype == "fp16"]
    _write(place / SCRIPT, script_text([*kept, *found]), replace_own=True)
    progress("the script")
    findings = replace(findings, script=_run_script(place / SCRIPT, opened, gpu, notice))
    _write(output, json.dumps(findings.to_document(), indent=1, allow_nan=False) + "\n")
    return findings


def report_splitk_tail(folder: Path | str) -> str:
    """The text for the vendor, from the results in `folder` alone; also written there as report.md, in place of an older one.

    Raises UsageError where the folder holds no results, or files that are none.
    """
    place = Path(folder)
    if not place.is_dir():
        raise UsageError(f"there is no folder {place}", "the folder that `probe bug splitk-tail -o` wrote")
    text = render_report(place)
    _write(place / REPORT, text, replace_own=True)
    return text


def findings_name(target: Target) -> str:
    """"13.1.0-sm_90.json", or "simulated-0.1.0-sm_90.json"."""
    before = "simulated-" if target.library is LibraryKind.SIMULATED else ""
    return f"{before}{target.version}-{target.sm}.json"


# The script

def script_text(shapes: list[Shape]) -> str:
    """The standalone script with these shapes after its own; its own are those of the H200."""
    template = files("probe.tail").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    all_shapes = list(dict.fromkeys([*_shapes_of(template), *shapes]))
    lines, line = [], "SHAPES = ["
    for index, shape in enumerate(all_shapes):
        piece = f"{shape}" + (", " if index < len(all_shapes) - 1 else "]")
        if len(line) + len(piece) > 130:
            lines.append(line.rstrip())
            line = " " * 10
        line += piece
    lines.append(line)
    return _SHAPES.sub(lambda match: "\n".join(lines), template, count=1)


def _shapes_of(text: str) -> list[Shape]:
    match = _SHAPES.search(text)
    if match is None:
        return []
    found = re.findall(r"\((\d+), (\d+), (\d+)\)", match[0])
    return [(int(m), int(n), int(k)) for m, n, k in found]


def _kept_shapes(path: Path) -> list[Shape]:
    """The shapes of a script that is there already. Raises UsageError where anything else of it was changed."""
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    shapes = _shapes_of(text)
    if text != script_text(shapes):
        raise UsageError(f"{path} is not as probe wrote it and is not overwritten", "another folder, or remove or rename it")
    return shapes


def _run_script(script: Path, opened: Opened, gpu: int, notice: Progress) -> str:
    """What the script prints as JSON, in a process of its own with this library; "" where there is no GPU or it cannot run, said."""
    oracle = opened.oracle
    if not isinstance(oracle, DeviceOracle):
        return ""
    if gpu != 0:
        notice(f"the script runs on GPU 0 and not on {gpu}, so it was not run")
        return ""
    command = [sys.executable, str(script), str(oracle.library.path), "--json"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SCRIPT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        notice(f"the script did not end within {_SCRIPT_SECONDS:g} s")
        return ""
    if ended.returncode not in (0, 1, 3):
        notice(f"the script ended with {ended.returncode}: {' '.join(ended.stderr.split())[-200:]}")
        return ""
    return ended.stdout.strip()


def _write(path: Path, text: str, replace_own: bool = False) -> None:
    """A file that appears whole. replace_own: a file that is there is probe's own, and is replaced."""
    with new_file(path, replace=replace_own) as aside:
        aside.write_text(text, encoding="utf-8")
