"""Which problems the benchmark draws: the regimes of part D, as a stream of (seed, index)."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from functools import cache

from probe.names import DType, Layout
from probe.stream import Alignment, Axis, Law, Output, ProblemStream, RandomRegime


class Draw(StrEnum):
    """all: for a device. small, tiny: the same regimes with sizes that the simulated library does in a second, in a moment."""

    ALL = "all"
    SMALL = "small"
    TINY = "tiny"


_MOST = {Draw.SMALL: (64, 64, 1536), Draw.TINY: (16, 16, 48)}  # M, N, K of those draws
_MOST_BYTES = 2**28  # of the operands of one problem: many processes share a device, and a host compares every output
_DEEPEST = 2**16  # of K: a proof takes about 0.13 s of one core for every 1,024 (H200 host), and many share the cores
_WIDTHS = (512, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 11008, 12288, 14336)  # of layers of language models
_ODD = tuple(dict.fromkeys(2 * round(2 ** (i / 16)) + 1 for i in range(16 * 11)))  # 3 to 3,923, every factor of two alike
_SIXTEEN = (DType.FP16, DType.BF16)
_EVERY = (*_SIXTEEN, DType.E4M3)
_OFFSETS = (0, 2, 4, 8, 16)  # bytes; e4m3 takes 0 and 16
_PADDINGS = (0, 2, 8, 16, 48, 256)  # bytes


def _regime(name: str, m: Axis, n: Axis, k: Axis, dtypes: tuple[DType, ...], share: int) -> tuple[RandomRegime, ...]:
    """A regime as three: of four problems three lie packed at 256-byte boundaries; a fourth has offsets and padding, and of every sixteen
    of these one tells the library the default alignment, whatever its offsets."""
    fp8 = DType.E4M3 in dtypes
    plain = RandomRegime(
        name, m, n, k, dtypes, (Output.SAME, Output.FP32, Output.FP16), tuple(Layout), (False, True) if fp8 else (False,),
        workspaces=(0, 1024, 4 * 2**20, 32 * 2**20), reduction_schemes=(0, 1, 2, 4, 7), most_bytes=_MOST_BYTES, share=48 * share)
    placed = replace(plain, offsets=_OFFSETS, paddings=_PADDINGS, share=15 * share)
    return plain, placed, replace(placed, alignments=(Alignment.DEFAULT,), share=share)


def regimes(draw: Draw = Draw.ALL) -> tuple[RandomRegime, ...]:
    """The regimes, in an order that is part of the stream. Several share a name."""
    parts = (
        *_regime("square", Axis(16, 2048), Axis(16, 2048), Axis(16, 4096), _EVERY, 4),
        *_regime("thin", Axis(2, 64), Axis(64, 8192), Axis(16, 8192), _EVERY, 2),
        *_regime("thin", Axis(64, 8192), Axis(2, 64), Axis(16, 8192), _EVERY, 2),
        *_regime("deep K", Axis(1, 256), Axis(1, 256), Axis(4096, _DEEPEST), _EVERY, 3),
        *_regime("decode", Axis(1, 64, Law.UNIFORM), Axis(values=_WIDTHS), Axis(values=_WIDTHS), _EVERY, 4),
        *_regime("vector", Axis(1, 1), Axis(1, 16384), Axis(1, _DEEPEST), _EVERY, 2),
        *_regime("vector", Axis(1, 16384), Axis(1, 1), Axis(1, _DEEPEST), _SIXTEEN, 2),
        *_regime("small M, odd N", Axis(1, 16), Axis(values=_ODD), Axis(1, 16384), _SIXTEEN, 3),
        *_regime("tiny", Axis(1, 64), Axis(1, 64), Axis(1, 512), _EVERY, 2))
    if draw is Draw.ALL:
        return parts
    m, n, k = _MOST[draw]
    return tuple(replace(r, m=_cut(r.m, m), n=_cut(r.n, n), k=_cut(r.k, k)) for r in parts)


def _cut(axis: Axis, most: int) -> Axis:
    if axis.values:
        return Axis(values=tuple(v for v in axis.values if v <= most) or (most,))
    return replace(axis, low=min(axis.low, most), high=min(axis.high, most))


@cache
def stream_of(seed: int, draw: Draw = Draw.ALL) -> ProblemStream:
    """The problems of a seed."""
    return ProblemStream(seed, (), regimes(draw))
