"""A stream of problems: a function of (seed, index), whatever was interrupted and on however many workers.

Every index has random words of its own, from a counter-based generator (Philox, Salmon et al. 2011, as numpy has it), and every choice has
its own word. Nothing is rejected: where a choice narrows another (e4m3 wants multiples of 16, large M and N leave less room for K), the
other's range is narrowed before its word is read, so no choice moves a later one.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, TypeVar

import numpy as np

from probe.errors import UsageError
from probe.names import DType, Layout
from probe.preference import Preference
from probe.problem import Problem
from probe.values import Record, check_enum, check_int, check_text

T = TypeVar("T")
MOST_BYTES = 16 * 2**30  # of the operands of one problem, where a regime says nothing
_WORD = 2**64
KEY = 0x70726F62653A45  # "probe:E": no draw of inputs shares a key with a stream
_FP8_MULTIPLE = 16  # of N and K, and of every offset and row distance in bytes (probe.problem)
DEFAULT_ALIGNMENT = 256  # bytes: the library's own default (DESIGN section 6)
_EXACT = decimal.Context(prec=40)  # rounds correctly on every machine, which exp of a C library does not


class Law(StrEnum):
    """How a size is drawn. uniform: every multiple alike. log: every factor of two alike."""

    UNIFORM = "uniform"
    LOG = "log"


class Alignment(StrEnum):
    """What the library is told of the operands' addresses. true: their real alignment. default: 256 bytes each, as where a caller sets no
    alignment, which an offset can break."""

    TRUE = "true"
    DEFAULT = "default"


class Output(StrEnum):
    """The output dtype. same: the input's, or bf16 for e4m3."""

    SAME = "same"
    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


@dataclass(frozen=True)
class Axis(Record):
    """Where M, N or K comes from: multiples of `multiple` from low to high, or one of `values`, which then give low and high."""

    KIND: ClassVar[str] = "axis"

    low: int = 1
    high: int = 1
    law: Law = Law.LOG
    multiple: int = 1
    values: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_enum("law", self.law, Law)
        most = 2**31 - 1
        if self.values:
            for value in self.values:
                check_int("value", value, 1, most)
            object.__setattr__(self, "low", min(self.values))
            object.__setattr__(self, "high", max(self.values))
        check_int("from", self.low, 1, most)
        check_int("to", self.high, self.low, most, f"{self.low} to {most}")
        check_int("multiple", self.multiple, 1, most)
        if self.least() is None:
            raise UsageError(f"no multiple of {self.multiple} lies in {self.low} to {self.high}", "a wider range, or a smaller multiple")

    def least(self, multiple: int = 1) -> int | None:
        """The smallest size that is a multiple of `multiple` too; None where there is none."""
        if self.values:
            return min((v for v in self.values if v % multiple == 0), default=None)
        step = math.lcm(self.multiple, multiple)
        value = -(-self.low // step) * step
        return value if value <= self.high else None

    def greatest(self, multiple: int = 1) -> int | None:
        """The largest size that is a multiple of `multiple` too; None where there is none."""
        if self.values:
            return max((v for v in self.values if v % multiple == 0), default=None)
        value = self.high // math.lcm(self.multiple, multiple) * math.lcm(self.multiple, multiple)
        return value if value >= self.low else None

    def pick(self, word: int, multiple: int = 1, most: int = 2**31 - 1) -> int:
        """The size that a random word stands for, at most `most`, which leaves at least `least(multiple)`."""
        if self.values:
            return _choose([v for v in self.values if v % multiple == 0 and v <= most], word)
        step = math.lcm(self.multiple, multiple)
        low, high = -(-self.low // step), min(self.high, most) // step
        if self.law is Law.UNIFORM:
            return step * (low + ((high - low + 1) * word >> 64))
        exponent = _EXACT.multiply(_logarithm(low, high + 1), _EXACT.divide(decimal.Decimal(word), decimal.Decimal(_WORD)))
        return step * min(high, int(_EXACT.multiply(decimal.Decimal(low), _EXACT.exp(exponent))))


@lru_cache(1024)
def _logarithm(low: int, high: int) -> decimal.Decimal:
    return _EXACT.ln(_EXACT.divide(decimal.Decimal(high), decimal.Decimal(low)))


def _choose(choices: Sequence[T], word: int) -> T:
    return choices[len(choices) * word >> 64]


def fitting(values: tuple[int, ...], step: int) -> tuple[int, ...]:
    """The values that are multiples of `step`."""
    return tuple(v for v in values if v % step == 0)


@dataclass(frozen=True)
class Asked:
    """A problem and what the caller allows. source: the regime or list that it comes from."""

    source: str
    problem: Problem
    preference: Preference


@dataclass(frozen=True)
class RandomRegime(Record):
    """Random problems of one kind.

    outputs and layouts that a dtype does not have are left out for that dtype; each must be possible with some dtype. fast_accumulation:
    the modes of e4m3. workspaces: bytes. offsets: of A, B and the output from a 256-byte boundary, in bytes, each drawn by itself from
    those that its dtype can have. paddings: bytes between the rows of a stored matrix, likewise. alignments: what the library is told of
    the addresses. most_bytes: of the operands, packed; K's range ends where it would be passed. share: how often, beside the shares of
    other regimes. Raises UsageError for what gives no valid problem.
    """

    KIND: ClassVar[str] = "random regime"

    name: str
    m: Axis
    n: Axis
    k: Axis
    dtypes: tuple[DType, ...] = (DType.FP16,)
    outputs: tuple[Output, ...] = (Output.SAME,)
    layouts: tuple[Layout, ...] = (Layout.NN,)
    fast_accumulation: tuple[bool, ...] = (False,)
    workspaces: tuple[int, ...] = (32 * 2**20,)
    reduction_schemes: tuple[int, ...] = (7,)
    offsets: tuple[int, ...] = (0,)
    paddings: tuple[int, ...] = (0,)
    alignments: tuple[Alignment, ...] = (Alignment.TRUE,)
    most_bytes: int = MOST_BYTES
    share: int = 1

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_int("share", self.share, 1, 10**6)
        check_int("most_bytes", self.most_bytes, 1, 2**50)
        for name in ("dtypes", "outputs", "layouts", "fast_accumulation", "workspaces", "reduction_schemes", "offsets", "paddings",
                     "alignments"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise UsageError(f"{name} of regime {self.name!r} are empty or name one twice", "each value once")
        for mask in self.reduction_schemes:
            check_int("reduction_schemes", mask, 0, 7, "0 to 7, a sum of 1 in place, 2 compute type, 4 output type")
        for alignment in self.alignments:
            check_enum("alignments", alignment, Alignment)
        for workspace in self.workspaces:
            check_int("workspaces", workspace, 0, 2**40)
        if unknown := [d for d in self.dtypes if d not in (DType.FP16, DType.BF16, DType.E4M3)]:
            raise UsageError(f"no walk is known for inputs of {unknown[0]}", "fp16, bf16 or e4m3")
        for what, wanted, by_dtype in (("outputs", self.outputs, self.outputs_of), ("layouts", self.layouts, self.layouts_of)):
            for value in wanted:
                if not any(value in by_dtype(d) for d in self.dtypes):
                    raise UsageError(f"{what} of regime {self.name!r}: {value} goes with none of {', '.join(self.dtypes)}",
                                     "16-bit inputs give their own dtype or fp32; e4m3 needs layout tn")
            for dtype in self.dtypes:
                if not by_dtype(dtype):
                    raise UsageError(f"dtypes of regime {self.name!r}: {dtype} goes with none of the {what}",
                                     "16-bit inputs give their own dtype or fp32; e4m3 needs layout tn")
        for what in ("offsets", "paddings"):
            for value in getattr(self, what):
                check_int(what, value, 0, 2**20)
                if not any(value % step == 0 for dtype in self.dtypes for out in self.outputs_of(dtype)
                           for step in self.steps_of(dtype, self.output_of(dtype, out))):
                    raise UsageError(f"{what} of regime {self.name!r}: {value} B splits an element, or a 16-byte unit of e4m3",
                                     "multiples of the element's bytes, of 16 for e4m3")
        if True in self.fast_accumulation and DType.E4M3 not in self.dtypes:
            raise UsageError(f"fast accumulation of regime {self.name!r} needs e4m3", "leave it out, or add the dtype e4m3")
        for dtype in self.dtypes:
            self._check_sizes(dtype)

    def _check_sizes(self, dtype: DType) -> None:
        multiple = self.multiple_of(dtype)
        for name, axis, step in (("m", self.m, 1), ("n", self.n, multiple), ("k", self.k, multiple)):
            if axis.least(step) is None:
                raise UsageError(f"{name} of regime {self.name!r} holds no multiple of {step}, which {dtype} needs", "a wider range")
        m, n, k = self.m.greatest(), self.n.greatest(multiple), self.k.least(multiple)
        assert m is not None and n is not None and k is not None
        for output in self.outputs_of(dtype):
            out = self.output_of(dtype, output)
            need = (m + n) * k * dtype.itemsize + m * n * out.itemsize
            if need > self.most_bytes:
                raise UsageError(f"regime {self.name!r} passes {self.most_bytes:,} bytes at {m}x{n}x{k} already ({need:,})",
                                 "smaller m or n, or a larger most")
            for step in self.steps_of(dtype, out):
                for what in ("offsets", "paddings"):
                    if not fitting(getattr(self, what), step):
                        raise UsageError(f"{what} of regime {self.name!r} hold no multiple of {step} B, which {dtype} inputs with {out} "
                                         f"output need: {', '.join(f'{v} B' for v in getattr(self, what))}", f"0, or multiples of {step}")

    @staticmethod
    def steps_of(dtype: DType, out: DType) -> tuple[int, int, int]:
        """What offsets and paddings of A, B and the output are multiples of, in bytes."""
        return (_FP8_MULTIPLE,) * 3 if dtype.is_fp8 else (dtype.itemsize, dtype.itemsize, out.itemsize)

    @staticmethod
    def multiple_of(dtype: DType) -> int:
        """What N and K are multiples of."""
        return _FP8_MULTIPLE if dtype.is_fp8 else 1

    def outputs_of(self, dtype: DType) -> tuple[Output, ...]:
        """Those that a dtype has."""
        return tuple(o for o in self.outputs if dtype.is_fp8 or o in (Output.SAME, Output.FP32) or o.value == dtype.value)

    def layouts_of(self, dtype: DType) -> tuple[Layout, ...]:
        """Those that a dtype has."""
        return tuple(x for x in self.layouts if not dtype.is_fp8 or x is Layout.TN)

    @staticmethod
    def output_of(dtype: DType, output: Output) -> DType:
        """The dtype that an output stands for."""
        return (DType.BF16 if dtype.is_fp8 else dtype) if output is Output.SAME else DType(output.value)

    def problem(self, words: Sequence[int]) -> Asked:
        """The problem of 16 random words; which word chooses what is part of the stream and never changes."""
        dtype = _choose(self.dtypes, words[0])
        out, layout = self.output_of(dtype, _choose(self.outputs_of(dtype), words[1])), _choose(self.layouts_of(dtype), words[2])
        fast = _choose(self.fast_accumulation, words[3]) and dtype.is_fp8
        multiple = self.multiple_of(dtype)
        m, n = self.m.pick(words[4]), self.n.pick(words[5], multiple)
        room = (self.most_bytes - m * n * out.itemsize) // ((m + n) * dtype.itemsize)
        k = self.k.pick(words[6], multiple, room)
        told = None if _choose(self.alignments, words[15]) is Alignment.TRUE else DEFAULT_ALIGNMENT
        preference = Preference(_choose(self.workspaces, words[7]), _choose(self.reduction_schemes, words[8]), told, told, told, told)
        steps = self.steps_of(dtype, out)
        a, b, d = (_choose(fitting(self.offsets, step), word) for step, word in zip(steps, words[9:12], strict=True))
        lead = [_choose(fitting(self.paddings, step), word) for step, word in zip(steps, words[12:15], strict=True)]
        columns = (m if layout.a_transposed else k, k if layout.b_transposed else n, n)
        sizes = (dtype.itemsize, dtype.itemsize, out.itemsize)
        lda, ldb, ldd = (c + padding // size for c, padding, size in zip(columns, lead, sizes, strict=True))
        return Asked(self.name, Problem.gemm(m, n, k, dtype, out, layout, fast, a_offset_bytes=a, b_offset_bytes=b, c_offset_bytes=d,
                                             d_offset_bytes=d, lda=lda, ldb=ldb, ldc=ldd, ldd=ldd), preference)


REGIME_WORDS = 16


@dataclass(frozen=True)
class ProblemStream:
    """First the listed problems in their order, then random ones without end, where there are regimes.

    seed: 0 to 2^60 - 1. Any index can be asked for at any time.
    """

    seed: int
    listed: tuple[Asked, ...] = ()
    regimes: tuple[RandomRegime, ...] = ()

    def __post_init__(self) -> None:
        check_int("seed", self.seed, 0, 2**60 - 1)
        if not self.listed and not self.regimes:
            raise UsageError("a stream needs problems", "a list or a regime")

    @property
    def length(self) -> int | None:
        """Problems in all; None without end."""
        return None if self.regimes else len(self.listed)

    def at(self, index: int) -> Asked:
        """The problem of an index. Raises UsageError beyond the end."""
        check_int("index", index, 0, (2**63 if self.length is None else self.length) - 1)
        if index < len(self.listed):
            return self.listed[index]
        first, *words = _words(self.seed, index, 0, 1 + REGIME_WORDS)
        place = sum(r.share for r in self.regimes) * first >> 64
        for regime in self.regimes:
            place -= regime.share
            if place < 0:
                break
        return regime.problem(words)

    def draw_seed(self, index: int, number: int = 0) -> int:
        """The seed of the inputs of an index, 0 to 2^60 - 1; `number` counts those that are needed."""
        return _words(self.seed, index, 1 + number, 1)[0] >> 4


def _words(seed: int, index: int, use: int, count: int) -> list[int]:
    """Random words of (seed, index, use). The low word of the counter is numpy's to count with."""
    generator = np.random.Philox(key=np.array([seed, KEY], np.uint64), counter=np.array([0, index, use, 0], np.uint64))
    return [int(word) for word in np.atleast_1d(generator.random_raw(count))]
