"""Answers a second of `probe ask` by the number of processes, and where the time of one process goes.

    python -m benchmarks.ask [--library sim] [--gpu 0] [--shapes campaigns/table2.toml] [--problems 200000] [--processes 1 2 4 8 16]

The time begins when every process holds its library. `--distinct` leaves out the table; without it one is written and removed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from probe.answering import Answering, batch_to_text
from probe.asking.run import ask
from probe.asking.shapes import wanted
from probe.oracle import open_oracle
from probe.parallel import cores
from probe.questions import Questions, draw
from probe.regimes import Chosen

_ALONE = 8192  # questions of the one batch that is looked into


def measure(shapes: str, library: str | None, gpu: int, problems: int, processes: list[int], distinct: bool) -> None:
    """Print a line for each number of processes."""
    print(f"{'processes':>9}  {'a second':>10}  {'a process':>10}  {'seconds':>8}")
    for number in processes:
        with tempfile.TemporaryDirectory() as place:
            asked = ask(shapes, library=library, gpu=gpu, problems=problems, processes=number, distinct=distinct,
                        output=None if distinct else Path(place) / "answers.parquet")
        rate = asked.questions / asked.seconds
        print(f"{asked.processes:>9}  {rate:>10,.0f}  {rate / asked.processes:>10,.0f}  {asked.seconds:>8.2f}", flush=True)
    print(f"{asked.target}; {asked.questions:,} questions of {asked.shapes}, {asked.population.distinct:,} different answers; "
          f"{cores()} cores")


def look_into(shapes: str, library: str | None, gpu: int, problems: int) -> None:
    """Print what one process needs a question, step by step, without a pipe."""
    questions = wanted(shapes, Chosen(), None, problems, None)
    answering, end = Answering(open_oracle(library, gpu).oracle), min(_ALONE, questions.count)
    answering.batch(draw(questions.stream, 0, min(64, end)))  # the first answers load what is loaded once
    times = [time.perf_counter()]
    drawn: Questions = draw(questions.stream, 0, end)
    times.append(time.perf_counter())
    batch = answering.batch(drawn)
    times.append(time.perf_counter())
    batch_to_text(batch)
    times.append(time.perf_counter())
    for name, before, after in zip(("draw", "ask", "pack"), times, times[1:], strict=False):
        print(f"{name:<5} {1e6 * (after - before) / end:8.2f} us a question")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ask", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default="campaigns/table2.toml")
    parser.add_argument("--library", default="sim")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--problems", type=int, default=200_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[n for n in (1, 2, 4, 8, 16) if n <= cores()])
    parser.add_argument("--distinct", action="store_true")
    options = parser.parse_args()
    look_into(options.shapes, options.library, options.gpu, options.problems)
    measure(options.shapes, options.library, options.gpu, options.problems, options.processes, options.distinct)


if __name__ == "__main__":
    main()
