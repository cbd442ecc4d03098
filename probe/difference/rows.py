"""What became of one problem under two libraries: the judgement, and the flat row that the dataset, the command and the report read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeGuard

from probe.answer import CONFIG_ATTRIBUTES, Answer
from probe.capture import Capture, Kernel
from probe.contrast import Contrast
from probe.descriptor import GEMMDesc
from probe.errors import Declined, ExitCode
from probe.preference import Preference
from probe.proof import Outcome, Proof
from probe.records import ClassResult
from probe.regimes import Case
from probe.schedule import render_text, term_to_json
from probe.target import Target
from probe.wire import Walked

DIFFERENCE_VERSION = 1
KIND = "library differences"

_SIDES = {
    "library": "string", "library_version": "string", "library_sha256": "string", "target": "string", "declined": "string",
    "answer": "string", "algo_id": "int64", "splitk_num": "int64", "workspace_bytes": "int64", "capture": "string", "kernels": "string",
    "outcome": "string", "family": "string", "k_summed": "int64", "orders": "string", "schedule_text": "string"}
# Columns of the dataset and their Arrow types; docs/libraries.md says what each holds, and a test keeps the two equal.
COLUMNS: dict[str, str] = {
    "version": "int64", "date": "string", "index": "int64", "case": "string", "m": "int64", "n": "int64", "k": "int64",
    "input_dtype": "string", "output_dtype": "string", "layout": "string", "fast_accumulation": "bool", "problem": "string",
    "preference": "string", "verdict": "string", "answer": "string", "order": "string", "kernels": "string", "note": "string",
    "moved_attributes": "string", "moved_fields": "string",
    **{f"{name}_{side}": kind for side in "ab" for name, kind in _SIDES.items()},
    "a_on_b_outputs": "int64", "a_on_b_differing": "int64", "a_on_b_first": "string", "a_on_b_inputs": "string",
    "seed": "int64", "seed_walk_a": "int64", "seed_walk_b": "int64", "seed_a_on_b": "int64", "seconds": "double",
}
JSON_COLUMNS = {"problem", "preference", "moved_fields", *(f"{n}_{s}" for n in ("target", "answer", "capture", "orders") for s in "ab")}
Row = dict[str, Any]


class Verdict(StrEnum):
    """What became of one problem; each has exactly one."""

    NEITHER = "neither moved"
    ANSWER = "answer moved"
    ORDER = "order moved"
    BOTH = "both moved"
    UNSETTLED = "unsettled"  # an order was not confirmed, so nothing is said about it
    INCONSISTENT = "inconsistent"  # what this run found of the two libraries contradicts itself
    DECLINED_A = "declined by A"
    DECLINED_B = "declined by B"
    DECLINED_BOTH = "declined by both"


class Moved(StrEnum):
    """Of an answer, an order or the kernels."""

    SAME = "same"
    MOVED = "moved"
    UNKNOWN = "unknown"


_BOTH_KNOWN = {(Moved.SAME, Moved.SAME): Verdict.NEITHER, (Moved.MOVED, Moved.SAME): Verdict.ANSWER,
               (Moved.SAME, Moved.MOVED): Verdict.ORDER, (Moved.MOVED, Moved.MOVED): Verdict.BOTH}


@dataclass(frozen=True)
class Seeds:
    """Of the walk of A, of the walk of B, and of the inputs on which A's order is held against B's bytes: no two share a draw."""

    walk_a: int
    walk_b: int
    a_on_b: int


@dataclass(frozen=True)
class Compared:
    """Everything that was seen of one problem. None: not reached. on_b: where the orders differ, the proofs of A's classes on B's bytes;
    contrast: where these refute nothing, the search for inputs on which they do. seconds: of wall clock, from the first question on."""

    index: int
    case: Case
    preference: Preference
    seeds: Seeds
    answer_a: Answer | Declined
    answer_b: Answer | Declined
    walk_a: Walked | Declined | None
    walk_b: Walked | Declined | None
    on_b: tuple[Proof, ...] | Declined | None
    contrast: Contrast | Declined | None
    seconds: float
    date: str

    @property
    def moved_attributes(self) -> tuple[str, ...]:
        """Names of the attributes that differ, the workspace among them; empty where a side declined."""
        a, b = self.answer_a, self.answer_b
        if isinstance(a, Declined) or isinstance(b, Declined):
            return ()
        return tuple(name for name in (*CONFIG_ATTRIBUTES, "workspace_bytes") if getattr(a, name) != getattr(b, name))

    @property
    def declined_a(self) -> Declined | None:
        return next((x for x in (self.answer_a, self.walk_a) if isinstance(x, Declined)), None)

    @property
    def declined_b(self) -> Declined | None:
        return next((x for x in (self.answer_b, self.walk_b, self.on_b, self.contrast) if isinstance(x, Declined)), None)

    @property
    def answer(self) -> Moved:
        if isinstance(self.answer_a, Declined) or isinstance(self.answer_b, Declined):
            return Moved.UNKNOWN
        return Moved.MOVED if self.moved_attributes else Moved.SAME

    @property
    def kernels(self) -> Moved:
        """Whether the same kernels are launched, by name and in order."""
        if not isinstance(self.walk_a, Walked) or not isinstance(self.walk_b, Walked):
            return Moved.UNKNOWN
        a, b = (kernel_names(walked.point.capture) for walked in (self.walk_a, self.walk_b))
        return Moved.SAME if a == b else Moved.MOVED

    @property
    def refutation(self) -> Refutation | None:
        """How B's bytes refute A's order; None where they do not, or where the orders are the same and nothing was asked."""
        if isinstance(self.contrast, Contrast):
            c = self.contrast
            return Refutation(c.compared, c.refuted, f"{c.how}: {c.first}", c.how)
        proofs = self.on_b if isinstance(self.on_b, tuple) else ()
        first = next((p for p in proofs if p.outcome is not Outcome.CONFIRMED), None)
        if first is None:
            return None
        draws = " + ".join(f"{n} {kind}" for kind, n in first.draws)
        return Refutation(sum(p.compared for p in proofs), sum(p.differing for p in proofs), f"{first.first_draw}: {first.first}", draws)

    @property
    def order(self) -> Moved:
        return self._order()[0]

    def _order(self) -> tuple[Moved, Verdict | None, str]:
        """Whether the order moved; where that is unknown although both sides were walked, the verdict and why."""
        a, b = self.walk_a, self.walk_b
        if not isinstance(a, Walked) or not isinstance(b, Walked):
            return Moved.UNKNOWN, None, ""
        open_sides = [f"the order of {name} is {w.point.outcome}" for name, w in (("A", a), ("B", b)) if not confirmed(w)]
        if open_sides:
            return Moved.UNKNOWN, Verdict.UNSETTLED, " and ".join(open_sides)
        if same_order(a, b):
            return Moved.SAME, None, ""
        if isinstance(self.on_b, Declined) or isinstance(self.contrast, Declined):
            return Moved.UNKNOWN, None, ""
        if self.refutation is None:
            return Moved.UNKNOWN, Verdict.INCONSISTENT, "two orders were recovered and confirmed, but nothing tried on B refutes A's"
        if isinstance(self.contrast, Contrast) and self.contrast.upheld < self.contrast.refuted:
            return Moved.UNKNOWN, Verdict.INCONSISTENT, f"B's bytes refute both orders ({self.contrast.how}: {self.contrast.first})"
        return Moved.MOVED, None, ""

    def judge(self) -> tuple[Verdict, str]:
        """The verdict, and for those that need one its reason in a line."""
        for name, answer, walked in (("A", self.answer_a, self.walk_a), ("B", self.answer_b, self.walk_b)):
            if isinstance(answer, Answer) and isinstance(walked, Walked) and walked.point.answer != answer:
                return Verdict.INCONSISTENT, f"{name} gave two answers to one question: {answer.key}, then {walked.point.answer.key}"
        order, verdict, why = self._order()
        if verdict is not None:
            return verdict, why
        a, b = self.declined_a, self.declined_b
        if a is not None:
            return (Verdict.DECLINED_A, str(a)) if b is None else (Verdict.DECLINED_BOTH, f"{a}; B: {b}")
        if b is not None:
            return Verdict.DECLINED_B, str(b)
        return _BOTH_KNOWN[self.answer, order], ""


@dataclass(frozen=True)
class Refutation:
    """B's bytes against A's order: outputs compared, how many differ, the first of them, and on which inputs."""

    outputs: int
    differing: int
    first: str
    inputs: str


def confirmed(walked: Walked | Declined | None) -> TypeGuard[Walked]:
    """Whether an order was recovered, and confirmed on its own library."""
    return isinstance(walked, Walked) and walked.point.outcome is Outcome.CONFIRMED


def same_order(a: Walked, b: Walked) -> bool:
    """Whether the schedules are the same, of the same elements."""
    if len(a.classes) != len(b.classes):
        return False

    def key(walked: Walked) -> list[tuple[bytes, str]]:
        return sorted((b"" if c.where is None else c.where.tobytes(), json.dumps(term_to_json(c.schedule))) for c in walked.classes)

    return key(a) == key(b)


def kernel_names(captured: Capture) -> tuple[str, ...]:
    """Names of the kernels of a call, in order; a memset or a copy by what it is."""
    return tuple(node.name if isinstance(node, Kernel) else type(node).__name__.lower() for node in captured.nodes)


# The row

def row_of(compared: Compared, target_a: Target, target_b: Target, seed: int) -> Row:
    """The flat row of one problem: what is filtered on in columns of its own, what is nested in canonical JSON text."""
    c, p = compared, compared.case.problem()
    verdict, note = c.judge()
    refuted = c.refutation
    return {
        "version": DIFFERENCE_VERSION, "date": c.date, "index": c.index, "case": c.case.name, "m": p.m, "n": p.n, "k": p.k,
        "input_dtype": str(p.a_dtype), "output_dtype": str(p.d_dtype), "layout": str(p.layout), "fast_accumulation": p.fast_accumulation,
        "problem": p.to_json(), "preference": c.preference.to_json(), "verdict": str(verdict), "answer": str(c.answer),
        "order": str(c.order), "kernels": str(c.kernels), "note": note, "moved_attributes": ", ".join(c.moved_attributes),
        "moved_fields": _compact(moved_fields(c)),
        **_side("a", target_a, c.answer_a, c.declined_a, c.walk_a), **_side("b", target_b, c.answer_b, c.declined_b, c.walk_b),
        "a_on_b_outputs": None if refuted is None else refuted.outputs, "a_on_b_differing": None if refuted is None else refuted.differing,
        "a_on_b_first": None if refuted is None else refuted.first, "a_on_b_inputs": None if refuted is None else refuted.inputs,
        "seed": seed, "seed_walk_a": c.seeds.walk_a, "seed_walk_b": c.seeds.walk_b, "seed_a_on_b": c.seeds.a_on_b,
        "seconds": c.seconds,
    }


def _side(side: str, target: Target, answer: Answer | Declined, declined: Declined | None, walked: Walked | Declined | None) -> Row:
    given = answer if isinstance(answer, Answer) else None
    classes, captured = (walked.point.classes, walked.point.capture) if isinstance(walked, Walked) else ((), None)
    values = {
        "library": str(target.library), "library_version": target.version, "library_sha256": target.sha256, "target": target.to_json(),
        "declined": None if declined is None else str(declined), "answer": None if given is None else given.to_json(),
        "algo_id": None if given is None else given.algo_id, "splitk_num": None if given is None else given.splitk_num,
        "workspace_bytes": None if given is None else given.workspace_bytes, "capture": None if captured is None else captured.to_json(),
        "kernels": None if captured is None else ", ".join(kernel_names(captured)),
        "outcome": str(walked.point.outcome) if isinstance(walked, Walked) else None,
        "family": "; ".join(r.family for r in classes) or None, "k_summed": min((r.extent for r in classes), default=None),
        "orders": _compact([_order(r) for r in classes]) if classes else None,
        "schedule_text": "; ".join(render_text(r.schedule) for r in classes) or None}
    return {f"{name}_{side}": value for name, value in values.items()}


def _order(result: ClassResult) -> Row:
    """One class of elements of a walk: what it sums, how, and how well that is proven."""
    proof = result.proof
    return {"elements": result.elements, "k_summed": result.extent, "family": result.family,
            "gemm_desc": None if result.desc is None else result.desc.to_document(), "schedule": term_to_json(result.schedule),
            "schedule_text": render_text(result.schedule), "outcome": str(result.outcome),
            "elements_compared": 0 if proof is None else proof.elements, "outputs_compared": 0 if proof is None else proof.compared,
            "first_difference": "" if proof is None or proof.first is None else f"{proof.first_draw}: {proof.first}"}


def moved_fields(compared: Compared) -> list[list[str]]:
    """[field, A, B] of the two GEMMDescs where the order moved. Several classes, or an order without a record, are told as that."""
    a, b = compared.walk_a, compared.walk_b
    if compared.order is not Moved.MOVED or not isinstance(a, Walked) or not isinstance(b, Walked):
        return []
    many = [[str(c.elements) for c in w.point.classes] for w in (a, b)]
    if max(map(len, many)) > 1:
        return [["elements that share an order", *(" + ".join(sizes) for sizes in many)]]
    one, other = a.point.classes[0].desc, b.point.classes[0].desc
    if one is None or other is None:
        words = ["no GEMMDesc" if d is None else "a GEMMDesc" for d in (one, other)]
        return [["record", *words]]
    return [[name, _words(name, x), _words(name, y)] for name, x, y in _pairs(one, other) if x != y]


def _pairs(one: GEMMDesc, other: GEMMDesc) -> list[tuple[str, Any, Any]]:
    """Every field that fixes bits, of both: the instruction is evidence, its arithmetic is `row`."""
    a, b = one.to_document(), other.to_document()
    return [(name, a[name], b[name]) for name in a if name not in ("version", "instruction")]


def _words(name: str, value: Any) -> str:
    if name == "k_cuts":
        return "; ".join(_cut(cut) for cut in value) or "none"
    if name == "row":
        return "scalar fma" if value is None else f"{value[0]} products, {value[1]} bits kept"
    return str(value)


def _cut(cut: Mapping[str, Any]) -> str:
    lanes = f", {cut['count']} lanes" if cut["count"] is not None else ""
    return f"{cut['layout']} span {cut['span']}{lanes}, {cut['join']} {cut['direction']}"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# Many rows

def counts_of(rows: Sequence[Row]) -> dict[Verdict, int]:
    """How many rows have each verdict, every verdict named."""
    return {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in Verdict}


def exit_code_of(rows: Sequence[Row]) -> ExitCode:
    """0 nothing moved, 3 nothing but declines, else 1: something moved, or was not confirmed, or one side alone declined."""
    seen = {Verdict(row["verdict"]) for row in rows}
    if seen and seen <= {Verdict.DECLINED_A, Verdict.DECLINED_B, Verdict.DECLINED_BOTH}:
        return ExitCode.DECLINED
    return ExitCode.OK if seen <= {Verdict.NEITHER, Verdict.DECLINED_BOTH} else ExitCode.NOT_CONFIRMED
