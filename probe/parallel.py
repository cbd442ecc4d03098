"""Independent pieces of work side by side, one thread a core that this process may use.

Threads and not processes: the work is numpy's, which lets others run while it computes, and its arrays need not be copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Cores that this process may run on, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(function: Callable[[Item], Result], items: Sequence[Item], wanted: bool = True) -> list[Result]:
    """`function` of every item, in their order; one after the other unless `wanted`. An exception of one is raised here, after those that
    were started have ended."""
    workers = min(cores(), len(items)) if wanted else 1
    if workers <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))
