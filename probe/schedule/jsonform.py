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
    after,
    below_of,
    cast,
    dtype_of,
    fma,
    fold,
    mma,
)

Json = list[Any]
_DEEP = 64  # additions on one side of one another; JSON readers and writers recurse, and stop at about a thousand


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
    """The term as nested lists of strings and integers. A sum of many parts from the left, or from the right, is one list of its parts:
    ["sum", dtype, parts, "left"], where ["copies", part, count, advance] stands for copies of a part in a row."""
    return after(term, _write, _parts)


def _parts(term: Term) -> tuple[Term, ...]:
    spine = _spine(term)
    return tuple(part for part, _, _ in spine[0]) if spine else below_of(term)


def _spine(term: Term) -> tuple[list[tuple[Term, int, int]], str] | None:
    """The parts of a sum that nests deeply on one side, each with how many copies of it follow one another at which distance, and the side;
    None for any other term."""
    for side in ("left", "right"):
        parts: list[tuple[Term, int, int]] = []
        node = term
        while isinstance(term, Add | Fold) and isinstance(node, Add | Fold) and node.dtype == term.dtype:
            if isinstance(node, Add):
                node, other = (node.left, node.right) if side == "left" else (node.right, node.left)
                parts.append((other, 1, 0))
            elif side == "left":
                parts.append((node.body, node.count, node.advance))
                node = node.previous
            else:
                break
        if len(parts) > _DEEP:
            parts.append((node, 1, 0))
            return (parts[::-1] if side == "left" else parts), side
    return None


def _write(term: Term, below: list[Json]) -> Json:
    spine = _spine(term)
    if spine is not None:
        parts = [text if count == 1 else ["copies", text, count, advance]
                 for text, (_, count, advance) in zip(below, spine[0], strict=True)]
        return ["sum", str(dtype_of(term)), parts, spine[1]]
    match term:
        case Mma(_, row, runs):
            return ["mma", below[0], row.to_list(), [_run_to_json(r) for r in runs]]
        case Fma(_, runs, rounded):
            return ["muladd" if rounded else "fma", below[0], [_run_to_json(r) for r in runs]]
        case Mul(k):
            return ["mul", k]
        case Add(dtype, _, _):
            return ["add", str(dtype), *below]
        case Fold(_, dtype, _, count, advance):
            return ["fold", below[0], str(dtype), below[1], count, advance]
        case Cast(dtype, _):
            return ["cast", str(dtype), below[0]]
        case Call(name, _):
            return ["call", name, below]
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
        case ["muladd", previous, runs]:
            return fma(_read(previous), tuple(map(_run_from_json, runs)), rounded=True)
        case ["mul", k]:
            return Mul(_whole(k, 0))
        case ["add", dtype, left, right]:
            return add(DType(dtype), _read(left), _read(right))
        case ["sum", dtype, [first, *others], "left"]:
            total = _read(first)
            for one in others:
                match one:
                    case ["copies", body, count, advance]:
                        total = fold(total, DType(dtype), _read(body), _whole(count, 2), _whole(advance, 1))
                    case _:
                        total = add(DType(dtype), total, _read(one))
            return total
        case ["sum", dtype, [*others, last], "right"]:
            total = _read(last)
            for one in reversed(others):
                total = add(DType(dtype), _read(one), total)
            return total
        case ["fold", previous, dtype, body, count, advance]:
            return fold(_read(previous), DType(dtype), _read(body), _whole(count, 1), _whole(advance, 1))
        case ["cast", dtype, x]:
            return cast(DType(dtype), _read(x))
        case ["call", str(name), args]:
            return Call(name, tuple(map(_read, args)))
        case _:
            raise UsageError(f"not a rounding schedule: {str(data)[:60]}")
