"""The verb `answers`: which algorithms a library has for a combination of dtypes, what each can be set to, and which its cost model picks.

The list and the capabilities depend on the dtypes alone. What was seen depends on the layout, the preference and the shapes that were
drawn: an algorithm that was not seen is one that these draws did not meet.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from probe.answer import CONFIG_ATTRIBUTES, Answer
from probe.capabilities import Capabilities
from probe.errors import Declined, ExitCode, UsageError
from probe.newfile import new_file
from probe.oracle import SIMULATED_LIBRARIES, Oracle, open_oracle
from probe.pipeline import Progress
from probe.preference import Preference
from probe.problem import DType, Layout, Problem
from probe.records import check_output, now
from probe.target import Target
from probe.values import check_int, parse_enum
from probe.verbs import MAX_SEED
from probe.wire import declined_document

KIND, VERSION = "answers", 1
SHAPES = 2000  # 0.2 s of asking on an H200 host by DESIGN fact 8 (60 us each)
_MOST_SHAPES = 1_000_000
_MOST_SIDE, _MOST_K, _MOST_OPERANDS = 8192, 2**17, 2**29  # elements of M, N and K; bytes of A and B


@dataclass(frozen=True)
class Seen:
    """How often the cost model picked an algorithm, at which shape first, and the values that each attribute then had, ascending."""

    times: int
    first: str
    values: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Reachable:
    """One algorithm. listed: by cublasLtMatmulAlgoGetIds (the cost model may pick others). seen: None where no draw met it."""

    algo_id: int
    listed: bool
    capabilities: Capabilities | Declined
    seen: Seen | None

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        can = declined_document(self.capabilities) if isinstance(self.capabilities, Declined) else self.capabilities.to_document()
        seen = None if self.seen is None else {"times": self.seen.times, "first": self.seen.first,
                                               "values": {name: list(v) for name, v in self.seen.values.items()}}
        return {"algo_id": self.algo_id, "listed": self.listed, "capabilities": can, "seen": seen}


@dataclass(frozen=True)
class Answers:
    """What can be reached on one target. problem: carries the dtypes and the layout; its shape is that of the first draw.

    shapes: problems drawn and asked. declined: how many of them got no answer, by reason. rows: in the order of the library's list, then
    what was seen beyond it.
    """

    target: Target
    found_by: str
    problem: Problem
    preference: Preference
    shapes: int
    declined: Mapping[str, int]
    seed: int
    rows: tuple[Reachable, ...]
    date: str = field(default_factory=now)

    exit_code = ExitCode.OK

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": KIND, "version": VERSION, "date": self.date, "target": self.target.to_document(), "found_by": self.found_by,
                "problem": self.problem.to_document(), "preference": self.preference.to_document(), "shapes": self.shapes,
                "declined": dict(self.declined), "seed": self.seed, "algorithms": [row.to_document() for row in self.rows]}


def answers(dtype: str = "fp16", layout: str | None = None, out: str | None = None, *, fast_accumulation: bool = False,
            workspace_bytes: int = 32 * 2**20, reduction_schemes: int = 7, shapes: int = SHAPES, library: str | None = None, gpu: int = 0,
            seed: int | None = None, output: Path | str | None = None, progress: Progress = lambda step: None,
            notice: Progress = lambda text: None) -> Answers | Declined:
    """List the algorithms for a combination of dtypes, what each can be set to, and which were picked for `shapes` drawn shapes.

    dtype, layout, out, fast_accumulation, workspace_bytes, reduction_schemes, library, gpu, seed: as `walk` takes them. shapes: 1 to
    1,000,000 (M and N to 8192, K to 131072, log-uniform, half of them in multiples of 8; of 16 for e4m3, always). output: a new .json
    file. Nothing is launched. Declined where the library has no algorithm for the dtypes. Raises UsageError, EnvironmentProblem or
    LibraryError.
    """
    kind = parse_enum("dtype", dtype, DType)
    like = Problem.gemm(16, 16, 16, kind, None if out is None else parse_enum("out", out, DType),
                        None if layout is None else parse_enum("layout", layout, Layout), fast_accumulation)
    check_int("reduction_schemes", reduction_schemes, 0, 7, "0 to 7, a sum of 1 in place, 2 compute type, 4 output type")
    preference = Preference(workspace_bytes=workspace_bytes, reduction_scheme_mask=reduction_schemes)
    check_int("shapes", shapes, 1, _MOST_SHAPES)
    check_int("gpu", gpu, 0, 1023)
    if library in SIMULATED_LIBRARIES and gpu != 0:
        raise UsageError(f"the simulated library runs on no GPU, so there is no number {gpu}", "leave out gpu, or name another library")
    if seed is not None:
        check_int("seed", seed, 0, MAX_SEED)
    path = None if output is None else Path(output)
    if path is not None:
        if path.suffix != ".json":
            raise UsageError(f"output {path} does not end in .json", "name it so")
        check_output(path)
    opened = open_oracle(library, gpu)
    for text in (opened.notice, opened.oracle.announcement):
        if text:
            notice(text)
    found = list_answers(opened.oracle, like, preference, shapes, secrets.randbits(48) if seed is None else seed, progress)
    if path is not None and isinstance(found, Answers):
        _write(found, path)
    return found


def list_answers(oracle: Oracle, like: Problem, preference: Preference, shapes: int, seed: int,
                 progress: Progress = lambda step: None) -> Answers | Declined:
    """The verb on an opened library, for problems that are `like` one in all but their shape."""
    progress("list")
    listed = oracle.algorithms(like)
    if isinstance(listed, Declined):
        return listed
    progress("ask")
    seen, declined = _sample(oracle, like, preference, shapes, seed)
    progress("capabilities")
    ids = dict.fromkeys([*listed, *sorted(seen)])
    rows = tuple(Reachable(i, i in listed, oracle.capabilities(like, i), seen.get(i)) for i in ids)
    return Answers(oracle.target, oracle.found_by, like, preference, shapes, declined, seed, rows)


def _sample(oracle: Oracle, like: Problem, preference: Preference, shapes: int, seed: int) -> tuple[dict[int, Seen], dict[str, int]]:
    """What the cost model picks for drawn shapes: by algorithm; and its refusals, by reason."""
    got: dict[int, list[tuple[Problem, Answer]]] = {}
    declined: Counter[str] = Counter()
    source = drawn(like, seed)
    for _ in range(shapes):
        problem = next(source)
        answer = oracle.ask(problem, preference)
        if isinstance(answer, Declined):
            declined[str(answer.reason)] += 1
        else:
            got.setdefault(answer.algo_id, []).append((problem, answer))
    return {algo_id: _seen(cases) for algo_id, cases in got.items()}, dict(declined)


def _seen(cases: list[tuple[Problem, Answer]]) -> Seen:
    first = cases[0][0]
    values = {name: tuple(sorted({getattr(a, name) for _, a in cases})) for name in CONFIG_ATTRIBUTES if name != "algo_id"}
    return Seen(len(cases), f"{first.m}x{first.n}x{first.k}", values)


def drawn(like: Problem, seed: int) -> Iterator[Problem]:
    """Problems that differ from `like` in M, N and K alone, without end. Equal seeds give equal problems."""
    rng = np.random.Generator(np.random.Philox(seed))
    step = 16 if like.a_dtype.is_fp8 else 8
    while True:
        m, n, k = (int(np.exp(rng.uniform(0, np.log(most)))) for most in (_MOST_SIDE, _MOST_SIDE, _MOST_K))
        k = min(k, max(1, _MOST_OPERANDS // ((m + n) * like.a_dtype.itemsize)))
        if like.a_dtype.is_fp8 or rng.random() < 0.5:
            n, k = (max(step, x - x % step) for x in (n, k))
        yield replace(like, m=m, n=n, k=k)


def _write(found: Answers, path: Path) -> None:
    """The JSON file, whole or not at all; an existing one is never replaced."""
    with new_file(path) as aside:
        aside.write_text(json.dumps(found.to_document(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
