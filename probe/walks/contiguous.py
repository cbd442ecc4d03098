"""The adaptive walk: trees whose nodes are intervals of K, found with few experiments.

Almost every library kernel deals K to loops in contiguous pieces and runs each loop in equal steps. The walk reads the
first indices one by one, gallops to where the first loop ends, predicts the other cuts and checks each of them, samples the
steps of every loop, and asks how the loops meet. Whatever it predicted it has checked against readings; a reading
that disagrees ends the walk with None, and the general walk takes over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.errors import Declined
from probe.schedule.terms import Run, join_runs, run_of
from probe.walks.check import predicted
from probe.walks.general import Node, tree_over
from probe.walks.joining import usual_join
from probe.walks.pairs import contiguous_walk
from probe.walks.reader import UNCANCELLED, Reader
from probe.walks.tree import Joint, Loop, SumTree, shape_term

HEAD = 40  # indices read one by one at the start of a further loop, where the first one was seen to be regular
SUFFIX = 40  # indices read one by one before the end of a loop of each length: a short last step
LOOK = 160  # how far right of a pair its step may end
_SAMPLES = 16  # indices sampled inside a loop of each length, and loops sampled of the same length at two indices
_LOOPS_SAMPLED = 256
_LOOPS_SAMPLED_ALONE = 64  # where a launch reads one experiment
_FEW_LOOPS = 256  # of these, every cut is checked; of more, as many that are spread over them all
_CUTS_AT_ONCE = 4096
MOST_LOOPS = 32768


@dataclass
class _Piece:
    start: int
    stop: int


def contiguous_tree(reader: Reader, extent: int, rng: np.random.Generator) -> SumTree | None:
    """The tree over [0, extent), or None where it is not made of intervals in regular loops."""
    if extent == 1:
        return Loop(None, (run_of((0,)),))
    pairs, windows = prefix_experiments(reader, extent)
    sizes = reader.lost(pairs, windows) + 2
    cuts = _cuts(reader, extent, sizes)
    if cuts is None:
        return None
    pieces = [_Piece(a, b) for a, b in zip(cuts, [*cuts[1:], extent], strict=True)]
    runs = _steps(reader, pieces, sizes, rng)
    if runs is None:
        return None
    if len(pieces) == 1:
        return Loop(None, runs[0])
    tree = _joined(reader, cuts, runs, rng)
    # steps were read in windows of their own loop; the prefix was read in one window, where a loop that goes on in a later piece shows
    return tree if tree is not None and (predicted(shape_term(tree), pairs, windows) + 2 == sizes).all() else None


def _joined(reader: Reader, cuts: list[int], runs: list[tuple[Run, ...]], rng: np.random.Generator) -> SumTree | None:
    """How the loops that start at `cuts` meet."""
    if len(cuts) > _FEW_LOOPS:  # asking how each of them meets the first would take as many readings
        joined = usual_join(reader, [Loop(None, r) for r in runs], cuts, rng)
        if joined is not None:
            return joined
    node = tree_over(reader, np.array(cuts, np.int64))
    if isinstance(node, Declined):
        return None
    return _assemble(node, [Loop(None, r) for r in runs])


# -- cuts -----------------------------------------------------------------------------------------------------------


def prefix_experiments(reader: Reader, extent: int) -> tuple[np.ndarray, np.ndarray]:
    """The pairs (m, m + 1) at the start of K with the window that holds them all."""
    ms = np.arange(min(extent - 1, reader.prefix), dtype=np.int64)
    return np.stack([ms, ms + 1], axis=1), np.tile(np.array([[0, min(extent, reader.prefix + 2)]], np.int64), (len(ms), 1))


def _cuts(reader: Reader, extent: int, sizes: np.ndarray) -> list[int] | None:
    """Where loops start. The first end is found, the next ones predicted from the lengths so far and each is checked.

    sizes: of the nodes that join m and m + 1 at the start of K, within the window of the prefix. They grow along a loop and fall where
    the next one starts.
    """
    cuts = [0]
    drops = np.nonzero(sizes[1:] < sizes[:-1])[0]
    if len(drops):
        first: int | None = int(drops[0]) + 1
    else:
        first = _gallop(reader, 0, len(sizes) - 1, extent) if len(sizes) < extent - 1 else None
    while first is not None:
        cuts.append(first)
        cuts = _follow(reader, cuts, extent)
        if cuts[-1] == extent:
            return cuts[:-1]
        first = _gallop(reader, cuts[-1], cuts[-1], extent)
        if first is not None and (len(cuts) > MOST_LOOPS or first <= cuts[-1]):
            return None
    return cuts


def _gallop(reader: Reader, start: int, known: int, extent: int) -> int | None:
    """The first index after `known` at which a loop starts that leaves out the unit at `start`; None when there is none.

    The loop of `start` holds `known`. Once a later loop has begun, every pair of neighbours leaves `start` out, but for the two that
    straddle a cut; so a place is judged by its own pair and the next one, and the search narrows as in a bisection.
    """
    ends = np.arange(max(known, extent - 3), extent - 1)
    late = np.nonzero(_leaves_out(reader, start, ends, extent))[0]
    if not len(late):
        return None
    low, high = known - 1, int(ends[late[0]])
    while high - low > 1:
        count = min(max(4, reader.width // 2), high - low - 1)
        grid = np.unique(np.linspace(low + 1, high - 1, count).astype(np.int64))
        hits = np.nonzero(_leaves_out(reader, start, grid, extent))[0]
        if len(hits):
            high = int(grid[hits[0]])
            low = int(grid[hits[0] - 1]) if hits[0] else low
        else:
            low = int(grid[-1])
    return high + 1


def _leaves_out(reader: Reader, start: int, ms: np.ndarray, extent: int) -> np.ndarray:
    """True where the pair (m, m + 1) or (m + 1, m + 2) leaves out the unit at `start`."""
    both = np.clip(np.concatenate([ms, ms + 1]), start + 1, extent - 2)
    out = contiguous_walk(reader, start, both)
    return np.asarray(out[:len(ms)] | out[len(ms):])


def _follow(reader: Reader, cuts: list[int], extent: int) -> list[int]:
    """Extend the cuts by their own period as long as the checks hold; the extent itself stands last when it was reached."""
    while cuts[-1] < extent:
        lengths = np.diff(cuts).tolist()
        period = next(p for p in range(1, len(lengths) + 1)
                      if all(lengths[i] == lengths[i - p] for i in range(p, len(lengths))))
        ahead: list[int] = []
        while (ahead[-1] if ahead else cuts[-1]) < extent and len(ahead) < _CUTS_AT_ONCE:
            lengths.append(lengths[-period])
            ahead.append(min(extent, (ahead[-1] if ahead else cuts[-1]) + lengths[-1]))
        good = _check_cuts(reader, cuts[-1], ahead, extent)
        cuts = [*cuts, *ahead[:good]]
        if good < len(ahead):
            return cuts
    return cuts


def _check_cuts(reader: Reader, before: int, ahead: list[int], extent: int) -> int:
    """How many of the predicted cuts hold: a loop must run unbroken up to the cut, and a new one start exactly there."""
    starts = [before, *ahead[:-1]]
    pairs, windows, want, owner = [], [], [], []
    some = range(len(ahead)) if len(ahead) <= _FEW_LOOPS else np.linspace(0, len(ahead) - 1, _FEW_LOOPS // 4).astype(int).tolist()
    for i in some:
        start, cut = starts[i], ahead[i]
        if cut - start > 2:  # the last two indices of a loop still hold its first one
            pairs.append((cut - 2, cut - 1))
            windows.append((start, start + 1))
            want.append(0)
            owner.append(i)
        if cut + 1 < extent:  # the pair at the cut leaves out everything before it
            back = max(0, cut - 4)
            pairs.append((cut, cut + 1))
            windows.append((back, cut))
            want.append(cut - back)
            owner.append(i)
        elif cut + 1 == extent and cut - start > 1:  # no pair lies behind the cut: the last one before it leaves out the lone index
            pairs.append((cut - 2, cut - 1))
            windows.append((cut, cut + 1))
            want.append(1)
            owner.append(i)
    if not pairs:
        return len(ahead)
    left = reader.survivors(np.array(pairs, np.int64), np.array(windows, np.int64))
    wrong = [o for o, w, g in zip(owner, want, left, strict=True) if w != g]
    if wrong and len(some) < len(ahead):  # what lies between the last good one and the first wrong one is looked at by itself
        good = max((i for i in some if i < min(wrong)), default=-1) + 1
        return good + _check_cuts(reader, ahead[good - 1] if good else before, ahead[good:min(wrong) + 1], extent)
    return min(wrong) if wrong else len(ahead)


# -- steps ----------------------------------------------------------------------------------------------------------


def _lost(reader: Reader, ms: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    """Indices of the windows under the node of (m, m + 1), both legs counted."""
    pairs = np.stack([ms, ms + 1], axis=1)
    gone = reader.lost(pairs, np.stack([lo, hi], axis=1))
    return np.where(gone == UNCANCELLED, UNCANCELLED, gone + 2)


def _step_ends(reader: Reader, ms: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """One past the last index of the step that holds m + 1, within its loop. Pairs lie in one loop each."""
    if not len(ms):
        return ms
    hi = np.minimum(ms + 2 + LOOK, stops)
    gone = _lost(reader, ms, ms, hi)
    return np.where(gone < 2, UNCANCELLED, ms + gone)


def _steps(reader: Reader, pieces: list[_Piece], sizes: np.ndarray, rng: np.random.Generator) -> list[tuple[Run, ...]] | None:
    """The steps of every loop: read at the ends of one loop of each length, extended evenly, and sampled everywhere."""
    first, forms = pieces[0], {}
    seen = sizes[:first.stop - 1]
    closed = int((seen < reader.prefix + 2).sum()) if first.stop > reader.prefix else len(seen)  # their steps end within the prefix
    known = np.arange(closed, dtype=np.int64)
    tail = np.arange(max(len(known), first.stop - 1 - SUFFIX), first.stop - 1, dtype=np.int64)
    ends = np.concatenate([seen[:len(known)], _step_ends(reader, tail, np.full(len(tail), first.stop))])
    shape = _shape(np.concatenate([known, tail]), ends, first.stop)
    if shape is None:
        return None
    forms[first.stop] = shape
    regular = len({*np.diff([0, *shape[:-1]]).tolist()}) <= 1
    others = {p.stop - p.start: p for p in reversed(pieces) if p.stop - p.start != first.stop}
    dense = {length: _dense(piece, HEAD if regular else reader.prefix) for length, piece in others.items()}
    if dense:
        ms = np.concatenate(list(dense.values()))
        found = _step_ends(reader, ms, np.concatenate([np.full(len(d), others[n].stop) for n, d in dense.items()]))
        for length, positions in dense.items():
            own, found = found[:len(positions)], found[len(positions):]
            start = others[length].start
            shape = _shape(positions - start, own - start, length)
            if shape is None:
                return None
            forms[length] = shape
    if not _sampled(reader, pieces, forms, rng):
        return None
    runs = {length: _runs(form) for length, form in forms.items()}
    return [tuple(r.shifted(p.start) for r in runs[p.stop - p.start]) for p in pieces]


def _dense(piece: _Piece, head: int) -> np.ndarray:
    """Indices near both ends of a loop."""
    front = np.arange(piece.start, min(piece.start + head, piece.stop - 1), dtype=np.int64)
    back = np.arange(max(piece.start + head, piece.stop - 1 - SUFFIX), piece.stop - 1, dtype=np.int64)
    return np.concatenate([front, back])


def _shape(ms: np.ndarray, ends: np.ndarray, length: int) -> list[int] | None:
    """Ends of the steps of a loop, from readings near both of its ends; None when they are not those of one loop."""
    if length == 1:
        return [1]
    bounds: list[int] = []
    for m, end in zip(ms.tolist(), ends.tolist(), strict=True):
        if not m + 2 <= end <= length:
            return None
        if bounds and m + 1 > bounds[-1]:  # the stretch between head and tail: go on with steps like the last one
            width = bounds[-1] - (bounds[-2] if len(bounds) > 1 else 0)
            bounds.extend(range(bounds[-1] + width, end, width))
        last = bounds[-1] if bounds else 0
        if end < last or (bounds and m + 1 < last < end):
            return None
        if end > last:
            bounds.append(end)
    return bounds if bounds[-1] == length else None


def _sampled(reader: Reader, pieces: list[_Piece], forms: dict[int, list[int]], rng: np.random.Generator) -> bool:
    """Steps at random indices of every length of loop, and at two indices of many loops, as predicted."""
    ms: list[int] = []
    owners: list[_Piece] = []
    seen: set[int] = set()
    most = _LOOPS_SAMPLED if reader.width > 1 else _LOOPS_SAMPLED_ALONE
    chosen = pieces if len(pieces) <= most else [pieces[i] for i in sorted(rng.choice(len(pieces), most, False))]
    for piece in chosen:
        length = piece.stop - piece.start
        if length < 2:
            continue
        count = _SAMPLES if length not in seen else 2
        seen.add(length)
        for offset in rng.integers(0, length - 1, count).tolist():
            ms.append(piece.start + offset)
            owners.append(piece)
    if not ms:
        return True
    ends = _step_ends(reader, np.array(ms, np.int64), np.array([p.stop for p in owners], np.int64))
    for m, end, piece in zip(ms, ends.tolist(), owners, strict=True):
        bounds = forms[piece.stop - piece.start]
        want = bounds[int(np.searchsorted(bounds, m + 1 - piece.start, side="right"))] + piece.start
        if end != min(want, m + 2 + LOOK):
            return False
    return True


def _runs(bounds: list[int]) -> tuple[Run, ...]:
    runs: tuple[Run, ...] = ()
    start = 0
    for end in bounds:
        runs = join_runs(runs, (Run(start, tuple(range(end - start))),))
        start = end
    return runs


# -- joints ---------------------------------------------------------------------------------------------------------


def _assemble(node: Node, parts: list[SumTree]) -> SumTree | None:
    """The tree over loops from the tree over their first indices."""
    spine = [node]
    while len(spine[-1].children) == 1 and len(spine[-1].leaves) == 1:
        spine.append(spine[-1].children[0])
    tree: SumTree | None = None
    for one in reversed(spine):
        own = [parts[leaf] for leaf in one.leaves]
        if tree is None:
            below = [_assemble(child, parts) for child in one.children]
            if any(b is None for b in below):
                return None
            own = [*(b for b in below if b is not None), *own]
        else:
            own = [tree, *own]
        if len(own) > 2:
            return None
        tree = own[0] if len(own) == 1 else Joint(tuple(own))
    return tree
