"""Recordings in a pack: looked over before numpy unpacks them, and walked again from the first experiment to the proof."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from probe.answer import Answer
from probe.capture import Capture
from probe.errors import Declined, UsageError
from probe.oracle import Opened
from probe.pipeline import walk_problem
from probe.preference import Preference
from probe.problem import Problem
from probe.proof import Outcome
from probe.recording import Recorded
from probe.records import Point
from probe.schedule import term_to_json
from probe.target import Target
from probe.wire import point_from_document

MOST_RECORDING = 64 * 2**20  # bytes, packed
_MOST_ARRAYS = 2**28  # bytes of all arrays of one
_MOST_OPERANDS = 2**30  # bytes of the operands of a problem that is walked again
_MEMBERS = {"meta.npy", "probes.npy", "bits.npy", "draws.npy"}
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, OverflowError, EOFError, zlib.error,
              zipfile.BadZipFile, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class Recording:
    """A recording that was looked over: the point that its device gave, and its bytes."""

    name: str
    point: Point
    data: bytes


def look_over(name: str, data: bytes, targets: Mapping[str, Target]) -> Recording:
    """A recording whose arrays are as small as they say and whose point can be read. targets: of the campaign, one of which it must have.

    Raises UsageError that names the recording.
    """
    try:
        _bound(data)
        point = point_from_document(_meta(data))
        if point.target not in targets.values():
            raise UsageError("it was measured on a target that the campaign does not have")
        if point.problem.total_bytes > _MOST_OPERANDS:
            raise UsageError("its problem is too large to be walked again")
    except _MALFORMED as error:
        raise UsageError(f"{name}: {' '.join(str(error).split())[:200]}") from None
    return Recording(name, point, data)


def _bound(data: bytes) -> None:
    """Raises UsageError where the npz is none of a recording, or an array claims more than is there."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        infos = file.infolist()
        if {info.filename for info in infos} != _MEMBERS or len(infos) != len(_MEMBERS):
            raise UsageError("it is no recording")
        if sum(info.file_size for info in infos) > _MOST_ARRAYS:
            raise UsageError(f"its arrays pass {_MOST_ARRAYS // 2**20} MiB")
        for info in infos:
            with file.open(info) as member:
                version = np.lib.format.read_magic(member)
                if version != (1, 0):
                    raise UsageError(f"{info.filename} has a form that recordings do not have")
                shape, _, dtype = np.lib.format.read_array_header_1_0(member)
                count = 1
                for side in shape:
                    count *= side
                if dtype.hasobject or count * dtype.itemsize != info.file_size - member.tell():
                    raise UsageError(f"{info.filename} does not have the size that it says")


def _meta(data: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        about: dict[str, Any] = json.loads(str(arrays["meta"]))["about"]
    return about


class RecordedOracle:
    """An oracle that answers from one recording, and only what its device was asked."""

    found_by = "a recording"
    announcement = ""

    def __init__(self, recorded: Recorded, point: Point) -> None:
        self._recorded, self._point = recorded, point
        self.target = point.target

    def ask(self, problem: Problem, preference: Preference) -> Answer:
        return self._point.answer

    def capture(self, problem: Problem, answer: Answer, preference: Preference) -> Capture:
        return self._point.capture

    def summing(self, problem: Problem, answer: Answer, preference: Preference) -> Recorded:
        return self._recorded


def replay(recording: Recording) -> str:
    """Walk a recording again. "" where it gives the order and the verdict that its point says, else what is different."""
    point = recording.point
    try:
        with TemporaryDirectory() as place:
            path = Path(place) / "readings.npz"
            path.write_bytes(recording.data)
            recorded = Recorded(path)
        oracle = RecordedOracle(recorded, point)
        again = walk_problem(point.problem, point.preference, Opened(oracle, ""), exhaustive=point.exhaustive,  # type: ignore[arg-type]
                             seed=point.seed)
    except _MALFORMED as error:  # a reading that is not there, or is none
        return f"it cannot be walked again: {' '.join(str(error).split())[:200]}"
    if isinstance(again, Declined):
        return f"walked again it is declined: {again}"
    if [term_to_json(c.schedule) for c in again.classes] != [term_to_json(c.schedule) for c in point.classes]:
        return "walked again it gives another order"
    if again.outcome is not point.outcome or again.outcome is not Outcome.CONFIRMED:
        return f"walked again it is {again.outcome}, and its point says {point.outcome}"
    return ""
