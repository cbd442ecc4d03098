"""The record of a point: its JSON and Parquet forms, and the file that appears whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import probe
from probe.compare import Difference
from probe.errors import Declined, EnvironmentProblem, UsageError
from probe.proof import Outcome
from probe.records import COLUMNS, POINT_VERSION, Point, check_output, row_of, write_point, write_rows

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "walk.md"
FORMS = ["point.json", "point.parquet"]


@pytest.fixture(scope="module")
def point() -> Point:
    found = probe.walk("8x8x40", library="sim", seed=3)
    assert not isinstance(found, Declined)
    return found


def refuted(point: Point) -> Point:
    """The point with a proof in which one element is NaN where the model has infinity."""
    [result] = point.classes
    assert result.proof is not None
    first = Difference(0, 1, 0x7E00, 0x7C00, float("nan"), float("inf"))
    proof = replace(result.proof, outcome=Outcome.REFUTED, differing=1, first=first, first_draw="extremes draw 0")
    return replace(point, classes=(replace(result, proof=proof),))


def test_a_row_has_the_columns_of_the_schema(point: Point) -> None:
    assert list(row_of(point, point.classes[0])) == list(COLUMNS)


def test_parquet_has_the_declared_types_also_where_all_values_are_missing(point: Point, tmp_path: Path) -> None:
    [result] = point.classes
    general = replace(point, classes=(replace(result, desc=None), replace(result, proof=None)))
    write_point(general, tmp_path / "point.parquet")
    table = pq.read_table(tmp_path / "point.parquet")
    assert {f.name: f.type for f in table.schema} == {name: pa.type_for_alias(alias) for name, alias in COLUMNS.items()}
    assert table.schema.metadata == {b"probe.kind": b"points", b"probe.version": str(POINT_VERSION).encode()}
    assert table["gemm_desc"].to_pylist()[0] is None
    assert table["outcome"].to_pylist() == ["confirmed", "ambiguous"]


def test_rows_may_have_columns_of_their_own(point: Point, tmp_path: Path) -> None:
    write_rows([row_of(point, point.classes[0]) | {"case": "a", "rival": 3}], tmp_path / "rows.parquet")
    [row] = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert (row["case"], row["rival"], row["k"]) == ("a", 3, 40)


def test_json_holds_no_number_that_json_lacks(point: Point, tmp_path: Path) -> None:
    write_point(refuted(point), tmp_path / "point.json")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON number")

    document = json.loads((tmp_path / "point.json").read_text(), parse_constant=refuse)
    first = document["classes"][0]["proof"]["first"]
    assert document["outcome"] == "refuted" and (first["library_bits"], first["model_bits"]) == (0x7E00, 0x7C00)


def test_the_outcome_of_a_point_is_its_worst(point: Point) -> None:
    good, bad = point.classes[0], refuted(point).classes[0]
    open_ = replace(good, proof=None)
    for classes, worst in (((good, good), Outcome.CONFIRMED), ((good, open_), Outcome.AMBIGUOUS), ((open_, bad, good), Outcome.REFUTED)):
        mixed = replace(point, classes=classes)
        assert mixed.outcome is worst and mixed.exit_code == (0 if worst is Outcome.CONFIRMED else 1)


@pytest.mark.parametrize("name", FORMS)
def test_a_file_appears_under_its_name_alone(name: str, point: Point, tmp_path: Path) -> None:
    write_point(point, tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).stat().st_nlink == 1


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_came_in_between_is_not_replaced(name: str, links: bool, point: Point, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process took the name after the check; also on a file system without links."""
    monkeypatch.setattr("probe.records.check_output", lambda path: path.write_text("theirs"))
    if not links:
        monkeypatch.setattr(os, "link", _failing(errno.EPERM))
    with pytest.raises(UsageError, match="not overwritten"):
        write_point(point, tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "theirs"


def test_a_file_system_without_links_gets_the_file_too(point: Point, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _failing(errno.EPERM))
    write_point(point, tmp_path / "point.json")
    assert [p.name for p in tmp_path.iterdir()] == ["point.json"]


@pytest.mark.parametrize(("name", "writer"), [("point.json", "pathlib.Path.write_text"), ("point.parquet", "pyarrow.parquet.write_table")])
def test_a_disk_that_fills_up_leaves_nothing(name: str, writer: str, point: Point, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*arguments: object, **others: object) -> None:
        target = next(a for a in arguments if isinstance(a, Path))
        target.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer, fill)
    with pytest.raises(EnvironmentProblem, match="No space left"):
        write_point(point, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_writing_leaves_nothing(point: Point, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Path, *arguments: object, **others: object) -> None:
        self.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_point(point, tmp_path / "point.json")
    assert list(tmp_path.iterdir()) == []


def test_the_check_leaves_no_trace_and_keeps_other_files(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    check_output(tmp_path / "point.json")
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


def _failing(number: int) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_the_documentation_lists_the_columns() -> None:
    """docs/walk.md, the table under "Parquet columns": name, type, meaning."""
    text = DOCUMENT.read_text(encoding="utf-8").split("## Parquet columns")[1].split("\n## ")[0]
    documented = {}
    for names, kind in re.findall(r"^\| (`[^|]+`) \| (\w+) \|", text, flags=re.MULTILINE):
        documented |= {name: kind for name in re.findall(r"`(\w+)`", names)}
    assert documented == COLUMNS
    assert list(documented) == list(COLUMNS)
