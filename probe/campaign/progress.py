"""What a campaign tells while it runs: events, which the command prints, draws or writes as JSON lines."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from probe.campaign.rows import Row, Tally


class EventKind(StrEnum):
    """begin: once, with what is to do. row: a finished problem. status: every few seconds. lost: a worker. notice: a line for the person.
    end: once."""

    BEGIN = "begin"
    ROW = "row"
    STATUS = "status"
    LOST = "lost"
    NOTICE = "notice"
    END = "end"


@dataclass(frozen=True)
class Event:
    """One event. values: plain values for JSON."""

    kind: EventKind
    values: dict[str, Any] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        return {"event": str(self.kind), **self.values}


Listener = Callable[[Event], None]
_RECENT = 60.0  # seconds that a rate looks back


class Gauge:
    """Counts and the recent rate of one worker. Times: seconds of one steady clock."""

    def __init__(self, gpu: int, library: str, began: float) -> None:
        self.gpu, self.library = gpu, library
        self.tally = Tally()
        self._began = began
        self._recent: deque[float] = deque()
        self.lost = ""

    def add(self, row: Row, when: float) -> None:
        self.tally.add(row)
        self._recent.append(when)

    def rate(self, when: float) -> float:
        """Problems a second over the last minute."""
        while self._recent and self._recent[0] < when - _RECENT:
            self._recent.popleft()
        return len(self._recent) / max(1e-3, min(_RECENT, when - self._began))

    def to_document(self, when: float) -> dict[str, Any]:
        """The families are the five most frequent, without the number of parts, so that a line has room for them."""
        results = self.tally.to_document()
        return {"gpu": self.gpu, "library": self.library, "rows": results["rows"], "rate": round(self.rate(when), 2),
                "families": dict(_broad(self.tally).most_common(5)), "declined": results["outcomes"]["declined"],
                "failed": results["outcomes"]["failed"], "mismatches": self.tally.mismatches, "lost": self.lost}


def _broad(tally: Tally) -> Counter[str]:
    counts: Counter[str] = Counter()
    for family, count in tally.families.items():
        words = family.split()
        counts[" ".join(w for i, w in enumerate(words) if not (w.isdigit() and words[i + 1:i + 2] in (["parts"], ["parts,"])))] += count
    return counts


def status(gauges: list[Gauge], finished: int, total: int | None, seconds_left: float | None, when: float) -> Event:
    """How all workers stand. finished and total: rows. left_s: until the end, by the rate or by the clock, whichever comes first."""
    rate = sum(gauge.rate(when) for gauge in gauges if not gauge.lost)
    left = [seconds_left] if seconds_left is not None else []
    if total is not None and rate > 0:
        left.append((total - finished) / rate)
    return Event(EventKind.STATUS, {"finished": finished, "total": total, "rate": round(rate, 2),
                                    "left_s": round(min(left), 1) if left else None,
                                    "workers": [gauge.to_document(when) for gauge in gauges]})
