"""A schedule as JSON lists, and back: ["mma", previous, [L, F, bits], runs], ["add", dtype, left, right], ..."""

from __future__ import annotations

from typing import Any

from probe.errors import UsageError
from probe.problem import DType
from probe.schedule.terms import (
    ZERO,
    Add,
    Call,
    Cast,
    Fma,
    Fold,
    Mma,
    Mul,
    Row,
    Run,
    Term,
    add,
    cast,
    fma,
    fold,
    mma,
)

Json = list[Any]


def _run_to_json(run: Run) -> Json:
    pattern: Any = run.width if run.pattern == tuple(range(run.width)) else list(run.pattern)
    return [run.first, pattern, run.count, run.advance]


def _run_from_json(data: Json) -> Run:
    first, pattern, count, advance = data
    offsets = tuple(range(_whole(pattern, 1))) if isinstance(pattern, int) else tuple(_whole(o, 0) for o in pattern)
    return Run(_whole(first, 0), offsets, _whole(count, 1), _whole(advance, 0))


def _whole(value: Any, least: int) -> int:
    if type(value) is not int or value < least:  # not isinstance: JSON's true is no number
        raise UsageError(f"{value!r} is no whole number of at least {least}")
    return value


def term_to_json(term: Term) -> Json:
    """The term as nested lists of strings and integers."""
    match term:
        case Mma(previous, row, runs):
            return ["mma", term_to_json(previous), row.to_list(),
                    [_run_to_json(r) for r in runs]]
        case Fma(previous, runs):
            return ["fma", term_to_json(previous), [_run_to_json(r) for r in runs]]
        case Mul(k):
            return ["mul", k]
        case Add(dtype, left, right):
            return ["add", str(dtype), term_to_json(left), term_to_json(right)]
        case Fold(previous, dtype, body, count, advance):
            return ["fold", term_to_json(previous), str(dtype), term_to_json(body), count, advance]
        case Cast(dtype, x):
            return ["cast", str(dtype), term_to_json(x)]
        case Call(name, args):
            return ["call", name, [term_to_json(a) for a in args]]
        case _:
            return ["zero"]


def term_from_json(data: Json) -> Term:
    """The term that `term_to_json` wrote, rebuilt through the builders, so canonical. Raises UsageError on anything else."""
    try:
        return _read(data)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise UsageError(f"not a rounding schedule: {error}") from error


def _read(data: Json) -> Term:
    match data:
        case ["zero"]:
            return ZERO
        case ["mma", previous, row, runs]:
            return mma(_read(previous), Row.from_list(row), tuple(map(_run_from_json, runs)))
        case ["fma", previous, runs]:
            return fma(_read(previous), tuple(map(_run_from_json, runs)))
        case ["mul", k]:
            return Mul(_whole(k, 0))
        case ["add", dtype, left, right]:
            return add(DType(dtype), _read(left), _read(right))
        case ["fold", previous, dtype, body, count, advance]:
            return fold(_read(previous), DType(dtype), _read(body), _whole(count, 1), _whole(advance, 1))
        case ["cast", dtype, x]:
            return cast(DType(dtype), _read(x))
        case ["call", str(name), args]:
            return Call(name, tuple(map(_read, args)))
        case _:
            raise UsageError(f"not a rounding schedule: {str(data)[:60]}")
