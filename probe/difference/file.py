"""The dataset of a comparison of two libraries: one Parquet file, and beside it, until it is whole, the journal of finished problems."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from probe.difference.rows import COLUMNS, DIFFERENCE_VERSION, KIND, Row
from probe.errors import EnvironmentProblem, UsageError
from probe.newfile import new_file
from probe.preference import Preference
from probe.records import check_output
from probe.regimes import Case
from probe.target import Target


def check_dataset(path: Path) -> None:
    """As `check_output`, for a dataset: Parquet only."""
    if path.suffix != ".parquet":
        raise UsageError(f"output {path} does not end in .parquet", "a dataset of differences is Parquet; --json prints JSON")
    check_output(path)


def write_dataset(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as one Parquet file, which appears whole or not at all and never replaces another. Raises as `check_output`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_dataset(path)
    schema = pa.schema([pa.field(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()],
                       {"probe.kind": KIND, "probe.version": str(DIFFERENCE_VERSION)})
    with new_file(path) as aside:
        pq.write_table(pa.Table.from_pylist(list(rows), schema), aside, compression="zstd")


def read_dataset(path: Path) -> list[Row]:
    """The rows of a dataset, in the order of its problems. Raises UsageError for a file that is none, or of another version."""
    import pyarrow
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UsageError(f"there is no file {path}", "a dataset that `probe diff-libraries ... -o` wrote")
    try:
        table = pq.read_table(path)
    except (pyarrow.ArrowException, OSError):
        raise UsageError(f"{path} is no Parquet file that can be read", "a dataset that `probe diff-libraries ... -o` wrote") from None
    meta = table.schema.metadata or {}
    kind, version = (meta.get(name, b"").decode() for name in (b"probe.kind", b"probe.version"))
    if kind != KIND or version != str(DIFFERENCE_VERSION):
        raise UsageError(f"{path} holds {kind or 'something else'} {version}".rstrip(), f"{KIND}, version {DIFFERENCE_VERSION}")
    rows: list[Row] = sorted(table.to_pylist(), key=lambda row: row["index"])
    return rows


def journal_path(output: Path) -> Path:
    """Where finished problems wait until the dataset is whole."""
    return output.with_name(f"{output.name}.unfinished")


def header_of(cases: Sequence[Case], preference: Preference, targets: tuple[Target, Target], seed: int | None) -> dict[str, Any]:
    """What must be equal for a run to go on with another's rows."""
    return {"kind": f"{KIND}, unfinished", "version": DIFFERENCE_VERSION, "seed": seed, "preference": preference.to_document(),
            "cases": hashlib.sha256("\n".join(c.name for c in cases).encode()).hexdigest(),
            "a": targets[0].to_document(), "b": targets[1].to_document()}


class Journal:
    """The rows of an unfinished run, a JSON line each after a line that says which run; held by one process at a time.

    Made with `open`. A line that was being written when its process ended is dropped.
    """

    def __init__(self, path: Path, file: IO[str], seed: int, rows: list[Row]) -> None:
        self.path, self.seed, self.rows = path, seed, rows
        self._file = file

    @classmethod
    def open(cls, output: Path, header: dict[str, Any], fresh_seed: int, resume: bool) -> Journal:
        """A new journal or, with `resume`, one that is there, whose seed then holds.

        header: of `header_of`, its seed None where the caller named none. Raises UsageError where a journal is there and `resume` is
        not set, where it belongs to other libraries or problems, or where another process holds it; EnvironmentProblem where it cannot be
        written.
        """
        path = journal_path(output)
        if path.exists() and not resume:
            raise UsageError(f"{path} holds problems that an interrupted run finished", "--resume goes on with it; or remove it")
        try:
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise EnvironmentProblem(f"{path} cannot be written: {error.strerror}", "another folder") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.seek(0)
            lines = file.read().split("\n")
            if len(lines) > 1:
                seed, rows = _read(path, lines[:-1], header)
                whole = "".join(line + "\n" for line in lines[:-1])
                file.truncate(len(whole.encode()))
            else:
                seed, rows = fresh_seed if header["seed"] is None else header["seed"], []
                file.truncate(0)
                _append(file, header | {"seed": seed})
        except BlockingIOError:
            file.close()
            raise UsageError(f"another run is writing {path}", "wait for it, or another output") from None
        except BaseException:
            file.close()
            raise
        return cls(path, file, seed, rows)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def append(self, row: Row) -> None:
        """Keep one finished problem, on the disk before this returns."""
        _append(self._file, row)
        self.rows.append(row)

    def remove(self) -> None:
        """The dataset is written: the journal is not needed any more."""
        self.path.unlink()


def _append(file: IO[str], document: dict[str, Any]) -> None:
    try:
        file.write(json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n")
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise EnvironmentProblem(f"{file.name} cannot be written: {error.strerror}", "free some room, then --resume") from None


def _read(path: Path, lines: list[str], header: dict[str, Any]) -> tuple[int, list[Row]]:
    try:
        first, *rows = map(json.loads, lines)
        wanted = header | {"seed": first["seed"] if header["seed"] is None else header["seed"]}
        other = sorted(name for name in wanted if first.get(name) != wanted[name])
        if any(set(row) != set(COLUMNS) for row in rows):
            raise KeyError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is no journal of this command", "remove it") from None
    if other:
        raise UsageError(f"{path} belongs to another run: it has another {', '.join(other)}", "the command that began it, or remove it")
    return first["seed"], rows
