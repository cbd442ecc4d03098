"""How a point looks to a person: labelled lines, plain off a terminal, with a little colour on one."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from probe.capture import Kernel, Node
from probe.cli.picture import cut_lines, schedule_line
from probe.cli.stream import emit
from probe.proof import Outcome
from probe.records import ClassResult, Point
from probe.target import LibraryKind
from probe.vendor import table_for

WIDTH = 150
_LABEL = 11
_ROOM = WIDTH - _LABEL
_STYLES = {"WARNING": "bold yellow", Outcome.CONFIRMED: "bold green", Outcome.REFUTED: "bold red", Outcome.AMBIGUOUS: "bold yellow"}


@dataclass(frozen=True)
class Line:
    """label: one word, or "" for a line that goes on. style: of the text on a terminal, for rich."""

    label: str
    text: str
    style: str = ""

    def __str__(self) -> str:
        return f"{self.label:<{_LABEL}}{self.text}".rstrip()


def print_point(point: Point) -> None:
    """The whole point, for a reader who has never seen one."""
    lines = point_lines(point)
    if not sys.stdout.isatty():
        emit("\n".join(map(str, lines)))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line in lines:
        console.print(Text.assemble((f"{line.label:<{_LABEL}}", line.style or "bold cyan"), (line.text, line.style)), soft_wrap=True)


def point_lines(point: Point) -> list[Line]:
    """Every line of the output, none wider than 150 columns where words allow."""
    p, target = point.problem, point.target
    mode = f"{p.a_dtype} in, {p.d_dtype} out, layout {p.layout}" + (", fast accumulation" if p.fast_accumulation else "")
    lines = [Line("problem", f"C ({p.m} x {p.n}) = A ({p.m} x {p.k}) @ B ({p.k} x {p.n}), {mode}"),
             Line("target", f"{target.device_name}, {target.sm}, {target.sm_count} SMs, driver {target.driver}")]
    found = "built into probe" if target.library is LibraryKind.SIMULATED else f"found by {point.found_by}"
    lines += _wrapped("library", f"{target.library} {target.version}, {found}, sha256 {target.sha256[:16]}")
    lines += _memory(point)
    lines += _answer(point)
    lines += _kernels(point.capture.nodes)
    for index, result in enumerate(point.classes):
        if len(point.classes) > 1:
            share = f"{result.elements:,} of {p.m * p.n:,} output elements sum like this"
            lines.append(Line("class", f"{index + 1} of {len(point.classes)}: {share}"))
        lines += _class(point, result)
    lines += _cost(point)
    lines.append(Line("seed", f"{point.seed} (--seed {point.seed} repeats every draw)"))
    for result in point.classes:
        lines += _verdict(result)
    return lines


def _memory(point: Point) -> list[Line]:
    """Padded rows, operands off a boundary and a stated alignment; nothing where all of it is as usual."""
    p, preference = point.problem, point.preference
    words = [f"rows of {x.upper()} {p.leading_dimension(x)} elements apart" for x in "abd" if getattr(p, f"ld{x}") is not None]
    offsets = {x: getattr(p, f"{x}_offset_bytes") for x in "abd"}
    words += [f"{x.upper()} {offset} bytes behind a 256-byte boundary" for x, offset in offsets.items() if offset]
    promised = {x: getattr(preference, f"{x}_alignment") for x in "abd"}
    given = {f"{x.upper()} {value}" for x, value in promised.items() if value is not None}
    if given:
        words.append(f"promised to the library, in bytes: {', '.join(sorted(given))}")
    over = p.overpromised(preference)
    if over:
        words.append(f"more than {' and '.join(over)} {'has' if len(over) == 1 else 'have'}")
    return _wrapped("memory", "; ".join(words)) if words else []


def _answer(point: Point) -> list[Line]:
    """The answer with the names of the library's own release; where there is no table of that release, a line says whose names they are."""
    simulated = point.target.library is LibraryKind.SIMULATED  # its numbers are cuBLASLt's, its version is its own
    version = None if simulated else point.target.version
    note = table_for(version).note
    forced = point.preference.forced
    asked = [] if forced is None else _wrapped("forced", f"{forced}; {forced.base}")
    return [*asked, *_wrapped("answer", point.answer.describe(version)), *(_wrapped("", note) if note else [])]


def _wrapped(label: str, text: str, style: str = "") -> list[Line]:
    pieces = textwrap.wrap(text, _ROOM, break_long_words=False, break_on_hyphens=False) or [""]
    return [Line(label if i == 0 else "", piece, style) for i, piece in enumerate(pieces)]


def _table(rows: Sequence[tuple[str, ...]], label: str = "") -> list[Line]:
    """Rows with every column but the last as wide as its longest cell; a last cell that does not fit goes on below itself."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]) - 1)]
    indent = sum(widths) + 2 * len(widths)
    lines = []
    for row in rows:
        head = "".join(f"{cell:<{width + 2}}" for cell, width in zip(row, widths, strict=False))
        pieces = textwrap.wrap(row[-1], max(40, _ROOM - indent), break_long_words=False) or [""]
        lines.append(head + pieces[0])
        lines += [" " * indent + piece for piece in pieces[1:]]
    return [Line(label if i == 0 else "", text) for i, text in enumerate(lines)]


def _kernels(nodes: tuple[Node, ...]) -> list[Line]:
    rows: list[tuple[str, ...]] = []
    for node in nodes:
        if isinstance(node, Kernel):
            sizes = [("grid", node.grid), ("block", node.block), ("cluster", node.cluster)]
            words = [f"{name} {'x'.join(map(str, size))}" for name, size in sizes if size is not None]
            rows.append((_middle(short_name(node.name), 88), f"{' '.join(words)}, shared {node.shared_bytes} B"))
        else:
            rows.append((str(node), ""))
    return _table(rows, "kernels") if rows else [Line("kernels", "none")]


def short_name(mangled: str) -> str:
    """A C++ name without its arguments: "cublasLt::splitKreduce_kernel". The first type of a template stays: it names CUTLASS kernels."""
    match = re.match(r"_Z(N?)K?(?=\d)", mangled)
    if match is None:
        return mangled
    names, at = [], match.end()
    while (size := re.match(r"\d+", mangled[at:])) is not None:
        at += size.end() + int(size[0])
        names.append(mangled[at - int(size[0]):at])
        if not match[1]:
            break
    argument = re.match(r"I(\d+)", mangled[at:])
    if argument is None:
        return "::".join(names)
    start = at + argument.end()
    return f"{'::'.join(names)}<{mangled[start:start + int(argument[1])]}>"


def _middle(text: str, width: int) -> str:
    """Cut in the middle: both ends of a kernel's name speak."""
    half = (width - 3) // 2
    return text if len(text) <= width else f"{text[:half]}...{text[-half:]}"


def _class(point: Point, result: ClassResult) -> list[Line]:
    k = point.problem.k
    lines = [Line("order", result.family)]
    if result.evidence:
        rows = [("field", "value", "settled by"), *((e.field, e.value, e.instrument) for e in result.evidence)]
        lines += _table(rows, "descriptor")
    else:
        lines.append(Line("descriptor", "none: no form of GEMMDesc produces this order; the schedule below stands for itself"))
    others = result.candidates - 1 - len(result.ambiguous)
    lines += _wrapped("", f"bytes: {others} of {result.candidates} candidate arithmetics, each simulated on {result.settling_draws} draws "
                          f"({result.settling_elements:,} dot products), gave other bytes than the library")
    text, abbreviated = schedule_line(result.schedule, _ROOM)
    lines += _wrapped("schedule", text)
    if abbreviated:
        lines.append(Line("", "[a..b] is summed like the first (...)"))
    lines += [Line("cuts" if i == 0 else "", text) for i, text in enumerate(cut_lines(result.schedule, result.desc, k))]
    for other in result.ambiguous:
        lines += _wrapped("or", schedule_line(other, _ROOM)[0])
    lost = k - result.extent
    if lost:
        where = f"k = {result.extent}" + (f" to {k - 1}" if lost > 1 else "")
        lines.append(Line("WARNING", f"{lost} of {k} products are dropped: {where} never reach the sum", _STYLES["WARNING"]))
    return lines


def _cost(point: Point) -> list[Line]:
    total = sum(phase.seconds for phase in point.phases)
    steps = [f"{p.name} {p.launches} in {_time(p.seconds)}" for p in point.phases if p.launches]
    rest = sum(p.seconds for p in point.phases if not p.launches)
    return _wrapped("cost", f"{point.launches} launches, {_time(total)}: {', '.join(steps)}, the rest {_time(rest)}")


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _verdict(result: ClassResult) -> list[Line]:
    proof = result.proof
    style = _STYLES[result.outcome]
    if proof is None:
        return _wrapped("verdict", f"AMBIGUOUS: {1 + len(result.ambiguous)} schedules give the library's bytes on "
                                   f"{result.settling_elements:,} dot products, so none is confirmed", style)
    draws = " + ".join(f"{n} {kind}" for kind, n in proof.draws)
    if proof.outcome is Outcome.CONFIRMED:
        text = (f"CONFIRMED: the simulated schedule gives the library's bytes; 0 of {proof.elements:,} dot products differ, "
                f"below {proof.bound:.1e} at 95 %")
    else:
        text = (f"NOT CONFIRMED: {proof.differing:,} of {proof.compared:,} output elements differ on fresh draws; the first difference, "
                f"in {proof.first_draw}: {proof.first}")
    return [*_wrapped("verdict", text, style), *_wrapped("", f"fresh draws: {draws}; {proof.compared:,} output elements compared")]
