"""A campaign file (TOML) becomes a Campaign: every key and unit is checked by name, and what is accepted is said."""

from __future__ import annotations

import re
import secrets
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from probe.campaign.spec import Budget, Campaign, Listed, Mode
from probe.errors import EnvironmentProblem, UsageError
from probe.preference import parse_bytes
from probe.problem import DType, Layout
from probe.regimes import Chosen, cases_of
from probe.stream import MOST_BYTES, Alignment, Axis, Law, Output, RandomRegime
from probe.values import check_bool, check_int, check_text, parse_enum

T = TypeVar("T")
_SECONDS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_BUDGET = '"30000 problems", a time ("90s", "30min", "1h", "2d"), or a list of both'
_COMMON = ("dtypes", "outputs", "layouts", "fast-accumulation", "workspaces", "reduction-schemes")
_TOP = ("name", "mode", "seed", "draws", "budget", "time-limit", "libraries", "gpus", "list", "regime", *_COMMON)
_LIST = ("name", "shapes", "workspaces", "reduction-schemes")
_REGIME = ("name", "share", "m", "n", "k", "most", "offsets", "paddings", "alignments", *_COMMON)
_AXIS = ("from", "to", "law", "multiple", "values")


def read_campaign(path: Path) -> Campaign:
    """The campaign of a file; a seed that it does not name is drawn. Raises UsageError, which names the line or the key, and
    EnvironmentProblem where the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"there is no campaign file {path}", "a .toml file, for example one of campaigns/") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path.name} is not text", "a TOML file") from None
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}", "a file that can be read") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path.name} is no TOML: {error}", "docs/campaigns.md shows a campaign file") from None
    try:
        return _campaign(document, path)
    except UsageError as error:
        raise UsageError(f"{path.name}: {error.message}", error.hint) from None


def read_budget(value: object, where: str = "budget") -> Budget:
    """A budget from "30000 problems", "1h", or a list with one of each."""
    parts = value if isinstance(value, list) else [value]
    problems: int | None = None
    seconds: float | None = None
    for part in parts:
        text = part.strip() if isinstance(part, str) else ""
        match = re.fullmatch(r"([0-9]{1,15})\s*problems?", text)
        if match and problems is None:
            problems = check_int(where, int(match[1]), 1, 2**53)
        elif not match and seconds is None:
            seconds = read_seconds(part, where, _BUDGET)
        else:
            raise UsageError(f"{where} = {value!r} names one thing twice", _BUDGET)
    if not parts:
        raise UsageError(f"{where} is empty", _BUDGET)
    return Budget(problems, seconds)


def read_seconds(value: object, where: str, accepted: str = 'a time with its unit: "90s", "30min", "1h", "2d"') -> float:
    """Seconds from "90s", "1.5 h"."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]+)", value.strip(), re.ASCII) if isinstance(value, str) else None
    if match is None or match[2] not in _SECONDS or float(match[1]) == 0:
        raise UsageError(f"{where} = {value!r} is not known", accepted)
    return float(match[1]) * _SECONDS[match[2]]


def _campaign(document: Mapping[str, Any], path: Path) -> Campaign:
    _check_keys(document, _TOP, "")
    common = {key: document[key] for key in _COMMON if key in document}
    for needed in ("libraries",):
        if needed not in document:
            raise UsageError(f"{needed} is missing", 'libraries = ["cu13"], or ["sim"] to try it without a GPU')
    lists = tuple(_list(part, path, f"list[{i}]", common) for i, part in enumerate(_tables(document, "list")))
    regimes = tuple(_regime(common | dict(part), f"regime[{i}]") for i, part in enumerate(_tables(document, "regime")))
    return Campaign(
        name=check_text("name", document.get("name", path.stem)),
        mode=parse_enum("mode", check_text("mode", document.get("mode", "recover")), Mode),
        seed=secrets.randbits(48) if "seed" not in document else check_int("seed", document["seed"], 0, 2**60 - 1),
        draws=check_int("draws", document.get("draws", 10), 1, 10**4),
        budget=read_budget(document["budget"]) if "budget" in document else Budget(),
        time_limit=read_seconds(document.get("time-limit", "300s"), "time-limit"),
        libraries=_many(document, "libraries", "", lambda v, w: check_text(w, v), ()),
        gpus=_many(document, "gpus", "", lambda v, w: check_int(w, v, 0, 1023), (0,)), lists=lists, regimes=regimes)


def _list(part: Mapping[str, Any], path: Path, where: str, common: Mapping[str, Any]) -> Listed:
    """A regime of probe.regimes, or a file of shapes beside the campaign file. dtypes and the like of the whole campaign choose none of
    its cases: a list is what it is."""
    _check_keys(part, _LIST, where)
    if "shapes" not in part:
        raise UsageError(f"{where}.shapes is missing", "a regime's name (acceptance, split, linear, small) or a file of shapes")
    shapes = check_text(f"{where}.shapes", part["shapes"])
    beside = path.parent / shapes
    cases, _ = cases_of(beside if beside.is_file() else shapes, Chosen())
    part = {key: common[key] for key in ("workspaces", "reduction-schemes") if key in common} | dict(part)
    return Listed(
        name=check_text(f"{where}.name", part.get("name", Path(shapes).stem)),
        cases=tuple(f"{c.shape} {c.dtype} {c.out} {c.layout}" + (" fast" if c.fast else "") for c in cases),
        workspaces=_many(part, "workspaces", where, _bytes, (32 * 2**20,)),
        reduction_schemes=_many(part, "reduction-schemes", where, lambda v, w: check_int(w, v, 0, 7), (7,)))


def _regime(part: Mapping[str, Any], where: str) -> RandomRegime:
    _check_keys(part, _REGIME, where)
    for needed in ("name", "m", "n", "k"):
        if needed not in part:
            raise UsageError(f"{where}.{needed} is missing", "name, m, n and k of every regime")
    m, n, k = (_axis(part[x], f"{where}.{x}") for x in "mnk")
    most = _bytes(part["most"], f"{where}.most") if "most" in part else MOST_BYTES
    return _within(where, lambda: RandomRegime(
        name=check_text(f"{where}.name", part["name"]), m=m, n=n, k=k, most_bytes=most,
        share=check_int(f"{where}.share", part.get("share", 1), 1, 10**6),
        dtypes=_many(part, "dtypes", where, lambda v, w: parse_enum(w, str(v), DType), (DType.FP16,)),
        outputs=_many(part, "outputs", where, lambda v, w: parse_enum(w, str(v), Output), (Output.SAME,)),
        layouts=_many(part, "layouts", where, lambda v, w: parse_enum(w, str(v), Layout), (Layout.NN,)),
        fast_accumulation=_many(part, "fast-accumulation", where, lambda v, w: check_bool(w, v), (False,)),
        workspaces=_many(part, "workspaces", where, _bytes, (32 * 2**20,)),
        reduction_schemes=_many(part, "reduction-schemes", where, lambda v, w: check_int(w, v, 0, 7), (7,)),
        offsets=_many(part, "offsets", where, _bytes, (0,)), paddings=_many(part, "paddings", where, _bytes, (0,)),
        alignments=_many(part, "alignments", where, lambda v, w: parse_enum(w, str(v), Alignment), (Alignment.TRUE,))))


def _axis(value: Any, where: str) -> Axis:
    """A number, or a table with from and to, or with values."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _within(where, lambda: Axis(values=(value,)))
    accepted = "a number, {from = 1, to = 4096, law = \"log\" or \"uniform\", multiple = 8}, or {values = [1, 2, 4]}"
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} = {value!r} is no size", accepted)
    _check_keys(value, _AXIS, where)
    if "values" in value:
        if len(value) > 1:
            raise UsageError(f"{where} has values and {next(k for k in value if k != 'values')}", accepted)
        values = _many(value, "values", where, lambda v, w: check_int(w, v, 1, 2**31 - 1), ())
        if not values:
            raise UsageError(f"{where}.values are empty", accepted)
        return Axis(values=values)
    for needed in ("from", "to"):
        if needed not in value:
            raise UsageError(f"{where}.{needed} is missing", accepted)
    low, high, multiple = (check_int(f"{where}.{key}", value.get(key, 1), 1, 2**31 - 1) for key in ("from", "to", "multiple"))
    law = parse_enum(f"{where}.law", str(value.get("law", "log")), Law)
    return _within(where, lambda: Axis(low, high, law, multiple))


def _within(where: str, make: Callable[[], T]) -> T:
    """What is wrong inside a table is told with the table's place."""
    try:
        return make()
    except UsageError as error:
        raise UsageError(error.message if where in error.message else f"{where}: {error.message}", error.hint) from None


def _bytes(value: Any, where: str) -> int:
    if not isinstance(value, str):
        raise UsageError(f"{where} = {value!r} has no unit", 'a size with its unit in quotes: "32MiB", "1KiB", "16B", "0"')
    return _within(where, lambda: parse_bytes(value))


def _many(table: Mapping[str, Any], key: str, where: str, read: Callable[[Any, str], T], default: tuple[T, ...]) -> tuple[T, ...]:
    place = f"{where}.{key}" if where else key
    if key not in table:
        return default
    if not isinstance(table[key], list):
        raise UsageError(f"{place} = {table[key]!r} is no list", f"{key} = [...]")
    values = tuple(read(value, place) for value in table[key])
    if not values:
        raise UsageError(f"{place} is empty", "at least one, or leave it out")
    return values


def _tables(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = document.get(key, [])
    if not isinstance(value, list) or not all(isinstance(part, Mapping) for part in value):
        raise UsageError(f"{key} is no list of tables", f"[[{key}]] before each")
    return value


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = next((key for key in table if key not in known), None)
    if unknown is not None:
        raise UsageError(f"there is no key {where + '.' if where else ''}{unknown}", "one of " + ", ".join(known))
