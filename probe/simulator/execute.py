"""Execute a rounding schedule on whole matrices, bit for bit, with numpy or cupy arrays.

Values travel as float32, which holds every dtype of a schedule exactly. The copies of a fold run side by
side as one leading axis and are then added left to right, so that a split of K costs no Python loop over
its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np

from probe.errors import UsageError
from probe.formats import Array, array_module, bits_dtype, decode, encode_rn
from probe.names import DType
from probe.schedule.terms import Add, Call, Cast, Fma, Fold, Mma, Mul, Run, Term, Zero, dtype_of
from probe.simulator.lane_chain import even_lanes, lane_chain
from probe.simulator.sparse import Kept, kept_indices
from probe.tensorcore import add_rn, canonical_nan, chain, fma_step, mul_rn

Indices = np.ndarray[Any, np.dtype[np.int64]]
Functions = Mapping[str, Callable[..., Array]]

_TILE_OUTPUTS = 1 << 22  # outputs evaluated together, copies of a fold included: 16 MiB a value
_TILE_OPERAND = 1 << 26  # elements of one decoded operand: 256 MiB
_GATHER = 1 << 24  # elements of one gathered operand: 64 MiB


def execute(
    schedule: Term, a_bits: Array, b_bits: Array, input_dtype: DType, functions: Functions | None = None
) -> Array:
    """The bits of every output element, summed as `schedule` says.

    a_bits (..., M, K) and b_bits (..., K, N) are raw bits of `input_dtype` (uint8, uint16 or uint32;
    leading axes broadcast), numpy or cupy alike. Returns raw bits (..., M, N) in the dtype that the
    schedule ends in (fp32 unless its last term names another). `functions` maps the names of Call terms to
    functions on float32 arrays. Raises UsageError for shapes that do not fit, a K shorter than the schedule
    reaches, a Call without its function and dtypes without a model.
    """
    xp = array_module(a_bits)
    if array_module(b_bits) is not xp:
        raise UsageError("both operands must come from one array module")
    if a_bits.ndim < 2 or b_bits.ndim < 2 or a_bits.shape[-1] != b_bits.shape[-2]:
        raise UsageError(
            f"operands do not fit: {a_bits.shape} and {b_bits.shape}", "(..., M, K) and (..., K, N)")
    for bits in (a_bits, b_bits):
        if bits.dtype != bits_dtype(input_dtype):
            raise UsageError(f"raw {input_dtype} bits are {bits_dtype(input_dtype)}, got {bits.dtype}")
    m, k, n = a_bits.shape[-2], a_bits.shape[-1], b_bits.shape[-1]
    reach = _reach(schedule)
    if reach > k:
        raise UsageError(f"the schedule reaches index {reach - 1}, the operands have K = {k}")
    lead = np.broadcast_shapes(a_bits.shape[:-2], b_bits.shape[:-2])
    a_bits = a_bits.reshape((1,) * (len(lead) - a_bits.ndim + 2) + a_bits.shape)
    b_bits = b_bits.reshape((1,) * (len(lead) - b_bits.ndim + 2) + b_bits.shape)
    out_dtype = dtype_of(schedule)
    kept = kept_indices(schedule, a_bits, b_bits, input_dtype) if xp is np else None
    if kept is not None:
        short = kept.shortened(a_bits, -1), kept.shortened(b_bits, -2)
        if _exact_products(decode(short[0], input_dtype), decode(short[1], input_dtype), input_dtype):
            a_bits, b_bits = short
            k = a_bits.shape[-1]
        else:
            kept = None
    out = xp.empty((*lead, m, n), bits_dtype(out_dtype))
    items = int(np.prod(lead, dtype=np.int64))
    columns = max(1, min(n, 2048, _TILE_OPERAND // max(1, k)))
    rows = max(1, min(m, _TILE_OUTPUTS // max(1, columns * items), _TILE_OPERAND // max(1, k)))
    for j in range(0, n, columns):
        b = decode(b_bits[..., j:j + columns], input_dtype)
        for i in range(0, m, rows):
            a = decode(a_bits[..., i:i + rows, :], input_dtype)
            tile = _Tile(xp, a, b, input_dtype, np.zeros(1, np.int64), functions or {}, _exact_products(a, b, input_dtype), kept)
            # _value gives float32 that hold numbers of out_dtype, so encoding them rounds nothing
            out[..., i:i + rows, j:j + columns] = encode_rn(_value(schedule, tile)[0], out_dtype)
    return out


@lru_cache(maxsize=16)
def _reach(schedule: Term) -> int:
    """One past the largest index that a schedule reads, without recursion."""
    todo, reach = [(schedule, 0)], 0
    while todo:
        term, moved = todo.pop()
        match term:
            case Mma(runs=runs) | Fma(runs=runs):
                reach = max(reach, *(run.stop + moved for run in runs))
            case Mul(k):
                reach = max(reach, k + moved + 1)
            case Fold(body=body, count=count, advance=advance):
                todo.append((body, moved + max(0, (count - 1) * advance)))
            case _:
                pass
        todo.extend((t, moved) for t in _operands(term))
    return reach


@dataclass(frozen=True)
class _Tile:
    """Operands of a tile, decoded: a (..., M, K), b (..., K, N). Indices of a schedule are moved by each of
    `shifts`. exact_products: see `_exact_products`. kept: where the operands are shortened, what they hold.
    """

    xp: ModuleType
    a: Array
    b: Array
    dtype: DType
    shifts: Indices
    functions: Functions
    exact_products: bool
    kept: Kept | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of every value: (shifts, ..., M, N)."""
        lead = np.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2])
        return (len(self.shifts), *lead, self.a.shape[-2], self.b.shape[-1])

    def gather(self, first: int, count: int) -> tuple[Array, Array]:
        """a (shifts, ..., M, count) and b (shifts, ..., count, N) at first .. first + count."""
        if self.kept is None and len(self.shifts) == 1:
            start = first + int(self.shifts[0])
            return self.a[None, ..., start:start + count], self.b[None, ..., start:start + count, :]
        return self.pick(np.arange(first, first + count))

    def pick(self, ks: Indices) -> tuple[Array, Array]:
        """The same at the indices `ks`."""
        places = self.shifts[:, None] + ks
        index = self.xp.asarray(places if self.kept is None else self.kept.column[places])
        a = self.xp.moveaxis(self.a[..., index], -2, 0)
        b = self.xp.moveaxis(self.b[..., index, :], -3, 0)
        return a, b


def _exact_products(a: Array, b: Array, dtype: DType) -> bool:
    """True where the product of any two of the operands is a float32: at most 22 significant bits, and exponents in range."""
    if array_module(a) is not np:
        return False
    if dtype is not DType.BF16:
        return dtype in (DType.FP16, DType.E4M3)
    ends = []
    for x in (a, b):
        size = np.abs(x[np.isfinite(x) & (x != 0)])
        ends.append((float(size.min()), float(size.max())) if size.size else (1.0, 1.0))
    (low, high), (least, most) = ends
    return low * least >= 2.0**-126 and high * most < 2.0**127


def _value(schedule: Term, tile: _Tile) -> Array:
    """float32 (shifts, ..., M, N). A stack in place of recursion: a long sum may nest its left side deeply.
    """
    todo: list[tuple[Term, bool]] = [(schedule, False)]
    done: list[Array] = []
    lanes = _Lanes(schedule, tile)
    while todo:
        term, ready = todo.pop()
        if term in lanes:
            done.append(lanes.value(term))
            continue
        below = _operands(term)
        if not ready and below:
            todo.append((term, True))
            todo.extend((t, False) for t in reversed(below))
            continue
        values = done[len(done) - len(below):]
        del done[len(done) - len(below):]
        done.append(_apply(term, values, tile))
    return done[0]


class _Lanes:
    """Chains of a schedule that are moved copies of one another, executed side by side: lanes cost no Python loop each."""

    def __init__(self, schedule: Term, tile: _Tile) -> None:
        self._tile = tile
        self._groups = _groups(schedule)
        self._done: dict[Term, Array] = {}

    def __contains__(self, term: Term) -> bool:
        return isinstance(term, Fma) and term in self._groups

    def value(self, term: Term) -> Array:
        """The value of one lane; those that come next are executed with it. It is given once for each time the lane stands in the term."""
        if term not in self._done:
            shape = self._tile.shape
            at_once = max(1, _TILE_OUTPUTS // max(1, int(np.prod(shape, dtype=np.int64))))
            group = self._groups[term]
            waiting = list(islice((t for t in group if t is not term and t not in self._done), at_once - 1))
            some = sorted([term, *waiting], key=group.__getitem__)
            moves = np.array([group[t] - group[term] for t in some], np.int64)
            tile = replace(self._tile, shifts=(self._tile.shifts[:, None] + moves).reshape(-1))
            values = _apply(term, [tile.xp.zeros(tile.shape, tile.xp.float32)], tile).reshape(shape[0], len(some), *shape[1:])
            self._done |= {t: values[:, i] for i, t in enumerate(some)}
        return self._done.pop(term)


@lru_cache(maxsize=16)
def _groups(schedule: Term) -> dict[Term, dict[Term, int]]:
    """For each chain that has moved copies, the chains that are copies of one another, with the first index of each."""
    groups: dict[tuple[bool, tuple[Run, ...]], dict[Term, int]] = {}
    todo = [schedule]
    while todo:
        term = todo.pop()
        if isinstance(term, Fma) and isinstance(term.previous, Zero):
            first = term.runs[0].first
            if all(r.first >= first for r in term.runs):
                runs = tuple(r.shifted(-first) for r in term.runs)
                groups.setdefault((term.rounded, runs), {})[term] = first
        todo.extend(_operands(term))
    return {term: group for group in groups.values() if len(group) > 1 for term in group}


def _operands(term: Term) -> tuple[Term, ...]:
    match term:
        case Mma(previous=p) | Fma(previous=p) | Fold(previous=p):
            return (p,)
        case Add(_, left, right):
            return left, right
        case Cast(_, x):
            return (x,)
        case Call(_, args):
            return args
        case Zero() | Mul():
            return ()


def _apply(term: Term, values: list[Array], tile: _Tile) -> Array:
    match term:
        case Zero():
            return tile.xp.zeros(tile.shape, tile.xp.float32)
        case Mul(k):
            a, b = tile.gather(k, 1)
            return mul_rn(a, b)
        case Mma(_, row, runs):
            for run in runs:
                for a, b in _slabs(run, tile):
                    values[0] = chain(values[0], a, b, row, tile.dtype, run.width)
            return values[0]
        case Fma(_, runs, rounded):
            step = _plain_chain if tile.exact_products or (rounded and tile.xp is np) else _rounded_chain if rounded else _fma_chain
            for run in runs:
                lanes = even_lanes(tile.a, tile.b, run, tile.shifts) if tile.exact_products and tile.kept is None else None
                if lanes is not None:
                    values[0] = lane_chain(values[0], *lanes)
                    continue
                for a, b in _slabs(run, tile):
                    values[0] = step(values[0], a, b)
            return values[0]
        case Add(dtype, _, _):
            return add_rn(dtype, values[0], values[1])
        case Fold():
            return _fold(term, values[0], tile)
        case Cast(dtype, _):
            return decode(encode_rn(values[0], dtype), dtype)
        case Call(name, _):
            if name not in tile.functions:
                raise UsageError(f"the schedule calls {name}, which was not given", "pass it in `functions`")
            return tile.functions[name](*values)


def _fma_chain(acc: Array, a: Array, b: Array) -> Array:
    for k in range(a.shape[-1]):
        acc = fma_step(acc, a[..., k:k + 1], b[..., k:k + 1, :])
    return acc


def _rounded_chain(acc: Array, a: Array, b: Array) -> Array:
    for k in range(a.shape[-1]):
        acc = add_rn(DType.FP32, acc, mul_rn(a[..., k:k + 1], b[..., k:k + 1, :]))
    return acc


def _plain_chain(acc: Array, a: Array, b: Array) -> Array:
    """Each product rounded, then added: the same bits as fused where every product is a float32."""
    columns = np.ascontiguousarray(np.moveaxis(a, -1, 0))[..., None]
    rows = np.ascontiguousarray(np.moveaxis(b, -2, 0))[..., None, :]
    acc = acc.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for column, row in zip(columns, rows, strict=True):
            acc += column * row
    return canonical_nan(np, acc)


def _slabs(run: Run, tile: _Tile) -> Iterator[tuple[Array, Array]]:
    """The operands of whole steps of a run, in order, gathered in bounded pieces."""
    if run.contiguous and len(tile.shifts) == 1 and tile.kept is None:
        yield tile.gather(run.first, run.width * run.count)
        return
    steps = np.arange(run.count) if tile.kept is None else tile.kept.steps(run, tile.shifts)
    wide = max(tile.a.size // tile.a.shape[-1], tile.b.size // tile.b.shape[-2]) * len(tile.shifts)
    at_once = max(1, _GATHER // max(1, wide * run.width))
    pattern = np.array(run.pattern, np.int64)
    for t in range(0, len(steps), at_once):
        bases = run.first + steps[t:t + at_once] * run.advance
        yield tile.pick((bases[:, None] + pattern).reshape(-1))


def _fold(term: Fold, total: Array, tile: _Tile) -> Array:
    """Copies side by side, then added left to right."""
    shape = tile.shape
    one = int(np.prod(shape, dtype=np.int64))
    at_once = max(1, _TILE_OUTPUTS // max(1, one))
    chosen = np.arange(term.count, dtype=np.int64) if tile.kept is None else tile.kept.copies(term, tile.shifts)
    for t in range(0, len(chosen), at_once):
        moves = chosen[t:t + at_once] * term.advance
        shifts = (tile.shifts[:, None] + moves).reshape(-1)
        parts = _value(term.body, replace(tile, shifts=shifts)).reshape(shape[0], len(moves), *shape[1:])
        for c in range(len(moves)):
            total = add_rn(term.dtype, total, parts[:, c])
    return total
