"""The verbs around a campaign's folder: status, stop, list, and the files that its rows travel in: export, import, compact."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.campaign.folder import Folder, Frozen
from probe.campaign.parts import origin_of, read_part, write_part
from probe.campaign.rows import MOVING, Row, Tally, sorted_rows, tally
from probe.descriptor import GEMMDesc
from probe.errors import EnvironmentProblem, ExitCode, UsageError
from probe.schedule import render_text, term_to_json
from probe.target import Target

MOST_BYTES = 16 * 2**20  # of one archive file
_ROWS_A_FILE = 50_000  # of an archive at most, so that memory stays small; halved where a file comes out too large
_LEVEL = 19  # of zstd: about 1 s for 10,000 rows


@dataclass(frozen=True)
class CampaignStatus:
    """How a folder stands. process: that is at work in it, None for none. total: rows when it is complete, None without a number."""

    folder: Path
    name: str
    identity: str
    seed: int
    counts: Tally
    by_library: dict[str, Tally]
    targets: dict[str, Target]
    total: int | None
    process: int | None

    def to_document(self) -> dict[str, Any]:
        return {"kind": "campaign status", "folder": str(self.folder), "name": self.name, "identity": self.identity, "seed": self.seed,
                "total": self.total, "process": self.process, "counts": self.counts.to_document(),
                "libraries": {name: t.to_document() for name, t in self.by_library.items()},
                "targets": {name: t.to_document() for name, t in self.targets.items()}, "exit_code": int(self.exit_code)}

    @property
    def exit_code(self) -> ExitCode:
        """As that of a run that ends now."""
        return self.counts.exit_code


def status_campaign(folder: Path | str) -> CampaignStatus:
    """Read a folder, at work or not. Raises UsageError, which names the file, for what is no folder of a campaign or damaged."""
    opened = Folder(Path(folder))
    rows = opened.read(("outcome", "family", "reason", "source"))
    campaign = opened.frozen.campaign
    length, wanted = campaign.stream().length, campaign.budget.problems
    ends = [end for end in (length, wanted) if end is not None]
    total = len(campaign.libraries) * max(0, min(ends) - opened.frozen.begin) if ends else None
    by_library = {name: tally(row for row in rows if row["library_name"] == name) for name in campaign.libraries}
    return CampaignStatus(opened.path, campaign.name, opened.frozen.identity, campaign.seed, tally(rows), by_library,
                          dict(opened.frozen.targets), total, opened.holder())


def stop_campaign(folder: Path | str) -> int:
    """Ask the run that is at work in a folder to end after the problems in flight; returns its process number, and does not wait.

    Raises UsageError where none is at work, EnvironmentProblem where the folder cannot be written.
    """
    opened = Folder(Path(folder))
    process = opened.holder()
    if process is None:
        raise UsageError(f"no run is at work in {folder}", "probe campaign status shows how it stands")
    try:
        opened.stop_path.touch()
    except OSError as error:
        raise EnvironmentProblem(f"{opened.stop_path} cannot be written: {error.strerror}", f"kill -INT {process} asks the same") from None
    return process


@dataclass(frozen=True)
class Found:
    """A folder that `list_campaigns` came upon. problem: why it cannot be read, "" where it can."""

    folder: Path
    status: CampaignStatus | None
    problem: str

    def to_document(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "status": None if self.status is None else self.status.to_document(), "problem": self.problem}


def list_campaigns(folder: Path | str = ".") -> tuple[Found, ...]:
    """The campaigns in a folder: itself, and those directly below it. Raises UsageError where it is no folder."""
    root = Path(folder)
    if not root.is_dir():
        raise UsageError(f"there is no folder {root}", "one that holds folders of campaigns")
    found = []
    for path in [root, *sorted(p for p in root.iterdir() if p.is_dir())]:
        if (path / "campaign.json").is_file():
            try:
                found.append(Found(path, status_campaign(path), ""))
            except UsageError as error:
                found.append(Found(path, None, str(error)))
    return tuple(found)


# Files that travel

def export_campaign(folder: Path | str, output: Path | str) -> tuple[Path, ...]:
    """Write every finished row as an archive: a .parquet file that says of which campaign it is, or several of at most 16 MiB.

    output: NAME.parquet; where it takes several files, NAME-1.parquet and so on. Returns what was written. Raises UsageError where a file
    is there or no row is finished, EnvironmentProblem where it cannot be written.
    """
    opened = Folder(Path(folder))
    path = _checked(output)
    rows = sorted_rows(opened.read())
    if not rows:
        raise UsageError(f"{folder} has no finished row", "probe campaign resume")
    return _write_archives(rows, path, opened.frozen)


def _write_archives(rows: Sequence[Row], path: Path, frozen: Frozen) -> tuple[Path, ...]:
    size = _ROWS_A_FILE
    while True:
        pieces = [rows[i:i + size] for i in range(0, len(rows), size)]
        names = [path] if len(pieces) == 1 else [path.with_name(f"{path.stem}-{i}.parquet") for i in range(1, len(pieces) + 1)]
        if taken := [name for name in names if os.path.lexists(name)]:
            raise UsageError(f"{taken[0]} exists and is not overwritten", "another name, or remove it first")
        written: list[Path] = []
        too_large = False
        try:
            for name, piece in zip(names, pieces, strict=True):
                write_part(piece, name, frozen.identity, frozen.to_document(), _LEVEL)
                written.append(name)
                too_large = name.stat().st_size > MOST_BYTES
                if too_large:
                    break
        except BaseException:
            for name in written:  # all of an archive or nothing
                name.unlink(missing_ok=True)
            raise
        if not too_large:
            return tuple(written)
        for name in written:
            name.unlink()
        if size == 1:
            raise UsageError(f"one row alone takes more than {MOST_BYTES // 2**20} MiB", "probe campaign compact has no such limit")
        size //= 2


def import_campaign(archives: Sequence[Path | str], output: Path | str) -> int:
    """Join archives of one campaign in a folder, a new one or one that holds the same campaign; returns how many rows came in.

    A row that the folder has already is left out where it is the same but for times, and refused where it is not. Everything is checked
    before anything is written. Raises UsageError, which names the file, and EnvironmentProblem.
    """
    if not archives:
        raise UsageError("import needs an archive", "files of probe campaign export")
    path = Path(output)
    sources = [(Path(a), Frozen.from_document(origin_of(Path(a)), a)) for a in archives]
    first = sources[0][1]
    if (path / "campaign.json").is_file():
        first = Folder(path).frozen
    for archive, frozen in sources:
        if frozen.identity != first.identity:
            differing = ", ".join(first.campaign.differing(frozen.campaign))
            raise UsageError(f"{archive} belongs to another campaign: it differs in {differing}", "a folder for each campaign")
        for library, target in frozen.targets.items():
            if target != first.targets[library]:
                raise UsageError(f"{archive} was measured on another target for {library}: {target}, not {first.targets[library]}",
                                 "a folder for each target")
    parts = [(archive, read_part(archive, first.identity)) for archive, _ in sources]
    if not (path / "campaign.json").is_file():
        _check_new(parts, {})
        folder = Folder.create(path, Frozen(first.campaign, first.targets, 0, first.date))
    else:
        folder = Folder(path)
    with folder.held():
        fresh = _check_new(parts, {_key(row): row for row in folder.read()})
        with folder.writer():
            pass  # what a killed run left becomes a part of its own
        if fresh:
            folder.add_part(fresh)
    return len(fresh)


def _check_new(parts: Sequence[tuple[Path, list[Row]]], have: dict[tuple[int, str], Row]) -> list[Row]:
    """Rows that `have` lacks. Raises UsageError where a row contradicts one of the same problem and library."""
    fresh: list[Row] = []
    for archive, rows in parts:
        for row in rows:
            other = have.setdefault(_key(row), row)
            if other is row:
                fresh.append(row)
            elif differing := sorted(n for n in row if n not in MOVING and row[n] != other[n]):
                raise UsageError(f"{archive}: problem {row['index']} on {row['library_name']} is there already with another "
                                 + ", ".join(differing), "two runs of one campaign disagree: look at both rows")
    return fresh


def _key(row: Row) -> tuple[int, str]:
    return row["index"], row["library_name"]


def compact_campaign(folder: Path | str, output: Path | str) -> Path:
    """Write every finished row as one small dataset: sorted, strongly compressed, and without what other columns hold already.

    `schedule` and `schedule_text` are null where `gemm_desc` gives them (`GEMMDesc.from_json(text).schedule()`), `capture` and `evidence`
    always; `read_compact` is its reader. Raises as `export_campaign` does.
    """
    opened = Folder(Path(folder))
    path = _checked(output)
    rows = sorted_rows(opened.read())
    if not rows:
        raise UsageError(f"{folder} has no finished row", "probe campaign resume")
    bare = dict.fromkeys(("schedule", "schedule_text"))
    kept = [row | dict.fromkeys(("capture", "evidence")) | (bare if row["gemm_desc"] is not None else {}) for row in rows]
    write_part(kept, path, opened.frozen.identity, opened.frozen.to_document(), _LEVEL)
    return path


def read_compact(path: Path | str, schedules: bool = True) -> list[Row]:
    """The rows of a compact dataset or an archive, by problem and library. schedules: with the two schedule columns filled in again."""
    rows = sorted_rows(read_part(Path(path)))
    known: dict[str, Row] = {}
    for row in rows if schedules else ():
        text = row["gemm_desc"]
        if row["schedule"] is None and text is not None:
            if text not in known:
                schedule = GEMMDesc.from_json(text).schedule()
                compact = json.dumps(term_to_json(schedule), separators=(",", ":"))
                known[text] = {"schedule": compact, "schedule_text": render_text(schedule)}
            row |= known[text]
    return rows


def _checked(output: Path | str) -> Path:
    path = Path(output)
    if path.suffix != ".parquet":
        raise UsageError(f"output {path} does not end in .parquet", "NAME.parquet")
    if not path.parent.is_dir():
        raise EnvironmentProblem(f"output {path} cannot be written: there is no folder {path.parent}", "make the folder first")
    if os.path.lexists(path):
        raise UsageError(f"{path} exists and is not overwritten", "another name, or remove it first")
    return path
