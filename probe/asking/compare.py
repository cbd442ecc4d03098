"""The verb `compare_answers`: what changed between two tables of answers to the same questions, by family and field."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probe.answering import ANSWER_COLUMNS, QUESTION_COLUMNS
from probe.asking.family import family_of
from probe.asking.table import TableHead, read_head, read_table
from probe.errors import ExitCode, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

# What of an answer is compared: all but the waves, an estimate that changes nothing.
FIELDS = tuple(name for name in ANSWER_COLUMNS if name != "waves")
_QUESTION = tuple(name for name in QUESTION_COLUMNS if name not in ("index", "source"))
_SHAPE = ("m", "n", "k", "input_dtype", "output_dtype", "layout", "fast_accumulation")


@dataclass(frozen=True)
class Move:
    """Questions whose answer changed from one family to another, or inside one: how often, in which fields, and the first of them."""

    before: str
    after: str
    count: int
    fields: dict[str, int]
    first: str

    def to_document(self) -> dict[str, Any]:
        return {"from": self.before, "to": self.after, "count": self.count, "fields": self.fields, "first": self.first}


@dataclass(frozen=True)
class AnswerChanges:
    """What changed from A to B. compared: questions that both have; only_a and only_b: that one lacks. families: questions of A by family,
    how many of them changed. fields: how many answers changed in each. moves: the most frequent first."""

    a: TableHead
    b: TableHead
    compared: int
    only_a: int
    only_b: int
    changed: int
    families: dict[str, tuple[int, int]]
    fields: dict[str, int]
    moves: tuple[Move, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0 nothing changed and both have the same questions, 1 otherwise."""
        return ExitCode.NOT_CONFIRMED if self.changed or self.only_a or self.only_b else ExitCode.OK

    def to_document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"kind": "answer changes", **{x: {"file": str(head.path), "target": head.target.to_document()}
                                            for x, head in (("a", self.a), ("b", self.b))},
                "compared": self.compared, "only_a": self.only_a, "only_b": self.only_b, "changed": self.changed,
                "families": {name: {"questions": count, "changed": moved} for name, (count, moved) in self.families.items()},
                "fields": self.fields, "moves": [move.to_document() for move in self.moves], "exit_code": int(self.exit_code)}


def compare_answers(a: Path | str, b: Path | str) -> AnswerChanges:
    """Tell which answers differ between two tables of `ask`, question by question, whatever their order.

    Raises UsageError for a file that is no such table (one of distinct answers has no questions) and where no question is in both.
    """
    heads = read_head(a), read_head(b)
    for head in heads:
        if head.distinct:
            raise UsageError(f"{head.path} holds distinct answers, and no question each", "ask again without --distinct")
    tables = [_unique(read_table(head, [*_QUESTION, *FIELDS])) for head in heads]
    sizes = [table.num_rows for table in tables]
    one, other = _matched(*tables)
    if one.num_rows == 0:
        raise UsageError(f"no question is in both {heads[0].path} and {heads[1].path}", "tables of the same shapes, options and seed")
    moved = {name: _differ(one[name], other[name]) for name in FIELDS}
    changed = np.logical_or.reduce(list(moved.values()))
    names = [_families(table) for table in (one, other)]
    before, after = (found[0][found[1]] for found in names)
    families = {str(name): (int((before == name).sum()), int((changed & (before == name)).sum())) for name in names[0][0]}
    return AnswerChanges(*heads, one.num_rows, sizes[0] - one.num_rows, sizes[1] - one.num_rows, int(changed.sum()),
                         dict(sorted(families.items(), key=lambda item: -item[1][0])),
                         {name: int(flags.sum()) for name, flags in moved.items() if flags.any()},
                         _moves(one, before, after, changed, moved))


def _unique(table: pa.Table) -> pa.Table:
    """A row a question: a stream may draw one twice. Raises UsageError where equal questions have different answers."""
    grouped = table.group_by(list(_QUESTION)).aggregate([([], "count_all")])
    if grouped.num_rows == table.num_rows:
        return table
    whole = table.group_by([*_QUESTION, *FIELDS]).aggregate([([], "count_all")])
    if whole.num_rows != grouped.num_rows:
        raise UsageError("one question has two answers in one table", "a table that one run of `probe ask` wrote")
    return whole.select([*_QUESTION, *FIELDS])


def _matched(a: pa.Table, b: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows of the questions that both have, in one order."""
    if a.num_rows == b.num_rows and a.select(_QUESTION).equals(b.select(_QUESTION)):
        return a, b
    joined = a.join(b, list(_QUESTION), join_type="inner", right_suffix=" of b")
    left = joined.select([*_QUESTION, *FIELDS])
    right = joined.select([*_QUESTION, *(f"{name} of b" for name in FIELDS)]).rename_columns([*_QUESTION, *FIELDS])
    return left, right


def _differ(a: pa.ChunkedArray, b: pa.ChunkedArray) -> Any:
    """Where two columns differ, bool; two nulls are equal."""
    import pyarrow.compute as pc

    different = pc.fill_null(pc.not_equal(a, b), False)
    return pc.or_(different, pc.xor(pc.is_null(a), pc.is_null(b))).to_numpy()


def _families(table: pa.Table) -> tuple[Any, Any]:
    """The names of the families, and for each row the place of its own."""
    pairs = list(zip(table["algo_id"].to_pylist(), table["splitk_num"].to_pylist(), strict=True))
    names: dict[str, int] = {}
    known = {pair: names.setdefault(family_of(*pair), len(names)) for pair in dict.fromkeys(pairs)}
    return np.array(list(names), object), np.array([known[pair] for pair in pairs], np.int64)


def _moves(table: pa.Table, before: Any, after: Any, changed: Any, moved: dict[str, Any]) -> tuple[Move, ...]:
    places = np.flatnonzero(changed)
    counts: Counter[tuple[str, str]] = Counter(zip(before[places].tolist(), after[places].tolist(), strict=True))
    moves = []
    for (old, new), count in counts.most_common():
        mine = places[(before[places] == old) & (after[places] == new)]
        fields = {name: int(flags[mine].sum()) for name, flags in moved.items() if flags[mine].any()}
        row = {name: table[name][int(mine[0])].as_py() for name in _SHAPE}
        first = f"{row['m']}x{row['n']}x{row['k']} {row['input_dtype']} {row['output_dtype']} {row['layout']}"
        moves.append(Move(old, new, count, fields, first + (" fast" if row["fast_accumulation"] else "")))
    return tuple(moves)
