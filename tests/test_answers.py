"""`probe answers`: what the simulated library lists, what the real library says without a GPU, and both on a device."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import pytest

import probe
from probe import vendor
from probe.answer import Answer
from probe.capabilities import CAPABILITY_ATTRIBUTES, Capabilities
from probe.cli import main
from probe.cli.answers import answers_lines
from probe.cublaslt import Library, algorithm_ids, capabilities, find_library, force, status
from probe.errors import Declined, DeclineReason, EnvironmentProblem, LibraryError, UsageError
from probe.forced import Forced
from probe.oracle import Opened, open_oracle
from probe.preference import Preference
from probe.problem import DType, Layout, Problem
from probe.reachable import Answers, drawn

Patch, Caught = pytest.MonkeyPatch, pytest.CaptureFixture[str]
LIKE = Problem.gemm(16, 16, 16, DType.FP16)


@pytest.fixture(scope="module")
def found() -> Answers:
    got = probe.answers("fp16", library="sim", shapes=300, seed=5)
    assert isinstance(got, Answers)
    return got


def test_what_was_seen_is_what_asking_again_gives(found: Answers) -> None:
    oracle = open_oracle("sim", 0).oracle
    again = [(p, oracle.ask(p, Preference())) for p in islice(drawn(found.problem, 5), 300)]
    assert found.shapes == 300 == sum(row.seen.times for row in found.rows if row.seen) + sum(found.declined.values())
    assert {row.algo_id for row in found.rows if row.seen} == {a.algo_id for _, a in again if isinstance(a, Answer)}
    for row in found.rows:
        mine = [(p, a) for p, a in again if isinstance(a, Answer) and a.algo_id == row.algo_id]
        assert (row.seen is None) == (not mine)
        if row.seen is not None:
            first = mine[0][0]
            assert row.seen.times == len(mine) and row.seen.first == f"{first.m}x{first.n}x{first.k}"
            assert row.seen.values["splitk_num"] == tuple(sorted({a.splitk_num for _, a in mine}))


def test_what_is_listed_can_be_forced_and_what_is_not_cannot(found: Answers) -> None:
    oracle = open_oracle("sim", 0).oracle
    small = replace(found.problem, m=16, n=16, k=96)
    listed = [row.algo_id for row in found.rows if row.listed]
    assert len(listed) > 2
    for row in found.rows:
        answer = oracle.ask(small, Preference(forced=Forced(algo_id=row.algo_id)))
        assert isinstance(answer, Answer) and answer.algo_id == row.algo_id
        assert isinstance(row.capabilities, Capabilities)
        split = oracle.ask(small, Preference(forced=Forced(algo_id=row.algo_id, splitk_num=2, reduction_scheme=2)))
        assert isinstance(split, Answer) == row.capabilities.splitk
    assert isinstance(oracle.capabilities(small, max(listed) + 1), Declined)


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16, DType.E4M3])
def test_draws_keep_all_but_the_shape_and_repeat(dtype: DType) -> None:
    like = Problem.gemm(16, 16, 16, dtype)
    shapes = list(islice(drawn(like, 3), 200))
    assert shapes == list(islice(drawn(like, 3), 200)) and len(set(shapes)) > 190
    assert {replace(p, m=16, n=16, k=16) for p in shapes} == {like}


def test_the_command_prints_a_line_an_algorithm_and_its_json_is_the_record(found: Answers, monkeypatch: Patch, capsys: Caught,
                                                                           tmp_path: Path) -> None:
    def run(*options: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["probe", "answers", "--library", "sim", "--shapes", "300", "--seed", "5", *options])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, capsys.readouterr().out  # type: ignore[return-value]

    code, out = run("--json", "-o", str(tmp_path / "answers.json"))
    document = json.loads(out)
    written = json.loads((tmp_path / "answers.json").read_text())
    assert code == 0 and {**document, "date": ""} == {**found.to_document(), "date": ""} == {**written, "date": ""}
    code, out = run()
    lines = out.splitlines()
    assert code == 0 and lines == answers_lines(found) and all(len(line) <= 150 for line in lines)
    assert "300 drawn" in out
    for row in found.rows:
        (line,) = [line for line in lines if line.startswith(f"{row.algo_id} ")]
        assert row.seen is None or row.seen.first in line
    assert run("-o", str(tmp_path / "answers.json"))[0] == 2 and run("-o", str(tmp_path / "answers.parquet"))[0] == 2


def test_dtypes_without_an_algorithm_are_declined(monkeypatch: Patch, capsys: Caught) -> None:
    monkeypatch.setattr(sys, "argv", ["probe", "answers", "--library", "sim", "--out", "bf16", "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 3 and json.loads(capsys.readouterr().out)["reason"] == "unsupported"
    declined = probe.answers(layout="tt", library="sim-2")
    assert isinstance(declined, Declined) and declined.reason is DeclineReason.NO_ALGORITHM


@pytest.mark.parametrize("wrong", [{"dtype": "fp64"}, {"layout": "nx"}, {"shapes": 0}, {"reduction_schemes": 8}, {"gpu": 1}, {"seed": -1}])
def test_a_question_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        probe.answers(**{"library": "sim", **wrong})  # type: ignore[arg-type]


# The real library without a GPU

@pytest.fixture(scope="module")
def library() -> Library:
    try:
        opened = Library.open(find_library("cu13", {}))
    except EnvironmentProblem as error:
        pytest.skip(str(error))
    try:
        opened.handle  # noqa: B018 (asked for its failure)
    except LibraryError:
        return opened
    pytest.skip("there is a GPU here")


def test_without_a_gpu_no_list_and_no_forced_answer_can_be_had_and_the_status_says_why(library: Library) -> None:
    calls = [lambda: algorithm_ids(library, LIKE), lambda: capabilities(library, LIKE, 66),
             lambda: force(library, LIKE, Preference(forced=Forced(algo_id=66))),
             lambda: force(library, LIKE, Preference(forced=Forced(splitk_num=2)))]
    for call in calls:
        with pytest.raises(LibraryError) as raised:
            call()
        assert raised.value.name == "CUBLAS_STATUS_NOT_INITIALIZED"
    with pytest.raises(UsageError, match="nothing is forced"):
        force(library, LIKE, Preference())


def test_an_algorithm_from_another_machine_tells_no_capability_here(library: Library) -> None:
    """Recorded on an H200 with this very release: the library wants a device even to read it."""
    recorded = json.loads((Path(__file__).resolve().parents[1] / "reports/splitk-tail/scan-13.1.0.answers.json").read_text())
    if recorded["target"]["version"] != library.version:
        pytest.skip(f"the algorithms are of {recorded['target']['version']}, the library is {library.version}")
    from probe.cublaslt.force import _read
    from probe.cublaslt.signatures import MatmulAlgo

    blob = Answer.from_document(recorded["cases"][0]["answer"]).blob
    assert blob is not None
    for name in CAPABILITY_ATTRIBUTES.values():
        with pytest.raises(LibraryError) as raised:
            _read(library, MatmulAlgo.from_buffer_copy(blob), name)
        assert raised.value.status == status.INVALID_VALUE and name in raised.value.function


def test_every_capability_has_an_attribute_of_the_header_and_a_and_b_are_crossed() -> None:
    assert {f.name for f in fields(Capabilities)} == {"algo_id", *CAPABILITY_ATTRIBUTES}
    for release in vendor.releases():
        version = ".".join(release.version.split(".")[:3])
        assert {vendor.attribute(name, version).c_type for name in CAPABILITY_ATTRIBUTES.values()} <= {
            "int32_t", "uint32_t", "uint64_t", "uint32_t[]"}
    assert "_B_" in CAPABILITY_ATTRIBUTES["a_alignment"] and "_A_" in CAPABILITY_ATTRIBUTES["b_alignment"]


# On a device

@pytest.fixture(scope="module")
def opened() -> Opened:
    found = open_oracle(None, 0)
    assert found.notice == ""
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("layout", list(Layout))
def test_the_own_answer_forced_is_the_same_answer_on_a_device(layout: Layout, opened: Opened) -> None:
    problem = Problem.gemm(64, 64, 4096, DType.FP16, layout=layout)
    own = opened.oracle.ask(problem, Preference())
    assert isinstance(own, Answer)
    same = opened.oracle.ask(problem, Preference(forced=Forced(splitk_num=own.splitk_num)))
    assert isinstance(same, Answer) and same.attributes == own.attributes and same.blob == own.blob
    listed = opened.oracle.algorithms(problem)
    assert not isinstance(listed, Declined) and own.algo_id in listed
    can = opened.oracle.capabilities(problem, own.algo_id)
    assert isinstance(can, Capabilities) and can.algo_id == own.algo_id and (can.splitk or own.splitk_num == 1)


@pytest.mark.gpu
def test_an_algorithm_that_is_not_there_is_declined_on_a_device(opened: Opened) -> None:
    problem = Problem.gemm(64, 64, 4096, DType.FP16)
    declined = opened.oracle.ask(problem, Preference(forced=Forced(algo_id=2**20)))
    assert isinstance(declined, Declined) and "CUBLAS_STATUS" in declined.text
