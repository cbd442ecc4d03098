"""Small pieces of Markdown for the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table and the empty line after it. Whole numbers get separators."""
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return [*lines, *(f"| {' | '.join(f'{c:,}' if type(c) is int else str(c) for c in row)} |" for row in rows), ""]


def listed(words: Iterable[object]) -> str:
    """"a, b, c", each once; "none" of none."""
    return ", ".join(dict.fromkeys(map(str, words))) or "none"
