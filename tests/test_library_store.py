"""The store of libraries: what an entry records, its states, holding and removing it, and that a killed process leaves nothing."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from store_parts import COMMAND, environment, left_over, library_file, make_wheel, needs_cc, on_small_disk, use

import probe
from probe.cublaslt.elf import read_elf
from probe.cublaslt.store import Store, store_root
from probe.cublaslt.stored import LibraryRecord, State, begins_with, check_name, components
from probe.errors import EnvironmentProblem, UsageError

pytestmark = needs_cc


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use(monkeypatch, environment(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def kept(home: Path, tmp_path: Path) -> Path:
    """The folder of one stored library, cublas-12.8.5."""
    return probe.add_library(library_file(tmp_path / "source")).folder


def test_the_root_follows_the_variables() -> None:
    assert store_root({"PROBE_HOME": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a/libraries")
    assert store_root({"XDG_CACHE_HOME": "/b"}) == Path("/b/probe/libraries")
    assert store_root({}) == Path.home() / ".cache" / "probe" / "libraries"


def test_versions_compare_by_components() -> None:
    assert begins_with("13.1.0.3", "13.1") and begins_with("13.1.0.3", "13.1.0.3") and begins_with("13.1.0", "13")
    assert not begins_with("13.10.0.20", "13.1") and not begins_with("13.1.0", "13.1.0.3")
    assert components("13.10.0.20") > components("13.9")


@pytest.mark.parametrize("name", ["12.8", "13", "cu12", "sim", "sim-2", "libcublasLt.so.12", "a/b", "", ".x", "..", "a b", "x" * 81, 5])
def test_a_name_that_the_option_would_read_otherwise_is_refused(name: object) -> None:
    with pytest.raises(UsageError):
        check_name(name)


def test_an_added_file_is_copied_and_described(home: Path, tmp_path: Path) -> None:
    source = library_file(tmp_path / "toolkit", "libcublasLt.so.12.8.5.5", version=120805)
    before = source.read_bytes()
    library = probe.add_library(source)
    record = library.record
    assert record is not None and source.read_bytes() == before
    assert (record.name, record.version, record.soname) == ("cublas-12.8.5", "12.8.5", "libcublasLt.so.12")
    assert library.path.name == record.soname
    assert record.file_sha256 == hashlib.sha256(before).hexdigest() and record.file_bytes == len(before)
    assert library.path.read_bytes() == before and not os.path.samefile(library.path, source)
    assert record.origin == str(source) and record.wheel_sha256 is None and "EULA" in record.licence
    assert LibraryRecord.from_json(record.to_json()) == record
    assert [(one.library, one.state) for one in probe.list_libraries(verify=True)] == [(library, State.OK)]


def test_the_same_file_twice_is_one_library_and_another_file_needs_another_name(kept: Path, home: Path, tmp_path: Path) -> None:
    said: list[str] = []
    again = probe.add_library(library_file(tmp_path / "again"), notice=said.append)
    assert again.folder == kept and any("in the store already" in text for text in said)
    other = library_file(tmp_path / "other")
    with other.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(UsageError, match=r"cublas-12\.8\.5 is taken"):
        probe.add_library(other)
    assert probe.add_library(other, name="patched").name == "patched"
    assert [one.library.name for one in probe.list_libraries()] == ["cublas-12.8.5", "patched"]
    assert probe.remove_library("patched").name == "patched"
    assert [one.library.name for one in probe.list_libraries()] == ["cublas-12.8.5"]


def test_a_wheel_file_gives_its_library_and_licence_alone(home: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, padding=1000)
    library = probe.add_library(wheel, sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())
    record = library.record
    assert record is not None
    assert (record.name, record.distribution, record.wheel_version) == ("cublas-12.8.5.5", "nvidia-cublas-cu12", "12.8.5.5")
    assert record.wheel_sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert sorted(p.name for p in library.folder.iterdir()) == ["License.txt", "libcublasLt.so.12", "library.json", "lock"]
    assert (library.folder / "License.txt").read_bytes() == b"the terms of the vendor"


def test_the_states_of_a_library(kept: Path) -> None:
    def state(verify: bool = False) -> State:
        (one,) = probe.list_libraries(verify=verify)
        return one.state

    file = kept / "libcublasLt.so.12"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert (state(), state(verify=True)) == (State.OK, State.HASH_DIFFERS)
    file.write_bytes(good[:-1])
    assert state() is State.SIZE_DIFFERS
    file.unlink()
    assert state() is State.FILE_MISSING
    (library,) = Store().libraries()
    with pytest.raises(EnvironmentProblem, match="file missing"):
        library.check()
    for text in ("{", "[]", (kept / "library.json").read_text().replace("cublas-12.8.5", "another-name")):
        (kept / "library.json").write_text(text)
        assert state() is State.RECORD_UNREADABLE
    probe.remove_library("cublas-12.8.5")
    assert probe.list_libraries() == ()


@pytest.mark.parametrize("change", [{"file": "../x"}, {"file_sha256": "00"}, {"file_bytes": 0}, {"wheel_version": "1"}, {"version": "new"},
                                    {"name": "12.8"}, {"licence": ""}])
def test_a_record_that_cannot_be_is_refused(kept: Path, change: dict[str, object]) -> None:
    record = Store().libraries()[0].record
    assert record is not None
    with pytest.raises(UsageError):
        dataclasses.replace(record, **change)  # type: ignore[arg-type]


HOLD = """
import sys
from probe.cublaslt.store import Store
held = Store().get("cublas-12.8.5").hold()
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_a_library_in_use_is_not_removed(kept: Path, end: signal.Signals | None) -> None:
    user = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert user.stdin is not None and user.stdout is not None
    with user:
        assert user.stdout.readline() == "holds\n"
        with pytest.raises(EnvironmentProblem, match=rf"in use by process {user.pid}"):
            probe.remove_library("cublas-12.8.5")
        assert probe.list_libraries()[0].state is State.OK
        if end is not None:
            user.send_signal(end)
        else:
            user.stdin.close()
        user.wait(timeout=30)
    probe.remove_library("cublas-12.8.5")
    assert left_over(kept.parents[1]) == []


def test_many_may_hold_it_and_letting_go_frees_it(kept: Path) -> None:
    library = Store().libraries()[0]
    with library.hold(), library.hold(), pytest.raises(EnvironmentProblem, match="in use"):
        probe.remove_library(library.name)
    probe.remove_library(library.name)
    with pytest.raises(EnvironmentProblem, match="has been removed"):
        library.hold()


def test_who_waits_for_a_library_that_is_being_removed_does_not_get_it(kept: Path) -> None:
    library = Store().libraries()[0]
    with (kept / "lock").open() as remover, concurrent.futures.ThreadPoolExecutor() as pool:
        fcntl.flock(remover, fcntl.LOCK_EX)
        held = pool.submit(library.hold)
        with pytest.raises(concurrent.futures.TimeoutError):
            held.result(timeout=0.3)
        kept.rename(kept.parent / "gone")
        fcntl.flock(remover, fcntl.LOCK_UN)
        with pytest.raises(EnvironmentProblem, match="has been removed"):
            held.result(timeout=30)


def test_removing_what_is_not_there_names_what_is(kept: Path) -> None:
    for name in ("nothing", "12.8", "../libraries/cublas-12.8.5", ".work"):
        with pytest.raises(UsageError, match=r"there are cublas-12\.8\.5"):
            probe.remove_library(name)
    assert len(probe.list_libraries()) == 1


MAKE = """
import sys, time
from probe.cublaslt.store import Store
with Store().work() as work:
    (work.entry / "libcublasLt.so.12").write_bytes(bytes(1000))
    print(work.folder, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_makes_is_not(home: Path) -> None:
    makers = [subprocess.Popen([sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    killed, alive = makers
    assert killed.stdout is not None and alive.stdout is not None and alive.stdin is not None
    left, used = (Path(m.stdout.readline().strip()) for m in makers if m.stdout is not None)
    killed.kill()
    killed.communicate(timeout=30)
    assert (left / "entry" / "libcublasLt.so.12").exists()
    assert probe.list_libraries() == ()
    assert not left.exists() and (used / "entry" / "libcublasLt.so.12").exists()
    alive.communicate("", timeout=30)
    assert alive.returncode == 0 and left_over(home) == []


def _other_machine(path: Path) -> Path:
    """The same file for the other processor: e_machine at byte 18 (ELF specification)."""
    data = bytearray(path.read_bytes())
    data[18:20] = (183 if platform.machine() == "x86_64" else 62).to_bytes(2, "little")
    path.write_bytes(data)
    return path


def test_every_wrong_file_is_one_line_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    place = tmp_path / "files"
    text = place / "libcublasLt.so"
    good = library_file(place / "good")
    text.write_text("INPUT(libcublasLt.so.12)")
    half = library_file(place / "half")
    half.write_bytes(half.read_bytes()[:200])
    crash = "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n"
    cases = [
        (text, {}, "does not start with the ELF mark"), (place / "none.so", {}, "does not exist"), (place, {}, "not a file"),
        (place / "none.whl", {}, "does not exist"),
        (library_file(place, "libcublas.so.12", soname="libcublas.so.12"), {}, "is libcublas, not libcublasLt"),
        (library_file(place / "renamed", soname="libcublas.so.12"), {}, "its soname is libcublas.so.12"),
        (_other_machine(library_file(place / "other")), {}, "is a library for"),
        (half, {}, "broken shared library|cannot be loaded"),
        (library_file(place / "lacks", code="int other;"), {}, "lacks cublasLtGetVersion"),
        (library_file(place / "crash", code=crash), {}, "by signal 6"),
        (library_file(place / "odd", version=7), {}, "reports the version '7'"),
        (good, {"sha256": "0" * 64}, "not 0000"), (good, {"sha256": "short"}, "64 lower-case hex"), (good, {"name": "cu12"}, "cannot name"),
    ]
    for path, options, says in cases:
        with pytest.raises(UsageError, match=says) as caught:
            probe.add_library(path, **options)
        assert "\n" not in str(caught.value), path
        assert left_over(home) == [], path


def test_every_wrong_wheel_is_one_line_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    lib = "nvidia/cublas/lib/libcublasLt.so.12"
    cut = make_wheel(tmp_path / "cut")
    cut.write_bytes(cut.read_bytes()[:-100])
    flipped = make_wheel(tmp_path / "flipped")
    data = bytearray(flipped.read_bytes())
    data[data.index(b"\x7fELF") + 500] ^= 1  # stored, not deflated: the checksum of the zip sees it
    flipped.write_bytes(data)
    cases = [
        (cut, "broken wheel"), (flipped, "broken wheel: Bad CRC"),
        (make_wheel(tmp_path / "altered", altered=lib), "libcublasLt.so.12 is not what its RECORD says"),
        (make_wheel(tmp_path / "licence", altered="nvidia_cublas_cu12-12.8.5.5.dist-info/licenses/License.txt"), "License.txt is not what"),
        (make_wheel(tmp_path / "unlisted", unlisted=lib), "does not list"),
        (make_wheel(tmp_path / "windows", name="nvidia/cublas/bin/cublasLt64_12.dll", tag="py3-none-win_amd64"), "made for win_amd64"),
    ]
    for path, says in cases:
        with pytest.raises(UsageError, match=says) as caught:
            probe.add_library(path)
        assert "\n" not in str(caught.value), path
        assert left_over(home) == [], path


def test_a_disk_that_fills_up_or_may_not_be_written_is_told(home: Path, tmp_path: Path) -> None:
    source = library_file(tmp_path / "source")
    blocks = (source.stat().st_size + 4095) // 4096 * 4
    add = [*COMMAND, "library", "add", str(source)]
    # room for the file, not for its record as well: what is refused is the write itself. A folder, a lock file take no block on tmpfs.
    full = on_small_disk(home, blocks, add, dict(os.environ))
    assert full.returncode == 4 and "no room in" in full.stderr and "LEFT" not in full.stderr, full.stderr
    small = on_small_disk(home, 8, add, dict(os.environ))
    assert small.returncode == 4 and "MB free" in small.stderr and "LEFT" not in small.stderr, small.stderr
    sealed = on_small_disk(home, 0, add, dict(os.environ), mount=f"mount -t tmpfs -o ro none {home}")
    assert sealed.returncode == 4 and "cannot be read or written: Read-only file system" in sealed.stderr and "PROBE_HOME" in sealed.stderr


def test_a_store_on_a_read_only_disk_can_be_listed_and_held(kept: Path) -> None:
    home = kept.parents[1]
    sealed = f"mount --bind {home} {home} && mount -o remount,ro,bind {home}"
    code = "import probe; (one,) = probe.list_libraries(verify=True); one.library.hold(); print(one.state)"
    done = on_small_disk(home, 0, [sys.executable, "-c", code], dict(os.environ), mount=sealed)
    assert done.returncode == 0 and done.stdout == "ok\n", done.stderr
    refused = on_small_disk(home, 0, [*COMMAND, "library", "remove", "cublas-12.8.5"], dict(os.environ), mount=sealed)
    assert refused.returncode == 4 and "Read-only" in refused.stderr


def test_the_soname_is_what_the_tools_read(tmp_path: Path) -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf here to compare with")
    file = library_file(tmp_path, soname="libcublasLt.so.13")
    told = subprocess.run([readelf, "-d", str(file)], capture_output=True, text=True, check=True).stdout
    assert f"soname: [{read_elf(file).soname}]" in told
