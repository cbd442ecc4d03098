"""The verb `ask`: what a library answers to many problems, without running anything, in processes over all cores."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.answering import DISTINCT_COLUMNS, KEY
from probe.answering import distinct as distinct_of
from probe.asking.family import family_of
from probe.asking.pool import ask_over
from probe.asking.shapes import Wanted, wanted
from probe.asking.table import TableWriter
from probe.children import Child
from probe.errors import ExitCode, UsageError
from probe.oracle import SIMULATED_LIBRARIES
from probe.parallel import cores
from probe.pipeline import Progress
from probe.preference import Preference
from probe.questions import NUMBERS, draw
from probe.records import now
from probe.regimes import Chosen
from probe.target import Target
from probe.values import check_int
from probe.verbs import MAX_SEED

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 8192  # questions of one request: half a second of asking
_MOST_PROCESSES = 1024
Told = Callable[[int, int], None]


@dataclass
class Population:
    """Different answers, each with how many questions got it, its least and most workspace, and the first question's index."""

    answers: dict[tuple[Any, ...], list[Any]] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of `probe.answering.distinct` in."""
        for *key, count, least, most, first in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            held = self.answers.setdefault(tuple(key), [0, least, most, first])
            held[0] += count
            if least is not None:
                held[1], held[2] = min(held[1], least), max(held[2], most)
            held[3] = min(held[3], first)

    @property
    def declined(self) -> dict[str, int]:
        """Questions without an answer, by reason."""
        return {key[-1]: held[0] for key, held in self.answers.items() if key[-1] is not None}

    @property
    def families(self) -> dict[str, int]:
        """Questions by family, the most frequent first."""
        counts: Counter[str] = Counter()
        for key, held in self.answers.items():
            if key[-1] is None:
                values = dict(zip(KEY, key, strict=True))
                counts[family_of(values["algo_id"], values["splitk_num"])] += held[0]
        return dict(counts.most_common())

    @property
    def distinct(self) -> int:
        """Different answers, by their nine attributes."""
        return sum(key[-1] is None for key in self.answers)


@dataclass(frozen=True)
class AskedAnswers:
    """What came of asking. questions: asked, in `seconds` by `processes`. repeats: of a file of shapes, left out. output: None for none."""

    target: Target
    found_by: str
    shapes: str
    seed: int | None
    questions: int
    repeats: int
    population: Population
    processes: int
    seconds: float
    output: Path | None

    @property
    def exit_code(self) -> ExitCode:
        """3 where nothing was answered."""
        return ExitCode.OK if self.population.distinct else ExitCode.DECLINED

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": "ask", "target": self.target.to_document(), "found_by": self.found_by, "shapes": self.shapes, "seed": self.seed,
                "questions": self.questions, "repeats": self.repeats, "distinct": self.population.distinct,
                "families": self.population.families, "declined": self.population.declined, "processes": self.processes,
                "seconds": round(self.seconds, 3), "output": None if self.output is None else str(self.output),
                "exit_code": int(self.exit_code)}


def ask(shapes: str | Path, *, library: str | None = None, gpu: int = 0, dtype: str | None = None, out: str | None = None,
        layout: str | None = None, fast_accumulation: bool | None = None, workspace_bytes: int | None = None,
        reduction_schemes: int | None = None, problems: int | None = None, seed: int | None = None, processes: int | None = None,
        distinct: bool = False, output: Path | str | None = None, progress: Told = lambda done, total: None,
        notice: Progress = lambda text: None) -> AskedAnswers:
    """Ask a library's cost model for every problem of a set. Nothing is launched; a library of the vendor needs a GPU.

    shapes: a regime (acceptance, split, linear, small), a file of shapes (text, .csv, .parquet), or a campaign file (.toml), whose lists
    and random regimes are one stream. library, gpu: as `walk` takes them. dtype, out, layout, fast_accumulation: choose cases of a regime
    and complete lines of a file. workspace_bytes (32 MiB) and reduction_schemes (7): what the library may use; a campaign file says these
    itself. problems: the first so many; of a campaign file that draws, its budget where None. seed: of what is drawn, in place of the
    file's. processes: None is one a core. distinct: write a row a different answer, with its count and first question, in place of a row a
    question. output: a new .parquet file, which appears when it is whole. progress: called with questions done and in all. notice: with
    what is said beside the result.
    Raises UsageError, EnvironmentProblem, LibraryError, and ChildBug for a bug in a child.
    """
    preference = None
    if workspace_bytes is not None or reduction_schemes is not None:
        mask = check_int("reduction_schemes", 7 if reduction_schemes is None else reduction_schemes, 0, 7,
                         "0 to 7, a sum of 1 in place, 2 compute type, 4 output type")
        preference = Preference(32 * 2**20 if workspace_bytes is None else workspace_bytes, mask)
    check_int("gpu", gpu, 0, 1023)
    if library in SIMULATED_LIBRARIES and gpu != 0:
        raise UsageError(f"the simulated library runs on no GPU, so there is no number {gpu}", "leave out gpu, or name another library")
    if seed is not None:
        check_int("seed", seed, 0, MAX_SEED)
    if processes is not None:
        check_int("processes", processes, 1, _MOST_PROCESSES)
    questions = wanted(shapes, Chosen(dtype, out, layout, fast_accumulation), preference, problems, seed)
    size = min(_BATCH, -(-questions.count // (processes or cores())))
    number = min(processes or cores(), -(-questions.count // size))
    path = None if output is None else Path(output)
    if path is not None:
        TableWriter.check(path)
    with ExitStack() as stack:
        children = [stack.enter_context(Child(library, gpu, name=f"process {i + 1}")) for i in range(number)]
        identity = children[0].identify()
        for text in (identity.notice, identity.announcement):
            if text:
                notice(text)
        for child in children[1:]:
            if child.identify().target != identity.target:
                raise UsageError("the processes opened different libraries", "do not change a library while it is in use")
        population, began = Population(), time.perf_counter()
        _fill(questions, children, size, population, identity.target, path, distinct, progress)
        seconds = time.perf_counter() - began
    drawn = bool(questions.stream.regimes)
    return AskedAnswers(identity.target, identity.found_by, questions.name, questions.stream.seed if drawn else None, questions.count,
                        questions.repeats, population, number, seconds, path)


def _fill(questions: Wanted, children: list[Child], size: int, population: Population, target: Target, path: Path | None, unique: bool,
          progress: Told) -> None:
    """Ask everything, count it, and write the table where there is a path."""
    about = questions.to_document() | {"date": now()}
    alone = unique or path is None  # rows of questions stay in the children where nobody wants them
    with ExitStack() as stack:
        writer = None if path is None else stack.enter_context(TableWriter(path, target, about, unique))
        batches = ask_over(children, questions.chunks(size), alone)
        stack.callback(batches.close)
        done = 0
        progress(done, questions.count)
        for batch in batches:
            population.add(batch if alone else distinct_of(batch))
            if writer is not None and not unique:
                writer.write(batch)
            done = min(questions.count, done + size) if alone else done + batch.num_rows
            progress(done, questions.count)
        if writer is not None and unique:
            writer.write(_distinct_batch(questions, population, writer.schema))


def _distinct_batch(questions: Wanted, population: Population, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a table of distinct answers, the most frequent first, each with its first question."""
    import pyarrow as pa

    rows = []
    for key, (count, least, most, first) in sorted(population.answers.items(), key=lambda item: (-item[1][0], item[1][3])):
        one = draw(questions.stream, first, first + 1)
        kind = one.kinds[int(one.kind[0])]
        question = {"index": first, "source": one.sources[int(one.source[0])], "input_dtype": str(kind.dtype),
                    "output_dtype": str(kind.output), "layout": str(kind.layout), "fast_accumulation": kind.fast,
                    **{name: int(one.numbers[name][0]) for name in NUMBERS}}
        rows.append(dict(zip(DISTINCT_COLUMNS, (*key, count, least, most), strict=True))
                    | {f"first_{name}": value for name, value in question.items()})
    return pa.RecordBatch.from_pylist(rows, schema=schema)
