"""Rows and columns of the draws that tell like candidates apart: ties of two products, and products at the ends of what fp32 holds.

Each line comes from a generator of its own, so a row does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from probe.formats import bits_dtype, encode_rn, format_of
from probe.problem import DType

Bits = np.ndarray[Any, np.dtype[Any]]
Lines = Callable[[int], np.random.Generator]  # the generator of a line
STYLES = 8


def pair_lines(lines: Lines, where: np.random.Generator, count: int, k: int, extent: int, dtype: DType, index: int, side: int) -> Bits:
    """Two products, zero elsewhere: the middle of two 16-bit numbers, 1 + (odd half-steps), and a hair beside it, which an instruction that
    cuts its terms loses, or that a rounding to nearest loses. Raw bits (count, k).

    16-bit inputs: the middle is 3 * X with one bit more than the dtype's significand, and the hair -2**-f, f about what fp32 and
    instructions keep (even draws), or 2**-24 + 2**-27 (odd draws). e4m3, whose products have eight bits: the hair is the middle itself and
    a 64th of it, for fp16 and bf16 outputs in turn. One after the other the places lie: anywhere and last, in one block of eight,
    anywhere, and the last two.
    """
    values = np.zeros((count, k), np.float32)
    one, last = _places(where, extent, index // 2 % 4)
    for line in range(count):
        rng = lines(line)
        a, b = rng.integers(0, 2**20, 2).tolist()
        sign = 1.0 if b % 2 else -1.0
        if dtype is DType.E4M3:
            fraction = (10, 7)[index % 2]
            mine = (8 + a % 8) / 8, 13 * 2.0**-9
            facing = sign, sign * 5 * 2.0 ** (-3 - fraction + 5)
        else:
            fraction = format_of(dtype).fraction_bits
            low, high = -(-(2 ** (fraction + 1)) // 3), 2 ** (fraction + 2) // 3
            x = low + a % (high - low)
            x += (1 - x if index % 2 == 0 else 3 - x) % 4  # 3 x is 3 (a hair less rounds down) or 1 (a hair more rounds up) modulo 4
            x -= 4 if x > high else 0
            scale = sign * 2.0 ** (b // 2 % 3)
            hair = -(2.0 ** (12 - 23 - a // 4096 % 5)) if index % 2 == 0 else 9 * 2.0 ** (12 - 27)
            mine, facing = (x * 2.0**-fraction, hair), (1.5 * scale, scale * 2.0**-12)
        values[line, one] = (mine, facing)[side][0]
        if last != one:
            values[line, last] = (mine, facing)[side][1]
    return np.asarray(encode_rn(values, dtype))


def _places(where: np.random.Generator, extent: int, turn: int) -> tuple[int, int]:
    one, other, block = (int(where.integers(0, n)) for n in (extent, extent, -(-extent // 8)))
    if turn == 0:
        other = extent - 1
    elif turn == 1:
        one, other = (min(extent - 1, 8 * block + i % 8) for i in (one, other))
    elif turn == 3:
        one, other = max(0, extent - 2), extent - 1
    if one == other:
        one = (other + 1) % extent
    return one, other


def sign_lines(lines: Lines, count: int, k: int, extent: int, dtype: DType, turn: int, side: int) -> Bits:
    """Zeros of both signs, and numbers whose products underflow or overflow fp32 (bf16) or a 16-bit output: eight kinds of rows that meet
    eight kinds of columns. Raw bits (count, k). turn: the kind of the first line; odd turns of bf16 have lone overflows only."""
    if dtype is DType.BF16 and turn % 2:
        return np.stack([_lone_overflow(lines(line), k, extent, side) for line in range(count)])
    return np.stack([_sign_line(lines(line), k, dtype, (turn // 2 + line) % STYLES, side) for line in range(count)])


def _sign_line(rng: np.random.Generator, k: int, dtype: DType, style: int, side: int) -> Bits:
    fmt, kind = format_of(dtype), bits_dtype(dtype)
    signs: Any = np.where(rng.integers(0, 2, k) == 1, -1.0, 1.0)
    plain: Any = 1.0 + rng.random(k)
    spot = int(rng.integers(0, k))
    if dtype is DType.BF16:  # products about 2**-149, the least fp32 number, and about 2**128
        deep = plain * np.exp2(rng.integers(-76, -74, k) - 4 * int(rng.integers(0, 2)))  # or all of them less than half of it
        tiny, huge = plain * np.exp2(rng.integers(-76, -65, k)), plain * np.exp2(rng.integers(62, 65, k))
    else:
        least, most = 2.0 ** (fmt.emin - fmt.fraction_bits), float(2.0**fmt.emax)
        deep = tiny = least * rng.integers(1, 4, k)
        huge = most * np.ones(k)
    if side == 0:
        values = [np.full(k, -0.0), signs * 0.0, signs * rng.integers(0, 2, k), signs * tiny, -deep, signs * huge,
                  np.where(rng.integers(0, 8, k) == 0, huge, plain) * signs, np.where(np.arange(k) == spot, 0.0, -0.0)][style]
    else:
        values = [plain, signs * plain, deep, huge, signs * 0.0, signs * tiny, signs * huge,
                  np.where(np.arange(k) == spot, -plain, plain)][style]
    return np.asarray(encode_rn(np.asarray(values, np.float64), dtype)).astype(kind)


def _lone_overflow(rng: np.random.Generator, k: int, extent: int, side: int) -> Bits:
    """One product of exactly 2**128, all others about -2**110: fused beside any sum of them it is a finite number, rounded first an
    infinity. It lies where a lane may end: among the last 64, at the end of one of some equal parts, or anywhere."""
    if side == 1:
        return np.asarray(encode_rn(np.full(k, 2.0**60 if rng.integers(0, 2) else -(2.0**60)), DType.BF16))
    where, share = int(rng.integers(0, 4)), rng.random()
    parts = int(rng.choice([2, 3, 4, 4, 4, 8]))
    spot = [int(share * extent), extent - 1 - int(share * min(extent, 64)), extent - 1 - int(share * min(extent, 64)),
            -(-extent // parts) * (1 + int(share * parts)) - 1][where]
    values = -(1.0 + rng.random(k)) * 2.0**50
    values[min(spot, extent - 1)] = 2.0**68
    return np.asarray(encode_rn(values, DType.BF16))
