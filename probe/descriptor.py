"""GEMMDesc: the frozen record of everything that fixes the bits of one GEMM, and nothing that is only a
speed knob.

Field names follow the paper (section 3.2.2 and DESIGN section 3). Two equal canonical records owe each
other the same bits; `GEMMDesc.schedule()` is the rounding schedule of one output element that a record
stands for. The way back, from a schedule to its canonical record, is `probe.describe`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from probe.errors import UsageError
from probe.problem import DType
from probe.schedule import ZERO, Row, Run, Term, add, cast, contiguous_runs, fma, mma

DESCRIPTOR_VERSION = 1


class Instruction(StrEnum):
    """What multiplies: evidence, not part of a record's identity (its arithmetic `row` is)."""

    WGMMA = "wgmma"
    MMA_SYNC = "mma.sync"
    TCGEN05 = "tcgen05.mma"
    FMA = "fma"


class CutLayout(StrEnum):
    """How a cut deals the axis to its parts."""

    CONTIGUOUS = "contiguous"
    STRIDED = "strided"


class Join(StrEnum):
    """How the parts of a cut are added up."""

    CHAIN = "chain"
    BUTTERFLY = "butterfly"


class Direction(StrEnum):
    """Chain: from the first part on, or from the last. Butterfly: lane distances counted up (1, 2, ..) or
    down."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UP = "up"
    DOWN = "down"


class ShortTurn(StrEnum):
    """Where the short turn of the K loop runs when the step does not divide a part."""

    FIRST = "first"
    LAST = "last"


_DIRECTIONS = {Join.CHAIN: (Direction.FORWARD, Direction.BACKWARD), Join.BUTTERFLY: (Direction.UP,
Direction.DOWN)}


@dataclass(frozen=True)
class KCut:
    """One level of the nest of cuts along K.

    contiguous: parts of `span` indices each, the last one short when it must be. strided: `count` lanes,
    lane j takes every count-th tile of `span` indices.
    """

    span: int
    layout: CutLayout = CutLayout.CONTIGUOUS
    count: int | None = None
    join: Join = Join.CHAIN
    direction: Direction = Direction.FORWARD

    def __post_init__(self) -> None:
        if self.span < 1:
            raise UsageError(f"the span of a cut is at least 1, not {self.span}")
        if (self.layout is CutLayout.STRIDED) != (self.count is not None):
            raise UsageError("a strided cut has a lane count, a contiguous one has none")
        if self.count is not None and self.count < 1:
            raise UsageError(f"the lane count of a cut is at least 1, not {self.count}")
        if self.direction not in _DIRECTIONS[self.join]:
            raise UsageError(f"a {self.join} has direction {' or '.join(_DIRECTIONS[self.join])}, not {self.direction}")


@dataclass(frozen=True)
class GEMMDesc:
    """The record. `k` is the extent of the contracted axis, `k_summed` how much of it is summed at all.

    `row` is the arithmetic of the matrix instruction (None: scalar fma). `use_fast_accum`: an instruction's result joins
    the accumulator in the same rounding (True) or in a second one, an fp32 addition (False). `k_loop_step` is one turn
    of the main loop; `short_turn` says where the turn runs that does not fill it. `partial_dtype` is what a part of the
    outermost cut is written as, `merge_dtype` what the running sum of parts is held in. `scale_at` and `bias_at`
    name where a scale or bias joins ("none": no such input); nothing walks them yet.
    """

    k: int
    k_summed: int
    input_dtype: DType
    output_dtype: DType
    row: Row | None
    instruction_k: int
    use_fast_accum: bool = True
    k_loop_step: int = 0
    short_turn: ShortTurn = ShortTurn.LAST
    k_cuts: tuple[KCut, ...] = ()
    accumulator_dtype: DType = DType.FP32
    partial_dtype: DType = DType.FP32
    merge_dtype: DType = DType.FP32
    scale_at: str = "none"
    bias_at: str = "none"
    instruction: Instruction = field(default=Instruction.FMA, compare=False)

    def __post_init__(self) -> None:
        if self.k_loop_step == 0:
            object.__setattr__(self, "k_loop_step", self.instruction_k)
        if not 1 <= self.k_summed <= self.k:
            raise UsageError(f"k_summed = {self.k_summed} is not within 1..{self.k}")
        if self.instruction_k < 1 or self.k_loop_step % self.instruction_k:
            raise UsageError(f"k_loop_step = {self.k_loop_step} is no multiple of instruction_k = {self.instruction_k}")
        if (self.row is None) != (self.instruction is Instruction.FMA):
            raise UsageError(f"{self.instruction} and row {self.row} do not go together")
        if self.row is None and self.instruction_k != 1:
            raise UsageError("a scalar fma takes one product at a time")
        if self.accumulator_dtype is not DType.FP32:
            raise UsageError(f"accumulation in {self.accumulator_dtype} is not modelled", "fp32")
        for name in ("scale_at", "bias_at"):
            if getattr(self, name) != "none":
                raise UsageError(f"{name} = {getattr(self, name)!r} is not modelled yet", "none")

    # -- the schedule ---------------------------------------------------------------------------------------------
    def schedule(self) -> Term:
        """The rounding schedule of one output element, canonical."""
        axis: tuple[tuple[int, int], ...] = ((0, self.k_summed),)
        return cast(self.output_dtype, self._nest(axis, 0))

    def _nest(self, pieces: tuple[tuple[int, int], ...], level: int) -> Term:
        if level == len(self.k_cuts):
            return self._leaf(pieces)
        cut = self.k_cuts[level]
        parts = [self._nest(p, level + 1) for p in _deal(pieces, cut)]
        outer = level == 0
        partial, merge = (self.partial_dtype, self.merge_dtype) if outer else (DType.FP32, DType.FP32)
        if len(parts) == 1:
            return parts[0]
        return join_parts([cast(partial, p) for p in parts], cut.join, cut.direction, merge)

    def _leaf(self, pieces: tuple[tuple[int, int], ...]) -> Term:
        runs: list[Run] = []
        length = sum(hi - lo for lo, hi in pieces)
        short = length % self.k_loop_step
        turns: tuple[int, ...] = (short, length - short) if short and self.short_turn is ShortTurn.FIRST else (length,)
        for piece in _slices(pieces, turns):
            for lo, hi in piece:
                runs.extend(contiguous_runs(lo, hi, self.instruction_k))
        if self.row is None:
            return fma(ZERO, tuple(runs))
        if self.use_fast_accum:
            return mma(ZERO, self.row, tuple(runs))
        term: Term | None = None
        for run in runs:
            for t in range(run.count):
                lone = Run(run.first + t * run.advance, run.pattern)
                one = mma(ZERO, self.row, (lone,))
                term = one if term is None else add(DType.FP32, term, one)
        return term if term is not None else ZERO

    # -- JSON ------------------------------------------------------------------------------------------------------
    def to_document(self) -> dict[str, Any]:
        """A dict of plain values, with `version`."""
        data = asdict(self)
        data["row"] = None if self.row is None else self.row.to_list()
        data["k_cuts"] = [{k: (str(v) if isinstance(v, StrEnum) else v) for k, v in cut.items()} for cut in data["k_cuts"]]
        plain = {k: (str(v) if isinstance(v, StrEnum) else v) for k, v in data.items()}
        return {"version": DESCRIPTOR_VERSION, **plain}

    @classmethod
    def from_document(cls, data: dict[str, Any]) -> GEMMDesc:
        """The record that `to_document` wrote. Raises UsageError on another version, unknown fields or bad values."""
        if not isinstance(data, dict):
            raise UsageError("not a GEMMDesc: no JSON object")
        values = dict(data)
        if values.pop("version", None) != DESCRIPTOR_VERSION:
            raise UsageError(f"a GEMMDesc of version {data.get('version')} is not readable", f"version {DESCRIPTOR_VERSION}")
        try:
            for name in ("input_dtype", "output_dtype", "accumulator_dtype", "partial_dtype", "merge_dtype"):
                values[name] = DType(values[name])
            values["instruction"] = Instruction(values["instruction"])
            values["short_turn"] = ShortTurn(values["short_turn"])
            values["row"] = None if values["row"] is None else Row.from_list(values["row"])
            values["k_cuts"] = tuple(
                KCut(c["span"], CutLayout(c["layout"]), c["count"], Join(c["join"]), Direction(c["direction"]))
                for c in values["k_cuts"])
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"not a GEMMDesc: {error}") from error

    def to_json(self) -> str:
        """Canonical JSON text: sorted keys, no spaces."""
        return json.dumps(self.to_document(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> GEMMDesc:
        """The record that `to_json` wrote. Raises UsageError on anything else."""
        try:
            return cls.from_document(json.loads(text))
        except (json.JSONDecodeError, AttributeError, TypeError) as error:
            raise UsageError(f"not a GEMMDesc: {error}") from error


def _deal(pieces: tuple[tuple[int, int], ...], cut: KCut) -> list[tuple[tuple[int, int], ...]]:
    """The parts of a cut, each as a tuple of ascending intervals."""
    length = sum(hi - lo for lo, hi in pieces)
    tiles = [cut.span] * (length // cut.span) + ([length % cut.span] if length % cut.span else [])
    sliced = list(_slices(pieces, tuple(tiles)))
    if cut.count is None:
        return sliced
    lanes = [tuple(i for tile in sliced[lane::cut.count] for i in tile) for lane in range(cut.count)]
    return [lane for lane in lanes if lane]


def _slices(pieces: tuple[tuple[int, int], ...], lengths: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Cut a sequence of intervals into consecutive slices of the given lengths."""
    queue = list(pieces)
    for length in lengths:
        out = []
        while length:
            lo, hi = queue.pop(0)
            take = min(length, hi - lo)
            out.append((lo, lo + take))
            if lo + take < hi:
                queue.insert(0, (lo + take, hi))
            length -= take
        yield tuple(out)


def join_parts(parts: list[Term], join: Join, direction: Direction, dtype: DType) -> Term:
    """Add up the parts of a cut in the order that join and direction name, each addition rounded to `dtype`."""
    if join is Join.CHAIN:
        ordered = parts if direction is Direction.FORWARD else parts[::-1]
        term = ordered[0]
        for part in ordered[1:]:
            term = add(dtype, term, part)
        return term
    level = list(parts)
    while len(level) > 1:
        half = (len(level) + 1) // 2
        # down: lanes a half apart pair first
        pairs = [(i, i + half) for i in range(half)] if direction is Direction.DOWN else [(2 * i, 2 * i + 1) for i in range(half)]
        level = [add(dtype, level[a], level[b]) if b < len(level) else level[a] for a, b in pairs]
    return level[0]
