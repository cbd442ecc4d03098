"""The strength of a proof: for every family, the share of mutants that change bits which the draws of one proof refute (DESIGN section 7).

Mutants are proven equal or refuted; the draws were not shaped on them. Run with -s to see the numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
from mutants import mutants, survivors

from probe.descriptor import CutLayout, Direction, GEMMDesc, Instruction, Join, KCut, ShortTurn
from probe.problem import DType
from probe.tensorcore import row_for

H, B, E, S = DType.FP16, DType.BF16, DType.E4M3, DType.FP32
DOWN, UP, FORWARD = (Join.BUTTERFLY, Direction.DOWN), (Join.BUTTERFLY, Direction.UP), (Join.CHAIN, Direction.FORWARD)


def tensor(k: int, a: DType, out: DType, *cuts: KCut, **others: object) -> GEMMDesc:
    row = row_for(90, a)
    return GEMMDesc(k=k, k_summed=k, input_dtype=a, output_dtype=out, row=row, instruction=Instruction.WGMMA, instruction_k=row.products,
                    k_cuts=cuts, **others)  # type: ignore[arg-type]


def scalar(k: int, a: DType, out: DType, *cuts: KCut, **others: object) -> GEMMDesc:
    return GEMMDesc(k=k, k_summed=k, input_dtype=a, output_dtype=out, row=None, instruction=Instruction.FMA, instruction_k=1,
                    k_cuts=cuts, **others)  # type: ignore[arg-type]


def lanes(span: int, count: int, join: tuple[Join, Direction] = DOWN) -> KCut:
    return KCut(span, CutLayout.STRIDED, count, *join)


def family(name: str, k: int, a: DType, out: DType) -> GEMMDesc:
    """One record of a family; the forms are those that were seen on an H200 (DESIGN fact 3, docs/semantics.md)."""
    short = {"k_loop_step": 64, "short_turn": ShortTurn.FIRST}
    third = -(-k // 3 // 8) * 8
    return {
        "single chain": lambda: tensor(k, a, out),
        "short turn first": lambda: tensor(k, a, out, **(short if k % 64 else {})),
        "split": lambda: tensor(k, a, out, KCut(third)),
        "serial merge": lambda: tensor(k, a, out, KCut(third), partial_dtype=out, merge_dtype=out),
        "per-instruction": lambda: tensor(k, a, out, use_fast_accum=False),
        "lanes, butterfly down": lambda: scalar(k, a, out, lanes(1, 32)),
        "lanes, butterfly up": lambda: scalar(k, a, out, lanes(2, 16, UP)),
        "sliced lanes": lambda: scalar(k, a, out, lanes(8, 16), KCut(16)),
        "gemmSN": lambda: scalar(k, a, out, KCut(-(-k // 4)), KCut(32)),
        "gemmSN, transposed": lambda: scalar(k, a, out, lanes(1, 16, FORWARD), KCut(16)),
        "dot and reduce": lambda: scalar(k, a, out, lanes(32, 4), lanes(1, 32)),
        "ascending fma": lambda: scalar(k, a, out),
        "e4m3 blocks": lambda: tensor(k, E, out, KCut(128)),
        "e4m3 fast": lambda: tensor(k, E, out),
    }[name]()


FAMILIES = ["single chain", "short turn first", "split", "serial merge", "per-instruction", "lanes, butterfly down", "lanes, butterfly up",
            "sliced lanes", "gemmSN", "gemmSN, transposed", "dot and reduce", "ascending fma", "e4m3 blocks", "e4m3 fast"]


def records(name: str, count: int, seed: int) -> list[GEMMDesc]:
    """K at random, fp16 and bf16, outputs of 16 and 32 bits in turn."""
    rng = np.random.default_rng(seed)
    kinds = [(E, B), (E, S), (E, H)] if name.startswith("e4m3") else [(H, H), (B, S), (H, S), (B, B)]
    made = []
    for i in range(count):
        k = int(rng.integers(200, 600))
        k = k if not name.startswith("e4m3") else 16 * (k // 16)
        made.append(family(name, k, *kinds[i % len(kinds)]))
    return made


def strength(name: str, count: int, most: int | None, seed: int) -> tuple[int, list[str], int, list[str]]:
    """How many mutants were tried, and those that no draw refuted; then the same for those that move one or two products only."""
    tried, missed, moved, hidden = 0, [], 0, []
    for i, record in enumerate(records(name, count, seed)):
        made = [one for one in mutants(record, np.random.default_rng(seed + i), most) if not shows_nowhere(record, one[0])]
        left = [f"K={record.k} {record.input_dtype}>{record.output_dtype}: {one}" for one in survivors(record, made, seed + i)]
        one_moved = sum(few_products(one) for one, _ in made)
        tried, moved = tried + len(made) - one_moved, moved + one_moved
        missed += [one for one in left if not few_products(one.split(": ", 1)[1])]
        hidden += [one for one in left if few_products(one.split(": ", 1)[1])]
    return tried, missed, moved, hidden


def few_products(name: str) -> bool:
    """One or two products in another place: no field of a record does that, and walks read each place. A 16-bit output of one long chain
    hides some of them."""
    return name.startswith("product")


def shows_nowhere(record: GEMMDesc, name: str) -> bool:
    """e4m3 parts have 14 bits, so that fp32 adds a few of them without rounding: their order, and a merge in 16 bits, show in no draw of a
    proof. The order is read by the walk, and no candidate has parts in fp32 that are merged in 16 bits."""
    return record.input_dtype is E and bool(record.k_cuts) and any(word in name for word in ("join", "merged in", "outer cut"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_sample_of_mutants_is_refuted(name: str) -> None:
    tried, missed, moved, hidden = strength(name, 2 if name == "e4m3 blocks" else 1, 8, 5)  # few of those have eight
    assert tried + moved >= 4 and missed == [] and len(hidden) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_nearly_all_mutants_are_refuted(name: str) -> None:
    """docs/semantics.md has the numbers of a run of at least 1,000 a family."""
    tried, missed, moved, hidden = strength(name, 4, 35, 29)
    print(f"{name}: {tried - len(missed)} of {tried}, few products moved: {moved - len(hidden)} of {moved}")
    # when this was written parts in fp16 hid 7 of 1,094 mutants, and a bf16 output hid one of e4m3's accumulator (1 of 93 here, 0 of 349)
    assert tried >= 40 and len(missed) <= (1 + tried // 100 if name in ("serial merge", "e4m3 fast") else tried // 1000)
    assert moved >= 4 and len(hidden) <= 1 + moved // 50
