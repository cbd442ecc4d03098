"""The vendor's names: enum members and attributes of cuBLASLt, one table a release, read from vendor_enums.json.

The file is written by tools/extract_enums.py from the headers of the wheels; each table names its wheel and the hashes of both. A name is
looked up in the table of the library's own release ("13.1.0", as cublasLtGetVersion tells it), else in the newest table that is not newer,
and `table_for` says so in words. A number that the table does not name prints as `unknown(393)`; so does every number of a library that is
older than all tables.

What differs between the four tables, of the enums that probe reads (no number changed its meaning: names came and went):

- 12.8.5 -> 12.9.3: came compute type 32F_EMULATED_16BFX9 (78) and the layout attribute BATCH_MODE (8).
- 12.9.3 -> 13.1.0: came compute type 64F_EMULATED_FIXEDPOINT (79), stages 768xAUTO (38) and the matmul attribute EMULATION_DESCRIPTOR (38);
  went the four matmul attributes ATOMIC_SYNC_* (27 to 30).
- 13.1.0 -> 13.10.0: came tiles 4x1 to 256x1 (635 to 645); matmul attributes ALPHA_BATCH_STRIDE, BETA_BATCH_STRIDE and
  BATCH_INVARIANCE_FLAGS (39 to 41); five GROUPED_MATRIX_LAYOUT attributes (9 to 13) and three GROUPED preference attributes (13 to 15).

The library itself tells the width of an attribute (a read of 0 bytes). Of 12.8.5, 13.1.0 and 13.10.0 every type here has that width, but
for the three GROUPED preference attributes: uint32_t in the header of 13.10.0, 8 bytes to its library. probe uses none of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from probe.errors import UsageError

_FILE = Path(__file__).with_name("vendor_enums.json")
DEFAULT = "13.1.0"  # where no version is given: the release whose header gave the signatures of the cuBLASLt door


@dataclass(frozen=True)
class Attribute:
    """One attribute of a cuBLASLt descriptor: its header name, number, and C type ("int32_t", "void*")."""

    name: str
    number: int
    c_type: str


@dataclass(frozen=True)
class Table:
    """The names of one release. wheel and version: "nvidia-cublas", "13.1.0.3"; wheel_sha256: of that wheel, 64 hex digits.

    note: "" where the table is of the very release that was asked for, else one line that says whose names these are. A library older than
    every table gets an empty one: wheel, version and hash are "".
    """

    wheel: str
    version: str
    wheel_sha256: str
    note: str

    def __str__(self) -> str:
        return f"{self.wheel} {self.version}" if self.wheel else "no table"


def numbers(version: str) -> tuple[int, ...]:
    """(13, 1, 0, 3) of "13.1.0.3". Raises UsageError for what is not numbers between dots."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)+", version):
        raise UsageError(f"{version!r} is not a library version", "as the library reports it, 13.1.0")
    return tuple(map(int, version.split(".")))


def merged(base: Any, patch: Any) -> Any:
    """`base` with a JSON merge patch (RFC 7396): an object is merged key by key, null removes, anything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    out = dict(base) if isinstance(base, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), value)
    return out


def expanded(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The whole tables of vendor_enums.json, oldest first: there each release after the first is a merge patch of the one before it."""
    tables: list[dict[str, Any]] = []
    for release in content["releases"]:
        before = tables[-1] if tables else {}
        names = {part: merged(before.get(part), release[part]) for part in ("enums", "attributes")}
        tables.append({"source": release["source"], **names})
    return tables


@cache
def _tables() -> list[dict[str, Any]]:
    return expanded(json.loads(_FILE.read_text(encoding="utf-8")))


@cache
def _data(version: str | None = None) -> dict[str, Any]:
    """The table for a version; an empty one where every table is newer."""
    asked = numbers(version or DEFAULT)[:3]
    fitting = [t for t in _tables() if numbers(t["source"]["version"])[:3] <= asked]
    return fitting[-1] if fitting else {"source": None, "enums": {}, "attributes": {}}


def releases() -> tuple[Table, ...]:
    """Every table there is, oldest first."""
    return tuple(table_for(".".join(map(str, numbers(t["source"]["version"])[:3]))) for t in _tables())


@cache
def table_for(version: str | None = None) -> Table:
    """The table that names of a library of that version ("13.1.0") come from; None: the default. Raises UsageError for no version."""
    source = _data(version)["source"]
    if source is None:
        oldest = _tables()[0]["source"]["version"]
        return Table("", "", "", f"no table of names is as old as {version}; the oldest is of {oldest}")
    exact = numbers(source["version"])[:3] == numbers(version or DEFAULT)[:3]
    note = "" if exact else f"no table of names for {version}: these are those of {source['version']}, the newest that is not newer"
    return Table(source["wheel"], source["version"], source["sha256"], note)


def source(version: str | None = None) -> str:
    """Where the names come from, in words: "nvidia-cublas 13.1.0.3"."""
    return str(table_for(version))


@cache
def members(enum: str, version: str | None = None) -> dict[str, int]:
    """{header name: number} of one enum, for example "cublasLtMatmulTile_t"; empty in an empty table. KeyError for another name."""
    if enum not in _data(None)["enums"]:
        raise KeyError(enum)
    return dict(_data(version)["enums"].get(enum, {}))


@cache
def _names(enum: str, version: str | None) -> dict[int, str]:
    """{number: header name}, the first name of a number (synonyms follow it)."""
    out: dict[int, str] = {}
    for name, number in members(enum, version).items():
        out.setdefault(number, name)
    return out


def full_name(enum: str, number: int, version: str | None = None) -> str:
    """The header's name of a number, or `unknown(393)`."""
    return _names(enum, version).get(number, f"unknown({number})")


@cache
def _prefix(enum: str, version: str | None) -> str:
    """What all names of an enum share, up to an underscore."""
    names = list(members(enum, version))
    shared = names[0]
    while not all(name.startswith(shared) for name in names):
        shared = shared[:-1]
    return shared[: shared.rfind("_") + 1]


def short_name(enum: str, number: int, version: str | None = None) -> str:
    """The header's name without what the whole enum shares ("64x8", "16x16", "1x1x1"), or `unknown(393)`."""
    name = _names(enum, version).get(number)
    return f"unknown({number})" if name is None else name.removeprefix(_prefix(enum, version))


@cache
def attribute(name: str, version: str | None = None) -> Attribute:
    """The attribute of a header name, "CUBLASLT_MATMUL_DESC_FAST_ACCUM" for example. KeyError where the release has none of that name."""
    for group in _data(version)["attributes"].values():
        if name in group:
            return Attribute(name, group[name]["number"], group[name]["type"])
    raise KeyError(name)
