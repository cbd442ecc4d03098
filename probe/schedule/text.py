"""A schedule as the line that a user reads: `0 | 0..15 | 16..31 | ... -> fp16`."""

from __future__ import annotations

from probe.schedule.terms import Add, Call, Cast, Fma, Fold, Mma, Mul, Run, Term, Zero, after, below_of, shift


def _indices(run: Run, t: int) -> str:
    ks = run.step(t)
    if len(ks) == 1:
        return str(ks[0])
    if run.pattern == tuple(range(run.width)):
        return f"{ks[0]}..{ks[-1]}"
    return "{" + ",".join(map(str, ks)) + "}"


def _run_text(run: Run) -> list[str]:
    if run.count <= 3:
        return [_indices(run, t) for t in range(run.count)]
    return [_indices(run, 0), _indices(run, 1), "...", _indices(run, run.count - 1)]


def _chain_text(run: Run) -> list[str]:
    """The single indices of a chain; of several slices the first two and the last."""
    if run.width == 1:
        return _run_text(run)
    shown = range(run.count) if run.count <= 3 else (0, 1, run.count - 1)
    slices = [_run_text(Run(run.step(t)[0], (0,), run.width, 1)) for t in shown]
    if run.count > 3:
        slices.insert(2, ["..."])
    return [text for one in slices for text in one]


def render_text(term: Term) -> str:
    """One line; long runs are elided by `...`, a part stands in parentheses, fp32 is not named. `p3` is the lone product 3, and behind
    a colon products are rounded before they are added."""
    return after(term, _text, _shown)


def _shown(term: Term) -> tuple[Term, ...]:
    """The terms below one whose text it needs: of a long fold the first two copies and the last."""
    if not isinstance(term, Fold):
        return below_of(term)
    copies = range(term.count) if term.count <= 3 else (0, 1, term.count - 1)
    return term.previous, *(shift(term.body, t * term.advance) for t in copies)


def _text(term: Term, below: list[str]) -> str:
    match term:
        case Mma(_, _, runs):
            return " | ".join([*below, *(s for run in runs for s in _run_text(run))])
        case Fma(_, runs, rounded):
            return (" : " if rounded else " | ").join([*below, *(s for run in runs for s in _chain_text(run))])
        case Mul(k):
            return f"p{k}"
        case Add(dtype, left, right):
            return f"{_part(left, below[0], dtype, leading=True)} {_plus(dtype)} {_part(right, below[1], dtype)}"
        case Fold(previous, dtype, body, count, _):
            parts = [_part(previous, below[0], dtype, leading=True), *(_part(body, text, dtype) for text in below[1:])]
            if count > 3:
                parts.insert(3, "...")
            return f" {_plus(dtype)} ".join(parts)
        case Cast(dtype, _):
            return f"{below[0]} -> {dtype}"
        case Call(name, _):
            return f"{name}({', '.join(below)})"
        case _:
            return "0"


def _plus(dtype: str) -> str:
    return "+" if dtype == "fp32" else f"+[{dtype}]"


def _part(term: Term, text: str, outer: str, leading: bool = False) -> str:
    # only the leading operand of a left-to-right sum may go without its parentheses
    same_fold = leading and isinstance(term, Add | Fold) and term.dtype == outer
    return text if same_fold or isinstance(term, Zero) else f"({text})"
