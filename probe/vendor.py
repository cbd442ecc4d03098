"""The vendor's names: enum members and attributes of cuBLASLt, read from vendor_enums.json.

The file is written by tools/extract_enums.py from the headers of one release (its "source" says which).
Another release may use numbers that this one does not name; those print as `unknown(393)`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("vendor_enums.json")


@dataclass(frozen=True)
class Attribute:
    """One attribute of a cuBLASLt descriptor: its header name, number, and C type ("int32_t", "void*")."""

    name: str
    number: int
    c_type: str


@cache
def _data() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return content


@cache
def source() -> str:
    """Where the names come from, in words: "nvidia-cublas 13.1.0.3"."""
    source = _data()["source"]
    return f"{source['wheel']} {source['version']}"


@cache
def members(enum: str) -> dict[str, int]:
    """{header name: number} of one enum, for example "cublasLtMatmulTile_t". KeyError for another name."""
    return dict(_data()["enums"][enum])


@cache
def _names(enum: str) -> dict[int, str]:
    """{number: header name}, the first name of a number (synonyms follow it)."""
    out: dict[int, str] = {}
    for name, number in members(enum).items():
        out.setdefault(number, name)
    return out


def full_name(enum: str, number: int) -> str:
    """The header's name of a number, or `unknown(393)`."""
    return _names(enum).get(number, f"unknown({number})")


@cache
def _prefix(enum: str) -> str:
    """What all names of an enum share, up to an underscore."""
    names = list(members(enum))
    shared = names[0]
    while not all(name.startswith(shared) for name in names):
        shared = shared[:-1]
    return shared[: shared.rfind("_") + 1]


def short_name(enum: str, number: int) -> str:
    """The header's name without what the whole enum shares ("64x8", "16x16", "1x1x1"), or `unknown(393)`."""
    name = _names(enum).get(number)
    return f"unknown({number})" if name is None else name.removeprefix(_prefix(enum))


@cache
def attribute(name: str) -> Attribute:
    """The attribute of a header name, "CUBLASLT_MATMUL_DESC_FAST_ACCUM" for example. Raises KeyError."""
    for group in _data()["attributes"].values():
        if name in group:
            return Attribute(name, group[name]["number"], group[name]["type"])
    raise KeyError(name)
