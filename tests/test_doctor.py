"""probe doctor: real files, real child processes; stand-ins in C only for what this machine lacks, the vendor's driver and its NVML."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import probe
from probe import checkup
from probe.cublaslt.signatures import SIGNATURES
from probe.cublaslt.store import store_root
from probe.errors import ExitCode, UsageError
from probe.examine import Failure, examine
from probe.findings import Finding, Report, State, finding

ROOT = Path(__file__).resolve().parents[1]
CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler here to make small shared libraries with")


def _gpu_here() -> bool:
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuInit(0) == 0)
    except OSError:
        return False


without_gpu = pytest.mark.skipif(_gpu_here(), reason="this machine has a GPU")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The variables of a user whose home is empty."""
    home = tmp_path / "home"
    home.mkdir()
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PROBE_HOME": str(home / "store")}


@pytest.fixture
def wheel() -> Path:
    """libcublasLt of the installed wheel."""
    try:
        files = importlib.metadata.files("nvidia-cublas") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no nvidia-cublas wheel here: pip install -e '.[test-cublas]'")
    return next(Path(str(f.locate())).resolve() for f in files if f.name == "libcublasLt.so.13")


def _compile(out: Path, code: str, *flags: str) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    source = out.parent / (out.name + ".c")
    source.write_text(code)
    assert CC is not None
    subprocess.run([CC, "-shared", "-fPIC", f"-Wl,-soname,{out.name}", "-o", str(out), str(source), *flags], check=True, timeout=60)
    source.unlink()
    return out.resolve()


def _cublaslt(out: Path, version: int = 130100, cuda: int = 13000, more: str = "") -> Path:
    """A library with every function that probe calls, which reports these numbers."""
    numbers = {"cublasLtGetVersion": version, "cublasLtGetCudartVersion": cuda}
    lines = [f"unsigned long {name}(void) {{ return {numbers.get(name, 0)}; }}" for name in SIGNATURES]
    return _compile(out, "\n".join([*lines, more]))


def _one(report: Report, name: str, words: str = "") -> Finding:
    """The finding of that name that says those words."""
    fitting = [f for f in report.findings if f.name == name and words in f.seen]
    assert len(fitting) == 1, [f"{f.name}: {f.seen}" for f in report.findings]
    return fitting[0]


# Without a GPU


@without_gpu
def test_without_a_gpu_it_says_what_is_missing_and_finds_the_wheels_library(environ: dict[str, str], wheel: Path) -> None:
    steps: list[str] = []
    report = probe.doctor(environ=environ, progress=steps.append)
    assert not report.ready and report.exit_code is ExitCode.ENVIRONMENT and report.gpus == ()
    assert {"driver", "gpu", "graph capture"} <= {f.name for f in report.stoppers}
    used = [one for one in report.libraries if one.used]
    assert [one.path for one in used] == [str(wheel)]
    assert used[0].sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest() and used[0].bytes == wheel.stat().st_size
    installed = importlib.metadata.version("nvidia-cublas")
    assert installed.startswith(used[0].version + ".") and used[0].how == (f"wheel nvidia-cublas {installed}",)
    assert _one(report, "library").state is State.OK
    bound = {Path(b.path).name: b.bound for b in report.bindings if Path(b.path).parent == wheel.parent}
    assert bound == {"libcublas.so.13": str(wheel)}
    assert any("hash" in step for step in steps)
    assert all(f.action for f in report.findings if f.state is not State.OK)
    assert Report.from_json(report.to_json()) == report


@without_gpu
def test_it_needs_no_numpy_and_writes_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    code = """
import sys
sys.modules["numpy"] = None  # an import of it fails
import probe
report = probe.doctor()
print(sorted(f.name for f in report.stoppers))
assert callable(probe.doctor)
"""
    work = tmp_path / "work"
    work.mkdir()
    before = sorted(tmp_path.rglob("*"))
    settings = {**environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=settings, cwd=work, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "driver" in done.stdout
    assert sorted(tmp_path.rglob("*")) == before


def _command(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "probe", "doctor", *arguments], env={**environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=120, check=False)


@without_gpu
def test_the_command_prints_what_to_do_and_that_the_simulated_library_works(environ: dict[str, str]) -> None:
    done = _command(environ)
    assert (done.returncode, done.stderr) == (ExitCode.ENVIRONMENT, "")
    *_, last = done.stdout.splitlines()
    assert last.startswith("not ready") and "driver" in last and "--library sim" in last
    states = {line.split()[0] for line in done.stdout.splitlines()[:-1] if not line.startswith(" ")}
    assert states <= set(State) and {"ok", "missing"} <= states
    assert "\x1b" not in done.stdout


@without_gpu
def test_json_is_the_report_and_nothing_else(environ: dict[str, str]) -> None:
    done = _command(environ, "--json")
    assert done.returncode == ExitCode.ENVIRONMENT
    assert not Report.from_document(json.loads(done.stdout)).ready
    refused = _command(environ, "--json", "--library", "cu11")
    assert refused.returncode == ExitCode.USAGE and json.loads(refused.stdout)["kind"] == "usage"


# Libraries


def test_a_toolkit_with_a_broken_library_is_a_finding_and_no_crash(environ: dict[str, str], tmp_path: Path) -> None:
    broken = tmp_path / "cuda" / "lib64" / "libcublasLt.so.13"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\x7fELF" + bytes(60))
    report = probe.doctor(environ={**environ, "CUDA_HOME": str(tmp_path / "cuda")})
    said = _one(report, "other library", str(broken))
    assert said.state is State.BROKEN and not said.stops and f"toolkit {tmp_path / 'cuda'}" in said.seen
    entry = next(one for one in report.libraries if one.path == str(broken))
    assert (entry.version, entry.sha256) == ("", hashlib.sha256(broken.read_bytes()).hexdigest())


def test_a_named_library_that_does_not_load_stops_a_walk(environ: dict[str, str], tmp_path: Path) -> None:
    broken = tmp_path / "libcublasLt.so.13"
    broken.write_bytes(b"\x7fELF" + bytes(60))
    for how in ({"library": str(broken)}, {"environ": {**environ, "PROBE_CUBLASLT": str(broken)}}):
        report = probe.doctor(**{"environ": environ, **how})  # type: ignore[arg-type]
        said = _one(report, "library", str(broken))
        assert said.state is State.BROKEN and said.stops


def test_an_option_that_cannot_be_is_refused_and_a_variable_that_cannot_be_is_a_finding(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="cu11"):
        probe.doctor("cu11", environ=environ)
    report = probe.doctor(environ={**environ, "PROBE_CUBLASLT": "cu11"})
    said = _one(report, "library")
    assert said.state is State.BROKEN and "PROBE_CUBLASLT" in said.seen and not any(one.used for one in report.libraries)


@needs_cc
@pytest.mark.parametrize(("way_to_die", "says"), [("abort();", "SIGABRT"), ("raise(SIGSEGV);", "SIGSEGV"), ("_exit(5);", "ended with 5")])
def test_a_library_that_ends_the_process_that_loads_it_is_broken(
    environ: dict[str, str], tmp_path: Path, way_to_die: str, says: str
) -> None:
    headers = "#include <stdlib.h>\n#include <signal.h>\n#include <unistd.h>\n"
    folder = tmp_path / "bad"
    path = _compile(folder / "libcublasLt.so.13", f"{headers}__attribute__((constructor)) static void start(void) {{ {way_to_die} }}")
    report = probe.doctor(environ={**environ, "LD_LIBRARY_PATH": str(folder)})
    said = _one(report, "other library", str(path))
    assert said.state is State.BROKEN and says in said.seen


@needs_cc
def test_a_library_that_hangs_is_given_up(environ: dict[str, str], tmp_path: Path) -> None:
    code = "#include <unistd.h>\n__attribute__((constructor)) static void start(void) { sleep(60); }"
    told = examine("library", str(_compile(tmp_path / "libcublasLt.so.13", code)), environ=environ, time_limit=2)
    assert isinstance(told, Failure) and "2 s" in told.reason and told.hint


@needs_cc
def test_a_library_that_prints_or_lacks_a_function_is_told_apart(environ: dict[str, str], tmp_path: Path) -> None:
    noise = "#include <stdio.h>\n__attribute__((constructor)) static void start(void) { puts(\"{}\"); fflush(stdout); }"
    loud = _cublaslt(tmp_path / "loud" / "libcublasLt.so.12", 120805, 12080, noise)
    assert examine("library", str(loud), environ=environ) == {"version": "12.8.5", "cuda": "12.8"}
    short = _compile(tmp_path / "short" / "libcublasLt.so.12", "unsigned long cublasLtGetVersion(void) { return 120805; }")
    told = examine("library", str(short), environ=environ)
    assert isinstance(told, Failure) and "lacks" in told.reason


def test_a_bug_of_the_child_is_no_finding(environ: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="Traceback"):
        examine("no such job", environ=environ)


@needs_cc
def test_what_libcublas_binds_to_is_asked_of_the_loader_and_compared(environ: dict[str, str], tmp_path: Path) -> None:
    """As the wheel's: libcublas looks beside itself by RUNPATH, and LD_LIBRARY_PATH comes before that."""
    beside = _cublaslt(tmp_path / "cuda" / "lib64" / "libcublasLt.so.13")
    other = _cublaslt(tmp_path / "elsewhere" / "libcublasLt.so.13", version=131000)
    full = _compile(beside.with_name("libcublas.so.13"), "int cublas;", "-Wl,--no-as-needed", f"-L{beside.parent}", f"-l:{beside.name}",
                    "-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags")
    environ["CUDA_HOME"] = str(tmp_path / "cuda")
    own = probe.doctor(str(beside), environ=environ)
    assert next(b.bound for b in own.bindings if b.path == str(full)) == str(beside)
    assert _one(own, "libcublas", str(full)).state is State.OK
    environ["LD_LIBRARY_PATH"] = str(other.parent)
    moved = probe.doctor(str(beside), environ=environ)
    assert next(b.bound for b in moved.bindings if b.path == str(full)) == str(other)
    said = _one(moved, "libcublas", str(full))
    assert said.state is State.WARN and str(other) in said.action and not said.stops
    shutil.copy(beside, other)  # two copies of one file are the same library
    assert _one(probe.doctor(str(beside), environ=environ), "libcublas", str(full)).state is State.OK


def test_a_store_entry_that_cannot_be_read_is_a_finding(environ: dict[str, str]) -> None:
    entry = store_root(environ) / "odd"
    entry.mkdir(parents=True)
    (entry / "library.json").write_text("{}")
    said = _one(probe.doctor(environ=environ), "stored library odd")
    assert said.state is State.BROKEN and not said.stops and "probe library remove odd" in said.action


# GPU and driver, by stand-ins for the vendor's two libraries

_MEMORY = 150 * 2**30
_CUDA = """
#include <string.h>
int cuInit(unsigned flags) { return STATUS; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, device ? "Second" : "First", size); return 0; }
int cuDeviceTotalMem_v2(unsigned long *size, int device) { *size = MEMORY; return 0; }
int cuGetErrorName(int code, const char **text) { *text = "CUDA_ERROR_STAND_IN"; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) {
    switch (which) {
        case 16: *value = 132 - device; return 0;
        case 33: *value = device ? 1 : 2; return 0; /* bus: CUDA's order is not NVML's */
        case 34: case 50: *value = 0; return 0;
        case 75: *value = 9; return 0;
        case 76: *value = 0; return 0;
    }
    return 1;
}
"""
_NVML = """
#include <string.h>
struct memory { unsigned long total, free, used; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; };
int nvmlInit_v2(void) { return STATUS; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "Driver/library version mismatch"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "580.95.05", size); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(long)(index + 1); return index == 2 ? 15 : 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { strncpy(text, "as NVML calls it", size); return 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { strncpy(text, "GPU-0", size); return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *m) { m->total = MEMORY; m->free = MEMORY / 2; return 0; }
int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *p) { p->domain = 0; p->bus = (long)handle; p->device = 0; return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending) { *now = 1; return handle == (void *)1 ? 0 : 3; }
int nvmlDeviceGetComputeMode(void *handle, int *mode) { *mode = handle == (void *)1 ? 0 : MODE; return 0; }
int nvmlDeviceGetPersistenceMode(void *handle, int *mode) { *mode = 1; return handle == (void *)1 ? 0 : 4; }
"""


def _driver(folder: Path, environ: dict[str, str], *, version: int = 13000, count: int = 2, status: int = 0, nvml_status: int = 0,
            mode: int = 2) -> dict[str, str]:
    """The environment of a machine whose driver and NVML are the stand-ins."""
    defines = [f"-DVERSION={version}", f"-DCOUNT={count}", f"-DMEMORY={_MEMORY}ul", f"-DMODE={mode}"]
    _compile(folder / "libcuda.so.1", _CUDA, f"-DSTATUS={status}", *defines)
    _compile(folder / "libnvidia-ml.so.1", _NVML, f"-DSTATUS={nvml_status}", *defines)
    return {**environ, "LD_LIBRARY_PATH": str(folder)}


@needs_cc
def test_gpus_are_told_as_cuda_counts_them_with_what_nvml_knows_of_each(environ: dict[str, str], tmp_path: Path) -> None:
    report = probe.doctor(environ=_driver(tmp_path / "driver", environ))
    assert (report.driver, report.cuda) == ("580.95.05", "13.0")
    first, second = report.gpus
    assert (first.name, first.sm, first.sm_count, first.total_bytes) == ("First", "sm_90", 132, _MEMORY)
    assert (first.mig, first.compute_mode, first.persistence) == ("", "prohibited", "")  # NVML's second: bus 2
    assert (second.sm_count, second.mig, second.compute_mode, second.persistence) == (131, "enabled", "default", "enabled")
    prohibited, split = _one(report, "gpu 0"), _one(report, "gpu 1")
    assert prohibited.state is State.BROKEN and "nvidia-smi -i 0 -c DEFAULT" in prohibited.action and prohibited.stops
    assert split.state is State.WARN and "MIG" in split.seen and "SM count" in split.action and not split.stops
    assert "GPU 2" in _one(report, "driver").seen  # the one that NVML would not open


@needs_cc
def test_a_library_that_the_driver_is_too_old_for_stops_a_walk(environ: dict[str, str], tmp_path: Path) -> None:
    old = _cublaslt(tmp_path / "lib" / "libcublasLt.so.12", 120805, 12080)
    new = _cublaslt(tmp_path / "lib" / "libcublasLt.so.13", 130100, 13000)
    machine = _driver(tmp_path / "old", environ, version=12020, count=1, mode=0)
    refused = _one(probe.doctor(str(new), environ=machine), "library", str(new))
    assert refused.state is State.BROKEN and "too old" in refused.seen and "CUDA 12.2" in refused.seen and refused.stops
    assert "nvidia-cublas-cu12" in refused.action
    # inside a major version any driver will do, and a newer driver runs an older library
    assert _one(probe.doctor(str(old), environ=machine), "library", str(old)).state is State.OK
    machine = _driver(tmp_path / "new", environ, version=13000, count=1, mode=0)
    report = probe.doctor(str(new), environ={**machine, "LD_LIBRARY_PATH": f"{machine['LD_LIBRARY_PATH']}:{old.parent}"})
    assert _one(report, "library", str(new)).state is _one(report, "other library", str(old)).state is State.OK


@needs_cc
def test_a_driver_that_does_not_start_is_told_in_its_own_words(environ: dict[str, str], tmp_path: Path) -> None:
    report = probe.doctor(environ=_driver(tmp_path / "a", environ, status=803, nvml_status=18))
    said = _one(report, "gpu")
    assert said.state is State.MISSING and "CUDA_ERROR_STAND_IN (803)" in said.seen and said.stops
    assert "Driver/library version mismatch (18)" in _one(report, "driver").seen
    hidden = probe.doctor(environ=_driver(tmp_path / "b", environ, count=0))
    assert "as NVML calls it" in _one(hidden, "gpu").seen and "CUDA_VISIBLE_DEVICES" in _one(hidden, "gpu").action


@pytest.mark.gpu
def test_on_a_device_the_first_steps_of_a_walk_are_tried() -> None:
    report = probe.doctor()
    assert report.gpus and report.gpus[0].sm_count > 0 and report.driver and report.cuda
    assert report.ready, [f"{f.name}: {f.seen}" for f in report.stoppers]
    assert {"open the device", "ask the library", "graph capture", "launch"} <= {f.name for f in report.findings if f.state is State.OK}


# Packages, folders, variables


def _installed(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def _package(name: str, cuda: str, environ: dict[str, str]) -> Finding:
    return next(f for f in checkup.gpu_packages(cuda, environ) if f.name == name)


@pytest.mark.skipif(any(checkup.version_of(n) for n in ("cupy", "cupy-cuda12x", "cupy-cuda13x")), reason="this environment has a CuPy")
def test_cupy_is_held_against_the_driver(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = _package("cupy", "12.8", environ)
    assert missing.state is State.MISSING and "cupy-cuda12x" in missing.action and missing.stops
    monkeypatch.syspath_prepend(tmp_path)
    _installed(tmp_path, "cupy-cuda13x", "13.6.0")
    assert _package("cupy", "13.0", environ).state is _package("cupy", "", environ).state is State.OK
    newer = _package("cupy", "12.8", environ)
    assert newer.state is State.BROKEN and "CUDA 13" in newer.seen and "12.8" not in newer.action and "cupy-cuda12x" in newer.action
    _installed(tmp_path, "cupy-cuda12x", "13.6.0")
    both = _package("cupy", "13.0", environ)
    assert both.state is State.BROKEN and "cupy-cuda12x" in both.seen and "cupy-cuda13x" in both.seen


@pytest.mark.skipif(any(checkup.version_of(n) for n in ("triton", "torch", "cuda-bindings")), reason="this environment has them")
def test_triton_names_the_ptxas_that_it_would_run(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _package("triton", "13.0", environ).state is State.MISSING and not _package("triton", "13.0", environ).stops
    assert "torch" not in [f.name for f in checkup.gpu_packages("13.0", environ)]
    monkeypatch.syspath_prepend(tmp_path)
    for name, version in [("triton", "3.6.0"), ("torch", "2.9.0"), ("cuda-bindings", "13.0.1")]:
        _installed(tmp_path, name, version)
    assert _package("torch", "13.0", environ).seen == "2.9.0"
    assert _package("cuda-python", "12.8", environ).state is State.BROKEN
    assert _package("triton", "13.0", environ).state is State.BROKEN  # its ptxas is not there
    ptxas = tmp_path / "triton" / "backends" / "nvidia" / "bin" / "ptxas"
    ptxas.parent.mkdir(parents=True)
    ptxas.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.9, V12.9.86'\n")
    ptxas.chmod(0o755)
    assert "ptxas 12.9.86 (bundled)" in _package("triton", "13.0", environ).seen
    given = _package("triton", "13.0", {**environ, "TRITON_PTXAS_PATH": "/bin/false"})
    assert given.state is State.BROKEN and "TRITON_PTXAS_PATH" in given.seen


def test_the_cache_folder_is_where_the_store_is(environ: dict[str, str], tmp_path: Path) -> None:
    named = {f.name: f for f in checkup.folders(environ)}
    assert named["cache folder"].state is State.OK and str(store_root(environ)) in named["cache folder"].seen
    assert "GiB free" in named["disk"].seen
    file = tmp_path / "file"
    file.write_text("")
    said = next(f for f in checkup.folders({**environ, "PROBE_HOME": str(file / "below")}) if f.name == "cache folder")
    assert said.state is State.BROKEN and "PROBE_HOME" in said.action


def test_device_files_that_are_not_there_or_closed(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    missing = checkup.device_files(tmp_path)
    assert missing.state is State.MISSING and "nvidiactl" in missing.seen
    (tmp_path / "nvidia0").touch()
    assert checkup.device_files(tmp_path) == finding("device files", State.OK, "nvidia0, nvidiactl")
    (tmp_path / "nvidia0").chmod(0)
    if not os.access(tmp_path / "nvidia0", os.R_OK):  # root may open it all the same
        closed = checkup.device_files(tmp_path)
        assert closed.state is State.BROKEN and "nvidia0" in closed.seen and closed.stops


def test_variables_that_can_move_answers_are_named_and_logging_is_not() -> None:
    quiet = {"CUBLASLT_LOG_LEVEL": "5", "CUBLAS_LOGDEST_DBG": "stdout", "CUBLASLT_NVTX_LEVEL": "1", "PATH": "/bin"}
    assert checkup.variables(quiet).state is State.OK
    for name in ("CUBLAS_BATCH_INVARIANCE_FLAGS", "CUBLAS_EMULATION_STRATEGY", "CUBLASLT_HEURISTICS_LUT_FILE", "NVIDIA_TF32_OVERRIDE"):
        said = checkup.variables({**quiet, name: "1"})
        assert said.state is State.WARN and said.seen == f"{name}=1"


# Values


def test_a_finding_that_is_not_ok_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="what to do"):
        finding("cupy", State.MISSING, "not installed")
    assert finding("cupy", State.BROKEN, "two\n  lines", "one\nline").seen == "two lines"
    assert finding("cupy", State.MISSING, "x", "y", needed=True).stops
    assert not finding("cupy", State.WARN, "x", "y", needed=True).stops and not finding("torch", State.BROKEN, "x", "y").stops


def test_a_report_cannot_be_ready_with_a_finding_that_stops_a_walk() -> None:
    stops = finding("cupy", State.MISSING, "x", "y", needed=True)
    assert Report(False, "", "", (), (), (), (stops,)).exit_code is ExitCode.ENVIRONMENT
    assert Report(True, "", "", (), (), (), ()).exit_code is ExitCode.OK
    with pytest.raises(UsageError):
        Report(True, "", "", (), (), (), (stops,))
    with pytest.raises(UsageError):
        Report(False, "", "", (), (), (), ())
