"""The conditions of the lost tail, the counting of what arrives, and the scan: on the simulated library, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.answer import Answer
from probe.errors import Declined, EnvironmentProblem, UsageError
from probe.inputs.ones import Ones
from probe.oracle import SimulatedOracle
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.simulator.library import SimulatedLibrary
from probe.tail.count import WINDOW, DeviceCounter, count, units_of
from probe.tail.draws import Drawing
from probe.tail.rule import NVJET, Condition, Fit, fit, lost_ours, lost_paper, part, predicted
from probe.tail.table import ANY, COLUMNS, FITS, Tally, read_scan, summary, write_scan
from tools import tail_scan

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(probe.__file__).parents[1]), str(ROOT)]), "CUDA_VISIBLE_DEVICES": "-1"}
ENVIRONMENT.pop("PROBE_CUBLASLT", None)
COMMAND = [sys.executable, "-m", "tools.tail_scan"]
FP16 = Drawing((DType.FP16,), 30_000, 1.0)
SEED, DRAWS = 4, 60  # of streams 0 and 1, both of which hold sums that the simulated library cuts short; the tests look


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)


def nvjet(split: int) -> Answer:
    return Answer(algo_id=NVJET, tile=0, splitk_num=split, reduction_scheme=2, swizzling=0, custom_option=0, stages=0, inner_shape=0,
                  cluster_shape=0, workspace_bytes=0, waves=1.0)


# The conditions

# (K, parts, b, lost): H200, cuBLASLt 13.1.0 (DESIGN fact 4 and issue C), and the paper's Figure 8
MEASURED = [(11528, 9, 64, 8), (206464, 129, 64, 64), (115288, 90, 64, 88), (379904, 129, 128, 128), (8648, 9, 64, 8), (8648, 6, 64, 0)]


@pytest.mark.parametrize(("k", "split", "b", "lost"), MEASURED)
def test_our_condition_names_what_was_measured(k: int, split: int, b: int, lost: int) -> None:
    assert lost_ours(k, split, b) == lost


@pytest.mark.parametrize("b", [64, 128])
def test_our_condition_is_what_the_parts_leave_uncovered_and_less_than_one_value_a_part(b: int) -> None:
    rng = np.random.default_rng(b)
    for k, split in zip(rng.integers(1, 50_000, 500).tolist(), rng.integers(2, 133, 500).tolist(), strict=True):
        size = part(k, split, b)
        covered = set().union(*(range(i * size, min(k, (i + 1) * size)) for i in range(split)))
        assert lost_ours(k, split, b) == k - len(covered) < split


@pytest.mark.parametrize("b", [64, 128])
def test_both_conditions_agree_up_to_b_parts_and_not_beyond(b: int) -> None:
    """With s <= b the rest of K beyond s whole parts is shorter than a block; so the paper's last clause says the same as the division."""
    for split in range(2, b + 1):
        for k in range(1, 40 * split, 7):
            assert lost_ours(k, split, b) == lost_paper(k, split, b)
    beyond = [(k, s) for s in range(b + 1, 133) for k in range(s * b, 2 * s * b, 8) if lost_ours(k, s, b) != lost_paper(k, s, b)]
    assert beyond


def test_only_a_split_by_this_algorithm_is_named() -> None:
    problem = Problem.gemm(1, 8, 11528, DType.FP16, DType.FP32)
    assert [predicted(c, problem, nvjet(9)) for c in Condition] == [8, 8]
    assert [predicted(c, problem, nvjet(1)) for c in Condition] == [0, 0]
    assert [predicted(c, problem, replace(nvjet(9), algo_id=23)) for c in Condition] == [0, 0]


def test_a_fit_has_five_outcomes() -> None:
    assert [fit(*pair) for pair in ((0, 0), (8, 8), (0, 8), (8, 0), (8, 16))] == [
        Fit.WHOLE, Fit.HIT, Fit.MISS, Fit.FALSE_ALARM, Fit.AMOUNT]


# Counting

@pytest.mark.parametrize(("k", "dtype", "output", "fast", "units"), [
    (11528, DType.FP16, DType.FP32, False, 11528), (11528, DType.BF16, DType.FP32, False, 11528),
    (21776, DType.E4M3, DType.FP32, False, 21776),
    (21776, DType.E4M3, DType.FP32, True, WINDOW), (21776, DType.E4M3, DType.BF16, False, WINDOW), (48, DType.E4M3, DType.BF16, True, 48)])
def test_a_count_finds_what_the_simulated_kernel_leaves_out(k: int, dtype: DType, output: DType, fast: bool, units: int) -> None:
    oracle = SimulatedOracle()
    problem = Problem.gemm(3, 16, k, dtype, output, fast_accumulation=fast)
    answer = oracle.ask(problem, Preference())
    assert isinstance(answer, Answer) and units_of(problem) == units
    reading = count(oracle, problem, answer, Preference())
    assert not isinstance(reading, Declined)
    assert reading.units == units and reading.least == reading.most
    assert reading.lost == k - oracle.library.descriptor(problem, answer).k_summed


def test_e4m3_with_fast_accumulation_would_stick_without_a_window() -> None:
    """Why there are windows: the count of all of K stops where one more unit is below the last bit that is kept."""
    oracle = SimulatedOracle(SimulatedLibrary(drops_tail=False))
    problem = Problem.gemm(1, 16, 60_000 - 60_000 % 16, DType.E4M3, DType.FP32, fast_accumulation=True)
    whole = count(oracle, problem, nvjet(1), Preference(), problem.k)
    window = count(oracle, problem, nvjet(1), Preference())
    assert not isinstance(whole, Declined) and not isinstance(window, Declined)
    assert whole.lost > 0 and window.lost == 0


def test_ones_reach_from_their_first_index_to_the_end() -> None:
    made = Ones(2, 3, 10, DType.FP16, 7)
    assert made.a(np).view(np.float16).sum(axis=1).tolist() == [3, 3] and made.b(np).view(np.float16).sum(axis=1).tolist() == [10] * 3
    assert made.a(np)[:, :7].max() == 0 and made.a_key != Ones(2, 3, 10, DType.FP16).a_key
    with pytest.raises(UsageError, match="nothing to count"):
        Ones(2, 3, 10, DType.FP16, 10)


# Draws

def test_draws_repeat_and_keep_to_their_limits() -> None:
    drawing = Drawing(most_k=100_000)
    first, again, other = (list(islice(drawing.problems(seed, stream), 400)) for seed, stream in ((3, 0), (3, 0), (3, 1)))
    assert first == again != other
    assert all(1 <= p.m <= 64 and 1 <= p.n <= 64 and 16 <= p.k <= 100_000 for p in first)
    assert {(p.a_dtype, p.d_dtype) for p in first} == {(DType.FP16, DType.FP32), (DType.BF16, DType.FP32), (DType.E4M3, DType.FP32),
                                                       (DType.E4M3, DType.BF16)}
    assert {p.fast_accumulation for p in first if p.a_dtype is DType.E4M3} == {True, False}
    assert all(p.n % 8 == p.k % 8 == 0 for p in islice(FP16.problems(1, 0), 100))


@pytest.mark.parametrize("settings", [{"dtypes": ()}, {"dtypes": (DType.FP32,)}, {"most_k": 8}, {"aligned": 1.5}])
def test_a_drawing_that_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Drawing(**settings)


# The scan

def evaluate(drawing: Drawing, seed: int, streams: dict[int, int]) -> tuple[Counter[tuple[str, int]], list[tuple[int, int, int, int]]]:
    """(dtype, split count) of every sum, and (m, n, k, lost) of the short ones, from the simulated library's own records."""
    library, counts, short = SimulatedLibrary(), Counter[tuple[str, int]](), []
    for stream, number in streams.items():
        for problem in islice(drawing.problems(seed, stream), number):
            answer = library.ask(problem, Preference())
            assert isinstance(answer, Answer)
            counts[str(problem.a_dtype), answer.splitk_num if answer.algo_id == NVJET and answer.splitk_num > 1 else ANY] += 1
            lost = problem.k - library.descriptor(problem, answer).k_summed
            if lost:
                short.append((problem.m, problem.n, problem.k, lost))
    return counts, short


def test_a_scan_counts_what_the_simulated_library_does() -> None:
    tally = tail_scan.scan(SimulatedOracle(), FP16, SEED, 0, 60.0, DRAWS, 1.0, Tally())
    counts, short = evaluate(FP16, SEED, {0: DRAWS})
    rows = tally.rows()
    found = Counter[tuple[str, int]]()
    for row in rows:
        if row["row"] == "count":
            found[row["input_dtype"], row["splitk_num"]] += row["sums"]
    assert short, "a seed whose draws lose something"
    assert found == counts and tally.total == DRAWS
    assert sorted((r["m"], r["n"], r["k"], r["lost"]) for r in rows if r["row"] == "sum") == sorted(short)
    total = summary(rows)
    assert total["lost"] == total["ours_hit"] == total["paper_hit"] == len(short)
    assert sum(total[name] for name in FITS) == 2 * len(short)


def test_a_condition_that_is_wrong_is_seen() -> None:
    """The same draws on a library that drops nothing: every loss that is named is a false alarm, and each such sum has its row."""
    tally = tail_scan.scan(SimulatedOracle(SimulatedLibrary(drops_tail=False)), FP16, SEED, 0, 60.0, DRAWS, 1.0, Tally())
    _, short = evaluate(FP16, SEED, {0: DRAWS})
    total = summary(tally.rows())
    assert short and total["lost"] == 0 and total["ours_false_alarm"] == total["paper_false_alarm"] == len(short)
    assert sum(r["row"] == "sum" for r in tally.rows()) == len(short)


def test_other_answers_can_be_left_out() -> None:
    all_of_them = tail_scan.scan(SimulatedOracle(), FP16, 4, 0, 60.0, 60, 1.0, Tally())
    some = tail_scan.scan(SimulatedOracle(), FP16, 4, 0, 60.0, 60, 0.0, Tally())
    others = summary(all_of_them.rows(), splitk_num=ANY)["sums"]
    assert 0 < others == some.left and some.total == 60 - others


def test_a_table_reads_back_and_is_not_replaced(tmp_path: Path) -> None:
    tally = tail_scan.scan(SimulatedOracle(), FP16, SEED, 0, 60.0, DRAWS, 1.0, Tally())
    path = tmp_path / "scan.parquet"
    write_scan(tally.rows(), {"seed": SEED}, path)
    rows, about = read_scan(path)
    assert rows == tally.rows() and about == {"seed": SEED} and set(rows[0]) == set(COLUMNS)
    with pytest.raises(UsageError, match="not overwritten"):
        write_scan([], {}, path)
    (tmp_path / "other.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match="no Parquet file"):
        read_scan(tmp_path / "other.parquet")


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scan in two processes, as a user runs it."""
    folder = tmp_path_factory.mktemp("scan")
    ended = run("--library", "sim", "--problems", str(2 * DRAWS), "--processes", "2", "--seed", str(SEED), "--dtypes", "fp16",
                "--aligned", "1", "--most-k", "30000", "-o", "scan.parquet", folder=folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("simulated library") == 1  # announced, by one of the two
    return folder


def test_two_processes_draw_two_streams_and_their_counts_add_up(scanned: Path) -> None:
    rows, about = read_scan(scanned / "scan.parquet")
    _, short = evaluate(FP16, SEED, {0: DRAWS, 1: DRAWS})
    assert about["sums"] == summary(rows)["sums"] == 2 * DRAWS and about["seed"] == SEED and about["processes_lost"] == 0
    assert short and sorted((r["m"], r["n"], r["k"], r["lost"]) for r in rows if r["row"] == "sum") == sorted(short)


def test_a_process_that_is_killed_is_said_and_the_rest_is_kept(tmp_path: Path) -> None:
    scan = subprocess.Popen([*COMMAND, "--library", "sim", "--seconds", "6", "--processes", "2", "--seed", "1", "--most-k", "4000", "-o",
                             "scan.parquet"], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline, workers = time.monotonic() + 30, []
    while len(workers) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        children = Path(f"/proc/{scan.pid}/task/{scan.pid}/children").read_text().split()
        workers = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(workers[0], signal.SIGKILL)
    _, said = scan.communicate(timeout=60)
    assert scan.returncode == 1 and "a process ended with -9" in said
    rows, about = read_scan(tmp_path / "scan.parquet")
    assert about["processes_lost"] == 1 and summary(rows)["sums"] == about["sums"] > 0


def test_what_was_counted_before_a_fault_is_kept() -> None:
    """An oracle that fails in its second batch, as a GPU that stops: the batches before it stay."""
    oracle, tally = SimulatedOracle(), Tally()
    ask, asked = oracle.ask, iter(range(1000))

    def failing(problem: Problem, preference: Preference) -> Answer | Declined:
        if next(asked) == tail_scan._BATCH + 40:
            raise EnvironmentProblem("the GPU is gone")
        return ask(problem, preference)

    oracle.ask = failing  # type: ignore[method-assign]
    with pytest.raises(EnvironmentProblem):
        tail_scan.scan(oracle, Drawing((DType.FP16,), 2000, 1.0), 1, 0, 60.0, None, 1.0, tally)
    assert tally.total == tail_scan._BATCH


def test_an_output_that_cannot_be_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "there.parquet").write_bytes(b"")
    for name, code in (("there.parquet", 2), ("scan.csv", 2), ("nowhere/scan.parquet", 4)):
        ended = run("--library", "sim", "-o", name, folder=tmp_path)
        assert ended.returncode == code and len(ended.stderr.splitlines()) == 1, ended.stderr
    ended = run("--library", "99.9", "-o", "scan.parquet", folder=tmp_path)
    assert ended.returncode == 2 and "99.9" in ended.stderr and not (tmp_path / "scan.parquet").exists()


# Forced answers

def test_answers_of_one_release_are_forced_onto_another(scanned: Path, tmp_path: Path) -> None:
    """sim-2 covers K whatever the answer, sim does not: forced, the same answers give whole sums on the one and short ones on the other."""
    recorded = json.loads((scanned / "scan.answers.json").read_text())["cases"]
    assert recorded
    for library, short in (("sim-2", 0), ("sim", len(recorded))):
        ended = run("--library", library, "--force-from", str(scanned / "scan.answers.json"), "-o", f"{library}.json", folder=tmp_path)
        assert ended.returncode == 0, ended.stderr
        document = json.loads((tmp_path / f"{library}.json").read_text())
        assert document["recorded_on"]["version"] == "0.1.0" and len(document["cases"]) == len(recorded)
        assert sum(bool(c["forced"]["lost"]) for c in document["cases"]) == short
        for case, before in zip(document["cases"], recorded, strict=True):
            assert case["problem"] == before["problem"]
            lost = before["reading"]["units"] - before["reading"]["least"]
            assert case["predicted"] == lost and case["forced"]["lost"] in (0, lost)


def test_a_forced_answer_that_does_not_come_back_costs_its_case_only(scanned: Path, tmp_path: Path) -> None:
    ended = run("--library", "sim", "--force-from", str(scanned / "scan.answers.json"), "--problems", "1", "--case-seconds", "0.0001", "-o",
                "forced.json", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    (case,) = json.loads((tmp_path / "forced.json").read_text())["cases"]
    assert "did not come back" in case["refused"] and json.loads(ended.stdout)["ran"] == 0


def test_a_file_without_recorded_answers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text('{"cases": []}')
    (tmp_path / "other.json").write_text("[]")
    for name in ("empty.json", "other.json", "absent.json"):
        ended = run("--library", "sim", "--force-from", name, "-o", "out.json", folder=tmp_path)
        assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1, ended.stderr


# On a device

@pytest.mark.gpu
def test_the_batched_counter_reads_what_single_launches_read() -> None:
    from probe.cublaslt.find import find_library
    from probe.cublaslt.library import Library
    from probe.device import Device
    from probe.oracle import DeviceOracle

    found = find_library(None)
    oracle = DeviceOracle(Device.open(0), Library.open(found), str(found.won))
    preference, drawing = Preference(), Drawing(most_k=40_000)
    counter = DeviceCounter(oracle.device, oracle.library, 64, drawing.most_k, preference.workspace_bytes)
    batch = []
    for problem in islice(drawing.problems(7, 0), 80):
        answer = oracle.ask(problem, preference)
        if not isinstance(answer, Declined):
            batch.append((problem, answer))
    readings = counter.count(batch, preference)
    assert len(batch) > 40 and readings == [count(oracle, problem, answer, preference) for problem, answer in batch]
    tally = Tally()
    for (problem, answer), reading in zip(batch, readings, strict=True):
        assert not isinstance(reading, Declined)
        tally.add(problem, answer, reading)
    assert tally.total == len(batch)
