"""The family of an answer that nobody walked: its algorithm number, and whether K is split."""

from __future__ import annotations

NONE = "no answer"


def family_of(algo_id: int | None, splitk_num: int | None) -> str:
    """ "algo 66", "algo 66 split-K", "algo 41 split-K -1" (a number below 1 means what the library means by it); "no answer" for None."""
    if algo_id is None or splitk_num is None:
        return NONE
    if splitk_num == 1:
        return f"algo {algo_id}"
    return f"algo {algo_id} split-K" + (f" {splitk_num}" if splitk_num < 1 else "")
