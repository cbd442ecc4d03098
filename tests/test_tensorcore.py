"""The model of the matrix instructions: against MMA-Sim's recorded answers, and the fast path against the
exact one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probe.errors import UsageError
from probe.formats import FORMATS, decode, encode_rn
from probe.names import DType
from probe.schedule.terms import Row
from probe.tensorcore import add_rn, chain, fma_step, fused_sum, row_for
from probe.tensorcore_tiles import plan_tile
from tools.mmasim_vectors import INSTRUCTIONS, OPERAND_CLASSES, SEED, digest, file_name, operands

DATA = Path(__file__).parent / "data" / "mmasim"
ROWS = [(sm, dtype) for sm, dtype in INSTRUCTIONS]


def steps(acc, a, b, row, dtype, width=None):
    width = width or row.products
    for k in range(0, a.shape[-1], width):
        acc = fused_sum(acc, a[..., k:k + width], b[..., k:k + width, :], row, dtype)
    return acc


def differing(x, y):
    return int((np.ascontiguousarray(x).view(np.uint32) != np.ascontiguousarray(y).view(np.uint32)).sum())


def bell(rng, shape, dtype, reach=0):
    values = np.ldexp(rng.standard_normal(shape), rng.integers(-reach, reach + 1, shape))
    return decode(encode_rn(values, dtype), dtype)


@pytest.mark.parametrize(("sm", "dtype"), ROWS, ids=[f"sm{s}-{d}" for s, d in ROWS])
@pytest.mark.parametrize("operand_class", OPERAND_CLASSES)
def test_every_recorded_vector_of_mmasim_bit_for_bit(sm, dtype, operand_class):
    with np.load(DATA / file_name(sm, dtype)) as file:
        assert int(file["seed"]) == SEED and str(file["mmasim"]) == "2.1.1"
        want, sha = file[operand_class], str(file[operand_class + ".sha256"])
    a_bits, b_bits, c_bits = operands(sm, dtype, operand_class)
    assert digest(a_bits, b_bits, c_bits) == sha, "the inputs are not those that MMA-Sim saw"
    assert want.size >= 10_000
    a, b, c = decode(a_bits, dtype), decode(b_bits, dtype), decode(c_bits, DType.FP32)
    row = row_for(sm, dtype)
    assert differing(steps(c, a, b, row, dtype), want) == 0
    assert differing(chain(c, a, b, row, dtype), want) == 0


def test_recorded_vectors_tell_the_rows_apart():
    # a model with one bit more, or blocks of half the size, must fail the same vectors that the right row
    # passes
    a_bits, b_bits, c_bits = operands(90, DType.FP16, "flat")
    a, b, c = decode(a_bits, DType.FP16), decode(b_bits, DType.FP16), decode(c_bits, DType.FP32)
    right = steps(c, a, b, row_for(90, DType.FP16), DType.FP16)
    for other in (Row(16, 24), Row(16, 26), Row(8, 25), Row(16, 25, 13)):
        assert differing(steps(c, a, b, other, DType.FP16), right) > 0


@pytest.mark.parametrize(("sm", "dtype"), ROWS, ids=[f"sm{s}-{d}" for s, d in ROWS])
@pytest.mark.parametrize(("m", "k", "n"), [(37, 200, 300), (1, 333, 9), (70, 64, 5), (5, 40, 1100)])
def test_fast_path_equals_exact_path(sm, dtype, m, k, n):
    rng = np.random.default_rng([sm, m, n])
    row = row_for(sm, dtype)
    for reach in (0, 3):
        a, b = bell(rng, (m, k), dtype, reach), bell(rng, (k, n), dtype, reach)
        a[rng.random(a.shape) < 0.3] = 0  # whole blocks of zero products, too
        a[0, : k // 2] = -0.0
        acc = np.where(rng.random((m, n)) < 0.5, 0, bell(rng, (m, n), DType.FP32)).astype(np.float32)
        assert plan_tile(acc, a.T, b, row, FORMATS[dtype].emin, 8) is not None
        for width in (row.products, row.products - 3):
            assert differing(chain(acc, a, b, row, dtype, width), steps(acc, a, b, row, dtype, width)) == 0


def test_fast_path_at_the_edge_of_int32():
    # 16 products of the largest significand at one exponent come within 2^21 of 2^31, and the accumulator
    # passes it
    row = row_for(90, DType.FP16)
    a = np.full((3, 48), 2 - 2.0**-10, np.float32)
    a[1] *= -1
    b = np.full((48, 600), 2 - 2.0**-10, np.float32)
    acc = np.full((3, 600), 1.9999999, np.float32)
    acc[1] *= -1
    assert differing(chain(acc, a, b, row, DType.FP16), steps(acc, a, b, row, DType.FP16)) == 0


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38, 1e-42, -1e-30, -0.0])
def test_values_that_leave_the_fast_path_give_the_exact_bits(value):
    rng = np.random.default_rng(5)
    row = row_for(90, DType.BF16)
    a, b = bell(rng, (20, 64), DType.BF16), bell(rng, (64, 33), DType.BF16)
    acc = bell(rng, (20, 33), DType.FP32)
    stored = decode(encode_rn(np.array([value], np.float32), DType.BF16), DType.BF16)[0]
    for target in (a, b, acc):
        kept = target.copy()
        target[3, 5] = stored if target is not acc else value
        assert differing(chain(acc, a, b, row, DType.BF16), steps(acc, a, b, row, DType.BF16)) == 0
        target[...] = kept


def test_batch_axes_broadcast():
    rng = np.random.default_rng(6)
    row = row_for(90, DType.FP16)
    a, b = bell(rng, (4, 1, 7, 40), DType.FP16), bell(rng, (3, 40, 11), DType.FP16)
    got = chain(np.zeros((7, 11), np.float32), a, b, row, DType.FP16)
    assert got.shape == (4, 3, 7, 11)
    alone = chain(np.zeros((7, 11), np.float32), a[2, 0], b[1], row, DType.FP16)
    assert differing(got[2, 1], alone) == 0


def test_numpy_settings_are_put_back():
    before = np.getbufsize()
    chain(np.zeros((4, 512), np.float32), np.ones((4, 16), np.float32), np.ones((16, 512), np.float32),
          row_for(90, DType.FP16), DType.FP16)
    assert np.getbufsize() == before


def test_tiny_accumulators_under_zero_products():
    # nothing but the accumulator counts, and 13 bits of it stay: the exponent codes must not lift it out of
    # sight
    row = row_for(90, DType.E4M3)
    acc = np.float32([[2.0**-120 * 1.2345678, -(2.0**-60) * 1.7654321, 2.0**-140, -0.0, 2.0**-3 * 1.1]])
    a, b = np.zeros((1, 64), np.float32), np.ones((64, 5), np.float32)
    got = chain(acc, a, b, row, DType.E4M3)
    assert differing(got, steps(acc, a, b, row, DType.E4M3)) == 0
    assert got[0, 0] == np.float32(np.floor(1.2345678 * 2**13) * 2.0**-133)
    assert got[0, 2] == 0 and not np.signbit(got[0, 3])


@pytest.mark.parametrize("dtype", [DType.FP16, DType.E4M3])
def test_negative_zero_becomes_positive(dtype):
    a, b = np.full((2, 32), -0.0, np.float32), np.ones((32, 300), np.float32)
    got = chain(np.full((2, 300), -0.0, np.float32), a, b, row_for(90, dtype), dtype)
    assert not got.view(np.uint32).any()


def test_an_infinity_hidden_by_small_partners():
    # the exponents of inf (128) and of its partners (-45) add to a number that looks ordinary
    rng = np.random.default_rng(9)
    row = row_for(90, DType.BF16)
    a = np.ldexp(1 + rng.integers(0, 100, (4, 32)) / 128, 30).astype(np.float32)
    b = np.ldexp(1 + rng.integers(0, 100, (32, 6)) / 128, -45).astype(np.float32)
    a[2, 7] = np.inf
    acc = np.zeros((4, 6), np.float32)
    got = chain(acc, a, b, row, DType.BF16)
    assert np.isinf(got[2]).all() and differing(got, steps(acc, a, b, row, DType.BF16)) == 0


def test_fma_rounds_once():
    # (1 + 2^-23)(1 - 2^-23) = 1 - 2^-46. Half a step of 1 + 2^-23, less 2^-70, is no tie; in float64 it
    # becomes one.
    odd = 1 + 2.0**-23
    acc = np.float32([odd, odd, -odd, -odd, 1])
    a = np.float32([2.0**-24 * odd, -(2.0**-24) * odd, -(2.0**-24) * odd, 2.0**-24 * odd, 2.0**-24])
    b = np.float32([1 - 2.0**-23] * 4 + [1])
    assert fma_step(acc, a, b).tolist() == [odd, odd, -odd, -odd, 1]
    nan = fma_step(np.float32([np.inf]), np.float32([-np.inf]), np.float32([1]))
    assert nan.view(np.uint32)[0] == 0x7FFFFFFF


def test_addition_in_a_narrow_type_rounds_once():
    # 1 + 2^-11 is a tie of fp16; 2^-60 more or less decides it, and float64 would lose that
    x = np.float32([1 + 2.0**-11, 1 + 2.0**-10 + 2.0**-11, 2048])
    y = np.float32([2.0**-60, -(2.0**-60), 1 + 2.0**-23])
    assert add_rn(DType.FP16, x, y).tolist() == [1 + 2.0**-10, 1 + 2.0**-10, 2050]
    assert add_rn(DType.FP32, np.float32([1]), np.float32([2.0**-24])).tolist() == [1]


def test_mistakes_are_refused():
    ones = np.ones((2, 2), np.float32)
    with pytest.raises(UsageError, match="no matrix-instruction row"):
        row_for(80, DType.E4M3)
    with pytest.raises(UsageError, match="sm_75"):
        row_for(75, DType.FP16)
    with pytest.raises(UsageError, match="no matrix-instruction model"):
        fused_sum(ones, ones, ones, row_for(90, DType.FP16), DType.FP32)
    with pytest.raises(UsageError, match="shapes do not fit"):
        chain(ones, ones, np.ones((3, 2), np.float32), row_for(90, DType.FP16), DType.FP16)
    with pytest.raises(UsageError, match="float32"):
        chain(ones, ones.astype(np.float64), ones, row_for(90, DType.FP16), DType.FP16)
