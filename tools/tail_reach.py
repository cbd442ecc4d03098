"""Measure what the lost tail reaches: other ways to ask for losing shapes, the smallest K of each (M, N), layers of 16 models.

    python -m tools.tail_reach --library 13.1 --processes 16 --seconds 240 -o reports/splitk-tail/reach-13.1.0.parquet
    python -m tools.tail_reach --library sim --parts variant -o reach.parquet

Processes take the tasks of probe.tail.reach one by one. About 1.9 million questions and some thousand sums: 40 to 110 s with 16 processes
is what the rate of tail_scan on an H200 (2,000 sums a second and process) lets expect; --parts and --most-k make it shorter. Tasks that
were not begun within --seconds are left, counted in the table, and said; exit code 1.
Exit codes: 0 all tasks done, 1 some were left or a process ended early (the rest is written), 2 usage, 4 environment.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from probe.errors import EnvironmentProblem, LibraryError, UsageError
from probe.oracle import Oracle, open_oracle
from probe.records import check_output, now
from probe.tail.reach import MOST_K, MOST_TOKENS, Bench, Task, tasks_of
from probe.tail.reach_table import COUNTS, Part, Row, totals, write_reach
from probe.target import Target


def work(oracle: Oracle, tasks: list[Task], take: Callable[[], int], deadline: float, rows: list[Row]) -> int:
    """Run tasks, whose number `take` gives, into `rows` until there is none or the time is over. Returns how many were done."""
    bench, done = Bench(oracle), 0
    while time.monotonic() < deadline:
        number = take()
        if number >= len(tasks):
            break
        rows += tasks[number].run(bench)
        done += 1
    return done


def _process(pipe: Connection, options: argparse.Namespace, first: bool, taken: Any) -> None:
    """One process: opens the library itself. Sends rows, tasks done, target, seconds, and what ended it early or None."""
    rows: list[Row] = []
    target: Target | None = None
    done, began = 0, time.monotonic()
    error: Exception | None = None
    try:
        opened = open_oracle(options.library, options.gpu)
        if first:
            for text in (opened.notice, opened.oracle.announcement):
                if text:
                    print(f"tail_reach: {text}", file=sys.stderr, flush=True)
        target = opened.oracle.target

        def take() -> int:
            with taken.get_lock():
                taken.value += 1
                return int(taken.value) - 1

        began = time.monotonic()
        done = work(opened.oracle, _tasks(options), take, began + options.seconds, rows)
    except (UsageError, EnvironmentProblem, LibraryError) as problem:
        error = problem
    except Exception as problem:  # a GPU package's own, or a bug: told, and what was measured before it is kept
        traceback.print_exc()
        error = EnvironmentProblem(f"{type(problem).__name__}: {problem}", "its traceback is above")
    pipe.send((rows, done, target, time.monotonic() - began, error))


def run(options: argparse.Namespace) -> int:
    """The processes, their rows as one table."""
    output = Path(options.output)
    check_output(output)
    tasks = _tasks(options)
    context = multiprocessing.get_context("spawn")
    taken = context.Value("q", 0)
    pipes: dict[Connection, multiprocessing.process.BaseProcess] = {}
    for number in range(options.processes):
        mine, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_process, args=(theirs, options, number == 0, taken))
        child.start()
        theirs.close()
        pipes[mine] = child
    rows: list[Row] = []
    target, spent, done, ended = None, [0.0], 0, 0
    why: Exception = EnvironmentProblem("no process came back with a result", "its own words are above")
    while pipes:
        for pipe in wait(list(pipes)):
            child = pipes.pop(pipe)  # type: ignore[index,arg-type]
            try:
                its_rows, its_done, its_target, seconds, error = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                child.join()
                print(f"a process ended with {child.exitcode}; what it had measured is lost", file=sys.stderr)
                ended += 1
                continue
            child.join()
            if error is not None:
                print(f"a process ended early, after {its_done} tasks: {error}", file=sys.stderr)
                ended, why = ended + 1, error
            rows += its_rows
            done += its_done
            target = its_target or target
            spent.append(seconds)
    if target is None:
        raise why
    # tasks that finish in another order make the same table
    rows.sort(key=lambda r: [(r[name] is not None, r[name]) for name in r if name not in COUNTS and not isinstance(r[name], float)])
    about = {"target": target.to_document(), "date": now(), "parts": options.parts, "most_k": options.most_k, "most_m": options.most_m,
             "processes": options.processes, "processes_lost": ended, "seconds": round(max(spent), 1), "tasks": len(tasks), "done": done,
             "left": len(tasks) - done}
    write_reach(rows, about, output)
    if about["left"]:
        print(f"tail_reach: {about['left']} of {len(tasks)} tasks were not done", file=sys.stderr)
    print(json.dumps(about | {"rows": len(rows), "bytes": output.stat().st_size,
                              "counts": {str(p): totals(r for r in rows if r["part"] == p) for p in Part}}))
    return 1 if ended or about["left"] else 0


def _tasks(options: argparse.Namespace) -> list[Task]:
    return tasks_of(tuple(Part(one) for one in options.parts.split(",")), options.most_k, options.most_m)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.tail_reach", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--library", help="as probe walk takes it; left out: what is installed, or the simulated library")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--parts", default=",".join(Part), help="some of " + ",".join(Part))
    parser.add_argument("--most-k", type=int, default=MOST_K, help="how far K is asked for the smallest")
    parser.add_argument("--most-m", type=int, default=MOST_TOKENS, help="how far M is asked for layers")
    parser.add_argument("--seconds", type=float, default=240.0, help="after which no task is begun")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("-o", "--output", required=True, help="a new .parquet file")
    options = parser.parse_args(arguments)
    if options.processes < 1 or options.most_k < 64 or options.most_m < 1:
        parser.error("--processes and --most-m are at least 1, --most-k at least 64")
    if not set(options.parts.split(",")) <= {str(p) for p in Part}:
        parser.error("--parts are some of " + ",".join(Part))
    return options


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        return run(options)
    except (UsageError, EnvironmentProblem, LibraryError) as error:
        print(f"tail_reach: {error}", file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
