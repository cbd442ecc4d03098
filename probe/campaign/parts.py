"""Rows of a campaign as Parquet files that say what they are: schema version and identity in the metadata; whole or not there at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from probe.campaign.rows import CAMPAIGN_VERSION, COLUMNS, KIND, Row
from probe.errors import EnvironmentProblem, UsageError
from probe.newfile import new_file

_ORIGIN = b"probe.campaign"


def write_part(rows: Sequence[Row], path: Path, identity: str, origin: Mapping[str, Any] | None = None, level: int = 3) -> None:
    """Write rows under a new name: aside, flushed to the disk, then named; an existing file is never replaced.

    origin: the document of campaign.json, for a file that stands alone. level: of zstd. Raises UsageError where the name is taken and
    EnvironmentProblem where it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    meta = {"probe.kind": KIND, "probe.version": str(CAMPAIGN_VERSION), "probe.identity": identity}
    if origin is not None:
        meta[_ORIGIN.decode()] = json.dumps(origin, separators=(",", ":"))
    schema = pa.schema([pa.field(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()], meta)
    with new_file(path) as aside, aside.open("xb") as file:
        pq.write_table(pa.Table.from_pylist(list(rows), schema), file, compression="zstd", compression_level=level)
        file.flush()
        os.fsync(file.fileno())
    try:
        sync_folder(path.parent)
    except OSError as error:
        raise EnvironmentProblem(f"{path.parent} cannot be flushed: {error.strerror or error}", "what is whole stays") from None


def read_part(path: Path, identity: str | None = None, columns: Sequence[str] | None = None) -> list[Row]:
    """The rows of a part file. identity: of the campaign that it must belong to. Raises UsageError for a file that is truncated, of
    another campaign, or of another schema; nothing is changed."""
    import pyarrow
    import pyarrow.parquet as pq

    _check(path, identity)
    try:
        rows: list[Row] = pq.read_table(path, columns=None if columns is None else list(columns)).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{path} is damaged: {str(error).splitlines()[0]}", _AWAY) from None
    return rows


def origin_of(path: Path) -> dict[str, Any]:
    """The document of campaign.json that a file carries. Raises UsageError where it carries none."""
    meta = _check(path, None)
    try:
        document = json.loads(meta[_ORIGIN])
        if not isinstance(document, dict):
            raise ValueError
    except (KeyError, ValueError):
        raise UsageError(f"{path} does not say of which campaign it is", "a file of `probe campaign export` or `compact`") from None
    return document


_AWAY = "move it away: its problems then run again"


def _check(path: Path, identity: str | None) -> Mapping[bytes, bytes]:
    import pyarrow
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}", "a file of `probe campaign export`") from None
    except (pyarrow.ArrowException, OSError):
        raise UsageError(f"{path} is truncated or no Parquet file", _AWAY) from None
    meta: Mapping[bytes, bytes] = schema.metadata or {}
    kind, version, own = (meta.get(name, b"").decode(errors="replace") for name in (b"probe.kind", b"probe.version", b"probe.identity"))
    if kind != KIND:
        raise UsageError(f"{path} holds {kind or 'something else'}, not {KIND}", _AWAY)
    if version != str(CAMPAIGN_VERSION) or {f.name: str(f.type) for f in schema} != COLUMNS:
        raise UsageError(f"{path} has another schema: version {version or 'none'}, this probe has {CAMPAIGN_VERSION}",
                         "read it with the probe that wrote it")
    if identity is not None and own != identity:
        raise UsageError(f"{path} belongs to another campaign", _AWAY)
    return meta


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
