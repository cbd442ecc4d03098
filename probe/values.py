"""What every frozen value shares: checks of single fields, and one JSON form.

The JSON form of a dataclass is an object of all its fields, by name, plus "kind" and "form" (the version of
the form). Reading is strict: a missing or unknown field, a wrong type, another kind or another form is
refused. Canonical text has sorted keys and no spaces, so equal values give equal bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from probe.errors import UsageError

E = TypeVar("E", bound=StrEnum)
R = TypeVar("R", bound="Record")


def check_int(name: str, value: object, low: int, high: int, hint: str = "") -> int:
    """Return `value` if it is an int (a bool is not) in [low, high], else raise UsageError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} must be a whole number, got {value!r}", hint or f"{low} to {high}")
    if not low <= value <= high:
        raise UsageError(f"{name} = {value} is out of range", hint or f"{low} to {high}")
    return value


def check_bool(name: str, value: object) -> bool:
    """Return `value` if it is True or False, else raise UsageError."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be true or false, got {value!r}")
    return value


def check_text(name: str, value: object) -> str:
    """Return `value` if it is a string that is not blank, else raise UsageError."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} must be a text that is not empty, got {value!r}")
    return value


def check_sha256(name: str, value: object) -> str:
    """Return `value` if it is 64 lower-case hex digits, else raise UsageError."""
    text = check_text(name, value)
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise UsageError(f"{name} must be 64 lower-case hex digits, got {text!r}")
    return text


def check_enum(name: str, value: object, members: type[E]) -> E:
    """Return `value` if it is a member of the closed set `members`, else raise UsageError."""
    if not isinstance(value, members):
        raise UsageError(f"{name} = {value!r} is not known", "one of " + ", ".join(members))
    return value


def parse_enum(name: str, text: str, members: type[E]) -> E:
    """The member of `members` that `text` names, else UsageError with the whole set."""
    try:
        return members(text)
    except ValueError:
        raise UsageError(f"{name} = {text!r} is not known", "one of " + ", ".join(members)) from None


class Record:
    """Base of frozen dataclasses with a JSON form. A subclass sets KIND, and FORM when its form changes.

    No field may be called kind or form. Fields may be bool, int, float, str, bytes (as hex), a StrEnum,
    another Record, any of these or None, and tuples of these.
    """

    KIND: ClassVar[str] = ""
    FORM: ClassVar[int] = 1

    def __init_subclass__(cls) -> None:
        if {"kind", "form"} & set(cls.__annotations__):
            raise TypeError(f"{cls.__name__}: a field of a Record may not be called kind or form")

    def to_document(self) -> dict[str, Any]:
        """The JSON object of this value as a dict of plain Python values."""
        out: dict[str, Any] = {"kind": self.KIND, "form": self.FORM}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            out[field.name] = _encode(getattr(self, field.name))
        return out

    def to_json(self) -> str:
        """Canonical JSON text: sorted keys, no spaces; equal values give equal text."""
        return json.dumps(self.to_document(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_document(cls: type[R], document: object) -> R:
        """The value that a dict made by `to_document` stands for. Raises UsageError on anything else."""
        what = f"the {cls.KIND} record"
        if not isinstance(document, Mapping):
            raise UsageError(f"{what} must be a JSON object, got {type(document).__name__}")
        if document.get("kind") != cls.KIND:
            raise UsageError(f"{what} has kind {document.get('kind')!r}", f"kind must be {cls.KIND!r}")
        form = document.get("form")
        if isinstance(form, bool) or form != cls.FORM:
            raise UsageError(f"{what} has form {form!r}", f"this probe reads form {cls.FORM}")
        hints = _hints(cls)  # type: ignore[arg-type]  # mypy: a type with a type variable is not hashable; it is
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        unknown = sorted(set(document) - set(names) - {"kind", "form"})
        missing = sorted(set(names) - set(document))
        if unknown:
            raise UsageError(f"{what} has unknown fields: {', '.join(map(str, unknown))}")
        if missing:
            raise UsageError(f"{what} lacks fields: {', '.join(missing)}")
        return cls(**{n: _decode(f"{cls.KIND}.{n}", document[n], hints[n]) for n in names})

    @classmethod
    def from_json(cls: type[R], text: str) -> R:
        """The value that JSON text stands for. Raises UsageError on anything that `to_json` did not write."""
        try:
            document = json.loads(text, object_pairs_hook=_no_repeats)
        except json.JSONDecodeError as error:
            raise UsageError(f"the {cls.KIND} record is not JSON: {error}") from None
        return cls.from_document(document)


@functools.cache  # 0.3 ms a class otherwise, and a point has a dozen records
def _hints(cls: type[Record]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        raise UsageError(f"a field is given twice: {next(n for n in names if names.count(n) > 1)}")
    return out


def _encode(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_document()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_encode(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"no JSON form for {type(value).__name__}")


def _decode(name: str, value: Any, hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        inner = [a for a in arguments if a is not type(None)]
        if len(inner) == 1:
            return _decode(name, value, inner[0])
        return _decode(name, value, _by_kind(name, value, inner))
    if origin is tuple:
        if not isinstance(value, list):
            raise UsageError(f"{name} must be a list, got {value!r}")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_decode(f"{name}[{i}]", v, arguments[0]) for i, v in enumerate(value))
        if len(value) != len(arguments):
            raise UsageError(f"{name} must be a list of {len(arguments)}, got {len(value)}")
        return tuple(_decode(f"{name}[{i}]", v, arguments[i]) for i, v in enumerate(value))
    if isinstance(hint, type):
        return _decode_plain(name, value, hint)
    raise TypeError(f"no JSON form for the type of {name}: {hint!r}")


def _decode_plain(name: str, value: Any, hint: type) -> Any:
    if issubclass(hint, Record):
        return hint.from_document(value)
    if issubclass(hint, StrEnum):
        if not isinstance(value, str):
            raise UsageError(f"{name} must be a name, got {value!r}")
        return parse_enum(name, value, hint)
    if hint is bool:
        return check_bool(name, value)
    if hint is bytes:
        try:
            return bytes.fromhex(value)
        except (TypeError, ValueError):
            raise UsageError(f"{name} must be hex digits, got {value!r}") from None
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UsageError(f"{name} must be a finite number, got {value!r}")
        return float(value)
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"{name} must be a whole number, got {value!r}")
        return value
    if hint is str:
        if not isinstance(value, str):
            raise UsageError(f"{name} must be a text, got {value!r}")
        return value
    raise TypeError(f"no JSON form for the type of {name}: {hint!r}")


def _by_kind(name: str, value: Any, choices: list[Any]) -> Any:
    """Of several Record classes, the one whose KIND the object names."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    for choice in choices:
        if isinstance(choice, type) and issubclass(choice, Record) and kind == choice.KIND:
            return choice
    raise UsageError(f"{name} has unknown kind {kind!r}", "one of " + ", ".join(c.KIND for c in choices))
