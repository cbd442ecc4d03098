"""Readings recorded on an H200 (tests/data/readings, cuBLASLt 13.1.0) are recovered again, from the first experiment to the proof.

Each file holds what the device answered to every experiment and draw of one `probe walk`; `python -m tools.record_readings` takes
them anew. What recovery must find is not taken from the file alone: spans, extents and fp8 blocks are stated here, from the answer and
DESIGN's measured facts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.answer import Answer
from probe.capture import Capture
from probe.errors import Declined, UsageError
from probe.inputs import Draw, DrawKind
from probe.oracle import Opened
from probe.pipeline import walk_problem
from probe.preference import Preference
from probe.problem import Problem
from probe.proof import Outcome
from probe.recording import Recorded
from probe.records import Point
from probe.schedule import term_to_json
from probe.target import Target

FOLDER = Path(__file__).parent / "data" / "readings"
FILES = sorted(FOLDER.glob("*.npz"))
SLOW_SHAPES = ("1x8x11528", "2x2x5000", "16x16x300000", "32x32x11528", "1x4096x4096")


class RecordedOracle:
    """An oracle that answers from one recording."""

    found_by = "a recording"
    announcement = ""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        about = recorded.about
        self.target = Target.from_document(about["target"])
        self.problem = Problem.from_document(about["problem"])
        self.preference = Preference.from_document(about["preference"])
        self._answer = Answer.from_document(about["answer"])
        self._capture = Capture.from_document(about["capture"])

    def ask(self, problem: Problem, preference: Preference) -> Answer:
        assert (problem, preference) == (self.problem, self.preference)
        return self._answer

    def capture(self, problem: Problem, answer: Answer, preference: Preference) -> Capture:
        return self._capture

    def summing(self, problem: Problem, answer: Answer, preference: Preference) -> Recorded:
        return self.recorded


def replay(path: Path) -> tuple[Point, dict[str, Any]]:
    recorded = Recorded(path)
    oracle = RecordedOracle(recorded)
    point = walk_problem(oracle.problem, oracle.preference, Opened(oracle, ""), seed=recorded.about["seed"])  # type: ignore[arg-type]
    assert isinstance(point, Point), point
    return point, recorded.about


def params() -> list[Any]:
    return [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.name.split(".")[0] in SLOW_SHAPES else []) for path in FILES]


@pytest.mark.parametrize("path", params())
def test_recorded_readings_are_recovered_and_confirmed(path: Path) -> None:
    point, about = replay(path)
    assert point.target.version == "13.1.0" and point.target.sm == "sm_90"
    assert point.outcome is Outcome.CONFIRMED
    (result,) = point.classes
    assert result.proof is not None and result.proof.elements >= 4096
    assert term_to_json(result.schedule) == about["classes"][0]["schedule"]
    k, split = point.problem.k, point.answer.splitk_num
    assert result.desc is not None
    if point.answer.algo_id == 66 and split > 1:
        # DESIGN fact 4: what is launched is round_up(floor(K / s), b) by s parts, and what they do not cover is lost
        block = 128 if point.problem.a_dtype.is_fp8 else 64
        span = -(-(k // split) // block) * block
        assert result.desc.k_cuts[0].span == span
        assert result.extent == min(k, span * split)
    else:
        assert result.extent == k
    if point.answer.algo_id == 56:  # DESIGN fact 6: one ascending chain of single products
        assert result.desc.instruction_k == 1 and not result.desc.k_cuts
    if point.problem.a_dtype.is_fp8:
        # DESIGN fact 3: without fast accumulation a block of 128 closes, with it the accumulator runs on
        assert (result.desc.k_cuts[-1].span == 128 if result.desc.k_cuts else False) is not point.problem.fast_accumulation


def test_there_are_at_least_seventy_recordings_of_what_the_h200_offered() -> None:
    """Every family of issue A but per-instruction accumulation, which was not seen on an H200."""
    abouts = [Recorded(path).about for path in FILES]
    assert len(abouts) >= 70
    assert all(about["target"]["sha256"] and about["date"] for about in abouts)
    families = {about["classes"][0]["family"] for about in abouts}
    for word in ("single accumulator", "split-K", "promoted every 128", "ascending fma chain"):
        assert any(word in family for family in families), word
    assert {about["problem"]["layout"] for about in abouts} == {"nn", "tn", "nt", "tt"}


def test_a_recording_answers_nothing_that_was_not_recorded() -> None:
    recorded = Recorded(FILES[0])
    draw = Draw.of(recorded.m, recorded.n, recorded.k, recorded.input_dtype, DrawKind.FLAT, 987654321, 0)
    with pytest.raises(UsageError, match="was not recorded"):
        recorded.outputs([(draw, None)])


def test_a_changed_reading_is_not_recovered_as_the_same_order(tmp_path: Path) -> None:
    """One flipped count in the readings must not go unnoticed."""
    source = FOLDER / "64x64x576.fp16.fp32.nn.npz"
    with np.load(source) as data:
        arrays = {name: data[name] for name in data.files}
    bits = arrays["bits"].copy()
    middle = np.nonzero((arrays["probes"][:, 1] >= 0) & (arrays["probes"][:, 1] < 200))[0][40]
    bits[middle] = np.float32(np.float32(bits[middle:middle + 1].view(np.float32)[0]) + np.float32(2.0**-24)).view(np.uint32)
    changed = tmp_path / "changed.npz"
    np.savez_compressed(changed, **(arrays | {"bits": bits}))
    recorded = Recorded(changed)
    oracle = RecordedOracle(recorded)
    try:
        point = walk_problem(oracle.problem, oracle.preference, Opened(oracle, ""), seed=recorded.about["seed"])  # type: ignore[arg-type]
    except UsageError as error:
        assert "was not recorded" in str(error)  # the walk turned elsewhere and asked what was never read
    else:
        assert isinstance(point, Declined) or term_to_json(point.classes[0].schedule) != recorded.about["classes"][0]["schedule"]


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    junk = tmp_path / "junk.npz"
    junk.write_bytes(b"not an archive")
    with pytest.raises(UsageError, match="no recording"):
        Recorded(junk)
