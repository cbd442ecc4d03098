"""A schedule in one line, and a picture of its cuts along K."""

from __future__ import annotations

from collections.abc import Iterator

from probe.descriptor import CutLayout, Direction, GEMMDesc, KCut
from probe.schedule import Add, Cast, Fma, Fold, Mma, Term, leaf_count, render_text, shift, span
from probe.schedule.terms import copies, first_k

BAR = 72  # columns of the axis
_MOST_PARTS = BAR // 2  # more could not be told apart

_JOINED = {Direction.FORWARD: "added first to last", Direction.BACKWARD: "added last to first",
           Direction.UP: "added in pairs, neighbours first", Direction.DOWN: "added in pairs, farthest first"}


def schedule_line(schedule: Term, width: int) -> tuple[str, bool]:
    """The schedule as text, and whether it was abbreviated.

    The full text of `render_text` where that fits `width` columns; else a part that is summed like the first one is written [first..last].
    """
    full = render_text(schedule)
    if len(full) <= width:
        return full, False
    model = _first_leaf(schedule)
    if model is None:
        return full, False
    short = _brief(schedule, model)
    return (short, True) if len(short) < len(full) else (full, False)


def _first_leaf(term: Term) -> Term | None:
    """The chain of instructions that holds the first index."""
    if isinstance(term, Mma | Fma):
        return term
    if isinstance(term, Cast):
        return _first_leaf(term.x)
    if isinstance(term, Add):
        return _first_leaf(term.left)
    return _first_leaf(term.previous) if isinstance(term, Fold) else None


def _brief(term: Term, model: Term) -> str:
    match term:
        case Mma() | Fma():
            moved = first_k(term) - first_k(model)
            if moved > 0 and shift(model, moved) == term:
                low, stop = span(term)
                return f"[{low}..{stop - 1}]"
            return f"({render_text(term)})"
        case Cast(dtype, x):
            return f"{_brief(x, model)} -> {dtype}"
        case Add(dtype, left, right):
            plus = "+" if dtype == "fp32" else f"+[{dtype}]"
            return f"{_operand(left, dtype, model, True)} {plus} {_operand(right, dtype, model)}"
        case Fold(previous, dtype, body, count, advance):
            plus = "+" if dtype == "fp32" else f"+[{dtype}]"
            nested = isinstance(body, Add | Fold)
            shown = [body] if count == 1 or not nested else []
            elided = count - len(shown) - 1
            last = [shift(body, (count - 1) * advance)] if count > 1 else []
            parts = [_operand(previous, dtype, model, True), *(_operand(b, dtype, model) for b in shown), *(["..."] if elided > 0 else []),
                     *(_operand(b, dtype, model) for b in last)]
            return f" {plus} ".join(parts)
        case _:
            return render_text(term)


def _operand(term: Term, outer: str, model: Term, leading: bool = False) -> str:
    """An operand of a sum. Only the leading one of a left-to-right sum may go without its parentheses."""
    text = _brief(term, model)
    if isinstance(term, Add | Fold):
        return text if leading and term.dtype == outer else f"({text})"
    return f"({text})" if isinstance(term, Cast) else text


def cut_lines(schedule: Term, desc: GEMMDesc | None, k: int) -> list[str]:
    """The parts along K as a bar with a line of words below; for nested cuts one pair a level; x is what is not summed at all."""
    if desc is None or not desc.k_cuts:
        parts = _parts(schedule.x if isinstance(schedule, Cast) else schedule)
        spans = [(first_k(p), leaf_count(p)) for p in parts]
        end = max(span(p)[1] for p in parts)
        if len(parts) == 1:
            return [_axis([(0, end)], end, k), _dropped(f"one sum of {end}, no cut", end, k)]
        lengths = _lengths([length for _, length in spans], "parts" if desc is None else "instructions, each added on its own")
        regular = all(single == (start, start + length) for (start, length), single in zip(spans, map(span, parts), strict=True)
                      if single[1] - single[0] == length)
        return [*([_axis(spans, end, k)] if regular and len(parts) <= _MOST_PARTS else []), _dropped(lengths, end, k)]
    lines: list[str] = []
    extent, axis = desc.k_summed, k
    for level, cut in enumerate(desc.k_cuts):
        if cut.layout is CutLayout.STRIDED:
            lines.append(f"{cut.count} lanes, lane j takes tiles j, j + {cut.count}, ... of {cut.span}; {_JOINED[cut.direction]}")
            break  # what lies below is not an interval of the axis
        spans = list(_spans(cut, extent))
        if len(spans) <= _MOST_PARTS:
            lines.append(_axis(spans, extent, axis))
        words = f"{_lengths([length for _, length in spans], 'parts')}; {_JOINED[cut.direction]}"
        lines.append(_dropped(words, extent, axis) if level == 0 else f"the first of them: {words}")
        extent = axis = min(cut.span, extent)
    return lines


def _spans(cut: KCut, extent: int) -> Iterator[tuple[int, int]]:
    for start in range(0, extent, cut.span):
        yield start, min(cut.span, extent - start)


def _axis(spans: list[tuple[int, int]], end: int, k: int) -> str:
    """0 |-----|-----|xx K"""
    ticks = ["-" if column * k < end * BAR else "x" for column in range(BAR + 1)]
    for start, _ in spans:
        ticks[round(start * BAR / k)] = "|"
    if end == k:
        ticks[BAR] = "|"
    return f"0 {''.join(ticks)} {k}"


def _dropped(text: str, end: int, k: int) -> str:
    return f"{text}; the last {k - end} are not summed" if end < k else text


def _lengths(lengths: list[int], what: str) -> str:
    """1408, 1408, 1280 as "3 parts: 2 x 1408, 1280"; equal ones as "3 parts of 1280"."""
    if len(set(lengths)) == 1:
        return f"{len(lengths)} {what} of {lengths[0]}"
    runs: list[list[int]] = []
    for length in lengths:
        if runs and runs[-1][1] == length:
            runs[-1][0] += 1
        else:
            runs.append([1, length])
    words = [f"{count} x {length}" if count > 1 else str(length) for count, length in runs]
    return f"{len(lengths)} {what}: " + (", ".join(words) if len(words) <= 8 else f"{', '.join(words[:4])}, ... {words[-1]}")


def _parts(term: Term) -> list[Term]:
    """The sums that the outermost additions join, from left to right."""
    if isinstance(term, Add):
        return [*_parts(term.left), *_parts(term.right)]
    if isinstance(term, Fold):
        return [*_parts(term.previous), *(q for c in copies(term) for q in _parts(c))]
    return [term]
