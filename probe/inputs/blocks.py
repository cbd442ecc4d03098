"""Seeded rows of A and columns of B that draws are made of: flat, spread, cancelling, at the edge, extreme, tied (DESIGN section 7).

A block is a function of (seed, index, kind) through a counter-based generator (Philox), never of the shape or of time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from probe.errors import UsageError
from probe.formats import bits_dtype, encode_rn, format_of
from probe.inputs.special import pair_lines, sign_lines
from probe.problem import DType


class DrawKind(StrEnum):
    """flat: gaussian. spread: exponents over the accumulator's width, half of them cancelling.

    cancelling: every product meets its negative somewhere on the axis, so that only rounding is left. edge: of every eight neighbours two
    are large and cancel, the other six lie where an instruction cuts its terms beside them, so that what it keeps is left.
    extremes: overflow, Inf, NaN, subnormal results, products that are all -0.0. tie: one step whose exact sum lies a hair below the middle
    of two 16-bit numbers (or a hair above, in a chain), so that how the step rounds decides a 16-bit output, or a part written in 16 bits.
    pair: a tie of two products, the last of all among them. signs: zeros of both signs, products that leave the range of fp32.
    """

    FLAT = "flat"
    SPREAD = "spread"
    CANCELLING = "cancelling"
    EDGE = "edge"
    EXTREMES = "extremes"
    TIE = "tie"
    PAIR = "pair"
    SIGNS = "signs"  # new kinds come last, eight at most: the position of a kind chooses its random stream


# Half the exponent range that a spread draw gives each operand: products then span about the accumulator's 24 (13) bits.
_SPREAD = {DType.FP16: 6, DType.BF16: 6, DType.E4M3: 3}
_KIND_STREAM = {kind: i for i, kind in enumerate(DrawKind)}


@dataclass(frozen=True)
class Block:
    """`rows` different rows of A and `columns` different columns of B, of length k. `extent` is how much of K is summed: pairs that must
    cancel lie within it; 0 is all."""

    rows: int
    columns: int
    k: int
    dtype: DType
    kind: DrawKind
    seed: int
    index: int
    extent: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in _SPREAD:
            raise UsageError(f"no draws are known for {self.dtype} inputs", "fp16, bf16 or e4m3")
        if not 0 <= self.seed < 2**63 or self.index < 0 or self.rows < 1 or self.columns < 1:
            raise UsageError("a draw has a seed in [0, 2**63), an index and at least one distinct row and column")
        if self.extent == 0:
            object.__setattr__(self, "extent", self.k)

    @property
    def values(self) -> int:
        """Numbers in all rows and columns."""
        return (self.rows + self.columns) * self.k

    @cached_property
    def different_rows(self) -> np.ndarray:
        """The different rows of A, raw bits, shape (rows, k)."""
        return self._make(self.rows, side=0)

    @cached_property
    def different_columns(self) -> np.ndarray:
        """The different columns of B, one a row, raw bits, shape (columns, k)."""
        return self._make(self.columns, side=1)

    def _generator(self, stream: int, index: int | None = None, line: int = 0) -> np.random.Generator:
        """One of eight streams of this draw (of draw `index`), from the place of a line on."""
        which = self.index if index is None else index
        key = [self.seed, which * 64 + _KIND_STREAM[self.kind] * 8 + stream]
        return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, line, 0]))

    def _make(self, count: int, side: int) -> np.ndarray:
        rng = self._generator(side)
        if self.kind is DrawKind.FLAT:
            return np.asarray(encode_rn(rng.standard_normal((count, self.k), dtype=np.float32), self.dtype))
        if self.kind is DrawKind.EXTREMES:
            return self._extreme(rng, count, side)
        if self.kind is DrawKind.EDGE:
            return self._edge(rng, count, side)
        if self.kind is DrawKind.TIE:
            return self._tie(rng, count, side)
        if self.kind is DrawKind.PAIR:
            return pair_lines(lambda line: self._generator(4 + side, line=line), self._generator(2), count, self.k, self.extent,
                              self.dtype, self.index, side)
        if self.kind is DrawKind.SIGNS:
            return sign_lines(lambda line: self._generator(4 + side, line=line), count, self.k, self.extent, self.dtype, self.index, side)
        middle = 3 if self.kind is DrawKind.CANCELLING and self.dtype is not DType.E4M3 else 0
        # the rounding errors of a cancelling draw must lie above the subnormals of an fp16 output
        bits = self._even_exponents(rng, count, _SPREAD[self.dtype] if self.kind is DrawKind.SPREAD else 2, middle)
        self._cancel(bits, side)
        return bits

    def _even_exponents(self, rng: np.random.Generator, count: int, half: int, middle: int) -> np.ndarray:
        """Random sign and significand, exponent even over middle - half .. middle + half: composed from random bits, one draw a value."""
        fmt, kind = format_of(self.dtype), bits_dtype(self.dtype)
        raw = rng.integers(0, 1 << fmt.bits, (count, self.k), dtype=kind)
        fraction = raw & kind.type((1 << fmt.fraction_bits) - 1)
        sign = raw & kind.type(fmt.sign_bit)
        spare = fmt.bits - 1 - fmt.fraction_bits  # bits that are neither sign nor fraction choose the exponent
        chosen = ((raw >> fmt.fraction_bits) & kind.type((1 << spare) - 1)).astype(np.uint32)
        exponent = (chosen * (2 * half + 1) >> spare) + (middle - half + 1 - fmt.emin)
        return np.asarray(fraction | sign | (exponent.astype(kind) << fmt.fraction_bits))

    def _edge(self, rng: np.random.Generator, count: int, side: int) -> np.ndarray:
        """A carries the exponents: two of every eight 2**large, the others 2**small and two about it; B lies in [1, 2)."""
        fmt, kind = format_of(self.dtype), bits_dtype(self.dtype)
        large, small = (5, -4) if self.dtype is DType.E4M3 else (12, -11)
        bits = self._even_exponents(rng, count, 2 if side == 0 else 0, small if side == 0 else 0)
        where = self._generator(2)
        starts = np.arange(0, self.extent - 7, 8)
        one = where.integers(0, 8, len(starts))
        other = starts + (one + where.integers(1, 8, len(starts))) % 8
        one = starts + one
        if side == 0:
            keep = kind.type(fmt.sign_bit | (1 << fmt.fraction_bits) - 1)
            bits[:, one] = bits[:, one] & keep | kind.type(large + 1 - fmt.emin << fmt.fraction_bits)
        bits[:, other] = bits[:, one] ^ kind.type(fmt.sign_bit if side == 0 else 0)
        return bits

    @property
    def _sticky(self) -> bool:
        return self.dtype is not DType.E4M3 and self.index % 2 == 1

    def _tie(self, rng: np.random.Generator, count: int, side: int) -> np.ndarray:
        """Three products in one block of eight, zero elsewhere: 1 + odd / 2**(p - 1), half of its last bit, and -2**-f.

        p - 1 is the fraction of the input dtype (which 16-bit outputs share with 16-bit inputs; e4m3 takes fp16 and bf16 in turn), f is
        one below, at, or one above what an instruction keeps beside a term of exponent 0. Columns of B are scaled by signs and powers of
        two. Odd blocks of 16-bit inputs have 1 + even / 2**(p - 1), half of its last bit, and 2**-24 + 2**-27: a step to nearest that cut
        the last bit off sees a tie, and one that kept it does not.
        """
        fmt = format_of(self.dtype)
        fraction = fmt.fraction_bits if self.dtype is not DType.E4M3 else (10, 7)[self.index % 2]
        kept, hair = (13, -5) if self.dtype is DType.E4M3 else (25, -13)
        where = self._generator(2)
        start = 8 * int(where.integers(0, max(1, self.extent // 8)))
        block = min(8, self.extent - start)
        values = np.zeros((count, self.k), np.float32)
        # one line of random numbers a row, so that a row does not depend on how many there are
        odd, shift = rng.integers(0, 2**15, (count, 2)).T
        if block >= 3:
            one, half, last = (start + where.permutation(block)[:3]).tolist()
            e4m3 = self.dtype is DType.E4M3  # four significant bits: the half needs both operands to reach its place
            if side == 0 and self._sticky:
                values[:, one] = 1 + 2 * (odd % 2 ** (fraction - 1)) / 2.0**fraction
                values[:, half] = 2.0 ** -(fraction + 1)
                values[:, last] = 9 * 2.0 ** (-27 - hair)
            elif side == 0:
                values[:, one] = 1 + odd % 8 / 8 if e4m3 else 1 + (2 * (odd % 2 ** (fraction - 1)) + 1) / 2.0**fraction
                values[:, half] = 3 * 2.0**-5 if e4m3 else 2.0 ** -(fraction + 1)
                values[:, last] = -(2.0 ** (shift % 3 - 1 - kept - hair))
            else:
                scale = np.where(odd % 2 == 0, 1.0, -1.0) * 2.0 ** (shift % 3)
                values[:, one] = scale
                values[:, half] = scale * (2.0 ** (4 - fraction) if e4m3 else 1)
                values[:, last] = scale * 2.0**hair
        return np.asarray(encode_rn(values, self.dtype))

    def _cancel(self, bits: np.ndarray, side: int) -> None:
        """Give pairs of indices the same column of B and opposite columns of A: their products cancel exactly."""
        order = self._generator(2).permutation(self.extent)
        half = self.extent // 2 if self.kind is DrawKind.CANCELLING else self.extent // 4
        one, other = order[:half], order[half:2 * half]
        sign = bits.dtype.type(format_of(self.dtype).sign_bit if side == 0 else 0)
        bits[:, other] = bits[:, one] ^ sign

    def _extreme(self, rng: np.random.Generator, count: int, side: int) -> np.ndarray:
        fmt, kind = format_of(self.dtype), bits_dtype(self.dtype)
        bits: np.ndarray = encode_rn(rng.standard_normal((count, self.k), dtype=np.float32), self.dtype)
        nan = kind.type(fmt.nan if self.dtype is DType.E4M3 else fmt.max_bits + 2)
        inf = kind.type(fmt.max_bits + 1) if fmt.has_inf else kind.type(fmt.max_bits)
        sign = kind.type(fmt.sign_bit)
        # The first kind comes from the seed alone: eight draws of one row then hold all eight. Columns are four ahead, so that a draw of
        # one element has a row of -0.0 meet a positive column, and a row of large numbers the large column.
        turn = int(self._generator(3, index=0).integers(0, 8)) + self.index + 4 * side
        for line in range(count):
            which = (turn + line) % 8
            own = self._generator(4 + side, line=line)  # a line does not depend on how many there are
            spots = own.integers(0, self.extent, 3)
            if side == 1:  # columns: plain, positive (keeps a row of -0.0 negative), tiny
                if which == 4 and self.dtype is DType.E4M3:  # large on both sides, or no product overflows an fp16 output
                    bits[line] = kind.type(fmt.max_bits)
                elif which % 3 == 1:
                    bits[line] &= ~sign
                elif which % 3 == 2:
                    bits[line] = self._tiny(own)
            elif which == 0:
                bits[line, spots] = kind.type(fmt.max_bits)
                bits[line] &= ~sign
            elif which == 1:
                bits[line, spots[0]] = inf
            elif which == 2:
                bits[line, spots[0]] = nan
            elif which == 3:
                bits[line] = sign
            elif which == 4:
                bits[line] = self._tiny(own)
            elif which == 5:
                bits[line, spots[0]] = inf
                bits[line, spots[1]] = inf | sign
            elif which == 6:
                bits[line] = kind.type(fmt.max_bits) | (own.integers(0, 2, self.k).astype(kind) * sign)
        return bits

    def _tiny(self, rng: np.random.Generator) -> np.ndarray:
        """Random signs and subnormals of the dtype, some of them zero."""
        fmt, kind = format_of(self.dtype), bits_dtype(self.dtype)
        magnitude = rng.integers(0, 1 << fmt.fraction_bits, self.k).astype(kind)
        return np.asarray(magnitude | (rng.integers(0, 2, self.k).astype(kind) * kind.type(fmt.sign_bit)))
