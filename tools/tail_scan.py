"""Measure which sums lose their tail, on problems that are drawn at random; and force answers of one release onto another.

    python -m tools.tail_scan --library 13.1 --seconds 500 --processes 12 --seed 1 -o reports/splitk-tail/scan-13.1.0.parquet
    python -m tools.tail_scan --library 13.10 --force-from reports/splitk-tail/scan-13.1.0.answers.json -o reports/splitk-tail/forced.json

A scan asks for every draw, runs what it was answered and reads how many values of k arrived (probe.tail.count). Beside the table it writes
short sums with their answers (NAME.answers.json) for --force-from. A forced answer runs in a child with a time limit: it may hang.
Exit codes: 0 done, 1 a process ended early (the rest is written), 2 usage, 4 environment.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from probe.answer import CONFIG_ATTRIBUTES, Answer
from probe.errors import Declined, EnvironmentProblem, LibraryError, UsageError
from probe.forced import Forced
from probe.newfile import new_file
from probe.oracle import DeviceOracle, Opened, Oracle, open_oracle
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.records import check_output, now
from probe.tail.count import DeviceCounter, OracleCounter, count
from probe.tail.draws import MOST_SIDE, Drawing
from probe.tail.rule import NVJET, Condition, predicted
from probe.tail.table import Tally, summary, write_scan

PREFERENCE = Preference()  # 32 MiB of workspace, every reduction scheme
_BATCH = 256
FORCED = "splitk-tail-forced"
ANSWERS = "splitk-tail-answers"


def scan(oracle: Oracle, drawing: Drawing, seed: int, stream: int, seconds: float, problems: int | None, others: float,
         tally: Tally) -> Tally:
    """Draw, ask, run and read into `tally` until the time is over or `problems` were drawn.

    others: share of the sums of other answers that is run. What was counted before an exception is in `tally`.
    """
    counter: DeviceCounter | OracleCounter
    if isinstance(oracle, DeviceOracle):
        counter = DeviceCounter(oracle.device, oracle.library, MOST_SIDE, drawing.most_k, PREFERENCE.workspace_bytes)
    else:
        counter = OracleCounter(oracle)
    drawn, kept = 0, 0.0
    deadline = time.monotonic() + seconds
    source = drawing.problems(seed, stream)
    while time.monotonic() < deadline and (problems is None or drawn < problems):
        batch: list[tuple[Problem, Answer]] = []
        while len(batch) < _BATCH and time.monotonic() < deadline and (problems is None or drawn < problems):
            problem = next(source)
            drawn += 1
            answer = oracle.ask(problem, PREFERENCE)
            if isinstance(answer, Declined):
                tally.declined += 1
                continue
            if not (answer.algo_id == NVJET and answer.splitk_num > 1):
                kept += others
                if kept < 1:
                    tally.left += 1
                    continue
                kept -= 1
            batch.append((problem, answer))
        for (problem, answer), reading in zip(batch, counter.count(batch, PREFERENCE), strict=True):
            if isinstance(reading, Declined):
                tally.failed += 1
            else:
                tally.add(problem, answer, reading)
    return tally


def _process(pipe: Connection, options: argparse.Namespace, stream: int) -> None:
    """One process: opens the library itself. Sends what it counted, its target, its seconds, and what ended it early or None."""
    tally, target, began = Tally(), None, time.monotonic()
    try:
        opened = open_oracle(options.library, options.gpu)
        if stream == 0:
            _announce(opened)
        target, began = opened.oracle.target, time.monotonic()
        share = None if options.problems is None else len(range(stream, options.problems, options.processes))
        scan(opened.oracle, _drawing(options), options.seed, stream, options.seconds, share, options.others, tally)
        error = None
    except (UsageError, EnvironmentProblem, LibraryError) as problem:
        error = problem
    except Exception as problem:  # a GPU package's own, or a bug: told, and what was counted before it is kept
        traceback.print_exc()
        error = EnvironmentProblem(f"{type(problem).__name__}: {problem}", "its traceback is above")
    pipe.send((tally, target, time.monotonic() - began, error))


def run_scan(options: argparse.Namespace) -> int:
    """The processes, their results as one table."""
    output = Path(options.output)
    check_output(output)
    answers = output.with_suffix(".answers.json")
    check_output(answers)
    context = multiprocessing.get_context("spawn")
    children: dict[Connection, multiprocessing.process.BaseProcess] = {}
    for stream in range(options.processes):
        mine, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_process, args=(theirs, options, stream))
        child.start()
        theirs.close()
        children[mine] = child
    total, target, spent, ended = Tally(), None, [], 0
    why: Exception = EnvironmentProblem("no process came back with a result", "its own words are above")
    while children:
        for pipe in wait(list(children)):
            child = children.pop(pipe)  # type: ignore[index,arg-type]
            try:
                got = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                child.join()
                print(f"a process ended with {child.exitcode}; what it had counted is lost", file=sys.stderr)
                ended += 1
                continue
            child.join()
            counted, its_target, seconds, error = got
            if error is not None:
                if its_target is not None:
                    print(f"a process ended early, after {counted.total} sums: {error}", file=sys.stderr)
                ended += 1
                why = error
            if its_target is not None:
                total.merge(counted)
                target = its_target
                spent.append(seconds)
    if target is None:
        raise why
    rows = total.rows()
    about = {"target": target.to_document(), "preference": PREFERENCE.to_document(), "seed": options.seed, "processes": options.processes,
             "processes_lost": ended, "seconds": round(max(spent), 1), "date": now(), "most_k": options.most_k, "aligned": options.aligned,
             "dtypes": options.dtypes, "others": options.others, "declined": total.declined, "failed": total.failed, "left": total.left,
             "sums": total.total}
    write_scan(rows, about, output)
    _write_json({"kind": ANSWERS, "target": target.to_document(), "preference": PREFERENCE.to_document(), "cases": total.cases()}, answers)
    print(json.dumps(about | {"summary": summary(rows), "bytes": output.stat().st_size}))
    return 1 if ended else 0


# Forced answers

def force_one(oracle: Oracle, case: dict[str, Any]) -> dict[str, Any]:
    """Run one recorded answer, by its nine attributes, and the library's own answer to the same problem."""
    problem, answer = Problem.from_document(case["problem"]), Answer.from_document(case["answer"])
    out: dict[str, Any] = {"problem": case["problem"], "recorded_reading": case["reading"], "recorded_answer": case["answer"]}
    own = oracle.ask(problem, PREFERENCE)
    out["own_answer"] = None if isinstance(own, Declined) else own.to_document()
    out["own_is_the_same"] = not isinstance(own, Declined) and own.attributes == answer.attributes
    if not isinstance(own, Declined):
        out["own"] = _reading(oracle, problem, own)
    nine = Forced(**{name: getattr(answer, name) for name in CONFIG_ATTRIBUTES})  # not the 64 bytes: they belong to one library
    forced = oracle.ask(problem, replace(PREFERENCE, forced=nine))
    out["forced"] = {"declined": str(forced)} if isinstance(forced, Declined) else _reading(oracle, problem, forced)
    out["predicted"] = predicted(Condition.OURS, problem, answer)
    return out


def _reading(oracle: Oracle, problem: Problem, answer: Answer) -> dict[str, Any]:
    got = count(oracle, problem, answer, PREFERENCE)
    return {"declined": str(got)} if isinstance(got, Declined) else got.to_document() | {"lost": got.lost}


def _force_child(options: argparse.Namespace) -> int:
    """Cases as JSON lines on stdin, results as JSON lines on stdout; the first line says who this is."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else prints goes to stderr

    def reply(document: dict[str, Any]) -> None:
        replies.write(json.dumps(document) + "\n")
        replies.flush()

    opened = open_oracle(options.library, options.gpu)
    _announce(opened)
    oracle = opened.oracle
    reply({"target": oracle.target.to_document()})
    for line in sys.stdin:
        try:
            reply(force_one(oracle, json.loads(line)))
        except (UsageError, LibraryError) as error:  # an attribute that this release refuses
            reply({"refused": str(error)})
        except EnvironmentProblem as error:  # the context may be broken: another child goes on
            reply({"refused": str(error)})
            return 1
    return 0


class _Forcer:
    """A child that runs forced answers, started again after one that hangs or dies."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._command = [sys.executable, "-m", "tools.tail_scan", "--force-child", "--gpu", str(options.gpu)]
        self._command += ["--library", options.library] if options.library else []
        self._limit = options.case_seconds
        self._child: subprocess.Popen[str] | None = None
        self.target: dict[str, Any] | None = None

    def _start(self) -> None:
        self._child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_pump, args=(self._child.stdout, self._lines), daemon=True).start()
        first = self._line(300.0)
        if not first:
            self.close()
            raise EnvironmentProblem("the child for forced answers does not start", "its own words are above")
        self.target = json.loads(first)["target"]

    def _line(self, seconds: float) -> str | None:
        """The next line, "" where the child has ended, None at the time limit."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            self._start()
        assert self._child is not None and self._child.stdin is not None
        with suppress(BrokenPipeError):  # it has died: `_line` finds that out
            self._child.stdin.write(json.dumps(case) + "\n")
            self._child.stdin.flush()
        line = self._line(self._limit)
        if line:
            got: dict[str, Any] = json.loads(line)
            if "refused" in got:
                self.close()
            return got | {"problem": case["problem"], "recorded_reading": case["reading"], "recorded_answer": case["answer"]}
        self.close()
        why = f"did not come back within {self._limit:g} s" if line is None else "the child died"
        return {"refused": why, "problem": case["problem"], "recorded_reading": case["reading"], "recorded_answer": case["answer"]}

    def close(self) -> None:
        if self._child is not None:
            if self._child.poll() is None:
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            self._child = None


def _pump(stream: Any, lines: queue.Queue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")


def run_forced(options: argparse.Namespace) -> int:
    """Every recorded answer on this library, each within its time limit."""
    output = Path(options.output)
    check_output(output)
    try:
        recorded = json.loads(Path(options.force_from).read_text(encoding="utf-8"))
        cases = recorded["cases"][:options.problems]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{options.force_from} holds no recorded answers", "NAME.answers.json of a scan") from None
    if not cases:
        raise UsageError(f"{options.force_from} holds no short sum", "a scan of a library that has the fault")
    forcer = _Forcer(options)
    try:
        results = [forcer.run(case) for case in cases]
    finally:
        forcer.close()
    document = {"kind": FORCED, "date": now(), "recorded_on": recorded["target"], "target": forcer.target,
                "case_seconds": options.case_seconds, "cases": results}
    _write_json(document, output)
    short = sum(bool(r.get("forced", {}).get("lost")) for r in results)
    ran = sum("lost" in r.get("forced", {}) for r in results)
    print(json.dumps({"cases": len(results), "ran": ran, "forced_short": short, "same_answer_anyway": sum(bool(r.get("own_is_the_same"))
                                                                                                    for r in results)}))
    return 0


def _announce(opened: Opened) -> None:
    for text in (opened.notice, opened.oracle.announcement):
        if text:
            print(f"tail_scan: {text}", file=sys.stderr, flush=True)


def _write_json(document: dict[str, Any], path: Path) -> None:
    with new_file(path, replace=True) as aside:
        aside.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _drawing(options: argparse.Namespace) -> Drawing:
    return Drawing(tuple(DType(one) for one in options.dtypes.split(",")), options.most_k, options.aligned)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.tail_scan", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--library", help="as probe walk takes it; left out: what is installed, or the simulated library")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of drawing, in every process")
    parser.add_argument("--problems", type=int, help="stop after so many draws, over all processes; with --force-from the number of cases")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, help="left out: a fresh one, which the table names")
    parser.add_argument("--dtypes", default="fp16,bf16,e4m3")
    parser.add_argument("--most-k", type=int, default=1_000_000)
    parser.add_argument("--aligned", type=float, default=0.75, help="share of the 16-bit problems with N and K multiples of 8")
    parser.add_argument("--others", type=float, default=1.0, help="share of the answers other than a split by ALGO_ID 66 that is run")
    parser.add_argument("--force-from", help="NAME.answers.json of a scan of another release")
    parser.add_argument("--case-seconds", type=float, default=30.0, help="time limit of one forced answer")
    parser.add_argument("--force-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", help="a new .parquet file; with --force-from a new .json file")
    options = parser.parse_args(arguments)
    if options.output is None and not options.force_child:
        parser.error("-o is needed")
    if options.processes < 1:
        parser.error("--processes is at least 1")
    options.seed = secrets.randbits(48) if options.seed is None else options.seed
    return options


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        if options.force_child:
            return _force_child(options)
        return run_forced(options) if options.force_from else run_scan(options)
    except (UsageError, EnvironmentProblem, LibraryError) as error:
        print(f"tail_scan: {error}", file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
