"""How a point looks in a terminal, and plain lines where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from probe.proof import Outcome
from probe.records import ClassResult, Point
from probe.schedule import Add, Cast, Fold, Term, leaf_count, render_text
from probe.schedule.terms import copies, first_k

_BAR = 72


def say(text: str) -> None:
    """A line for the person, beside the result."""
    print(f"probe: {text}", file=sys.stderr)


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A spinner with the current step on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("asking") as status:
        yield lambda step: status.update(step)


def print_point(point: Point) -> None:
    """The whole point, for a reader who has never seen one."""
    p = point.problem
    print(f"problem   C ({p.m} x {p.n}) = A ({p.m} x {p.k}) @ B ({p.k} x {p.n}), {p.a_dtype} in, {p.d_dtype} out, layout {p.layout}"
          + (", fast accumulation" if p.fast_accumulation else ""))
    print(f"target    {point.target}")
    print(f"library   found by {point.found_by}, sha256 {point.target.sha256[:16]}")
    print(f"answer    {point.answer}")
    for node in point.capture.nodes:
        print(f"launches  {_short(str(node))}")
    for index, result in enumerate(point.classes):
        if len(point.classes) > 1:
            print(f"\nclass {index + 1} of {len(point.classes)}: {result.elements} elements")
        _print_class(point, result)
    print("cost      " + ", ".join(f"{ph.name} {ph.launches} launches {ph.seconds * 1e3:.1f} ms" if ph.launches else
                                   f"{ph.name} {ph.seconds * 1e3:.1f} ms" for ph in point.phases))
    print(f"seed      {point.seed}")
    print(f"verdict   {_verdict(point)}")


def _print_class(point: Point, result: ClassResult) -> None:
    print(f"family    {result.family}")
    for e in result.evidence:
        print(f"  {e.field:<16}{e.value:<52} {e.instrument}")
    if not result.evidence:
        print("  no form of GEMMDesc produces this order; the schedule below stands for itself")
    print(f"schedule  {render_text(result.schedule)}")
    for line in picture(result.schedule, point.problem.k):
        print(f"          {line}")
    lost = point.problem.k - result.extent
    if lost:
        print(f"WARNING   {lost} of {point.problem.k} values of k are not summed at all: k = {result.extent}..{point.problem.k - 1} is dropped")
    for other in result.ambiguous:
        print(f"or        {render_text(other)}")


def _verdict(point: Point) -> str:
    lines = []
    for result in point.classes:
        proof = result.proof
        if proof is None:
            lines.append(f"AMBIGUOUS: {1 + len(result.ambiguous)} schedules give the library's bytes on {result.settling_elements} elements")
            continue
        draws = " + ".join(f"{n} {kind}" for kind, n in proof.draws)
        if proof.outcome is Outcome.CONFIRMED:
            lines.append(f"CONFIRMED on fresh draws ({draws}): 0 of {proof.elements} different dot products differ "
                         f"(below {proof.bound:.1e} at 95 %), {proof.compared} output elements compared")
        else:
            lines.append(f"NOT CONFIRMED ({draws}): {proof.differing} of {proof.compared} output elements differ, first in {proof.first_draw}: {proof.first}")
    return "; ".join(lines)


def picture(schedule: Term, k: int) -> list[str]:
    """The parts along K as one bar, a dropped tail as x, and their lengths below."""
    parts = _parts(schedule.x if isinstance(schedule, Cast) else schedule)
    spans = [(first_k(p), leaf_count(p)) for p in parts]
    end = max(start + length for start, length in spans)
    ticks = [" "] * (_BAR + 1)
    for position in range(_BAR + 1):
        ticks[position] = "-" if position * k < end * _BAR else "x"
    for start, _ in spans:
        ticks[round(start * _BAR / k)] = "|"
    if end == k:
        ticks[_BAR] = "|"
    lengths = [length for _, length in spans]
    shown = ", ".join(map(str, lengths)) if len(lengths) <= 12 else f"{lengths[0]}, {lengths[1]}, ... {lengths[-1]}"
    return ["".join(ticks), f"{len(spans)} part{'s' if len(spans) > 1 else ''}: {shown}" + (f", then {k - end} dropped" if end < k else "")]


def _parts(term: Term) -> list[Term]:
    """The sums that the outermost additions join, by their first index."""
    if isinstance(term, Add):
        return [*_parts(term.left), *_parts(term.right)]
    if isinstance(term, Fold):
        return [*_parts(term.previous), *(q for c in copies(term) for q in _parts(c))]
    return [term]


def _short(text: str) -> str:
    return text if len(text) <= 150 else f"{text[:70]}...{text[-70:]}"
