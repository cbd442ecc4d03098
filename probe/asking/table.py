"""The table of answers: one Parquet file, a row a question or a row a different answer, that says where it was asked and what."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from probe.answering import COLUMNS, DISTINCT_COLUMNS, QUESTION_COLUMNS, arrow_schema
from probe.errors import EnvironmentProblem, UsageError
from probe.newfile import name_aside, publish
from probe.records import check_output
from probe.target import Target

if TYPE_CHECKING:
    import pyarrow as pa

KIND, DISTINCT_KIND, VERSION = "table of answers", "table of distinct answers", 1
# Of a table of distinct answers: each with the first question that got it.
DISTINCT_TABLE = {**DISTINCT_COLUMNS, **{f"first_{name}": kind for name, kind in QUESTION_COLUMNS.items()}}


class TableWriter:
    """Writes batches aside and names the file when all is there; as a context manager, which leaves nothing behind after an error.

    about: plain values that say what was asked. Raises UsageError where the name is taken, EnvironmentProblem where it cannot be written.
    """

    def __init__(self, path: Path, target: Target, about: dict[str, Any], distinct: bool) -> None:
        self.check(path)
        metadata = {"probe.kind": DISTINCT_KIND if distinct else KIND, "probe.version": str(VERSION), "probe.target": target.to_json(),
                    "probe.about": json.dumps(about, separators=(",", ":"), allow_nan=False)}
        self.schema = arrow_schema(DISTINCT_TABLE if distinct else COLUMNS, metadata)
        self._path, self._aside = path, name_aside(path)

    @staticmethod
    def check(path: Path) -> None:
        """Refuse a path that cannot be written, before anything is asked."""
        if path.suffix != ".parquet":
            raise UsageError(f"output {path} does not end in .parquet", "NAME.parquet")
        check_output(path)

    def __enter__(self) -> Self:
        import pyarrow.parquet as pq

        try:
            self._writer = pq.ParquetWriter(self._aside, self.schema, compression="zstd")
        except OSError as error:
            raise self._failed(error) from None
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch, or of a table."""
        try:
            self._writer.write(batch.cast(self.schema))
        except OSError as error:
            raise self._failed(error) from None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with suppress(*([] if kind is None else [Exception])):
                self._writer.close()
            if kind is None:
                publish(self._aside, self._path)
        except FileExistsError:
            raise UsageError(f"output {self._path} exists and is not overwritten", "another name, or remove it first") from None
        except OSError as problem:
            raise self._failed(problem) from None
        finally:
            with suppress(OSError):
                self._aside.unlink()

    def _failed(self, error: OSError) -> EnvironmentProblem:
        return EnvironmentProblem(f"output {self._path} cannot be written: {error.strerror or error}", "another folder, or more room")


@dataclass(frozen=True)
class TableHead:
    """What a file says of itself."""

    path: Path
    distinct: bool
    target: Target
    about: dict[str, Any]
    rows: int


def read_head(path: Path | str) -> TableHead:
    """The head of a table of answers. Raises UsageError for a file that is none, of another version, or with other columns."""
    import pyarrow
    import pyarrow.parquet as pq

    hint = "a file that `probe ask -o` wrote"
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint)
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pyarrow.ArrowException, OSError):
        raise UsageError(f"{path} is truncated or no Parquet file", hint) from None
    meta = schema.metadata or {}
    kind, version = (meta.get(name, b"").decode(errors="replace") for name in (b"probe.kind", b"probe.version"))
    if kind not in (KIND, DISTINCT_KIND):
        raise UsageError(f"{path} holds {kind or 'something else'}, no table of answers", hint)
    columns = DISTINCT_TABLE if kind == DISTINCT_KIND else COLUMNS
    if version != str(VERSION) or {field.name: str(field.type) for field in schema} != columns:
        raise UsageError(f"{path} has another schema: version {version or 'none'}, this probe has {VERSION}",
                         "read it with the probe that wrote it")
    try:
        target, about = Target.from_json(meta[b"probe.target"].decode()), json.loads(meta[b"probe.about"])
        if not isinstance(about, dict):
            raise ValueError
    except (KeyError, ValueError):  # UsageError is a ValueError
        raise UsageError(f"{path} does not say where it was asked", hint) from None
    return TableHead(path, kind == DISTINCT_KIND, target, about, rows)


def read_table(head: TableHead, columns: list[str] | None = None) -> pa.Table:
    """Columns of a table. Raises UsageError where it is damaged."""
    import pyarrow
    import pyarrow.parquet as pq

    try:
        return pq.read_table(head.path, columns=columns)
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{head.path} is damaged: {str(error).splitlines()[0]}", "ask again") from None
