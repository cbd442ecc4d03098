"""Campaigns on the simulated library: the same table whoever runs it, what breaks costs one problem, and what travels arrives whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from campaign_parts import BREAKS, ENVIRONMENT, PATCHWORK, TINY, campaign_file, children, stand_in, table

from probe.campaign import admin
from probe.campaign.admin import (
    compact_campaign,
    export_campaign,
    import_campaign,
    list_campaigns,
    read_compact,
    status_campaign,
    stop_campaign,
)
from probe.campaign.folder import Folder
from probe.campaign.parse import read_campaign
from probe.campaign.progress import Event
from probe.campaign.rows import COLUMNS
from probe.campaign.run import Ran, resume_campaign, run_campaign
from probe.children import Child
from probe.cli import main
from probe.errors import Declined, EnvironmentProblem, ExitCode, UsageError
from probe.oracle import open_oracle
from probe.pipeline import walk_problem
from probe.records import Point, row_of

Patch, Caught = pytest.MonkeyPatch, pytest.CaptureFixture[str]
PROBLEMS = 12


def ran(result: Ran | Declined) -> Ran:
    assert isinstance(result, Ran)
    return result


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run by one worker."""
    place = tmp_path_factory.mktemp("whole")
    result = ran(run_campaign(campaign_file(place, PROBLEMS), place / "out"))
    assert (result.ended, result.rows, result.total, result.exit_code) == ("finished", PROBLEMS, PROBLEMS, ExitCode.OK)
    return place / "out"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another campaign, of one problem."""
    place = tmp_path_factory.mktemp("other")
    run_campaign(campaign_file(place, 1, "draws = 5"), place / "out")
    return place / "out"


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-r", str(whole), str(tmp_path / "copy")], check=True)
    return tmp_path / "copy"


# The same table

def test_a_row_is_what_a_walk_of_its_problem_gives(whole: Path) -> None:
    stream = Folder(whole).frozen.campaign.stream()
    for row in Folder(whole).read()[:2]:
        asked = stream.at(row["index"])
        point = walk_problem(asked.problem, asked.preference, open_oracle("sim", 0), seed=stream.draw_seed(row["index"]))
        assert isinstance(point, Point) and list(row) == list(COLUMNS)
        mine = row_of(point, point.classes[0])
        moving = {"version", "date", "seconds", "walk_seconds"}
        assert {n: row[n] for n in mine if n not in moving} == {n: v for n, v in mine.items() if n not in moving}
        assert row["elapsed_seconds"] > row["seconds"] > 0 and row["attempts"] == row["classes"] == 1


@pytest.mark.slow
def test_two_workers_give_the_table_of_one(whole: Path, tmp_path: Path) -> None:
    result = ran(run_campaign(campaign_file(tmp_path, PROBLEMS), tmp_path / "two", gpus=[0, 1]))
    assert {row["gpu"] for row in Folder(tmp_path / "two").read()} == {0, 1}
    assert result.exit_code == ExitCode.OK and table(tmp_path / "two") == table(whole)


@pytest.mark.slow
def test_pieces_that_were_carried_give_the_same_table(whole: Path, tmp_path: Path) -> None:
    file = campaign_file(tmp_path, PROBLEMS)
    first = ran(run_campaign(file, tmp_path / "a", budget="3 problems"))
    assert (first.ended, first.rows) == ("budget", 3)
    run_campaign(file, tmp_path / "b", begin=7, budget="2 problems")
    archives = [path for name in "ab" for path in export_campaign(tmp_path / name, tmp_path / f"{name}.parquet")]
    assert import_campaign(archives[:1], tmp_path / "joined") == 3
    assert import_campaign(archives, tmp_path / "joined") == 2  # what is there already is no harm
    last = ran(resume_campaign(tmp_path / "joined"))
    assert (last.ended, last.rows) == ("finished", PROBLEMS - 5) and table(tmp_path / "joined") == table(whole)


@pytest.mark.slow
def test_a_time_budget_ends_a_run_and_keeps_what_is_finished(tmp_path: Path) -> None:
    result = ran(run_campaign(campaign_file(tmp_path, 10**6), tmp_path / "out", budget="1s"))
    assert result.ended == "budget" and 1 <= result.seconds < 20 and len(table(tmp_path / "out")) == result.rows > 0


@pytest.mark.slow
def test_more_draws_are_drawn_afresh(tmp_path: Path) -> None:
    run_campaign(campaign_file(tmp_path, 2), tmp_path / "few")
    run_campaign(campaign_file(tmp_path, 2, "draws = 100"), tmp_path / "many")
    for few, many in zip(table(tmp_path / "few"), table(tmp_path / "many"), strict=True):
        counts = [sum(int(part.split(":")[1]) for part in row["draws"].split(",")) for row in (few, many)]
        rounds = -(-100 // counts[0])
        assert counts[0] < 100 <= counts[1] and many["outcome"] == "confirmed"
        assert many["elements_compared"] == rounds * few["elements_compared"] and few["schedule"] == many["schedule"]


@pytest.mark.slow
def test_elements_of_several_orders_share_one_row(tmp_path: Path) -> None:
    (tmp_path / "edge.txt").write_text("16x16x1024 fp16 fp32\n")
    file = campaign_file(tmp_path, 1, "draws = 60", '[[list]]\nshapes = "edge.txt"\n')
    run_campaign(file, tmp_path / "out", make_child=children({"sim": stand_in(tmp_path, PATCHWORK)}))
    (row,) = table(tmp_path / "out")
    (other,) = json.loads(row["more_classes"])
    assert (row["outcome"], row["classes"]) == ("confirmed", 2), row["reason_text"]
    assert {row["elements_in_class"]: row["family"], other["elements"]: other["family"]} == {
        240: "single accumulator", 16: "split-K in 4 parts, single accumulator"}
    assert other["outcome"] == "confirmed" and row["outputs_compared"] > other["proof"]["compared"] > 0
    assert sum(count for _, count in other["proof"]["draws"]) >= 60


# What breaks


BROKEN = {70: None, 71: "died", 72: "timed_out", 73: "environment", 74: "library", 75: "bug", 76: None}
WORDS = {71: "SIGSEGV", 72: "2 s a problem", 73: "memory", 74: "it broke", 75: "ZeroDivisionError"}


@pytest.mark.parametrize("extents", [(74, 76), pytest.param(tuple(BROKEN), marks=pytest.mark.slow)])
def test_whatever_breaks_costs_one_problem_and_says_why(tmp_path: Path, extents: tuple[int, ...]) -> None:
    regime = '[[list]]\nshapes = "broken.txt"\n'
    (tmp_path / "broken.txt").write_text("".join(f"32x32x{k} fp16 fp32\n" for k in extents))
    file = campaign_file(tmp_path, len(extents), 'time-limit = "2s"', regime)
    result = ran(run_campaign(file, tmp_path / "out", make_child=children({"sim": stand_in(tmp_path, BREAKS)})))
    rows = {row["k"]: row for row in table(tmp_path / "out")}
    assert {k: row["reason"] for k, row in rows.items()} == {k: BROKEN[k] for k in extents}
    for k, row in rows.items():
        if BROKEN[k] is None:
            assert row["outcome"] == "confirmed"
        else:
            assert row["outcome"] == "failed" and WORDS[k] in row["reason_text"] and row["algo_id"] is not None
            assert row["attempts"] == (2 if k == 71 else 1)
    assert (result.ended, result.exit_code, result.lost) == ("finished", ExitCode.NOT_CONFIRMED, ())


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_nothing(whole: Path, tmp_path: Path) -> None:
    made: list[Child] = []
    killed: list[int] = []

    def kill_once(event: Event) -> None:
        if event.kind == "row" and not killed and made[0].pid is not None:
            killed.append(made[0].pid)
            os.kill(made[0].pid, signal.SIGKILL)

    result = ran(run_campaign(campaign_file(tmp_path, PROBLEMS), tmp_path / "out", progress=kill_once, make_child=children({}, made)))
    rows = table(tmp_path / "out")
    assert killed and result.exit_code == ExitCode.OK and made[0].pid is None
    assert [row | {"attempts": 1} for row in rows] == table(whole) and sum(row["attempts"] == 2 for row in rows) <= 1


@pytest.mark.slow
def test_a_lost_gpu_loses_its_worker_and_no_problem(whole: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    command = stand_in(tmp_path, f"""
        def summing(self, problem, answer, preference):
            if Path({str(gone)!r}).exists(): raise LibraryError('cublasLtMatmul', 14, 'INTERNAL', 'the device is lost', '')
            return super().summing(problem, answer, preference)
        """)
    events: list[Event] = []

    def lose(event: Event) -> None:
        events.append(event)
        if sum(e.kind == "row" and e.values["library_name"] == "sim" for e in events) == 4:
            gone.touch()

    file = campaign_file(tmp_path, PROBLEMS, libraries='["sim", "sim-2"]')
    result = ran(run_campaign(file, tmp_path / "out", progress=lose, make_child=children({"sim": command})))
    assert (result.ended, result.exit_code) == ("lost", ExitCode.ENVIRONMENT) and "the device is lost" in result.lost[0]
    rows = table(tmp_path / "out")
    assert 4 <= sum(row["library_name"] == "sim" for row in rows) < PROBLEMS
    assert sum(row["library_name"] == "sim-2" for row in rows) == PROBLEMS and {row["outcome"] for row in rows} == {"confirmed"}
    gone.unlink()
    again = ran(resume_campaign(tmp_path / "out", make_child=children({"sim": command})))
    assert (again.ended, again.exit_code) == ("finished", ExitCode.OK)
    assert [row for row in table(tmp_path / "out") if row["library_name"] == "sim"] == table(whole)


@pytest.mark.slow
def test_a_library_that_vanished_or_changed_loses_its_worker_at_resume(tmp_path: Path) -> None:
    file = campaign_file(tmp_path, 4, libraries='["sim", "sim-2"]')
    command = stand_in(tmp_path, "pass")
    run_campaign(file, tmp_path / "out", budget="2 problems", make_child=children({"sim": command}))
    (tmp_path / "library.py").unlink()
    vanished = ran(resume_campaign(tmp_path / "out", make_child=children({"sim": command})))
    assert (vanished.ended, vanished.exit_code, vanished.rows) == ("lost", ExitCode.ENVIRONMENT, 2)
    other = stand_in(tmp_path, "def __init__(self):\n    super().__init__()\n    from probe.oracle import SIMULATED_LIBRARIES\n"
                               "    self.target = SIMULATED_LIBRARIES['sim-2'].target")
    changed = ran(resume_campaign(tmp_path / "out", make_child=children({"sim": other})))
    assert changed.rows == 0 and "the campaign began with" in changed.lost[0]


def test_a_library_that_is_not_there_begins_no_folder(tmp_path: Path) -> None:
    with pytest.raises((EnvironmentProblem, UsageError)):
        run_campaign(campaign_file(tmp_path, libraries='["9.9.9"]'), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_full_disk_is_said_and_what_is_whole_stays(whole: Path, tmp_path: Path) -> None:
    """A limit on the size of a file stands in for the disk: the write fails in the same call."""
    program = ("import resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
               "sys.argv[0] = 'probe'\nfrom probe.cli import main\nmain()\n")
    done = subprocess.run([sys.executable, "-c", program, "campaign", "run", str(campaign_file(tmp_path, PROBLEMS)), "-o", "out"],
                          cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == ExitCode.ENVIRONMENT and "cannot be written" in done.stderr, done.stderr
    kept = table(tmp_path / "out")
    assert 0 < len(kept) < PROBLEMS
    resume_campaign(tmp_path / "out")
    assert table(tmp_path / "out") == table(whole)


# Two processes

@contextmanager
def _begin(place: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-m", "probe", "campaign", *more, "--json"], cwd=place, env=ENVIRONMENT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        except BaseException:
            process.kill()  # a failed test does not wait for a run without end
            raise


def _until_rows(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        count -= json.loads(line)["event"] == "row"
        if count <= 0:
            return


def test_stop_interrupt_and_a_second_run(whole: Path, tmp_path: Path) -> None:
    campaign_file(tmp_path, 10_000)  # the budget is no part of the identity: its first rows are those of `whole`
    with _begin(tmp_path, "run", "tiny.toml", "-o", "out") as process:
        _until_rows(process, 2)
        assert status_campaign(tmp_path / "out").process == process.pid
        with pytest.raises(EnvironmentProblem, match=f"process {process.pid}"):
            resume_campaign(tmp_path / "out")
        assert stop_campaign(tmp_path / "out") == process.pid
        events = [json.loads(line) for line in process.stdout or ()]
    assert process.returncode == 0 and events[-1]["event"] == "end" and events[-1]["ended"] == "stopped"
    stopped = len(table(tmp_path / "out"))
    assert stopped >= 2
    with pytest.raises(UsageError, match="no run is at work"):
        stop_campaign(tmp_path / "out")
    with _begin(tmp_path, "resume", "out") as process:
        _until_rows(process, 2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    rows = table(tmp_path / "out")
    assert process.returncode == 130 and len(rows) >= stopped + 2
    assert [row["index"] for row in rows] == list(range(len(rows))) and rows[:PROBLEMS] == table(whole)[:len(rows)]


@pytest.mark.slow
def test_a_second_interrupt_does_not_wait_for_what_hangs(tmp_path: Path) -> None:
    command = stand_in(tmp_path, "def summing(self, problem, answer, preference):\n    time.sleep(100)")
    program = tmp_path / "run.py"
    program.write_text("import sys\nsys.path.insert(0, sys.argv[1])\nfrom campaign_parts import *\nfrom probe.campaign.run import *\n"
                       f"run_campaign('tiny.toml', 'out', make_child=children({{'sim': {command!r}}}), "
                       "progress=lambda e: print(e.kind, flush=True))\n")
    campaign_file(tmp_path)
    with subprocess.Popen([sys.executable, str(program), str(Path(__file__).parent)], cwd=tmp_path, env=ENVIRONMENT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert any(line == "begin\n" for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert any(line == "notice\n" for line in process.stdout)  # that it waits for what is in flight
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors and time.monotonic() - began < 30 and table(tmp_path / "out") == []


# Files that are not what they should be

def _truncate(folder: Path, other: Path) -> Path:
    part = folder / "rows" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    return part


def _foreign(folder: Path, other: Path) -> Path:
    part = folder / "rows" / "part-000001.parquet"
    part.write_bytes((other / "rows" / "part-000000.parquet").read_bytes())
    return part


def _other_schema(folder: Path, other: Path) -> Path:
    import pyarrow.parquet as pq

    part = folder / "rows" / "part-000000.parquet"
    read = pq.read_table(part)
    pq.write_table(read.replace_schema_metadata({**read.schema.metadata, b"probe.version": b"99"}), part)
    return part


def _twice(folder: Path, other: Path) -> Path:
    part = folder / "rows" / "part-000003.parquet"
    part.write_bytes((folder / "rows" / "part-000000.parquet").read_bytes())
    return part


def _nonsense(folder: Path, other: Path) -> Path:
    part = folder / "rows" / "part-000002.jsonl"
    part.write_text("{}\n{}\n")
    return part


def _edited(folder: Path, other: Path) -> Path:
    file = folder / "campaign.json"
    document = json.loads(file.read_text())
    document["campaign"]["draws"] = 1
    file.write_text(json.dumps(document))
    return file


def _points(folder: Path, other: Path) -> Path:
    from probe.verbs import walk

    walk("8x8x16", library="sim", output=folder / "rows" / "part-000007.parquet")
    return folder / "rows" / "part-000007.parquet"


@pytest.mark.parametrize("spoil", [_truncate, _foreign, _other_schema, _twice, _nonsense, _edited, _points])
def test_a_bad_file_is_named_and_nothing_is_overwritten(copy: Path, other: Path, spoil: Any) -> None:
    name = spoil(copy, other).name
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file() and path.name != "lock"}
    for verb in (status_campaign, resume_campaign, lambda f: export_campaign(f, f.parent / "x.parquet")):
        with pytest.raises(UsageError, match=name):
            verb(copy)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file() and path.name != "lock"} == before
    assert name in list_campaigns(copy.parent)[0].problem and not (copy.parent / "x.parquet").exists()


@pytest.mark.slow
def test_a_part_that_is_moved_away_is_run_again(copy: Path, whole: Path) -> None:
    _truncate(copy, copy).unlink()
    assert ran(resume_campaign(copy)).rows == PROBLEMS and table(copy) == table(whole)


def test_a_folder_is_never_begun_twice(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not empty.*resume"):
        run_campaign(campaign_file(tmp_path, PROBLEMS), copy)
    with pytest.raises(UsageError, match="differs in draws"):
        run_campaign(campaign_file(tmp_path, PROBLEMS, "draws = 11"), copy)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="another folder"):
        run_campaign(campaign_file(tmp_path, PROBLEMS), tmp_path / "full")
    assert len(table(copy)) == PROBLEMS


# Files that travel

def test_compact_is_smaller_and_gives_every_schedule_back(whole: Path, tmp_path: Path) -> None:
    path = compact_campaign(whole, tmp_path / "compact.parquet")
    left_out = dict.fromkeys(("capture", "evidence"))
    assert read_compact(path) == [row | left_out for row in read_compact(export_campaign(whole, tmp_path / "all.parquet")[0])]
    assert any(row["schedule"] is None for row in read_compact(path, schedules=False))
    assert path.stat().st_size < (whole / "rows" / "part-000000.parquet").stat().st_size
    with pytest.raises(UsageError, match="not overwritten"):
        compact_campaign(whole, path)


def test_a_large_archive_becomes_several_that_join_again(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = export_campaign(whole, tmp_path / "one.parquet")
    monkeypatch.setattr(admin, "MOST_BYTES", alone[0].stat().st_size - 1)
    monkeypatch.setattr(admin, "_ROWS_A_FILE", PROBLEMS)
    several = export_campaign(whole, tmp_path / "many.parquet")
    assert len(several) == 2 and not (tmp_path / "many.parquet").exists()
    assert import_campaign(list(reversed(several)), tmp_path / "back") == PROBLEMS and table(tmp_path / "back") == table(whole)


def test_what_does_not_belong_together_is_not_joined(whole: Path, other: Path, tmp_path: Path) -> None:
    (archive,) = export_campaign(whole, tmp_path / "whole.parquet")
    (foreign,) = export_campaign(other, tmp_path / "other.parquet")
    with pytest.raises(UsageError, match=r"other\.parquet.*differs in draws"):
        import_campaign([archive, foreign], tmp_path / "joined")
    with pytest.raises(UsageError, match="does not say"):
        import_campaign([whole / "rows" / "part-000000.parquet"], tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_a_row_that_contradicts_one_that_is_there_is_refused(copy: Path, tmp_path: Path) -> None:
    from probe.campaign.parts import write_part

    folder = Folder(copy)
    rows = folder.read()
    write_part([rows[0] | {"family": "another"}], tmp_path / "bad.parquet", folder.frozen.identity, folder.frozen.to_document())
    with pytest.raises(UsageError, match="another family"):
        import_campaign([tmp_path / "bad.parquet"], copy)
    assert Folder(copy).read() == rows


# The command

def _probe(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "probe", "campaign", *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True,
                          text=True, timeout=120, check=False)


def _main(capsys: Caught, monkeypatch: Patch, *arguments: str) -> tuple[int, str]:
    """The command in this process: its exit code and stdout."""
    monkeypatch.setattr(sys, "argv", ["probe", "campaign", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), capsys.readouterr().out


def test_the_command_prints_what_python_returns(copy: Path, capsys: Caught, monkeypatch: Patch) -> None:
    monkeypatch.chdir(copy.parent)
    code, said = _main(capsys, monkeypatch, "status", "copy", "--json")
    assert code == 0 and json.loads(said) == status_campaign(copy).to_document() | {"folder": "copy"}
    assert _main(capsys, monkeypatch, "list") == (0, f"copy: tiny, {PROBLEMS} of {PROBLEMS} rows, {PROBLEMS} confirmed\n")
    assert _main(capsys, monkeypatch, "compact", "copy", "-o", "c.parquet")[0] == 0
    assert len(read_compact(Path("c.parquet"))) == PROBLEMS


@pytest.mark.slow
def test_plain_lines_off_a_terminal_and_the_end_on_stdout(tmp_path: Path) -> None:
    campaign_file(tmp_path, 3)
    done = _probe("run", "tiny.toml", folder=tmp_path)
    assert done.returncode == 0 and "3 of 3" in done.stdout and "stand-in" in done.stderr and "0 of 3 rows are finished" in done.stderr
    assert (tmp_path / "tiny" / "campaign.json").is_file() and "\x1b" not in done.stdout + done.stderr


def test_exit_codes_of_what_cannot_be(tmp_path: Path, capsys: Caught, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    campaign_file(tmp_path, 3, 'mode = "confirm"')
    code, said = _main(capsys, monkeypatch, "run", "tiny.toml", "--json")
    assert code == ExitCode.DECLINED and json.loads(said)["reason"] == "not_covered"
    campaign_file(tmp_path, 3, 'colour = "blue"')
    assert _main(capsys, monkeypatch, "run", "tiny.toml")[0] == ExitCode.USAGE
    assert _main(capsys, monkeypatch, "status", "nowhere")[0] == ExitCode.USAGE
    assert not (tmp_path / "tiny").exists()


# The file

@pytest.mark.parametrize(("text", "named"), [
    ('colour = "blue"', "no key colour"), ('budget = "1 fortnight"', "budget = '1 fortnight'"), ('budget = "-3 problems"', "budget"),
    ("budget = 100", "budget = 100"), ('time-limit = "5"', "time-limit = '5'"), ("workspaces = [1024]", "workspaces = 1024 has no unit"),
    ('workspaces = ["1 MB/s"]', "workspaces"), ('dtypes = ["fp8"]', "dtypes = 'fp8'"), ('layouts = "nn"', "layouts = 'nn' is no list"),
    ("gpus = [-1]", "gpus"), ("draws = 0", "draws"), ("seed = 1.5", "seed"), ('mode = "guess"', "mode"), ("libraries = []", "libraries"),
    ("draws = ", "line 4"), ('[[list]]\nshapes = "nowhere.txt"', "nowhere.txt"), ('[[regime]]\nname = "x"\nm = 1\nn = 1', "regime[1].k"),
    ('[[regime]]\nname = "x"\nm = {from = 1}\nn = 1\nk = 1', "regime[1].m.to"),
    ('[[regime]]\nname = "x"\nm = {from = 1, to = 5, law = "exp"}\nn = 1\nk = 1', "regime[1].m.law"),
    ('[[regime]]\nname = "x"\nm = "1"\nn = 1\nk = 1', "regime[1].m"),
    ('[[regime]]\nname = "x"\nm = 1\nn = 1\nk = 1\nmost = 5', "regime[1].most"),
    ('[[regime]]\nname = "x"\nm = 1\nn = 1\nk = 1\nalignments = ["honest"]', "regime[1].alignments = 'honest'"),
    ('[[regime]]\nname = "x"\nm = 1\nn = 1\nk = 1\noffsets = ["1B"]', "1 B splits an element"),
    ('[[regime]]\nname = "tiny"\nm = 1\nn = 1\nk = 1', "'tiny'")])
def test_what_is_wrong_in_a_file_is_named_with_what_is_accepted(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "bad.toml"
    tables = text.startswith("[")
    keys = {"seed": "seed = 1", "libraries": 'libraries = ["sim"]', "budget": 'budget = "3 problems"'}
    keys = {key: line for key, line in keys.items() if not text.startswith(key)}
    file.write_text("\n".join([*keys.values(), "" if tables else text, TINY, text if tables else ""]))
    with pytest.raises(UsageError) as caught:
        read_campaign(file)
    assert named in caught.value.message and caught.value.hint and "\n" not in caught.value.message


def test_no_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('libraries = ["sim"]\n' + TINY)
    with pytest.raises(UsageError, match="no end"):
        read_campaign(tmp_path / "a.toml")


def test_what_only_says_where_and_how_long_is_no_part_of_the_identity(tmp_path: Path) -> None:
    base = read_campaign(campaign_file(tmp_path, 3)).identity
    assert read_campaign(campaign_file(tmp_path, 5, 'name = "x"\ngpus = [0, 3]')).identity == base
    assert read_campaign(campaign_file(tmp_path, 3, "draws = 3")).identity != base


@pytest.mark.parametrize("file", sorted((Path(__file__).resolve().parents[1] / "campaigns").glob("*.toml")), ids=lambda path: path.stem)
def test_the_campaigns_that_ship_are_sound(file: Path) -> None:
    campaign = read_campaign(file)
    stream = campaign.stream()
    assert campaign.name == file.stem and len({stream.at(i).problem.key for i in range(500)}) > 300


def test_alignments_and_offsets_of_a_file_reach_the_problems(tmp_path: Path) -> None:
    more = 'offsets = ["0", "2B", "16B"]\nalignments = ["true", "default"]\n'
    stream = read_campaign(campaign_file(tmp_path, 3, regime=TINY + more)).stream()
    seen = {(asked.problem.alignment("a"), asked.problem.alignments(asked.preference)[0]) for asked in map(stream.at, range(60))}
    assert seen == {(256, 256), (2, 2), (2, 256), (16, 16), (16, 256)}


def test_table2_spans_what_the_paper_says() -> None:
    regimes = read_campaign(Path(__file__).resolve().parents[1] / "campaigns" / "table2.toml").regimes
    spans = [(min(getattr(r, x).low for r in regimes), max(getattr(r, x).high for r in regimes)) for x in "mnk"]
    assert len(regimes) == 6 and spans == [(1, 120_000), (1, 120_000), (8, 300_000)]  # Table 2: its note


def test_every_column_is_documented() -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / "campaigns.md").read_text()
    own = [name for name in COLUMNS if f"`{name}`" not in text]
    assert own == []
