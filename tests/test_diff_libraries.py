"""`probe diff-libraries` on the simulated library and its made-up second release: verdicts, exit codes, dataset, resuming, report."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from conftest import INTERRUPTED

import probe
from probe.children import Child
from probe.cli.show import WIDTH
from probe.descriptor import GEMMDesc
from probe.difference.file import journal_path, read_dataset, write_dataset
from probe.difference.report import report_of
from probe.difference.rows import COLUMNS, JSON_COLUMNS, Moved, Row, Verdict
from probe.difference.run import Differences, compare_cases
from probe.errors import Declined, UsageError
from probe.oracle import SIMULATED_LIBRARIES
from probe.preference import Preference
from probe.problem import Problem
from probe.records import write_rows
from probe.regimes import Case
from probe.schedule import render_text, term_from_json

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1]), "CUDA_VISIBLE_DEVICES": "-1"}
ENVIRONMENT.pop("PROBE_CUBLASLT", None)
A, B = SIMULATED_LIBRARIES["sim"], SIMULATED_LIBRARIES["sim-2"]

# A problem for each verdict, and what two libraries known from the inside must be told to do with it.
SHAPES = {
    "16x16x96 fp16 fp32": Verdict.NEITHER, "72x8x64 bf16": Verdict.ANSWER, "72x8x2568 fp16 fp32": Verdict.ORDER,
    "9x16x2056 fp16 fp32": Verdict.BOTH, "16x16x2048 e4m3 bf16 tn": Verdict.BOTH, "16x16x96 fp16 fp16 tt": Verdict.DECLINED_B,
    "1x1x2000000": Verdict.DECLINED_BOTH}


def run(*arguments: str, folder: Path, **others: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "probe", "diff-libraries", *arguments]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False, **others)


def shapes_file(folder: Path, *lines: str) -> str:
    (folder / "shapes.txt").write_text("\n".join(lines) + "\n")
    return "shapes.txt"


@dataclass(frozen=True)
class Done:
    process: subprocess.CompletedProcess[str]
    folder: Path
    document: dict[str, Any]

    @property
    def rows(self) -> list[Row]:
        rows: list[Row] = self.document["rows"]
        return rows


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("all")
    process = run("sim", "sim-2", "--shapes", shapes_file(folder, *SHAPES), "--seed", "3", "--json", "-o", "d.parquet", folder=folder)
    assert process.stdout, process.stderr
    return Done(process, folder, json.loads(process.stdout))


def truth(library: Any, row: Row, side: str) -> GEMMDesc:
    answer = probe_answer(row[f"answer_{side}"])
    descriptor: GEMMDesc = library.descriptor(Problem.from_document(row["problem"]), answer)
    return descriptor


def probe_answer(document: dict[str, Any]) -> Any:
    from probe.answer import Answer

    return Answer.from_document(document)


# The verdicts

def test_every_verdict_is_given_where_it_belongs(done: Done) -> None:
    assert [row["verdict"] for row in done.rows] == [str(v) for v in SHAPES.values()]
    assert done.process.returncode == 1 == done.document["exit_code"]
    assert {name: count for name, count in done.document["counts"].items() if count} == {
        str(v): list(SHAPES.values()).count(v) for v in SHAPES.values()}


def test_the_verdicts_are_what_the_two_libraries_really_do(done: Done) -> None:
    """Against the answers and schedules that the simulated libraries have inside."""
    for row in done.rows:
        problem = Problem.from_document(row["problem"])
        answers = [library.ask(problem, Preference()) for library in (A, B)]
        if any(isinstance(answer, Declined) for answer in answers):
            assert row["answer"] == row["order"] == Moved.UNKNOWN
            continue
        one, other = answers
        moved = [n for n in ("splitk_num", "swizzling", "workspace_bytes") if getattr(one, n) != getattr(other, n)]
        assert row["moved_attributes"] == ", ".join(moved) and (row["answer"] == "moved") == bool(moved)
        schedules = [truth(library, row, side).schedule() for library, side in ((A, "a"), (B, "b"))]
        if row["order"] != Moved.UNKNOWN:
            assert (row["order"] == "moved") == (schedules[0] != schedules[1])
            for side, schedule in zip("ab", schedules, strict=True):
                [told] = row[f"orders_{side}"]
                assert term_from_json(told["schedule"]) == schedule and told["outcome"] == "confirmed" and told["elements_compared"] >= 4096
                assert row[f"schedule_text_{side}"] == render_text(schedule)


def test_an_order_that_moved_is_refuted_on_the_other_librarys_bytes(done: Done) -> None:
    moved = [row for row in done.rows if row["order"] == "moved"]
    assert moved
    for row in moved:
        assert 0 < row["a_on_b_differing"] <= row["a_on_b_outputs"]
        values = re.search(r"element \((\d+), (\d+)\): library \S+ \((0x[0-9a-f]+)\), model \S+ \((0x[0-9a-f]+)\)", row["a_on_b_first"])
        assert values is not None and int(values[1]) < row["m"] and int(values[2]) < row["n"] and values[3] != values[4]
        fields = {name: (one, other) for name, one, other in row["moved_fields"]}
        spans = [truth(library, row, side).k_cuts[0].span for library, side in ((A, "a"), (B, "b"))]
        assert [f"span {span}" in text for span, text in zip(spans, fields["k_cuts"], strict=True)] == [True, True]
    assert all(row["a_on_b_first"] is None for row in done.rows if row["order"] != "moved")


def test_a_cut_that_ordinary_draws_do_not_show_is_found_all_the_same(done: Done) -> None:
    """e4m3 in bf16 out: 4,352 dot products of B are what A's order gives; the walks differ, and a probe's inputs tell."""
    row = next(row for row in done.rows if row["input_dtype"] == "e4m3")
    assert row["verdict"] == Verdict.BOTH and "probe with a pair" in row["a_on_b_inputs"]


def test_notes_say_why(done: Done) -> None:
    notes = {row["verdict"]: row["note"] for row in done.rows}
    assert "no kernel for layout tt" in notes[Verdict.DECLINED_B] and "too_large" in notes[Verdict.DECLINED_BOTH]
    assert {notes[v] for v in (Verdict.NEITHER, Verdict.ANSWER, Verdict.ORDER, Verdict.BOTH)} == {""}


def test_dropped_products_are_in_the_row(done: Done) -> None:
    for row in done.rows:
        if row["order"] in ("same", "moved"):
            assert [row[f"k_summed_{s}"] for s in "ab"] == [truth(lib, row, s).k_summed for lib, s in ((A, "a"), (B, "b"))]


def test_seeds_differ_between_steps_and_problems(done: Done) -> None:
    seeds = [row[name] for row in done.rows for name in ("seed_walk_a", "seed_walk_b", "seed_a_on_b")]
    assert len(set(seeds)) == len(seeds) and {row["seed"] for row in done.rows} == {3}


def steady(rows: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in ("date", "seconds")} for row in rows]


def test_the_dataset_says_what_the_command_said(done: Done) -> None:
    table = pq.read_table(done.folder / "d.parquet")
    assert {f.name: str(f.type) for f in table.schema} == COLUMNS
    assert table.schema.metadata[b"probe.kind"] == b"library differences"
    rows = read_dataset(done.folder / "d.parquet")
    unfolded = [{n: json.loads(v) if n in JSON_COLUMNS and v is not None else v for n, v in row.items()} for row in rows]
    assert unfolded == done.rows
    assert list(pd.read_parquet(done.folder / "d.parquet").verdict) == [str(v) for v in SHAPES.values()]
    assert sorted(p.name for p in done.folder.iterdir()) == ["d.parquet", "shapes.txt"]


def test_the_documentation_names_every_column() -> None:
    section = (ROOT / "docs" / "libraries.md").read_text(encoding="utf-8").partition("### The dataset")[2]
    told = {name for line in section.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert told == {name for name in COLUMNS if not name.endswith("_b") or name in ("seed_walk_b", "seed_a_on_b")}


def test_progress_off_a_terminal_is_a_line_for_each_problem(done: Done) -> None:
    lines = [line for line in done.process.stderr.splitlines() if re.match(r"probe: \d+/", line)]
    assert len(lines) == len(SHAPES) and lines[0] == f"probe: 1/{len(SHAPES)} 16x16x96.fp16.fp32.nn: neither moved"
    assert sum("simulated library" in line for line in done.process.stderr.splitlines()) == 2


# Exit codes and text

def test_nothing_moves_between_a_library_and_itself(tmp_path: Path) -> None:
    done = run("sim", "sim", "--shapes", shapes_file(tmp_path, "16x16x96", "72x8x64", "1x1x2000000"), folder=tmp_path)
    assert done.returncode == 0 and "one and the same library" in done.stderr
    assert "2 neither moved" in done.stdout and "1 declined by both" in done.stdout


def test_everything_declined_exits_3_whichever_side(tmp_path: Path) -> None:
    shapes = shapes_file(tmp_path, "16x16x96 fp16 fp16 tt", "16x9x100 fp16 fp16 tt")
    done = run("sim-2", "sim", "--shapes", shapes, folder=tmp_path)
    assert done.returncode == 3 and "2 declined by A" in done.stdout


def test_the_text_for_a_person(tmp_path: Path) -> None:
    wanted = (Verdict.ORDER, Verdict.ANSWER, Verdict.NEITHER)
    shapes = shapes_file(tmp_path, *(line for line, verdict in SHAPES.items() if verdict in wanted))
    done = run("sim", "sim-2", "--shapes", shapes, "--seed", "3", folder=tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and all(line.isascii() and len(line) <= WIDTH for line in lines)
    assert "swizzling 0 -> 1" in done.stdout and "the same: algo 66, split-K 2" in done.stdout
    assert "k_cuts: contiguous span 1344, chain forward -> contiguous span 1536, chain forward" in done.stdout
    assert "A's order is refuted" in done.stdout and "the first, in " in done.stdout
    assert sum(line.startswith("problem ") for line in lines) == 2  # what did not move is only counted
    assert "16x16x96" not in done.stdout


@pytest.mark.parametrize(("arguments", "said"), [
    (("sim", "sim-2"), "two libraries and --shapes"), (("sim",), "two libraries and --shapes"),
    (("sim", "sim-2", "--shapes", "nowhere"), "neither a regime nor a file"),
    (("sim", "sim-2", "--shapes", "small", "--dtype", "fp12"), "fp12"),
    (("sim", "sim-2", "--shapes", "small", "--gpu", "1"), "no GPU"),
    (("sim", "sim-2", "--shapes", "small", "--seed", "-1"), "seed"),
    (("sim", "sim-2", "--shapes", "small", "--time-limit", "0"), "time_limit"),
    (("sim", "sim-2", "--shapes", "small", "--workspace", "much"), "workspace"),
    (("sim", "sim-2", "--shapes", "small", "-o", "d.json"), ".parquet"),
    (("sim", "sim-2", "--shapes", "small", "--resume"), "-o DATASET.parquet"),
    (("sim", "sim-2", "--shapes", "small", "--report", "d.parquet"), "compares nothing"),
    (("--report", "absent.parquet"), "there is no file"),
    (("sim", "no-such-library.so", "--shapes", "small"), "no-such-library.so"),
])
def test_bad_usage_is_one_line_and_exit_2(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and said in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_cannot_be_used_exits_4(tmp_path: Path) -> None:
    (tmp_path / "libcublasLt.so.13").write_bytes(b"\x7fELF and nothing else")
    done = run("sim", "./libcublasLt.so.13", "--shapes", "small", "--json", folder=tmp_path)
    assert done.returncode == 4 and json.loads(done.stdout)["kind"] == "environment" and "cannot be loaded" in done.stderr


def test_the_python_verb_is_the_command(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str, str]] = []
    path = tmp_path / "s.csv"
    path.write_text("m,n,k\n72,8,64\n")
    got = probe.diff_libraries("sim", "sim-2", path, dtype="bf16", seed=1, progress=lambda *step: seen.append(step))
    assert isinstance(got, Differences) and got.exit_code == 1 and got.counts[Verdict.ANSWER] == 1
    assert seen == [(0, 1, "72x8x64.bf16.bf16.nn", ""), (1, 1, "72x8x64.bf16.bf16.nn", "answer moved")]


def test_help_loads_nothing_heavy() -> None:
    code = ("import runpy, sys\nsys.argv = ['probe', 'diff-libraries', '--help']\ntry:\n    runpy.run_module('probe', run_name='__main__', "
            "alter_sys=True)\nexcept SystemExit:\n    pass\nprint(sorted({n.partition('.')[0] for n in sys.modules}))")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "--shapes" in done.stdout
    assert not {"numpy", "pandas", "pyarrow", "cupy", "triton", "torch"} & set(re.findall(r"'(\w+)'", done.stdout.splitlines()[-1]))


# Resuming

LONG = ("16x16x96 fp16 fp32", "9x16x2056 fp16 fp32", "72x8x64", "16x16x300000 fp16 fp32")  # the last one takes most of a minute


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_resume_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    shapes, output = shapes_file(tmp_path, *LONG), tmp_path / "d.parquet"
    command = [sys.executable, "-m", "probe", "diff-libraries", "sim", "sim-2", "--shapes", shapes, "--seed", "3", "-o", "d.parquet"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          start_new_session=True) as process:
        journal = journal_path(output)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and (not journal.exists() or len(journal.read_text().splitlines()) < 4):
            time.sleep(0.1)
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode in INTERRUPTED and "3 of 4 problems are finished and kept" in stderr
    assert len(children) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not output.exists() and sorted(p.name for p in tmp_path.iterdir()) == ["d.parquet.unfinished", "shapes.txt"]

    again = run("sim", "sim-2", "--shapes", shapes, "-o", "d.parquet", folder=tmp_path)
    assert again.returncode == 2 and "--resume goes on" in again.stderr
    other = run("sim", "sim-2", "--shapes", shapes, "-o", "d.parquet", "--resume", "--seed", "4", folder=tmp_path)
    assert other.returncode == 2 and "another seed" in other.stderr
    turned = run("sim-2", "sim", "--shapes", shapes, "-o", "d.parquet", "--resume", folder=tmp_path)
    assert turned.returncode == 2 and "another a, b" in turned.stderr

    # The long problem is cut short by the time limit; a line that was being written when its process died is dropped.
    with journal.open("a") as file:
        file.write('{"version": 1, "da')
    resumed = run("sim", "sim-2", "--shapes", shapes, "-o", "d.parquet", "--resume", "--time-limit", "1.5", folder=tmp_path)
    assert resumed.returncode == 1 and "3 of 4 problems were finished before" in resumed.stderr and not journal.exists()
    rows = read_dataset(output)
    assert [row["verdict"] for row in rows] == [Verdict.NEITHER, Verdict.BOTH, Verdict.ANSWER, Verdict.DECLINED_BOTH]
    assert "timed_out" in rows[3]["note"]
    fresh = probe.diff_libraries("sim", "sim-2", tmp_path / shapes_file(tmp_path, *LONG[:3]), seed=3)
    assert steady(rows[:3]) == steady(list(fresh.rows))


def test_resume_without_a_journal_begins_and_says_so(tmp_path: Path) -> None:
    done = run("sim", "sim", "--shapes", shapes_file(tmp_path, "16x16x96"), "-o", "d.parquet", "--resume", folder=tmp_path)
    assert done.returncode == 0 and "nothing to resume" in done.stderr and (tmp_path / "d.parquet").exists()


def test_an_output_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "d.parquet").write_text("mine")
    done = run("sim", "sim-2", "--shapes", "small", "-o", "d.parquet", folder=tmp_path)
    assert done.returncode == 2 and "not overwritten" in done.stderr and (tmp_path / "d.parquet").read_text() == "mine"


def test_two_runs_do_not_share_a_journal(tmp_path: Path) -> None:
    shapes = shapes_file(tmp_path, "16x16x96")
    with journal_path(tmp_path / "d.parquet").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = run("sim", "sim-2", "--shapes", shapes, "-o", "d.parquet", "--resume", folder=tmp_path)
    assert done.returncode == 2 and "another run is writing" in done.stderr


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    journal_path(tmp_path / "d.parquet").write_text("notes\nof mine\n")
    done = run("sim", "sim-2", "--shapes", shapes_file(tmp_path, "16x16x96"), "-o", "d.parquet", "--resume", folder=tmp_path)
    assert done.returncode == 2 and "no journal" in done.stderr
    assert journal_path(tmp_path / "d.parquet").read_text() == "notes\nof mine\n"


# Libraries that fail or contradict themselves, as real children

def child(folder: Path, oracle: str) -> Child:
    program = folder / "child.py"
    body = textwrap.indent(textwrap.dedent(oracle), "    ")
    program.write_text("import os, signal\nfrom dataclasses import replace\nfrom probe.oracle import Opened, SimulatedOracle\n"
                       f"from probe.worker import serve\n\nclass Oracle(SimulatedOracle):\n{body}\nserve(lambda: Opened(Oracle(), ''))\n")
    return Child(command=[sys.executable, str(program)], name="b")


def compared(folder: Path, oracle: str, *cases: Case) -> list[tuple[Verdict, str]]:
    with Child("sim") as a, child(folder, oracle) as b:
        return [one.judge() for one in compare_cases(a, b, list(enumerate(cases)), Preference(), 3, 60)]


PLAIN = Case("16x16x96", "fp16", "fp32")


def test_a_fault_costs_one_problem(tmp_path: Path) -> None:
    faulty = """
        def summing(self, problem, answer, preference):
            if problem.k == 64:
                os.kill(os.getpid(), signal.SIGSEGV)
            return super().summing(problem, answer, preference)
    """
    (first, _), (second, why), (third, _) = compared(tmp_path, faulty, PLAIN, Case("16x16x64", "fp16", "fp32"), PLAIN)
    assert (first, second, third) == (Verdict.NEITHER, Verdict.DECLINED_B, Verdict.NEITHER) and "SIGSEGV" in why


def test_what_a_library_raises_declines_one_problem(tmp_path: Path) -> None:
    raising = """
        def capture(self, problem, answer, preference):
            from probe.errors import EnvironmentProblem
            if problem.k == 64:
                raise EnvironmentProblem("the GPU reported a failed kernel: planted")
            return super().capture(problem, answer, preference)
    """
    (first, why), (second, _) = compared(tmp_path, raising, Case("16x16x64", "fp16", "fp32"), PLAIN)
    assert (first, second) == (Verdict.DECLINED_B, Verdict.NEITHER) and "planted" in why


def test_an_order_that_is_not_confirmed_is_unsettled(tmp_path: Path) -> None:
    """B keeps 20 bits in a step, an arithmetic that probe does not know: its tree is read, and no candidate gives its bytes."""
    odd = """
        def summing(self, problem, answer, preference):
            from probe.schedule import Row
            from probe.simulator.library import SimulatedSumming, kernel_descriptor
            desc = replace(kernel_descriptor(problem, answer, self.library), row=Row(16, 20))
            return SimulatedSumming(problem.m, problem.n, problem.k, desc.schedule(), problem.a_dtype, problem.d_dtype)
    """
    [(verdict, why)] = compared(tmp_path, odd, PLAIN)
    assert verdict is Verdict.UNSETTLED and why == "the order of B is refuted"


@pytest.mark.parametrize(("times", "verdict", "seed"), [(1, Verdict.NEITHER, 1), (2, Verdict.NEITHER, 2), (3, Verdict.UNSETTLED, 2)])
def test_what_is_ambiguous_is_walked_again_on_other_draws(times: int, verdict: Verdict, seed: int, tmp_path: Path) -> None:
    """The first walks of B compare no draw while candidates are told apart, so that all of them stand."""
    blind = f"""
        walks = 0
        def capture(self, problem, answer, preference):
            import probe.pipeline as pipeline
            import probe.recovery.settle as settle
            self.walks += 1
            self.rounds = getattr(self, "rounds", (settle.ROUNDS, pipeline.LIKE_ROUNDS))
            settle.ROUNDS, pipeline.LIKE_ROUNDS = ((), ()) if self.walks <= {times} else self.rounds
            return super().capture(problem, answer, preference)
    """
    with Child("sim") as a, child(tmp_path, blind) as b:
        [one] = compare_cases(a, b, [(0, PLAIN)], Preference(), 3, 60)
    tries = [3 + 3, 3 + 4, 3 + 5]  # the seed of the run, and a number for each walk of B
    assert one.judge()[0] is verdict and one.seeds.walk_b == tries[seed] and one.seeds.walk_a == 3
    assert ("ambiguous" in one.judge()[1]) == (verdict is Verdict.UNSETTLED)


def test_two_answers_to_one_question_are_reported(tmp_path: Path) -> None:
    unsteady = """
        asked = 0
        def ask(self, problem, preference):
            self.asked += 1
            return replace(super().ask(problem, preference), swizzling=self.asked)
    """
    [(verdict, why)] = compared(tmp_path, unsteady, PLAIN)
    assert verdict is Verdict.INCONSISTENT and "two answers" in why


def test_an_order_that_nothing_refutes_is_reported_and_not_called_moved(tmp_path: Path) -> None:
    """B sums in two parts while it is walked, and then as A does."""
    turning = """
        calls = 0
        def summing(self, problem, answer, preference):
            from probe.descriptor import KCut
            from probe.simulator.library import SimulatedSumming, kernel_descriptor
            self.calls += 1
            desc = kernel_descriptor(problem, answer, self.library)
            schedule = replace(desc, k_cuts=(KCut(48),) if self.calls == 1 else ()).schedule()
            return SimulatedSumming(problem.m, problem.n, problem.k, schedule, problem.a_dtype, problem.d_dtype)
    """
    [(verdict, why)] = compared(tmp_path, turning, PLAIN)
    assert verdict is Verdict.INCONSISTENT and "nothing tried on B refutes A's" in why


def test_elements_that_share_an_order_are_part_of_it(tmp_path: Path) -> None:
    """B sums the first row in two parts and all others as A does."""
    one_row = """
        def summing(self, problem, answer, preference):
            import numpy as np
            from probe.descriptor import KCut
            from probe.simulator.library import SimulatedSumming, kernel_descriptor
            single = self.library.summing(problem, answer)
            split = replace(kernel_descriptor(problem, answer, self.library), k_cuts=(KCut(48),)).schedule()
            class Both(SimulatedSumming):
                def outputs(self, batch):
                    out = []
                    for (_, cells), top, rest in zip(batch, super().outputs(batch), single.outputs(batch)):
                        rows = np.arange(problem.m)[:, None] if cells is None else cells.rows
                        out.append(np.where(rows == 0, top, rest))
                    return out
            return Both(problem.m, problem.n, problem.k, split, problem.a_dtype, problem.d_dtype)
    """
    with Child("sim") as a, child(tmp_path, one_row) as b:
        [one] = compare_cases(a, b, [(0, PLAIN)], Preference(), 3, 60)
    assert one.judge()[0] is Verdict.ORDER and one.refutation is not None and "element (0, " in one.refutation.first


# The report

def test_the_report_is_made_of_the_dataset(done: Done) -> None:
    process = run("--report", "d.parquet", folder=done.folder)
    text = process.stdout
    assert process.returncode == 0 and process.stderr == "" and text.rstrip("\n") == report_of([done.folder / "d.parquet"])
    [line] = [line for line in text.splitlines() if line.startswith("| `d` | simulated 0.1.0 and simulated 0.2.0")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    wanted = [list(SHAPES.values()).count(v) for v in Verdict]  # the columns stand in the order of the verdicts
    sound = [sum(row[f"outcome_{side}"] == "confirmed" for row in done.rows) for side in "ab"]
    assert [int(cell) for cell in cells[2:-1]] == [len(SHAPES), *sound, *wanted]
    for row in done.rows:
        if row["order"] == "moved":
            assert f"### {row['case']}: {row['verdict']}" in text and row["a_on_b_first"] in text
            assert row["schedule_text_a"] in text and row["schedule_text_b"] in text
        elif row["note"]:
            assert f"- {row['case']}: {row['note']}" in text


def test_several_datasets_make_one_report(done: Done, tmp_path: Path) -> None:
    turned = tmp_path / "turned.parquet"
    probe.diff_libraries("sim-2", "sim", done.folder / shapes_file(done.folder, "16x16x96 fp16 fp16 tt"), seed=1, output=turned)
    text = report_of([done.folder / "d.parquet", turned])
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["## Counts", "## simulated 0.1.0 and simulated 0.2.0: d", "## simulated 0.2.0 and simulated 0.1.0: turned"]
    assert "### Declined by A" in text


def test_a_file_that_is_no_dataset_of_differences_is_refused(done: Done, tmp_path: Path) -> None:
    write_rows([{"version": 1}], tmp_path / "points.parquet")
    with pytest.raises(UsageError, match="points 1"):
        report_of([tmp_path / "points.parquet"])
    write_dataset([], tmp_path / "empty.parquet")
    with pytest.raises(UsageError, match="holds no problem"):
        report_of([tmp_path / "empty.parquet"])
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(UsageError, match="no Parquet"):
        report_of([tmp_path / "text.parquet"])


def test_no_path_of_this_machine_is_in_a_dataset(done: Done) -> None:
    assert str(done.folder) not in json.dumps(done.rows) and str(ROOT) not in json.dumps(done.rows)


