"""A schedule as the line that a user reads: `0 | 0..15 | 16..31 | ... -> fp16`."""

from __future__ import annotations

from probe.schedule.terms import Add, Call, Cast, Fma, Fold, Mma, Mul, Run, Term, Zero, shift


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


def render_text(term: Term) -> str:
    """One line; long runs are elided by `...`, a part stands in parentheses, fp32 is not named."""
    match term:
        case Mma(previous, _, runs) | Fma(previous, runs):
            steps = [s for run in runs for s in _run_text(run)]
            return " | ".join([render_text(previous), *steps])
        case Mul(k):
            return f"{k}"
        case Add(dtype, left, right):
            return f"{_part(left, dtype, leading=True)} {_plus(dtype)} {_part(right, dtype)}"
        case Fold(previous, dtype, body, count, advance):
            plus = _plus(dtype)
            shown = [shift(body, t * advance) for t in ([0, 1] if count > 3 else range(min(count, 3)))]
            parts = [_part(previous, dtype, leading=True), *(_part(s, dtype) for s in shown)]
            if count > 3:
                parts += ["...", _part(shift(body, (count - 1) * advance), dtype)]
            return f" {plus} ".join(parts)
        case Cast(dtype, x):
            inner = render_text(x)
            return f"{inner} -> {dtype}"
        case Call(name, args):
            return f"{name}({', '.join(map(render_text, args))})"
        case _:
            return "0"


def _plus(dtype: str) -> str:
    return "+" if dtype == "fp32" else f"+[{dtype}]"


def _part(term: Term, outer: str, leading: bool = False) -> str:
    # only the leading operand of a left-to-right sum may go without its parentheses
    text = render_text(term)
    same_fold = leading and isinstance(term, Add | Fold) and term.dtype == outer
    return text if same_fold or isinstance(term, Zero) else f"({text})"
