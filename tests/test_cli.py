"""The command as a user meets it: the real process on the simulated library, its exit codes and streams, every kind of bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import INTERRUPTED

import probe
from probe.answer import Answer
from probe.cli.show import WIDTH
from probe.cublaslt.find import find_library
from probe.descriptor import GEMMDesc
from probe.errors import Declined, EnvironmentProblem
from probe.problem import Problem
from probe.records import COLUMNS
from probe.schedule import term_from_json
from probe.simulator.library import SimulatedLibrary

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "probe"]
# The probe that this test imported, whatever the folder; no GPU, so that a machine with one gives the same lines.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1]), "CUDA_VISIBLE_DEVICES": "-1"}
ENVIRONMENT.pop("PROBE_CUBLASLT", None)


def run(*arguments: str, folder: Path, **others: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True,
                          timeout=120, check=False, **others)


def _installed(release: str) -> Path | None:
    try:
        return find_library(release).path
    except EnvironmentProblem:
        return None


CU13 = _installed("cu13")
needs_cu13 = pytest.mark.skipif(CU13 is None, reason="no libcublasLt.so.13 here: pip install '.[test-cublas]'")


@dataclass(frozen=True)
class Done:
    """A finished run that several tests read."""

    process: subprocess.CompletedProcess[str]
    folder: Path


@pytest.fixture(scope="module")
def as_json(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("json")
    options = ("--shape", "64x64x576", "--library", "sim", "--seed", "7", "--json", "-o", "point.parquet")
    return Done(run("walk", *options, folder=folder), folder)


@pytest.fixture(scope="module")
def as_text(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A split whose parts do not cover K."""
    folder = tmp_path_factory.mktemp("text")
    return Done(run("walk", "--shape", "24x40x11528", "--library", "sim", "--seed", "1", "-o", "point.json", folder=folder), folder)


# What a stranger reads

def test_the_text_says_what_was_asked_found_and_proven(as_text: Done) -> None:
    lines = as_text.process.stdout.splitlines()
    assert as_text.process.returncode == 0
    labels = [line.split()[0] for line in lines if not line.startswith(" ")]
    wanted = ["problem", "target", "library", "answer", "kernels", "order", "descriptor", "schedule", "cuts", "WARNING", "cost", "seed",
              "verdict", "written"]
    assert labels == wanted
    text = as_text.process.stdout
    document = json.loads((as_text.folder / "point.json").read_text())
    [result] = document["classes"]
    for field in result["evidence"]:
        assert f"{field['field']} " in text and field["value"] in text and field["instrument"] in text
    lost = 11528 - result["k_summed"]
    assert lost > 0 and f"{lost} of 11528 products are dropped" in text
    assert f"verdict    {result['outcome'].upper()}" in text


def test_the_example_of_the_documentation_is_this_output(as_text: Done) -> None:
    """Times and the counts of draws may move; every other word of docs/walk.md is what the command prints."""
    text = (ROOT / "docs" / "walk.md").read_text(encoding="utf-8")
    block = text.split("probe walk --shape 24x40x11528 --library sim --seed 1\n\n")[1].split("\n\n")[0]
    shown = [line.removeprefix("    ") for line in block.splitlines()]
    printed = as_text.process.stdout.splitlines()[:-1]  # the last line names the file

    def steady(lines: list[str]) -> list[str]:
        moving = ("cost ", "verdict ", "fresh draws: ", "bytes: ")
        return [re.sub(r"\d[\d.,e+-]*( ms| s)?", "#", line) if line.strip().startswith(moving) else line for line in lines]

    assert steady(shown) == steady(printed)


def test_off_a_terminal_the_text_is_plain_and_narrow(as_text: Done) -> None:
    for line in as_text.process.stdout.splitlines():
        assert line.isascii() and line.isprintable() and len(line) <= WIDTH, line


def test_the_stand_in_cost_model_is_announced_beside_the_result(as_text: Done, as_json: Done) -> None:
    for done in (as_text, as_json):
        [line] = done.process.stderr.splitlines()
        assert line.startswith("probe: simulated library") and "not cuBLASLt's" in line


def test_without_a_gpu_the_simulated_library_is_announced(tmp_path: Path) -> None:
    done = run("walk", "--shape", "8x8x64", folder=tmp_path)
    assert done.returncode == 0
    notice, announcement = done.stderr.splitlines()
    assert "using the simulated library instead" in notice and "simulated library" in announcement


def test_json_is_one_document_with_the_truth_in_it(as_json: Done) -> None:
    document = json.loads(as_json.process.stdout)
    assert (as_json.process.returncode, document["kind"], document["outcome"]) == (0, "point", "confirmed")
    problem, answer = Problem.from_document(document["problem"]), Answer.from_document(document["answer"])
    truth = SimulatedLibrary().descriptor(problem, answer).schedule()
    [result] = document["classes"]
    assert term_from_json(result["schedule"]) == truth
    assert GEMMDesc.from_document(result["gemm_desc"]).schedule() == truth
    assert result["proof"]["bound"] == 3 / result["proof"]["elements"]


def test_parquet_holds_the_same_point_for_pandas(as_json: Done) -> None:
    document = json.loads(as_json.process.stdout)
    table = pd.read_parquet(as_json.folder / "point.parquet")
    assert list(table.columns) == list(COLUMNS) and len(table) == len(document["classes"]) == 1
    row = table.iloc[0]
    assert (row.m, row.n, row.k, row.seed) == (64, 64, 576, 7)
    assert row.outcome == document["outcome"] and row.library_sha256 == document["target"]["sha256"]
    assert json.loads(row.schedule) == document["classes"][0]["schedule"]
    assert json.loads(row.gemm_desc) == document["classes"][0]["gemm_desc"]
    assert row.elements_compared == document["classes"][0]["proof"]["elements"]


def test_nothing_but_the_output_is_left_in_the_folder(as_json: Done, as_text: Done) -> None:
    assert [p.name for p in as_json.folder.iterdir()] == ["point.parquet"]
    assert [p.name for p in as_text.folder.iterdir()] == ["point.json"]


def test_a_seed_repeats_the_run(tmp_path: Path) -> None:
    documents = []
    for _ in range(2):
        document = json.loads(run("walk", "--shape", "8x8x40", "--library", "sim", "--seed", "11", "--json", folder=tmp_path).stdout)
        del document["date"]
        for phase in document["phases"]:
            del phase["seconds"]
        documents.append(document)
    assert documents[0] == documents[1]


def test_python_gives_the_same_verb() -> None:
    said: list[str] = []
    point = probe.walk("8x8x40", library="sim", seed=11, notice=said.append)
    assert not isinstance(point, Declined)
    assert (point.seed, point.exit_code) == (11, 0) and len(said) == 1


# Help and version

def test_bare_probe_shows_the_help_and_is_a_usage_error(tmp_path: Path) -> None:
    bare, asked = run(folder=tmp_path), run("--help", folder=tmp_path)
    assert (bare.returncode, asked.returncode) == (2, 0)
    assert "walk" in asked.stdout and asked.stdout == bare.stdout and bare.stderr == asked.stderr == ""


def test_help_of_walk_names_every_option(tmp_path: Path) -> None:
    text = run("walk", "--help", folder=tmp_path).stdout
    for option in ("--shape", "--dtype", "--out", "--layout", "--fast-accumulation", "--workspace", "--reduction-schemes", "--library",
                   "--gpu", "--exhaustive", "--seed", "--json", "--output"):
        assert option in text
    assert text.isascii() and "Exit codes: 0 recovered" in text


def test_version(tmp_path: Path) -> None:
    assert run("--version", folder=tmp_path).stdout == f"probe {probe.__version__}\n"


# Bad input: the options after "walk", the exit code, and words that the one line on stderr must hold: what is wrong, what works instead

SHAPE = ("--shape", "8x8x64")
E4M3 = ("--dtype", "e4m3")
USAGE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "no shape": ((), ("--shape", "probe walk --help")),
    "two sizes": (("--shape", "64x64"), ("2 sizes, not 3", "64x64x576")),
    "zero": (("--shape", "0x4x4"), ("M = 0 is not positive", "at least 1")),
    "negative": (("--shape", "4x-4x4"), ("N = -4 is not positive", "at least 1")),
    "no number": (("--shape", "4x4xbig"), ("'big' is not a whole number", "64x64x576")),
    "beyond int32": (("--shape", f"4x4x{2**31}"), ("K is too large", str(2**31 - 1))),
    "very long": (("--shape", "4x4x" + "9" * 5000), ("K is too large", str(2**31 - 1))),
    "dtype": ((*SHAPE, "--dtype", "int8"), ("dtype = 'int8' is not known", "e4m3")),
    "out": ((*SHAPE, "--out", "fp99"), ("out = 'fp99' is not known", "bf16")),
    "layout": ((*SHAPE, "--layout", "xx"), ("layout = 'xx' is not known", "nn, tn, nt, tt")),
    "e4m3 K": (("--shape", "64x64x24", *E4M3), ("K = 24", "K = 32 or 16")),
    "e4m3 N": (("--shape", "64x63x32", *E4M3), ("N = 63", "N = 64 or 48")),
    "e4m3 M and K": (("--shape", "63x64x24", *E4M3), ("K = 24", "K = 32 or 16")),
    "e4m3 nn": (("--shape", "64x64x64", *E4M3, "--layout", "nn"), ("layout tn, got nn", "stored N x K")),
    "fast accumulation of fp16": ((*SHAPE, "--fast-accumulation"), ("8-bit inputs", "use e4m3")),
    "workspace": ((*SHAPE, "--workspace", "junk"), ("workspace: 'junk' is not a size", "32MiB")),
    "reduction schemes": ((*SHAPE, "--reduction-schemes", "9"), ("reduction_schemes = 9", "0 to 7")),
    "no integer": ((*SHAPE, "--gpu", "first"), ("--gpu", "integer", "probe walk --help")),
    "unknown option": ((*SHAPE, "--bogus"), ("--bogus", "probe walk --help")),
    "negative seed": ((*SHAPE, "--seed", "-1"), ("seed = -1 is out of range", "0 to")),
    "huge seed": ((*SHAPE, "--seed", str(2**60)), ("is out of range", str(2**60 - 1))),
    "negative GPU": ((*SHAPE, "--gpu", "-1"), ("gpu = -1 is out of range", "0 to")),
    "GPU of the simulator": ((*SHAPE, "--library", "sim", "--gpu", "2"), ("runs on no GPU", "leave out gpu")),
    "unknown release": ((*SHAPE, "--library", "cu11"), ("'cu11' is not a known release", "cu12, cu13")),
    "no such library": ((*SHAPE, "--library", "./none.so"), ("none.so does not exist", "cu12, cu13")),
    "a folder as library": ((*SHAPE, "--library", "."), ("is not a file", "cu12, cu13")),
    "ending": ((*SHAPE, "-o", "point.csv"), ("point.csv", ".parquet nor .json")),
}


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert "Traceback" not in done.stderr
    [line] = done.stderr.splitlines()
    assert done.returncode == code and line.startswith("probe: "), line
    for word in words:
        assert word in line


@pytest.mark.parametrize("case", USAGE)
def test_bad_input_is_one_line_and_exit_2(case: str, tmp_path: Path) -> None:
    options, words = USAGE[case]
    done = run("walk", *options, folder=tmp_path)
    assert_one_line(done, 2, *words)
    assert done.stdout == "" and list(tmp_path.iterdir()) == []


def test_an_unknown_verb(tmp_path: Path) -> None:
    assert_one_line(run("wlak", folder=tmp_path), 2, "wlak", "probe --help")


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "libcublasLt.so").write_text("not a library\n")
    done = run("walk", *SHAPE, "--library", "./libcublasLt.so", folder=tmp_path)
    assert_one_line(done, 2, "not a shared library", "cu12, cu13")


def test_a_library_that_is_no_cublaslt(tmp_path: Path) -> None:
    other = np._core._multiarray_umath.__file__
    done = run("walk", *SHAPE, "--library", str(other), folder=tmp_path)
    assert_one_line(done, 4, "is no cuBLASLt", "libcublasLt.so.12 or .13")


@needs_cu13
def test_libcublas_in_place_of_libcublaslt(tmp_path: Path) -> None:
    assert CU13 is not None
    done = run("walk", *SHAPE, "--library", str(CU13.with_name("libcublas.so.13")), folder=tmp_path)
    assert_one_line(done, 2, "is libcublas, not libcublasLt", "the libcublasLt.so beside it")


@needs_cu13
@pytest.mark.parametrize("option", ["path", "cu13"])
def test_the_real_library_without_a_gpu(option: str, tmp_path: Path) -> None:
    done = run("walk", *SHAPE, "--library", str(CU13) if option == "path" else option, folder=tmp_path)
    assert_one_line(done, 4, "--library sim needs no GPU")


@pytest.mark.skipif(_installed("cu12") is not None, reason="a libcublasLt.so.12 is installed")
def test_a_release_that_is_not_installed(tmp_path: Path) -> None:
    done = run("walk", *SHAPE, "--library", "cu12", folder=tmp_path)
    assert_one_line(done, 4, "no libcublasLt was found", "install the wheel nvidia-cublas-cu12", "--library sim needs no GPU")


def test_a_gpu_by_number_is_never_replaced_by_the_simulator(tmp_path: Path) -> None:
    assert_one_line(run("walk", *SHAPE, "--gpu", "3", folder=tmp_path), 4, "--library sim needs no GPU")


@pytest.mark.parametrize("shape", ["2147483647x2147483647x64", "100000x100000x100000", "1x1x2147483647"])
def test_sizes_that_fit_no_memory_are_declined_before_anything_is_allocated(shape: str, tmp_path: Path) -> None:
    done = run("walk", "--shape", shape, "--library", "sim", "--json", folder=tmp_path)
    _, declined = done.stderr.splitlines()
    assert done.returncode == 3 and declined.startswith("probe: declined: too_large: ") and "MiB" in declined
    document = json.loads(done.stdout)
    assert (document["kind"], document["reason"], document["exit_code"]) == ("declined", "too_large", 3)
    assert document["text"] in declined and document["hint"] in declined


def test_what_no_walk_is_known_for_is_declined(tmp_path: Path) -> None:
    done = run("walk", *SHAPE, "--library", "sim", "--dtype", "fp32", "-o", "point.json", folder=tmp_path)
    assert done.returncode == 3 and done.stdout == "" and list(tmp_path.iterdir()) == []
    assert done.stderr.splitlines()[-1].startswith("probe: declined: unsupported: ")


@pytest.mark.parametrize(("options", "kind", "code"), [
    (("--shape", "64x64"), "usage", 2), ((), "usage", 2), ((*SHAPE, "--gpu", "3"), "environment", 4)])
def test_a_failure_under_json_is_one_object(options: tuple[str, ...], kind: str, code: int, tmp_path: Path) -> None:
    done = run("walk", "--json", *options, folder=tmp_path)
    document = json.loads(done.stdout)
    assert_one_line(done, code, document["error"], document["hint"])
    assert (document["kind"], document["exit_code"]) == (kind, code) and document["error"] and document["hint"]


# The output file

@pytest.mark.parametrize("name", ["point.json", "point.parquet"])
def test_an_existing_file_is_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    assert_one_line(run("walk", *SHAPE, "--library", "sim", "-o", name, folder=tmp_path), 2, f"{name} exists", "another name")
    assert (tmp_path / name).read_text() == "mine"


def test_a_link_that_leads_nowhere_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "point.json").symlink_to("nowhere")
    assert_one_line(run("walk", *SHAPE, "--library", "sim", "-o", "point.json", folder=tmp_path), 2, "exists")
    assert (tmp_path / "point.json").is_symlink()


def test_a_missing_folder(tmp_path: Path) -> None:
    assert_one_line(run("walk", *SHAPE, "-o", "none/point.json", folder=tmp_path), 4, "there is no folder none", "make the folder")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_files(tmp_path: Path) -> None:
    folder = tmp_path / "shut"
    folder.mkdir(mode=0o555)
    if os.access(folder, os.W_OK):  # root may write anywhere but in /proc
        folder = Path("/proc")
    assert_one_line(run("walk", *SHAPE, "-o", str(folder / "point.json"), folder=tmp_path), 4, "cannot be written", "another folder")


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    assert_one_line(run("walk", *SHAPE, "-o", "a" * 300 + ".json", folder=tmp_path), 4, "cannot be written")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_stdout(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, "walk", *SHAPE, "--library", "sim"], cwd=tmp_path, env=ENVIRONMENT, stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert "stdout cannot be written" in done.stderr.splitlines()[-1]


def test_a_reader_that_leaves_early_is_no_failure(tmp_path: Path) -> None:
    process = subprocess.Popen([*COMMAND, "walk", *SHAPE, "--library", "sim"], cwd=tmp_path, env=ENVIRONMENT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(60) == 0 and len(said.splitlines()) == 1, said


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "walk", "--shape", "1x8x65536", "--library", "sim", "-o", "point.json"], cwd=tmp_path, env=ENVIRONMENT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))  # a background job of a shell ignores it
    assert process.stderr is not None and process.stderr.readline()  # the announcement: the walk has begun
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode in INTERRUPTED and (out, said) == ("", "probe: interrupted\n")
    assert list(tmp_path.iterdir()) == []
