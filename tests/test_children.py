"""One child process for a library: what it answers, and that its death, a hang or nonsense costs one request and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import probe
from probe.answer import Answer
from probe.capture import Capture
from probe.children import Child
from probe.cublaslt import status
from probe.errors import Declined, DeclineReason, EnvironmentProblem, LibraryError, UsageError
from probe.oracle import open_oracle
from probe.pipeline import walk_problem
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.proof import Outcome
from probe.records import row_of
from probe.schedule import Mma
from probe.simulator.library import SimulatedLibrary
from probe.wire import (
    ChildBug,
    Request,
    Walked,
    asking,
    capturing,
    error_document,
    error_from_document,
    mask_document,
    mask_from_document,
    point_from_document,
    proving,
    walking,
)

ROOT = Path(probe.__file__).resolve().parents[1]
SMALL, LONG = Problem.gemm(16, 16, 96, DType.FP16), Problem.gemm(16, 16, 300000, DType.FP16)  # milliseconds; most of a minute
PLAIN = Preference()


@pytest.fixture(scope="module")
def sim() -> Iterator[Child]:
    with Child("sim") as child:
        yield child


def stand_in(folder: Path, oracle: str) -> list[str]:
    """The command of a real child whose library is the simulated one with parts replaced: `oracle` is the body of a subclass."""
    program = folder / "child.py"
    body = textwrap.indent(textwrap.dedent(oracle), "    ")
    program.write_text("import os, signal, sys, time\nimport numpy as np\nfrom probe.oracle import Opened, SimulatedOracle\n"
                       "from probe.simulator.library import *\nfrom probe.worker import serve\n\n"
                       f"class Oracle(SimulatedOracle):\n{body}\nserve(lambda: Opened(Oracle(), ''))\n")
    return [sys.executable, str(program)]


def gone(pid: int, within: float = 10.0) -> bool:
    """Whether a process that is not ours ends in time. As a zombie it has: whoever took it over may never read it."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if state(pid) in ("", "Z"):
            return True
        time.sleep(0.05)
    return False


def state(pid: int) -> str:
    """The letter that the kernel has for a process; "" for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


# What it answers

def test_the_child_answers_as_the_library_does_here(sim: Child) -> None:
    oracle = open_oracle("sim", 0).oracle
    assert sim.identify().target == oracle.target and "stand-in" in sim.identify().announcement
    refused = Problem.gemm(16, 16, 96, DType.FP16, batch_count=2)
    answer, declined = sim.call(asking([SMALL, refused], PLAIN), 60)  # type: ignore[misc]
    assert answer == oracle.ask(SMALL, PLAIN) and declined == oracle.ask(refused, PLAIN)
    assert isinstance(answer, Answer) and sim.call(capturing(SMALL, PLAIN, answer), 60) == oracle.capture(SMALL, answer, PLAIN)


def test_a_walk_comes_back_whole_and_tells_its_steps(sim: Child) -> None:
    here = walk_problem(SMALL, PLAIN, open_oracle("sim", 0), seed=7)
    steps: list[str] = []
    walked = sim.call(walking(SMALL, PLAIN, 7), 60, steps.append)
    assert isinstance(walked, Walked) and not isinstance(here, Declined)
    assert steps == ["ask", "capture", "prepare", "agree", "walk", "recover", "settle", "prove", "record"]
    moving = {"date", "walk_seconds", "seconds"}
    mine, its = (row_of(point, point.classes[0]) for point in (here, walked.point))
    assert {k: v for k, v in mine.items() if k not in moving} == {k: v for k, v in its.items() if k not in moving}
    assert point_from_document(json.loads(json.dumps(here.to_document()))) == here


def test_a_decline_is_a_value(sim: Child) -> None:
    declined = sim.call(walking(Problem.gemm(16, 16, 96, DType.FP16, batch_count=2), PLAIN, 7), 60)
    assert isinstance(declined, Declined) and declined.reason is DeclineReason.UNSUPPORTED


@pytest.mark.slow
def test_another_library_refutes_a_schedule_and_upholds_its_own(sim: Child) -> None:
    problem = Problem.gemm(16, 16, 4096, DType.FP16, DType.FP32)
    with Child("sim-2") as other:
        walks = [child.call(walking(problem, PLAIN, 7), 60) for child in (sim, other)]
        (answer,) = other.call(asking([problem], PLAIN), 60)  # type: ignore[misc]
        outcomes = []
        for walked in walks:
            assert isinstance(walked, Walked) and isinstance(answer, Answer)
            (proof,) = other.call(proving(problem, PLAIN, answer, walked.classes, 8), 60)  # type: ignore[misc]
            outcomes.append(proof.outcome)
    assert outcomes == [Outcome.REFUTED, Outcome.CONFIRMED] and proof.seed != walks[1].point.classes[0].proof.seed  # type: ignore[union-attr]


def test_classes_of_elements_keep_their_places(tmp_path: Path) -> None:
    """Half the rows are summed in two parts, half in one chain: each class is proven where it belongs, and nowhere else."""
    two_orders = """
        def summing(self, problem, answer, preference):
            single = self.library.summing(problem, answer)
            row = kernel_descriptor(problem, answer, self.library)
            split = replace(row, k_cuts=(KCut(48),)).schedule()
            class Both(SimulatedSumming):
                def outputs(self, batch):
                    out = []
                    for (_, cells), top, rest in zip(batch, super().outputs(batch), single.outputs(batch)):
                        rows = np.arange(problem.m)[:, None] if cells is None else cells.rows
                        out.append(np.where(rows % 2 == 1, top, rest))
                    return out
            return Both(problem.m, problem.n, problem.k, split, problem.a_dtype, problem.d_dtype)
    """
    problem = Problem.gemm(16, 16, 96, DType.FP16, DType.FP32)
    with Child(command=stand_in(tmp_path, two_orders), name="two orders") as child:
        walked = child.call(walking(problem, PLAIN, 7), 60)
        assert isinstance(walked, Walked) and len(walked.classes) == 2
        odd = np.repeat((np.arange(16) % 2 == 1)[:, None], 16, axis=1)
        split, single = sorted(walked.classes, key=lambda one: isinstance(one.schedule, Mma))
        assert (split.where == odd).all() and (single.where == ~odd).all()
        proofs = child.call(proving(problem, PLAIN, walked.point.answer, walked.classes, 9), 60)
        swapped = [type(c)(c.schedule, c.extent, d.where) for c, d in zip(walked.classes, reversed(walked.classes), strict=True)]
        crossed = child.call(proving(problem, PLAIN, walked.point.answer, swapped, 9), 60)
    assert isinstance(proofs, tuple) and {p.outcome for p in proofs} == {Outcome.CONFIRMED}
    assert isinstance(crossed, tuple) and {p.outcome for p in crossed} == {Outcome.REFUTED}


# Errors keep their kind

def test_a_library_that_cannot_be_opened_is_the_same_error_in_the_parent(tmp_path: Path) -> None:
    with Child(str(tmp_path / "absent.so")) as child, pytest.raises(UsageError, match=r"absent\.so does not exist"):
        child.identify()
    script = tmp_path / "libcublasLt.so.13"
    script.write_bytes(b"\x7fELF and then nothing")
    with Child(str(script)) as child, pytest.raises(EnvironmentProblem, match="cannot be loaded"):
        child.identify()


def test_a_bug_of_the_child_has_its_traceback_and_the_next_request_a_new_child(sim: Child) -> None:
    sim.identify()
    before = sim.pid
    with pytest.raises(ChildBug, match="TypeError") as raised:
        sim.call(Request("ask", {"problems": 5, "preference": PLAIN.to_document()}, lambda reply: reply), 60)
    assert "in _ask" in str(raised.value.__cause__)
    assert sim.call(asking([SMALL], PLAIN), 60) and sim.pid != before


def test_what_probe_did_not_ask_for_is_a_usage_error_and_ends_no_child(sim: Child) -> None:
    sim.identify()
    before = sim.pid
    with pytest.raises(UsageError, match="no operation 'dance'"):
        sim.call(Request("dance", {}, lambda reply: reply), 60)
    assert sim.pid == before


def test_every_kind_of_error_comes_back_as_its_class() -> None:
    with pytest.raises(LibraryError) as library:
        status.check("cublasLtMatmul", status.NOT_SUPPORTED)
    for error in (UsageError("no", "yes"), EnvironmentProblem("no GPU", "buy one"), library.value):
        back = error_from_document(json.loads(json.dumps(error_document(error))))
        assert type(back) is type(error) and str(back) == str(error) and back.args == error.args
    assert isinstance(error_from_document(error_document(MemoryError())), EnvironmentProblem)
    assert isinstance(error_from_document(error_document(ZeroDivisionError("planted"))), ChildBug)


def test_a_mask_comes_back_as_it_went() -> None:
    mask = np.random.default_rng(1).integers(0, 2, (5, 13)).astype(bool)
    back = mask_from_document(json.loads(json.dumps(mask_document(mask))))
    assert back is not None and back.dtype == bool and (back == mask).all() and mask_from_document(mask_document(None)) is None


# Death, hanging, nonsense

def test_a_killed_child_declines_one_request_and_the_next_is_answered(sim: Child) -> None:
    request = walking(LONG, PLAIN, 7)
    sim.begin(request, 60)
    pid = sim.pid
    assert pid is not None
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    declined = sim.finish(request)
    assert isinstance(declined, Declined) and declined.reason is DeclineReason.CANNOT_RUN and "died of SIGKILL during walk" in declined.text
    assert not Path(f"/proc/{pid}").exists()  # no zombie
    assert isinstance(sim.call(walking(SMALL, PLAIN, 7), 60), Walked)


def test_a_fault_names_its_signal_and_keeps_the_last_words(tmp_path: Path) -> None:
    faulty = """
        def summing(self, problem, answer, preference):
            os.kill(os.getpid(), signal.SIGSEGV)
    """
    with Child(command=stand_in(tmp_path, faulty)) as child:
        declined = child.call(walking(SMALL, PLAIN, 7), 60)
        assert isinstance(declined, Declined) and "SIGSEGV" in declined.text
        assert "Segmentation fault" in child.last_words and "in summing" in child.last_words
        (answer,) = child.call(asking([SMALL], PLAIN), 60)  # type: ignore[misc]
        assert isinstance(answer, Answer)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_child_that_does_not_finish_in_time_is_ended_with_its_group(stopped: bool, tmp_path: Path) -> None:
    slow = f"""
        def summing(self, problem, answer, preference):
            import subprocess
            helper = subprocess.Popen(["sleep", "600"])
            open({str(tmp_path / "helper")!r}, "w").write(str(helper.pid))
            {"os.kill(os.getpid(), signal.SIGSTOP)" if stopped else "time.sleep(600)"}
    """
    with Child(command=stand_in(tmp_path, slow)) as child:
        child.identify()
        pid = child.pid
        assert pid is not None
        began = time.monotonic()
        declined = child.call(walking(SMALL, PLAIN, 7), 2.0)
        assert time.monotonic() - began < 4
        assert isinstance(declined, Declined) and declined.reason is DeclineReason.TIMED_OUT and "walk" in declined.text
        assert not Path(f"/proc/{pid}").exists() and gone(int((tmp_path / "helper").read_text()))


def test_a_child_that_reads_nothing_does_not_hold_up_its_parent(sim: Child) -> None:
    sim.identify()
    pid = sim.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    many = asking([SMALL] * 2000, PLAIN)  # more than a pipe holds
    began = time.monotonic()
    declined = sim.call(many, 1.0)
    assert isinstance(declined, Declined) and declined.reason is DeclineReason.TIMED_OUT and time.monotonic() - began < 4
    answers = sim.call(many, 60)
    assert isinstance(answers, tuple) and len(answers) == 2000


def test_a_reply_that_lies_ready_is_taken_after_its_time(sim: Child) -> None:
    request = asking([SMALL], PLAIN)
    sim.begin(request, 0.2)
    time.sleep(0.5)
    assert isinstance(sim.finish(request), tuple)


GREETING = json.dumps({"id": 1, "ok": {"protocol": 1, "target": SimulatedLibrary().target.to_document(), "found_by": "", "announcement": "",
                                       "notice": ""}})


@pytest.mark.parametrize("reply", ["hello", '"text"', '{"id": 2}', '{"id": 7, "ok": []}', '{"id": 2, "ok": [{"kind": "answer"}]}',
                                   '{"id": 2, "ok": []}', '{"id": 2, "error": {"kind": "odd"}}', ""])
def test_nonsense_declines_the_request_and_ends_the_child(reply: str) -> None:
    program = f"import sys\nfor line in ({GREETING!r}, {reply!r}):\n    sys.stdin.readline(); print(line, flush=True)\nsys.stdin.readline()"
    with Child(command=[sys.executable, "-c", program]) as child:
        declined = child.call(asking([SMALL], PLAIN), 30)
        assert isinstance(declined, Declined) and declined.reason is DeclineReason.CANNOT_RUN
        assert "nonsense during ask" in declined.text and child.pid is None


@pytest.mark.parametrize("program", ["print('Welcome!')", "import sys; sys.exit(3)"])
def test_a_program_that_is_no_child_is_a_problem_of_this_machine(program: str) -> None:
    command = [sys.executable, "-c", program]
    with Child(command=command, name="mine") as child, pytest.raises(EnvironmentProblem, match="mine cannot be used"):
        child.identify()
    with pytest.raises(EnvironmentProblem, match="no child process"):
        Child(command=["/nonexistent/program"]).identify()


def test_another_library_after_a_restart_is_refused(tmp_path: Path) -> None:
    changing = f"""
        def __init__(self):
            mark = {str(tmp_path / "mark")!r}
            super().__init__(SimulatedLibrary(second=os.path.exists(mark)))
            open(mark, "w")
    """
    with Child(command=stand_in(tmp_path, changing), name="mine") as child:
        child.identify()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        assert isinstance(child.call(asking([SMALL], PLAIN), 60), Declined)
        with pytest.raises(EnvironmentProblem, match="another library than before"):
            child.call(asking([SMALL], PLAIN), 60)


def test_what_a_library_prints_does_not_reach_the_replies(tmp_path: Path) -> None:
    loud = """
        def ask(self, problem, preference):
            print("printed")
            os.write(1, b"written\\n")
            os.system("echo from a helper")
            return super().ask(problem, preference)
    """
    with Child(command=stand_in(tmp_path, loud)) as child:
        assert isinstance(child.call(asking([SMALL], PLAIN), 60), tuple)
        assert {"printed", "written", "from a helper"} <= set(child.last_words.split("\n"))


# Nothing is left behind

def test_closing_ends_a_child_at_work_and_an_idle_one() -> None:
    for busy in (True, False):
        with Child("sim") as child:
            child.identify()
            pid = child.pid
            assert pid is not None and os.getpgid(pid) == pid != os.getpgrp()
            if busy:
                child.begin(walking(LONG, PLAIN, 7), 60)
            began = time.monotonic()
        assert not Path(f"/proc/{pid}").exists() and time.monotonic() - began < 4


PARENT = """
import sys, time
from probe.children import Child
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.wire import walking
with Child("sim") as child:
    child.identify()
    print(child.pid, flush=True)
    child.call(walking(Problem.gemm(16, 16, 300000, DType.FP16), Preference(), 7), 600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_child_outlives_its_parent(number: signal.Signals) -> None:
    """Also one that is at work, and so does not look at its pipe."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
                          text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.5)
        assert state(pid) in "RS"
        parent.send_signal(number)
        parent.wait(timeout=20)
    assert gone(pid)


def test_the_worker_answers_a_program_that_closes_its_pipe() -> None:
    asked = '{"id": 1, "op": "identify"}\nno json\n[]\n'
    done = subprocess.run([sys.executable, "-P", "-m", "probe.worker", "--library", "sim-2"], input=asked, capture_output=True, text=True,
                          timeout=60, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert first["ok"]["target"]["version"] == "0.2.0" and second["error"]["kind"] == third["error"]["kind"] == "usage"


def test_the_capture_of_a_walk_is_that_of_a_call(sim: Child) -> None:
    walked = sim.call(walking(SMALL, PLAIN, 7), 60)
    assert isinstance(walked, Walked)
    captured = sim.call(capturing(SMALL, PLAIN, walked.point.answer), 60)
    assert isinstance(captured, Capture) and captured == walked.point.capture
