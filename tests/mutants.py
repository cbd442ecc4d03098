"""Mutants of a record for measuring how strong a proof is (DESIGN section 7): one field changed, or the sum itself rearranged."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from probe.descriptor import CutLayout, Direction, GEMMDesc, Join, KCut, ShortTurn
from probe.errors import UsageError
from probe.inputs.draws import Draw, DrawKind
from probe.problem import DType
from probe.proof import compare_draws, prove
from probe.recovery.candidates import Candidate, Context
from probe.recovery.settle import LIKE_INDEX, LIKE_ROUNDS, settle
from probe.recovery.twins import _SHAPES, twins
from probe.schedule import Cast, ChainStart, Fma, Mma, Products, Term, bits_key, cast, fma, mma, run_of
from probe.schedule.terms import Fold, add, after, below_of, copies
from probe.schedule.zeros import rebuilt
from probe.simulator.library import SimulatedSumming

_REARRANGED = 30  # of each record
JOINS = [(Join.CHAIN, Direction.FORWARD), (Join.CHAIN, Direction.BACKWARD),
         (Join.BUTTERFLY, Direction.UP), (Join.BUTTERFLY, Direction.DOWN)]


def field_changes(record: GEMMDesc) -> Iterator[tuple[str, dict[str, object]]]:
    """Every change of one field, and of one field of one cut."""
    row, cuts, k = record.row, record.k_cuts, record.k_summed
    for less in (1, 8):
        yield f"{less} not summed", {"k_summed": k - less}
    yield "all of K summed", {"k_summed": record.k}
    for step in (2, 4):
        for turn in ShortTurn:
            yield f"loop step x{step}, short turn {turn}", {"k_loop_step": step * record.instruction_k, "short_turn": turn}
    if row is not None:
        for bits in (-2, -1, 1, 2):
            yield f"{bits:+} bits kept", {"row": replace(row, fraction_bits=row.fraction_bits + bits)}
        yield "a row to nearest", {"row": replace(row, nearest=True)}
        yield "another accumulator", {"row": replace(row, result_bits=36 - row.result_bits)}
        yield "a second rounding", {"use_fast_accum": not record.use_fast_accum}
        for factor in (2, 4):
            yield f"steps /{factor}", {"instruction_k": record.instruction_k // factor, "k_loop_step": 0}
        yield "a row twice as wide", {"row": replace(row, products=2 * row.products), "instruction_k": 2 * record.instruction_k,
                                      "k_loop_step": 0}
    else:
        for start, products, adds_zero in itertools.product(ChainStart, Products, (False, True)):
            yield f"{start}, {products}, {adds_zero}", {"chain_start": start, "products": products, "adds_zero": adds_zero}
    for i, cut in enumerate(cuts):
        yield f"cut {i} gone", {"k_cuts": (*cuts[:i], *cuts[i + 1:])}
        for other in _cuts_near(cut, record.instruction_k):
            yield f"cut {i} is {other}", {"k_cuts": (*cuts[:i], other, *cuts[i + 1:])}
    for span in (8, 16, 32, 64, 128, 256, k // 2, k // 3):
        if span >= 1:
            yield f"outer cut of {span}", {"k_cuts": (KCut(span), *cuts)}
            yield f"inner cut of {span}", {"k_cuts": (*cuts, KCut(span))}
    for partial, merge in itertools.product({DType.FP32, DType.FP16, DType.BF16, record.output_dtype}, repeat=2):
        if cuts:
            yield f"parts {partial}, merged in {merge}", {"partial_dtype": partial, "merge_dtype": merge}


def _cuts_near(cut: KCut, step: int) -> Iterator[KCut]:
    for span in {cut.span + d for d in (-8, -1, 1, 8, step, -step)} | {2 * cut.span, cut.span // 2, 4 * cut.span}:
        if span >= 1:
            yield replace(cut, span=span)
    for count in () if cut.count is None else {cut.count + 1, cut.count - 1, 2 * cut.count, cut.count // 2}:
        if count >= 1:
            yield replace(cut, count=count)
    for join, direction in JOINS:
        yield replace(cut, join=join, direction=direction)
    if cut.layout is CutLayout.CONTIGUOUS and cut.span > 8:
        yield KCut(max(1, cut.span // 8), CutLayout.STRIDED, 8, cut.join, cut.direction)


def relabelled(term: Term, to: Sequence[int]) -> Term:
    """The schedule that sums product to[k] where the given one sums product k."""

    def make(one: Term, below: list[Term]) -> Term:
        match one:
            case Mma(_, row, runs):
                return mma(below[0], row, tuple(run_of(tuple(to[k] for k in run.step(t))) for run in runs for t in range(run.count)))
            case Fma(_, runs, rounded):
                return fma(below[0], tuple(run_of((to[k],)) for run in runs for t in range(run.count) for k in run.step(t)), rounded)
            case Fold():
                total = below[0]
                for part in copies(one):
                    total = add(one.dtype, total, relabelled(part, to))
                return total
            case _:
                return rebuilt(one, below)

    return after(term, make, lambda one: (one.previous,) if isinstance(one, Fold) else below_of(one))


def rearranged(record: GEMMDesc, rng: np.random.Generator, turn: int) -> tuple[str, Callable[[], Term]]:
    """The sum with two products changed over, with one put elsewhere, or with two stretches changed over (swapped parts, rotated lanes)."""
    k, to = record.k_summed, list(range(record.k))
    i, j = sorted(int(x) for x in rng.integers(0, k, 2))
    if turn % 3 == 0:
        j = j if turn % 2 else min(k - 1, i + int(rng.integers(1, 40)))
        to[i], to[j] = to[j], to[i]
        name = f"products {i} and {j} changed over"
    elif turn % 3 == 1:
        to.insert(j, to.pop(i))
        name = f"product {i} put to {j}"
    else:
        size = min(int(rng.choice([record.instruction_k, record.k_cuts[0].span if record.k_cuts else 8, 4])), j - i, k - j)
        to[i:i + size], to[j:j + size] = to[j:j + size], to[i:i + size]
        name = f"{size} products from {i} and {j} on changed over"
    return name, lambda: relabelled(record.schedule(), to)


def mutants(record: GEMMDesc, rng: np.random.Generator, most: int | None = None) -> list[tuple[str, Term]]:
    """All mutants of a record that change bits, or `most` of them at random: those proven equal are left out by canonical form."""
    truth = record.schedule()
    inner, out = (truth.x, truth.dtype) if isinstance(truth, Cast) else (truth, DType.FP32)
    makers: list[tuple[str, Callable[[], Term]]] = [
        (name, lambda change=change: replace(record, **change).schedule()) for name, change in field_changes(record)]  # type: ignore[misc]
    makers += [rearranged(record, rng, turn) for turn in range(_REARRANGED)]
    makers += [(f"lone products {words}", lambda shape=shape: cast(out, shape(inner))) for words, shape in _SHAPES]  # type: ignore[misc]
    if out is not DType.FP32:
        other = DType.FP16 if out is DType.BF16 else DType.BF16
        makers.append(("two roundings at the output", lambda: cast(out, cast(other, inner))))
    if most is not None:
        makers = [makers[i] for i in rng.permutation(len(makers)).tolist()]
    seen = {bits_key(truth, record.input_dtype)}
    left: list[tuple[str, Term]] = []
    for name, make in makers:
        try:
            term = make()
        except UsageError:
            continue  # no record has that
        key = bits_key(term, record.input_dtype)
        if key not in seen:
            seen.add(key)
            left.append((name, term))
        if len(left) == most:
            break
    return left


class Library(SimulatedSumming):
    """The library of a record, which keeps the draws of one proof and what they gave."""

    def __init__(self, record: GEMMDesc, m: int = 16, n: int = 16) -> None:
        super().__init__(m, n, record.k, record.schedule(), record.input_dtype, record.output_dtype)
        self.kept: list[tuple[Draw, np.ndarray]] = []

    def outputs(self, batch):  # type: ignore[no-untyped-def]
        outs = super().outputs(batch)
        self.kept += [(draw, out) for (draw, _), out in zip(batch, outs, strict=True)]
        return outs


def survivors(record: GEMMDesc, made: Sequence[tuple[str, Term]], seed: int) -> list[str]:
    """The mutants that a walk of the record would not refute: the draws of one proof decide, and, for those that count as like the record
    (only zeros or the ends of fp32 tell them apart), the draws that are taken where the proof's cannot."""
    library = Library(record)
    prove(library, library.schedule, record.k_summed, seed)
    order = [DrawKind.CANCELLING, DrawKind.EDGE, DrawKind.SPREAD, DrawKind.FLAT, DrawKind.EXTREMES, DrawKind.TIE]
    kept = sorted(library.kept, key=lambda pair: order.index(pair[0].kind))
    left = [(name, term) for name, term in made if all(_alike(term, draw, out, record.output_dtype) for draw, out in kept)]
    if not left:
        return []
    context = Context(record.k, record.input_dtype, record.output_dtype, 90)
    itself = Candidate(library.schedule, record, ())
    like = {bits_key(c.schedule, record.input_dtype) for c in twins(itself, context)}
    alike = [Candidate(term, None, (("name", name),)) for name, term in left if bits_key(term, record.input_dtype) in like]
    settled = settle(library, (itself, *alike), record.k_summed, seed, None, LIKE_ROUNDS, LIKE_INDEX) if alike else None
    standing = set() if settled is None else {c.choices[0][1] for c in settled.standing if c.choices}
    told = {c.choices[0][1] for c in alike} - standing
    return [name for name, _ in left if name not in told]


def _alike(term: Term, draw: Draw, out: np.ndarray, dtype: DType) -> bool:
    return compare_draws(term, [draw], [out], dtype)[0].identical


__all__ = ["Library", "field_changes", "mutants", "relabelled", "survivors"]
