"""The coverage benchmark on the simulated library: a run whose child is killed, its report, its small dataset, its bytes."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.coverage.__main__ import main
from benchmarks.coverage.dump import DRAWS, dump, load
from benchmarks.coverage.pool import Plan, Pool, run
from benchmarks.coverage.regimes import Draw, regimes, stream_of
from benchmarks.coverage.report import report
from benchmarks.coverage.rows import RECOVERED, Dataset, Ended, Outcome, compact, promise_broken, read, row_of, write
from probe.answer import Answer
from probe.errors import Declined, DeclineReason, EnvironmentProblem, UsageError
from probe.inputs import DrawKind
from probe.names import DType, Layout
from probe.problem import Problem
from probe.simulator.execute import execute
from probe.simulator.library import SimulatedLibrary

PROBLEMS, SEED = 7, 5


@dataclass
class Run:
    dataset: Dataset
    folder: Path
    said: list[str]
    counts: Counter[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which a child is killed at the third row."""
    folder, said, killed = tmp_path_factory.mktemp("run"), [], []
    rows = iter(range(PROBLEMS))

    def watch(pool: Pool) -> None:
        if next(rows) == 2:
            killed.append(next(child.pid for child in pool.children if child.pid is not None))
            os.killpg(killed[0], signal.SIGKILL)

    counts = run(Plan("sim", PROBLEMS, 2, SEED, 250, draw=Draw.TINY), folder, said.append, watch)
    assert killed
    return Run(read(sorted(folder.glob("*.parquet"))), folder, said, counts)


def test_every_problem_has_its_row_and_a_killed_child_costs_one(finished: Run) -> None:
    rows, stream = finished.dataset.rows, stream_of(SEED, Draw.TINY)
    assert [row["index"] for row in rows] == list(range(PROBLEMS)) and finished.dataset.not_begun == 0
    assert finished.counts == Counter(row["outcome"] for row in rows)
    lost = [row for row in rows if row["outcome"] == Outcome.ERROR]
    assert len(lost) == 1 and "SIGKILL" in lost[0]["text"]
    assert lost[0]["algo_id"] is not None and lost[0]["kernels"].startswith("simulated")  # asked again, in the next child
    for row in rows:
        assert row["problem"] == stream.at(row["index"]).problem.to_json()
        if row["outcome"] in RECOVERED:
            assert row["seconds_prove"] is not None or row["outcome"] == Outcome.AMBIGUOUS
            assert 0 < row["seconds_walk"] < row["seconds"] < row["wall_seconds"]
    assert finished.said[-1].startswith(f"{PROBLEMS} of {PROBLEMS} done, 0 not begun")


def test_the_report_counts_each_problem_once_in_each_table_and_lists_what_failed(finished: Run) -> None:
    text = report(finished.dataset, "here")
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        if not section.startswith("By "):
            continue
        rows = [line for line in section.splitlines() if line.startswith("| ") and "| --- |" not in line]
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in rows]
        at = lines[0].index("problems")
        counts = [int(line[at]) for line in lines[1:]]
        assert sum(counts[:-1]) == counts[-1] == PROBLEMS - finished.counts[Outcome.MISALIGNED]
    lost = next(row for row in finished.dataset.rows if row["outcome"] == Outcome.ERROR)
    errors = text.split("## Error\n")[1]
    assert f"- {lost['index']}, {lost['regime']}" in errors and "SIGKILL" in errors
    assert "| at least 5,000 problems |" in text and finished.dataset.facts["target"]["sha256"][:16] in text


def test_a_command_of_the_report_walks_the_problem_again(finished: Run, capfd: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in finished.dataset.rows if row["outcome"] == Outcome.CONFIRMED)
    arguments = ["one", "--seed", str(SEED), "--index", str(row["index"]), "--draw", "tiny", "--library", "sim"]
    assert main(arguments) == 0
    assert row["family"] in capfd.readouterr().out


def test_the_small_dataset_gives_the_same_lists(finished: Run, tmp_path: Path) -> None:
    compact(finished.dataset, tmp_path / "small.parquet")
    small = read([tmp_path / "small.parquet"])
    assert [r["outcome"] for r in small.rows] == [r["outcome"] for r in finished.dataset.rows] and "problem" not in small.rows[0]
    lists = [report(d, "here").split("## Declines and errors")[1] for d in (finished.dataset, small)]
    assert lists[0] == lists[1]
    with pytest.raises(UsageError, match="the small form"):
        dump(small, tmp_path / "bytes.npz", lambda text: None)


def test_the_dumped_bytes_are_those_of_the_order(finished: Run, tmp_path: Path) -> None:
    said: list[str] = []
    kinds = (DrawKind.FLAT, DrawKind.TIE)
    count = dump(finished.dataset, tmp_path / "bytes.npz", said.append, every=True, kinds=kinds, most_pairs=400)
    draws = list(load(tmp_path / "bytes.npz"))
    assert count == sum(finished.counts[o] for o in RECOVERED) and len(draws) == count * len(kinds) * DRAWS
    for draw in draws:
        problem, answer = Problem.from_json(draw.about["problem"]), Answer.from_document(draw.about["answer"])
        schedule = SimulatedLibrary().descriptor(problem, answer).schedule()
        np.testing.assert_array_equal(execute(schedule, draw.a, draw.b, problem.a_dtype), draw.d)


    with np.load(tmp_path / "bytes.npz") as arrays:
        for row in (r for r in finished.dataset.rows if r["outcome"] in RECOVERED and 2 < r["k"] <= 28):
            pairs, found = arrays[f"{row['index']}/pairs"], arrays[f"{row['index']}/leaves"]
            size = np.zeros((row["k"], row["k"]), int)
            size[tuple(pairs.T)] = found
            size = np.maximum(size, size.T)
            assert len(pairs) == row["k"] * (row["k"] - 1) // 2 and size.max() == row["k_summed"] and found.min() >= 2
            assert (size[:, None, :] <= np.maximum(size[:, :, None], size[None, :, :])).all()  # nodes of a tree hold or exclude each other


def test_what_the_time_does_not_allow_is_not_begun(tmp_path: Path) -> None:
    run(Plan("sim", 10**6, 1, SEED, 0.6, draw=Draw.TINY), tmp_path / "short", lambda text: None)
    files = sorted((tmp_path / "short").iterdir())
    if files:  # a slow machine may finish none
        dataset = read(files)
        assert all(row["outcome"] in RECOVERED for row in dataset.rows)  # what was cut off is no error
        assert dataset.not_begun == 10**6 - len(dataset.rows) > 10**5


def test_a_resumed_run_walks_only_what_is_missing(finished: Run, tmp_path: Path) -> None:
    keep = [row for row in finished.dataset.rows if row["index"] not in (2, 5)]
    write(keep, finished.dataset.facts, tmp_path / "part-00000.parquet")
    counts = run(Plan("sim", PROBLEMS, 1, SEED, 100, draw=Draw.TINY), tmp_path, lambda text: None, resume=True)
    whole = read(sorted(tmp_path.iterdir()))
    assert counts.total() == 2 and [row["index"] for row in whole.rows] == list(range(PROBLEMS)) and whole.facts["seconds"] == 350
    with pytest.raises(UsageError, match="another run"):
        run(Plan("sim", PROBLEMS, 1, SEED + 1, 100, draw=Draw.TINY), tmp_path, lambda text: None, resume=True)


@pytest.mark.parametrize("draw", Draw)
def test_the_draw_holds_all_of_part_d(draw: Draw) -> None:
    asked = [stream_of(2, draw).at(i) for i in range(1500)]
    problems = [a.problem for a in asked]
    assert {a.source for a in asked} == {r.name for r in regimes(draw)}
    assert {p.a_dtype for p in problems} == {DType.FP16, DType.BF16, DType.E4M3}
    assert {(p.a_dtype, p.layout) for p in problems} == {
        (d, layout) for d in (DType.FP16, DType.BF16) for layout in Layout} | {(DType.E4M3, Layout.TN)}
    assert {p.d_dtype for p in problems if p.a_dtype is DType.E4M3} == {DType.FP32, DType.FP16, DType.BF16}
    assert {p.a_offset_bytes for p in problems} == {0, 2, 4, 8, 16} and any(p.lda is not None for p in problems)
    assert {p.fast_accumulation for p in problems if p.a_dtype is DType.E4M3} == {False, True}
    assert {a.preference.workspace_bytes for a in asked} == {0, 1024, 4 * 2**20, 32 * 2**20}
    assert {a.preference.reduction_scheme_mask for a in asked} == {0, 1, 2, 4, 7}
    assert 0 < sum(map(promise_broken, asked)) < 50 and all(p.total_bytes < 2**30 for p in problems)


def test_a_promise_that_offsets_break_is_no_error_of_the_walk() -> None:
    asked = next(a for a in (stream_of(2).at(i) for i in range(10**4)) if promise_broken(a))
    refusal = UsageError("the address of A is not a multiple of 256 bytes")
    fault = EnvironmentProblem("the GPU reported a failed kernel: misaligned address")
    for reply in (refusal, fault, Declined(DeclineReason.CANNOT_RUN, "the offered algorithm failed to run")):
        assert row_of(0, asked, Ended(reply, "prepare", 0.1))["outcome"] == Outcome.MISALIGNED
    unread = row_of(0, asked, Ended(Declined(DeclineReason.TREE_UNREADABLE, "no tree"), "walk", 0.1))
    assert unread["outcome"] == Outcome.DECLINED  # it ran
    kept = next(a for a in (stream_of(2).at(i) for i in range(10**4)) if not promise_broken(a))
    assert row_of(0, kept, Ended(refusal, "prepare", 0.1))["outcome"] == Outcome.ERROR


@pytest.mark.parametrize(("text", "lost", "outcome"), [
    ("the child process did not finish walk within its time limit", True, Outcome.ERROR), ("no tree", False, Outcome.DECLINED)])
def test_a_hang_is_an_error_and_a_decline_is_none(text: str, lost: bool, outcome: Outcome) -> None:
    row = row_of(3, stream_of(2).at(3), Ended(Declined(DeclineReason.TIMED_OUT, text), "walk", 20.0, lost))
    assert (row["outcome"], row["reason"], row["at_step"]) == (outcome, "timed_out", "walk")


def test_bad_use_is_told_in_a_line(finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    assert main(["report", str(tmp_path / "x.parquet")]) == 2
    assert main(["run", "--library", "sim", "-o", str(finished.folder)]) == 2
    assert main(["run", "--library", "sim", "--seconds", "0", "-o", str(tmp_path / "new")]) == 2
    assert main(["report", *[str(p) for p in finished.folder.iterdir()] * 2]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4
