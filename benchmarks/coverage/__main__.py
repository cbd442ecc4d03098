"""Coverage of random problems: how many are recovered and confirmed, by family, and what is not.

    python -m benchmarks.coverage run --library 13.1 --problems 5000 --processes 16 --seed 1 --seconds 400 -o DIR
    python -m benchmarks.coverage report DIR/*.parquet -o reports/coverage-h200.md
    python -m benchmarks.coverage compact DIR/*.parquet -o reports/data/coverage-h200.parquet
    python -m benchmarks.coverage dump DIR/*.parquet -o DIR.npz        bytes of the problems that were not confirmed
    python -m benchmarks.coverage one --seed 1 --index 17              one problem of the draw, in this process

Exit codes: 0 done (run and one: all confirmed), 1 not all confirmed, 2 usage, 3 declined (one), 4 environment, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from probe.errors import EnvironmentProblem, ExitCode, LibraryError, UsageError


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
        return int({"run": _run, "report": _report, "compact": _compact, "dump": _dump, "one": _one}[options.command](options))
    except (UsageError, EnvironmentProblem, LibraryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run(options: argparse.Namespace) -> ExitCode:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # processes side by side fill the cores already
        os.environ.setdefault(name, "1")
    from benchmarks.coverage.pool import Plan, run
    from benchmarks.coverage.regimes import Draw

    plan = Plan(options.library, options.problems, options.processes, options.seed, options.seconds, options.limit, Draw(options.draw),
                options.gpu)
    counts = run(plan, options.output, _say, resume=options.resume)
    return ExitCode.OK if counts.total() == counts["confirmed"] + counts["misaligned"] else ExitCode.NOT_CONFIRMED


def _report(options: argparse.Namespace) -> ExitCode:
    from benchmarks.coverage.report import report
    from benchmarks.coverage.rows import read

    source = f"`{options.dataset[0]}`" + (f" and {len(options.dataset) - 1} more" if len(options.dataset) > 1 else "")
    text = report(read(options.dataset), source, "python -m benchmarks.coverage report")
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
    return ExitCode.OK


def _compact(options: argparse.Namespace) -> ExitCode:
    from benchmarks.coverage.rows import compact, read

    compact(read(options.dataset), options.output)
    _say(f"{options.output}: {options.output.stat().st_size:,} bytes")
    return ExitCode.OK


def _dump(options: argparse.Namespace) -> ExitCode:
    from benchmarks.coverage.dump import dump
    from benchmarks.coverage.rows import read

    count = dump(read(options.dataset), options.output, _say, library=options.library, gpu=options.gpu, largest=options.largest,
                 every=options.every)
    _say(f"{options.output}: {count} problems, {options.output.stat().st_size:,} bytes")
    return ExitCode.OK


def _one(options: argparse.Namespace) -> ExitCode:
    from benchmarks.coverage.regimes import Draw, stream_of
    from probe.cli.show import print_point
    from probe.errors import Declined
    from probe.oracle import open_oracle
    from probe.pipeline import walk_problem

    stream = stream_of(options.seed, Draw(options.draw))
    asked = stream.at(options.index)
    _say(f"{asked.source}: {asked.problem.key} {asked.preference.key}")
    point = walk_problem(asked.problem, asked.preference, open_oracle(options.library, options.gpu), seed=stream.draw_seed(options.index))
    if isinstance(point, Declined):
        _say(f"declined: {point}")
    else:
        print_point(point)
    return point.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    def of_library(one: argparse.ArgumentParser) -> None:
        one.add_argument("--library", help="as `probe walk` takes it")
        one.add_argument("--gpu", type=int, default=0)

    def of_draw(one: argparse.ArgumentParser) -> None:
        one.add_argument("--seed", type=int, default=1, help="of the problems and of all draws")
        one.add_argument("--draw", choices=("all", "small", "tiny"), default="all", help="small, tiny: sizes for the simulated library")

    run = command("run", "Walk many random problems, processes side by side.")
    of_library(run)
    of_draw(run)
    run.add_argument("--problems", type=int, default=5000)
    run.add_argument("--processes", type=int, default=16)
    run.add_argument("--seconds", type=float, default=400, help="of wall clock, once every process is warm")
    run.add_argument("--limit", type=float, default=20, help="seconds for one problem")
    run.add_argument("--resume", action="store_true", help="walk what the folder of a run lacks")
    run.add_argument("-o", "--output", type=Path, required=True, help="a folder: new or empty, or that of the run to resume")
    report = command("report", "Write the report of a run.")
    report.add_argument("dataset", type=Path, nargs="+")
    report.add_argument("-o", "--output", type=Path)
    compact = command("compact", "Write the rows of a run as one small file.")
    compact.add_argument("dataset", type=Path, nargs="+")
    compact.add_argument("-o", "--output", type=Path, required=True)
    dump = command("dump", "Write operands and outputs of the problems that were not confirmed.")
    of_library(dump)
    dump.add_argument("dataset", type=Path, nargs="+")
    dump.add_argument("-o", "--output", type=Path, required=True, help="a new .npz")
    dump.add_argument("--largest", type=int, default=2**24, help="M*N*K at most")
    dump.add_argument("--every", action="store_true", help="confirmed problems too")
    one = command("one", "Walk one problem of the draw in this process.")
    of_library(one)
    of_draw(one)
    one.add_argument("--index", type=int, required=True)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
