"""From a rounding schedule to its canonical GEMMDesc, or None where no form of the record produces it.

A record is canonical when `describe` returns it: what cannot be observed at its K has its plain value (a
loop step that moves no rounding, a dtype of parts that are not there, the instruction behind an equal row).
Every answer is checked: the record's own schedule must equal the one that was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from probe.descriptor import Direction, GEMMDesc, Instruction, Join, KCut, ShortTurn, join_parts
from probe.errors import UsageError
from probe.lanes import in_one_piece, partings
from probe.problem import DType
from probe.schedule import (
    Add,
    Cast,
    ChainStart,
    Fma,
    Fold,
    Mma,
    Products,
    Row,
    Run,
    Term,
    Zero,
    dtype_of,
    first_k,
    leaf_count,
    plain_of,
    shift,
    single_run,
)
from probe.schedule.terms import copies, join_runs

_MOST_CUTS = 6  # one in another; kernels were seen with up to three
_BUTTERFLY_LIMIT = 1024  # parts: lanes of one block; more are never joined by a butterfly


# the plain ones are no chains of other kinds
_CHAINS = [(start, products, adds_zero) for start in ChainStart for products in Products for adds_zero in (False, True)
           if (start, products, adds_zero) != (ChainStart.ZERO, Products.FUSED, False)]


@dataclass(frozen=True)
class _Leaf:
    row: Row | None
    instruction_k: int
    use_fast_accum: bool
    k_loop_step: int
    short_turn: ShortTurn


@dataclass(frozen=True)
class _Form:
    cuts: tuple[KCut, ...]
    leaf: _Leaf
    partial: DType = DType.FP32
    merge: DType = DType.FP32


def describe(term: Term, k: int, input_dtype: DType, output_dtype: DType) -> GEMMDesc | None:
    """The canonical record whose schedule is `term` at extent `k`; None where there is none."""
    return next(forms_of(term, k, input_dtype, output_dtype), None)


def forms_of(term: Term, k: int, input_dtype: DType, output_dtype: DType) -> Iterator[GEMMDesc]:
    """Every record whose schedule is `term`, the canonical one first: the same bits may be split parts or single instructions."""
    inner = term.x if isinstance(term, Cast) else term
    interval = single_run(inner)
    if dtype_of(term) is not output_dtype or interval is None or interval[0] != 0:
        return
    plain = plain_of(term)
    if plain != term:
        for record in forms_of(plain, k, input_dtype, output_dtype) if plain_of(plain) == plain else ():
            for start, products, adds_zero in _CHAINS if record.row is None else ():
                changed = replace(record, chain_start=start, products=products, adds_zero=adds_zero)
                if changed.schedule() == term:
                    yield changed
        return
    for form in _forms(inner):
        instruction = Instruction.FMA if form.leaf.row is None else Instruction.WGMMA
        try:
            desc = GEMMDesc(
                k=k, k_summed=interval[1], input_dtype=input_dtype, output_dtype=output_dtype, row=form.leaf.row,
                instruction_k=form.leaf.instruction_k, use_fast_accum=form.leaf.use_fast_accum,
                k_loop_step=form.leaf.k_loop_step, short_turn=form.leaf.short_turn, k_cuts=form.cuts,
                partial_dtype=form.partial, merge_dtype=form.merge, instruction=instruction)
        except UsageError:
            continue
        if desc.schedule() == term:
            yield desc


def canonical(desc: GEMMDesc) -> GEMMDesc:
    """The canonical record with the same schedule, keeping the instruction as evidence; itself where no
    form is known."""
    found = describe(desc.schedule(), desc.k, desc.input_dtype, desc.output_dtype)
    return desc if found is None else replace(found, instruction=desc.instruction)


def _forms(term: Term, depth: int = 0) -> Iterator[_Form]:
    """Candidate forms of a term, plainest first; the caller checks them. depth: cuts around it."""
    outermost = depth == 0
    leaf_runs = _leaf_runs(term)
    if leaf_runs is not None:
        row, runs = leaf_runs
        for leaf in _leaves(row, runs, fast=True):
            yield _Form((), leaf)
        return
    if depth == _MOST_CUTS:
        return
    for parts, join, direction in _partings(term, outermost) if in_one_piece(term) else ():
        merge = dtype_of(term)
        partials = {dtype_of(p) for p in parts}
        if len(partials) != 1:
            continue
        partial = partials.pop()
        bare = [p.x if isinstance(p, Cast) else p for p in parts]
        if (join, direction, partial, merge) == (Join.CHAIN, Direction.FORWARD, DType.FP32, DType.FP32):
            yield from _per_instruction(bare)
        yield from _cut(bare, join, direction, partial, merge, depth)
    for parting in partings(term):
        yield from _dealt(list(parting.parts), parting.cut, parting.partial, dtype_of(term), depth)


def _leaf_runs(term: Term) -> tuple[Row | None, tuple[Run, ...]] | None:
    match term:
        case Mma(Zero(), row, runs):
            return row, runs
        case Fma(Zero(), runs):
            return None, runs
        case _:
            return None


def _leaves(row: Row | None, runs: tuple[Run, ...], fast: bool) -> Iterator[_Leaf]:
    """Ways to write one accumulation loop over contiguous steps: short turn last, or first with each step
    that fits."""
    width = max(r.width for r in runs)
    yield _Leaf(row, width, fast, width, ShortTurn.LAST)
    total = sum(r.width * r.count for r in runs)
    short = done = 0
    for run in runs:
        done += run.width * run.count
        if run.width < width:
            short = done
    if 0 < short < total:
        for step in _loop_steps(total - short, short, width):
            yield _Leaf(row, width, fast, step, ShortTurn.FIRST)


def _loop_steps(rest: int, short: int, width: int) -> Iterator[int]:
    step = (short // width + 1) * width
    while step <= rest:
        if rest % step == 0:
            yield step
        step += width


def _per_instruction(parts: list[Term]) -> Iterator[_Form]:
    """Every part is one instruction: its result joins the accumulator in a second rounding."""
    runs: list[Run] = []
    rows = set()
    for part in parts:
        leaf = _leaf_runs(part)
        if leaf is None or leaf[0] is None or len(leaf[1]) != 1 or leaf[1][0].count != 1:
            return
        rows.add(leaf[0])
        runs.append(leaf[1][0])
    if len(rows) == 1:
        for leaf_form in _leaves(rows.pop(), join_runs((), tuple(runs)), fast=False):
            yield _Form((), leaf_form)


def _cut(parts: list[Term], join: Join, direction: Direction, partial: DType, merge: DType,
         depth: int) -> Iterator[_Form]:
    """Parts of one span (the last may be short), each of the same inner form."""
    ordered = sorted(parts, key=first_k)
    span = leaf_count(ordered[0])
    if any(leaf_count(p) != span for p in ordered[:-1]) or leaf_count(ordered[-1]) > span:
        return
    yield from _dealt([shift(part, -first_k(part)) for part in ordered], KCut(span, join=join, direction=direction), partial, merge, depth)


def _dealt(parts: list[Term], cut: KCut, partial: DType, merge: DType, depth: int) -> Iterator[_Form]:
    """Parts of a cut, each counted from zero along its own axis, of the same inner form."""
    distinct = list(dict.fromkeys(parts))
    seen: list[_Form] = []
    for part in distinct:  # the form must serve every part; a short part alone may show less of it
        for form in _forms(part, depth + 1):
            if (form.partial, form.merge) == (DType.FP32, DType.FP32) and form not in seen:
                seen.append(form)
    for form in sorted(seen, key=lambda f: f.leaf.k_loop_step):
        yield _Form((cut, *form.cuts), form.leaf, partial, merge)


def _partings(term: Term, outermost: bool) -> Iterator[tuple[list[Term], Join, Direction]]:
    """Ways to read a sum as parts: a chain from the left, the same with its head kept whole, from the
    right, a butterfly."""
    if not isinstance(term, Add | Fold):
        return
    chain = _left_spine(term)
    heads = [i for i, p in enumerate(chain) if i and isinstance(p.x if isinstance(p, Cast) else p, Add |
    Fold)]
    if heads:
        head = heads[0]
        whole = join_parts(chain[:head], Join.CHAIN, Direction.FORWARD, dtype_of(term))
        yield [whole, *chain[head:]], Join.CHAIN, Direction.FORWARD
    yield chain, Join.CHAIN, Direction.FORWARD
    if outermost and len(chain) > 2:  # two parts, the last of them a single loop: the spine runs on into the first part
        yield [join_parts(chain[:-1], Join.CHAIN, Direction.FORWARD, dtype_of(term)), chain[-1]], Join.CHAIN, Direction.FORWARD
    back = _right_spine(term)
    if len(back) > 2:
        yield back, Join.CHAIN, Direction.BACKWARD
    last = back[-1]
    if outermost and isinstance(last, Fold) and last.dtype == dtype_of(term):  # a last part of a single loop folds into the sum before it
        split = _left_spine(last)
        yield [*back[:-1], join_parts(split[:-1], Join.CHAIN, Direction.FORWARD, last.dtype), split[-1]], Join.CHAIN, Direction.BACKWARD
    if outermost and len(back) > 3:  # the spine runs on into a last part that is a sum itself
        yield [*back[:-2], join_parts(back[-2:], Join.CHAIN, Direction.FORWARD, dtype_of(term))], Join.CHAIN, Direction.BACKWARD
    leaves = _balanced(term)
    if leaves is not None:
        for direction in (Direction.DOWN, Direction.UP):
            if join_parts(leaves, Join.BUTTERFLY, direction, dtype_of(term)) == term:
                yield leaves, Join.BUTTERFLY, direction
        for parts in _grouped(term, leaves) if outermost else ():
            for direction in (Direction.DOWN, Direction.UP):
                if join_parts(parts, Join.BUTTERFLY, direction, dtype_of(term)) == term:
                    yield parts, Join.BUTTERFLY, direction


def _grouped(term: Term, leaves: list[Term]) -> Iterator[list[Term]]:
    """The leaves of a butterfly gathered into parts that are sums themselves, for each size that the first part may have: the first part
    stands somewhere on the leftmost path of the tree."""
    dtype, node, sizes = dtype_of(term), term, [leaf_count(leaf) for leaf in leaves]
    while isinstance(node, Add | Fold) and node.dtype == dtype:
        node = node.left if isinstance(node, Add) else node.previous
        if not isinstance(node, Add | Fold):
            return
        groups = _even_groups(leaves, sizes, leaf_count(node))
        if groups is not None and len(groups) > 2:
            yield [join_parts(group, Join.CHAIN, Direction.FORWARD, dtype) for group in groups]


def _even_groups(leaves: list[Term], sizes: list[int], whole: int) -> list[list[Term]] | None:
    """The leaves in groups of `whole` products, the last one short when it must be; None where a group would be cut by a leaf's end."""
    groups: list[list[Term]] = []
    room = 0
    for leaf, size in zip(leaves, sizes, strict=True):
        if room == 0:
            groups.append([])
            room = whole
        if size > room:
            return None
        groups[-1].append(leaf)
        room -= size
    return groups


def _left_spine(term: Term) -> list[Term]:
    dtype = dtype_of(term)
    out: list[Term] = []
    while isinstance(term, Add | Fold) and term.dtype == dtype:
        if isinstance(term, Add):
            out.append(term.right)
            term = term.left
        else:
            out.extend(reversed(list(copies(term))))
            term = term.previous
    return [term, *reversed(out)]


def _right_spine(term: Term) -> list[Term]:
    dtype = dtype_of(term)
    out: list[Term] = []
    while isinstance(term, Add) and term.dtype == dtype:
        out.append(term.left)
        term = term.right
    return [*out, term]


def _balanced(term: Term) -> list[Term] | None:
    """The parts under a tree of additions of one dtype, in ascending order of their first index."""
    dtype, queue, out = dtype_of(term), [term], []
    while queue:
        one = queue.pop()
        if isinstance(one, Add) and one.dtype == dtype:
            queue += [one.left, one.right]
        elif isinstance(one, Fold) and one.dtype == dtype:
            queue += [one.previous, *copies(one)]
        else:
            out.append(one)
        if len(out) + len(queue) > _BUTTERFLY_LIMIT:
            return None
    return sorted(out, key=first_k) if len(out) > 2 else None
