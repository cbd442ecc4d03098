"""What `probe ask --shapes` names: a fixed regime, a file of shapes, or the stream of a campaign file, as one stream of problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.campaign.parse import read_campaign
from probe.errors import UsageError
from probe.preference import Preference
from probe.questions import listed
from probe.regimes import Chosen, cases_of
from probe.stream import Asked, ProblemStream
from probe.values import check_int

LIST_SEED = 0  # of a stream that draws nothing


@dataclass(frozen=True)
class Wanted:
    """The first `count` problems of a stream. name: of what it comes from. repeats: lines of a file that were left out."""

    name: str
    stream: ProblemStream
    count: int
    repeats: int = 0

    def chunks(self, size: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """(first index, the arguments of probe.wire.asking_batch), of at most `size` questions each."""
        fixed = min(self.count, len(self.stream.listed))
        for begin in range(0, fixed, size):
            yield begin, {"listed": listed(self.stream.listed[begin:min(begin + size, fixed)], begin).to_document()}
        regimes = [regime.to_document() for regime in self.stream.regimes]
        for begin in range(fixed, self.count, size):
            yield begin, {"seed": self.stream.seed, "regimes": regimes, "begin": begin, "end": min(begin + size, self.count)}

    def to_document(self) -> dict[str, Any]:
        """What a table says of its questions: equal documents stand for equal questions at equal indices."""
        stream = self.stream
        return {"shapes": self.name, "count": self.count, "listed": len(stream.listed), "seed": stream.seed if stream.regimes else None,
                "regimes": [regime.to_document() for regime in stream.regimes]}


def wanted(shapes: str | Path, chosen: Chosen, preference: Preference | None, problems: int | None, seed: int | None) -> Wanted:
    """The questions that a name stands for.

    shapes: a regime of probe.regimes, a file of shapes, or a campaign file (.toml), whose lists come first and whose regimes then go on
    without end. chosen, preference (None: not named): of a regime or file of shapes; a campaign file says all of that itself. problems:
    how many; None takes all of a list, and of a campaign file what its budget names. Raises UsageError and EnvironmentProblem.
    """
    if problems is not None:
        check_int("problems", problems, 1, 2**40)
    if str(shapes).endswith(".toml"):
        if chosen != Chosen() or preference is not None:
            raise UsageError("a campaign file says its dtypes, layouts, workspaces and reduction schemes itself",
                             "leave out these options, or edit the file")
        campaign = read_campaign(Path(shapes))
        stream = campaign.stream() if seed is None else replace(campaign.stream(), seed=seed)
        count = problems if problems is not None else campaign.budget.problems if stream.length is None else stream.length
        if count is None:
            raise UsageError(f"{shapes} has random regimes and no number of problems", "--problems")
        return Wanted(campaign.name, stream, _enough(count, stream))
    if seed is not None:
        raise UsageError("seed is given and nothing is drawn", "leave it out, or name a campaign file with regimes")
    cases, repeats = cases_of(shapes, chosen)
    name = Path(shapes).name
    asked = tuple(Asked(name, case.problem(), preference or Preference()) for case in cases)
    stream = ProblemStream(LIST_SEED, asked)
    return Wanted(name, stream, _enough(len(asked) if problems is None else problems, stream), repeats)


def _enough(count: int, stream: ProblemStream) -> int:
    if stream.length is not None and count > stream.length:
        raise UsageError(f"problems = {count} and there are {stream.length}", f"at most {stream.length}, or leave it out")
    return count
