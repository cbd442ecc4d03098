"""The folder of a campaign: campaign.json, the lock, part files, and the journal of the part that is not full yet.

A finished problem is a line of the journal, on the disk, before it counts as finished. A full journal becomes the part file of the same
number and is then removed; where both are there, the part file is the truth. Which problems are finished is what the rows say, and
nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from probe.campaign.parts import read_part, sync_folder, write_part
from probe.campaign.rows import CAMPAIGN_VERSION, COLUMNS, KIND, Row
from probe.campaign.spec import Campaign
from probe.errors import EnvironmentProblem, UsageError
from probe.newfile import name_aside, publish
from probe.target import Target

ROWS_A_PART = 512
_PART = re.compile(r"part-([0-9]{6,})\.(parquet|jsonl)")
_ASIDE = re.compile(r"\..*\.[0-9]+\.part")
_LOCK_TRIES = 5  # of 0.1 s: somebody who only looks holds it for microseconds
_KEYS = {"kind", "version", "identity", "campaign", "targets", "begin", "date"}


@dataclass(frozen=True)
class Frozen:
    """campaign.json: the campaign as it began. targets: of each library. begin: the first problem that this folder runs."""

    campaign: Campaign
    targets: Mapping[str, Target]
    begin: int
    date: str

    def to_document(self) -> dict[str, Any]:
        return {"kind": "campaign folder", "version": CAMPAIGN_VERSION, "identity": self.identity, "campaign": self.campaign.to_document(),
                "targets": {name: target.to_document() for name, target in self.targets.items()}, "begin": self.begin, "date": self.date}

    @property
    def identity(self) -> str:
        return self.campaign.identity

    @classmethod
    def from_document(cls, document: Any, where: object) -> Frozen:
        """Strict. Raises UsageError that names `where`."""
        try:
            if not isinstance(document, dict) or set(document) != _KEYS or document["kind"] != "campaign folder":
                raise UsageError("it is none of a campaign")
            if document["version"] != CAMPAIGN_VERSION:
                raise UsageError(f"it has version {document['version']!r}, this probe has {CAMPAIGN_VERSION}",
                                 "read it with the probe that wrote it")
            frozen = cls(Campaign.from_document(document["campaign"]),
                         {str(name): Target.from_document(target) for name, target in document["targets"].items()},
                         document["begin"], document["date"])
            if set(frozen.targets) != set(frozen.campaign.libraries) or isinstance(frozen.begin, bool) or not isinstance(frozen.begin, int):
                raise UsageError("its libraries and targets do not go together")
            if frozen.identity != document["identity"]:
                raise UsageError("it was changed since the campaign began", "put the first one back, or begin a new folder")
        except UsageError as error:
            raise UsageError(f"{where}: {error.message}", error.hint) from None
        except AttributeError:
            raise UsageError(f"{where}: it is none of a campaign") from None
        return frozen


class Folder:
    """One campaign on disk. Reading needs no lock; writing happens inside `held`."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows_path = path, path / "rows"
        self.stop_path, self._lock_path, self._json = path / "stop", path / "lock", path / "campaign.json"
        if not self._json.is_file():
            raise UsageError(f"{path} is no folder of a campaign", "probe campaign list shows those there are")
        try:
            document = json.loads(self._json.read_text(encoding="utf-8"))
        except ValueError:
            raise UsageError(f"{self._json} is no JSON", "put the first one back, or begin a new folder") from None
        self.frozen = Frozen.from_document(document, self._json)

    @staticmethod
    def check_new(path: Path, campaign: Campaign) -> None:
        """Raises UsageError where a folder with anything in it is there, or a file, EnvironmentProblem where it cannot be looked at."""
        try:
            # a run that was killed while it made the folder left an empty one, but for what it had aside
            left = [e for e in path.iterdir() if e.name != "rows" and not _ASIDE.fullmatch(e.name)] if path.exists() else []
            if left or any(path.glob("rows/*")):
                raise UsageError(f"{path} is not empty", _taken(path, campaign))
            if not path.parent.is_dir():
                raise EnvironmentProblem(f"{path} cannot be made: there is no folder {path.parent}", "make the folder first")
        except NotADirectoryError:
            raise UsageError(f"{path} is no folder", "another name") from None
        except OSError as error:
            raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}", "another folder") from None

    @classmethod
    def create(cls, path: Path, frozen: Frozen) -> Folder:
        """A new folder. Raises as `check_new`."""
        cls.check_new(path, frozen.campaign)
        try:
            (path / "rows").mkdir(parents=True, exist_ok=True)
            target = path / "campaign.json"
            aside = name_aside(target)
            with aside.open("x", encoding="utf-8") as file:
                file.write(json.dumps(frozen.to_document(), indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            publish(aside, target)
            aside.unlink(missing_ok=True)
            sync_folder(path)
        except FileExistsError:
            raise UsageError(f"{path} is taken", "another folder") from None
        except OSError as error:
            raise EnvironmentProblem(f"{path} cannot be written: {error.strerror}", "another folder, or more room") from None
        return cls(path)

    # Who is at work

    @contextmanager
    def held(self) -> Iterator[None]:
        """The right to write, for this process alone. Raises EnvironmentProblem where another has it."""
        try:
            file = self._lock_path.open("a+")
        except OSError as error:
            raise EnvironmentProblem(f"{self._lock_path} cannot be written: {error.strerror}", "a folder that can be written to") from None
        with file:
            for left in reversed(range(_LOCK_TRIES)):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if not left:
                        raise EnvironmentProblem(f"another run is at work in {self.path} (process {self.holder() or 'unknown'})",
                                                 "probe campaign stop ends it, or wait") from None
                    time.sleep(0.1)
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            for leftover in [*self.rows_path.iterdir(), *self.path.iterdir()]:  # of a process that was killed while it wrote
                if _ASIDE.fullmatch(leftover.name):
                    leftover.unlink(missing_ok=True)
            yield

    def holder(self) -> int | None:
        """The process that is at work here; None for none."""
        try:
            with self._lock_path.open("r") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    return int(file.read().strip() or 0)
        except (OSError, ValueError):
            return None
        return None

    # Rows

    def _numbered(self) -> list[tuple[int, Path]]:
        """Parts and journals that count, by number: of one number the part file."""
        found: dict[int, Path] = {}
        for path in sorted(self.rows_path.iterdir()):
            if match := _PART.fullmatch(path.name):
                number = int(match[1])
                if match[2] == "parquet" or number not in found:
                    found[number] = path
        return sorted(found.items())

    def read(self, columns: Sequence[str] | None = None) -> list[Row]:
        """Every finished row. Raises UsageError, which names the file, for one that is truncated, foreign or of another schema, and where
        two rows are of one problem and library."""
        names = None if columns is None else list(dict.fromkeys(("index", "library_name", *columns)))
        rows: list[Row] = []
        seen: dict[tuple[int, str], Path] = {}
        for _, path in self._numbered():
            if path.suffix == ".parquet":
                part = read_part(path, self.frozen.identity, names)
            else:
                try:
                    part, _ = _read_journal(path, self.frozen.identity)
                except FileNotFoundError:  # it became a part file while we looked
                    part = read_part(path.with_suffix(".parquet"), self.frozen.identity, names)
                part = [row if names is None else {name: row[name] for name in names} for row in part]
            for row in part:
                key = row["index"], row["library_name"]
                if key in seen:
                    raise UsageError(f"problem {key[0]} on {key[1]} stands in {seen[key]} and in {path}", "move one of them away")
                seen[key] = path
            rows += part
        return rows

    def add_part(self, rows: Sequence[Row]) -> None:
        """Rows that come from elsewhere, as a part of their own."""
        write_part(rows, self._part(self._next()), self.frozen.identity)

    def _next(self) -> int:
        numbered = self._numbered()
        return numbered[-1][0] + 1 if numbered else 0

    def _part(self, number: int) -> Path:
        return self.rows_path / f"part-{number:06d}.parquet"

    @contextmanager
    def writer(self) -> Iterator[Writer]:
        """Where finished rows go. Inside `held`, after `read` found the folder in order."""
        for number, path in self._numbered():
            if path.suffix == ".parquet":
                path.with_suffix(".jsonl").unlink(missing_ok=True)
            else:  # of a run that was killed
                rows, _ = _read_journal(path, self.frozen.identity)
                if rows:
                    write_part(rows, self._part(number), self.frozen.identity)
                path.unlink()
        writer = Writer(self)
        try:
            yield writer
        finally:
            writer.close()


class Writer:
    """Appends to the journal and turns it into part files."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._number = folder, folder._next()
        self._rows: list[Row] = []
        self._file: IO[bytes] | None = None

    def append(self, rows: Sequence[Row]) -> None:
        """Rows are on the disk when this returns. Raises EnvironmentProblem where there is no room: what is whole stays."""
        try:
            if self._file is None:
                self._file = self._folder._part(self._number).with_suffix(".jsonl").open("xb")
                self._file.write(_line({"kind": KIND, "version": CAMPAIGN_VERSION, "identity": self._folder.frozen.identity}))
            self._file.write(b"".join(map(_line, rows)))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise EnvironmentProblem(f"{self._folder.rows_path} cannot be written: {error.strerror}",
                                     "free some room, then probe campaign resume; what is whole stays") from None
        self._rows += rows
        if len(self._rows) >= ROWS_A_PART:
            self.turn()

    def turn(self) -> None:
        """The journal becomes a part file."""
        if self._file is None:
            return
        if self._rows:
            write_part(self._rows, self._folder._part(self._number), self._folder.frozen.identity)
        with suppress(OSError):
            self._file.close()
        self._folder._part(self._number).with_suffix(".jsonl").unlink(missing_ok=True)
        self._file, self._rows, self._number = None, [], self._number + 1

    def close(self) -> None:
        """Turn what there is. Where there is no room for that the journal stays, and holds the same rows."""
        try:
            with suppress(EnvironmentProblem):
                self.turn()
        finally:
            if self._file is not None:
                with suppress(OSError):
                    self._file.close()


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _read_journal(path: Path, identity: str) -> tuple[list[Row], int]:
    """The rows of a journal and the bytes of its whole lines. A last line without its end was being written when the process ended."""
    data = path.read_bytes()
    whole = data[:data.rfind(b"\n") + 1]
    lines = whole.splitlines()
    if not lines:
        return [], 0
    try:
        header, *rows = map(json.loads, lines)
        if header != {"kind": KIND, "version": CAMPAIGN_VERSION, "identity": identity} or any(set(row) != set(COLUMNS) for row in rows):
            raise ValueError
    except (ValueError, TypeError):
        raise UsageError(f"{path} is damaged, or of another campaign", "move it away: its problems then run again") from None
    return rows, len(whole)


def _taken(path: Path, campaign: Campaign) -> str:
    """What to do about a folder that is not empty."""
    try:
        there = Folder(path).frozen.campaign
    except UsageError:
        return "another folder"
    differing = there.differing(campaign)
    if not differing:
        return f"probe campaign resume {path} goes on with it"
    return "it holds another campaign, which differs in " + ", ".join(differing) + ": another folder"
