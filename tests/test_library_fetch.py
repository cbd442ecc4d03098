"""Fetching a release: pip as the client of an index on this machine, interrupted, doubled, refused, and what each leaves."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import INTERRUPTED
from store_parts import COMMAND, OTHER_TAG, Index, environment, left_over, make_wheel, needs_cc, on_small_disk, serving, use

import probe
from probe.cublaslt.fetch import ROOM
from probe.cublaslt.pip_client import Requirement
from probe.cublaslt.store import Store
from probe.errors import EnvironmentProblem, UsageError

pytestmark = needs_cc
RELEASE = "nvidia-cublas-cu12==12.8.5.5"


def start(home: Path, index: Index, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, "library", "fetch", RELEASE, *arguments], env=environment(home, index.url), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def wait_for(what: Callable[[], object], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def arriving(home: Path) -> bool:
    """Has a part of the wheel come?"""
    with contextlib.suppress(FileNotFoundError):  # pip moves and deletes while we look
        return any(p.stat().st_size for p in (home / "libraries" / ".work").glob("*/tmp/**/*.whl"))
    return False


def pips_under(home: Path) -> list[str]:
    """Ids of the processes of pip whose command line names the store."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_text(errors="replace").split("\0")
            if "pip" in words and any(str(home) in word for word in words):
                found.append(process.name)
    return found


def test_a_release_comes_with_its_hashes_version_and_licence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path / "wheels", padding=300_000)
    said: list[str] = []
    with serving(tmp_path / "wheels") as index:
        use(monkeypatch, environment(tmp_path / "home", index.url))
        library = probe.fetch_library(RELEASE, notice=said.append)
        record = library.record
        assert record is not None
        assert (record.name, record.version, record.soname) == ("cublas-12.8.5.5", "12.8.5", "libcublasLt.so.12")
        assert record.wheel_sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert record.file_sha256 == hashlib.sha256(library.path.read_bytes()).hexdigest()
        assert RELEASE in record.origin and wheel.name in record.origin and "127.0.0.1" not in record.to_json()
        assert sorted(p.name for p in library.folder.iterdir()) == ["License.txt", "libcublasLt.so.12", "library.json", "lock"]
        # pip says the size in kB with one digit; the need is ROOM times that
        assert len(said) == 1 and f"the wheel has {wheel.stat().st_size // 1000 / 1000:.1f} MB" in said[0] and "free" in said[0]
        assert probe.fetch_library(RELEASE, notice=said.append) == library
        assert index.served == 1 and "in the store already" in said[-1]
        with pytest.raises(UsageError, match="refused"):
            probe.fetch_library(RELEASE, sha256="0" * 64)
        assert probe.fetch_library(RELEASE, name="twin", sha256=record.wheel_sha256).name == "twin"
        assert index.served == 2
    assert {p.split("/")[0] for p in left_over(tmp_path / "home")} == {"cublas-12.8.5.5", "twin"}


def test_a_range_takes_its_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("12.9.0.13", "12.9.10.2", "12.10.0.1"):
        make_wheel(tmp_path / "wheels", version)
    use(monkeypatch, environment(tmp_path / "home", links=tmp_path / "wheels"))
    library = probe.fetch_library("nvidia-cublas-cu12 == 12.9.*")
    assert library.name == "cublas-12.9.10.2" and library.record is not None and library.record.version == "12.9.10"
    said: list[str] = []
    assert probe.fetch_library("nvidia_cublas.cu12==12.9.*", notice=said.append) == library
    assert "in the store already" in said[-1]


def test_a_killed_download_leaves_nothing_half_done(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_wheel(tmp_path / "wheels", padding=8_000_000)
    with serving(tmp_path / "wheels", delay=0.1) as index:
        process = start(home, index)
        wait_for(lambda: arriving(home))
        assert pips_under(home)
        process.kill()
        process.communicate(timeout=30)
        wait_for(lambda: not pips_under(home))  # the killed command takes pip with it
        done = subprocess.run([*COMMAND, "library", "list", "--json"], env=environment(home), capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["libraries"] == [] and left_over(home) == []
        index.delay = 0
        again = start(home, index)
        out, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    assert out.startswith("name     cublas-12.8.5.5\n")


def test_ctrl_c_leaves_nothing_at_all(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_wheel(tmp_path / "wheels", padding=8_000_000)
    with serving(tmp_path / "wheels", delay=0.1) as index:
        process = start(home, index, "--json")
        wait_for(lambda: arriving(home))
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    assert process.returncode in INTERRUPTED and json.loads(out)["exit_code"] == 130 and "Traceback" not in errors
    assert left_over(home) == [] and not pips_under(home)


def test_two_fetches_at_once_download_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_wheel(tmp_path / "wheels", padding=8_000_000)
    with serving(tmp_path / "wheels", delay=0.1) as index:
        first = start(home, index)
        wait_for(lambda: arriving(home))
        second = start(home, index, "--json")
        assert second.stderr is not None
        assert "waiting" in second.stderr.readline()
        index.delay = 0
        ends = [process.communicate(timeout=60) for process in (first, second)]
        assert index.served == 1
    assert [first.returncode, second.returncode] == [0, 0]
    assert "in the store by now" in ends[1][1] and json.loads(ends[1][0])["name"] == "cublas-12.8.5.5"
    assert {p.split("/")[0] for p in left_over(home)} == {"cublas-12.8.5.5"}


def test_the_second_goes_on_when_the_first_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_wheel(tmp_path / "wheels", padding=8_000_000)
    with serving(tmp_path / "wheels", delay=0.1) as index:
        first = start(home, index)
        wait_for(lambda: arriving(home))
        second = start(home, index)
        assert second.stderr is not None
        assert "waiting" in second.stderr.readline()
        first.kill()
        first.communicate(timeout=30)
        index.delay = 0
        second.communicate(timeout=60)
    assert second.returncode == 0 and {p.split("/")[0] for p in left_over(home)} == {"cublas-12.8.5.5"}


def refused(kind: type[Exception], says: str, requirement: str = RELEASE, **options: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        probe.fetch_library(requirement, **options)
    assert "\n" not in str(caught.value)
    assert left_over(Store().root.parent) == []


@pytest.mark.parametrize("text", ["", "12.8.5.5", "nvidia-cublas-cu12=12.8", "--index-url=x", "nvidia-cublas-cu12 @ file:///x",
                                  "numpy==2.0", "nvidia-cublas-cu12[x]==12.8", "nvidia-cublas-cu11==11.5", "nvidia-cudnn-cu12"])
def test_what_is_no_release_of_cublas_is_refused_before_pip_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    use(monkeypatch, environment(tmp_path / "home"))
    refused(UsageError, "nvidia-cublas-cu12==12.8.5.5", text)
    assert not (tmp_path / "home").exists()


def test_requirements_are_read_as_pip_reads_them() -> None:
    known = ("nvidia-cublas", "nvidia-cublas-cu12")
    assert Requirement.parse("NVIDIA_cublas == 13.1.0.3", known) == Requirement("nvidia-cublas", "==13.1.0.3")
    assert Requirement.parse("nvidia-cublas>=13.1, <13.10", known).specifier == ">=13.1,<13.10"
    for specifier, version in [("==13.1.0.3", "13.1.0.3"), ("==13.*", None), ("~=13.1", None), ("", None)]:
        assert Requirement.parse(f"nvidia-cublas{specifier}", known).version == version


def test_a_version_that_is_not_there_names_those_that_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "wheels", "12.8.4.1")
    make_wheel(tmp_path / "wheels", "12.8.5.5", tag=OTHER_TAG)
    use(monkeypatch, environment(tmp_path / "home", links=tmp_path / "wheels"))
    refused(UsageError, r"there is no wheel of nvidia-cublas-cu12==12\.8\.5\.5 for this machine .*there are 12\.8\.4\.1")
    refused(UsageError, r"pip finds no wheel of nvidia-cublas for this machine", "nvidia-cublas")


def test_without_a_network_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as index:
        url = index.url
    use(monkeypatch, environment(tmp_path / "home", url) | {"PIP_RETRIES": "1"})  # without, pip does not say what went wrong
    refused(EnvironmentProblem, "the network or the index does not answer")


def test_a_wrong_hash_is_refused_the_index_s_and_the_caller_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "wheels")
    with serving(tmp_path / "wheels", wrong_hash=True) as index:
        use(monkeypatch, environment(tmp_path / "home", index.url))
        refused(EnvironmentProblem, "does not have the hash that the index gives")
    use(monkeypatch, environment(tmp_path / "home", links=tmp_path / "wheels"))
    refused(UsageError, "refused", sha256="0" * 64)


def test_a_broken_wheel_and_one_without_the_library_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "altered", altered="nvidia/cublas/lib/libcublasLt.so.12")
    make_wheel(tmp_path / "without", name="nvidia/cublas/lib/libother.so.12")
    for folder, says in [("altered", "not what its RECORD says"), ("without", "holds no libcublasLt")]:
        use(monkeypatch, environment(tmp_path / "home", links=tmp_path / folder))
        refused(UsageError, says)


def test_a_taken_name_is_told_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "wheels")
    with serving(tmp_path / "wheels") as index:
        use(monkeypatch, environment(tmp_path / "home", index.url))
        probe.add_library(make_wheel(tmp_path / "other", "12.9.1.4"), name="cublas-12.8.5.5")
        with pytest.raises(UsageError, match="is taken"):
            probe.fetch_library(RELEASE)
        assert index.served == 0
        assert probe.fetch_library(RELEASE, name="mine").name == "mine"


def test_a_disk_too_small_is_told_before_the_download(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", padding=2_000_000)
    need = wheel.stat().st_size * ROOM
    with serving(tmp_path / "wheels", delay=0.2) as index:
        fetch = [*COMMAND, "library", "fetch", RELEASE]
        done = on_small_disk(tmp_path / "home", int(need / 1000 * 0.9), fetch, environment(tmp_path / "home", index.url))
    assert done.returncode == 4, done.stderr
    (line,) = done.stderr.splitlines()
    assert f"up to {need / 1e6:.1f} MB" in line and "free" in line and "PROBE_HOME" in line


def test_a_disk_that_fills_up_while_pip_writes_is_told(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", padding=2_000_000)
    with serving(tmp_path / "wheels", sized=False) as index:
        fetch = [*COMMAND, "library", "fetch", RELEASE]
        done = on_small_disk(tmp_path / "home", 1000, fetch, environment(tmp_path / "home", index.url))
    assert done.returncode == 4 and "LEFT" not in done.stderr, done.stderr
    first, last = done.stderr.splitlines()
    assert "pip does not tell the size" in first and "free" in first and "disk was full" in last


def test_a_python_without_pip_is_told(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
    code = f"import probe; probe.fetch_library({RELEASE!r})"
    alone = tmp_path / "alone"  # probe without what is installed beside it, pip among that
    alone.mkdir()
    (alone / "probe").symlink_to(Path(probe.__file__).parent)
    variables = environment(tmp_path / "home") | {"PYTHONPATH": str(alone)}
    done = subprocess.run([str(bare / "bin" / "python"), "-c", code], env=variables, capture_output=True, text=True, timeout=60,
                          check=False)
    assert "EnvironmentProblem: this Python has no pip (python -m ensurepip" in done.stderr
    assert left_over(tmp_path / "home") == []


def test_a_folder_called_pip_where_the_caller_stands_is_not_run(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels")
    here = tmp_path / "here"
    (here / "pip").mkdir(parents=True)
    for name in ("__init__.py", "__main__.py"):
        (here / "pip" / name).write_text("raise SystemExit('this is not pip')")
    variables = environment(tmp_path / "home", links=tmp_path / "wheels")
    done = subprocess.run([sys.executable, "-P", "-m", "probe", "library", "fetch", RELEASE], cwd=here, env=variables, capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(here)) == ["pip"]
