"""The verbs `pack` and `check_pack`: a campaign's evidence in one hashed file, and whether such a file holds together."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import probe
from probe.campaign.admin import read_compact
from probe.campaign.folder import Folder, Frozen
from probe.campaign.parts import origin_of
from probe.campaign.rows import Row, Tally, sorted_rows, tally
from probe.errors import EnvironmentProblem, ExitCode, UsageError
from probe.packs.file import READING, open_pack, strict_json, write_pack
from probe.packs.replay import MOST_RECORDING, Recording, look_over, replay
from probe.packs.rowcheck import campaign_of, check_row
from probe.records import now
from probe.stream import ProblemStream
from probe.target import Target

Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Packed:
    """What a pack holds. sha256: of its manifest, so of everything in it. failed: recordings that do not give what they say, each with why;
    None where none was walked again."""

    path: Path
    sha256: str
    campaign: str
    identity: str
    targets: dict[str, Target]
    counts: Tally
    readings: int
    size: int
    failed: tuple[str, ...] | None = None

    @property
    def exit_code(self) -> ExitCode:
        """1 where a recording failed: the pack holds together, its readings do not say what it claims."""
        return ExitCode.NOT_CONFIRMED if self.failed else ExitCode.OK

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": "pack", "file": str(self.path), "sha256": self.sha256, "campaign": self.campaign, "identity": self.identity,
                "targets": {name: target.to_document() for name, target in self.targets.items()}, "counts": self.counts.to_document(),
                "readings": self.readings, "bytes": self.size, "failed": None if self.failed is None else list(self.failed),
                "exit_code": int(self.exit_code)}


def pack(dataset: Path | str, output: Path | str, *, readings: Path | str | None = None,
         progress: Told = lambda done, total: None) -> Packed:
    """Write the evidence of a campaign as one file that another machine checks and replays. No code of a library is in it.

    dataset: the folder of a campaign, or a file of `probe campaign export` or `compact`. output: a new .pack file. readings: a folder of
    recordings (.npz of tools.record_readings) from the same targets. Every row and recording is checked as `check_pack` does before
    anything is written. progress: called with rows checked and in all. Raises UsageError and EnvironmentProblem.
    """
    path = Path(output)
    if path.suffix != ".pack":
        raise UsageError(f"output {path} does not end in .pack", "NAME.pack")
    if os.path.lexists(path):
        raise UsageError(f"{path} exists and is not overwritten", "another name, or remove it first")
    if not path.parent.is_dir():
        raise EnvironmentProblem(f"{path} cannot be written: there is no folder {path.parent}", "make the folder first")
    source = Path(dataset)
    if source.is_dir():
        folder = Folder(source)
        frozen, rows = folder.frozen, sorted_rows(folder.read())
    else:
        frozen, rows = Frozen.from_document(origin_of(source), source), read_compact(source)
    if not rows:
        raise UsageError(f"{dataset} has no finished row", "probe campaign resume")
    _check_rows(rows, frozen, frozen.campaign.stream(), source, progress)
    recorded = {} if readings is None else _recordings(Path(readings), frozen)
    about = {"probe": probe.__version__, "date": now(), "campaign": frozen.to_document()}
    lines = [json.dumps(row, separators=(",", ":"), allow_nan=False).encode() for row in rows]
    digest = write_pack(path, about, lines, {name: one.data for name, one in recorded.items()})
    return Packed(path, digest, frozen.campaign.name, frozen.identity, dict(frozen.targets), tally(rows), len(recorded),
                  path.stat().st_size)


def check_pack(file: Path | str, *, replayed: bool = False, progress: Told = lambda done, total: None) -> Packed:
    """Check a pack from anywhere: sizes before anything is unpacked, every hash, every field of every row against the campaign's own stream
    and against the other fields, every recording's form.

    replayed: walk the recordings again as well, each from its first experiment to its proof; what fails is told in `failed`. A pack that
    holds together says what its maker says: only replayed readings are evidence of their own. Nothing in it is run, and nothing is
    written. Raises UsageError that names the entry, row and field, and EnvironmentProblem.
    """
    path = Path(file)
    with open_pack(path) as opened:
        frozen, stream = campaign_of(opened.manifest["campaign"], path)
        rows: list[Row] = []
        for number, line in enumerate(opened.rows()):
            rows.append(strict_json(line, f"{path}: row {number}"))
        if len(rows) != opened.manifest["rows"]:
            raise UsageError(f"{path}: it has {len(rows)} rows and its manifest says {opened.manifest['rows']}")
        _check_rows(rows, frozen, stream, path, progress)
        recordings = [_within(path, name, opened.read(name, MOST_RECORDING), frozen) for name in opened.readings]
        digest = opened.sha256
    failed: tuple[str, ...] | None = None
    if replayed:
        found = [(one.name, replay(one)) for one in recordings]
        failed = tuple(f"{name}: {what}" for name, what in found if what)
    return Packed(path, digest, frozen.campaign.name, frozen.identity, dict(frozen.targets), tally(rows), len(recordings),
                  path.stat().st_size, failed)


def _check_rows(rows: Sequence[Any], frozen: Frozen, stream: ProblemStream, where: Path, progress: Told) -> None:
    seen: set[tuple[int, str]] = set()
    for number, row in enumerate(rows):
        try:
            check_row(row, frozen, stream)
        except UsageError as error:
            raise UsageError(f"{where}: row {number}: {error.message}", error.hint) from None
        key = row["index"], row["library_name"]
        if key in seen:
            raise UsageError(f"{where}: row {number}: problem {key[0]} on {key[1]} is there twice")
        seen.add(key)
        progress(number + 1, len(rows))


def _recordings(folder: Path, frozen: Frozen) -> dict[str, Recording]:
    files = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    if not files:
        raise UsageError(f"{folder} holds no recording", "a folder of .npz files that tools.record_readings wrote")
    out = {}
    for file in files:
        name = f"readings/{file.name}"
        if not READING.fullmatch(name):
            raise UsageError(f"{file} has a name that a pack cannot have", "letters, digits and ._=+-")
        if file.stat().st_size > MOST_RECORDING:
            raise UsageError(f"{file} has more than {MOST_RECORDING // 2**20} MiB", "a smaller recording")
        out[name] = _within(folder, name, file.read_bytes(), frozen)
    return out


def _within(where: Path, name: str, data: bytes, frozen: Frozen) -> Recording:
    try:
        return look_over(name, data, frozen.targets)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", error.hint) from None
