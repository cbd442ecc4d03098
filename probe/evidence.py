"""Which instrument settled which field of a descriptor, and what the family of kernels is called."""

from __future__ import annotations

from dataclasses import replace

from probe.capture import Capture
from probe.describe import forms_of
from probe.descriptor import CutLayout, Direction, GEMMDesc, Instruction, Join, KCut
from probe.records import Evidence
from probe.recovery.candidates import Candidate, Context
from probe.recovery.settle import Settled
from probe.schedule import Products, Term

_NAMED = (("nvjet", Instruction.WGMMA), ("gmma", Instruction.WGMMA), ("tcgen05", Instruction.TCGEN05), ("tensorop", Instruction.MMA_SYNC),
          ("wmma", Instruction.MMA_SYNC), ("s1688", Instruction.MMA_SYNC), ("s16816", Instruction.MMA_SYNC))


def preferred_form(chosen: Candidate, context: Context, captured: Capture) -> GEMMDesc | None:
    """The record to show among those with this very schedule: a split where a split kernel was captured, else the canonical one.

    The instruction is named after the captured kernel; it is evidence and no part of the record's identity.
    """
    if chosen.desc is None:
        return None
    desc = chosen.desc
    if any("splitk" in kernel.name.lower() for kernel in captured.kernels):
        desc = next((f for f in forms_of(chosen.schedule, context.k, context.input_dtype, context.output_dtype) if f.k_cuts), desc)
    if desc.row is None:
        return replace(desc, instruction=Instruction.FMA)
    named = next((i for k in captured.kernels for mark, i in _NAMED if mark in k.name.lower()), chosen.desc.instruction)
    return replace(desc, instruction=named)


def family_of(schedule: Term, desc: GEMMDesc | None) -> str:
    """The plain name of the form."""
    if desc is None:
        return "general schedule"
    inner = "single accumulator"
    if desc.row is None:
        inner = "ascending fma chain" if desc.products is Products.FUSED else "ascending chain of rounded products"
    elif not desc.use_fast_accum:
        inner = "per-instruction accumulation"
    cuts = desc.k_cuts
    if not cuts:
        return inner
    if any(cut.layout is CutLayout.STRIDED for cut in cuts):
        return ", ".join([*map(_cut_words, cuts, (None, *cuts), [desc.k_summed] * len(cuts)), inner])
    parts = -(-desc.k_summed // cuts[0].span)
    merge = "" if cuts[0].join is Join.CHAIN else f", {cuts[0].join}"
    if desc.input_dtype.is_fp8:
        chunk = f"promoted every {cuts[-1].span}"
        if len(cuts) == 1 and cuts[0].span <= 128:
            return chunk
        return f"split-K in {parts} parts{merge}" + (f", {chunk}" if len(cuts) > 1 else "")
    return f"split-K in {parts} parts{merge}, {inner}"


def _cut_words(cut: KCut, above: KCut | None, summed: int) -> str:
    """One cut of a nest that deals to lanes."""
    joined = "" if cut.join is Join.CHAIN and cut.direction is Direction.FORWARD else f" joined by a {cut.join} {cut.direction}"
    if cut.layout is CutLayout.STRIDED:
        return f"{cut.count} lanes of {cut.span}{joined}"
    if above is None:
        return f"split-K in {-(-summed // cut.span)} parts{joined}"
    return f"closed every {cut.span}{joined}"


def _named_by(desc: GEMMDesc, captured: Capture) -> str:
    """Where the name of the instruction comes from: no walk can tell, for instructions of one row give the same bits."""
    if desc.row is None:
        return "follows from the row"
    if any(mark in kernel.name.lower() and desc.instruction is i for kernel in captured.kernels for mark, i in _NAMED):
        return "name of the captured kernel"
    return "the SM's usual one; no kernel name tells"


def evidence_for(desc: GEMMDesc | None, possible: tuple[Candidate, ...], instrument: str, captured: Capture,
                 settled: Settled) -> tuple[Evidence, ...]:
    """A line for each field that fixes bits."""
    if desc is None:
        return ()
    counting = f"counting walk ({instrument})"
    varied = {name for c in possible for name, value in c.choices if len({v for o in possible for n, v in o.choices if n == name}) > 1}
    by_bytes = "bytes"  # the record holds the numbers: candidates, settling_draws, settling_elements
    only = "nothing to tell apart: one candidate"
    turn = f"{desc.k_loop_step}, short turn {desc.short_turn}" if desc.k_loop_step != desc.instruction_k else "not observable at this K"
    cuts = "; ".join(f"{c.layout} span {c.span}{f' count {c.count}' if c.count else ''}, {c.join} {c.direction}"
                     for c in desc.k_cuts) or "none"
    row = "scalar fma, to nearest" if desc.row is None else (
        f"{desc.row.products} products, {desc.row.fraction_bits} bits kept, toward zero to {desc.row.result_bits} fraction bits")
    return (
        Evidence("k_summed", f"{desc.k_summed} of {desc.k}", "counting walk without a pair"),
        Evidence("k_cuts", cuts, f"contiguous L/r walk and {counting}"),
        Evidence("instruction_k", str(desc.instruction_k), counting),
        Evidence("use_fast_accum", str(desc.use_fast_accum), counting),
        Evidence("k_loop_step", turn, counting),
        Evidence("row", row, by_bytes if "step" in varied else "the SM's own instruction, " + by_bytes),
        Evidence("instruction", str(desc.instruction), _named_by(desc, captured)),
        Evidence("partial_dtype", str(desc.partial_dtype), by_bytes if "partial_dtype" in varied else only),
        Evidence("merge_dtype", str(desc.merge_dtype), by_bytes if "merge_dtype" in varied else only),
        Evidence("output_dtype", str(desc.output_dtype), "asked for; one rounding, " + by_bytes),
        *_chain_evidence(desc, varied),
    )


def _chain_evidence(desc: GEMMDesc, varied: set[str]) -> tuple[Evidence, ...]:
    """Lines for what shows only where products are -0, underflow or overflow. One that did not vary has no like that differs."""
    if desc.row is not None:
        return ()
    equal = "nothing to tell apart: proven equal for this dtype"
    return tuple(Evidence(name, str(getattr(desc, name)), "bytes of extreme draws" if name in varied else equal)
                 for name in ("chain_start", "products", "adds_zero"))
