"""The arithmetic of the matrix instructions: a fused multi-term sum per block, bit for bit (DESIGN section
5b).

Also the two scalar steps that surround it in a GEMM: the fp32 fused multiply-add and the addition of two
partial sums. The table of rows and the treatment of zeros, infinities, NaN and subnormals follow MMA-Sim
2.1.1, whose models were checked on hardware by its authors; `tests/data/mmasim` holds its answers. Values
travel as float32, which holds every fp16, bf16 and e4m3 number exactly.

This module states the arithmetic exactly in integers. `probe.tensorcore_tiles` computes the same bits
faster in numpy where it can prove that no special value occurs; `chain` uses it tile by tile and falls back
to this one.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from probe.errors import UsageError
from probe.formats import Array, array_module, decode, encode_rn, format_of, narrow, widen
from probe.names import DType
from probe.schedule.terms import Row
from probe.tensorcore_tiles import TILE_OUTPUTS, k_first, plan_tile, run_tile, tiles

_AMPERE = Row(8, 24)
_HOPPER = Row(16, 25)
_ROWS: dict[int, dict[DType, Row]] = {
    80: {DType.FP16: _AMPERE, DType.BF16: _AMPERE},
    86: {DType.FP16: _AMPERE, DType.BF16: _AMPERE},
    89: {DType.FP16: _AMPERE, DType.BF16: _AMPERE, DType.E4M3: Row(16, 13, 13)},
    90: {DType.FP16: _HOPPER, DType.BF16: _HOPPER, DType.E4M3: Row(32, 13, 13)},
    100: {DType.FP16: _HOPPER, DType.BF16: _HOPPER, DType.E4M3: Row(32, 25)},
    103: {DType.FP16: _HOPPER, DType.BF16: _HOPPER, DType.E4M3: Row(32, 25)},
}
_MAX_FRACTION_BITS = 40  # the int64 sum of 64 products then stays exact in float64
_SMALL_ITEM = 1 << 13  # outputs of a batch item below which its calls cost more than its arithmetic
_TINY_ITEM = 1 << 8  # outputs of an item below which even the exact path is faster on all items at once than item by item
_SPLIT_STEPS = 64  # steps whose operands are split at once, which costs more than the rest where it is done step by step
Split = tuple[Array, Array]  # significands, exponents
_EXACT_ELEMENTS = 1 << 20  # products held at once by the exact path on a CPU: int64 temporaries of 8 MiB
_EXACT_ELEMENTS_GPU = 1 << 26


def row_for(sm: int, dtype: DType) -> Row:
    """The matrix-instruction row of an SM version (80 for sm_80) and input dtype.

    sm_90 e4m3 is the wgmma row: mma.sync e4m3 on sm_90 is no fp8 unit and has no row. sm_103 is taken as
    sm_100. Raises UsageError where no row was published.
    """
    rows = _ROWS.get(sm)
    if rows is None:
        raise UsageError(f"no matrix-instruction rows for sm_{sm}", "one of " + ", ".join(map(str, _ROWS)))
    row = rows.get(dtype)
    if row is None:
        raise UsageError(f"sm_{sm} has no matrix-instruction row for {dtype}", "one of " + ", ".join(rows))
    return row


def fused_sum(acc: Array, a: Array, b: Array, row: Row, dtype: DType) -> Array:
    """One block step: acc + a @ b as one instruction of `row` sums it. Returns float32 (..., M, N).

    acc float32 (..., M, N); a (..., M, kb) and b (..., kb, N) float32 values of `dtype`, kb <=
    row.products; leading axes broadcast. E is the largest exponent among the nonzero products (exponents of
    the operands added, the product's significand not renormalised, subnormal operands at the format's emin)
    and the accumulator; each term is cut toward zero at row.fraction_bits below 2^E; the terms add exactly;
    the sum is rounded toward zero to row.result_bits fraction bits (subnormal results to the spacing of
    2^-126). A sum of 2^128 or more is an infinity; a zero sum is +0; NaN is 0x7FFFFFFF.
    """
    xp = _check(acc, a, b, row, dtype)
    if a.shape[-1] > row.products:
        raise UsageError(f"{a.shape[-1]} products in one step, the row takes {row.products}", "use chain")
    emin = format_of(dtype).emin
    return _exact_step(xp, acc, a, b, _split(xp, a, emin), _split(xp, b, emin), row)


def chain(acc: Array, a: Array, b: Array, row: Row, dtype: DType, width: int | None = None) -> Array:
    """Blocks of `width` (default: row.products) products in ascending order onto acc; the last block may be
    short.

    Shapes as in `fused_sum`, with any K. The same bits as calling `fused_sum` once per block, at more than
    10^9 products a second on one CPU core for ordinary values.
    """
    xp = _check(acc, a, b, row, dtype)
    width = row.products if width is None else width
    if not 1 <= width <= row.products:
        raise UsageError(f"a step of {width} products, the row takes 1 to {row.products}")
    lead = np.broadcast_shapes(acc.shape[:-2], a.shape[:-2], b.shape[:-2])
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    out = xp.empty((*lead, m, n), xp.float32)
    out[...] = acc
    if not out.size or not k:
        return out
    flat = out.reshape(-1, m, n)
    a3 = xp.broadcast_to(a, (*lead, m, k)).reshape(-1, m, k) if a.ndim > 2 else a[None]
    b3 = xp.broadcast_to(b, (*lead, k, n)).reshape(-1, k, n) if b.ndim > 2 else b[None]
    emin = format_of(dtype).emin
    if xp is not np:
        _chain_exact(xp, flat, a3, b3, row, emin, width, _EXACT_ELEMENTS_GPU)
        return out
    at_once = max(1, TILE_OUTPUTS // (m * n))
    for first in range(0, len(flat), at_once):
        items = slice(first, min(first + at_once, len(flat)))
        a_part, b_part = (x[items] if len(x) > 1 else x for x in (a3, b3))
        _chain_batch(flat[items], a_part, b_part, row, emin, width)
    return out


def fma_step(acc: Array, a: Array, b: Array) -> Array:
    """a * b + acc, rounded once to fp32 to nearest even, subnormals kept (fma.rn.f32). Arrays of float32
    that broadcast.

    The product of two float32 is exact in float64. Its sum with acc is rounded to odd there, which keeps
    the second rounding to fp32 correct (Boldo and Melquiond 2008: two more bits than the result suffice,
    float64 has 29).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return narrow(_sum_to_odd(array_module(acc), widen(a) * widen(b), widen(acc)))


def mul_rn(a: Array, b: Array) -> Array:
    """a * b rounded once to fp32 to nearest even (mul.rn.f32). Arrays of float32 that broadcast."""
    with np.errstate(invalid="ignore"):
        return narrow(widen(a) * widen(b))  # the product is exact in float64


def add_rn(dtype: DType, x: Array, y: Array) -> Array:
    """x + y rounded once to nearest even in `dtype`; float32 arrays in, the rounded values held as float32
    out.
    """
    xp = array_module(x)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype is DType.FP32 and xp is np:
            return canonical_nan(np, x + y)
        total = _sum_to_odd(xp, widen(x), widen(y))
        return decode(encode_rn(total, dtype), dtype)


def _sum_to_odd(xp: ModuleType, x: Array, y: Array) -> Array:
    """x + y in float64, inexact sums rounded to the neighbour with an odd last bit."""
    total = x + y
    shadow = total - x
    error = (x - (total - shadow)) + (y - shadow)
    bits = total.view(xp.int64)
    move = (error != 0) & xp.isfinite(total) & xp.isfinite(error) & ((bits & 1) == 0)
    away = (error > 0) == (total > 0)
    step = xp.where(away, 1, -1)
    return xp.where(move, bits + step, bits).view(xp.float64)


def canonical_nan(xp: ModuleType, values: Array) -> Array:
    bits = values.view(xp.uint32)
    return xp.where(xp.isnan(values), xp.uint32(0x7FFFFFFF), bits).view(xp.float32)


def _check(acc: Array, a: Array, b: Array, row: Row, dtype: DType) -> ModuleType:
    xp = array_module(acc)
    if array_module(a) is not xp or array_module(b) is not xp:
        raise UsageError("the accumulator and both operands must come from one array module")
    if any(x.dtype != np.dtype("f4") for x in (acc, a, b)):
        raise UsageError(f"values travel as float32, got {acc.dtype}, {a.dtype}, {b.dtype}")
    if dtype not in (DType.FP16, DType.BF16, DType.E4M3):
        raise UsageError(f"no matrix-instruction model for {dtype} operands", "fp16, bf16 or e4m3")
    if row.fraction_bits > _MAX_FRACTION_BITS:
        raise UsageError(f"{row} keeps more bits than the model holds exactly", f"<= {_MAX_FRACTION_BITS}")
    if a.shape[-1] != b.shape[-2] or acc.shape[-2:] != (a.shape[-2], b.shape[-1]):
        shapes = f"{acc.shape} += {a.shape} @ {b.shape}"
        raise UsageError(f"shapes do not fit: {shapes}", "(M, N) += (M, K) @ (K, N)")
    return xp


def _chain_batch(acc: Array, a: Array, b: Array, row: Row, emin: int, width: int) -> None:
    """acc (B, M, N) in place: small items side by side where all of them allow the fast path, tiny ones also
    where not, else one by one.
    """
    if len(acc) > 1 and acc.shape[1] * acc.shape[2] < _SMALL_ITEM:
        a_all = np.ascontiguousarray(np.broadcast_to(a, (len(acc), *a.shape[1:])).transpose(2, 0, 1))
        b_all = np.ascontiguousarray(np.broadcast_to(b, (len(acc), *b.shape[1:])).transpose(1, 0, 2))
        ready = plan_tile(acc, a_all, b_all, row, emin, width)
        if ready is not None:
            run_tile(acc, ready, row, width)
            return
        if acc.shape[1] * acc.shape[2] <= _TINY_ITEM:
            _chain_exact(np, acc, a, b, row, emin, width, _EXACT_ELEMENTS)
            return
    for i in range(len(acc)):
        _chain_tiles(acc[i], a[i if len(a) > 1 else 0], b[i if len(b) > 1 else 0], row, emin, width)


def _chain_tiles(acc: Array, a: Array, b: Array, row: Row, emin: int, width: int) -> None:
    """acc (M, N) in place: all of it, or else each tile, on the fast path where the values allow; the rest
    exactly.
    """
    if acc.shape[1] < acc.shape[0] and acc.shape[1] < 512:
        # products and sums commute, and numpy is fast along the last axis: put the longer side there
        turned = np.ascontiguousarray(acc.T)
        _chain_tiles(turned, b.T, a.T, row, emin, width)
        acc[...] = turned.T
        return
    a_first = k_first(a)
    b_first = np.ascontiguousarray(b) if b.strides[-1] == b.itemsize else k_first(b.T)
    whole = plan_tile(acc, a_first, b_first, row, emin, width)
    for rows, columns in tiles(*acc.shape):
        part = acc[rows, columns]
        ready = whole.part(rows, columns) if whole else \
            plan_tile(part, a_first[:, rows], b_first[:, columns], row, emin, width)
        if ready is not None:
            run_tile(part, ready, row, width)
        else:
            a_part, b_part = a[None, rows], b[None, :, columns]
            _chain_exact(np, part[None], a_part, b_part, row, emin, width, _EXACT_ELEMENTS)


def _chain_exact(
    xp: ModuleType, acc: Array, a: Array, b: Array, row: Row, emin: int, width: int, limit: int
) -> None:
    """acc (B, M, N) in place, exactly, in parts of at most `limit` products."""
    batch, m, n = acc.shape
    rows = max(1, min(m, limit // (width * n)))
    items = max(1, min(batch, limit // (width * n * rows)))
    for i in range(0, batch, items):
        a_part = a[i:i + items] if len(a) > 1 else a
        b_part = b[i:i + items] if len(b) > 1 else b
        for r in range(0, m, rows):
            part = acc[i:i + items, r:r + rows]
            for first in range(0, a.shape[-1], _SPLIT_STEPS * width):
                some = slice(first, first + _SPLIT_STEPS * width)
                a_some, b_some = a_part[:, r:r + rows, some], b_part[:, some]
                a_split, b_split = _split(xp, a_some, emin), _split(xp, b_some, emin)
                for k in range(0, a_some.shape[-1], width):
                    ks = slice(k, k + width)
                    a_parts, b_parts = (a_split[0][..., ks], a_split[1][..., ks]), (b_split[0][:, ks], b_split[1][:, ks])
                    part[...] = _exact_step(xp, part, a_some[..., ks], b_some[:, ks], a_parts, b_parts, row)


def _split(xp: ModuleType, values: Array, emin: int) -> Split:
    """float32 to (signed significand with 23 fraction bits, int64; exponent, int32). Zero, Inf, NaN:
    significand 0.
    """
    raw = values.view(xp.int32)
    field = (raw >> 23) & 0xFF
    significand = (raw & 0x7FFFFF) | xp.where(field > 0, 0x800000, 0).astype(xp.int32)
    exponent = xp.maximum(field, 1) - 127
    # a format's subnormal numbers share emin and have leading zeros; the shift drops zero bits only
    lift = xp.minimum(xp.maximum(emin - exponent, 0), 31)
    significand = xp.where(field == 255, 0, significand >> lift).astype(xp.int64)
    return xp.where(raw < 0, -significand, significand), xp.maximum(exponent, emin)


def _exact_step(xp: ModuleType, acc: Array, a: Array, b: Array, a_split: Split, b_split: Split, row: Row) -> Array:
    """The definition, in int64, of operands and what `_split` makes of them. Products have 46 fraction bits before the cut, the
    accumulator 23.
    """
    cut_bits = row.fraction_bits
    (sa, ea), (sb, eb) = a_split, b_split
    sc, ec = _split(xp, acc, -126)
    product = sa[..., :, :, None] * sb[..., None, :, :]
    exponent = ea[..., :, :, None] + eb[..., None, :, :]
    # MMA-Sim: a zero term has exponent -132 (F = 24) or -133 (F = 25); only bf16 products reach so low
    zero = -132 if cut_bits == 24 else -133
    top = xp.maximum(xp.where(product != 0, exponent, zero).max(axis=-2), xp.where(sc != 0, ec, zero))
    total = _cut(xp, product, 46 - cut_bits + top[..., None, :] - exponent).sum(axis=-2)
    total = total + _cut(xp, sc, 23 - cut_bits + top - ec)
    rounded = _round(xp, total, top - cut_bits, row)
    return _with_specials(xp, rounded, acc, a, b)


def _cut(xp: ModuleType, value: Array, right: Array) -> Array:
    """value / 2^right toward zero (left shift where `right` is negative)."""
    magnitude = xp.abs(value)
    down = magnitude >> xp.minimum(xp.maximum(right, 0), 63)
    moved = down << xp.maximum(-right, 0)
    return xp.where(value < 0, -moved, moved)


def _round(xp: ModuleType, total: Array, exponent: Array, row: Row) -> Array:
    """total * 2^exponent as float32, rounded to the row's result bits as the row says; infinity from 2^128
    on.
    """
    value = xp.ldexp(total.astype(xp.float64), exponent.astype(xp.int32))  # exact: |total| < 2^53
    own = ((value.view(xp.int64) >> 52) & 0x7FF) - 1023
    spacing = (xp.maximum(own, -126) - row.result_bits).astype(xp.int32)
    whole = xp.rint if row.nearest else xp.trunc
    value = xp.ldexp(whole(xp.ldexp(value, -spacing)), spacing)
    return narrow(value + 0.0)  # -0 becomes +0; nothing is left to round


def _with_specials(xp: ModuleType, rounded: Array, acc: Array, a: Array, b: Array) -> Array:
    """Replace the elements that an infinity or a NaN reaches: IEEE rules on the signs of the terms."""
    def kind(x: Array) -> Array:  # 0, +-1 for finite numbers, +-inf, nan: products of these cannot overflow
        raw = x.view(xp.int32)
        size = raw & 0x7FFFFFFF
        one = xp.where(size == 0, 0, xp.where(raw < 0, -1, 1)).astype(xp.float32)
        return xp.where(size < 0x7F800000, one, x)

    if xp is np and np.isfinite(acc).all() and np.isfinite(a).all() and np.isfinite(b).all():
        return rounded
    with np.errstate(invalid="ignore"):
        total = (kind(a)[..., :, :, None] * kind(b)[..., None, :, :]).sum(axis=-2) + kind(acc)
    infinite = xp.where(xp.isinf(total), total, rounded)
    return canonical_nan(xp, xp.where(xp.isnan(total), xp.float32(np.nan), infinite).astype(xp.float32))
