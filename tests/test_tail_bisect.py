"""Finding the release that mends the lost tail: which is next, packing, and the very calls of a session on stand-ins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from tail_stand_ins import build, environment, needs_cc

from probe.errors import EnvironmentProblem, UsageError
from probe.simulator.library import SimulatedLibrary
from probe.tail.results import Release, State, read_results
from probe.target import LibraryKind
from tools import tail_bisect

ROOT = Path(__file__).resolve().parents[1]
ANSWERS = ROOT / "reports" / "splitk-tail" / "scan-13.1.0.answers.json"
needs_xz = pytest.mark.skipif(shutil.which("xz") is None, reason="no xz here to pack with")
CANDIDATES = ["13.1.2.11", "13.2.2.2", "13.3.0.5", "13.4.3.11", "13.6.2.16", "13.8.2.12", "12.9.0.13", "12.9.1.4"]


class Known(Release):
    """A release whose state is given."""

    known: State

    @property
    def state(self) -> State:
        return self.known


def release(version: str, state: State) -> Release:
    made = Known(replace(SimulatedLibrary().target, library=LibraryKind.CUBLASLT, version=version))
    made.known = state
    return made


def short_version(wheel: str) -> str:
    return ".".join(wheel.split(".")[:3])


# Which next

@pytest.mark.parametrize("first_whole", [*CANDIDATES[:6], "13.10.0.20"])
def test_half_way_steps_end_at_the_release_that_mends_it(first_whole: str) -> None:
    """Whichever of them mends it: at most three of six are measured, and the answer names it."""
    order = [*CANDIDATES[:6], "13.10.0.20"]
    known = [release("13.1.0", State.SHORT), release("13.10.0", State.WHOLE)]
    for steps in range(9):  # noqa: B007
        ((wanted, why),) = tail_bisect.choose(known, CANDIDATES[:6])
        if wanted is None:
            break
        known.append(release(short_version(wanted), State.WHOLE if order.index(wanted) >= order.index(first_whole) else State.SHORT))
    before = ["13.1.0", *map(short_version, order)][order.index(first_whole)]
    assert steps <= 3 and f"mended between {before} and {short_version(first_whole)}" in why


def test_each_major_release_has_its_own_next() -> None:
    known = [release("13.1.0", State.SHORT), release("13.10.0", State.WHOLE), release("12.8.5", State.SHORT),
             release("12.9.3", State.WHOLE)]
    chosen = dict(tail_bisect.choose(known, CANDIDATES))
    assert set(chosen) == {"13.3.0.5", "12.9.0.13"}
    ((wanted, why),) = tail_bisect.choose([release("13.1.0", State.UNTESTED)], CANDIDATES[:3])
    assert wanted == "13.2.2.2" and "nothing is tested" in why
    ((wanted, why),) = tail_bisect.choose([release("13.1.0", State.WHOLE), release("13.2.0", State.SHORT)], ["13.3.0.5"])
    assert wanted is None and "no single release" in why


# Packing and the calls

def wheel_with(folder: Path, member: Path | None, version: str) -> None:
    """A wheel of the name, with one file."""
    with zipfile.ZipFile(folder / f"nvidia_cublas-{version}-py3-none-manylinux2014_x86_64.whl", "w") as wheel:
        if member is not None:
            wheel.write(member, f"nvidia/cu13/lib/{member.name}")
        info = f"nvidia_cublas-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: nvidia-cublas\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-manylinux2014_x86_64\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
@needs_cc
@needs_xz
def test_the_calls_of_a_session_bring_a_release_there_and_measure_it(tmp_path: Path) -> None:
    """Packed from a wheel in small parts; the printed commands, run as they are by a shell, on the stand-in for a GPU."""
    stand_ins = build(tmp_path)
    wheel_with(tmp_path, stand_ins / "libcublasLt.so.13", "13.2.2.2")
    name = f"probe-test-{os.getpid()}"
    parts = tail_bisect.pack("nvidia-cublas==13.2.2.2", tmp_path / name, 1500, ["--no-index", "--find-links", str(tmp_path)])
    assert len(parts) > 2 and all(p.stat().st_size <= 1500 for p in parts)
    out = tmp_path / "out"
    out.mkdir()
    options = ["--seconds", "1", "--processes", "1", "--most-k", "2000", "--scan-k", "3000", "--force-from", str(ANSWERS), "--reach", "0.5"]
    made = tail_bisect.calls(tmp_path / name, options)
    assert [one["carry"] for one in made] == [[str(p)] for p in parts]
    (tmp_path / name / "notes").write_text("no part")
    assert len(tail_bisect.calls(tmp_path / name)) == len(parts)
    there = Path("/tmp") / name
    env = environment(stand_ins, OUT=str(out), LT_VERSION="130202", PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    try:
        for one in made:
            command = one["command"].replace("PYTHONPATH=. ", "")  # it stands for the tree, which is in the environment here
            ended = subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False)
            assert ended.returncode in (0, 1), ended.stderr
    finally:
        shutil.rmtree(there, ignore_errors=True)
    steps = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith('{"step"')]
    assert [(s["step"], s["outcome"]) for s in steps] == [
        ("verb", "ended with 1"), ("scan", "ended with 0"), ("forced", "ended with 0"), ("reach", "ended with 1")], ended.stderr
    assert ended.returncode == 0
    assert sorted(p.name for p in out.iterdir()) == [
        "13.2.2-sm_90.json", "forced-13.2.2.json", "reach-13.2.2.parquet", "scan-13.2.2.answers.json", "scan-13.2.2.parquet",
        "splitk_tail_repro.py"]
    results = read_results(out)
    assert [one.version for one in results.releases] == ["13.2.2"]
    (_, forced), recorded = results.forced[0], json.loads(ANSWERS.read_text())["cases"]
    assert forced["recorded_on"]["version"] == "13.1.0" and len(forced["cases"]) == 8
    for case, before in zip(forced["cases"], recorded, strict=False):
        reading = before["reading"]
        assert case["problem"] == before["problem"]
        assert case["forced"]["lost"] == case["predicted"] == reading["units"] - reading["least"]


@needs_xz
def test_what_cannot_be_packed_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    wheel_with(tmp_path, None, "13.9.9.9")
    pip = ["--no-index", "--find-links", str(tmp_path)]
    before = sorted(tmp_path.iterdir())
    with pytest.raises(EnvironmentProblem, match="pip cannot fetch"):
        tail_bisect.pack("nvidia-cublas==13.0.0.0", tmp_path / "a", 3000, pip)
    with pytest.raises(UsageError, match="holds no libcublasLt"):
        tail_bisect.pack("nvidia-cublas==13.9.9.9", tmp_path / "b", 3000, pip)
    with pytest.raises(UsageError, match="is not overwritten"):
        tail_bisect.pack("nvidia-cublas==13.9.9.9", tmp_path, 3000, pip)
    with pytest.raises(UsageError, match="no packed library"):
        tail_bisect.calls(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_part_and_the_tree_travel_in_one_call() -> None:
    """64 MiB is what a call carries; what git holds of this tree is what travels with a part."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this tree is no git checkout, so that what travels cannot be told")
    tree = sum((ROOT / name).stat().st_size for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())
    assert tail_bisect.PART_BYTES + tree < 64 * 2**20


# Measuring

@pytest.mark.slow
@needs_cc
def test_a_step_that_fails_costs_no_other_and_one_that_hangs_is_ended(tmp_path: Path) -> None:
    stand_ins, out = build(tmp_path), tmp_path / "out"
    out.mkdir()
    (tmp_path / "broken.json").write_text("{}")
    command = [sys.executable, "-m", "tools.tail_bisect", "measure", str(stand_ins / "libcublasLt.so.13"), str(out), "--seconds", "1",
               "--processes", "1", "--most-k", "64", "--scan-k", "2000", "--force-from", str(tmp_path / "broken.json"), "--tag", "b"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(stand_ins), capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 1 and '"forced", "outcome": "ended with 2"' in ended.stdout, ended.stderr
    assert sorted(p.name for p in out.iterdir()) == [
        "13.1.0-sm_90.json", "scan-13.1.0-b.answers.json", "scan-13.1.0-b.parquet", "splitk_tail_repro.py"]
    assert tail_bisect._run([sys.executable, "-c", "import time; time.sleep(60)"], 0.3) is None


@pytest.mark.parametrize(("arguments", "code"), [
    (["measure", "none.so", "."], 2), (["calls", "nowhere"], 2), (["next", ".", "13.2"], 2), (["next", ".", "x"], 2),
    (["measure", "a", "b", "--x"], 2)])
def test_bad_input_is_said(arguments: list[str], code: int, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-m", "tools.tail_bisect", *arguments], cwd=tmp_path, env=env, capture_output=True, text=True,
                           timeout=60, check=False)
    assert ended.returncode == code and "Traceback" not in ended.stderr and not list(tmp_path.iterdir()), ended.stderr
