"""Asking fast, on the simulated library: the table is what asking one by one gives, however many processes; and what changed is found."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from campaign_parts import TINY, campaign_file, stand_in

import probe
from probe.answer import Answer
from probe.answering import ANSWER_COLUMNS, COLUMNS, DISTINCT_COLUMNS, KEY
from probe.asking.pool import ask_over
from probe.asking.run import AskedAnswers
from probe.asking.shapes import wanted
from probe.asking.table import read_head
from probe.campaign.parse import read_campaign
from probe.children import Child
from probe.cli import main
from probe.errors import EnvironmentProblem, ExitCode, UsageError
from probe.oracle import SIMULATED_LIBRARIES, open_oracle
from probe.regimes import Chosen, Regime, regime_cases

Patch, Caught = pytest.MonkeyPatch, pytest.CaptureFixture[str]
COUNT = 400
MIXED = """
[[list]]
shapes = "small"

[[regime]]
name = "random"
m = {from = 1, to = 200}
n = {from = 1, to = 200}
k = {from = 8, to = 20000}
dtypes = ["fp16", "bf16", "e4m3"]
layouts = ["nn", "tn", "tt"]
outputs = ["same", "fp32"]
workspaces = ["0", "32MiB"]
offsets = ["0", "2B", "16B"]
alignments = ["true", "default"]
"""


def rows(path: Path) -> list[dict[str, Any]]:
    got: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return got


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asked")
    campaign_file(folder, COUNT, regime=MIXED)
    return folder


@pytest.fixture(scope="module")
def asked(place: Path) -> AskedAnswers:
    return probe.ask(place / "tiny.toml", library="sim", processes=2, output=place / "a.parquet")


@pytest.fixture(scope="module")
def second(place: Path, asked: AskedAnswers) -> Path:
    """The same questions to the second simulated library, by one process."""
    probe.ask(place / "tiny.toml", library="sim-2", processes=1, output=place / "b.parquet")
    return place / "b.parquet"


# The table

def test_a_table_is_what_asking_one_by_one_gives(place: Path, asked: AskedAnswers) -> None:
    stream, oracle = read_campaign(place / "tiny.toml").stream(), open_oracle("sim", 0).oracle
    table = rows(place / "a.parquet")
    assert [row["index"] for row in table] == list(range(COUNT)) and list(table[0]) == list(COLUMNS)
    for row in table:
        one = stream.at(row["index"])
        p, answer = one.problem, oracle.ask(one.problem, one.preference)
        assert (row["source"], row["m"], row["n"], row["k"], row["layout"]) == (one.source, p.m, p.n, p.k, str(p.layout))
        assert (row["input_dtype"], row["output_dtype"], row["fast_accumulation"]) == (p.a_dtype, p.d_dtype, p.fast_accumulation)
        assert [row[f"{x}_alignment"] for x in "abd"] == [p.alignments(one.preference)[i] for i in (0, 1, 3)]
        assert row["allowed_workspace_bytes"] == one.preference.workspace_bytes
        if isinstance(answer, Answer):
            want = (*answer.attributes, answer.workspace_bytes, answer.waves, None)
        else:
            want = (*[None] * (len(ANSWER_COLUMNS) - 1), str(answer.reason))
        assert tuple(row[name] for name in ANSWER_COLUMNS) == want
    head = read_head(place / "a.parquet")
    assert head.target == oracle.target == asked.target and head.about["seed"] == stream.seed == asked.seed
    assert (asked.questions, asked.processes, asked.exit_code) == (COUNT, 2, ExitCode.OK)


def test_the_number_of_processes_changes_nothing(place: Path, asked: AskedAnswers, second: Path) -> None:
    table, other = pq.read_table(place / "a.parquet"), pq.read_table(second)
    probe.ask(place / "tiny.toml", library="sim-2", processes=2, output=place / "b3.parquet")
    assert pq.read_table(place / "b3.parquet").equals(other) and not table.equals(other)


def test_distinct_answers_are_those_of_the_table_with_their_counts(place: Path, asked: AskedAnswers) -> None:
    again = probe.ask(place / "tiny.toml", library="sim", processes=2, distinct=True, output=place / "distinct.parquet")
    table = rows(place / "a.parquet")
    want = Counter(tuple(row[name] for name in KEY) for row in table)
    got = rows(place / "distinct.parquet")
    assert {tuple(row[name] for name in KEY): row["count"] for row in got} == dict(want) and len(got) == len(want)
    for row in got:
        mine = [r for r in table if all(r[name] == row[name] for name in KEY)]
        assert all(row[f"first_{name}"] == mine[0][name] for name in COLUMNS if name not in ANSWER_COLUMNS)
        if row["declined"] is None:
            sizes = [r["workspace_bytes"] for r in mine]
            assert (row["least_workspace_bytes"], row["most_workspace_bytes"]) == (min(sizes), max(sizes))
    assert again.population.families == asked.population.families and again.population.distinct == asked.population.distinct
    answered = sum(count for key, count in want.items() if key[-1] is None)
    assert sum(asked.population.families.values()) == answered == COUNT - sum(asked.population.declined.values())


def test_a_regime_is_asked_in_its_order_and_a_preference_counts() -> None:
    cases = [case for case in regime_cases(Regime.SMALL) if case.dtype == "fp16"]
    questions = wanted("small", Chosen(dtype="fp16"), None, None, None)
    assert [one.problem for one in questions.stream.listed] == [case.problem() for case in cases]
    split = probe.ask("split", library="sim", processes=1)
    none = probe.ask("split", library="sim", processes=1, workspace_bytes=0)
    assert any("split-K" in name for name in split.population.families)
    assert not any("split-K" in name for name in none.population.families)


# What breaks

DIES = """
def ask(self, problem, preference):
    mark = Path({mark!r})
    if problem.k == 40 and (not mark.exists() or {always}):
        mark.touch()
        os._exit(7)
    return super().ask(problem, preference)
"""


@pytest.mark.parametrize("always", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_process_that_dies_is_asked_once_more(tmp_path: Path, always: bool) -> None:
    (tmp_path / "shapes.txt").write_text("".join(f"8x8x{k}\n" for k in range(8, 72, 8)))
    command = stand_in(tmp_path, DIES.format(mark=str(tmp_path / "mark"), always=always))
    chunks = list(wanted(tmp_path / "shapes.txt", Chosen(), None, None, None).chunks(2))
    with Child("sim", command=command) as one, Child("sim", command=command) as other:
        if always:
            with pytest.raises(EnvironmentProblem, match=r"from 4 on.*status 7"):
                list(ask_over([one, other], chunks, False))
        else:
            batches = list(ask_over([one, other], chunks, False))
            assert [k for batch in batches for k in batch["k"].to_pylist()] == list(range(8, 72, 8)) and (tmp_path / "mark").exists()


def test_an_error_in_the_middle_leaves_no_file(place: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe.ask(place / "tiny.toml", library="sim", processes=1, output=tmp_path / "x.parquet", progress=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("change", "named"), [
    ({"shapes": "nowhere"}, "nowhere"), ({"shapes": "small", "problems": 31}, "problems = 31"), ({"shapes": "small", "seed": 1}, "seed"),
    ({"shapes": "tiny.toml", "dtype": "fp16"}, "campaign file"), ({"shapes": "tiny.toml", "workspace_bytes": 0}, "campaign file"),
    ({"shapes": "small", "processes": 0}, "processes"), ({"shapes": "small", "output": "a.json"}, r"\.parquet"),
    ({"shapes": "small", "output": "a.parquet"}, "not overwritten"), ({"shapes": "small", "gpu": 1}, "no GPU"),
    ({"shapes": "small", "reduction_schemes": 8}, "reduction_schemes")])
def test_what_cannot_be_asked_is_said_before_anything_runs(place: Path, asked: AskedAnswers, monkeypatch: Patch,
                                                           change: dict[str, Any], named: str) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(UsageError, match=named):
        probe.ask(**{"library": "sim"} | change)


# What changed

def test_changes_are_those_of_the_answers(place: Path, asked: AskedAnswers, second: Path) -> None:
    found = probe.compare_answers(place / "a.parquet", second)
    before, after = rows(place / "a.parquet"), rows(second)
    fields = [name for name in ANSWER_COLUMNS if name != "waves"]
    question = [name for name in COLUMNS if name not in ANSWER_COLUMNS and name not in ("index", "source")]
    pairs = {tuple(a[n] for n in question): (a, b) for a, b in zip(before, after, strict=True)}.values()  # each question once
    moved = [(a, b) for a, b in pairs if any(a[n] != b[n] for n in fields)]
    assert 0 < found.changed == len(moved) < found.compared == len(pairs)
    assert found.fields == {n: c for n in fields if (c := sum(a[n] != b[n] for a, b in moved))}
    assert sum(count for count, _ in found.families.values()) == found.compared
    assert sum(changed for _, changed in found.families.values()) == found.changed == sum(move.count for move in found.moves)
    lost = next(move for move in found.moves if move.after == "no answer")
    assert sum(m.count for m in found.moves if m.after == "no answer") == sum(b["declined"] is not None is a["declined"] for a, b in pairs)
    assert lost.fields["declined"] == lost.count and found.exit_code == ExitCode.NOT_CONFIRMED


def test_order_and_missing_questions_are_seen(place: Path, asked: AskedAnswers, second: Path, tmp_path: Path) -> None:
    whole = probe.compare_answers(place / "a.parquet", second)
    table = pq.read_table(second)
    pq.write_table(table.take(list(reversed(range(COUNT)))), tmp_path / "turned.parquet")
    turned = probe.compare_answers(place / "a.parquet", tmp_path / "turned.parquet")
    assert (turned.compared, turned.fields, turned.families) == (whole.compared, whole.fields, whole.families)
    pq.write_table(pq.read_table(place / "a.parquet").slice(0, COUNT - 30), tmp_path / "fewer.parquet")
    fewer = probe.compare_answers(place / "a.parquet", tmp_path / "fewer.parquet")
    assert fewer.changed == 0 < fewer.only_a <= 30 and fewer.only_b == 0 and fewer.exit_code == ExitCode.NOT_CONFIRMED
    assert probe.compare_answers(second, second).exit_code == ExitCode.OK


def test_tables_that_cannot_be_compared_are_named(place: Path, asked: AskedAnswers, tmp_path: Path) -> None:
    good = place / "a.parquet"
    probe.ask("small", library="sim", processes=1, distinct=True, output=tmp_path / "distinct.parquet")
    (tmp_path / "cut.parquet").write_bytes(good.read_bytes()[:-50])
    pq.write_table(pa.table({"m": [1]}), tmp_path / "other.parquet")
    table = pq.read_table(good)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"probe.version": b"9"}), tmp_path / "newer.parquet")
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"probe.target": b"{}"}), tmp_path / "where.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "empty.parquet")
    for name, words in (("distinct", "distinct answers"), ("cut", "truncated"), ("other", "no table"), ("newer", "version 9"),
                        ("where", "where it was asked"), ("nowhere", "no file"), ("empty", "no question")):
        with pytest.raises(UsageError, match=words) as caught:
            probe.compare_answers(good, tmp_path / f"{name}.parquet")
        assert f"{name}.parquet" in caught.value.message


# The commands

def _main(capsys: Caught, monkeypatch: Patch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["probe", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    return int(stop.value.code or 0), said.out, said.err


def test_the_commands_print_what_python_returns(place: Path, asked: AskedAnswers, second: Path, capsys: Caught, monkeypatch: Patch) -> None:
    monkeypatch.chdir(place)
    code, out, err = _main(capsys, monkeypatch, "ask", "--shapes", "tiny.toml", "--library", "sim", "--processes", "1", "--json")
    moving = ("processes", "seconds", "output")
    document = asked.to_document()
    assert code == 0 and "stand-in" in err
    assert {n: v for n, v in json.loads(out).items() if n not in moving} == {n: v for n, v in document.items() if n not in moving}
    code, out, _ = _main(capsys, monkeypatch, "compare-answers", "a.parquet", "b.parquet", "--json")
    assert code == 1 and json.loads(out) == probe.compare_answers("a.parquet", "b.parquet").to_document()
    code, out, _ = _main(capsys, monkeypatch, "compare-answers", "a.parquet", "a.parquet")
    assert code == 0 and f"{COUNT:,}" not in out.splitlines()[0] and " 0 with another answer" in out
    code, out, _ = _main(capsys, monkeypatch, "ask", "--shapes", "small", "--dtype", "int8", "--library", "sim", "--json")
    assert code == ExitCode.USAGE and json.loads(out)["kind"] == "usage"


def test_plain_text_names_families_and_the_file(tmp_path: Path, capsys: Caught, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    campaign_file(tmp_path, 20, regime=TINY)
    code, out, err = _main(capsys, monkeypatch, "ask", "--shapes", "tiny.toml", "--library", "sim", "--processes", "1", "-o", "x.parquet")
    assert code == 0 and "20 questions (tiny, seed 11)" in out and "written" in out and "\x1b" not in out + err
    assert str(SIMULATED_LIBRARIES["sim"].target) in out and sum(rows(tmp_path / "x.parquet")[i]["m"] >= 24 for i in range(20)) == 20


def test_every_column_is_documented() -> None:
    text = (Path(__file__).resolve().parents[1] / "docs" / "ask.md").read_text()
    assert [name for name in (*COLUMNS, *DISTINCT_COLUMNS) if f"`{name}`" not in text] == []
