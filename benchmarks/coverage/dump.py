"""What a device says of problems that were not confirmed: operands and outputs of several draws of each kind, and how many leaves lie under
the node that joins each two indices, so that a walk and a model can be mended without a device."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.coverage.rows import Dataset, Outcome
from probe.errors import Declined, EnvironmentProblem, LibraryError, UsageError
from probe.inputs.draws import Draw, DrawKind
from probe.inputs.probes import pair_for
from probe.newfile import new_file
from probe.oracle import open_oracle
from probe.preference import Preference
from probe.problem import Problem
from probe.summing import Summing
from probe.walks.reader import Reader, places_for

DRAWS = 3  # of each kind
_MOST_BYTES = 2**26  # of all arrays, before they are packed
_SIDE = 16  # different rows and columns of a draw
MOST_PAIRS = 200_000  # read for each problem: every two indices up to K = 632, beyond that some of them
_EXPERIMENTS = 2**24  # in all; a launch reads as many as the output has rows or columns
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
         every: bool = False, kinds: tuple[DrawKind, ...] = tuple(DrawKind), most_pairs: int = MOST_PAIRS) -> int:
    """Write a new .npz of the refuted and ambiguous problems of a dataset with M*N*K up to `largest`; every: the confirmed too. library:
    as the run's where None. most_pairs: of indices, for each problem; 0 reads none. Returns how many problems it holds.

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
    left = _EXPERIMENTS
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
        pairs = pairs_of(problem.k, row["index"], most_pairs)
        if 0 < len(pairs) <= left:
            left -= len(pairs)
            arrays[f"{row['index']}/pairs"], arrays[f"{row['index']}/leaves"] = pairs.astype(np.int32), leaves(summing, pairs)
            held += 3 * arrays[f"{row['index']}/leaves"].nbytes
    arrays["about"] = np.frombuffer(json.dumps({"facts": dict(dataset.facts), "problems": about}).encode(), np.uint8)
    _write(path, arrays)
    return len(about)


def pairs_of(k: int, seed: int, most: int) -> Bits:
    """Pairs of indices (i, j), i < j, int64 (count, 2): all, or neighbours, (0, j) and as many drawn ones as fit, `most` in all."""
    if k * (k - 1) // 2 <= most:
        return np.stack(np.triu_indices(k, 1), axis=1).astype(np.int64)
    spots = np.arange(k - 1, dtype=np.int64)
    known = np.concatenate([np.stack([spots, spots + 1], axis=1), np.stack([np.zeros_like(spots), spots + 1], axis=1)])[:most]
    drawn = np.random.Generator(np.random.Philox(seed)).integers(0, k, (most - len(known), 2))
    return np.unique(np.concatenate([known, np.sort(drawn[drawn[:, 0] != drawn[:, 1]], axis=1)]), axis=0)


def leaves(summing: Summing, pairs: Bits) -> Bits:
    """How many indices lie under the node that joins each pair, the two counted too, int32; -1 where the pair does not cancel.

    Read as the walk reads, at one element a row or column; where elements sum differently this mixes them.
    """
    pair = pair_for(summing.input_dtype)
    reader = Reader(summing, pair, places_for(None, summing.m, summing.n, pair.both))
    lost = reader.lost(pairs, np.tile(np.array([[0, summing.k]], np.int64), (len(pairs), 1)))
    return np.where(lost < 0, -1, lost + 2).astype(np.int32)


def _write(path: Path, arrays: dict[str, Bits]) -> None:
    with new_file(path) as aside, zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as file:
        for name, array in arrays.items():
            held = io.BytesIO()
            np.save(held, array)
            file.writestr(f"{name}.npy", held.getvalue())


def load(path: Path) -> Iterator[Dumped]:
    """The draws of a dump, problem by problem."""
    with np.load(path) as arrays:
        problems = {p["index"]: p for p in json.loads(arrays["about"].tobytes())["problems"]}
        for name in arrays.files:
            if name.endswith("/a"):
                index, kind, number, _ = name.split("/")
                start = name[:-1]
                yield Dumped(problems[int(index)], kind, int(number), arrays[start + "a"], arrays[start + "b"], arrays[start + "d"])
