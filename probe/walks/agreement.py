"""Before any walk: do all elements of the output share one order, and do two runs agree?

Every element is given the same dot product, whose exact value is zero and whose computed value is therefore nothing but rounding;
elements that add in different orders give different bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.errors import Declined, DeclineReason
from probe.inputs.draws import Draw, DrawKind
from probe.summing import Summing

_DRAWS = 2
MORE_DRAWS = 30  # two orders that differ little give one value in 0.7 of the draws (fp32 outputs, measured), so in all 30 in 2e-5


@dataclass(frozen=True)
class Agreement:
    """labels: int (m, n), the class of every element, or None when all share one. launches: products run to find out."""

    classes: int
    labels: np.ndarray | None
    launches: int


def agreement(summing: Summing, seed: int, count: int = _DRAWS) -> Agreement | Declined:
    """Classes of elements that share an order; declined as nondeterministic when two runs on one input differ. count: of draws.

    Two draws can miss orders that are nearly the same: a walk whose proof fails looks again with MORE_DRAWS.
    """
    draws = [Draw.of(summing.m, summing.n, summing.k, summing.input_dtype, DrawKind.CANCELLING, seed, i, distinct=1) for i in range(count)]
    before = summing.launches
    # one draw three times, apart from itself and next to itself, so that orders taken in turn show whether they change each launch or later
    *outs, apart, beside = summing.outputs([(d, None) for d in (*draws, draws[0], draws[0])])
    launches = summing.launches - before
    moved = int(((outs[0] != apart) | (outs[0] != beside)).sum())
    if moved:
        return Declined(DeclineReason.NONDETERMINISTIC, f"{moved} of {apart.size} elements changed between two runs on the same inputs",
                        "atomic additions or a race; a reduction scheme without atomics may be stable")
    if all((out == out.flat[0]).all() for out in outs):
        return Agreement(1, None, launches)
    stacked = np.stack([out.reshape(-1) for out in outs], axis=1)
    _, labels = np.unique(stacked, axis=0, return_inverse=True)
    return Agreement(int(labels.max()) + 1, labels.reshape(outs[0].shape), launches)
