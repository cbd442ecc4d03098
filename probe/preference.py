"""The preference: what the caller allows the library, and the reading of sizes in bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from probe.errors import UsageError
from probe.forced import Forced
from probe.values import Record, check_int

MAX_BYTES = 2**63 - 1
# What the library takes for granted where a caller says nothing: cublasLt.h, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES.
DEFAULT_ALIGNMENT = 256
P = TypeVar("P", bound="Preference")


@dataclass(frozen=True)
class Preference(Record):
    """What the caller allows the library. An input to the answer, so part of every key.

    workspace_bytes: the most workspace an algorithm may want. reduction_scheme_mask: allowed reduction
    schemes, a mask of cublasLtReductionScheme_t (1 in place, 2 in compute type, 4 in output type; 0 only
    unsplit). a_alignment to d_alignment: the alignment in bytes that the library may count on, or None for
    that of the real pointers (`Problem.alignments`); a promise beyond those may end in a fault (`Problem.overpromised`).
    forced: attributes of the answer that the caller insists on; None takes what the library picks. It is in the JSON form only where
    it is given, so that records from before it are read as they are.
    """

    KIND: ClassVar[str] = "preference"
    FORM: ClassVar[int] = 1

    workspace_bytes: int = 32 * 2**20
    reduction_scheme_mask: int = 7
    a_alignment: int | None = None
    b_alignment: int | None = None
    c_alignment: int | None = None
    d_alignment: int | None = None
    forced: Forced | None = None

    def __post_init__(self) -> None:
        check_int("workspace_bytes", self.workspace_bytes, 0, MAX_BYTES)
        check_int("reduction_scheme_mask", self.reduction_scheme_mask, 0, 7)
        for x in "abcd":
            value = getattr(self, f"{x}_alignment")
            if value is not None:
                check_int(f"{x}_alignment", value, 1, 2**31, "a power of two")
                if value & (value - 1):
                    raise UsageError(f"{x}_alignment = {value} is not a power of two")
        if self.forced is not None and not isinstance(self.forced, Forced):
            raise UsageError(f"forced must be a Forced, got {self.forced!r}", "Forced.parse reads a text")

    def to_document(self) -> dict[str, Any]:
        """The JSON object, as every Record's, without `forced` where nothing is forced."""
        document = super().to_document()
        if self.forced is None:
            del document["forced"]
        return document

    @classmethod
    def from_document(cls: type[P], document: object) -> P:
        """The value that a dict made by `to_document` stands for. Raises UsageError on anything else."""
        if isinstance(document, Mapping):
            document = {"forced": None, **document}
        return super().from_document(document)

    @property
    def key(self) -> str:
        """Short stable name; distinct preferences have distinct keys."""
        parts = [f"ws{self.workspace_bytes}", f"rs{self.reduction_scheme_mask}"]
        for x in "abcd":
            value = getattr(self, f"{x}_alignment")
            if value is not None:
                parts.append(f"{x}{value}")
        if self.forced is not None:
            parts.append(self.forced.key)
        return ".".join(parts)


def parse_alignments(text: str) -> dict[str, int]:
    """Fields of Preference for "true" (that of the real pointers), "default" (256, what the library assumes of a caller who says nothing)
    or a number of bytes for all four operands. Raises UsageError."""
    if text == "true":
        return {}
    if text == "default":
        given = DEFAULT_ALIGNMENT
    elif re.fullmatch(r"[0-9]{1,10}", text, re.ASCII):
        given = int(text)
    else:
        raise UsageError(f"align = {text!r} is no alignment", "true, default, or a power of two in bytes")
    return {f"{x}_alignment": given for x in "abcd"}


_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_bytes(text: str) -> int:
    """Bytes from "32MiB", "1024", "1.5 GiB", "64kB". KiB is 1024 and kB is 1000. Raises UsageError."""
    example = "a number and a unit, for example 32MiB, 1KiB or 0"
    match = re.fullmatch(r"([0-9]{1,18})(?:\.([0-9]{1,18}))?\s*([a-z]*)", text.strip().lower(), re.ASCII)
    if match is None or match[3] not in _UNITS:
        raise UsageError(f"{text!r} is not a size", example)
    fraction = match[2] or ""
    scaled, rest = divmod(int(match[1] + fraction) * _UNITS[match[3]], 10 ** len(fraction))
    if rest:
        raise UsageError(f"{text!r} is not a whole number of bytes", example)
    return check_int("size", scaled, 0, MAX_BYTES)
