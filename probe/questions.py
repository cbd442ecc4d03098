"""Questions to a cost model as columns of numbers, so that millions of them need no objects; and the batch of a stream's next ones.

`draw` gives exactly the problems of `ProblemStream.at`, thousands at a time: the same generator on arrays, and the same choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.errors import UsageError
from probe.names import DType, Layout
from probe.preference import Preference
from probe.problem import Problem
from probe.stream import DEFAULT_ALIGNMENT, KEY, REGIME_WORDS, Alignment, Asked, Axis, Law, ProblemStream, RandomRegime, fitting
from probe.values import check_bool, check_enum, check_int, parse_enum

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

# Of one question, beside its kind: sizes; elements between two rows as stored; bytes from a 256-byte boundary; what the caller allows;
# and the alignment in bytes that the library is told (C has the output's).
NUMBERS = ("m", "n", "k", "lda", "ldb", "ldd", "a_offset_bytes", "b_offset_bytes", "d_offset_bytes", "allowed_workspace_bytes",
           "reduction_scheme_mask", "a_alignment", "b_alignment", "d_alignment")
# What all problems of a kind have alike.
_FIXED = tuple(f.name for f in fields(Problem) if f.name not in ("m", "n", "k") and not re.fullmatch(r"ld.|._offset_bytes", f.name))
_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)
# Both factors of Philox4x64 and what its two keys grow by a round: Salmon et al. 2011, table 2 and section 3.3.
_FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
# float64's exp and log leave a size of 2^31 off by less than 2^-40 of itself; what is nearer than this to a whole number is drawn exactly.
_NEAR = 2.0**-36


@dataclass(frozen=True)
class Kind:
    """What questions share that differ in numbers alone."""

    dtype: DType
    output: DType
    layout: Layout
    fast: bool

    def __post_init__(self) -> None:
        check_enum("dtype", self.dtype, DType)
        check_enum("output", self.output, DType)
        check_enum("layout", self.layout, Layout)
        check_bool("fast", self.fast)

    def problem(self, m: int = 16, n: int = 16, k: int = 16, **others: Any) -> Problem:
        """A problem of this kind. Raises UsageError where there is none."""
        return Problem.gemm(m, n, k, self.dtype, self.output, self.layout, self.fast, **others)


@dataclass(frozen=True)
class Questions:
    """index: number in the stream. source: into `sources`; kind: into `kinds`; numbers: by the names of NUMBERS. All int64, one each."""

    sources: tuple[str, ...]
    kinds: tuple[Kind, ...]
    index: Ints
    source: Ints
    kind: Ints
    numbers: Mapping[str, Ints]

    def __post_init__(self) -> None:
        if tuple(self.numbers) != NUMBERS:
            raise UsageError(f"numbers of questions are {', '.join(NUMBERS)}")
        if any(column.shape != self.index.shape for column in (self.source, self.kind, *self.numbers.values())):
            raise UsageError("columns of questions differ in length")

    def __len__(self) -> int:
        return len(self.index)

    def asked(self, place: int) -> Asked:
        """One of them as a problem with its preference, the alignments that the library is told named."""
        kind, x = self.kinds[int(self.kind[place])], {name: int(column[place]) for name, column in self.numbers.items()}
        problem = kind.problem(x["m"], x["n"], x["k"], lda=x["lda"], ldb=x["ldb"], ldc=x["ldd"], ldd=x["ldd"],
                               a_offset_bytes=x["a_offset_bytes"], b_offset_bytes=x["b_offset_bytes"],
                               c_offset_bytes=x["d_offset_bytes"], d_offset_bytes=x["d_offset_bytes"])
        told = Preference(x["allowed_workspace_bytes"], x["reduction_scheme_mask"], x["a_alignment"], x["b_alignment"],
                          x["d_alignment"], x["d_alignment"])
        return Asked(self.sources[int(self.source[place])], problem, told)

    def each(self) -> Iterator[tuple[Kind, tuple[int, ...]]]:
        """Every question: its kind, and its numbers in the order of NUMBERS."""
        rows = zip(*(column.tolist() for column in self.numbers.values()), strict=True)
        return ((self.kinds[kind], row) for kind, row in zip(self.kind.tolist(), rows, strict=True))

    def operand_bytes(self) -> npt.NDArray[np.float64]:
        """Bytes of A, B and the output, offsets and padding counted, as `Problem.total_bytes`: exact below 2^53."""
        x = {name: column.astype(np.float64) for name, column in self.numbers.items()}
        size = {name: np.array([getattr(k, name).itemsize for k in self.kinds], np.float64)[self.kind] for name in ("dtype", "output")}
        turned = {name: np.array([getattr(kind.layout, f"{name}_transposed") for kind in self.kinds], bool)[self.kind] for name in "ab"}
        shapes = {"a": (np.where(turned["a"], x["k"], x["m"]), np.where(turned["a"], x["m"], x["k"])),
                  "b": (np.where(turned["b"], x["n"], x["k"]), np.where(turned["b"], x["k"], x["n"])), "d": (x["m"], x["n"])}
        total = np.zeros(len(self))
        for name, (rows, columns) in shapes.items():
            total += x[f"{name}_offset_bytes"] + ((rows - 1) * x[f"ld{name}"] + columns) * size["output" if name == "d" else "dtype"]
        return total

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        kinds = [[str(k.dtype), str(k.output), str(k.layout), k.fast] for k in self.kinds]
        return {"sources": list(self.sources), "kinds": kinds, "index": self.index.tolist(), "source": self.source.tolist(),
                "kind": self.kind.tolist(), "numbers": {name: column.tolist() for name, column in self.numbers.items()}}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Questions:
        """What `to_document` wrote; its numbers are checked when a problem is made of them."""
        kinds = tuple(Kind(parse_enum("dtype", d, DType), parse_enum("output", o, DType), parse_enum("layout", x, Layout), f)
                      for d, o, x, f in document["kinds"])
        return cls(tuple(document["sources"]), kinds, _ints(document["index"]), _ints(document["source"]), _ints(document["kind"]),
                   {name: _ints(document["numbers"][name]) for name in NUMBERS})


def _ints(values: Any) -> Ints:
    return np.array(values, np.int64)


def listed(asked: Sequence[Asked], begin: int = 0) -> Questions:
    """Questions of a list, whose first has the number `begin`. Raises UsageError for what the columns cannot say (a batch, an epilogue)."""
    sources: dict[str, int] = {}
    kinds: dict[Kind, int] = {}
    likes: list[Problem] = []
    rows = []
    for one in asked:
        p, told = one.problem, one.problem.alignments(one.preference)
        kind = Kind(p.a_dtype, p.d_dtype, p.layout, p.fast_accumulation)
        code = kinds.setdefault(kind, len(kinds))
        if code == len(likes):
            likes.append(kind.problem())
        if one.preference.forced is not None:
            raise UsageError("forced answers cannot be asked in a batch", "probe walk --force")
        same_c = (p.ldc, p.c_offset_bytes, told[2]) == (p.ldd, p.d_offset_bytes, told[3])
        if not same_c or any(getattr(p, name) != getattr(likes[code], name) for name in _FIXED):
            raise UsageError(f"{p.key} cannot be asked in a batch", "no batch, no epilogue, alpha 1, beta 0, C as the output")
        rows.append((sources.setdefault(one.source, len(sources)), code, p.m, p.n, p.k, *(p.leading_dimension(x) for x in "abd"),
                     p.a_offset_bytes, p.b_offset_bytes, p.d_offset_bytes, one.preference.workspace_bytes,
                     one.preference.reduction_scheme_mask, told[0], told[1], told[3]))
    source, kind_codes, *numbers = _ints(rows).reshape(-1, 2 + len(NUMBERS)).T
    return Questions(tuple(sources), tuple(kinds), np.arange(begin, begin + len(asked)), source, kind_codes,
                     dict(zip(NUMBERS, numbers, strict=True)))


def draw(stream: ProblemStream, begin: int, end: int) -> Questions:
    """The questions of a stream's indices begin to end - 1: those of `ProblemStream.at`, listed ones first."""
    check_int("begin", begin, 0, 2**62)
    check_int("end", end, begin, 2**62 if stream.length is None else stream.length)
    fixed = len(stream.listed)
    if begin < fixed:
        first = listed(stream.listed[begin:min(end, fixed)], begin)
        return first if end <= fixed else _joined(first, _random(stream, fixed, end))
    return _random(stream, begin, end)


def _joined(a: Questions, b: Questions) -> Questions:
    return Questions(a.sources + b.sources, a.kinds + b.kinds, np.concatenate([a.index, b.index]),
                     np.concatenate([a.source, b.source + len(a.sources)]), np.concatenate([a.kind, b.kind + len(a.kinds)]),
                     {name: np.concatenate([a.numbers[name], b.numbers[name]]) for name in NUMBERS})


def _random(stream: ProblemStream, begin: int, end: int) -> Questions:
    index = np.arange(begin, end, dtype=np.int64)
    if not len(index):
        return listed(())
    first, *words = words_of(stream.seed, index, 1 + REGIME_WORDS)
    shares = np.cumsum([regime.share for regime in stream.regimes])
    source = np.searchsorted(shares, _scaled(int(shares[-1]), first), side="right").astype(np.int64)
    kinds: dict[Kind, int] = {}
    kind, numbers = np.empty(len(index), np.int64), {name: np.empty(len(index), np.int64) for name in NUMBERS}
    for number, regime in enumerate(stream.regimes):
        for made, places in _split(regime, words, np.flatnonzero(source == number)):
            kind[places] = kinds.setdefault(made, len(kinds))
            for name, column in zip(NUMBERS, _numbers(regime, made, [word[places] for word in words]), strict=True):
                numbers[name][places] = column
    return Questions(tuple(r.name for r in stream.regimes), tuple(kinds), index, source, kind, numbers)


def _split(regime: RandomRegime, words: Sequence[Words], places: Ints) -> Iterator[tuple[Kind, Ints]]:
    """The kinds that a regime's words 0 to 3 choose, and where each is."""
    dtype_of = _scaled(len(regime.dtypes), words[0][places])
    for d, dtype in enumerate(regime.dtypes):
        mine = places[dtype_of == d]
        outputs, layouts = regime.outputs_of(dtype), regime.layouts_of(dtype)
        modes = [fast and dtype.is_fp8 for fast in regime.fast_accumulation]
        codes = [_scaled(len(choices), words[1 + i][mine]) for i, choices in enumerate((outputs, layouts, modes))]
        for code in np.unique(np.stack(codes, 1), axis=0):
            o, x, f = map(int, code)
            here = (codes[0] == o) & (codes[1] == x) & (codes[2] == f)
            yield Kind(dtype, regime.output_of(dtype, outputs[o]), layouts[x], modes[f]), mine[here]


def _numbers(regime: RandomRegime, kind: Kind, words: Sequence[Words]) -> list[Ints]:
    """NUMBERS of problems of one kind: `RandomRegime.problem`, on arrays."""
    multiple, sizes = regime.multiple_of(kind.dtype), (kind.dtype.itemsize, kind.dtype.itemsize, kind.output.itemsize)
    m, n = _pick(regime.m, words[4]), _pick(regime.n, words[5], multiple)
    room = (regime.most_bytes - m * n * kind.output.itemsize) // ((m + n) * kind.dtype.itemsize)
    k = _pick(regime.k, words[6], multiple, room)
    steps = regime.steps_of(kind.dtype, kind.output)
    offsets, paddings = ([_choose(fitting(values, step), word) for step, word in zip(steps, part, strict=True)]
                         for values, part in ((regime.offsets, words[9:12]), (regime.paddings, words[12:15])))
    columns = (m if kind.layout.a_transposed else k, k if kind.layout.b_transposed else n, n)
    lead = [c + padding // size for c, padding, size in zip(columns, paddings, sizes, strict=True)]
    default = _choose([alignment is Alignment.DEFAULT for alignment in regime.alignments], words[15]) == 1
    told = [np.where(default, DEFAULT_ALIGNMENT, np.gcd(DEFAULT_ALIGNMENT, offset)) for offset in offsets]
    return [m, n, k, *lead, *offsets, _choose(regime.workspaces, words[7]), _choose(regime.reduction_schemes, words[8]), *told]


def _choose(choices: Sequence[int], word: Words) -> Ints:
    return np.take(_ints(choices), _scaled(len(choices), word))


def _pick(axis: Axis, word: Words, multiple: int = 1, most: Ints | None = None) -> Ints:
    """`Axis.pick` on arrays."""
    if axis.values:
        if most is None or (most >= axis.high).all():
            return _choose([v for v in axis.values if v % multiple == 0], word)
        return _ints([axis.pick(w, multiple, r) for w, r in zip(word.tolist(), most.tolist(), strict=True)])
    step = int(np.lcm(axis.multiple, multiple))
    low = -(-axis.low // step)
    high = np.full(word.shape, axis.high, np.int64) if most is None else np.minimum(axis.high, most)
    high //= step
    if axis.law is Law.UNIFORM:
        return _ints(step * (low + _scaled(high - low + 1, word)))
    size = low * np.exp(np.log((high + 1) / low) * (word.astype(np.float64) / 2.0**64))
    made: Ints = step * np.minimum(high, size.astype(np.int64))
    for place in np.flatnonzero(np.abs(size - np.rint(size)) <= size * _NEAR).tolist():
        made[place] = axis.pick(int(word[place]), multiple, 2**31 - 1 if most is None else int(most[place]))
    return made


def _scaled(count: int | Ints, word: Words) -> Ints:
    """floor(count * word / 2^64), exact for counts below 2^32."""
    factor = np.asarray(count).astype(np.uint64)
    scaled: Words = (factor * (word >> _HALF) + (factor * (word & _LOW) >> _HALF)) >> _HALF
    return scaled.astype(np.int64)


def words_of(seed: int, index: Ints, count: int) -> list[Words]:
    """The first `count` words of each index, as `probe.stream` has them: an array a word."""
    blocks = -(-count // 4)
    x = [np.repeat(np.arange(1, blocks + 1, dtype=np.uint64)[:, None], len(index), 1),
         np.broadcast_to(index.astype(np.uint64), (blocks, len(index))),
         np.zeros((blocks, len(index)), np.uint64), np.zeros((blocks, len(index)), np.uint64)]
    keys = [seed, KEY]
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = (_product(factor, part) for factor, part in zip(_FACTORS, (x[0], x[2]), strict=True))
        x = [high1 ^ x[1] ^ np.uint64(keys[0]), low1, high0 ^ x[3] ^ np.uint64(keys[1]), low0]
        keys = [(key + step) % 2**64 for key, step in zip(keys, _STEPS, strict=True)]
    return [x[i % 4][i // 4] for i in range(count)]


def _product(factor: int, x: Words) -> tuple[Words, Words]:
    """High and low half of 64 by 64 bits."""
    high, low = np.uint64(factor >> 32), np.uint64(factor % 2**32)
    x_high, x_low = x >> _HALF, x & _LOW
    one = x_high * low + (x_low * low >> _HALF)
    other = x_low * high + (one & _LOW)
    return x_high * high + (one >> _HALF) + (other >> _HALF), np.uint64(factor) * x
