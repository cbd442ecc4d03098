"""The two executors of rounding schedules against each other, on random schedules and on values of every
kind.
"""

from __future__ import annotations

import numpy as np
import pytest

from probe.errors import UsageError
from probe.formats import FORMATS, bits_dtype, decode, encode_rn
from probe.names import DType
from probe.schedule.terms import (
    ZERO,
    Add,
    Call,
    Fold,
    Mul,
    Row,
    Run,
    add,
    cast,
    contiguous_runs,
    fma,
    fold,
    mma,
    run_of,
    shift,
)
from probe.simulator import execute, execute_exact
from probe.simulator.sparse import kept_indices
from probe.tensorcore import row_for

K, BASE = 64, 24  # schedules start within BASE indices, the copies of nested folds reach further
HELD = (DType.FP32, DType.FP16, DType.BF16)
NARROW = (DType.FP16, DType.BF16, DType.E4M3)


def random_runs(rng, width):
    kind = rng.integers(3)
    if kind == 0:
        start = int(rng.integers(0, BASE))
        return contiguous_runs(start, int(rng.integers(start + 1, BASE + 12)), width)
    if kind == 1:
        return (run_of(tuple(int(k) for k in rng.choice(BASE, size=min(width, 5), replace=False))),)
    return (Run(int(rng.integers(0, 6)), (0, 2)[: min(2, width)], 3, 5),)


def random_term(rng, dtype, depth):
    kind = int(rng.integers(8)) if depth else int(rng.integers(3))
    row = (Row(8, 24), row_for(90, dtype), row_for(100, dtype), Row(4, 13, 13), Row(8, 13))[rng.integers(5)]
    if kind == 0 and dtype is not DType.FP32:
        return mma(ZERO, row, random_runs(rng, int(rng.integers(1, row.products + 1))))
    if kind <= 1:
        return fma(ZERO, contiguous_runs(0, int(rng.integers(1, 8)), 1))
    if kind == 2:
        return Mul(int(rng.integers(BASE)))
    below = random_term(rng, dtype, depth - 1)
    held = HELD[rng.integers(3)]
    if kind == 3:
        return add(held, below, random_term(rng, dtype, depth - 1))
    if kind == 4:
        return cast(held, below)
    if kind == 5:
        return fma(below, contiguous_runs(3, int(rng.integers(4, 9)), 1))
    if kind == 6:
        return mma(below, row, random_runs(rng, row.products))
    body = random_term(rng, dtype, depth - 1)
    count, advance = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    return fold(below, held, body, count, advance)


def random_bits(rng, shape, dtype, flavour):
    form = FORMATS[dtype]
    if flavour == "flat":
        return encode_rn(rng.standard_normal(shape), dtype)
    codes = rng.integers(0, 1 << form.bits, shape)
    if flavour == "tiny":  # around the smallest normal number; for bf16 such that fp32 results are subnormal
        low = form.emin if dtype is not DType.BF16 else -75
        return encode_rn(rng.standard_normal(shape) * 2.0**low, dtype)
    if flavour == "large":
        top = form.emax if dtype is not DType.BF16 else 63
        return encode_rn(np.clip(rng.standard_normal(shape), -1.7, 1.7) * 2.0**top, dtype)
    if flavour == "zeros":
        some = encode_rn(rng.standard_normal(shape), dtype)
        return np.where(rng.random(shape) < 0.8, codes & form.sign_bit, some).astype(bits_dtype(dtype))
    return codes.astype(bits_dtype(dtype))  # any bits: infinities and NaN, too


@pytest.mark.parametrize("flavour", ["flat", "tiny", "large", "zeros", "any"])
@pytest.mark.parametrize("dtype", NARROW)
def test_fast_and_exact_executor_agree(dtype, flavour):
    rng = np.random.default_rng([list(NARROW).index(dtype), len(flavour)])
    differ_by_order = 0
    for _ in range(25):
        term = random_term(rng, dtype, 3)
        a, b = random_bits(rng, (2, K), dtype, flavour), random_bits(rng, (K, 3), dtype, flavour)
        got = execute(term, a, b, dtype)
        want = [[execute_exact(term, a[i], b[:, j], dtype) for j in range(3)] for i in range(2)]
        assert got.tolist() == want, term
        differ_by_order += got.tolist() != execute(term, np.roll(a, 1, 1), b, dtype).tolist()
    assert differ_by_order  # the values do reach the outputs


def test_fp32_operands_run_through_fused_multiply_adds():
    rng = np.random.default_rng(3)
    term = add(DType.FP32, fma(ZERO, contiguous_runs(0, 24, 1)), fma(Mul(24), contiguous_runs(25, 40, 1)))
    a, b = (random_bits(rng, s, DType.FP32, "flat") for s in ((3, 40), (40, 4)))
    want = [[execute_exact(term, a[i], b[:, j], DType.FP32) for j in range(4)] for i in range(3)]
    assert execute(term, a, b, DType.FP32).tolist() == want


@pytest.mark.parametrize("dtype", (DType.FP32, *NARROW))
def test_exact_reads_and_writes_what_formats_does(dtype):
    from probe.simulator.exact import read, write

    codes = np.arange(1 << FORMATS[dtype].bits) if dtype is not DType.FP32 else \
        np.random.default_rng(1).integers(0, 1 << 32, 5000)
    values = decode(codes.astype(bits_dtype(dtype)), dtype)
    back = encode_rn(values, dtype)
    for code, value, again in zip(codes.tolist()[::7], values.tolist()[::7], back.tolist()[::7], strict=True):
        number = read(code, dtype)
        assert number.nan == (value != value) and write(number, dtype) == again
        if not number.nan and not number.infinite:
            assert float(number.value) == value


def test_a_fold_is_its_copies_added_left_to_right():
    rng = np.random.default_rng(4)
    a, b = (random_bits(rng, s, DType.FP16, "flat") for s in ((33, 1056), (1056, 29)))
    part = mma(ZERO, row_for(90, DType.FP16), contiguous_runs(0, 88, 16))
    by_fold = fold(part, DType.FP16, shift(part, 88), 11, 88)
    assert isinstance(by_fold, Fold)
    total = part
    for t in range(1, 12):
        total = Add(DType.FP16, total, shift(part, 88 * t))
    assert np.array_equal(execute(by_fold, a, b, DType.FP16), execute(total, a, b, DType.FP16))


def test_folds_nest():
    rng = np.random.default_rng(8)
    a, b = (random_bits(rng, s, DType.BF16, "flat") for s in ((3, 128), (128, 2)))
    part = mma(ZERO, row_for(90, DType.BF16), contiguous_runs(0, 8, 4))
    inner = Fold(part, DType.FP32, shift(part, 8), 3, 8)
    outer = Fold(inner, DType.BF16, shift(inner, 32), 3, 32)
    want = [[execute_exact(outer, a[i], b[:, j], DType.BF16) for j in range(2)] for i in range(3)]
    assert execute(outer, a, b, DType.BF16).tolist() == want


def test_result_does_not_depend_on_tiling(monkeypatch):
    import sys

    from probe.simulator import execute as module_function
    module = sys.modules["probe.simulator.execute"]
    rng = np.random.default_rng(5)
    a, b = (random_bits(rng, s, DType.BF16, "flat") for s in ((2, 1, 20, 640), (3, 640, 18)))
    part = mma(ZERO, row_for(90, DType.BF16), contiguous_runs(0, 128, 16))
    term = cast(DType.BF16, fold(part, DType.FP32, shift(part, 128), 4, 128))
    whole = module_function(term, a, b, DType.BF16)
    assert whole.shape == (2, 3, 20, 18) and whole.dtype == np.uint16
    assert np.array_equal(whole[1, 2], module_function(term, a[1, 0], b[2], DType.BF16))
    for name, value in (("_TILE_OUTPUTS", 700), ("_TILE_OPERAND", 4000), ("_GATHER", 3000)):
        monkeypatch.setattr(module, name, value)
    assert np.array_equal(module_function(term, a, b, DType.BF16), whole)


def test_a_long_sum_does_not_recurse():
    term = Mul(0)
    for k in range(1, 3000):
        term = Add(DType.FP32, term, Mul(k % 7))
    ones = np.full((2, 7), 0x3C00, np.uint16)
    assert (decode(execute(term, ones, ones.T, DType.FP16), DType.FP32) == 3000).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", NARROW)
def test_cupy_gives_the_bits_of_numpy(dtype):
    cupy = pytest.importorskip("cupy")
    rng = np.random.default_rng(11)
    for flavour in ("flat", "tiny", "large", "zeros", "any"):
        for _ in range(10):
            term = random_term(rng, dtype, 3)
            a, b = random_bits(rng, (5, K), dtype, flavour), random_bits(rng, (K, 6), dtype, flavour)
            got = execute(term, cupy.asarray(a), cupy.asarray(b), dtype)
            assert np.array_equal(cupy.asnumpy(got), execute(term, a, b, dtype)), term


def test_named_functions_are_given_by_the_caller():
    a, b = np.full((2, 4), 0x4000, np.uint16), np.full((4, 2), 0x3C00, np.uint16)
    term = cast(DType.FP16, Call("halve", (fma(ZERO, contiguous_runs(0, 4, 1)),)))
    got = execute(term, a, b, DType.FP16, {"halve": lambda x: x / 2})
    assert decode(got, DType.FP16).tolist() == [[4, 4], [4, 4]]
    with pytest.raises(UsageError, match="halve"):
        execute(term, a, b, DType.FP16)


def test_mistakes_are_refused():
    a, b = np.zeros((2, 8), np.uint16), np.zeros((8, 2), np.uint16)
    with pytest.raises(UsageError, match="K = 8"):
        execute(Mul(8), a, b, DType.FP16)
    with pytest.raises(UsageError, match="do not fit"):
        execute(Mul(0), a, a, DType.FP16)
    with pytest.raises(UsageError, match="uint8"):
        execute(Mul(0), a, b, DType.E4M3)
    with pytest.raises(UsageError):
        execute(Mul(0), a, b, DType.E5M2)


@pytest.mark.parametrize(("dtype", "scale"), [(DType.FP16, 1.0), (DType.BF16, 1.0),
                                               pytest.param(DType.BF16, 2.0**-75, marks=pytest.mark.slow)])
def test_zeros_of_a_long_sum_are_left_out_without_a_change_of_bits(dtype: DType, scale: float) -> None:
    """Zeros of both signs, tiny bf16 products that round to -0; lanes, slices, folds. A row of ones makes every index be added."""
    rng = np.random.default_rng(8)
    k = 40_000
    lanes = [fma(ZERO, (Run(j, (0,), 10_000, 4),)) for j in range(4)]
    slices = [fma(ZERO, (Run(8 * j, tuple(range(8)), 2500, 16),)) for j in range(2)]
    chunk = fma(ZERO, (Run(0, (0,), 100, 1),))
    terms = [add(DType.FP32, add(DType.FP32, lanes[0], lanes[2]), add(DType.FP32, lanes[1], lanes[3])), add(DType.FP32, *slices),
             fold(chunk, DType.FP32, shift(chunk, 100), 399, 100), cast(DType.FP16, fold(cast(DType.FP16, chunk), DType.FP32,
             cast(DType.FP16, shift(chunk, 100)), 399, 100)), fma(ZERO, (Run(0, (0,), k, 1),))]
    a, b = np.zeros((2, k), np.float32), np.where(rng.integers(0, 2, (k, 2)) == 0, 1.0, -1.0).astype(np.float32) * np.float32(scale)
    for row in a:
        spots = rng.integers(0, k, 60)
        row[spots] = rng.standard_normal(60) * np.exp2(rng.integers(-8, 9, 60)) * scale
        row[spots[:20]] = -row[spots[20:40]]
    a[1] = np.where(a[1] == 0, np.float32(-0.0), a[1])
    a, b = encode_rn(a, dtype), encode_rn(b, dtype)
    full = np.concatenate([a, encode_rn(np.ones((1, k), np.float32), dtype)])
    for term in terms:
        assert kept_indices(term, a, b, dtype) is not None or term is terms[3]
        assert kept_indices(term, full, b, dtype) is None
        assert (execute(term, a, b, dtype) == execute(term, full, b, dtype)[:2]).all()


def test_an_infinity_beside_zeros_is_not_left_out():
    a, b = np.zeros((1, 40_000), np.uint16), np.full((40_000, 1), 0x3C00, np.uint16)
    b[7] = 0x7C00  # infinity times zero
    got = execute(fma(ZERO, (Run(0, (0,), 40_000, 1),)), a, b, DType.FP16)
    assert np.isnan(decode(got, DType.FP32)).all()
