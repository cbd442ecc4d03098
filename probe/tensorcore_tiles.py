"""The fast path of `probe.tensorcore.chain`: one tile of outputs, numpy, float32 and int32 in cache-sized
buffers.

`plan_tile` looks at the values of a tile once and proves that neither infinities, NaN, overflow nor results
below 2^-126 can occur, or returns None. `run_tile` then computes the same bits as the exact path. Per
product it costs six passes: multiply; add the exponents (uint8) and take their maximum; scale by a power of
two; cut; sum. Numbers measured with numpy 2.4 on one core of a Sapphire Rapids server stand beside the
choices they decided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.schedule.terms import Row

Floats = np.ndarray[Any, np.dtype[np.float32]]
Codes = np.ndarray[Any, np.dtype[np.uint8]]
Array = np.ndarray[Any, Any]

TILE_OUTPUTS = 65536  # float32 outputs of a tile: 256 KiB
_PART_PRODUCTS = 1 << 17  # products in flight: 512 KiB, in a 2 MiB L2
_PART_CODES = 1 << 18  # exponent codes in flight, 256 KiB
_INNER = 1024  # columns of a tile, more where the result has few rows
_SMALL_BUFFER = 256
_HIGHEST = 90  # exponent of a product: 2^24 of them stay below 2^120
_START_HIGHEST = 100  # exponent of the accumulator a tile starts from


@dataclass(frozen=True, slots=True)
class ReadyTile:
    """Operands of a tile, checked, laid out to multiply into (steps, rows, M, N); their exponent codes;
    `floor`.

    A matrix gives each of its rows an entry of the axis `rows` (a: (K, rows, 1, 1), b: (K, 1, 1, N)), a
    batch each of its items (a: (K, items, M, 1), b: (K, items, 1, N)). A code is the exponent plus an
    offset, 0 for a zero; the two offsets add to 127, so the sum of two codes is the biased exponent of
    their product. A sum in which one factor is zero is at most `floor`, so every exponent is lifted to at
    least `floor`, which plan_tile has shown to move no cut that loses a bit. `joins_in_int32`: the sum of a
    step's cut products and the accumulator is proven to stay in int32.
    """

    a: Floats
    b: Floats
    a_codes: Codes
    b_codes: Codes
    floor: int
    joins_in_int32: bool

    def part(self, rows: slice, columns: slice) -> ReadyTile:
        """A block of a matrix."""
        a, a_codes = self.a[:, rows], self.a_codes[:, rows]
        b, b_codes = self.b[..., columns], self.b_codes[..., columns]
        return ReadyTile(a, b, a_codes, b_codes, self.floor, self.joins_in_int32)


def tiles(m: int, n: int) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of every tile of an (M, N) result."""
    columns = min(n, max(_INNER, TILE_OUTPUTS // m))
    rows = max(1, min(m, TILE_OUTPUTS // columns))
    for i in range(0, m, rows):
        for j in range(0, n, columns):
            yield slice(i, min(i + rows, m)), slice(j, min(j + columns, n))


def k_first(values: Floats) -> Floats:
    """(M, K) as a contiguous (K, M). In strips: a plain copy of a transposed 4096x1024 misses the cache at
    every element.
    """
    m, k = values.shape
    out = np.empty((k, m), np.float32)
    for i in range(0, m, 32):
        out[:, i:i + 32] = values[i:i + 32].T
    return out


def plan_tile(acc: Floats, a: Floats, b: Floats, row: Row, emin: int, width: int) -> ReadyTile | None:
    """The operands of acc += a @ b made ready, or None where the fast path cannot be proven.

    Shapes acc (M, N), a (K, M), b (K, N); or acc (B, M, N), a (K, B, M), b (K, B, N). `emin` is the
    exponent of the operands' subnormals, `width` the products of a step.

    Why `floor` (as exponent Z) is safe, with lo the lowest exponent of a nonzero product, lo >= Z (asked
    here): a step with a nonzero product has E >= lo >= Z, untouched. In a step of zero products only acc
    matters. It has an exponent >= Z (start values do, asked here), untouched; or it lies below 2^Z and is a
    multiple of 2^(lo - F), so it has at most F bits, of which neither cut loses one.
    Why no number leaves the normal float32: floor > F (asked here) means Z >= -101 for F <= 25, so the
    smallest bit of a product, the scales 2^(F - E) and every nonzero result 2^(E - F) lie within
    2^-126 .. 2^127; products of at most 2^_HIGHEST and start values below 2^_START_HIGHEST bound the sums.
    """
    if row.nearest or row.fraction_bits > 25 or a.shape[0] > 1 << 24:
        return None
    a_low, a_high = _range(a, emin)
    b_low, b_high = _range(b, emin)
    if a_high > 127 or b_high > 127:  # infinity or NaN
        return None
    low, high = a_low + b_low, a_high + b_high
    a_offset = (127 + b_high - a_high) // 2  # both code ranges end as low as they can together
    b_offset = 127 - a_offset
    floor = max(a_high + a_offset, b_high + b_offset)
    if a_low + a_offset < 1 or b_low + b_offset < 1 or high > _HIGHEST:
        return None
    if low < floor - 127 or floor <= row.fraction_bits:
        return None
    if acc.any():
        start_low, start_high = _range(acc, -126)
        if start_low < floor - 127 or start_high >= _START_HIGHEST:
            return None
    a_codes, b_codes = _codes(a, emin, a_offset), _codes(b, emin, b_offset)
    joins = _joins(a, b, row, width)
    if acc.ndim == 2:
        a, a_codes, b, b_codes = a[..., None], a_codes[..., None], b[:, None], b_codes[:, None]
    return ReadyTile(a[..., None], b[:, :, None], a_codes[..., None], b_codes[:, :, None], floor, joins)


def _magnitudes(values: Floats) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return values.view(np.uint32) & np.uint32(0x7FFFFFFF)


def _range(values: Floats, emin: int) -> tuple[int, int]:
    """The lowest and highest exponent of the nonzero values, (0, 0) for none; 128 stands for infinity and
    NaN.
    """
    size = _magnitudes(values)
    high = int(size.max())
    if high == 0:
        return 0, 0
    size -= np.uint32(1)  # a zero becomes the largest number
    low = int(size.min()) + 1
    return max((low >> 23) - 127, emin), max((high >> 23) - 127, emin)


def _codes(values: Floats, emin: int, offset: int) -> Codes:
    size = _magnitudes(values)
    codes = (size >> np.uint32(23)).astype(np.uint8)
    np.maximum(codes, np.uint8(emin + 127), out=codes)
    np.add(codes, np.uint8((offset - 127) % 256), out=codes)  # modulo 256
    np.multiply(codes, (size != 0).view(np.uint8), out=codes)
    return codes


def _joins(a: Floats, b: Floats, row: Row, width: int) -> bool:
    """Whether |sum of a step's products| + |acc| < 2^31 in units of 2^(E - F), where acc < 2^(F + 1).

    Products lie below 2^(F + 2) each. Where that does not decide, Cauchy and Schwarz do: a sum of products of
    significands is at most the root of the product of the two sums of squares.
    """
    limit = 2.0 ** (31 - row.fraction_bits) - 2  # of a sum of products of significands
    if width * 4 <= limit:
        return True
    return _squares(a, width) * _squares(b, width) < (0.999 * limit) ** 2


def _squares(values: Floats, width: int) -> float:
    """The largest sum of squared significands (below 2 each) over a step; float32 error below 1e-5 of it."""
    bits = values.view(np.uint32) & np.uint32(0x7FFFFF)
    bits |= np.uint32(0x3F800000)
    significands = bits.view(np.float32)
    significands *= significands
    return float(np.add.reduceat(significands, np.arange(0, len(values), width), axis=0).max())


def run_tile(acc: Floats, tile: ReadyTile, row: Row, width: int) -> None:
    """Run all steps of a ready tile, `width` products each; acc (M, N) or (items, M, N) float32 is
    replaced.
    """
    # With the default buffer of 8192 elements numpy copies broadcast operands whose rows are shorter: 0.6
    # ns a product against 0.16. The setting belongs to this context and is put back.
    before = np.setbufsize(_SMALL_BUFFER) if acc.shape[-1] >= _SMALL_BUFFER else None
    try:
        work = np.ascontiguousarray(acc)
        shaped = work.reshape(work.shape[0], -1, work.shape[-1])
        _Worker(shaped.shape, row, width, tile.joins_in_int32).run(shaped, tile)
        if work is not acc:
            acc[...] = work
    finally:
        if before is not None:
            np.setbufsize(before)


class _Worker:
    """The buffers of one tile and the steps over them. The accumulator is (rows, M, N), worked `part` rows
    at a time.
    """

    def __init__(self, shape: tuple[int, ...], row: Row, width: int, joins_in_int32: bool) -> None:
        rows, m, n = shape
        part = max(1, min(rows, _PART_PRODUCTS // (m * n * width)))
        code_part = max(1, min(rows, _PART_CODES // (m * n * width)))
        self.row, self.width, self.part, self.code_part = row, width, part, code_part
        # |sum| <= terms * 2^(F + 2), strictly: whatever fits 24 bits is exact in float32, 31 bits in int32
        self.in_floats = (width << (row.fraction_bits + 2)) + (2 << row.fraction_bits) <= 1 << 24
        self.halves = 1 if joins_in_int32 else -(-(width << (row.fraction_bits + 2)) // (1 << 31))
        self.products = np.empty(width * part * m * n, np.float32)
        self.codes = np.empty((width, code_part, m, n), np.uint8)
        self.top_codes = np.empty(shape, np.uint8)
        self.top = np.empty(shape, np.uint32)
        self.scale = np.empty(shape, np.uint32)
        self.held = np.empty(shape, np.float32)
        self.sums = np.empty((self.halves, *shape), np.float32 if self.in_floats else np.int32)
        self.total = np.empty(shape, np.float64)

    def run(self, acc: Floats, tile: ReadyTile) -> None:
        depth = tile.a.shape[0]
        for start in range(0, depth, self.width):
            self.step(acc, tile, slice(start, min(start + self.width, depth)))

    def step(self, acc: Floats, tile: ReadyTile, ks: slice) -> None:
        bits, kept = self.row.fraction_bits, self.row.result_bits
        self.find_top(acc, tile, ks)
        # 2^(F - E) as float32 bits: biased exponent F - (code - 127) + 127
        np.subtract(np.uint32(((bits + 254) << 23) & 0xFFFFFFFF), self.top, out=self.scale)
        scale = self.scale.view(np.float32)
        self.sum_products(tile, ks, scale)
        np.multiply(acc, scale, out=self.held)
        if self.in_floats:
            np.trunc(self.held, out=self.held)
            np.add(self.held, self.sums[0], out=self.held)
            held_bits = self.held.view(np.uint32)
            np.bitwise_and(held_bits, np.uint32(0xFFFFFFFF << (23 - kept) & 0xFFFFFFFF), out=held_bits)
            np.divide(self.held, scale, out=acc)  # by a power of two: exact
            np.add(acc, np.float32(0), out=acc)  # whatever zero a sum of -0 starts from: +0
            return
        held_cut = self.top.view(np.int32)  # the bits of E are spent
        np.copyto(held_cut, self.held, casting="unsafe")  # float to int cuts toward zero
        if tile.joins_in_int32:
            np.add(held_cut, self.sums[0], out=held_cut)
            np.copyto(self.total, held_cut)
        else:
            np.copyto(self.total, held_cut)
            for half in self.sums:
                np.add(self.total, half, out=self.total)
        total_bits = self.total.view(np.uint64)
        mask = np.uint64(0xFFFFFFFFFFFFFFFF << (52 - kept) & 0xFFFFFFFFFFFFFFFF)
        np.bitwise_and(total_bits, mask, out=total_bits)
        np.copyto(acc, self.total, casting="unsafe")  # exact: at most 24 bits are left
        np.divide(acc, scale, out=acc)

    def find_top(self, acc: Floats, tile: ReadyTile, ks: slice) -> None:
        """E of every output as the bits of the float32 2^E."""
        for rows in _parts(len(acc), self.code_part):
            codes = self.codes[:ks.stop - ks.start, :rows.stop - rows.start]
            np.add(*_operands(tile.a_codes, tile.b_codes, ks, rows), out=codes)
            np.maximum.reduce(codes, axis=0, out=self.top_codes[rows], initial=tile.floor)
        np.copyto(self.top, self.top_codes)
        np.left_shift(self.top, np.uint32(23), out=self.top)
        np.bitwise_and(acc.view(np.uint32), np.uint32(0x7F800000), out=self.scale)
        np.maximum(self.top, self.scale, out=self.top)

    def sum_products(self, tile: ReadyTile, ks: slice, scale: Floats) -> None:
        """The cut products of every output, summed exactly: float32 or int32 in units of 2^(E - F)."""
        count = ks.stop - ks.start
        for rows in _parts(len(scale), self.part):
            shape = (count, rows.stop - rows.start, *scale.shape[1:])
            flat = self.products[:math.prod(shape)]
            products = flat.reshape(shape)
            np.multiply(*_operands(tile.a, tile.b, ks, rows), out=products)
            np.multiply(products, scale[rows], out=products)
            if self.in_floats:
                np.trunc(products, out=products)
                np.add.reduce(products, axis=0, out=self.sums[0, rows])
                continue
            cuts = flat.view(np.int32)
            np.copyto(cuts, flat, casting="unsafe")  # in place: numpy makes no copy of flat arrays
            cuts = cuts.reshape(shape)
            for h in range(self.halves):
                lot = cuts[h * self.width // self.halves:(h + 1) * self.width // self.halves]
                np.add.reduce(lot, axis=0, out=self.sums[h, rows])


def _parts(rows: int, part: int) -> Iterator[slice]:
    for r in range(0, rows, part):
        yield slice(r, min(r + part, rows))


def _operands(a: Array, b: Array, ks: slice, rows: slice) -> tuple[Array, Array]:
    return a[ks, rows], b[ks, rows] if b.shape[1] > 1 else b[ks]
