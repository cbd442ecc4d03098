"""The record of what fixes the bits: its schedule, its JSON, and its canonical form."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import gemm_descs

from probe.describe import canonical, describe, forms_of
from probe.descriptor import CutLayout, Direction, GEMMDesc, Instruction, Join, KCut, ShortTurn
from probe.errors import UsageError
from probe.problem import DType
from probe.schedule import ZERO, Row, Run, Term, add, cast, contiguous_runs, fma, mma, run_of, steps
from probe.tensorcore import row_for

ROW = row_for(90, DType.FP16)
_SETTINGS = settings(max_examples=150, deadline=None, derandomize=True)


def desc(k: int, **others: object) -> GEMMDesc:
    """An fp16 record of one accumulator, fp32 output, but for what is named."""
    common: dict[str, object] = {"k": k, "k_summed": k, "input_dtype": DType.FP16, "output_dtype": DType.FP32, "row": ROW,
                                 "instruction_k": 16, "instruction": Instruction.WGMMA}
    return GEMMDesc(**(common | others))  # type: ignore[arg-type]


def part(lo: int, hi: int) -> Term:
    return mma(ZERO, ROW, contiguous_runs(lo, hi, 16))


def plus(a: Term, b: Term) -> Term:
    return add(DType.FP32, a, b)


# What a record stands for


@_SETTINGS
@given(gemm_descs())
def test_every_summed_index_is_summed_once_and_no_other(record: GEMMDesc) -> None:
    assert sorted(k for step in steps(record.schedule()) for k in step) == list(range(record.k_summed))


def test_parts_join_in_the_order_that_the_cut_names() -> None:
    a, b, c, d, e = (part(lo, min(lo + 32, 150)) for lo in range(0, 150, 32))
    want = {
        (Join.CHAIN, Direction.FORWARD): plus(plus(plus(plus(a, b), c), d), e),
        (Join.CHAIN, Direction.BACKWARD): plus(a, plus(b, plus(c, plus(d, e)))),
        (Join.BUTTERFLY, Direction.UP): plus(plus(plus(a, b), plus(c, d)), e),
        (Join.BUTTERFLY, Direction.DOWN): plus(plus(plus(a, d), c), plus(b, e)),
    }
    got = {key: desc(150, k_cuts=(KCut(32, join=key[0], direction=key[1]),)).schedule() for key in want}
    assert got == want
    assert len(set(want.values())) == 4


def test_the_short_turn_runs_where_the_record_says() -> None:
    last = desc(72, k_loop_step=32)
    first = replace(last, short_turn=ShortTurn.FIRST)
    assert [len(s) for s in steps(last.schedule())] == [16, 16, 16, 16, 8]
    assert [len(s) for s in steps(first.schedule())] == [8, 16, 16, 16, 16]
    assert next(steps(first.schedule())) == tuple(range(8))


def test_the_residue_goes_first_in_every_part_as_read_on_129x65x513() -> None:
    # DESIGN fact 3: eight parts of 72, in each the short step runs first (8, 24, 40, 56, 72)
    record = desc(576, k_cuts=(KCut(72),), k_loop_step=64, short_turn=ShortTurn.FIRST)
    ends: list[int] = []
    for step in steps(record.schedule()):
        ends.append(step[-1] + 1)
    assert ends == [72 * p + e for p in range(8) for e in (8, 24, 40, 56, 72)]


def test_a_strided_cut_deals_tiles_to_lanes() -> None:
    lanes = desc(10, row=None, instruction_k=1, instruction=Instruction.FMA, k_cuts=(KCut(2, CutLayout.STRIDED, count=2),))
    assert [k for (k,) in steps(lanes.schedule())] == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7]


def test_per_instruction_accumulation_adds_each_instruction_in_a_second_rounding() -> None:
    assert desc(40, use_fast_accum=False).schedule() == plus(plus(part(0, 16), part(16, 32)), part(32, 40))


def test_the_dtypes_of_parts_and_of_the_running_sum_round_where_they_say() -> None:
    half = DType.FP16
    a, b, c = part(0, 32), part(32, 64), part(64, 96)
    cut = (KCut(32),)
    written = desc(96, k_cuts=cut, output_dtype=half, partial_dtype=half)
    assert written.schedule() == cast(half, plus(plus(cast(half, a), cast(half, b)), cast(half, c)))
    held = replace(written, merge_dtype=half)
    assert held.schedule() == add(half, add(half, cast(half, a), cast(half, b)), cast(half, c))
    inner = desc(96, k_cuts=(KCut(64), KCut(32)), output_dtype=half, partial_dtype=half)
    assert inner.schedule() == cast(half, plus(cast(half, plus(a, b)), cast(half, c)))


def test_the_tail_that_is_dropped_is_not_in_the_schedule() -> None:
    assert max(k for step in steps(desc(11528, k_summed=11520, k_cuts=(KCut(1280),)).schedule()) for k in step) == 11519


# JSON and refusals


@_SETTINGS
@given(gemm_descs())
def test_a_random_record_survives_json(record: GEMMDesc) -> None:
    back = GEMMDesc.from_json(record.to_json())
    assert back == record
    assert back.instruction is record.instruction  # evidence, not compared by ==
    assert back.to_json() == record.to_json()


def test_json_is_one_text_for_one_record() -> None:
    record = desc(64, k_cuts=(KCut(8, CutLayout.STRIDED, count=4, join=Join.BUTTERFLY, direction=Direction.UP),))
    data = record.to_document()
    assert GEMMDesc.from_json(json.dumps(dict(reversed(data.items())), indent=3)) == record
    assert record.to_json() == json.dumps(data, sort_keys=True, separators=(",", ":"))


def _document(**changes: object) -> dict[str, object]:
    return desc(64, k_cuts=(KCut(32),)).to_document() | changes


_CUT = {"span": 32, "layout": "contiguous", "count": None, "join": "chain", "direction": "forward"}


@pytest.mark.parametrize("document", [
    _document(version=2), _document(version=None), _document(k=0), _document(k_summed=65), _document(k_summed=0), _document(row=[16]),
    _document(row="wgmma"), _document(instruction="hmma"), _document(input_dtype="half"), _document(short_turn="middle"),
    _document(k_cuts=[_CUT | {"join": "tree"}]), _document(k_cuts=[_CUT | {"direction": "up"}]), _document(k_cuts=[_CUT | {"span": 0}]),
    _document(k_cuts=[{"span": 32}]), _document(k_cuts=7), _document(extra=1), {"version": 1}, _document(accumulator_dtype="fp16"),
    _document(bias_at="output"), _document(instruction="fma"), _document(k="64"),
], ids=lambda d: json.dumps({k: v for k, v in d.items() if _document().get(k, ...) != v})[:60])
def test_what_is_no_record_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        GEMMDesc.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "[]", "3", "null", "{", '"GEMMDesc"'])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        GEMMDesc.from_json(text)


@pytest.mark.parametrize("changes", [
    {"k_summed": 0}, {"k_summed": 65}, {"instruction_k": 0}, {"k_loop_step": 24}, {"row": None}, {"instruction": Instruction.FMA},
    {"row": None, "instruction": Instruction.FMA}, {"accumulator_dtype": DType.FP16}, {"scale_at": "accumulator"}, {"bias_at": "output"},
], ids=str)
def test_a_record_that_contradicts_itself_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        desc(64, **changes)


@pytest.mark.parametrize("cut", [
    {"span": 0}, {"span": 4, "count": 2}, {"span": 4, "layout": CutLayout.STRIDED}, {"span": 4, "layout": CutLayout.STRIDED, "count": 0},
    {"span": 4, "direction": Direction.UP}, {"span": 4, "join": Join.BUTTERFLY},
], ids=str)
def test_a_cut_that_contradicts_itself_is_refused(cut: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        KCut(**cut)  # type: ignore[arg-type]


def test_a_record_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        desc(64).k = 3  # type: ignore[misc]


# The canonical form


def _described(record: GEMMDesc) -> bool:
    """describe does not read a butterfly whose parts are sums of single instructions: no kernel seen has one."""
    return record.use_fast_accum or not any(cut.join is Join.BUTTERFLY for cut in record.k_cuts)


@_SETTINGS
@given(gemm_descs())
def test_describing_a_schedule_gives_the_canonical_record_of_that_schedule(record: GEMMDesc) -> None:
    assume(_described(record))
    plain = canonical(record)
    assert describe(record.schedule(), record.k, record.input_dtype, record.output_dtype) == plain
    assert plain.schedule() == record.schedule()
    assert canonical(plain) == plain
    assert plain.instruction is record.instruction


@settings(_SETTINGS, max_examples=60)
@given(gemm_descs())
def test_every_form_has_the_very_schedule_and_the_canonical_one_comes_first(record: GEMMDesc) -> None:
    assume(_described(record))
    forms = list(forms_of(record.schedule(), record.k, record.input_dtype, record.output_dtype))
    assert forms[0] == canonical(record)
    assert all(form.schedule() == record.schedule() for form in forms)


@_SETTINGS
@given(gemm_descs(), gemm_descs())
def test_records_of_one_schedule_have_one_canonical_form_and_others_do_not(one: GEMMDesc, other: GEMMDesc) -> None:
    assume(_described(one) and _described(other) and one.row == other.row)
    other = replace(other, k=one.k, k_summed=one.k_summed, input_dtype=one.input_dtype, output_dtype=one.output_dtype)
    assert (one.schedule() == other.schedule()) == (canonical(one) == canonical(other))


@pytest.mark.parametrize(("record", "plain"), [
    (desc(576, k_loop_step=64), desc(576)),  # the step divides K: nothing shows it
    (desc(600, k_loop_step=64), desc(600)),  # its short turn is last, where the loop has one anyway
    (desc(600, k_loop_step=64, short_turn=ShortTurn.FIRST), desc(600, k_loop_step=32, short_turn=ShortTurn.FIRST)),  # 24, then 18 of 32
    (desc(576, short_turn=ShortTurn.FIRST), desc(576)),
    (desc(14, k_loop_step=128, short_turn=ShortTurn.FIRST), replace(desc(14), instruction_k=14, k_loop_step=14)),  # one, not full
    (desc(576, k_cuts=(KCut(1408),)), desc(576)),  # the cut is never reached
    (desc(576, k_cuts=(KCut(1408),), partial_dtype=DType.BF16, merge_dtype=DType.BF16), desc(576)),
    (desc(576, partial_dtype=DType.BF16, merge_dtype=DType.BF16), desc(576)),  # dtypes of parts that are not there
    (desc(64, k_cuts=(KCut(8),)), replace(desc(64, use_fast_accum=False), instruction_k=8, k_loop_step=8)),
    (desc(32, k_cuts=(KCut(16, join=Join.BUTTERFLY, direction=Direction.UP),)), desc(32, use_fast_accum=False)),
    (desc(16, use_fast_accum=False), desc(16)),
], ids=lambda r: r.to_json()[:40] if isinstance(r, GEMMDesc) else None)
def test_what_cannot_be_observed_has_its_plain_value(record: GEMMDesc, plain: GEMMDesc) -> None:
    assert record.schedule() == plain.schedule()
    assert canonical(record) == plain


@_SETTINGS
@given(st.integers(17, 400), st.integers(0, 1))
def test_a_chain_of_two_parts_is_a_butterfly_of_two_parts(k: int, up: int) -> None:
    span = -(-k // 2)
    chain = desc(k, k_cuts=(KCut(span),))
    butterfly = desc(k, k_cuts=(KCut(span, join=Join.BUTTERFLY, direction=(Direction.UP, Direction.DOWN)[up]),))
    backward = desc(k, k_cuts=(KCut(span, direction=Direction.BACKWARD),))
    assert canonical(chain) == canonical(butterfly) == canonical(backward)
    three = desc(3 * 32, k_cuts=(KCut(32),))
    assert canonical(three) != canonical(replace(three, k_cuts=(KCut(32, direction=Direction.BACKWARD),)))


def test_the_instruction_is_evidence_and_no_part_of_equality() -> None:
    wgmma, mma_sync = desc(576), desc(576, instruction=Instruction.MMA_SYNC)
    assert wgmma == mma_sync
    assert hash(wgmma) == hash(mma_sync)
    assert canonical(mma_sync).instruction is Instruction.MMA_SYNC
    assert wgmma != desc(576, row=Row(16, 24))


@pytest.mark.parametrize("record", [
    desc(362, use_fast_accum=False, k_cuts=(KCut(152, direction=Direction.BACKWARD),)),  # the last part is a sum of its own
    desc(88, use_fast_accum=False, short_turn=ShortTurn.FIRST, k_cuts=(KCut(24, direction=Direction.BACKWARD),)),  # ... or one instruction
    desc(48, use_fast_accum=False, short_turn=ShortTurn.FIRST, k_loop_step=16, k_cuts=(KCut(40),)),
    desc(318, k_cuts=(KCut(272), KCut(128))),
    desc(291, k_cuts=(KCut(136, join=Join.BUTTERFLY, direction=Direction.DOWN),)),
])
def test_a_last_part_that_looks_like_part_of_its_neighbour_is_still_read(record: GEMMDesc) -> None:
    found = describe(record.schedule(), record.k, record.input_dtype, record.output_dtype)
    assert found is not None and found.schedule() == record.schedule()


def test_parts_of_eight_and_single_instructions_of_eight_are_two_forms_of_one_schedule() -> None:
    term = desc(96, k_cuts=(KCut(8),)).schedule()
    forms = list(forms_of(term, 96, DType.FP16, DType.FP32))
    assert any(f.k_cuts == (KCut(8),) and f.use_fast_accum for f in forms)
    assert any(not f.k_cuts and not f.use_fast_accum and f.instruction_k == 8 for f in forms)


def test_a_schedule_of_no_form_has_no_record() -> None:
    permuted = mma(mma(ZERO, ROW, (Run(16, tuple(range(16))),)), ROW, (Run(0, tuple(range(16))),))
    hole = mma(ZERO, ROW, (run_of((0, 1, 3)),))
    late = part(16, 32)
    uneven = plus(plus(part(0, 16), part(16, 48)), part(48, 64))
    folded_onto = mma(plus(part(0, 16), part(16, 32)), ROW, contiguous_runs(32, 48, 16))
    down = fma(ZERO, tuple(run_of((k,)) for k in (3, 2, 1, 0)))
    for term in (permuted, hole, late, uneven, folded_onto, down):
        assert describe(term, 64, DType.FP16, DType.FP32) is None, term
    assert describe(part(0, 64), 64, DType.FP16, DType.FP16) is None  # ends in fp32
    assert describe(cast(DType.FP16, part(0, 64)), 64, DType.FP16, DType.FP16) is not None


@pytest.mark.parametrize("direction", [Direction.UP, Direction.DOWN])
@pytest.mark.parametrize(("k", "span"), [(98, 24), (600, 120), (513, 72)])
def test_a_butterfly_of_parts_that_are_sums_themselves_is_described(k: int, span: int, direction: Direction) -> None:
    cut = KCut(span, join=Join.BUTTERFLY, direction=direction)
    for others in ({"use_fast_accum": False}, {"k_cuts": (cut, KCut(32))}):
        record = desc(k, **({"k_cuts": (cut,)} | others))
        found = describe(record.schedule(), k, DType.FP16, DType.FP32)
        assert found is not None and found.schedule() == record.schedule()
        assert found.k_cuts[0] == cut or direction is Direction.UP  # neighbours that pair first may also be a chain of twice the span
