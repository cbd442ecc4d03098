"""What a walk cannot see: the candidates for the arithmetic of a tree.

A walk reads which indices meet where. It does not read how a step rounds, in which dtype a part is written or a merge is held. Each
possibility is one candidate schedule; equal schedules are one candidate. The order is plainest first and only an order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from probe.describe import describe, forms_of
from probe.descriptor import GEMMDesc, Instruction
from probe.errors import Declined, DeclineReason, UsageError
from probe.problem import DType
from probe.schedule import Row, Term, cast, exact_form, run_of
from probe.schedule.terms import Run, join_runs
from probe.tensorcore import row_for
from probe.walks.tree import Joint, Loop, Moved, SumTree, as_term, below_of, loops, single_steps, walk_up

_KNOWN_SMS = (90, 100, 89, 80)  # one SM of each published row (DESIGN section 5b)


@dataclass(frozen=True)
class Candidate:
    """One schedule that the readings allow, its GEMMDesc (None: a general schedule that no form of record produces), and
    the choices that make it, by the name of the field."""

    schedule: Term
    desc: GEMMDesc | None
    choices: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Context:
    """What is known beside the tree: extents, dtypes, and the SM whose instructions come first."""

    k: int
    input_dtype: DType
    output_dtype: DType
    sm: int


def candidates(tree: SumTree, context: Context) -> tuple[Candidate, ...] | Declined:
    """All candidates for a tree; declined when a node joins more than two sums at once."""
    if not _binary(tree):
        return Declined(DeclineReason.TREE_UNREADABLE, "a node joins more than two sums at once")
    out: list[Candidate] = []
    seen: set[Term] = set()
    for name, row, variant in _steps(tree, context):
        plain = cast(context.output_dtype, to_term(variant, row))
        for schedule, choices in _dtypes(plain, context):
            bits = exact_form(schedule)  # what cannot differ is one candidate, the first to come
            if bits not in seen:
                seen.add(bits)
                desc = describe(schedule, context.k, context.input_dtype, context.output_dtype)
                if desc is not None:
                    desc = replace(desc, instruction=_instruction(desc, context.sm))
                out.append(Candidate(schedule, desc, (("step", name), *choices)))
    if not out:
        width = max(run.width for loop in loops(tree) for run in loop.runs)
        return Declined(DeclineReason.FORM_UNKNOWN,
                        f"a step sums {width} products at once, more than any known instruction of {context.input_dtype}")
    return tuple(out)


def to_term(tree: SumTree, row: Row | None) -> Term:
    """The tree with every step one instruction of `row` (None: scalar fused multiply-adds) and every joint an fp32 addition."""
    return as_term(tree, row)


def _binary(tree: SumTree) -> bool:
    todo, seen = [tree], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Joint) and len(one.parts) != 2:
            return False
        todo += below_of(one)
    return True


def _steps(tree: SumTree, context: Context) -> Iterator[tuple[str, Row | None, SumTree]]:
    """How a step may add: fma where every step is one index, else (and also) each instruction wide enough, this SM's first."""
    if isinstance(tree, Loop) and tree.before is None and sum(r.width * r.count for r in tree.runs) == 1:
        yield "one exact product, no step to tell apart", None, tree
        return
    if any(loop.chained for loop in loops(tree)):  # lanes of single products: no instruction takes them one at a time
        yield "scalar fma, to nearest", None, tree
        return
    for variant in _variants(tree):
        width = max(run.width for loop in loops(variant) for run in loop.runs)
        if width == 1:
            yield "scalar fma, to nearest", None, variant
        seen: list[Row] = []
        nearest: tuple[Row, SumTree] | None = None
        for name, row in _rows(context):
            listed = variant if width <= row.products else _lone_first(variant, row.products)
            # steps are listed one by one, so rows that differ only in how many products they could take give the same bits
            if listed is None or any((row.fraction_bits, row.result_bits) == (r.fraction_bits, r.result_bits) for r in seen):
                continue
            seen.append(row)
            nearest = nearest or (replace(row, nearest=True), listed)
            yield f"{name}, toward zero", row, listed
        if nearest is not None:
            yield f"matrix instruction of sm_{context.sm}, to nearest", *nearest


def _variants(tree: SumTree) -> Iterator[SumTree]:
    """Sums of one and the same tree: a chain of single indices begins where two meet, a lone last index may be added or be a step."""
    singles = _single_steps(tree)
    if singles is not None:
        yield singles
    yield tree
    if isinstance(tree, Loop) and tree.before is None and len(tree.runs) > 1 and tree.runs[-1].width == tree.runs[-1].count == 1:
        yield Joint((Loop(None, tree.runs[:-1]), Loop(None, tree.runs[-1:])))
    if isinstance(tree, Joint) and len(tree.parts) == 2:
        head, tail = tree.parts
        if isinstance(head, Loop) and isinstance(tail, Loop) and tail.before is None and sum(r.width * r.count for r in tail.runs) == 1:
            yield Loop(head.before, join_runs(head.runs, tail.runs))


def _lone_first(tree: SumTree, products: int) -> SumTree | None:
    """The tree with each first step that is one index too wide taken as a lone index and a full step, which meet in one node; None where
    another step is too wide."""

    def make(one: SumTree, below: list[SumTree | None]) -> SumTree | None:
        there = [b for b in below if b is not None]
        if len(there) < len(below):
            return None
        if not isinstance(one, Loop):
            return _with_below(one, there)
        runs = one.runs
        if not there and runs[0].width == products + 1:
            (first, *others), rest = runs[0].step(0), runs[0].count - 1
            further = (Run(runs[0].first + runs[0].advance, runs[0].pattern, rest, runs[0].advance if rest > 1 else 0),) if rest else ()
            runs = join_runs((), (run_of((first,)), run_of(tuple(others)), *further, *runs[1:]))
        return Loop(there[0] if there else None, runs) if all(run.width <= products for run in runs) else None

    return walk_up(tree, make)


def _single_steps(tree: SumTree) -> SumTree | None:
    """The tree with a first step of two indices taken as two single steps, where all other steps are single; else None."""

    def make(one: SumTree, below: list[SumTree | None]) -> SumTree | None:
        there = [b for b in below if b is not None]
        if len(there) < len(below):
            return None
        return single_steps(one) if isinstance(one, Loop) else _with_below(one, there)

    return walk_up(tree, make)


def _with_below(tree: SumTree, below: list[SumTree]) -> SumTree:
    return Moved(below[0], tree.distance) if isinstance(tree, Moved) else Joint(tuple(below))


def _rows(context: Context) -> Iterator[tuple[str, Row]]:
    """The published rows for this input dtype, the SM's own first."""
    for sm in (context.sm, *(s for s in _KNOWN_SMS if s != context.sm)):
        try:
            yield f"matrix instruction of sm_{sm}", row_for(sm, context.input_dtype)
        except UsageError:
            continue  # that SM has no such instruction, or no published row


def _dtypes(plain: Term, context: Context) -> Iterator[tuple[Term, tuple[tuple[str, str], ...]]]:
    """The plain schedule, then each form of it with the parts, or parts and running sum, held in the output dtype (the paper's three)."""
    out = context.output_dtype
    yield plain, (("partial_dtype", str(DType.FP32)), ("merge_dtype", str(DType.FP32)))
    if out is DType.FP32:
        return
    for form in forms_of(plain, context.k, context.input_dtype, out):
        if form.k_cuts:
            for partial, merge in ((out, DType.FP32), (out, out)):
                yield (replace(form, partial_dtype=partial, merge_dtype=merge).schedule(),
                       (("partial_dtype", str(partial)), ("merge_dtype", str(merge))))


def _instruction(desc: GEMMDesc, sm: int) -> Instruction:
    """The instruction to name as evidence where none was captured: the SM's own matrix instruction."""
    if desc.row is None:
        return Instruction.FMA
    if sm >= 100:
        return Instruction.TCGEN05
    return Instruction.WGMMA if sm == 90 else Instruction.MMA_SYNC
