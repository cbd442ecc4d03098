"""Which split-K sums lose their tail: two conditions on (answer, K), and how each fares against what was read."""

from __future__ import annotations

from enum import StrEnum

from probe.answer import Answer
from probe.problem import DType, Problem

NVJET = 66  # the ALGO_ID of the split-K path that loses (the paper's Appendix D, and H200, 13.1.0)


class Condition(StrEnum):
    """Who says which sums are short."""

    OURS = "ours"
    PAPER = "paper"


class Fit(StrEnum):
    """How a prediction compares with a reading. One meaning each."""

    WHOLE = "whole"  # nothing predicted, nothing lost
    HIT = "hit"  # the very number of values that is lost was predicted
    MISS = "miss"  # values are lost and none was predicted
    FALSE_ALARM = "false_alarm"  # a loss was predicted and the sum is whole
    AMOUNT = "amount"  # a loss was predicted, and another number is lost


def block(dtype: DType) -> int:
    """The k step b of one thread block of these kernels, in values: 64 for 16-bit inputs, 128 for e4m3 (DESIGN fact 4)."""
    return 128 if dtype.is_fp8 else 64


def part(k: int, split: int, b: int) -> int:
    """Values of k that each of `split` parts is launched with: floor(K / s), rounded up to whole blocks of b."""
    return -(-(k // split) // b) * b


def part_covering(k: int, split: int, b: int) -> int:
    """The part of a release without the fault: b * ceil(ceil(K / b) / s), which is ceil(K / s) rounded up to whole blocks of b.

    ceil(K / part) parts of it cover K: that can be fewer than were asked. H200, 12.9.3 and 13.10.0, by walks: probe.tail.spans.
    """
    return -(-k // (split * b)) * b


def lost_ours(k: int, split: int, b: int) -> int:
    """Values that the launched parts do not cover: K - min(K, s * part). Always below s."""
    return max(0, k - split * part(k, split, b)) if split > 1 else 0


def lost_paper(k: int, split: int, b: int) -> int:
    """The paper's Appendix D: with q = floor(K / b) and t = K mod b, t values are lost where t != 0, q mod s = 0 and s > t."""
    tail = k % b
    return tail if split > 1 and tail and (k // b) % split == 0 and split > tail else 0


def predicted(condition: Condition, problem: Problem, answer: Answer) -> int:
    """How many values of k the condition says are lost; both say 0 for another ALGO_ID and for an answer that does not split."""
    if answer.algo_id != NVJET:
        return 0
    rule = lost_ours if condition is Condition.OURS else lost_paper
    return rule(problem.k, answer.splitk_num, block(problem.a_dtype))


def fit(said: int, lost: int) -> Fit:
    """said: values that a condition calls lost; lost: values that are."""
    if said == lost:
        return Fit.HIT if lost else Fit.WHOLE
    if not lost:
        return Fit.FALSE_ALARM
    return Fit.AMOUNT if said else Fit.MISS
