"""Forced answers, promised alignments, padded rows and offsets: what they mean, and that what goes wrong costs a child and one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_children import stand_in

import probe
from probe.answer import _RANGES, CONFIG_ATTRIBUTES, Answer
from probe.apart import needs_child, walk_apart
from probe.children import Child
from probe.cli import main
from probe.errors import Declined, DeclineReason, UsageError
from probe.forced import Forced
from probe.oracle import open_oracle
from probe.preference import Preference, parse_alignments
from probe.problem import DType, Layout, Problem
from probe.proof import Outcome
from probe.records import Point
from probe.vendor import attribute
from tools import forced_check

Patch, Caught = pytest.MonkeyPatch, pytest.CaptureFixture[str]
SMALL = Problem.gemm(16, 16, 96, DType.FP16)
LINEAR = Problem.gemm(16, 16, 96, DType.FP16, layout=Layout.TN)
DEFAULT = Preference(**parse_alignments("default"))
SPLIT = Preference(forced=Forced(splitk_num=2, reduction_scheme=2))


def call(monkeypatch: Patch, *options: str) -> int:
    """The exit code of `probe walk` in this process; what it runs apart is a real child."""
    monkeypatch.setattr(sys, "argv", ["probe", "walk", "--library", "sim", *options])
    with pytest.raises(SystemExit) as stop:
        main()
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.fixture(scope="module")
def sim() -> Iterator[Child]:
    with Child("sim") as child:
        yield child


# The value

_NUMBERS = {name: st.integers(*_RANGES[attribute(header).c_type]) for name, header in CONFIG_ATTRIBUTES.items()}
_FORCED = st.fixed_dictionaries({}, optional=_NUMBERS).filter(bool).map(lambda given: Forced(**given))


@given(_FORCED, _FORCED)
def test_a_forced_answer_reads_back_from_its_text_and_its_json_and_keys_tell_it_apart(one: Forced, other: Forced) -> None:
    assert Forced.parse(str(one)) == one and Forced.from_json(one.to_json()) == one
    assert (one.key == other.key) == (one == other)


@pytest.mark.parametrize(("text", "named"), [
    ("", "''"), ("66", "'66'"), ("algo=66", "'algo'"), ("tile=64x64", "'tile=64x64'"), ("tile=1,tile=2", "twice"),
    ("inner_shape=65536", "inner_shape = 65536"), ("tile=-1", "tile = -1"), ("splitk_num=1,", "''")])
def test_a_text_that_forces_nothing_is_refused_by_its_wrong_part(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Forced.parse(text)


def test_what_is_forced_is_part_of_the_preference_and_of_its_key_and_an_older_record_still_reads() -> None:
    plain = Preference()
    assert "forced" not in plain.to_document() and Preference.from_json(plain.to_json()) == plain
    assert Preference.from_json(SPLIT.to_json()) == SPLIT and SPLIT.key != plain.key and plain != SPLIT
    with pytest.raises(UsageError, match="forced"):
        Preference(forced="splitk_num=2")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "truth", "0", "3", "-16", "1.5", "4294967296"])
def test_an_alignment_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Preference(**parse_alignments(text))


def test_a_promise_is_broken_where_an_address_has_less() -> None:
    off = replace(LINEAR, a_offset_bytes=8, d_offset_bytes=64)
    assert parse_alignments("true") == {} and off.overpromised(Preference()) == ()
    assert off.overpromised(DEFAULT) == ("A", "D") and LINEAR.overpromised(DEFAULT) == ()
    assert off.overpromised(Preference(**parse_alignments("16"))) == ("A",) and off.overpromised(Preference(**parse_alignments("8"))) == ()
    assert [needs_child(off, p) for p in (Preference(), DEFAULT, SPLIT)] == [False, True, True]


# Walks

def test_a_matched_pair_differs_in_what_was_forced_alone(tmp_path: Path) -> None:
    path = tmp_path / "point.parquet"
    own = probe.walk("16x16x96", out="fp32", library="sim", seed=7)
    forced = probe.walk("16x16x96", out="fp32", library="sim", seed=7, force="splitk_num=2,reduction_scheme=2", output=path)
    assert isinstance(own, Point) and isinstance(forced, Point)
    assert (own.forced, forced.forced) == ("", "splitk_num=2,reduction_scheme=2")
    changed = replace(forced.answer, splitk_num=own.answer.splitk_num, reduction_scheme=own.answer.reduction_scheme,
                      workspace_bytes=own.answer.workspace_bytes)
    assert changed == own.answer and forced.answer.splitk_num == 2 and own.answer.splitk_num == 1
    assert forced.outcome is Outcome.CONFIRMED and forced.classes[0].schedule != own.classes[0].schedule
    row = pd.read_parquet(path).iloc[0]
    assert row.forced == forced.forced and Preference.from_json(row.preference) == forced.preference


def test_the_own_answer_forced_in_full_is_the_own_answer(sim: Child) -> None:
    oracle = open_oracle("sim", 0).oracle
    own = oracle.ask(SMALL, Preference())
    assert isinstance(own, Answer)
    nine = Forced(**{name: getattr(own, name) for name in CONFIG_ATTRIBUTES})
    point = walk_apart(sim, SMALL, Preference(forced=nine), 7)
    assert isinstance(point, Point) and point.answer == own and point.outcome is Outcome.CONFIRMED


@pytest.mark.parametrize(("pad", "algo_id"), [(8, 66), (3, 23)])
def test_padded_rows_and_offsets_reach_the_library(pad: int, algo_id: int, monkeypatch: Patch, capsys: Caught) -> None:
    """The stand-in nvjet (66) needs rows and addresses in 16 bytes; the stand-in that takes any is 23."""
    options = ("--shape", "16x16x96", "--layout", "tn", "--lda", str(96 + pad), "--ldd", "20", "--b-offset", "32", "--d-offset", "4",
               "--json")
    assert call(monkeypatch, *options) == 0
    document = json.loads(capsys.readouterr().out)
    problem = Problem.from_document(document["problem"])
    assert problem == replace(LINEAR, lda=96 + pad, ldc=20, ldd=20, b_offset_bytes=32, c_offset_bytes=4, d_offset_bytes=4)
    assert document["answer"]["algo_id"] == algo_id
    assert call(monkeypatch, *options[:-1]) == 0
    memory = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("memory"))
    assert f"rows of A {96 + pad} elements" in memory and "B 32 bytes behind" in memory


def test_an_offset_costs_a_child_under_the_default_promise_and_nothing_under_the_true_one(sim: Child) -> None:
    for offset in (2, 4, 8, 16):
        problem = replace(LINEAR, a_offset_bytes=offset)
        sim.identify()
        before = sim.pid
        got = walk_apart(sim, problem, DEFAULT, 7)
        if offset < 16:
            assert isinstance(got, Declined) and got.reason is DeclineReason.CANNOT_RUN
            assert "misaligned address" in got.text and "promises more alignment than A has" in got.text and "\n" not in str(got)
        else:
            assert isinstance(got, Point) and got.outcome is Outcome.CONFIRMED
        honest, plain = walk_apart(sim, problem, Preference(), 7), walk_apart(sim, LINEAR, Preference(), 7)
        assert isinstance(honest, Point) and isinstance(plain, Point)
        assert (honest.outcome, plain.outcome) == (Outcome.CONFIRMED, Outcome.CONFIRMED)
        assert (sim.pid != before) == (offset < 16)


# Bad input

REFUSED = {
    "splitk_num=5000": "splitk_num = 5000", "splitk_num=2": "reduction_scheme = 0 with splitk_num = 2", "algo_id=7": "algorithm 7",
    "algo_id=56,splitk_num=2": "splitk_num = 2 of algorithm 56", "tile=20": "tile = 20", "splitk_num=-1": "splitk_num = -1"}


@pytest.mark.parametrize("force", REFUSED)
def test_a_forced_answer_that_the_library_refuses_is_declined_with_its_name(force: str) -> None:
    declined = open_oracle("sim", 0).oracle.ask(SMALL, Preference(forced=Forced.parse(force)))
    assert isinstance(declined, Declined) and declined.reason is DeclineReason.CANNOT_RUN
    assert REFUSED[force] in declined.text and force in declined.text


def test_a_refusal_is_one_line_and_exit_code_3(monkeypatch: Patch, capsys: Caught) -> None:
    assert call(monkeypatch, "--shape", "16x16x96", "--force", "algo_id=7", "--json") == 3
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["kind"], document["reason"]) == ("declined", "cannot_run")
    assert [line for line in said.err.splitlines() if "declined" in line] == [said.err.splitlines()[-1]]


def test_a_forced_answer_gets_no_more_workspace_than_is_allowed() -> None:
    tight = replace(SPLIT, workspace_bytes=2 * 16 * 16 * 4 - 1)  # two parts of fp32
    oracle = open_oracle("sim", 0).oracle
    declined = oracle.ask(SMALL, tight)
    assert isinstance(declined, Declined) and "2048 bytes of workspace" in declined.text
    assert isinstance(oracle.ask(SMALL, replace(tight, workspace_bytes=2048)), Answer)


@pytest.mark.parametrize(("options", "named"), [
    (("--shape", "16x16x0"), "K = 0"), (("--shape", "0x1x16"), "M = 0"), (("--shape", "16x16x96", "--force", "algo=66"), "'algo'"),
    (("--shape", "16x16x96", "--a-offset", "3"), "a_offset_bytes = 3"), (("--shape", "16x16x96", "--b-offset", "-2"), "b_offset_bytes"),
    (("--shape", "16x16x96", "--lda", "95"), "lda = 95"), (("--shape", "16x16x96", "--ldd", "8"), "ldc = 8"),
    (("--shape", "16x16x96", "--align", "3"), "alignment = 3"), (("--shape", "16x16x96", "--align", "wrong"), "align = 'wrong'"),
    (("--shape", "16x16x96", "--time-limit", "0"), "time_limit"), (("--shape", "16x16x96", "--time-limit", "nan"), "time_limit")])
def test_what_cannot_be_is_one_line_and_exit_code_2(options: tuple[str, ...], named: str, monkeypatch: Patch, capsys: Caught) -> None:
    assert call(monkeypatch, *options) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1 and named in said.err


def test_a_walk_that_takes_too_long_is_one_line_and_exit_code_3(monkeypatch: Patch, capsys: Caught) -> None:
    assert call(monkeypatch, "--shape", "16x16x300000", "--time-limit", "1") == 3  # most of a minute on the simulated library
    said = capsys.readouterr()
    assert said.out == "" and "declined: timed_out" in said.err.splitlines()[-1]


@pytest.mark.slow
def test_the_check_for_a_device_runs_on_the_simulated_library(tmp_path: Path, capsys: Caught) -> None:
    """After each fault the same child's successor walks the plain problem."""
    path = tmp_path / "check.json"
    options = ("--library", "sim", "--groups", "offset,split", "--shapes", "50", "--seconds", "100", "--case-seconds", "60",
               "--children", "2")
    assert forced_check.main([*options, "-o", str(path)]) == 0
    walks = json.loads(path.read_text())["walks"]
    failed = [w["name"] for w in walks if w["group"] == "offset" and w["attempts"][-1]["outcome"] != "confirmed"]
    assert failed == [f"A + {offset} bytes, align default" for offset in (2, 4, 8)]
    pairs = [w["attempts"][0]["answer"] for w in walks if w["name"].startswith("splitk_num=")]
    assert [a["splitk_num"] for a in pairs] == list(range(1, 9))
    assert f"{len(walks)} of {len(walks)} walks" in capsys.readouterr().out
    assert forced_check.main([*options, "-o", str(path)]) == 2  # it is there


@pytest.mark.slow
def test_one_output_element_is_walked(monkeypatch: Patch, capsys: Caught) -> None:
    assert call(monkeypatch, "--shape", "1x1x96", "--time-limit", "60", "--json") == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "confirmed"


BROKEN = {
    "a kernel that hangs": ("time.sleep(600)", 1.0, DeclineReason.TIMED_OUT, "did not finish walk within its time limit"),
    "a fault of the process": ("os.kill(os.getpid(), signal.SIGSEGV)", 60.0, DeclineReason.CANNOT_RUN, "died of SIGSEGV"),
    "the kernel's killer, out of memory": ("os.kill(os.getpid(), signal.SIGKILL)", 60.0, DeclineReason.CANNOT_RUN, "died of SIGKILL"),
    "an allocation beyond memory": ("bytearray(2**62)", 60.0, DeclineReason.CANNOT_RUN, "ran out of memory")}


@pytest.mark.parametrize("what", BROKEN)
def test_what_goes_wrong_in_a_forced_run_costs_its_child_and_one_line(what: str, tmp_path: Path) -> None:
    does, limit, reason, text = BROKEN[what]
    oracle = f"""
        def summing(self, problem, answer, preference):
            if preference.forced:
                {does}
            return super().summing(problem, answer, preference)
    """
    with Child(command=stand_in(tmp_path, oracle)) as child:
        child.identify()
        before = child.pid
        declined: Any = walk_apart(child, SMALL, SPLIT, 7, time_limit=limit)
        assert isinstance(declined, Declined) and declined.reason is reason and text in declined.text and "\n" not in str(declined)
        after = walk_apart(child, SMALL, Preference(), 7)
        assert isinstance(after, Point) and after.outcome is Outcome.CONFIRMED and child.pid != before
