"""A batch of questions to one opened library, and its answers as columns: nothing is launched.

Columns that go on from a child to a file: the question, the answer, or why there is none.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from probe.answer import CONFIG_ATTRIBUTES
from probe.cublaslt.asker import Asker
from probe.errors import Declined, DeclineReason, UsageError
from probe.oracle import DeviceOracle, Oracle
from probe.questions import NUMBERS, Questions

if TYPE_CHECKING:
    import pyarrow as pa

QUESTION_COLUMNS: dict[str, str] = {"index": "int64", "source": "string", "input_dtype": "string", "output_dtype": "string",
                                    "layout": "string", "fast_accumulation": "bool", **dict.fromkeys(NUMBERS, "int64")}
ATTRIBUTE_COLUMNS: dict[str, str] = dict.fromkeys(CONFIG_ATTRIBUTES, "int64")
# The nine attributes and the workspace are null, and the waves too, where `declined` says why there is no answer.
ANSWER_COLUMNS: dict[str, str] = {**ATTRIBUTE_COLUMNS, "workspace_bytes": "int64", "waves": "double", "declined": "string"}
COLUMNS = {**QUESTION_COLUMNS, **ANSWER_COLUMNS}
# Of answers alone, each once.
KEY = (*ATTRIBUTE_COLUMNS, "declined")
DISTINCT_COLUMNS: dict[str, str] = {**ATTRIBUTE_COLUMNS, "declined": "string", "count": "int64", "least_workspace_bytes": "int64",
                                    "most_workspace_bytes": "int64"}
_Row = tuple[Any, ...]


class Answering:
    """Asks one opened library, batch after batch. Not for several threads at once."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._asker = Asker(oracle.library) if isinstance(oracle, DeviceOracle) else None

    def batch(self, questions: Questions) -> pa.RecordBatch:
        """The columns COLUMNS, a row a question, in their order. Raises LibraryError, and UsageError for a question that is none."""
        import pyarrow as pa

        rows = self._slowly(questions) if self._asker is None else self._quickly(questions, self._asker)
        answers = dict(zip(ANSWER_COLUMNS, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(ANSWER_COLUMNS, ())
        columns = _question_columns(questions) | answers
        return pa.RecordBatch.from_arrays([pa.array(columns[name], pa.type_for_alias(kind)) for name, kind in COLUMNS.items()],
                                          schema=arrow_schema(COLUMNS))

    def _slowly(self, questions: Questions) -> list[_Row]:
        """By the oracle's own call, a problem each."""
        rows: list[_Row] = []
        for place in range(len(questions)):
            asked = questions.asked(place)
            answer = self._oracle.ask(asked.problem, asked.preference)
            if isinstance(answer, Declined):
                rows.append(_declined(answer.reason))
            else:
                rows.append((*answer.attributes, answer.workspace_bytes, answer.waves, None))
        return rows

    def _quickly(self, questions: Questions, asker: Asker) -> list[_Row]:
        """With descriptors that stay. What the device cannot hold is declined, as the oracle does."""
        assert isinstance(self._oracle, DeviceOracle)
        fits = (questions.operand_bytes() <= self._oracle.device.identity.total_bytes).tolist()
        kinds = {kind: asker.kind(kind.problem()) for kind in questions.kinds}
        rows: list[_Row] = []
        for (kind, numbers), room in zip(questions.each(), fits, strict=True):
            if not room:
                rows.append(_declined(DeclineReason.TOO_LARGE))
                continue
            m, n, k, lda, ldb, ldd, _, _, _, workspace, mask, a, b, d = numbers
            got = asker.ask(kinds[kind], (m, n, k, lda, ldb, ldd), workspace, mask, (a, b, d, d))
            rows.append(_declined(got) if isinstance(got, DeclineReason) else (*got.attributes, got.workspace_bytes, got.waves, None))
        return rows


def _declined(reason: DeclineReason) -> _Row:
    return (*[None] * (len(ANSWER_COLUMNS) - 1), str(reason))


def _question_columns(questions: Questions) -> dict[str, Any]:
    import pyarrow as pa

    def named(codes: Any, names: list[str]) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names, pa.string())).cast(pa.string())

    kinds = questions.kinds
    words = {"input_dtype": [str(k.dtype) for k in kinds], "output_dtype": [str(k.output) for k in kinds],
             "layout": [str(k.layout) for k in kinds]}
    return {"index": questions.index, "source": named(questions.source, list(questions.sources)),
            **{name: named(questions.kind, values) for name, values in words.items()},
            "fast_accumulation": np.array([k.fast for k in kinds], bool)[questions.kind], **questions.numbers}


def arrow_schema(columns: dict[str, str], metadata: dict[str, str] | None = None) -> pa.Schema:
    """Names and Arrow types as a schema."""
    import pyarrow as pa

    return pa.schema([pa.field(name, pa.type_for_alias(kind)) for name, kind in columns.items()], metadata)


def distinct(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The different answers of a batch: DISTINCT_COLUMNS, and "first", the least index of each."""
    import pyarrow as pa

    grouped = pa.Table.from_batches([batch]).group_by(list(KEY)).aggregate(
        [("index", "count"), ("workspace_bytes", "min"), ("workspace_bytes", "max"), ("index", "min")])
    names = dict(zip(("index_count", "workspace_bytes_min", "workspace_bytes_max", "index_min"),
                     (*list(DISTINCT_COLUMNS)[len(KEY):], "first"), strict=True))
    renamed = grouped.rename_columns([names.get(name, name) for name in grouped.column_names])
    return renamed.select([*DISTINCT_COLUMNS, "first"]).combine_chunks().to_batches()[0]


def batch_to_text(batch: pa.RecordBatch) -> str:
    """A batch as text that JSON carries."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode()


def batch_from_text(text: str, columns: dict[str, str], rows: int | None = None) -> pa.RecordBatch:
    """The batch of `batch_to_text`. Raises ValueError where it has other columns, or not as many rows."""
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(base64.b64decode(text)) as reader:
            batch = reader.read_next_batch()
    except (pa.ArrowException, StopIteration) as error:
        raise ValueError(f"no batch of answers: {error}") from None
    if {field.name: str(field.type) for field in batch.schema} != columns or rows not in (None, batch.num_rows):
        raise UsageError("a batch of answers has other columns, or not as many rows as were asked")
    return batch
