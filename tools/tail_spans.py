"""Take from datasets of `probe diff-libraries` how long the parts of every split-K sum of ALGO_ID 66 are, for the report of the lost tail.

    python -m tools.tail_spans reports/data/libraries/*.parquet -o reports/splitk-tail/spans.json

Both libraries of every row, as their walks recovered them; a sum that several datasets hold with equal results stands there once. Needs no
GPU. An older spans.json is replaced.
Exit codes: 0 done, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from probe.difference.file import read_dataset
from probe.errors import UsageError
from probe.newfile import new_file
from probe.records import now
from probe.tail.spans import KIND, Span, spans_document, spans_of


def take(paths: list[Path], output: Path) -> dict[str, int]:
    """Read the datasets, write the document, return how many spans it holds and how many sums have none. Raises UsageError."""
    if output.exists():
        try:
            kind = json.loads(output.read_text(encoding="utf-8"))["kind"]
        except (OSError, ValueError, KeyError, TypeError):
            kind = None
        if kind != KIND:
            raise UsageError(f"{output} exists, holds no spans, and is not overwritten", "another name, or remove it first")
    spans: dict[tuple[object, ...], Span] = {}
    without = 0
    for path in paths:
        found, other = spans_of(read_dataset(path), path.name)
        without += other
        for span in found:
            # the same sum of the same library with the same result, from a further dataset, tells nothing new
            spans.setdefault((span.target, span.problem, span.split, span.span, span.k_summed, span.grid, span.outcome), span)
    document = spans_document(spans.values(), now(), without)
    with new_file(output, replace=True) as aside:
        aside.write_text(json.dumps(document, allow_nan=False).replace('}, {', '},\n{') + "\n", encoding="utf-8")
    return {"datasets": len(paths), "spans": len(spans), "without_a_span": without}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.tail_spans", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("datasets", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        print(json.dumps(take(options.datasets, options.output)))
    except UsageError as error:
        print(f"tail_spans: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
