"""Launches and seconds of `probe walk`, and the launches FPRev's algorithm would need, its probes packed by output row too.

    python -m benchmarks.walk [--library sim] [--data reports/data/walk-h200.parquet]      measure, once warm
    python -m benchmarks.walk --report reports/data/walk-h200.parquet > reports/walk-h200.md      write the report of a dataset
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.fprev import fprev_cost
from benchmarks.walk_cases import Case, acceptance
from probe.errors import Declined
from probe.inputs import pair_for
from probe.oracle import Opened, open_oracle
from probe.pipeline import walk_problem
from probe.preference import Preference
from probe.problem import Problem
from probe.records import Point, row_of, write_rows
from probe.walks.agreement import agreement
from probe.walks.reader import Reader, places_for
from probe.walks.recover_tree import recover_tree

TARGETS = {"64x64x576": 0.015, "16x16x8192": 0.1, "1x8x11528": 0.3, "16x16x300000": 2.0}  # seconds of the walk, once warm (issue A)


def measure(library: str | None, only: list[str], data: Path | None) -> None:
    """Measure every case, a line for each; the dataset is written anew after each, so that an interrupted run keeps what it has."""
    opened = open_oracle(library, 0)
    rows: list[dict[str, Any]] = []
    cases = sorted(acceptance(), key=lambda case: case.shape == "16x16x300000")  # the slowest last
    for case in cases:
        if only and case.shape not in only:
            continue
        problem = case.problem()
        warm_up(problem, opened)
        point = walk_problem(problem, Preference(), opened, seed=2)
        if isinstance(point, Declined):
            print(f"{case.name}: declined, {point}", flush=True)
            continue
        rows.append(measured_row(case, point))
        print(line(rows[-1]), flush=True)
        if data is not None:
            data.parent.mkdir(parents=True, exist_ok=True)
            write_rows(rows, data)


def measured_row(case: Case, point: Point) -> dict[str, Any]:
    """The row of a point with what its steps cost and what FPRev's algorithm would."""
    result, problem = point.classes[0], point.problem
    width = len(places_for(None, problem.m, problem.n, pair_for(problem.a_dtype).both).rows)
    rival = fprev_cost(result.schedule)
    return row_of(point, result) | {
        "case": case.name, "width": width, "agree_seconds": point.phase("agree").seconds, "agree_launches": point.phase("agree").launches,
        "settle_seconds": point.phase("settle").seconds, "prove_seconds": point.phase("prove").seconds if result.proof else 0.0,
        "fprev_probes": rival.probes, "fprev_launches": rival.launches(width), "fprev_launches_by_depth": rival.launches_by_depth(width),
        "target_seconds": TARGETS.get(case.shape)}


def warm_up(problem: Problem, opened: Opened) -> None:
    """Load the kernels: everything up to the end of the walk, without the proof."""
    answer = opened.oracle.ask(problem, Preference())
    if isinstance(answer, Declined):
        return
    summing = opened.oracle.summing(problem, answer, Preference())
    if isinstance(summing, Declined):
        return
    agreement(summing, 1)
    pair = pair_for(problem.a_dtype)
    recover_tree(Reader(summing, pair, places_for(None, problem.m, problem.n, pair.both)), 1)


def line(row: dict[str, Any]) -> str:
    return (f"{row['case']:<34}{row['outcome']:<11}{row['walk_launches']:>6} launches {row['walk_seconds'] * 1e3:>8.1f} ms walk "
            f"{row['seconds'] * 1e3:>9.1f} ms all  FPRev {row['fprev_launches']} ({row['fprev_launches_by_depth']} packed by depth)")


def report(path: Path) -> str:
    import pyarrow.parquet as pq

    rows = pq.read_table(path).to_pylist()
    first = rows[0]
    out = [
        f"# probe walk on {first['device_name']}", "",
        f"Target: {first['sm']}, {first['sm_count']} SMs, driver {first['driver']}, {first['library']} {first['library_version']} "
        f"(sha256 {first['library_sha256'][:16]}), {first['date'][:10]}. Workspace 32 MiB, alignments of the real pointers. "
        "Kernels warm: each shape was walked once before.", "",
        f"Written by `python -m benchmarks.walk --report {path.as_posix()}` from that dataset, "
        "the dataset by `python -m benchmarks.walk --data`.", "",
        "walk: the launches and the time from the first experiment to the tree and its checks. all: every step, from asking to the "
        "proof on fresh draws, the simulation on the host's CPU included. FPRev: launches of its algorithm, as we read it, on the same "
        "tree with as many probes a launch; in brackets with all calls of one depth packed together, which the published algorithm does "
        "not do.", "",
        "| problem | algo, split | recovered | k summed | verdict | dot products | walk launches | walk ms | all ms | FPRev launches |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for r in rows:
        goal = f" (goal {r['target_seconds'] * 1e3:.0f})" if r["target_seconds"] else ""
        out.append(
            f"| {r['case']} | {r['algo_id']}, {r['splitk_num']} | {r['family']} | {r['k_summed']} of {r['k']} | {r['outcome']} "
            f"| {r['elements_compared']} | {r['walk_launches']} | {r['walk_seconds'] * 1e3:.1f}{goal} | {r['seconds'] * 1e3:.0f} "
            f"| {r['fprev_launches']} ({r['fprev_launches_by_depth']}) |")
    confirmed = sum(r["outcome"] == "confirmed" for r in rows)
    fewer = sum(r["walk_launches"] < r["fprev_launches_by_depth"] for r in rows)
    out += ["", f"{confirmed} of {len(rows)} confirmed. Fewer launches than FPRev, packed by depth, on {fewer} of {len(rows)}."]
    unrun = [case.name for case in acceptance() if case.name not in {r["case"] for r in rows}]
    if unrun:
        out += ["", f"Not run in this dataset: {', '.join(unrun)}."]
    dropped = [r for r in rows if r["k_summed"] < r["k"]]
    if dropped:
        out += ["", "Dropped tails: " + "; ".join(f"{r['case']} sums {r['k_summed']} of {r['k']}" for r in dropped) + "."]
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("shapes", nargs="*")
    args = parser.parse_args()
    if args.report:
        print(report(args.report))
        return
    measure(args.library, args.shapes, args.data)


if __name__ == "__main__":
    main()
