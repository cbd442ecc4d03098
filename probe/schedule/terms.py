"""The terms of a rounding schedule, and the builders that keep them canonical.

A rounding schedule says in which order, and with which roundings, one output element of a GEMM is formed from its
K products. Terms are frozen values; `k` is the index along the contracted axis. Build terms with the lower-case
functions (`mma`, `fma`, `add`, `fold`, `cast`), never with the classes: the builders merge what is regular into runs and
order what commutes, so that two equal schedules compare equal by `==` and K = 300,000 costs a few hundred bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from probe.errors import UsageError
from probe.problem import DType
from probe.schedule.runs import Run as Run
from probe.schedule.runs import contiguous_runs as contiguous_runs
from probe.schedule.runs import join_chain as join_chain
from probe.schedule.runs import join_runs as join_runs
from probe.schedule.runs import run_of as run_of


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
class Zero:
    """An accumulator that starts at +0."""


class Node:
    """What terms with others below them share. A long sum nests deeply, so comparing, hashing and printing go without recursion: what they
    need is kept from the time that a term is made."""

    __slots__ = ("_first", "_hash", "_leaves", "_stop")

    _first: int
    _hash: int
    _leaves: int
    _stop: int

    def __post_init__(self) -> None:
        own, below, (first, stop, leaves) = _own(self), below_of(self), _products(self)
        object.__setattr__(self, "_hash", hash((type(self).__name__, own, *map(hash, below))))
        object.__setattr__(self, "_first", first)
        object.__setattr__(self, "_stop", stop)
        object.__setattr__(self, "_leaves", leaves)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Node):
            return NotImplemented
        todo: list[tuple[Any, Any]] = [(self, other)]
        while todo:
            one, two = todo.pop()
            if one is two:
                continue
            if type(one) is not type(two) or hash(one) != hash(two):
                return False
            if not isinstance(one, Node):
                if one != two:
                    return False
            elif _own(one) != _own(two):
                return False
            else:
                todo.extend(zip(below_of(one), below_of(two), strict=True))
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        flat: list[tuple[Any, ...]] = []  # from the leaves up: pickling the terms below one by one would recurse
        after(self, lambda one, below: flat.append((type(one), _own(one) if isinstance(one, Node) else one, len(below))))
        return _rebuilt, (flat,)

    def __repr__(self) -> str:
        return after(self, _repr)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mma(Node):
    """previous, then one fused multi-term sum per step of the runs, all of one arithmetic row; fp32 result."""

    previous: Term
    row: Row
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fma(Node):
    """previous, then one fp32 fused multiply-add (to nearest even) per index. Patterns are single offsets, or the neighbours of a slice,
    which are taken one by one in ascending order. rounded: each product is rounded to
    fp32 and then added, two roundings in place of one."""

    previous: Term
    runs: tuple[Run, ...]
    rounded: bool = False


@dataclass(frozen=True, slots=True)
class Mul:
    """The product at index k, rounded to fp32."""

    k: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Add(Node):
    """left + right, rounded once to nearest even in `dtype`. The side with the smaller first index stands left."""

    dtype: DType
    left: Term
    right: Term


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fold(Node):
    """previous + body + (body moved by advance) + ... `count` copies, left to right, each addition rounded to `dtype`."""

    previous: Term
    dtype: DType
    body: Term
    count: int
    advance: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Node):
    """x rounded once to nearest even to `dtype`."""

    dtype: DType
    x: Term


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call(Node):
    """A named function (gelu, say) as an opaque node."""

    name: str
    args: tuple[Term, ...]


Term = Zero | Mma | Fma | Mul | Add | Fold | Cast | Call
ZERO = Zero()
_R = TypeVar("_R")


def below_of(term: Any) -> tuple[Term, ...]:
    """The terms right below one; a fold's body once."""
    match term:
        case Mma(previous=p) | Fma(previous=p):
            return (p,)
        case Fold(previous=p, body=body):
            return p, body
        case Add(_, left, right):
            return left, right
        case Cast(_, x):
            return (x,)
        case Call(_, args):
            return args
        case _:
            return ()


def after(term: Any, make: Callable[[Any, list[_R]], _R], below: Callable[[Any], tuple[Any, ...]] = below_of) -> _R:
    """make(term, what it made of each term below), from the leaves up and without recursion: a long sum nests its left side deeply."""
    todo: list[tuple[Any, bool]] = [(term, False)]
    done: list[_R] = []
    while todo:
        one, ready = todo.pop()
        under = below(one)
        if not ready and under:
            todo.append((one, True))
            todo.extend((t, False) for t in reversed(under))
            continue
        values = done[len(done) - len(under):]
        del done[len(done) - len(under):]
        done.append(make(one, values))
    return done[0]


def _own(term: Any) -> tuple[Any, ...]:
    """What a term holds beside the terms below it."""
    match term:
        case Mma(_, row, runs):
            return row, runs
        case Fma(_, runs, rounded):
            return runs, rounded
        case Fold(_, dtype, _, count, advance):
            return dtype, count, advance
        case Call(name, args):
            return name, len(args)
        case _:
            return (term.dtype,)


def _rebuilt(flat: list[tuple[Any, ...]]) -> Any:
    """The term whose parts are listed from the leaves up."""
    done: list[Any] = []
    for kind, own, count in flat:
        below = done[len(done) - count:]
        del done[len(done) - count:]
        if kind in (Mma, Fma):
            done.append(kind(*below, *own))
        elif kind is Fold:
            dtype, copied, advance = own
            done.append(Fold(below[0], dtype, below[1], copied, advance))
        elif kind is Call:
            done.append(Call(own[0], tuple(below)))
        else:
            done.append(kind(*own, *below) if kind in (Add, Cast) else own)
    return done[0]


def _products(term: Any) -> tuple[int, int, int]:
    """(smallest index or -1, one past the largest or 0, how many products) under a term."""
    firsts, leaves = [f for f in map(first_k, below_of(term)) if f >= 0], sum(map(leaf_count, below_of(term)))
    stops = [*map(stop_k, below_of(term))]
    if isinstance(term, Mma | Fma):
        firsts += [run.first for run in term.runs]
        stops += [run.stop for run in term.runs]
        leaves += sum(run.width * run.count for run in term.runs)
    elif isinstance(term, Fold):
        leaves += (term.count - 1) * leaf_count(term.body)
        stops.append(stop_k(term.body) + (term.count - 1) * max(0, term.advance))
    return min(firsts, default=-1), max(stops, default=0), leaves


def _repr(term: Any, below: list[str]) -> str:
    if not isinstance(term, Node):
        return repr(term)
    texts, given = iter(below), []
    for f in fields(term):  # type: ignore[arg-type]
        value = getattr(term, f.name)
        if f.name == "args":
            text = f"({', '.join(texts)}{',' if len(value) == 1 else ''})"
        else:
            text = next(texts) if isinstance(value, Node | Mul | Zero) else repr(value)
        given.append(f"{f.name}={text}")
    return f"{type(term).__name__}({', '.join(given)})"


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


def fma(previous: Term, runs: tuple[Run, ...], rounded: bool = False) -> Term:
    """Chain single fused multiply-adds (or rounded products) onto `previous`. Runs of several neighbours are slices,
    taken index by index."""
    if any(run.width != 1 and (run.count == 1 or run.pattern[-1] != run.width - 1) for run in runs):
        raise UsageError("a fused multiply-add takes one index a step")
    if not runs:
        return previous
    if isinstance(previous, Fma) and previous.rounded is rounded:
        return Fma(previous.previous, join_chain(previous.runs, runs), rounded)
    return Fma(previous, join_chain((), runs), rounded)


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

    def moved(one: Term, below: list[Term]) -> Term:
        match one:
            case Mma(_, row, runs):
                return Mma(below[0], row, tuple(r.shifted(distance) for r in runs))
            case Fma(_, runs, rounded):
                return Fma(below[0], tuple(r.shifted(distance) for r in runs), rounded)
            case Mul(k):
                return Mul(k + distance)
            case Add(dtype, _, _):
                return Add(dtype, below[0], below[1])
            case Fold(_, dtype, _, count, advance):
                return Fold(below[0], dtype, below[1], count, advance)
            case Cast(dtype, _):
                return Cast(dtype, below[0])
            case Call(name, _):
                return Call(name, tuple(below))
            case _:
                return one

    return after(term, moved)


def first_k(term: Term) -> int:
    """The smallest index under a term; -1 for one that holds none."""
    return term._first if isinstance(term, Node) else term.k if isinstance(term, Mul) else -1


def stop_k(term: Term) -> int:
    """One past the largest index under a term; 0 for one that holds none."""
    return term._stop if isinstance(term, Node) else term.k + 1 if isinstance(term, Mul) else 0


def leaf_count(term: Term) -> int:
    """How many products the term sums."""
    return term._leaves if isinstance(term, Node) else int(isinstance(term, Mul))


def copies(term: Fold) -> Iterator[Term]:
    """The moved bodies of a fold, in order."""
    for t in range(term.count):
        yield shift(term.body, t * term.advance)
