"""Named sets of problems (regimes), and the file of shapes that a user brings: both become cases, in a fixed order and without repeats."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

from probe.errors import EnvironmentProblem, UsageError
from probe.problem import DType, Layout, Problem
from probe.values import parse_enum

LINE = "MxNxK [dtype out layout fast], for example 16x16x8192 e4m3 bf16 tn fast"
# Column of a table -> what it holds. The longer names are those of a dataset of points (probe.records.COLUMNS).
_COLUMNS = {"shape": "shape", "m": "m", "n": "n", "k": "k", "dtype": "dtype", "input_dtype": "dtype", "out": "out", "output_dtype": "out",
            "layout": "layout", "fast": "fast", "fast_accumulation": "fast"}


@dataclass(frozen=True)
class Case:
    """A problem by the words of the command line: shape "MxNxK", input and output dtype, layout, fast accumulation.

    Raises UsageError where these are no problem.
    """

    shape: str
    dtype: str
    out: str
    layout: str = "nn"
    fast: bool = False

    def __post_init__(self) -> None:
        self.problem()

    @property
    def name(self) -> str:
        """Short stable name: distinct cases have distinct names."""
        return f"{self.shape}.{self.dtype}.{self.out}.{self.layout}" + (".fast" if self.fast else "")

    def problem(self) -> Problem:
        m, n, k = Problem.parse_shape(self.shape)
        return Problem.gemm(m, n, k, parse_enum("dtype", self.dtype, DType), parse_enum("out", self.out, DType),
                            parse_enum("layout", self.layout, Layout), self.fast)


@dataclass(frozen=True)
class Chosen:
    """What the options of a command say of a case; None says nothing. Of a regime they choose cases; to a line of a file they add
    what it leaves out."""

    dtype: str | None = None
    out: str | None = None
    layout: str | None = None
    fast: bool | None = None

    def __post_init__(self) -> None:
        for name, value, members in (("dtype", self.dtype, DType), ("out", self.out, DType), ("layout", self.layout, Layout)):
            if value is not None:
                parse_enum(name, value, members)

    def fits(self, case: Case) -> bool:
        """Whether a case is what the options ask for."""
        return all(wanted in (None, have) for wanted, have in ((self.dtype, case.dtype), (self.out, case.out), (self.layout, case.layout),
                                                               (self.fast, case.fast)))


class Regime(StrEnum):
    """The named sets. acceptance: the shapes of `probe walk`'s acceptance on a device. split: small outputs over a large K, where
    split-K is picked. linear: the Linear layers of Llama 3 8B and 70B over batch sizes, as nn.Linear asks for them. small: every family
    of the simulated library, within seconds."""

    ACCEPTANCE = "acceptance"
    SPLIT = "split"
    LINEAR = "linear"
    SMALL = "small"


def regime_cases(regime: Regime) -> tuple[Case, ...]:
    """The cases of a regime, always the same and in the same order."""
    return {Regime.ACCEPTANCE: _acceptance, Regime.SPLIT: _split, Regime.LINEAR: _linear, Regime.SMALL: _small}[regime]()


ACCEPTANCE_SHAPES = ("64x64x576", "64x64x4096", "1x8x11528", "32x32x11528", "4096x4096x1000", "129x65x513", "100x100x100", "2x2x5000",
                     "7x13x1031", "1x4096x4096", "2048x2048x4096", "16x16x300000")
_SIXTEEN_BITS = (("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "fp32"), ("bf16", "bf16"))


def _acceptance() -> tuple[Case, ...]:
    """Both 16-bit inputs, fp32 and 16-bit output, and e4m3 in both accumulation modes."""
    wide = [Case(shape, dtype, out) for shape in ACCEPTANCE_SHAPES for dtype, out in _SIXTEEN_BITS]
    return (*wide, *(Case("16x16x8192", "e4m3", out, "tn", fast) for fast in (False, True) for out in ("fp32", "bf16", "fp16")))


def _split() -> tuple[Case, ...]:
    """K: round, odd in 8s, and three at which 13.1.0 lost 8 or 16 products (DESIGN fact 4)."""
    outputs, extents = ("1x8", "16x16", "64x64", "128x128", "32x256"), (2048, 4096, 8648, 11528, 16384, 57616)
    wide = [Case(f"{mn}x{k}", dtype, out) for mn, k in product(outputs, extents) for dtype, out in (("fp16", "fp32"), ("bf16", "bf16"))]
    narrow = [Case(f"{mn}x{k}", "e4m3", "bf16", "tn") for mn, k in product(("16x16", "64x64"), (4096, 8192, 57616))]
    return (*wide, *narrow)


# N (outputs) and K (inputs) of query-key-value, attention output, gate-and-up and down projection: hidden 4096, 8 of 32 key-value heads
# of 128, inner 14336; hidden 8192, 8 of 64 heads, inner 28672.
_LLAMA_3 = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))
_BATCHES = (1, 2, 3, 4, 7, 8, 16, 32, 33, 64, 128, 255, 256, 512)


def _linear() -> tuple[Case, ...]:
    return tuple(Case(f"{m}x{n}x{k}", "bf16", "bf16", "tn") for n, k in _LLAMA_3 for m in _BATCHES)


def _small() -> tuple[Case, ...]:
    shapes = ("8x8x64", "16x16x96", "33x5x7", "24x24x12", "72x8x64", "64x64x576", "100x100x100", "9x16x513", "16x16x2056", "16x8x4096")
    wide = [Case(shape, dtype, out) for shape in shapes for dtype, out in (("fp16", "fp32"), ("bf16", "bf16"))]
    turned = [Case(shape, "fp16", "fp16", layout) for shape in ("16x16x96", "9x16x513") for layout in ("tn", "nt", "tt")]
    return (*wide, *turned, *(Case(f"16x16x{k}", "e4m3", "bf16", "tn", fast) for k in (512, 2048) for fast in (False, True)))


def cases_of(shapes: str | Path, chosen: Chosen | None = None) -> tuple[tuple[Case, ...], int]:
    """The cases of a regime's name or of a file (text, .csv or .parquet), and how many repeats were left out.

    A regime's name comes before a file of that name (./small is the file). Raises UsageError, which names the line or row that is no
    problem, and EnvironmentProblem for a file that cannot be read.
    """
    chosen = chosen or Chosen()
    text = str(shapes)
    if text in tuple(Regime):
        every = regime_cases(Regime(text))
        cases = tuple(case for case in every if chosen.fits(case))
        if not cases:
            have = sorted({f"{c.dtype} {c.out} {c.layout}" + (" fast" if c.fast else "") for c in every})
            raise UsageError(f"no case of regime {text} is what the options ask for", "it has " + ", ".join(have))
        return cases, 0
    path = Path(text)
    if not path.exists():
        known = ", ".join(Regime)
        raise UsageError(f"shapes {text!r} are neither a regime nor a file", f"one of {known}, or a file with lines {LINE}")
    read = _read(path, chosen)
    cases = tuple(dict.fromkeys(read))
    if not cases:
        raise UsageError(f"{path.name} holds no shape", f"one a line: {LINE}")
    return cases, len(read) - len(cases)


def _read(path: Path, chosen: Chosen) -> list[Case]:
    kind = {".csv": _csv_rows, ".parquet": _parquet_rows}.get(path.suffix, _lines)
    cases = []
    try:
        for where, words in kind(path):
            try:
                cases.append(_case(words, chosen))
            except UsageError as error:
                raise UsageError(f"{path.name}, {where}: {error.message}", error.hint or LINE) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path.name} is not text", f"one shape a line: {LINE}") from None
    except OSError as error:
        raise EnvironmentProblem(f"{path.name} cannot be read: {error.strerror or error}", "a file that can be read") from None
    return cases


_Rows = Iterator[tuple[str, Mapping[str, Any]]]


def _lines(path: Path) -> _Rows:
    """Lines of words; # starts a comment."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"line {number}"
        fast = len(words) > 1 and words[-1] == "fast"
        if len(words) - fast > 4:
            raise UsageError(f"{path.name}, {where}: {len(words)} words are too many", LINE)
        named = words[:-1] if fast else words
        yield where, {**dict(zip(("shape", "dtype", "out", "layout"), named, strict=False)), **({"fast": True} if fast else {})}


def _csv_rows(path: Path) -> _Rows:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        _check_columns(path, reader.fieldnames or ())
        for row in reader:
            if None in row or None in row.values():
                raise UsageError(f"{path.name}, line {reader.line_num}: it has not as many fields as the first line", "one for each column")
            yield f"line {reader.line_num}", row


def _parquet_rows(path: Path) -> _Rows:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        names = parquet.read_schema(path).names
        _check_columns(path, names)
        rows = parquet.read_table(path, columns=[n for n in names if n in _COLUMNS]).to_pylist()
    except (pyarrow.ArrowException, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path.name} is no Parquet file that can be read", "a Parquet table with the columns m, n, k") from None
    for number, row in enumerate(rows, 1):
        yield f"row {number}", row


def _check_columns(path: Path, names: Iterable[str]) -> None:
    known = {_COLUMNS[name] for name in names if name in _COLUMNS}
    if "shape" not in known and not {"m", "n", "k"} <= known:
        raise UsageError(f"{path.name} has no column shape, and not m, n and k", "columns shape (or m, n, k), and dtype, out, layout, fast")


def _case(row: Mapping[str, Any], chosen: Chosen) -> Case:
    """One row of words or cells; what it leaves out comes from `chosen`, else from the usual problem of that dtype."""
    cells: dict[str, Any] = {}
    for column, value in row.items():
        if column in _COLUMNS and value is not None and str(value).strip():
            cells.setdefault(_COLUMNS[column], value)
    shape = _cell(cells, "shape", str) or "x".join(_size(cells, name) for name in "mnk")
    dtype = _cell(cells, "dtype", str) or chosen.dtype or "fp16"
    out, layout = _cell(cells, "out", str) or chosen.out, _cell(cells, "layout", str) or chosen.layout
    fast = _cell(cells, "fast", _flag)
    if fast is None:
        fast = bool(chosen.fast)
    m, n, k = Problem.parse_shape(shape)
    usual = Problem.gemm(m, n, k, parse_enum("dtype", dtype, DType), None if out is None else parse_enum("out", out, DType),
                         None if layout is None else parse_enum("layout", layout, Layout), fast)
    return Case(f"{m}x{n}x{k}", str(usual.a_dtype), str(usual.d_dtype), str(usual.layout), fast)


def _cell(cells: Mapping[str, Any], name: str, read: Callable[[Any], Any]) -> Any:
    value = cells.get(name)
    return None if value is None else read(value.strip() if isinstance(value, str) else value)


def _size(cells: Mapping[str, Any], name: str) -> str:
    text = str(cells.get(name, "")).strip()
    if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        raise UsageError(f"{name} = {text!r} is not a whole number", "columns m, n and k of whole numbers")
    return text


def _flag(value: object) -> bool:
    known = {"true": True, "1": True, "fast": True, "yes": True, "false": False, "0": False, "no": False}
    text = str(value).lower()
    if text not in known:
        raise UsageError(f"fast = {value!r} is not known", "true or false")
    return known[text]
