"""The report of the lost tail: what it makes of scans, spans, reaches and torch runs, here simulated ones said to be a device's."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from probe.difference.file import read_dataset
from probe.errors import UsageError
from probe.oracle import SimulatedOracle
from probe.problem import DType
from probe.reproducer import script_text
from probe.simulator.library import SimulatedLibrary
from probe.tail.draws import Drawing
from probe.tail.reach import Bench, LayerTask, Setting, SmallestTask, VariantTask
from probe.tail.reach_table import Part, totals, write_reach
from probe.tail.report import SCRIPT, render_report
from probe.tail.results import State, read_results
from probe.tail.rule import lost_ours, part, part_covering
from probe.tail.spans import spans_of, spans_of_document
from probe.tail.table import Row, Tally, summary, write_scan
from probe.target import LibraryKind, Target
from probe.vendor import numbers
from tools import tail_scan, tail_spans

ROOT = Path(__file__).resolve().parents[1]
FOLDER, DATASETS = ROOT / "reports" / "splitk-tail", sorted((ROOT / "reports" / "data" / "libraries").glob("*.parquet"))
FP16 = Drawing((DType.FP16,), 30_000, 1.0)
DRAWS = 60


def device(version: str) -> Target:
    """The simulated target, said to be a GPU's with that release."""
    return replace(SimulatedLibrary().target, library=LibraryKind.CUBLASLT, version=version, device_name="some GPU",
                   sha256=version.ljust(64, "0").replace(".", "a"))


def scanned(folder: Path, name: str, version: str, seed: int, drops: bool = True, draws: int = DRAWS) -> list[Row]:
    """A scan of the simulated library in the folder, as a release's."""
    rows = tail_scan.scan(SimulatedOracle(SimulatedLibrary(drops_tail=drops)), FP16, seed, 0, 60.0, draws, 1.0, Tally()).rows()
    about = {"target": device(version).to_document(), "seed": seed, "processes": 1, "processes_lost": 0, "most_k": FP16.most_k,
             "declined": 0, "failed": 0, "sums": summary(rows)["sums"]}
    write_scan(rows, about, folder / name)
    return rows


# Scans where the search was not run

def test_scans_alone_show_the_fault_and_who_has_it_no_more(tmp_path: Path) -> None:
    short = scanned(tmp_path, "a.parquet", "13.1.0", 4)
    whole = scanned(tmp_path, "b.parquet", "13.10.0", 4, drops=False)
    least = min((r for r in short if r["row"] == "sum" and r["lost"]), key=lambda r: (r["k"], r["m"] * r["n"]))
    states = {one.version: one.state for one in read_results(tmp_path).releases}
    assert states == {"13.1.0": State.SHORT, "13.10.0": State.WHOLE}
    text = render_report(tmp_path)
    assert "No result in this folder shows" not in text
    sum_of_it = f"At {least['m']}x{least['n']}x{least['k']} fp16 -> fp32, nn cublasLtMatmul returns success"
    assert f"{sum_of_it}, and {least['k'] - least['lost']} in place of {least['k']}" in text
    assert f"| 13.1.0 | some GPU | yes | not run | {summary(short)['lost']} of {DRAWS} |" in text
    named = summary(whole)["ours_false_alarm"]
    assert named and f"| 13.10.0 | some GPU | no | not run | 0 of {DRAWS} | {named} |" in text
    assert "- 13: the last release with the fault that was run is 13.1.0, the first without it 13.10.0." in text
    assert "- Upgrading: no short sum with 13.10.0." in text and "- The search on a GPU, its controls and the script." in text


def test_two_scans_of_a_release_add_up_and_one_of_the_same_seed_does_not(tmp_path: Path) -> None:
    first, second = scanned(tmp_path, "a.parquet", "13.1.0", 4), scanned(tmp_path, "b.parquet", "13.1.0", 6)
    scanned(tmp_path, "c.parquet", "13.1.0", 6, draws=10)
    (release,) = read_results(tmp_path).releases
    assert release.repeated == ["c.parquet"] and [name for name, *_ in release.scans] == ["a.parquet", "b.parquet"]
    lost = summary(first)["lost"] + summary(second)["lost"]
    assert summary(release.rows)["sums"] == 2 * DRAWS and summary(release.rows)["lost"] == lost
    text = render_report(tmp_path)
    assert f"| 13.1.0 | some GPU | {2 * DRAWS} |" in text and f"| {lost} of {2 * DRAWS} |" in text
    assert "`c.parquet` is not counted" in text and "with different seeds, are added up" in text


def test_a_release_that_was_never_put_to_the_test_is_not_called_mended(tmp_path: Path) -> None:
    rows = scanned(tmp_path, "a.parquet", "13.5.0", 1, drops=False, draws=3)
    assert not summary(rows)["ours_false_alarm"]
    text = render_report(tmp_path)
    assert read_results(tmp_path).releases[0].state is State.UNTESTED
    assert "Not tested, since no sum that the condition names was run: 13.5.0." in text and "no release without the fault was run" in text


def test_a_fault_that_comes_back_is_not_called_mended(tmp_path: Path) -> None:
    for name, version, drops in (("a", "13.1.0", False), ("b", "13.2.0", True)):
        scanned(tmp_path, f"{name}.parquet", version, 4, drops)
    assert "- 13: no single release mends it: 13.2.0 have it, 13.1.0 have it not." in render_report(tmp_path)


# Spans

def test_the_rule_after_is_both_of_its_forms_and_loses_nothing() -> None:
    for b in (64, 128):
        for k in range(8, 9000, 56):
            for split in range(2, 133, 5):
                after = part_covering(k, split, b)
                assert after == b * ceil(ceil(k / b) / split) == ceil(ceil(k / split) / b) * b and split * after >= k
                assert (after != part(k, split, b)) == (lost_ours(k, split, b) > 0)


def test_spans_are_taken_from_the_walks_of_the_datasets(tmp_path: Path) -> None:
    """Every split sum of ALGO_ID 66 has one, and its parts hold just what was summed."""
    for path in DATASETS:
        rows = read_dataset(path)
        spans, without = spans_of(rows, path.name)
        assert without == 0 and len(spans) == sum(r[f"algo_id_{s}"] == 66 and r[f"splitk_num_{s}"] > 1 for r in rows for s in "ab")
        for s in spans:
            assert (s.parts - 1) * s.span < s.k_summed <= s.parts * s.span and s.span in (s.before, s.after) and s.source == path.name
            assert (s.k_summed < s.k) == (s.span != s.after)


def test_the_document_of_spans_reads_back_and_replaces_only_its_own(tmp_path: Path) -> None:
    output = tmp_path / "spans.json"
    counts = tail_spans.take(DATASETS[:2], output)
    spans = spans_of_document(json.loads(output.read_text()))
    assert len(spans) == counts["spans"] == len({(s.target, s.problem, s.span) for s in spans}) > 0
    assert tail_spans.take(DATASETS[:2], output) == counts
    output.write_text('{"kind": "mine"}')
    with pytest.raises(UsageError, match="not overwritten"):
        tail_spans.take(DATASETS[:2], output)
    with pytest.raises(UsageError, match="holds no spans"):
        spans_of_document({"spans": [{"target": 3}], "targets": []})


def test_the_report_tells_the_rules_from_the_spans(tmp_path: Path) -> None:
    tail_spans.take(DATASETS, tmp_path / "spans.json")
    text = render_report(tmp_path)
    releases = {one.version: one.spans for one in read_results(tmp_path).releases}
    for version, spans in releases.items():
        telling = [s for s in spans if s.before != s.after]
        words = {True: "before", False: "after"}[all(s.span == s.before for s in telling)]
        assert f"- {version}: the rule {words}, in all {len(telling)} sums that tell" in text
    some = next(s for s in spans if s.before != s.after and s.parts < s.split)
    assert f"{some.parts} x {some.span}, {some.k_summed} (grid {'x'.join(map(str, some.grid))})" in text


# What it reaches

@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    folder, bench = tmp_path_factory.mktemp("reached"), Bench(SimulatedOracle())
    from probe.tail.models import Weight

    tasks = [VariantTask(1, 8, 11528, DType.FP16), SmallestTask(1, 8, Setting(DType.FP16, DType.FP32), 12_000),
             LayerTask(Weight(8, 11528, ("made up",)), Setting(DType.FP16, DType.FP16), most_m=5)]
    rows = [row for task in tasks for row in task.run(bench)]
    write_reach(rows, {"target": device("13.1.0").to_document(), "left": 2}, folder / "reach.parquet")
    return folder, rows


def test_a_reach_is_told_with_its_numbers(reached: tuple[Path, list[Row]]) -> None:
    folder, rows = reached
    text = render_report(folder)
    assert read_results(folder).releases[0].state is State.SHORT and "Some sums are short with 13.1.0" in text
    for value in (0, 2**25):
        mine = totals(r for r in rows if r["part"] == Part.VARIANT and r["workspace_bytes"] == value)
        cells = [mine[name] for name in ("asked", "declined", "split", "named", "ran", "short", "other", "failed")]
        assert f"| workspace, bytes | {value:,} | {' | '.join(f'{c:,}' for c in cells)} |" in text
    smallest = next(r for r in rows if r["part"] == Part.SMALLEST)
    assert f"1x8x{smallest['k']}" in text and "2 tasks were not done" in text
    layer = next(r for r in rows if r["part"] == Part.LAYER)
    assert layer["named"] and f"| made up | 8 x 11528 | fp16 -> fp16, nn | {layer['hits']} | {layer['splitk_num']} |" in text
    assert "- PyTorch, and other callers above cuBLASLt." in text
    assert "Other layouts, epilogues, workspaces" not in text.split("## What was not run")[1]


def test_a_torch_run_is_told(reached: tuple[Path, list[Row]], tmp_path: Path) -> None:
    """Entries as tools/tail_torch.py writes them, one operator that loses and one that does not."""
    entry: dict[str, Any] = {"blas": "cublaslt", "dtype": "float16", "m": 1, "n": 8, "k": 11528, "units": 256}
    document = {"kind": "splitk-tail-torch", "window": 256, "about": {"torch": "2.0", "gpu": "some GPU"},
                "libraries": [{"version": "13.1.0", "sha256": device("13.1.0").sha256, "file": "lib/libcublasLt.so.13"}],
                "cases": [entry | {"operator": "linear", "lost": 8, "kernels": ["nvjet_sm90_hss_splitK_NNT", "splitKreduce_kernel"]},
                          entry | {"operator": "matmul", "lost": 0, "kernels": ["gemv"]}, entry | {"operator": "mm", "refused": "no"}],
                "sweeps": [{"blas": "cublaslt", "dtype": "float16", "operator": "linear", "m": 1, "n": 16, "smallest_k": 12104,
                            "to_k": 12104}]}
    (tmp_path / "torch.json").write_text(json.dumps(document))
    text = render_report(tmp_path)
    assert "The fault reaches: linear (float16)." in text and "13.1.0 (`" in text and "short above" not in text
    assert "| linear, float16 | cublaslt | 1 of 1 | 1, 1 of 1 | 1 of 1, to 12,104 | 1x16x12104 |" in text
    assert "| mm, float16 | cublaslt | 0 of 0 (1 refused) | not seen |" in text
    (tmp_path / "reach.parquet").write_bytes((reached[0] / "reach.parquet").read_bytes())
    assert "short above" in render_report(tmp_path)
    document["cases"] = [document["cases"][1]]
    document["sweeps"] = []
    (tmp_path / "torch.json").write_text(json.dumps(document))
    assert "No operator showed it." in render_report(tmp_path)


# What is committed

def test_the_committed_report_and_script_are_what_the_committed_files_give() -> None:
    assert (FOLDER / "report.md").read_text() == render_report(FOLDER)
    text = (FOLDER / SCRIPT).read_text()
    shapes = [tuple(map(int, s.split(", "))) for s in re.findall(r"\((\d+, \d+, \d+)\)", text)]
    assert text == script_text(shapes)  # type: ignore[arg-type]


def test_the_committed_spans_are_what_the_committed_datasets_hold(tmp_path: Path) -> None:
    tail_spans.take(DATASETS, tmp_path / "spans.json")
    made, kept = (json.loads(p.read_text()) for p in (tmp_path / "spans.json", FOLDER / "spans.json"))
    assert made | {"date": ""} == kept | {"date": ""}
    assert sorted({numbers(t["version"]) for t in kept["targets"]})
