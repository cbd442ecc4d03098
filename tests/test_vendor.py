"""The names of each release: which table answers for a version, what is said where none fits, and how the tables come about."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import zipfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe import vendor
from probe.answer import CONFIG_ATTRIBUTES, Answer
from probe.cli.show import point_lines
from probe.errors import UsageError
from probe.names import ComputeType, Epilogue
from probe.records import Point
from probe.target import LibraryKind
from tools import extract_enums

TILE = "cublasLtMatmulTile_t"
VERSIONS = [".".join(table.version.split(".")[:3]) for table in vendor.releases()]
ENUMS = [name for names in extract_enums.ENUMS.values() for name in names]
OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]


def _answer(tile: int) -> Answer:
    return Answer(algo_id=66, tile=tile, splitk_num=1, reduction_scheme=0, swizzling=0, custom_option=0, stages=0, inner_shape=0,
                  cluster_shape=0, workspace_bytes=0, waves=1.0)


def _new_tile() -> tuple[int, str]:
    """A tile that the newest release names and the oldest does not: its number and the newest's short name."""
    number = max(set(vendor.members(TILE, NEWEST).values()) - set(vendor.members(TILE, OLDEST).values()))
    return number, vendor.short_name(TILE, number, NEWEST)


# Which table


def test_the_table_of_the_same_release_is_taken_without_a_word() -> None:
    for version in VERSIONS:
        table = vendor.table_for(version)
        assert table.version.startswith(version + ".") and table.note == ""
    assert vendor.table_for(None) == vendor.table_for(vendor.DEFAULT)
    assert [vendor.numbers(v) for v in VERSIONS] == sorted(vendor.numbers(v) for v in VERSIONS)  # 13.1 comes before 13.10
    assert len({table.wheel_sha256 for table in vendor.releases()}) == len(VERSIONS)


def test_a_release_without_a_table_gets_the_newest_that_is_not_newer_and_it_is_said() -> None:
    for before, after in pairwise(VERSIONS):
        major, minor, patch = vendor.numbers(before)
        between = f"{major}.{minor}.{patch + 1}"
        assert vendor.numbers(between) < vendor.numbers(after)
        table = vendor.table_for(between)
        assert table.version.startswith(before + ".")
        assert between in table.note and table.version in table.note
        assert vendor.members(TILE, between) == vendor.members(TILE, before)


def test_a_library_older_than_every_table_gets_no_names_and_it_is_said() -> None:
    table = vendor.table_for("11.0.0")
    assert str(table) == "no table" and "11.0.0" in table.note
    assert vendor.full_name(TILE, 1, "11.0.0") == vendor.short_name(TILE, 1, "11.0.0") == "unknown(1)"
    with pytest.raises(KeyError):
        vendor.attribute(CONFIG_ATTRIBUTES["tile"], "11.0.0")


@pytest.mark.parametrize("text", ["", "13", "13.x.0", "13.1.", "cu13"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        vendor.numbers(text)


def test_an_enum_that_no_table_has_is_an_error_in_every_version() -> None:
    for version in (None, "11.0.0", NEWEST):
        with pytest.raises(KeyError):
            vendor.members("cublasLtNoSuch_t", version)


# What the tables say


def test_no_number_changed_its_meaning_and_no_attribute_its_type() -> None:
    """What the docstring of probe.vendor says of these releases, and why the door may use one table for all of them."""
    for before, after in pairwise(VERSIONS):
        for enum in ENUMS:
            old, new = vendor.members(enum, before), vendor.members(enum, after)
            assert {name: old[name] for name in old.keys() & new} == {name: new[name] for name in old.keys() & new}
            taken = {number for name, number in new.items() if name not in old}
            assert not taken & set(old.values())
        for group, old in vendor._data(before)["attributes"].items():
            new = vendor._data(after)["attributes"][group]
            assert all(old[name] == new[name] for name in old.keys() & new)
            assert not {new[name]["number"] for name in new.keys() - old} & {one["number"] for one in old.values()}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_release_has_what_the_door_asks_for(version: str) -> None:
    for name in CONFIG_ATTRIBUTES.values():
        assert vendor.attribute(name, version) == vendor.attribute(name)
    assert vendor.full_name("cublasComputeType_t", ComputeType.FP32.cublas_value, version) == "CUBLAS_COMPUTE_32F"
    for epilogue in Epilogue:
        assert vendor.full_name("cublasLtEpilogue_t", epilogue.cublas_value, version).startswith("CUBLASLT_EPILOGUE_")


def test_an_answer_is_named_by_the_release_that_gave_it() -> None:
    number, name = _new_tile()
    answer = _answer(number)
    assert f"tile {name}," in answer.describe(NEWEST)
    assert f"tile unknown({number})," in answer.describe(OLDEST)
    assert str(answer) == answer.describe(None) == answer.describe(vendor.DEFAULT)


def test_a_printed_point_names_its_answer_by_its_own_library_and_says_whose_names_it_borrows() -> None:
    number, name = _new_tile()
    made = probe.walk("8x8x16", library="sim", seed=1)
    assert isinstance(made, Point)

    def printed(version: str) -> str:
        target = replace(made.target, library=LibraryKind.CUBLASLT, version=version)
        return "\n".join(map(str, point_lines(replace(made, answer=_answer(number), target=target))))

    assert f"tile {name}," in printed(NEWEST) and "no table of names" not in printed(NEWEST)
    assert f"tile unknown({number})," in printed(OLDEST)
    major, minor, patch = vendor.numbers(NEWEST)
    later = f"{major}.{minor}.{patch + 1}"
    assert f"tile {name}," in printed(later) and f"no table of names for {later}" in printed(later)


# How the tables come about


_documents = st.recursive(st.integers() | st.text(max_size=3), lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
                          max_leaves=12)
_objects = st.dictionaries(st.sampled_from("abcd"), _documents, max_size=4)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(_objects, _objects)
def test_a_patch_makes_the_later_table_of_the_earlier(before: dict[str, object], after: dict[str, object]) -> None:
    made = extract_enums.patch(before, after)
    assert vendor.merged(before, made) == after
    assert (made == {}) == (before == after)


def test_the_committed_file_is_what_the_tool_writes_for_its_tables() -> None:
    text = extract_enums.OUTPUT.read_text()
    assert extract_enums.render(extract_enums.compact(vendor.expanded(json.loads(text))[::-1])) == text
    assert [f"{table.wheel}=={table.version}" for table in vendor.releases()] == extract_enums.RELEASES


def _wheel(folder: Path, version: str, change: tuple[str, str]) -> Path:
    """A small wheel nvidia-cublas of that version: the real headers of this environment's wheel with one line changed."""
    files = {f.name: Path(str(f.locate())) for f in importlib.metadata.files("nvidia-cublas") or [] if f.name in extract_enums.ENUMS}
    info = f"nvidia_cublas-{version}.dist-info"
    path = folder / f"nvidia_cublas-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, file in files.items():
            text = file.read_text()
            archive.writestr(f"nvidia/include/{name}", text.replace(*change) if name == "cublasLt.h" else text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: nvidia-cublas\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def installed() -> str:
    """The version of the installed wheel, whose headers the tests below alter."""
    try:
        return importlib.metadata.version("nvidia-cublas")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no nvidia-cublas wheel here: pip install -e '.[test-cublas]'")


def test_the_tool_adds_a_release_that_pip_finds_as_its_differences_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    last = "CUBLASLT_MATMUL_TILE_END"
    name, number = "CUBLASLT_MATMUL_TILE_3x5", 2000
    wheel = _wheel(tmp_path, "99.1.2.3", (last, f"{name} = {number}, {last}"))
    output = tmp_path / "vendor_enums.json"
    output.write_text(extract_enums.OUTPUT.read_text())
    before = vendor.expanded(json.loads(output.read_text()))
    monkeypatch.setattr(extract_enums, "OUTPUT", output)
    monkeypatch.setattr(sys, "argv", ["extract_enums", "nvidia-cublas==99.1.2.3"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert extract_enums.main() == 0
    *kept, added = vendor.expanded(json.loads(output.read_text()))
    assert kept == before
    assert added["source"]["file"] == wheel.name
    assert added["enums"][TILE][name] == number
    base = next((t for t in before if t["source"]["version"] == installed), None)
    if base is not None:  # the altered headers are this release's: one name more and nothing else
        theirs = {**base["enums"][TILE], name: number}
        assert added["enums"] == {**base["enums"], TILE: theirs} and added["attributes"] == base["attributes"]


def test_the_tool_refuses_a_header_that_it_does_not_understand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    wheel = _wheel(tmp_path, "99.1.2.3", ("} cublasLtMatmulTile_t;", "} renamed_t;"))
    with pytest.raises(SystemExit, match=TILE):
        extract_enums.table({}, extract_enums.unpacked(wheel))
    output = tmp_path / "vendor_enums.json"
    output.write_text(extract_enums.OUTPUT.read_text())
    before = output.read_text()
    monkeypatch.setattr(extract_enums, "OUTPUT", output)
    monkeypatch.setattr(sys, "argv", ["extract_enums", "nvidia-cublas"])
    with pytest.raises(SystemExit):
        extract_enums.main()
    assert output.read_text() == before
