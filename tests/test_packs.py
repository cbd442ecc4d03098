"""Evidence packs: what a campaign found travels in one file, and a file from a stranger is checked before anything in it is believed."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign_parts import BREAKS, PATCHWORK, campaign_file, children, stand_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import probe
from probe.campaign.admin import compact_campaign, export_campaign
from probe.campaign.folder import Folder
from probe.campaign.rows import COLUMNS, MOVING
from probe.campaign.run import run_campaign
from probe.cli import main
from probe.errors import ExitCode, UsageError
from probe.names import DType
from probe.oracle import Opened, open_oracle
from probe.packs import file as pack_file
from probe.packs.file import MANIFEST, ROWS
from probe.packs.rowcheck import campaign_of, check_row
from probe.pipeline import walk_problem
from probe.preference import Preference
from probe.problem import Problem
from probe.records import Point
from tools.record_readings import RecordingOracle

# One row of each kind: the last problem is too large for the simulated library.
MIXED = """
[[list]]
shapes = "mixed.txt"

[[regime]]
name = "tiny"
m = {from = 24, to = 40}
n = {from = 24, to = 40}
k = {from = 8, to = 64}
outputs = ["fp32"]
"""
READING = "readings/16x16x96.fp16.npz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("packed")
    (place / "mixed.txt").write_text("16x16x2100 fp16 fp32\n16x16x512 e4m3 bf16 tn\n8x8x1100000 fp16 fp32\n")
    run_campaign(campaign_file(place, 6, regime=MIXED), place / "out")
    assert {row["outcome"] for row in Folder(place / "out").read()} == {"confirmed", "declined"}
    return place / "out"


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A walk of the simulated library, recorded as tools.record_readings does."""
    place = tmp_path_factory.mktemp("readings")
    opened = open_oracle("sim", 0)
    oracle = RecordingOracle(opened.oracle)
    point = walk_problem(Problem.gemm(16, 16, 96, DType.FP16), Preference(), Opened(oracle, ""), seed=3)  # type: ignore[arg-type]
    assert isinstance(point, Point) and oracle.recorder is not None
    oracle.recorder.save(place / Path(READING).name, point.to_document())
    return place


@pytest.fixture(scope="module")
def packed(folder: Path, readings: Path) -> Path:
    path = folder.parent / "good.pack"
    probe.pack(folder, path, readings=readings)
    return path


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def forged(path: Path, parts: dict[str, bytes], hashes: bool = True, **manifest: Any) -> Path:
    """A pack of other parts, whose manifest fits them as a forger would make it, unless `hashes` is False."""
    document = json.loads(parts[MANIFEST]) | manifest
    if hashes and "entries" not in manifest:
        document["entries"] = [{"name": n, "bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in parts.items()
                               if n != MANIFEST]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in (parts | {MANIFEST: json.dumps(document).encode()}).items():
            file.writestr(name, data)
    return path


def with_row(path: Path, out: Path, change: Callable[[dict[str, Any]], None], number: int = 0) -> Path:
    parts = entries(path)
    lines = parts[ROWS].splitlines()
    row = json.loads(lines[number])
    change(row)
    lines[number] = json.dumps(row).encode()
    return forged(out, parts | {ROWS: b"\n".join(lines) + b"\n"})


# There and back

def test_a_pack_holds_the_campaign_and_replays(folder: Path, packed: Path) -> None:
    got = probe.check_pack(packed, replayed=True)
    frozen = Folder(folder).frozen
    assert (got.identity, got.targets, got.counts.rows, got.readings) == (frozen.identity, dict(frozen.targets), 6, 1)
    assert got.failed == () and got.exit_code == ExitCode.OK
    assert got.sha256 == hashlib.sha256(entries(packed)[MANIFEST]).hexdigest()
    rows = [json.loads(line) for line in entries(packed)[ROWS].splitlines()]
    assert rows == sorted(Folder(folder).read(), key=lambda row: row["index"])


def test_every_form_of_a_dataset_is_packed(folder: Path, tmp_path: Path) -> None:
    (archive,) = export_campaign(folder, tmp_path / "archive.parquet")
    compact = compact_campaign(folder, tmp_path / "compact.parquet")
    made = [probe.pack(source, tmp_path / f"{i}.pack") for i, source in enumerate((folder, archive, compact))]
    for one in made:
        checked = probe.check_pack(one.path)
        assert (checked.sha256, checked.counts, checked.readings) == (one.sha256, one.counts, 0)
    rows = [entries(one.path)[ROWS] for one in made]
    assert rows[0] == rows[1] != rows[2]  # a compact one has no captures


def test_a_pack_has_no_code_and_only_names_that_it_may_have(packed: Path) -> None:
    parts = entries(packed)
    assert set(parts) == {MANIFEST, ROWS, READING}
    assert not any(data.startswith((b"\x7fELF", b"\x80")) for data in parts.values())


# From a stranger: the file

def _cut(packed: Path, out: Path) -> Path:
    out.write_bytes(packed.read_bytes()[:-30])
    return out


def _prefixed(packed: Path, out: Path) -> Path:
    out.write_bytes(b"#!/bin/sh\n" + packed.read_bytes())
    return out


def _trailed(packed: Path, out: Path) -> Path:
    out.write_bytes(packed.read_bytes() + b"more")
    return out


def _flipped(packed: Path, out: Path) -> Path:
    """A byte of a row changed, and the zip's own checksum with it."""
    return forged(out, entries(packed) | {ROWS: entries(packed)[ROWS].replace(b"confirmed", b"confirmeb", 1)}, hashes=False)


def _extra(packed: Path, out: Path) -> Path:
    return forged(out, entries(packed) | {"setup.py": b"print()"})


def _upwards(packed: Path, out: Path) -> Path:
    return forged(out, entries(packed) | {"readings/../../x.npz": b""})


def _twice(packed: Path, out: Path) -> Path:
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(forged(out, entries(packed)), "a") as file:
        file.writestr(ROWS, b"{}\n")
    return out


def _unlisted(packed: Path, out: Path) -> Path:
    return forged(out, entries(packed), entries=[])


def _other_version(packed: Path, out: Path) -> Path:
    return forged(out, entries(packed), version=2)


def _other_count(packed: Path, out: Path) -> Path:
    return forged(out, entries(packed), rows=5)


def _other_campaign(packed: Path, out: Path) -> Path:
    campaign = json.loads(entries(packed)[MANIFEST])["campaign"]
    campaign["campaign"]["seed"] += 1
    return forged(out, entries(packed), campaign=campaign)


def _nested(packed: Path, out: Path) -> Path:
    return forged(out, entries(packed) | {ROWS: b"[" * 200_000 + b"\n"}, rows=1)


def _no_end(packed: Path, out: Path) -> Path:
    return forged(out, entries(packed) | {ROWS: entries(packed)[ROWS][:-1]})


def _row_twice(packed: Path, out: Path) -> Path:
    first = entries(packed)[ROWS].splitlines(keepends=True)[0]
    return forged(out, entries(packed) | {ROWS: entries(packed)[ROWS] + first}, rows=7)


@pytest.mark.parametrize(("spoil", "words"), [
    (_cut, "truncated"), (_prefixed, "truncated"), (_trailed, "truncated"), (_flipped, "was changed"), (_extra, "no place"),
    (_upwards, "no place"), (_twice, "entries"),
    (_unlisted, "other entries"), (_other_version, "version 2"), (_other_count, "manifest says 5"), (_other_campaign, "was changed"),
    (_nested, "no plain JSON"), (_no_end, "no end"), (_row_twice, "twice")])
def test_a_file_that_is_not_what_it_should_be_is_named(packed: Path, tmp_path: Path, spoil: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        probe.check_pack(spoil(packed, tmp_path / "bad.pack"))
    assert "bad.pack" in caught.value.message and "\n" not in caught.value.message


def test_sizes_are_bounded_before_anything_is_unpacked(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = forged(tmp_path / "bomb.pack", entries(packed) | {READING: bytes(2**22)})
    monkeypatch.setattr(pack_file, "MOST_UNPACKED", 2**21)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *a: pytest.fail("something was unpacked"))
    with pytest.raises(UsageError, match="unpacks to more than 2 MiB"):
        probe.check_pack(bomb)
    monkeypatch.setattr(pack_file, "MOST_FILE", 100)
    with pytest.raises(UsageError, match="more than 0 MiB"):
        probe.check_pack(bomb)


def test_a_long_row_is_refused(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_file, "MOST_LINE", 1000)
    with pytest.raises(UsageError, match="more than 1000 bytes"):
        probe.check_pack(packed)


# From a stranger: the rows

@pytest.mark.parametrize(("change", "named"), [
    ({"index": 1}, "source|problem"), ({"index": -1}, "index"), ({"index": 2**62}, "source"), ({"m": 17}, "m is 17"),
    ({"seed": 5}, "seed"), ({"outcome": "proven"}, "outcome"), ({"outcome": "refuted"}, "refuted"), ({"family": "another"}, "family"),
    ({"algo_id": None}, "algo_id"), ({"algo_id": 2**40}, "algo_id"), ({"schedule_text": "0"}, "schedule_text"),
    ({"schedule": '["zero"]'}, "schedule"), ({"schedule": "[" * 10**5}, "schedule"),
    ({"gemm_desc": None}, "family"), ({"gemm_desc": "{}"}, "gemm_desc"),
    ({"library_sha256": "0" * 64}, "library_sha256"), ({"library_name": "sim-2"}, "library_name"), ({"kernels": "x"}, "kernels"),
    ({"outputs_differing": 1}, "outputs_differing"), ({"elements_compared": 10}, "elements_compared"),
    ({"draws": "flat:1"}, "draws"), ({"draws": "flat"}, "draws"), ({"ambiguous": '[["zero"]]'}, "ambiguous"),
    ({"attempts": 10**9}, "attempts"), ({"seconds": -1.0}, "seconds"), ({"seconds": True}, "seconds"),
    ({"m": "16"}, "m is '16'"), ({"classes": 2}, "classes"), ({"elements_in_class": 5}, "elements_in_class"),
    ({"problem": "{}"}, "problem"), ({"reason": "too_large"}, "reason"), ({"forced": "splitk_num=4"}, "forced"), ({"extra": 1}, "columns")])
def test_a_row_that_contradicts_itself_is_named_by_its_field(packed: Path, tmp_path: Path, change: dict[str, Any], named: str) -> None:
    bad = with_row(packed, tmp_path / "bad.pack", lambda row: row.update(change))
    with pytest.raises(UsageError, match=f"row 0: .*({named})"):
        probe.check_pack(bad)


def test_a_descriptor_that_would_take_forever_is_refused(packed: Path, tmp_path: Path) -> None:
    def slow(row: dict[str, Any]) -> None:
        desc = json.loads(row["gemm_desc"])
        desc["k"], desc["k_summed"], desc["k_cuts"][0]["span"] = 2**60, 2**60, 1
        row["gemm_desc"] = json.dumps(desc)

    with pytest.raises(UsageError, match="more parts"):
        probe.check_pack(with_row(packed, tmp_path / "bad.pack", slow))


def test_a_decline_with_a_verdict_is_refused(packed: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in entries(packed)[ROWS].splitlines()]
    number = next(i for i, row in enumerate(rows) if row["outcome"] == "declined")
    bad = with_row(packed, tmp_path / "bad.pack", lambda row: row.update(family="x"), number)
    with pytest.raises(UsageError, match=f"row {number}: family"):
        probe.check_pack(bad)


# What neither the stream nor another field can tell, as long as it has the type: the answer and what a run cost.
UNTOLD = MOVING | {"algo_id", "tile", "splitk_num", "reduction_scheme", "swizzling", "custom_option", "stages", "inner_shape",
                   "cluster_shape", "workspace_bytes", "attempts", "candidates", "instrument", "walk_launches", "walk_experiments",
                   "launches", "exhaustive",
                   "elements_compared", "outputs_compared", "draws", "evidence", "capture", "kernels"}
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-2**70, 2**70), st.floats(), st.text(max_size=8), st.just([]), st.just({}))


@given(st.sampled_from(sorted(COLUMNS)), VALUES)
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_value_of_any_field_gets_through_or_escapes(folder: Path, column: str, value: Any) -> None:
    """Whatever stands in a field: it is refused with that field's row, or it is a value that nothing contradicts."""
    frozen = Folder(folder).frozen
    row = Folder(folder).read()[0]
    try:
        check_row(row | {column: value}, frozen, frozen.campaign.stream())
    except UsageError:
        return
    same = type(value) is type(row[column]) and value == row[column]
    assert same or column in UNTOLD


@given(st.data())
@settings(max_examples=80)
def test_no_campaign_of_a_manifest_escapes(folder: Path, data: st.DataObject) -> None:
    """A value put anywhere into it: it is refused in one line, or it is another campaign's, whose identity differs."""
    document = Folder(folder).frozen.to_document()
    place: Any = document
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        deeper = isinstance(place[key], dict | list) and len(place[key]) > 0
        if not deeper or data.draw(st.booleans()):
            break
        place = place[key]
    before = json.dumps(document)
    place[key] = data.draw(VALUES)
    try:
        frozen, _ = campaign_of(document, Path("x.pack"))
    except UsageError as error:
        assert "x.pack" in error.message
        return
    assert json.dumps(document) == before or frozen.identity == Folder(folder).frozen.identity or key == "identity"


def test_a_list_without_end_is_refused_before_it_is_made(folder: Path) -> None:
    frozen = Folder(folder).frozen
    many = replace(frozen.campaign.lists[0], workspaces=tuple(range(2**16)))
    big = replace(frozen, campaign=replace(frozen.campaign, lists=(many,)))
    with pytest.raises(UsageError, match=r"x\.pack.*problems"):
        campaign_of(big.to_document(), Path("x.pack"))


# From a stranger: the recordings

def _arrays(packed: Path) -> dict[str, Any]:
    with np.load(io.BytesIO(entries(packed)[READING])) as data:
        return {name: data[name] for name in data.files}


def _npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def _claims_more(packed: Path) -> bytes:
    """An array of the size of a house, by its header alone."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(entries(packed)[READING])) as source, zipfile.ZipFile(out, "w") as file:
        for info in source.infolist():
            data = source.read(info)
            if info.filename == "draws.npy":
                header = io.BytesIO()
                np.lib.format.write_array_header_1_0(header, {"descr": "<u2", "fortran_order": False, "shape": (2**50,)})
                data = header.getvalue() + data[-100:]
            file.writestr(info.filename, data)
    return out.getvalue()


@pytest.mark.parametrize(("make", "words"), [
    (lambda p: b"junk", "zip"), (lambda p: _npz(meta=np.array(1)), "no recording"), (_claims_more, "size that it says"),
    (lambda p: _npz(**_arrays(p) | {"meta": np.array([{"a": 1}], object)}), "meta.npy"),
    (lambda p: _npz(**_arrays(p) | {"meta": np.array("{}")}), "about"),
    (lambda p: _npz(**_arrays(p) | {"meta": np.array(str(_arrays(p)["meta"]).replace('"sm_count": 132', '"sm_count": 131'))}), "target")])
def test_a_recording_that_is_none_is_refused(packed: Path, tmp_path: Path, make: Any, words: str) -> None:
    bad = forged(tmp_path / "bad.pack", entries(packed) | {READING: make(packed)})
    with pytest.raises(UsageError, match=f"{READING}: .*{words}"):
        probe.check_pack(bad)


def test_readings_that_say_something_else_fail_when_they_are_replayed(packed: Path, tmp_path: Path) -> None:
    arrays = _arrays(packed)
    bad = forged(tmp_path / "bad.pack", entries(packed) | {READING: _npz(**arrays | {"draws": arrays["draws"] ^ 1})})
    assert probe.check_pack(bad).exit_code == ExitCode.OK  # it holds together, and nobody looked
    got = probe.check_pack(bad, replayed=True)
    assert got.exit_code == ExitCode.NOT_CONFIRMED and got.failed is not None and READING in got.failed[0]


# Making one

@pytest.mark.slow
def test_rows_of_every_sort_are_packed(tmp_path: Path) -> None:
    """Several classes in one row, and what failed: with an answer, without one, asked twice."""
    for name, oracle, shapes in (("classes", PATCHWORK, "16x16x1024 fp16 fp32\n"),
                                 ("broken", BREAKS, "".join(f"32x32x{k} fp16 fp32\n" for k in (70, 71, 73, 74, 75)))):
        (tmp_path / "some.txt").write_text(shapes)
        file = campaign_file(tmp_path, shapes.count("\n"), "draws = 60", '[[list]]\nshapes = "some.txt"\n')
        run_campaign(file, tmp_path / name, make_child=children({"sim": stand_in(tmp_path, oracle)}))
        probe.pack(tmp_path / name, tmp_path / f"{name}.pack")
        assert probe.check_pack(tmp_path / f"{name}.pack").counts.rows == shapes.count("\n")
    parts = entries(tmp_path / "classes.pack")
    assert json.loads(parts[ROWS])["classes"] == 2
    bad = with_row(tmp_path / "classes.pack", tmp_path / "bad.pack", lambda row: row.update(classes=1, more_classes=None))
    with pytest.raises(UsageError, match="elements_in_class"):
        probe.check_pack(bad)
    assert {json.loads(line)["outcome"] for line in entries(tmp_path / "broken.pack")[ROWS].splitlines()} == {"confirmed", "failed"}


def test_what_cannot_be_packed_is_said_and_nothing_is_written(folder: Path, readings: Path, packed: Path, tmp_path: Path) -> None:
    before = packed.read_bytes()
    for arguments, words in (((folder, packed), "not overwritten"), ((folder, tmp_path / "x.zip"), "does not end"),
                             ((tmp_path, tmp_path / "x.pack"), "no folder of a campaign"), ((packed, tmp_path / "x.pack"), "no Parquet")):
        with pytest.raises(UsageError, match=words):
            probe.pack(*arguments)
    with pytest.raises(UsageError, match="no recording"):
        probe.pack(folder, tmp_path / "x.pack", readings=tmp_path)
    assert packed.read_bytes() == before and list(tmp_path.iterdir()) == []


def test_the_command(folder: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                     monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["probe", "pack", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), capsys.readouterr().out

    code, out = run(str(folder), "-o", str(tmp_path / "new.pack"), "--json")
    assert code == 0 and json.loads(out) == probe.check_pack(tmp_path / "new.pack").to_document()
    code, out = run("check", str(packed), "--replay")
    assert code == 0 and "walked again, 0 failed" in out and "5 confirmed, 1 declined" in out
    for wrong in (("check", str(folder / "campaign.json")), (str(folder),), ("check", str(packed), "-o", "x")):
        assert run(*wrong)[0] == ExitCode.USAGE
