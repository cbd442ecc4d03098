"""The terms of a rounding schedule, and the builders that keep them canonical.

A rounding schedule says in which order, and with which roundings, one output element of a GEMM is formed from its
K products. Terms are frozen values; `k` is the index along the contracted axis. Build terms with the lower-case
functions (`mma`, `fma`, `add`, `fold`, `cast`), never with the classes: the builders merge what is regular into runs and
order what commutes, so that two equal schedules compare equal by `==` and K = 300,000 costs a few hundred bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from probe.errors import UsageError
from probe.problem import DType


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table of matrix instructions (DESIGN section 5b), as its arithmetic and nothing else.

    `products` (L) are added at once with the accumulator; each term is cut toward zero `fraction_bits` (F) below the
    largest exponent; the exact sum is rounded to `result_bits` fraction bits (23: fp32; 13: the fp8 accumulator, kept in an
    fp32 container), toward zero as every published row does, or to nearest even (`nearest`), which is there to be refuted.
    """

    products: int
    fraction_bits: int
    result_bits: int = 23
    nearest: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.products <= 64 or not 1 <= self.fraction_bits <= 64 or self.result_bits not in (13, 23):
            raise UsageError(f"no matrix instruction has the row {self}")

    def to_list(self) -> list[int]:
        """[L, F, result bits], and a 1 behind them for rounding to nearest."""
        return [self.products, self.fraction_bits, self.result_bits, *([1] if self.nearest else [])]

    @classmethod
    def from_list(cls, values: list[int]) -> Row:
        """The row that `to_list` wrote."""
        products, fraction_bits, result_bits, *nearest = values
        return cls(products, fraction_bits, result_bits, bool(nearest))


@dataclass(frozen=True, slots=True)
class Run:
    """`count` steps of one pattern: step t folds the indices first + t * advance + offset, offset in `pattern`."""

    first: int
    pattern: tuple[int, ...]
    count: int = 1
    advance: int = 0

    def __post_init__(self) -> None:
        if self.first < 0 or not self.pattern or self.pattern[0] != 0 or self.count < 1:
            raise UsageError(f"not a run of steps: {self}")
        if any(a >= b for a, b in zip(self.pattern, self.pattern[1:], strict=False)):
            raise UsageError(f"the offsets of a step ascend: {self.pattern}")
        if (self.count == 1) != (self.advance == 0) or self.advance < 0:
            raise UsageError(f"a single step has no advance, several ascend: {self}")

    @property
    def width(self) -> int:
        """Products folded by one step."""
        return len(self.pattern)

    @property
    def contiguous(self) -> bool:
        """True when the run covers [first, first + width * count) in ascending order."""
        return self.pattern[-1] == self.width - 1 and (self.count == 1 or self.advance == self.width)

    @property
    def stop(self) -> int:
        """One past the largest index."""
        return self.first + (self.count - 1) * self.advance + self.pattern[-1] + 1

    def shifted(self, distance: int) -> Run:
        return Run(self.first + distance, self.pattern, self.count, self.advance)

    def step(self, t: int) -> tuple[int, ...]:
        """The indices of step t, ascending."""
        base = self.first + t * self.advance
        return tuple(base + o for o in self.pattern)

    def prefix(self, count: int) -> Run:
        return Run(self.first, self.pattern, count, self.advance if count > 1 else 0)

    def find(self, k: int) -> int | None:
        """Which step holds index k, or None."""
        if not self.first <= k < self.stop:
            return None
        if self.contiguous:
            return (k - self.first) // self.width
        for offset in self.pattern:
            distance = k - self.first - offset
            if self.count == 1:
                if distance == 0:
                    return 0
            elif distance >= 0 and distance % self.advance == 0 and distance // self.advance < self.count:
                return distance // self.advance
        return None

    def inside(self, lo: int, hi: int) -> int:
        """How many indices of the run lie in [lo, hi)."""
        lo, hi = max(lo, self.first), min(hi, self.stop)
        if lo >= hi:
            return 0
        if self.contiguous:
            return hi - lo
        total = 0
        for offset in self.pattern:
            base = self.first + offset
            if self.count == 1:
                total += lo <= base < hi
            else:
                low = max(0, -((base - lo) // self.advance))
                high = min(self.count, -((base - hi) // self.advance))
                total += max(0, high - low)
        return total


@dataclass(frozen=True, slots=True)
class Zero:
    """An accumulator that starts at +0."""


@dataclass(frozen=True, slots=True)
class Mma:
    """previous, then one fused multi-term sum per step of the runs, all of one arithmetic row; fp32 result."""

    previous: Term
    row: Row
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Fma:
    """previous, then one fp32 fused multiply-add (to nearest even) per index; patterns are single offsets."""

    previous: Term
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Mul:
    """The product at index k, rounded to fp32."""

    k: int


@dataclass(frozen=True, slots=True)
class Add:
    """left + right, rounded once to nearest even in `dtype`. The side with the smaller first index stands left."""

    dtype: DType
    left: Term
    right: Term


@dataclass(frozen=True, slots=True)
class Fold:
    """previous + body + (body moved by advance) + ... `count` copies, left to right, each addition rounded to `dtype`."""

    previous: Term
    dtype: DType
    body: Term
    count: int
    advance: int


@dataclass(frozen=True, slots=True)
class Cast:
    """x rounded once to nearest even to `dtype`."""

    dtype: DType
    x: Term


@dataclass(frozen=True, slots=True)
class Call:
    """A named function (gelu, say) as an opaque node."""

    name: str
    args: tuple[Term, ...]


Term = Zero | Mma | Fma | Mul | Add | Fold | Cast | Call
ZERO = Zero()


def run_of(ks: tuple[int, ...]) -> Run:
    """One step that folds the given indices."""
    ordered = tuple(sorted(ks))
    return Run(ordered[0], tuple(k - ordered[0] for k in ordered))


def contiguous_runs(start: int, stop: int, width: int) -> tuple[Run, ...]:
    """Steps of `width` over [start, stop) in ascending order; the last is short when the width does not divide."""
    full, rest = divmod(stop - start, width)
    runs = []
    if full:
        runs.append(Run(start, tuple(range(width)), full, width if full > 1 else 0))
    if rest:
        runs.append(Run(stop - rest, tuple(range(rest))))
    return tuple(runs)


def join_runs(runs: tuple[Run, ...], more: tuple[Run, ...]) -> tuple[Run, ...]:
    """Append steps, extending the last run as far as it goes: equal step sequences give equal runs."""
    out = list(runs)
    for run in more:
        rest: Run | None = run
        while rest is not None:
            last = out[-1] if out else None
            if last is None or last.pattern != rest.pattern:
                out.append(rest)
                break
            distance = rest.first - last.first
            if last.count == 1:
                advance = distance
            elif distance == last.count * last.advance:
                advance = last.advance
            else:
                out.append(rest)
                break
            if advance <= 0:
                out.append(rest)
                break
            take = rest.count if rest.count == 1 or rest.advance == advance else 1
            out[-1] = Run(last.first, last.pattern, last.count + take, advance)
            left = rest.count - take
            rest = None if not left else Run(
                rest.first + take * rest.advance, rest.pattern, left, rest.advance if left > 1 else 0)
    return tuple(out)


def mma(previous: Term, row: Row, runs: tuple[Run, ...]) -> Term:
    """Chain matrix-instruction steps onto `previous`. Steps wider than the row split into ascending blocks."""
    narrow: list[Run] = []
    for run in runs:
        if run.width <= row.products:
            narrow.append(run)
        elif run.contiguous and run.width % row.products == 0:
            narrow.extend(contiguous_runs(run.first, run.stop, row.products))
        else:
            for t in range(run.count):
                ks = run.step(t)
                narrow.extend(run_of(ks[i:i + row.products]) for i in range(0, len(ks), row.products))
    if not narrow:
        return previous
    if isinstance(previous, Mma) and previous.row == row:
        return Mma(previous.previous, row, join_runs(previous.runs, tuple(narrow)))
    return Mma(previous, row, join_runs((), tuple(narrow)))


def fma(previous: Term, runs: tuple[Run, ...]) -> Term:
    """Chain single fused multiply-adds onto `previous`."""
    if any(run.width != 1 for run in runs):
        raise UsageError("a fused multiply-add takes one index a step")
    if not runs:
        return previous
    if isinstance(previous, Fma):
        return Fma(previous.previous, join_runs(previous.runs, runs))
    return Fma(previous, join_runs((), runs))


def dtype_of(term: Term) -> DType:
    """The dtype in which the value of a term is held."""
    match term:
        case Add(dtype=d) | Fold(dtype=d) | Cast(dtype=d):
            return d
        case _:
            return DType.FP32


def cast(dtype: DType, x: Term) -> Term:
    """Round to dtype; nothing where the value is held in it already (or in a wider one by name only)."""
    return x if dtype_of(x) == dtype else Cast(dtype, x)


def add(dtype: DType, a: Term, b: Term) -> Term:
    """a + b in dtype. Addition commutes, so the side that starts earlier stands left; equal moved parts fold."""
    left, right = (a, b) if first_k(a) <= first_k(b) else (b, a)
    if isinstance(left, Fold) and left.dtype == dtype and shift(left.body, left.count * left.advance) == right:
        return Fold(left.previous, dtype, left.body, left.count + 1, left.advance)
    if isinstance(left, Add) and left.dtype == dtype:
        distance = first_k(right) - first_k(left.right)
        if distance > 0 and shift(left.right, distance) == right:
            return Fold(left.left, dtype, left.right, 2, distance)
    return Add(dtype, left, right)


def fold(previous: Term, dtype: DType, body: Term, count: int, advance: int) -> Term:
    """previous + count copies of body, each moved by `advance` from the one before, left to right."""
    term = previous
    for t in range(count):
        term = add(dtype, term, shift(body, t * advance))
        if (isinstance(term, Fold) and term.advance == advance and term.dtype == dtype
                and shift(term.body, term.count * advance) == shift(body, (t + 1) * advance)):
            return Fold(term.previous, dtype, term.body, term.count + count - t - 1, advance)
    return term


def shift(term: Term, distance: int) -> Term:
    """The same term with every index moved by `distance`."""
    if distance == 0:
        return term
    match term:
        case Mma(previous, row, runs):
            return Mma(shift(previous, distance), row, tuple(r.shifted(distance) for r in runs))
        case Fma(previous, runs):
            return Fma(shift(previous, distance), tuple(r.shifted(distance) for r in runs))
        case Mul(k):
            return Mul(k + distance)
        case Add(dtype, left, right):
            return Add(dtype, shift(left, distance), shift(right, distance))
        case Fold(previous, dtype, body, count, advance):
            return Fold(shift(previous, distance), dtype, shift(body, distance), count, advance)
        case Cast(dtype, x):
            return Cast(dtype, shift(x, distance))
        case Call(name, args):
            return Call(name, tuple(shift(a, distance) for a in args))
        case _:
            return term


def first_k(term: Term) -> int:
    """The smallest index under a term; -1 for one that holds none."""
    match term:
        case Mma(previous, _, runs) | Fma(previous, runs):
            own = min(r.first for r in runs)
            inner = first_k(previous)
            return own if inner < 0 else min(own, inner)
        case Mul(k):
            return k
        case Add(_, left, right):
            a, b = first_k(left), first_k(right)
            return b if a < 0 else a if b < 0 else min(a, b)
        case Fold(previous, _, body, _, _):
            a, b = first_k(previous), first_k(body)
            return b if a < 0 else min(a, b)
        case Cast(_, x):
            return first_k(x)
        case Call(_, args):
            found = [f for f in map(first_k, args) if f >= 0]
            return min(found) if found else -1
        case _:
            return -1


def copies(term: Fold) -> Iterator[Term]:
    """The moved bodies of a fold, in order."""
    for t in range(term.count):
        yield shift(term.body, t * term.advance)
