"""How long the parts of a split-K sum are, as walks measured it, beside what the span rules before and after the mend say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from probe.capture import Capture
from probe.errors import UsageError
from probe.problem import DType, Problem
from probe.tail.rule import NVJET, block, part, part_covering
from probe.target import Target
from probe.values import Record, check_enum, check_int, check_text
from probe.vendor import numbers

KIND = "splitk-tail-spans"  # of the JSON document


@dataclass(frozen=True)
class Span(Record):
    """One sum that a walk recovered: `parts` parts of `span` values of k hold the sum, the last as long as is left; `split` was asked.

    grid: of the summing kernel as it was launched, which can hold parts that are left without values. outcome: of the proof of that order
    on fresh draws. source: the dataset that it was taken from.
    """

    KIND: ClassVar[str] = "tail-span"
    FORM: ClassVar[int] = 1

    target: Target
    problem: str  # its key
    input_dtype: DType
    k: int
    split: int
    span: int
    parts: int
    k_summed: int
    grid: tuple[int, ...]
    outcome: str
    source: str

    def __post_init__(self) -> None:
        check_text("problem", self.problem)
        check_enum("input_dtype", self.input_dtype, DType)
        check_int("k", self.k, 1, 2**31 - 1)
        check_int("split", self.split, 2, 2**31 - 1)
        check_int("span", self.span, 1, self.k)
        check_int("parts", self.parts, 1, self.split)
        check_int("k_summed", self.k_summed, 1, self.k)
        check_text("outcome", self.outcome)

    @property
    def before(self) -> int:
        """What the rule of the fault says: floor(K / s), rounded up to whole blocks."""
        return part(self.k, self.split, block(self.input_dtype))

    @property
    def after(self) -> int:
        """What the mended rule says."""
        return part_covering(self.k, self.split, block(self.input_dtype))


def spans_of(rows: Iterable[Mapping[str, Any]], source: str) -> tuple[list[Span], int]:
    """The spans in rows of a dataset of `probe diff-libraries`, both libraries; and how many split sums of ALGO_ID 66 have none.

    A descriptor has one where its outermost cut is contiguous with a known span (e4m3 without fast accumulation has a second cut inside).
    """
    out, other = [], 0
    for row in rows:
        for side in "ab":
            split = row[f"splitk_num_{side}"]
            if row[f"algo_id_{side}"] != NVJET or split is None or split < 2:
                continue
            orders = json.loads(row[f"orders_{side}"] or "[]")
            desc = orders[0].get("gemm_desc") if len(orders) == 1 else None
            cuts = (desc or {}).get("k_cuts") or []
            if not cuts or cuts[0]["layout"] != "contiguous" or not cuts[0]["span"]:
                other += 1
                continue
            span, summed = int(cuts[0]["span"]), int(row[f"k_summed_{side}"])
            kernels = Capture.from_document(json.loads(row[f"capture_{side}"])).kernels
            target = Target.from_document(json.loads(row[f"target_{side}"]))
            problem = Problem.from_document(json.loads(row["problem"]))
            out.append(Span(target, problem.key, problem.a_dtype, problem.k, split, span, -(-summed // span), summed,
                            tuple(kernels[0].grid), row[f"outcome_{side}"], source))
    return out, other


def spans_document(spans: Iterable[Span], date: str, without: int) -> dict[str, Any]:
    """The JSON document of the folder: every target once. without: split sums of ALGO_ID 66 that have no span."""
    kept = sorted(set(spans), key=lambda s: (numbers(s.target.version), s.k, s.problem, s.span))
    targets = list(dict.fromkeys(s.target for s in kept))
    return {"kind": KIND, "date": date, "without_a_span": without, "targets": [t.to_document() for t in targets],
            "spans": [s.to_document() | {"target": targets.index(s.target)} for s in kept]}


def spans_of_document(document: Mapping[str, Any]) -> list[Span]:
    """What `spans_document` wrote. Raises UsageError where it holds something else."""
    try:
        return [Span.from_document(one | {"target": document["targets"][one["target"]]}) for one in document["spans"]]
    except (KeyError, TypeError, IndexError):
        raise UsageError("this holds no spans of walks", "what tools.tail_spans wrote") from None
