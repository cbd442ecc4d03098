"""The table of what the lost tail reaches: variants of losing shapes, smallest K, layer shapes of models; as Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from probe.errors import UsageError
from probe.newfile import new_file

KIND, VERSION = "splitk-tail-reach", 1


class Part(StrEnum):
    """What a row is of. One meaning each."""

    VARIANT = "variant"  # one losing shape, asked another way: one question
    SMALLEST = "smallest"  # one (M, N), asked along K until a sum is short: k is that K, null where none was
    LAYER = "layer"  # one weight of a model, asked at every M


# Counts are of problems. declined: nothing offered. split: ALGO_ID 66 with SPLITK_NUM above 1. named: our condition names a loss. ran,
# short, failed: of those that were run. other: run, and lost another number of values than our condition names, none included.
# first_named_k: of `smallest`. hits: of `layer`, the M that are named, as "1-4,9". layer: what it is. splitk_num, lost and
# what stands beside them: of the one sum that a row shows.
COLUMNS = {"part": "string", "layer": "string", "m": "int64", "n": "int64", "k": "int64", "input_dtype": "string", "output_dtype":
           "string", "fast_accumulation": "bool", "layout": "string", "epilogue": "string", "workspace_bytes": "int64",
           "reduction_scheme_mask": "int64", "most_k": "int64", "asked": "int64", "declined": "int64", "split": "int64", "named": "int64",
           "ran": "int64", "short": "int64", "failed": "int64", "other": "int64", "first_named_k": "int64", "hits": "string",
           "most_split": "int64", "algo_id": "int64", "splitk_num": "int64", "reduction_scheme": "int64", "predicted": "int64", "lost":
           "int64", "units": "int64"}
COUNTS = ("asked", "declined", "split", "named", "ran", "short", "failed", "other")
Row = dict[str, Any]


def empty_row(part: Part) -> Row:
    """A row of that part with nothing counted."""
    return dict.fromkeys(COLUMNS) | dict.fromkeys(COUNTS, 0) | {"part": str(part)}


def totals(rows: Iterable[Row]) -> dict[str, int]:
    """The counts of the rows, added."""
    out = dict.fromkeys(COUNTS, 0)
    for row in rows:
        for name in COUNTS:
            out[name] += row[name]
    return out


def ranges(numbers: Iterable[int]) -> str:
    """"1-4,9" of 1, 2, 3, 4, 9, ascending."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def write_reach(rows: list[Row], about: Mapping[str, Any], path: Path) -> None:
    """Write a new table, with what was run (`about`, JSON values) in its metadata. Raises UsageError, EnvironmentProblem."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from probe.records import check_output

    check_output(path)
    schema = pa.schema([pa.field(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()],
                       {"probe.kind": KIND, "probe.version": str(VERSION), "probe.about": json.dumps(about, sort_keys=True)})
    with new_file(path) as aside:
        pq.write_table(pa.Table.from_pylist(rows, schema), aside, compression="zstd")


def read_reach(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Rows and what was run. Raises UsageError for a file that is no table of this version."""
    import pyarrow
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pyarrow.ArrowException, OSError):
        raise UsageError(f"{path} is no Parquet file that can be read", "a table that tools.tail_reach wrote") from None
    meta = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    if meta.get("probe.kind") != KIND or meta.get("probe.version") != str(VERSION):
        raise UsageError(f"{path} holds {meta.get('probe.kind', 'something else')}", f"{KIND}, version {VERSION}, of tools.tail_reach")
    return table.to_pylist(), json.loads(meta["probe.about"])
