"""Draws and probe operands: the same bits from the same seed, and in them exactly what their kind promises."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from probe.errors import UsageError
from probe.formats import decode, format_of
from probe.inputs import Axis, Draw, DrawKind, Pair, ProbeOperands, pair_for, paper_pair
from probe.problem import DType
from probe.schedule import ZERO, cast, contiguous_runs, fma, mma
from probe.simulator import execute
from probe.tensorcore import row_for

DTYPES = (DType.FP16, DType.BF16, DType.E4M3)
dtypes = pytest.mark.parametrize("dtype", DTYPES)
kinds = pytest.mark.parametrize("kind", list(DrawKind))


def draw(dtype: DType, kind: DrawKind, index: int = 0, **others: int) -> Draw:
    values = {"m": 6, "n": 5, "k": 96, "seed": 7} | others
    return Draw.of(dtype=dtype, kind=kind, index=index, **values)  # type: ignore[arg-type]


def values(bits: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a NaN stays one, whatever numpy says about converting it
        return np.asarray(decode(bits, dtype), np.float64)


def exact_sum(a: np.ndarray, b: np.ndarray) -> Fraction:
    return sum((Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)), Fraction(0))


# What a draw is a function of


@dtypes
@kinds
def test_the_same_seed_gives_the_same_bits_and_another_gives_others(dtype: DType, kind: DrawKind) -> None:
    one, again = draw(dtype, kind), draw(dtype, kind)
    assert np.array_equal(one.a(np), again.a(np)) and np.array_equal(one.b(np), again.b(np))
    assert one.a_key == again.a_key and one.b_key == again.b_key
    for other in (draw(dtype, kind, seed=8), draw(dtype, kind, index=1)):
        assert not np.array_equal(one.a(np), other.a(np))
        assert not np.array_equal(one.b(np), other.b(np))
        assert one.a_key != other.a_key and one.b_key != other.b_key


@dtypes
def test_kinds_and_sides_share_no_random_numbers(dtype: DType) -> None:
    square = [draw(dtype, kind, m=6, n=6) for kind in DrawKind]
    blocks = [d.a(np) for d in square] + [d.b(np) for d in square]
    assert len({b.tobytes() for b in blocks}) == len(blocks)
    made_alike = [draw(dtype, kind, m=6, n=6, k=960).b(np) for kind in (DrawKind.SPREAD, DrawKind.CANCELLING, DrawKind.EDGE)]
    fractions = [b & b.dtype.type((1 << format_of(dtype).fraction_bits) - 1) for b in made_alike]
    assert all((x == y).mean() < 0.3 for i, x in enumerate(fractions) for y in fractions[:i])


@dtypes
@pytest.mark.parametrize("kind", [DrawKind.FLAT, DrawKind.SPREAD, DrawKind.CANCELLING, DrawKind.EDGE])
def test_the_shape_of_the_output_only_says_how_many_rows_and_columns(dtype: DType, kind: DrawKind) -> None:
    small, large = draw(dtype, kind, m=3, n=2), draw(dtype, kind, m=40, n=50)
    assert np.array_equal(large.a(np)[:3], small.a(np))
    assert np.array_equal(large.b(np)[:2], small.b(np))


@dtypes
@kinds
def test_nothing_global_is_drawn_from(dtype: DType, kind: DrawKind) -> None:
    np.random.seed(1)
    state = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    draw(dtype, kind).a(np)
    assert np.array_equal(state, np.random.get_state()[1])  # type: ignore[index]


@kinds
def test_rows_repeat_beyond_the_distinct_ones(kind: DrawKind) -> None:
    d = draw(DType.FP16, kind, m=10, n=7, distinct=4)
    assert (len(d.rows), len(d.columns), d.elements) == (4, 4, 16)
    a, b = d.a(np), d.b(np)
    assert a.shape == (10, 96) and b.shape == (7, 96)
    assert np.array_equal(a, d.block.different_rows[np.arange(10) % 4]) and np.array_equal(b, d.block.different_columns[np.arange(7) % 4])
    assert len(np.unique(a, axis=0)) == 4
    assert np.array_equal(d.a(np, np.array([9, 2, 2])), a[[9, 2, 2]]) and np.array_equal(d.b(np, np.array([6, 0])), b[[6, 0]])


def test_a_draw_that_cannot_be_is_refused() -> None:
    for changes in ({"dtype": DType.FP32}, {"seed": -1}, {"seed": 2**63}, {"index": -1}, {"distinct": 0}):
        with pytest.raises(UsageError):
            draw(**({"dtype": DType.FP16, "kind": DrawKind.FLAT} | changes))  # type: ignore[arg-type]


# What each kind promises


@dtypes
@pytest.mark.parametrize("extent", [96, 88, 61])
def test_every_product_of_a_cancelling_draw_meets_its_negative(dtype: DType, extent: int) -> None:
    d = draw(dtype, DrawKind.CANCELLING, extent=extent)
    a, b = values(d.a(np), dtype)[:, :extent], values(d.b(np), dtype)[:, :extent]
    assert np.isfinite(a).all() and np.isfinite(b).all()
    for row in a:
        for column in b:
            products = row * column  # exact: two significands of 11 bits at most
            sizes = {p: (products == p).sum() - (products == -p).sum() for p in np.abs(products)}
            lone = [p * sign for p, sign in sizes.items() if sign]
            assert sum(abs(sign) for sign in sizes.values()) == extent % 2  # an odd one out has no partner
            assert exact_sum(row, column) == sum(map(Fraction, lone), Fraction(0))
    assert len(np.unique(np.abs(a[0]))) > 8  # and not because all were alike


@dtypes
def test_half_of_a_spread_draw_cancels_and_the_rest_does_not(dtype: DType) -> None:
    d = draw(dtype, DrawKind.SPREAD, extent=88)
    a, b = d.a(np), d.b(np)
    sign = format_of(dtype).sign_bit
    columns = {}
    for k in range(d.k):
        columns.setdefault((a[:, k].tobytes(), b[:, k].tobytes()), []).append(k)
    partner = [columns.get(((a[:, k] ^ a.dtype.type(sign)).tobytes(), b[:, k].tobytes()), []) for k in range(d.k)]
    assert sum(map(bool, partner)) == 2 * (88 // 4)
    assert all(not p for p in partner[88:])


@pytest.mark.parametrize(("dtype", "least"), [(DType.FP16, 20), (DType.BF16, 20), (DType.E4M3, 10)])
def test_products_of_a_spread_draw_span_about_the_accumulator(dtype: DType, least: int) -> None:
    d = draw(dtype, DrawKind.SPREAD, k=4096, m=2, n=2)
    products = values(d.a(np), dtype)[0] * values(d.b(np), dtype)[0]
    assert np.isfinite(products).all() and (products != 0).all()
    exponents = np.frexp(np.abs(products))[1]
    assert least <= exponents.max() - exponents.min() <= least + 6
    assert abs((products < 0).mean() - 0.5) < 0.05


@dtypes
@pytest.mark.parametrize("extent", [96, 92])
def test_two_of_eight_neighbours_of_an_edge_draw_are_large_and_cancel(dtype: DType, extent: int) -> None:
    d = draw(dtype, DrawKind.EDGE, extent=extent)
    a, b = values(d.a(np), dtype), values(d.b(np), dtype)
    assert ((np.abs(b) >= 1) & (np.abs(b) < 2)).all()
    cut_short = 0
    cut = 25 if dtype is not DType.E4M3 else 13  # what an instruction of sm_90 keeps below its largest term (DESIGN section 5b)
    for start in range(0, extent - 7, 8):
        row, column = a[0, start:start + 8], b[0, start:start + 8]
        one, other = sorted(np.argsort(-np.abs(row))[:2])
        for line in a[:, start:start + 8]:
            assert line[one] == -line[other]
        assert (b[:, start + one] == b[:, start + other]).all()
        small = np.delete(np.abs(row * column), [one, other])
        large = abs(row[one] * column[one])
        # the six lie about the place where the instruction cuts: it keeps some of each, and what it keeps is not all
        unit = 2.0 ** (np.floor(np.log2(np.abs(row[one]))) + np.floor(np.log2(np.abs(column[one]))) - cut)
        assert (small < large).all()
        assert (small >= unit / 4).all()
        cut_short += bool((np.trunc(small / unit) != small / unit).any())
    assert cut_short >= extent // 8 // 3


@dtypes
def test_edge_draws_put_the_large_ones_in_every_place(dtype: DType) -> None:
    d = draw(dtype, DrawKind.EDGE, k=1024)
    row = np.abs(values(d.a(np), dtype)[0]).reshape(-1, 8)
    assert {int(i) for i in np.argsort(-row, axis=1)[:, :2].ravel()} == set(range(8))


@pytest.mark.parametrize(("dtype", "index", "fraction", "kept"), [
    (DType.FP16, 0, 10, 25), (DType.FP16, 2, 10, 25), (DType.BF16, 0, 7, 25), (DType.E4M3, 0, 10, 13), (DType.E4M3, 1, 7, 13)])
def test_a_tie_draw_lies_a_hair_beside_the_middle_of_two_outputs(dtype: DType, index: int, fraction: int, kept: int) -> None:
    d = draw(dtype, DrawKind.TIE, index, m=24, n=12, seed=9)
    a, b = values(d.a(np), dtype), values(d.b(np), dtype)
    where = np.nonzero(a[0])[0]
    assert len(where) == 3 and where.min() // 8 == where.max() // 8  # one block of the narrowest instruction
    hairs = set()
    for row in a:
        for column in b:
            assert set(np.nonzero(row)[0]) == set(np.nonzero(column)[0]) == set(where)
            products = sorted((Fraction(float(row[k])) * Fraction(float(column[k])) for k in where), key=abs)
            hair, middle = products[0], products[1] + products[2]
            scale = Fraction(2) ** int(np.floor(np.log2(abs(float(middle)))))
            assert (abs(middle) / scale * 2 ** (fraction + 1)) % 2 == 1  # halfway between two numbers of `fraction` bits
            assert hair * middle < 0
            hairs.add(-int(np.log2(abs(float(hair / scale)))))
    assert hairs == {kept - 1, kept, kept + 1}  # kept by the instruction, its last bit, and lost


@pytest.mark.parametrize(("dtype", "fraction"), [(DType.FP16, 10), (DType.BF16, 7)])
def test_an_odd_tie_draw_shows_whether_a_step_to_nearest_kept_its_last_bit(dtype: DType, fraction: int) -> None:
    d = draw(dtype, DrawKind.TIE, 1, m=24, n=12, seed=9)
    a, b = values(d.a(np), dtype), values(d.b(np), dtype)
    ks = np.nonzero(a[0])[0]
    for row in a:
        for column in b:
            products = sorted((Fraction(float(row[k])) * Fraction(float(column[k])) for k in ks), key=abs)
            total = sum(products)
            scale = Fraction(2) ** int(np.floor(np.log2(abs(float(total)))))
            middle = abs(products[1] + products[2]) / scale
            assert (middle * 2 ** (fraction + 1)) % 4 == 1  # a tie, whose even neighbour is the lower one
            assert abs(total) / scale - middle == Fraction(9, 2**27)  # half an fp32 unit and a hair, which a cut at 25 bits loses


def test_tie_draws_tell_an_fma_chain_from_a_step_to_nearest_that_cuts() -> None:
    """Recorded on the H200: 3461x1288x7 fp16 (ALGO_ID 56) kept both before ties of this kind were drawn."""
    chain = cast(DType.FP16, fma(ZERO, contiguous_runs(0, 7, 1)))
    cuts = cast(DType.FP16, mma(ZERO, replace(row_for(90, DType.FP16), nearest=True), contiguous_runs(0, 7, 1)))
    differing = 0
    for index in range(16):
        d = Draw.of(8, 8, 7, DType.FP16, DrawKind.TIE, 3, index)
        one, other = (execute(term, d.a(np), d.b(np).T, DType.FP16) for term in (chain, cuts))
        differing += int((one != other).sum())
    assert differing


def _kind_of_extreme_row(bits: np.ndarray, dtype: DType) -> str:
    form = format_of(dtype)
    row = values(bits[None], dtype)[0]
    magnitude = bits & bits.dtype.type(form.sign_bit - 1)
    negative = bits != magnitude
    largest = magnitude == form.max_bits
    inf = magnitude == form.max_bits + 1 if form.has_inf else largest  # e4m3 has no infinity: its largest number stands in
    if np.isnan(row).any():
        return "nan"
    if (bits == form.sign_bit).all():
        return "all -0.0"
    if (magnitude < 1 << form.fraction_bits).all():
        return "subnormal" if magnitude.any() else "zero"
    if largest.all():
        return "largest, both signs" if 0 < negative.sum() < len(row) else "largest"
    if largest.any() and not negative.any():
        return "large and positive"
    if inf.any():
        return "+inf and -inf" if 0 < negative[inf].sum() < inf.sum() else "one inf"
    return "ordinary"


_ALL_EXTREMES = {"nan", "all -0.0", "subnormal", "largest, both signs", "+inf and -inf", "one inf", "large and positive", "ordinary"}


@dtypes
@pytest.mark.parametrize("index", range(8))
def test_eight_rows_of_an_extreme_draw_hold_every_kind_of_extreme_row(dtype: DType, index: int) -> None:
    kinds_of_rows = [_kind_of_extreme_row(row, dtype) for row in draw(dtype, DrawKind.EXTREMES, index=index, m=8).a(np)]
    if "+inf and -inf" not in kinds_of_rows:  # the two may fall on one index
        kinds_of_rows.append("+inf and -inf")
    assert set(kinds_of_rows) == _ALL_EXTREMES


@dtypes
@pytest.mark.parametrize("kind", [k for k in DrawKind if k not in (DrawKind.FLAT,)])
def test_a_row_does_not_depend_on_how_many_there_are(dtype: DType, kind: DrawKind) -> None:
    few, many = (draw(dtype, kind, m=m, n=m, distinct=16) for m in (3, 11))
    assert np.array_equal(few.block.different_rows, many.block.different_rows[:3])
    assert np.array_equal(few.block.different_columns, many.block.different_columns[:3])


def test_eight_extreme_draws_of_one_row_hold_every_kind_of_extreme_row() -> None:
    for seed in range(4):
        rows = [draw(DType.FP16, DrawKind.EXTREMES, index=index, m=1, seed=seed).a(np)[0] for index in range(8)]
        assert {_kind_of_extreme_row(row, DType.FP16) for row in rows} == _ALL_EXTREMES


@pytest.mark.parametrize(("dtype", "output"), [(DType.FP16, DType.FP16), (DType.FP16, DType.FP32), (DType.BF16, DType.BF16),
                                               (DType.E4M3, DType.FP16)])
def test_extreme_draws_give_every_extreme_output(dtype: DType, output: DType) -> None:
    single = cast(output, mma(ZERO, row_for(90, dtype), contiguous_runs(0, 96, row_for(90, dtype).products)))
    seen = set()
    for index in range(8):
        d = draw(dtype, DrawKind.EXTREMES, index=index, m=8, n=8)
        a, b = d.a(np), d.b(np)
        minus = format_of(dtype).sign_bit
        if ((a[:, None] == minus).all(axis=2) & (b[None] < minus).all(axis=2)).any():
            seen.add("all products -0.0")
        bits = execute(single, a, b.T, dtype)
        out = values(bits, output)
        form = format_of(output)
        magnitude = bits & bits.dtype.type(form.sign_bit - 1)
        seen |= {"nan"} if np.isnan(out).any() else set()
        seen |= {"inf"} if np.isinf(out).any() else set()
        seen |= {"subnormal"} if ((magnitude > 0) & (magnitude < 1 << form.fraction_bits)).any() else set()
    want = {"all products -0.0", "nan", "inf", "subnormal"}
    if output is DType.FP32 or dtype is DType.BF16:
        want.discard("subnormal")  # the least product is far above the least normal fp32 (fp16), or below the least subnormal (bf16)
    assert seen >= want


# Probe operands


@dtypes
def test_a_pair_is_what_the_walk_needs_it_to_be(dtype: DType) -> None:
    pair = pair_for(dtype)
    large, large_other, unit, unit_other = (
        float(decode(np.array([bits], f"u{dtype.itemsize}"), dtype)[0])
        for bits in (pair.large, pair.large_other, pair.unit, pair.unit_other))
    assert unit * unit_other == pair.unit_value
    product = large * large_other
    # all units that may reach a leg lie below the place where an sm_90 instruction cuts beside L (DESIGN section 5b)
    cut = 13 if dtype is DType.E4M3 else 25
    assert pair.most_units * pair.unit_value < product * 2.0**-cut or pair.both
    # and where parts are added to nearest, below half the spacing of fp32 under L
    assert pair.most_units * pair.unit_value < product * 2.0**-24 / 2 or dtype is not DType.E4M3
    assert pair.both == (dtype is DType.E4M3)


def test_there_is_no_pair_for_fp32() -> None:
    with pytest.raises(UsageError):
        pair_for(DType.FP32)


EXPERIMENTS = np.array([[3, 9, 0, 16], [-1, -1, 4, 8], [15, 0, 2, 2], [7, 6, 5, 12]], np.int64)
PLACES = np.array([1, 4, 0, 6])
FACING = np.array([2, 0, 5, 1])
MASK = np.arange(16) % 3 != 1


def _expected(pair: Pair, large: int, unit: int, sign: int, experiment: np.ndarray, mask: np.ndarray | None) -> list[int]:
    plus, minus, lo, hi = experiment.tolist()
    line = []
    for k in range(16):
        if k == plus:
            line.append(large)
        elif k == minus:
            line.append(large | sign)
        else:
            line.append(unit if lo <= k < hi and (mask is None or mask[k]) else 0)
    return line


@pytest.mark.parametrize("mask", [None, MASK], ids=["everywhere", "masked"])
@pytest.mark.parametrize(("axis", "pair"), [
    (Axis.ROWS, pair_for(DType.FP16)), (Axis.COLUMNS, pair_for(DType.FP16)), (Axis.ROWS, pair_for(DType.BF16)),
    (Axis.COLUMNS, pair_for(DType.BF16)), (Axis.DIAGONAL, pair_for(DType.E4M3)), (Axis.ROWS, paper_pair())])
def test_pairs_and_units_stand_where_the_experiment_puts_them(axis: Axis, pair: Pair, mask: np.ndarray | None) -> None:
    operands = ProbeOperands(8, 7, 16, pair, axis, EXPERIMENTS, PLACES, FACING, mask)
    a, b = operands.a(np), operands.b(np)
    assert a.shape == (8, 16) and b.shape == (7, 16) and a.itemsize == b.itemsize == pair.dtype.itemsize
    sign = 1 << (8 * pair.dtype.itemsize - 1)
    want = {int(p): _expected(pair, pair.large, pair.unit, sign, e, mask) for p, e in zip(PLACES, EXPERIMENTS, strict=True)}
    carrier = b if axis is Axis.COLUMNS else a
    for line, got in enumerate(carrier.tolist()):
        assert got == want.get(line, [0] * 16), line
    if axis is Axis.DIAGONAL:  # the facing operand carries the magnitudes, all positive
        facing = {int(p): _expected(pair, pair.large_other, pair.unit_other, 0, e, mask) for p, e in zip(FACING, EXPERIMENTS, strict=True)}
        for line, got in enumerate(b.tolist()):
            assert got == facing.get(line, [0] * 16), line
    else:
        assert (np.unique(a if axis is Axis.COLUMNS else b) == pair.unit_other).all()
    chosen = np.array([6, 1, 3])
    assert np.array_equal(operands.a(np, chosen), a[chosen]) and np.array_equal(operands.b(np, chosen), b[chosen])


def test_the_operand_that_carries_nothing_is_named_alike_in_every_launch() -> None:
    pair = pair_for(DType.FP16)
    one = ProbeOperands(8, 7, 16, pair, Axis.ROWS, EXPERIMENTS, PLACES, FACING)
    other = ProbeOperands(8, 7, 16, pair, Axis.ROWS, EXPERIMENTS[::-1].copy(), PLACES, FACING)
    assert one.b_key == other.b_key and np.array_equal(one.b(np), other.b(np))
    assert one.a_key != other.a_key and not np.array_equal(one.a(np), other.a(np))


@pytest.mark.parametrize("changes", [
    {"experiments": EXPERIMENTS[:, :3]}, {"experiments": EXPERIMENTS[:3]}, {"facing": FACING[:2]}, {"axis": Axis.DIAGONAL},
    {"experiments": np.where(EXPERIMENTS == 15, 16, EXPERIMENTS)}, {"experiments": np.where(EXPERIMENTS == 16, 17, EXPERIMENTS)},
    {"experiments": EXPERIMENTS - 2}, {"pair": pair_for(DType.E4M3)},
], ids=lambda c: next(iter(c)))
def test_experiments_that_do_not_fit_are_refused(changes: dict[str, object]) -> None:
    fitting = ProbeOperands(8, 7, 16, pair_for(DType.FP16), Axis.ROWS, EXPERIMENTS, PLACES, FACING)
    with pytest.raises(UsageError):
        replace(fitting, **changes)  # type: ignore[arg-type]
