"""What the lost tail reaches: tasks and table on the simulated library, the GPU's counter on stand-ins, the tool in processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tail_stand_ins import build, environment, needs_cc

from probe.errors import UsageError
from probe.oracle import SimulatedOracle
from probe.preference import Preference
from probe.problem import DType, Epilogue, Layout, Problem
from probe.simulator.library import SimulatedLibrary
from probe.tail.models import LORA_RANKS, MODELS, Weight, weights
from probe.tail.reach import Bench, LayerTask, Setting, SmallestTask, VariantTask, layer_tasks, smallest_tasks, tasks_of
from probe.tail.reach_table import COLUMNS, Part, ranges, read_reach, totals, write_reach
from probe.tail.rule import Condition, predicted
from tools import tail_reach

ROOT = Path(__file__).resolve().parents[1]
PLAIN = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1"}
PLAIN.pop("PROBE_CUBLASLT", None)
COMMAND = [sys.executable, "-m", "tools.tail_reach"]
FP16 = Setting(DType.FP16, DType.FP32)


def lost(problem: Problem, preference: Preference) -> int | None:
    """What the simulated library leaves out, by its own descriptor; None where it declines."""
    library = SimulatedLibrary()
    answer = library.ask(problem, preference)
    return problem.k - library.descriptor(problem, answer).k_summed if hasattr(answer, "algo_id") else None  # type: ignore[arg-type]


# The tasks

def test_every_way_to_ask_has_a_row_that_says_what_the_library_does() -> None:
    rows = VariantTask(1, 8, 11528, DType.FP16).run(Bench(SimulatedOracle()))
    keys = {(r["layout"], r["output_dtype"], r["epilogue"], r["workspace_bytes"], r["reduction_scheme_mask"]) for r in rows}
    assert len(keys) == len(rows) and {r["layout"] for r in rows} == set(Layout) and {r["epilogue"] for r in rows} == set(Epilogue)
    for row in rows:
        setting = Setting(DType.FP16, DType(row["output_dtype"]), Layout(row["layout"]), Epilogue(row["epilogue"]))
        truth = lost(setting.problem(1, 8, 11528), Preference(row["workspace_bytes"], row["reduction_scheme_mask"]))
        assert row["declined"] == (truth is None) and row["lost"] == truth and row["short"] == bool(truth) and not row["other"]
    assert {0, 8} <= {r["lost"] for r in rows} and all(r["lost"] == 0 for r in rows if r["workspace_bytes"] == 0 and not r["declined"])


@pytest.mark.parametrize("setting", [FP16, Setting(DType.BF16, DType.BF16, Layout.TN)])
def test_the_smallest_k_is_the_smallest(setting: Setting) -> None:
    (row,) = SmallestTask(1, 8, setting, 12_000).run(Bench(SimulatedOracle()))
    short = [k for k in range(8, 12_001, 8) if lost(setting.problem(1, 8, k), Preference())]
    assert row["k"] == row["first_named_k"] == short[0] and row["asked"] == short[0] // 8 and row["short"] == row["ran"] == 1


def test_a_library_that_is_mended_is_given_up_after_some_named_sums() -> None:
    (row,) = SmallestTask(1, 8, FP16, 30_000).run(Bench(SimulatedOracle(SimulatedLibrary(drops_tail=False))))
    assert row["k"] is None and row["first_named_k"] and row["ran"] == row["named"] == row["other"] > 1 and row["short"] == 0


def test_a_layer_is_asked_at_every_m_and_its_hits_are_run() -> None:
    """Widths that no model has, so that the simulated library loses something: forward K = 11528, backward K = 8."""
    weight = Weight(8, 11528, ("made up",))
    (forward,), (backward,) = (LayerTask(weight, Setting(DType.FP16, DType.FP16, layout), back, 70).run(Bench(SimulatedOracle()))
                               for layout, back in ((Layout.TN, False), (Layout.NN, True)))
    problems = {m: Setting(DType.FP16, DType.FP16, Layout.TN).problem(m, 8, 11528) for m in range(1, 71)}
    hits = [m for m, problem in problems.items() if lost(problem, Preference())]
    assert hits and forward["hits"] == ranges(hits) and forward["named"] == len(hits) and forward["asked"] == 70
    assert forward["short"] == forward["ran"] == min(16, len(hits))
    assert forward["m"] == hits[0] and (forward["n"], forward["k"]) == (8, 11528)
    assert backward["named"] == 0 and (backward["n"], backward["k"]) == (11528, 8) and backward["layer"] == "backward: made up"


def test_ranges_are_written_short() -> None:
    assert [ranges(x) for x in ([], [3], [1, 2, 3, 9, 11, 12])] == ["", "3", "1-3,9,11-12"]


def test_the_lists_of_tasks_hold_each_once_and_only_products_that_exist() -> None:
    tasks = tasks_of(tuple(Part))
    assert len(set(tasks)) == len(tasks)
    for task in smallest_tasks():
        assert isinstance(task, SmallestTask) and task.setting.possible(task.m, task.n, 16)
    for task in layer_tasks():
        assert isinstance(task, LayerTask) and task.setting.possible(1, *task.sizes())
    assert tasks_of((Part.LAYER,), most_m=3) == layer_tasks(3) and len(tasks_of((Part.VARIANT,))) < len(tasks)


def test_weights_are_those_of_the_table_each_once() -> None:
    all_of_them = weights()
    assert len({(w.out, w.into) for w in all_of_them}) == len(all_of_them)
    by_name = {name: (w.out, w.into) for w in all_of_them for name in w.names}
    for model in MODELS:
        assert by_name[f"{model.name} LM head"] == (model.vocab, model.hidden)
        for kind, width in (("FFN", model.ffn), ("expert", model.expert)):
            assert by_name.get(f"{model.name} {kind} up") == (None if width is None else (width, model.hidden))
            assert by_name.get(f"{model.name} {kind} down") == (None if width is None else (model.hidden, width))
        assert by_name[f"{model.name} LoRA {LORA_RANKS[0]} of hidden"] == (LORA_RANKS[0], model.hidden)


# The table

def test_a_table_reads_back_and_is_not_replaced(tmp_path: Path) -> None:
    rows = VariantTask(1, 8, 11528, DType.BF16).run(Bench(SimulatedOracle()))
    write_reach(rows, {"left": 0}, tmp_path / "reach.parquet")
    back, about = read_reach(tmp_path / "reach.parquet")
    assert back == rows and about == {"left": 0} and set(rows[0]) == set(COLUMNS)
    with pytest.raises(UsageError, match="not overwritten"):
        write_reach([], {}, tmp_path / "reach.parquet")
    (tmp_path / "other.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match="no Parquet file"):
        read_reach(tmp_path / "other.parquet")


# The tool

def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=folder, env=PLAIN, capture_output=True, text=True, timeout=120, check=False)


def test_two_processes_share_the_tasks_and_each_is_done_once(tmp_path: Path) -> None:
    ended = run("--library", "sim", "--parts", "layer", "--most-m", "1", "--processes", "2", "-o", "reach.parquet", folder=tmp_path)
    assert ended.returncode == 0 and ended.stderr.count("simulated library") == 1, ended.stderr
    rows, about = read_reach(tmp_path / "reach.parquet")
    expected = layer_tasks(1)
    assert about["tasks"] == about["done"] == len(rows) == len(expected) and about["left"] == 0
    names = sorted((r["layer"], r["input_dtype"], r["output_dtype"]) for r in rows)
    assert names == sorted((("backward: " if t.backward else "") + ", ".join(t.weight.names), t.setting.dtype, t.setting.output)
                           for t in expected if isinstance(t, LayerTask))
    assert totals(rows)["asked"] == len(rows) == json.loads(ended.stdout)["counts"]["layer"]["asked"]


def test_what_the_time_did_not_allow_is_said(tmp_path: Path) -> None:
    ended = run("--library", "sim", "--parts", "smallest", "--seconds", "0.2", "-o", "reach.parquet", folder=tmp_path)
    rows, about = read_reach(tmp_path / "reach.parquet")
    assert ended.returncode == 1 and about["left"] == about["tasks"] - about["done"] > 0 and len(rows) == about["done"] > 0
    assert f"{about['left']} of {about['tasks']} tasks were not done" in ended.stderr


@pytest.mark.slow
def test_a_process_that_is_killed_is_said_and_the_rest_is_kept(tmp_path: Path) -> None:
    tool = subprocess.Popen([*COMMAND, "--library", "sim", "--parts", "smallest", "--seconds", "5", "--processes", "2", "-o",
                             "reach.parquet"], cwd=tmp_path, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline, workers = time.monotonic() + 30, []
    while len(workers) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        children = Path(f"/proc/{tool.pid}/task/{tool.pid}/children").read_text().split()
        workers = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(workers[0], signal.SIGKILL)
    _, said = tool.communicate(timeout=60)
    assert tool.returncode == 1 and "a process ended with -9" in said
    rows, about = read_reach(tmp_path / "reach.parquet")
    assert about["processes_lost"] == 1 and len(rows) == about["done"] > 0


@pytest.mark.parametrize(("arguments", "code"), [
    (["-o", "reach.csv"], 2), (["-o", "nowhere/reach.parquet"], 4), (["-o", "reach.parquet", "--parts", "all"], 2),
    (["-o", "reach.parquet", "--library", "99.9"], 2), (["-o", "reach.parquet", "--processes", "0"], 2)])
def test_bad_input_leaves_nothing(arguments: list[str], code: int, tmp_path: Path) -> None:
    ended = run(*arguments, *([] if "--library" in arguments else ["--library", "sim"]), folder=tmp_path)
    assert ended.returncode == code and not list(tmp_path.iterdir())
    assert ended.stderr.strip().splitlines()[-1].startswith(("tail_reach:", "python -m"))


def test_work_stops_where_the_tasks_end() -> None:
    numbers = iter(range(9))
    rows: list[dict[str, object]] = []
    done = tail_reach.work(SimulatedOracle(), layer_tasks(1)[:3], lambda: next(numbers), time.monotonic() + 60, rows)
    assert done == len(rows) == 3


# On a device, or what stands for one

COUNTS = """
import json, sys
from itertools import product
from probe.answer import Answer
from probe.oracle import open_oracle
from probe.preference import Preference
from probe.tail.count import count
from probe.tail.reach import settings
from probe.tail.rule import Condition, predicted
from probe.tail.single import SingleCounter
from probe.problem import DType, Epilogue

oracle, preference = open_oracle(sys.argv[1], 0).oracle, Preference()
counter, seen = SingleCounter(oracle.device, oracle.library), []
for dtype, k in product(DType, (11528, 1280, 26896)):
    for setting in settings(dtype) if dtype in (DType.FP16, DType.BF16, DType.E4M3) else ():
        if setting.possible(2, 16, k):
            problem = setting.problem(2, 16, k)
            answer = oracle.ask(problem, preference)
            if isinstance(answer, Answer):
                single = counter.count(problem, answer, preference)
                plain = None if setting.epilogue.has_bias else count(oracle, problem, answer, preference)
                seen.append([problem.key, single.lost, predicted(Condition.OURS, problem, answer), plain is None or plain == single])
print(json.dumps(seen))
"""


@needs_cc
def test_the_counter_reads_every_layout_output_and_epilogue(tmp_path: Path) -> None:
    """probe's own door and device on the stand-in for a GPU: each count is what that library leaves out, and the oracle's own."""
    folder = build(tmp_path)
    ended = subprocess.run([sys.executable, "-c", COUNTS, str(folder / "libcublasLt.so.13")], cwd=tmp_path, env=environment(folder),
                           capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert all(lost == named and agrees for _, lost, named, agrees in seen), [s for s in seen if s[1] != s[2] or not s[3]]
    for words in ("gelu_bias", "relu", ".nt", ".tt", "bf16", "e4m3", "fast_accumulation"):
        assert any(words in key and lost for key, lost, *_ in seen) and any(words in key and not lost for key, lost, *_ in seen), words


@pytest.mark.gpu
def test_the_single_counter_reads_what_the_oracle_reads() -> None:
    from probe.answer import Answer
    from probe.cublaslt.find import find_library
    from probe.cublaslt.library import Library
    from probe.device import Device
    from probe.errors import Declined
    from probe.oracle import DeviceOracle
    from probe.tail.count import count
    from probe.tail.single import SingleCounter

    found = find_library(None)
    oracle = DeviceOracle(Device.open(0), Library.open(found), str(found.won))
    counter = SingleCounter(oracle.device, oracle.library)
    checked = 0
    for layout in Layout:
        for output in (DType.FP32, DType.FP16):
            problem = Setting(DType.FP16, output, layout).problem(32, 32, 11528)
            answer = oracle.ask(problem, Preference())
            if isinstance(answer, Answer):
                reading = counter.count(problem, answer, Preference())
                assert not isinstance(reading, Declined) and reading == count(oracle, problem, answer, Preference())
                assert reading.lost in (0, predicted(Condition.OURS, problem, answer))
                checked += 1
    assert checked > 4
