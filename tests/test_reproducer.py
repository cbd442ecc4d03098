"""probe bug splitk-tail, its script and its report: the simulated library, real processes, and for the script's own calls the stand-ins of
tail_stand_ins: a driver, and a cuBLASLt that can be asked without a GPU."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tail_stand_ins import build, needs_cc

import probe
from probe.errors import UsageError
from probe.reproducer import bug_splitk_tail, findings_name, report_splitk_tail, script_text
from probe.simulator.library import SimulatedLibrary
from probe.tail.report import SCRIPT
from probe.tail.search import Role, TailFindings, Verdict
from probe.tail.table import read_scan, write_scan
from probe.target import LibraryKind
from tools import tail_scan

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1]), "CUDA_VISIBLE_DEVICES": "-1"}
ENVIRONMENT.pop("PROBE_CUBLASLT", None)
MOST_K = 12_000  # up to here the simulated library has short sums of 16-bit inputs


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "probe", "bug", "splitk-tail", *arguments], cwd=folder, env=ENVIRONMENT,
                          capture_output=True, text=True, timeout=120, check=False)


# The script by itself

TEMPLATE = files("probe.tail").joinpath("splitk_tail_repro.py.txt").read_text()


def script(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = folder / SCRIPT
    path.write_text(TEMPLATE)
    return subprocess.run([sys.executable, str(path), *arguments], cwd=folder, env={**ENVIRONMENT, **environment},
                          capture_output=True, text=True, timeout=60, check=False)


def test_the_script_is_short_old_enough_and_needs_python_alone() -> None:
    assert len(TEMPLATE.splitlines()) < 150
    tree = ast.parse(TEMPLATE, feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= set(sys.stdlib_module_names) and not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))


def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path) -> None:
    ended = script(tmp_path)
    assert ended.returncode == 2 and ended.stdout == "" and len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("cannot run: ")


@pytest.mark.parametrize("words", ["8x8", "8x8x0", "8x8xK", "1x8x999999999"])
def test_a_shape_that_cannot_be_counted_is_refused(tmp_path: Path, words: str) -> None:
    ended = script(tmp_path, words)
    assert ended.returncode == 2 and "a shape is MxNxK" in ended.stderr


# The script's own calls, against stand-ins in C for the driver and the library

@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("standins"))


def with_stand_ins(stand_ins: Path, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return script(folder, str(stand_ins / "libcublasLt.so.13"), *arguments, LD_LIBRARY_PATH=str(stand_ins), **environment)


@needs_cc
def test_the_script_shows_the_fault_and_whole_controls(stand_ins: Path, tmp_path: Path) -> None:
    ended = with_stand_ins(stand_ins, tmp_path, "2x8x11528", "1x8x1288", "--json")
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["cublasLt"] == "13.1.0" and said["gpu"] == "stand-in" and said["driver_cuda"] == "13.0"
    assert [(r["run"], r["k"], r["sum"], r["lost"]) for r in said["runs"]] == [
        ("algo = NULL", 11528, 11520, 8), ("explicit answer", 11528, 11520, 8),
        ("algo = NULL", 1288, 1288, 0), ("explicit answer", 1288, 1288, 0)]
    assert said["runs"][1]["algo_id"] == 66 and said["runs"][1]["splitk_num"] == 9
    assert [(c["run"], c["k"], c["lost"]) for c in said["controls"]] == [
        ("control: no workspace", 11528, 0), ("control: another algorithm", 11528, 0), ("control: K that parts divide", 11520, 0)]
    lines = ended.stderr.splitlines()
    assert lines[0] == "cuBLASLt 13.1.0 on stand-in, driver for CUDA 13.0"
    assert "LOST 8" in lines[1] and lines[-1] == "2 of 4 runs lost values of k; 3 of 3 controls are whole"


@needs_cc
@pytest.mark.parametrize(("variable", "code", "words"), [
    ("WHOLE", 1, "0 of 2 runs lost values of k"), ("BROKEN", 3, "2 of 3 controls are whole"),
    ("FULL", 2, "cuMemAlloc_v2 returned status 2")])
def test_each_other_outcome_has_its_exit_code(stand_ins: Path, tmp_path: Path, variable: str, code: int, words: str) -> None:
    ended = with_stand_ins(stand_ins, tmp_path, "1x8x11528", **{variable: "1"})
    assert ended.returncode == code and words in ended.stdout + ended.stderr
    assert code != 2 or len(ended.stderr.splitlines()) == 1


@needs_cc
def test_a_library_that_is_none_is_said_in_one_line(stand_ins: Path, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    ended = script(tmp_path, str(tmp_path / "text.so"), LD_LIBRARY_PATH=str(stand_ins))
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1 and "text.so" in ended.stderr


def test_shapes_are_added_once_and_nothing_else_changes() -> None:
    assert script_text([]) == TEMPLATE
    added = script_text([(128, 128, 11528), (1, 8, 11528), (16, 24, 23048)])
    assert script_text([(16, 24, 23048)]) != added and script_text([(128, 128, 11528), (16, 24, 23048)]) == added
    without = re.compile(r"^SHAPES = \[.*?\]$", re.MULTILINE | re.DOTALL)
    assert without.sub("", added) == without.sub("", TEMPLATE) and added.count("(1, 8, 11528)") == 1
    assert max(map(len, added.splitlines())) <= 140 and len(added.splitlines()) < 150
    namespace: dict[str, Any] = {}
    exec(without.search(added)[0], namespace)  # type: ignore[index]
    assert namespace["SHAPES"][-2:] == [(128, 128, 11528), (16, 24, 23048)]


# The verb

@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("shown")
    return folder, command("--library", "sim", "-o", "tail", "--most-k", str(MOST_K), "--json", folder=folder)


def test_the_simulated_library_shows_the_fault_and_its_controls(shown: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, ended = shown
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document.pop("verdict") == "shows" and document.pop("exit_code") == 0
    findings = TailFindings.from_document(document)
    assert json.loads((folder / "tail" / findings_name(findings.target)).read_text()) == findings.to_document()
    library = SimulatedLibrary()
    for run in findings.runs:
        lost = run.problem.k - library.descriptor(run.problem, run.answer).k_summed
        assert run.lost == lost == run.predicted
        assert (lost > 0) == (run.role in (Role.NAMED, Role.TAIL_ALONE))
    assert {r.role for r in findings.controls} == {Role.NO_WORKSPACE, Role.NO_SPLIT, Role.DIVIDED}
    assert len(findings.controls) == 3 * len(findings.short) and len(findings.tails) == len(findings.short)
    assert all(r.reading.units == r.predicted and r.reading.most == 0 for r in findings.tails)
    assert len(findings.missing) == 1 and findings.script == ""  # one algorithm, no GPU


def test_what_it_names_smallest_is_the_smallest(shown: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Against the simulated kernels' own descriptors, every K of one shape."""
    document = {k: v for k, v in json.loads(shown[1].stdout).items() if k not in ("verdict", "exit_code")}
    run = TailFindings.from_document(document).short[0]
    library = SimulatedLibrary()
    for k in range(8, run.problem.k + 1, 8):
        problem = type(run.problem).gemm(run.problem.m, run.problem.n, k, run.problem.a_dtype, run.problem.d_dtype)
        answer = library.ask(problem, run.preference)
        assert (library.descriptor(problem, answer).k_summed < k) == (k == run.problem.k)  # type: ignore[arg-type]


def test_without_a_gpu_the_simulated_library_is_announced(tmp_path: Path) -> None:
    ended = command("-o", "tail", "--most-k", "64", folder=tmp_path)
    assert "using the simulated library instead" in ended.stderr and "its answers are not cuBLASLt's" in ended.stderr
    assert ended.returncode == 1 and "this library has no such fault: 0 of 0 sums" in ended.stdout


def test_a_library_without_the_fault_is_said_and_gives_1(tmp_path: Path) -> None:
    """sim-2 answers with splits for which the condition names losses; its parts cover K."""
    findings = bug_splitk_tail(tmp_path / "tail", library="sim-2", most_k=MOST_K)
    named = [r for r in findings.runs if r.role is Role.NAMED]
    assert findings.verdict is Verdict.ABSENT and findings.exit_code == 1 and named and not any(r.lost for r in named)
    assert all(r.predicted for r in named) and not findings.controls
    assert (tmp_path / "tail" / SCRIPT).read_text() == TEMPLATE


def test_findings_and_a_changed_script_are_not_overwritten(tmp_path: Path) -> None:
    place = tmp_path / "tail"
    bug_splitk_tail(place, library="sim-2", most_k=64)
    with pytest.raises(UsageError, match="exists and is not overwritten"):
        bug_splitk_tail(place, library="sim-2", most_k=64)
    (place / SCRIPT).write_text(script_text([(3, 8, 5000)]))  # probe's own, with shapes of another library
    bug_splitk_tail(place, library="sim", most_k=64)
    assert (place / SCRIPT).read_text() == script_text([(3, 8, 5000)])
    (place / SCRIPT).write_text(TEMPLATE + "# mine\n")
    before = sorted(place.iterdir())
    ended = command("--library", "sim", "-o", "tail", folder=tmp_path)
    assert ended.returncode == 2 and "is not as probe wrote it" in ended.stderr and len(ended.stderr.splitlines()) == 1
    assert sorted(place.iterdir()) == before and (place / SCRIPT).read_text().endswith("# mine\n")


@pytest.mark.parametrize(("arguments", "code"), [
    (["--library", "sim", "-o", "tail", "--most-k", "8"], 2), (["--library", "sim", "--gpu", "1", "-o", "tail"], 2),
    (["--library", "sim"], 2), (["--library", "99.9", "-o", "tail"], 2), (["--report", "-o", "nowhere"], 2),
    (["--library", "sim", "-o", "/proc/tail", "--most-k", "64"], 4)])
def test_bad_input_is_one_line_and_leaves_nothing(arguments: list[str], code: int, tmp_path: Path) -> None:
    ended = command(*arguments, folder=tmp_path)
    assert ended.returncode == code and not list(tmp_path.iterdir())
    assert len([line for line in ended.stderr.splitlines() if "simulated library:" not in line]) == 1


# The report

def test_a_report_of_simulated_results_claims_nothing_of_a_gpu(shown: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = shown
    ended = command("--report", "-o", "tail", folder=folder)
    assert ended.returncode == 0, ended.stderr
    text = (folder / "tail" / "report.md").read_text()
    assert ended.stdout.strip() == text.strip()
    for words in ("No result in this folder shows the fault on a GPU", "Not run on a GPU", "The scan with random shapes was not run",
                  "was not run.", "results of probe's simulated library"):
        assert words in text
    assert "Control `workspace 0`: not run" in text


def test_a_report_tells_the_numbers_of_the_files(shown: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """The simulated findings, said to be a device's: what the report makes of measurements, without a device."""
    source = next((shown[0] / "tail").glob("*.json"))
    document = json.loads(source.read_text())
    document["target"] |= {"library": str(LibraryKind.CUBLASLT), "version": "13.1.0", "device_name": "some GPU"}
    findings = TailFindings.from_document(document)
    (tmp_path / "13.1.0-sm_90.json").write_text(json.dumps(document))
    options = ["--library", "sim", "--problems", "40", "--seed", "4", "--dtypes", "fp16", "--most-k", "20000"]
    assert tail_scan.main([*options, "-o", str(tmp_path / "of-sim.parquet")]) == 0
    rows, about = read_scan(tmp_path / "of-sim.parquet")
    write_scan(rows, about | {"target": document["target"]}, tmp_path / "scan.parquet")
    text = report_splitk_tail(tmp_path)
    short = findings.short
    assert f"{short[0].problem.k - short[0].lost} in place of {short[0].problem.k}" in text
    assert f"C is 0 in {len(short)} of {len(short)} short sums" in text
    for role in ("workspace 0", "reduction mask 0"):
        assert f"Control `{role}`: {len(short)} of {len(short)} sums whole" in text
    assert "Control `another algorithm`: not run" in text and "The script was not run" in text and "The script on 13.1.0" in text
    assert "| 13.1.0 | some GPU | 40 |" in text and "0.1.0 | simulated" not in text and "left out above (`of-sim.parquet`)" in text
    assert "e4m3 with 13.1.0: the condition names no shape up to K = 12,000" in text
    assert "`scan.parquet`: fp16 40 (" in text
    assert "no release without the fault was run" in text and "Forcing the answers of one release onto another was not run" in text


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no results"):
        report_splitk_tail(tmp_path)
    (tmp_path / "other.json").write_text('{"kind": "point"}')
    with pytest.raises(UsageError, match="no result of this command"):
        report_splitk_tail(tmp_path)
