"""Number formats against ml_dtypes and numpy, on every 8- and 16-bit pattern and on values around each
rounding border.
"""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from probe.errors import UsageError
from probe.formats import FORMATS, array_module, bits_dtype, decode, encode_rn, format_of
from probe.names import DType

PEERS = {DType.FP16: np.float16, DType.BF16: ml_dtypes.bfloat16, DType.E4M3: ml_dtypes.float8_e4m3fn}


def all_bits(dtype):
    return np.arange(1 << FORMATS[dtype].bits).astype(bits_dtype(dtype))


@pytest.mark.parametrize("dtype", PEERS)
def test_every_pattern_decodes_to_the_value_of_its_peer(dtype):
    bits = all_bits(dtype)
    got, want = decode(bits, dtype), bits.view(PEERS[dtype]).astype(np.float32)
    nan = np.isnan(want)
    assert (np.isnan(got) == nan).all()
    assert (got.view(np.uint32)[~nan] == want.view(np.uint32)[~nan]).all()


@pytest.mark.parametrize("dtype", PEERS)
def test_encode_undoes_decode(dtype):
    bits = all_bits(dtype)
    values = decode(bits, dtype)
    nan = np.isnan(values)
    for kind in (np.float32, np.float64):
        with np.errstate(invalid="ignore"):  # signalling NaN
            wide = values.astype(kind)
        back = encode_rn(wide, dtype)
        assert (back[~nan] == bits[~nan]).all()
        assert (back[nan] == FORMATS[dtype].nan).all()


@pytest.mark.parametrize("dtype", PEERS)
def test_borders_round_to_nearest_even_once(dtype):
    form = FORMATS[dtype]
    low = np.arange(form.max_bits, dtype=np.int64).astype(bits_dtype(dtype))
    lower, upper = decode(low, dtype).astype(np.float64), decode(low + 1, dtype).astype(np.float64)
    middle = (lower + upper) / 2  # one bit more than the format has: exact
    even = np.where(low % 2 == 0, low, low + 1)
    assert (encode_rn(middle, dtype) == even).all()
    # a float64 just beside the border must not pass through a float32 that lies on it
    assert (encode_rn(np.nextafter(middle, np.inf), dtype) == low + 1).all()
    assert (encode_rn(np.nextafter(middle, 0.0), dtype) == low).all()
    assert (encode_rn(-middle, dtype) == (even | form.sign_bit)).all()
    as_single = middle.astype(np.float32)
    exact = as_single == middle  # not so between the smallest bf16 subnormals: they need float64
    assert exact.sum() > 100 and (encode_rn(as_single[exact], dtype) == even[exact]).all()


@pytest.mark.parametrize("dtype", PEERS)
def test_random_float32_values_round_as_the_peer_does(dtype):
    values = np.random.default_rng(1).integers(0, 1 << 32, 300_000, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        want = values.astype(PEERS[dtype]).view(bits_dtype(dtype))
    got, nan = encode_rn(values, dtype), np.isnan(values)
    assert (got[~nan] == want[~nan]).all()


def test_overflow():
    big = np.array([1e30, -1e30, np.inf, -np.inf])
    assert encode_rn(big, DType.FP16).tolist() == [0x7C00, 0xFC00, 0x7C00, 0xFC00]
    assert encode_rn(big * 1e20, DType.BF16).tolist() == [0x7F80, 0xFF80, 0x7F80, 0xFF80]
    assert encode_rn(big * 1e20, DType.FP32).tolist() == [0x7F800000, 0xFF800000, 0x7F800000, 0xFF800000]
    assert encode_rn(big, DType.E4M3).tolist() == [0x7F, 0xFF, 0x7F, 0xFF]
    # 464 is half a step above the largest number, 448, whose last bit is even
    assert encode_rn(np.array([448.0, 464.0, 464.5]), DType.E4M3).tolist() == [0x7E, 0x7E, 0x7F]


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_table_describes_the_patterns(dtype):
    form = FORMATS[dtype]
    ends = np.array([form.max_bits, 1 << form.fraction_bits], bits_dtype(dtype))
    largest, smallest = decode(ends, dtype).tolist()
    assert Fraction(smallest) == Fraction(2) ** form.emin
    assert Fraction(2) ** form.emax <= Fraction(largest) < Fraction(2) ** (form.emax + 1)
    assert np.isnan(decode(np.array([form.nan], bits_dtype(dtype)), dtype)).all()


def test_mistakes_are_refused():
    with pytest.raises(UsageError, match="uint16"):
        decode(np.zeros(3, np.uint8), DType.FP16)
    with pytest.raises(UsageError, match="float32 or float64"):
        encode_rn(np.zeros(3, np.int32), DType.FP16)
    with pytest.raises(UsageError, match="e5m2"):
        format_of(DType.E5M2)
    with pytest.raises(UsageError, match="numpy or cupy"):
        array_module([1.0])
