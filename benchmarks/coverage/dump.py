"""Bytes of problems that were not confirmed: operands and outputs of several draws of each kind, so that a model can be mended without a
device."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.coverage.rows import Dataset, Outcome
from probe.errors import Declined, EnvironmentProblem, LibraryError, UsageError
from probe.inputs.draws import Draw, DrawKind
from probe.oracle import open_oracle
from probe.preference import Preference
from probe.problem import Problem
from probe.records import name_aside, publish

DRAWS = 3  # of each kind
_MOST_BYTES = 2**26  # of all arrays, before they are packed
_SIDE = 16  # different rows and columns of a draw
Bits = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Dumped:
    """One draw: bits of A (rows, k), of B (k, columns) and of the library's output (rows, columns), the top left corner of the whole
    output, whose rows and columns repeat these. about: the problem and what was found of it."""

    about: dict[str, Any]
    kind: str
    number: int
    a: Bits
    b: Bits
    d: Bits


def dump(dataset: Dataset, path: Path, say: Callable[[str], None], *, library: str | None = None, gpu: int = 0, largest: int = 2**24,
         every: bool = False, kinds: tuple[DrawKind, ...] = tuple(DrawKind)) -> int:
    """Write a new .npz of the refuted and ambiguous problems of a dataset with M*N*K up to `largest`; every: the confirmed too. library:
    as the run's where None. Returns how many problems it holds.

    Raises UsageError for a name that is taken, or a library that answers otherwise than in the run; EnvironmentProblem.
    """
    if path.suffix != ".npz" or os.path.lexists(path):
        raise UsageError(f"output {path} exists, or does not end in .npz", "a new name that ends in .npz")
    if dataset.rows and "problem" not in dataset.rows[0]:
        raise UsageError("the small form of a dataset does not hold what a problem needs", "the files of the run itself")
    wanted = (Outcome.REFUTED, Outcome.AMBIGUOUS, *((Outcome.CONFIRMED,) if every else ()))
    rows = [r for r in dataset.rows if r["outcome"] in wanted]
    small = sorted((r for r in rows if r["m"] * r["n"] * r["k"] <= largest), key=lambda r: (r["m"] * r["n"] * r["k"], r["index"]))
    say(f"{len(small)} of {len(rows)} problems are small enough")
    opened = open_oracle(library or dataset.facts["library"], gpu)
    if opened.oracle.target.sha256 != dataset.facts["target"]["sha256"]:
        raise UsageError("this is another library than the run's", "the same library file, by --library")
    arrays: dict[str, Bits] = {}
    about: list[dict[str, Any]] = []
    held = 0
    for row in small:
        if held > _MOST_BYTES:
            say(f"{len(small) - len(about)} problems are left out: {_MOST_BYTES >> 20} MiB are full")
            break
        problem, preference = Problem.from_json(row["problem"]), Preference.from_json(row["preference"])
        try:
            answer = opened.oracle.ask(problem, preference)
            summing = answer if isinstance(answer, Declined) else opened.oracle.summing(problem, answer, preference)
        except (EnvironmentProblem, LibraryError) as error:
            say(f"{row['index']} failed, and with it the rest: {error}")
            break
        if isinstance(summing, Declined) or isinstance(answer, Declined):
            say(f"{row['index']} is declined now: {summing}")
            continue
        about.append({name: row[name] for name in ("index", "problem", "preference", "kernels", "launched", "family", "outcome", "k_summed",
                                                   "schedule_text", "first_difference", "gemm_desc")} | {"answer": answer.to_document()})
        for kind in kinds:
            draws = [Draw.of(problem.m, problem.n, problem.k, problem.a_dtype, kind, row["index"], i, row["k_summed"], _SIDE)
                     for i in range(DRAWS)]
            for i, (draw, out) in enumerate(zip(draws, summing.outputs([(d, None) for d in draws]), strict=True)):
                block, name = draw.block, f"{row['index']}/{kind}/{i}/"
                arrays[name + "a"], arrays[name + "b"] = block.different_rows, np.ascontiguousarray(block.different_columns.T)
                arrays[name + "d"] = out[:block.rows, :block.columns]
                held += sum(arrays[name + x].nbytes for x in "abd")
    arrays["about"] = np.frombuffer(json.dumps({"facts": dict(dataset.facts), "problems": about}).encode(), np.uint8)
    _write(path, arrays)
    return len(about)


def _write(path: Path, arrays: dict[str, Bits]) -> None:
    aside = name_aside(path)
    try:
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as file:
            for name, array in arrays.items():
                held = io.BytesIO()
                np.save(held, array)
                file.writestr(f"{name}.npy", held.getvalue())
        publish(aside, path)
    except OSError as error:
        raise EnvironmentProblem(f"output {path} cannot be written: {error.strerror or error}", "another folder, or more room") from error
    finally:
        with suppress(OSError):
            aside.unlink()


def load(path: Path) -> Iterator[Dumped]:
    """The draws of a dump, problem by problem."""
    with np.load(path) as arrays:
        problems = {p["index"]: p for p in json.loads(arrays["about"].tobytes())["problems"]}
        for name in arrays.files:
            if name.endswith("/a"):
                index, kind, number, _ = name.split("/")
                start = name[:-1]
                yield Dumped(problems[int(index)], kind, int(number), arrays[start + "a"], arrays[start + "b"], arrays[start + "d"])
