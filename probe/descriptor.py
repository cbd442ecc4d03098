"""GEMMDesc: the frozen record of everything that fixes the bits of one GEMM, and nothing that is only a
speed knob.

Field names follow the paper (section 3.2.2 and DESIGN section 3). Two equal canonical records owe each
other the same bits; `GEMMDesc.schedule()` is the rounding schedule of one output element that a record
stands for. The way back, from a schedule to its canonical record, is `probe.describe`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from probe.dealing import Axis, Block, lanes_of, moved, parts_of, size_of, take
from probe.errors import UsageError
from probe.problem import DType
from probe.schedule import ZERO, ChainStart, Products, Row, Run, Term, add, cast, contiguous_runs, fma, fold, mma, rewrite, shift
from probe.values import check_bool

DESCRIPTOR_VERSION = 1
_CHAIN_FIELDS = frozenset({"chain_start", "products", "adds_zero"})


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
    lane j takes every count-th tile of `span` indices; where K ends within a round of tiles, the lanes behind its end are short by a tile,
    or empty. A butterfly of lanes pairs them by their places among all `count`, empty ones included.
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
    name where a scale or bias joins ("none": no such input); nothing walks them yet. Of scalar fma only, and seen only where a product is
    -0 or leaves the range of fp32: `chain_start`, `products` (fused or rounded), and `adds_zero`, whether +0 joins the whole sum.
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
    chain_start: ChainStart = ChainStart.ZERO
    products: Products = Products.FUSED
    adds_zero: bool = False
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
        if self.row is not None and not self._plain_chains:
            raise UsageError("chain_start, products and adds_zero are those of scalar fma", "a record of a matrix instruction has none")
        for name in ("scale_at", "bias_at"):
            if getattr(self, name) != "none":
                raise UsageError(f"{name} = {getattr(self, name)!r} is not modelled yet", "none")

    # -- the schedule ---------------------------------------------------------------------------------------------
    def schedule(self) -> Term:
        """The rounding schedule of one output element, canonical."""
        plain = cast(self.output_dtype, self._nest((Block(0, self.k_summed),), 0, {}))
        return plain if self._plain_chains else rewrite(plain, self.chain_start, self.products, self.adds_zero)

    @property
    def _plain_chains(self) -> bool:
        return (self.chain_start, self.products, self.adds_zero) == (ChainStart.ZERO, Products.FUSED, False)

    def _nest(self, axis: Axis, level: int, known: dict[tuple[int, Axis], Term]) -> Term:
        """The sum over an axis from a level of the nest on. Parts that are moved copies of one another are built once."""
        base = axis[0].first
        plain = moved(axis, -base)
        if (level, plain) not in known:
            known[level, plain] = self._parts(plain, level, known) if level < len(self.k_cuts) else self._leaf(plain)
        return shift(known[level, plain], base)

    def _parts(self, axis: Axis, level: int, known: dict[tuple[int, Axis], Term]) -> Term:
        cut = self.k_cuts[level]
        if cut.count is None and (cut.join, cut.direction) == (Join.CHAIN, Direction.FORWARD):
            return self._chain(list(parts_of(axis, cut.span)), level, known)
        axes = list(parts_of(axis, cut.span)) if cut.count is None else lanes_of(axis, cut.span, cut.count)
        parts = [self._nest(a, level + 1, known) if a else None for a in axes]
        partial, merge = (self.partial_dtype, self.merge_dtype) if level == 0 else (DType.FP32, DType.FP32)
        there = [p for p in parts if p is not None]
        if len(there) == 1:
            return there[0]
        return join_parts([None if p is None else cast(partial, p) for p in parts], cut.join, cut.direction, merge)

    def _chain(self, axes: list[Axis], level: int, known: dict[tuple[int, Axis], Term]) -> Term:
        """Parts joined from the first on; equal ones at even distance are a fold, built from the first two."""
        partial, merge = (self.partial_dtype, self.merge_dtype) if level == 0 and len(axes) > 1 else (DType.FP32, DType.FP32)
        term: Term | None = None
        start = 0
        while start < len(axes):
            plain, stop, advance = moved(axes[start], -axes[start][0].first), start + 1, 0
            while stop < len(axes):
                distance = axes[stop][0].first - axes[stop - 1][0].first
                if moved(axes[stop], -axes[stop][0].first) != plain or distance != (advance or distance):
                    break
                advance, stop = distance, stop + 1
            part = cast(partial, self._nest(axes[start], level + 1, known))
            if term is None:
                term, start = part, start + 1
            else:
                term, start = fold(term, merge, part, stop - start, advance), stop
        assert term is not None
        return term

    def _leaf(self, axis: Axis) -> Term:
        runs: list[Run] = []
        length = size_of(axis)
        short = length % self.k_loop_step
        turns = [(0, short), (short, length)] if short and self.short_turn is ShortTurn.FIRST else [(0, length)]
        for start, stop in turns:
            for block in take(axis, start, stop):
                runs.extend(self._steps(block))
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

    def _steps(self, block: Block) -> tuple[Run, ...]:
        """The steps of one block: no step reaches over the end of an interval."""
        if block.count > 1 and (self.row is None or block.width <= self.instruction_k):
            return (Run(block.first, tuple(range(block.width)), block.count, block.advance),)
        return tuple(run for t in range(block.count)
                     for run in contiguous_runs(block.interval(t), block.interval(t) + block.width, self.instruction_k))

    # -- JSON ------------------------------------------------------------------------------------------------------
    def to_document(self) -> dict[str, Any]:
        """A dict of plain values, with `version`. The three fields of chains stand in it only where one is not plain."""
        data = asdict(self)
        if self._plain_chains:
            for name in _CHAIN_FIELDS:
                del data[name]
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
            if _CHAIN_FIELDS & values.keys():
                values["chain_start"], values["products"] = ChainStart(values["chain_start"]), Products(values["products"])
                values["adds_zero"] = check_bool("adds_zero", values["adds_zero"])
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


def join_parts(parts: Sequence[Term | None], join: Join, direction: Direction, dtype: DType) -> Term:
    """Add up the parts of a cut in the order that join and direction name, each addition rounded to `dtype`.

    None stands for a lane that got nothing: it keeps its place in a butterfly, and adding it changes nothing.
    """
    if join is Join.CHAIN:
        ordered = [p for p in parts if p is not None]
        ordered = ordered if direction is Direction.FORWARD else ordered[::-1]
        term = ordered[0]
        for part in ordered[1:]:
            term = add(dtype, term, part)
        return term
    level = list(parts)
    while len(level) > 1:
        half = (len(level) + 1) // 2
        # down: lanes a half apart pair first
        pairs = [(i, i + half) for i in range(half)] if direction is Direction.DOWN else [(2 * i, 2 * i + 1) for i in range(half)]
        level = [_plus(level[a], level[b] if b < len(level) else None, dtype) for a, b in pairs]
    (total,) = level
    assert total is not None
    return total


def _plus(a: Term | None, b: Term | None, dtype: DType) -> Term | None:
    if a is None or b is None:
        return b if a is None else a
    return add(dtype, a, b)
