"""Runs: stretches of equal steps along K, and the one way to write a sequence of steps as runs.

Equal sequences of steps give equal runs, so that schedules compare by `==` and K = 4,000,000 costs a few hundred bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from probe.errors import UsageError


@dataclass(frozen=True, slots=True)
class Run:
    """`count` steps of one pattern: step t folds the indices first + t * advance + offset, offset in `pattern`."""

    first: int
    pattern: tuple[int, ...]
    count: int = 1
    advance: int = 0

    def __post_init__(self) -> None:
        if self.first < 0 or not self.pattern or self.pattern[0] != 0 or self.count < 1:
            raise UsageError(f"not a run of steps: {self}")
        if any(a >= b for a, b in zip(self.pattern, self.pattern[1:], strict=False)):
            raise UsageError(f"the offsets of a step ascend: {self.pattern}")
        if (self.count == 1) != (self.advance == 0) or self.advance < 0:
            raise UsageError(f"a single step has no advance, several ascend: {self}")

    @property
    def width(self) -> int:
        """Products folded by one step."""
        return len(self.pattern)

    @property
    def contiguous(self) -> bool:
        """True when the run covers [first, first + width * count) in ascending order."""
        return self.pattern[-1] == self.width - 1 and (self.count == 1 or self.advance == self.width)

    @property
    def stop(self) -> int:
        """One past the largest index."""
        return self.first + (self.count - 1) * self.advance + self.pattern[-1] + 1

    def shifted(self, distance: int) -> Run:
        return Run(self.first + distance, self.pattern, self.count, self.advance)

    def step(self, t: int) -> tuple[int, ...]:
        """The indices of step t, ascending."""
        base = self.first + t * self.advance
        return tuple(base + o for o in self.pattern)

    def prefix(self, count: int) -> Run:
        return Run(self.first, self.pattern, count, self.advance if count > 1 else 0)

    def find(self, k: int) -> int | None:
        """Which step holds index k, or None."""
        if not self.first <= k < self.stop:
            return None
        if self.contiguous:
            return (k - self.first) // self.width
        for offset in self.pattern:
            distance = k - self.first - offset
            if self.count == 1:
                if distance == 0:
                    return 0
            elif distance >= 0 and distance % self.advance == 0 and distance // self.advance < self.count:
                return distance // self.advance
        return None

    def inside(self, lo: int, hi: int) -> int:
        """How many indices of the run lie in [lo, hi)."""
        lo, hi = max(lo, self.first), min(hi, self.stop)
        if lo >= hi:
            return 0
        if self.contiguous:
            return hi - lo
        total = 0
        for offset in self.pattern:
            base = self.first + offset
            if self.count == 1:
                total += lo <= base < hi
            else:
                low = max(0, -((base - lo) // self.advance))
                high = min(self.count, -((base - hi) // self.advance))
                total += max(0, high - low)
        return total


def run_of(ks: tuple[int, ...]) -> Run:
    """One step that folds the given indices."""
    ordered = tuple(sorted(ks))
    return Run(ordered[0], tuple(k - ordered[0] for k in ordered))


def contiguous_runs(start: int, stop: int, width: int) -> tuple[Run, ...]:
    """Steps of `width` over [start, stop) in ascending order; the last is short when the width does not divide."""
    full, rest = divmod(stop - start, width)
    runs = []
    if full:
        runs.append(Run(start, tuple(range(width)), full, width if full > 1 else 0))
    if rest:
        runs.append(Run(stop - rest, tuple(range(rest))))
    return tuple(runs)


def join_runs(runs: tuple[Run, ...], more: tuple[Run, ...]) -> tuple[Run, ...]:
    """Append steps, extending the last run as far as it goes: equal step sequences give equal runs."""
    out = list(runs)
    for run in more:
        rest: Run | None = run
        while rest is not None:
            last = out[-1] if out else None
            if last is None or last.pattern != rest.pattern:
                out.append(rest)
                break
            distance = rest.first - last.first
            if last.count == 1:
                advance = distance
            elif distance == last.count * last.advance:
                advance = last.advance
            else:
                out.append(rest)
                break
            if advance <= 0:
                out.append(rest)
                break
            take = rest.count if rest.count == 1 or rest.advance == advance else 1
            out[-1] = Run(last.first, last.pattern, last.count + take, advance)
            left = rest.count - take
            rest = None if not left else Run(
                rest.first + take * rest.advance, rest.pattern, left, rest.advance if left > 1 else 0)
    return tuple(out)


def join_chain(runs: tuple[Run, ...], more: tuple[Run, ...]) -> tuple[Run, ...]:
    """Append single indices to a chain of them. A run of several offsets holds slices: each step is its indices one by one, ascending.

    Written as runs of single indices at even distance, as long as they go from the left; then equal slices of neighbours at even distance,
    which are what a lane of a kernel with wide loads sums, as one run.
    """
    out = list(runs)
    for run in more:
        last = out[-1] if out else None
        if run.width > 1 and not run.contiguous and (last is None or _parted(last, run)):
            # whole slices behind whole slices, or behind what they cannot lengthen: no need to look at each
            out.append(run)
            _gather(out)
            continue
        for piece in _pieces(run):
            if out and out[-1].width > 1:  # its last slice may grow
                block = out.pop()
                if block.count > 1:
                    out.append(_slices_of(block, block.count - 1))
                out.extend(_pieces(Run(block.first + (block.count - 1) * block.advance, block.pattern)))
            out[-1:] = join_runs(tuple(out[-1:]), (piece,))
            _gather(out, behind=1)
            _gather(out)
    return tuple(out)


def _parted(last: Run, block: Run) -> bool:
    """True where a run of slices stays one run behind `last`, neither lengthening it nor giving slices to it."""
    if last.width == 1 and (last.count == 1 or last.first + last.count * last.advance == block.first):
        return False
    width = _slice_width(last)
    if width != block.width:
        return last.width == 1 or last.stop != block.first
    if last.width == 1:
        return False  # a lone slice goes with the next one, whatever their distance
    distance = block.first - (last.first + (last.count - 1) * last.advance)
    return distance > width and (distance != last.advance or distance == block.advance)


def _pieces(run: Run) -> list[Run]:
    """A run of slices as runs of single indices, one a slice; a contiguous run as one."""
    if run.width == 1:
        return [run]
    if run.contiguous:
        return [Run(run.first, (0,), run.width * run.count, 1)]
    return [Run(run.first + t * run.advance, (0,), run.width, 1) for t in range(run.count)]


def _slices_of(block: Run, count: int) -> Run:
    """The first `count` slices of a run, as it stands in a chain."""
    return block.prefix(count) if count > 1 else Run(block.first, (0,), block.width, 1)


def _gather(out: list[Run], behind: int = 0) -> None:
    """Write the last slice as part of the run of slices before it, where it goes on with that run. behind: runs at the end to leave be."""
    while len(out) >= 2 + behind:
        one, two = out[-2 - behind], out[-1 - behind]
        width = _slice_width(one)
        if width == 0 or width != _slice_width(two):
            return
        distance = two.first - (one.first + (one.count - 1) * one.advance if one.width > 1 else one.first)
        if distance <= width or (one.width > 1 and distance != one.advance) or (two.width > 1 and distance != two.advance):
            return
        count = (one.count if one.width > 1 else 1) + (two.count if two.width > 1 else 1)
        out[-2 - behind:len(out) - behind] = [Run(one.first, tuple(range(width)), count, distance)]


def _slice_width(run: Run) -> int:
    """How many neighbours a slice of the run has; 0 where it holds no slices."""
    if run.width > 1:
        return run.width
    return run.count if run.count > 1 and run.advance == 1 else 0
