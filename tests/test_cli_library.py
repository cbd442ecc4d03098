"""`probe library` as a user meets it: the real process, its streams, exit codes and JSON."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from store_parts import COMMAND, environment, library_file, make_wheel, needs_cc

pytestmark = needs_cc


def library(home: Path, *arguments: str, links: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "library", *arguments], env=environment(home, links=links), capture_output=True, text=True,
                          timeout=120, check=False)


def test_the_life_of_a_library(tmp_path: Path) -> None:
    home = tmp_path / "home"
    wheel = make_wheel(tmp_path / "wheels")
    empty = library(home, "list")
    assert empty.returncode == 0 and "probe library fetch" in empty.stdout and not home.exists()
    fetched = library(home, "fetch", "nvidia-cublas-cu12==12.8.5.5", links=wheel.parent)
    assert fetched.returncode == 0, fetched.stderr
    said = dict(line.split(None, 1) for line in fetched.stdout.splitlines())
    assert list(said) == ["name", "version", "wheel", "file", "sha256", "size", "origin", "licence", "use"]
    assert said["name"] == "cublas-12.8.5.5" and "NVIDIA EULA" in said["licence"] and "not redistribute" in said["licence"]
    assert Path(said["licence"].rsplit(": ", 1)[1]).read_bytes() == b"the terms of the vendor"
    assert "free in" in fetched.stderr and fetched.stderr.startswith("probe: ") and "\x1b" not in fetched.stdout + fetched.stderr
    added = library(home, "add", str(library_file(tmp_path / "a", version=130100, soname="libcublasLt.so.13")), "--json")
    document = json.loads(added.stdout)
    assert [document[key] for key in ("kind", "name", "version", "state")] == ["stored_library", "cublas-13.1.0", "13.1.0", "ok"]
    listed = library(home, "list")
    rows = listed.stdout.splitlines()
    assert rows[0].split() == ["name", "reports", "wheel", "sha256", "MB", "state", "origin"] and len(rows) == 3
    assert rows[1].split()[:5] == ["cublas-12.8.5.5", "12.8.5", "nvidia-cublas-cu12", "12.8.5.5", said["sha256"][:16]]
    removed = library(home, "remove", "cublas-13.1.0", "--json")
    assert removed.returncode == 0 and json.loads(removed.stdout)["state"] == "removed"
    left = json.loads(library(home, "list", "--json").stdout)
    assert [one["name"] for one in left["libraries"]] == ["cublas-12.8.5.5"] and left["root"] == str(home / "libraries")


def test_a_file_that_changed_is_seen_by_verify_and_by_the_exit_code(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert library(home, "add", str(library_file(tmp_path / "a")), "--name", "mine").returncode == 0
    file = home / "libraries" / "mine" / "libcublasLt.so.12"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert library(home, "list").returncode == 0
    verified = library(home, "list", "--verify", "--json")
    assert verified.returncode == 1 and json.loads(verified.stdout)["libraries"][0]["state"] == "hash differs"
    (home / "libraries" / "mine" / "library.json").write_text("{}")
    broken = library(home, "list")
    assert broken.returncode == 1 and "record unreadable" in broken.stdout


@pytest.mark.parametrize(("arguments", "code", "says"), [
    (("fetch", "numpy==2.0"), 2, "not a distribution of cuBLAS"), (("fetch", "nvidia-cublas-cu12==12.8.5.5"), 2, "pip finds no wheel"),
    (("add", "nowhere.so"), 2, "does not exist"), (("remove", "nothing"), 2, "the store is empty"),
    (("list", "--nope"), 2, "No such option"),
])
def test_a_failure_is_one_line_a_code_and_one_document(tmp_path: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = library(tmp_path / "home", *arguments, "--json")
    assert done.returncode == code and says in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    document = json.loads(done.stdout)
    assert document["exit_code"] == code and says in document["error"]


def test_alone_it_shows_its_commands() -> None:
    alone = library(Path("/nowhere"))
    assert alone.returncode == 2 and all(word in alone.stdout for word in ("fetch", "add", "list", "remove", "XDG_CACHE_HOME"))


@pytest.mark.parametrize("command", ["fetch", "add", "list", "remove"])
def test_its_help_loads_nothing_heavy(command: str) -> None:
    code = f"""
import runpy, sys
sys.argv = ["probe", "library", {command!r}, "--help"]
try:
    runpy.run_module("probe", run_name="__main__", alter_sys=True)
except SystemExit as stop:
    assert not stop.code
assert not set(sys.modules) & {{"numpy", "pandas", "pyarrow", "ctypes.util", "probe.cublaslt"}}, sorted(sys.modules)
"""
    subprocess.run([COMMAND[0], "-c", code], env=environment(Path("/nowhere")), capture_output=True, text=True, timeout=60, check=True)
