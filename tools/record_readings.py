"""Record the readings of a device for tests/data/readings: one npz a case, everything that `walk_problem` asks with a fixed seed.

    python -m tools.record_readings OUTDIR [cu12 | cu13 | sim | PATH]

A case that OUTDIR holds already is left alone, so that an interrupted run goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.walk_cases import Case, acceptance, more
from probe.errors import Declined
from probe.oracle import Opened, open_oracle
from probe.pipeline import walk_problem
from probe.preference import Preference
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


def record(case: Case, opened: Opened, folder: Path) -> str:
    oracle = RecordingOracle(opened.oracle)
    point = walk_problem(case.problem(), Preference(), Opened(oracle, ""), seed=SEED)  # type: ignore[arg-type]
    if isinstance(point, Declined):
        return f"declined: {point}"
    assert oracle.recorder is not None
    path = folder / f"{case.name}.npz"
    oracle.recorder.save(path, point.to_document())
    c = point.classes[0]
    return f"{point.outcome} algo {point.answer.algo_id} {c.family} {path.stat().st_size} bytes"


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    opened = open_oracle(None if len(sys.argv) < 3 else sys.argv[2], 0)
    for case in sorted([*acceptance(), *more()], key=lambda c: c.shape == "16x16x300000"):  # the slowest last
        if (folder / f"{case.name}.npz").exists():
            continue
        print(case.name, record(case, opened, folder), flush=True)


if __name__ == "__main__":
    main()
