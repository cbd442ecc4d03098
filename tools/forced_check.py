"""Force every algorithm of a library, walk what runs, and look at misaligned operands and split counts: a first look at one device.

    python -m tools.forced_check --library 13.1 --seconds 55 -o $OUT/forced.json

Lists the algorithms of fp16, bf16 and e4m3 with what each can be set to. Forces each one on three shapes with cublasLtMatmulAlgoInit's
defaults and, where the library refuses those, with the first tile and stages that it lists. Walks 512x512x512 with A off a boundary, four
bf16 problems, and 64x64x4096 at eight split counts. Each walk runs in a child with a time limit; several children work side by side.
Exit codes: 0 all were looked at, 1 the time was over before, 2 usage, 4 environment.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.apart import walk_apart
from probe.capabilities import Capabilities
from probe.children import Child
from probe.errors import Declined, EnvironmentProblem, LibraryError, UsageError
from probe.forced import Forced
from probe.newfile import new_file
from probe.oracle import open_oracle
from probe.preference import Preference, parse_alignments
from probe.problem import DType, Layout, Problem
from probe.reachable import Answers, Reachable, list_answers
from probe.records import Point, check_output, now
from probe.schedule import render_text
from probe.wire import ChildBug

KIND = "forced-check"
NVJET = 66
SHAPES = {DType.FP16: ("64x64x576", "33x17x129", "16x16x4096"), DType.BF16: ("64x64x576", "33x17x129", "16x16x4096"),
          DType.E4M3: ("64x64x576", "33x16x144", "16x16x4096")}  # 8-bit inputs: N and K in multiples of 16
BF16 = ("128x128x16384", "128x128x65536", "256x256x32768", "512x512x16384")
OFFSETS = (2, 4, 8, 16)
OFFSET, SPLIT, FORCED, LONG = GROUPS = ("offset", "split", "forced", "bf16")
SPLITS = range(1, 9)


def plan(lists: dict[DType, Answers | Declined], seconds: float, long_seconds: float) -> list[dict[str, Any]]:
    """Everything to walk, as {"group", "name", "problem", "tries": preferences one after the other, "limit"}."""
    jobs: list[dict[str, Any]] = []

    def add(group: str, name: str, problem: Problem, limit: float, *tries: Preference) -> None:
        jobs.append({"group": group, "name": name, "problem": problem, "tries": tries, "limit": limit})

    for shape in BF16:  # the longest first, beside which the others run
        add(f"{LONG} nn", "own answer", Problem.gemm(*Problem.parse_shape(shape), DType.BF16), long_seconds, Preference())
    linear = Problem.gemm(512, 512, 512, DType.FP16, layout=Layout.TN)
    for offset in (0, *OFFSETS):
        for align in ("default", "true"):
            add(OFFSET, f"A + {offset} bytes, align {align}", replace(linear, a_offset_bytes=offset), seconds,
                Preference(**parse_alignments(align)))
        add(OFFSET, "the plain problem again", linear, seconds, Preference())
    pair = Problem.gemm(64, 64, 4096, DType.FP16)
    add(SPLIT, "own answer", pair, seconds, Preference())
    for split in SPLITS:
        scheme = 0 if split == 1 else 2
        add(SPLIT, f"splitk_num={split}", pair, seconds, Preference(forced=Forced(splitk_num=split, reduction_scheme=scheme)))
        add(SPLIT, f"algo_id={NVJET} splitk_num={split}", pair, seconds,
            Preference(forced=Forced(algo_id=NVJET, splitk_num=split, reduction_scheme=scheme)))
    for dtype, listed in lists.items():
        for row in () if isinstance(listed, Declined) else listed.rows:
            for shape in SHAPES[dtype]:
                problem = Problem.gemm(*Problem.parse_shape(shape), dtype)
                add(f"{FORCED} {dtype}", f"algo_id={row.algo_id}", problem, seconds, *(Preference(forced=f) for f in _forced(row)))
    return jobs


def _forced(row: Reachable) -> list[Forced]:
    """The defaults of an algorithm; then the first of the tiles and stages that it lists."""
    tries = [Forced(algo_id=row.algo_id)]
    if isinstance(row.capabilities, Capabilities) and (row.capabilities.tiles or row.capabilities.stages):
        first = {name: values[0] for name, values in (("tile", row.capabilities.tiles), ("stages", row.capabilities.stages)) if values}
        tries.append(Forced(algo_id=row.algo_id, **first))
    return tries


def run_one(child: Child, job: dict[str, Any], seed: int) -> dict[str, Any]:
    """Walk one job: its tries in turn until one is no decline of the library's."""
    attempts: list[dict[str, Any]] = []
    for preference in job["tries"]:
        began = time.monotonic()
        try:
            got: Point | Declined | str = walk_apart(child, job["problem"], preference, seed, time_limit=job["limit"])
        except (ChildBug, UsageError) as error:
            cause = f"\n{error.__cause__}" if error.__cause__ else ""
            got = f"{type(error).__name__}: {error}{cause}"
        attempt = {"preference": preference.to_document(), "seconds": round(time.monotonic() - began, 3), "seed": seed}
        if isinstance(got, Point):
            attempt |= {"outcome": str(got.outcome), "answer": got.answer.to_document(), "families": [c.family for c in got.classes],
                        "kernels": [getattr(n, "name", str(n)) for n in got.capture.nodes], "launches": got.launches,
                        "texts": [_short(render_text(c.schedule)) for c in got.classes]}
        elif isinstance(got, Declined):
            attempt |= {"outcome": "declined", "reason": str(got.reason), "text": got.text}
        else:
            attempt |= {"outcome": "error", "text": got}
        attempts.append(attempt)
        if attempt["outcome"] != "declined":
            break
    return {"group": job["group"], "name": job["name"], "problem": job["problem"].to_document(), "key": job["problem"].key,
            "attempts": attempts}


def _short(text: str) -> str:
    return text if len(text) <= 400 else f"{text[:300]} ... {text[-90:]}"


def run_jobs(jobs: list[dict[str, Any]], options: argparse.Namespace, deadline: float) -> tuple[list[dict[str, Any]], int]:
    """The results, in the order of the jobs, and how many were not begun in time."""
    waiting: queue.Queue[list[int]] = queue.Queue()
    offsets = [index for index, job in enumerate(jobs) if job["group"] == OFFSET]  # one child for all, to see that it works after a fault
    units = [[index] for index in range(len(jobs)) if index not in offsets]
    for unit in [offsets, *units] if offsets else units:
        waiting.put(unit)
    results: dict[int, dict[str, Any]] = {}
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            with Child(options.library, options.gpu, name=f"child {number}") as child:
                while time.monotonic() < deadline:
                    try:
                        unit = waiting.get_nowait()
                    except queue.Empty:
                        return
                    for index in unit:
                        results[index] = run_one(child, jobs[index], options.seed + index)
        except (EnvironmentProblem, LibraryError, UsageError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(options.children)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        print(f"forced_check: {failure}", file=sys.stderr)
    if not results and failures:
        raise failures[0]
    return [results[index] for index in sorted(results)], len(jobs) - len(results)


def line_of(result: dict[str, Any]) -> str:
    """One line of the table: the last try, and what the others were refused for."""
    last, problem = result["attempts"][-1], result["problem"]
    shape = f"{problem['m']}x{problem['n']}x{problem['k']}"
    if "answer" in last:
        a = last["answer"]
        what = (f"algo {a['algo_id']} tile {a['tile']} split {a['splitk_num']} scheme {a['reduction_scheme']} stages {a['stages']}: "
                f"{' / '.join(last['families'])}; {last['kernels'][-1][:60] if last['kernels'] else 'no kernel'}")
    else:
        what = " | ".join(" ".join(str(attempt["text"]).split())[:110] for attempt in result["attempts"])
    number = f"({len(result['attempts'])}) " if len(result["attempts"]) > 1 else ""
    return f"{result['group']:<12} {shape:<15} {result['name']:<28} {last['outcome']:<13} {last['seconds']:>6.2f} s  {number}{what}"


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    output = Path(options.output)
    began = time.monotonic()
    try:
        check_output(output)
        if unknown := set(options.groups.split(",")) - set(GROUPS):
            raise UsageError(f"there is no group {', '.join(sorted(unknown))}", "some of " + ", ".join(GROUPS))
        opened = open_oracle(options.library, options.gpu)
        for text in (opened.notice, opened.oracle.announcement):
            if text:
                print(f"forced_check: {text}", file=sys.stderr)
        lists = {dtype: list_answers(opened.oracle, Problem.gemm(16, 16, 16, dtype), Preference(), options.shapes, options.seed)
                 for dtype in SHAPES}
        listed_s = time.monotonic() - began
        for dtype, listed in lists.items():
            _print_list(dtype, listed)
        jobs = [j for j in plan(lists, options.case_seconds, options.long_seconds) if j["group"].split()[0] in options.groups.split(",")]
        results, left = run_jobs(jobs, options, began + options.seconds)
    except (UsageError, EnvironmentProblem, LibraryError) as error:
        print(f"forced_check: {error}", file=sys.stderr)
        return int(error.exit_code)
    for result in results:
        print(line_of(result))
    counts = Counter((result["group"], result["attempts"][-1]["outcome"]) for result in results)
    for (group, outcome), count in sorted(counts.items()):
        print(f"{group:<12} {outcome:<13} {count}")
    print(f"{len(results)} of {len(jobs)} walks in {time.monotonic() - began:.1f} s, {listed_s:.1f} s of them for listing; {left} left")
    document = {"kind": KIND, "date": now(), "target": opened.oracle.target.to_document(), "seed": options.seed, "left": left,
                "case_seconds": options.case_seconds, "long_seconds": options.long_seconds,
                "lists": {str(d): {"declined": str(x)} if isinstance(x, Declined) else x.to_document() for d, x in lists.items()},
                "walks": results}
    with new_file(output) as aside:
        aside.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 1 if left else 0


def _print_list(dtype: DType, listed: Answers | Declined) -> None:
    from probe.cli.answers import answers_lines

    print("\n".join(answers_lines(listed)) if isinstance(listed, Answers) else f"{dtype}: declined: {listed}")
    print()


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.forced_check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--library", help="as probe walk takes it")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=55.0, help="after which no further walk begins")
    parser.add_argument("--case-seconds", type=float, default=5.0, help="for one walk")
    parser.add_argument("--long-seconds", type=float, default=25.0, help="for one walk of the bf16 problems")
    parser.add_argument("--children", type=int, default=4, help="processes that walk side by side")
    parser.add_argument("--groups", default=",".join(GROUPS), help="which walks, some of the default")
    parser.add_argument("--shapes", type=int, default=2000, help="drawn shapes that the cost model is asked for, a dtype")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", required=True, help="a new .json file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
