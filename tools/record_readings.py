"""Record the readings of a device for tests/data/readings: one npz a case, everything that `walk_problem` asks with a fixed seed.

    python -m tools.record_readings OUTDIR [cu12 | cu13 | sim | PATH]
    python -m tools.record_readings OUTDIR 13.1 --stream 200 --draw tiny --part 0/8   # of benchmarks.coverage: index 0, 8, 16, ...

A case that OUTDIR holds already is left alone, so that an interrupted run goes on. Of a stream, what is not confirmed goes to
OUTDIR/open: its readings and bytes, for mending the model; what was declined is printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.coverage.regimes import Draw, stream_of
from benchmarks.walk_cases import Case, acceptance, more
from probe.errors import Declined, LibraryError
from probe.oracle import Opened, open_oracle
from probe.pipeline import walk_problem
from probe.preference import Preference
from probe.problem import Problem
from probe.proof import Outcome
from probe.recording import Recorder

SEED = 20261130


class RecordingOracle:
    """An oracle whose summing is recorded."""

    def __init__(self, inner: object) -> None:
        self._inner = inner
        self.recorder: Recorder | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def summing(self, *args: object) -> object:
        made = self._inner.summing(*args)  # type: ignore[attr-defined]
        if isinstance(made, Declined):
            return made
        self.recorder = Recorder(made)
        return self.recorder


def record(problem: Problem, preference: Preference, name: str, opened: Opened, folder: Path) -> str:
    """Walk and record one problem; a line about it."""
    oracle = RecordingOracle(opened.oracle)
    point = walk_problem(problem, preference, Opened(oracle, ""), seed=SEED)  # type: ignore[arg-type]
    if isinstance(point, Declined):
        return f"declined: {point}"
    assert oracle.recorder is not None
    place = folder if point.outcome is Outcome.CONFIRMED else folder / "open"
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{name}.npz"
    oracle.recorder.save(path, point.to_document())
    return f"{point.outcome} algo {point.answer.algo_id} {', '.join(c.family for c in point.classes)} {path.stat().st_size} bytes"


def _drawn(count: int, draw: Draw, part: str) -> list[tuple[Problem, Preference, str]]:
    first, step = (int(x) for x in part.split("/"))
    stream = stream_of(SEED, draw)
    asked = [(index, stream.at(index)) for index in range(first, count, step)]
    return [(one.problem, one.preference, f"{draw}-{index:05d}") for index, one in asked if not one.problem.overpromised(one.preference)]


def _cases() -> list[tuple[Problem, Preference, str]]:
    cases: list[Case] = sorted([*acceptance(), *more()], key=lambda c: c.shape == "16x16x300000")  # the slowest last
    return [(c.problem(), Preference(), c.name) for c in cases]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.record_readings", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("library", nargs="?")
    parser.add_argument("--stream", type=int, default=0, help="problems of the stream in place of the named cases")
    parser.add_argument("--draw", type=Draw, choices=list(Draw), default=Draw.TINY)
    parser.add_argument("--part", default="0/1", help="FIRST/STEP of the stream's indices, for processes side by side")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    opened = open_oracle(options.library, 0)
    for problem, preference, name in _drawn(options.stream, options.draw, options.part) if options.stream else _cases():
        if any((place / f"{name}.{kind}").exists() for place in (options.folder, options.folder / "open") for kind in ("npz", "txt")):
            continue
        try:
            print(name, problem.key, record(problem, preference, name, opened, options.folder), flush=True)
        except LibraryError as error:  # a failed kernel takes the context with it: the next run goes on behind it
            (options.folder / "open").mkdir(exist_ok=True)
            (options.folder / "open" / f"{name}.txt").write_text(f"{problem.key}: {error}\n")
            raise


if __name__ == "__main__":
    main()
