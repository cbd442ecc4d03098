"""What doctor reads in its own process: packages by their metadata (none is imported), folders, disk, device files, variables.

Nothing is written: a permission is asked for, not tried.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from probe.cublaslt.store import store_root
from probe.errors import EnvironmentProblem
from probe.findings import Finding, State, finding

BASE = ("numpy", "pandas", "pyarrow", "ml-dtypes")  # what the simulated library needs as well
LOW_DISK = 2 * 2**30  # bytes: a wheel of cuBLAS with its library unpacked beside it takes up to 1.4 GB
# The variables among the strings of libcublasLt 13.10.0, but for those of logging and tracing, and one that the CUDA documentation names.
_MOVES_ANSWERS = re.compile(r"CUBLAS_(?!LOGINFO|LOGDEST)[A-Z0-9_]+|CUBLASLT_(?!LOG_|NVTX_)[A-Z0-9_]+|NVIDIA_TF32_OVERRIDE")


def version_of(distribution: str) -> str:
    """The installed version of a distribution, or ""."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def python() -> Finding:
    """The interpreter and the system."""
    seen = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}, {sys.executable}"
    if platform.system() == "Linux":
        return finding("python", State.OK, seen, needed=True)
    return finding("python", State.BROKEN, seen, "probe calls cuBLASLt on Linux; elsewhere it has the simulated library", needed=True)


def base_packages() -> list[Finding]:
    """The packages that probe itself needs."""
    findings = []
    for name in BASE:
        version = version_of(name)
        if version:
            findings.append(finding(name, State.OK, version, needed=True))
        else:
            findings.append(finding(name, State.MISSING, "not installed", f"pip install {name}", needed=True))
    return findings


def gpu_packages(cuda: str, environ: Mapping[str, str]) -> list[Finding]:
    """cupy and cuda-python, which a GPU walk needs, and triton and torch, which it does not. cuda: what the driver supports, or ""."""
    major = cuda.partition(".")[0]
    return [_cupy(major), _bindings(major), _triton(environ), *_torch()]


def _cupy(driver_major: str) -> Finding:
    names = {d.metadata["Name"].lower() for d in importlib.metadata.distributions() if d.metadata["Name"]}
    installed = sorted(name for name in names if re.fullmatch(r"cupy(-cuda\d+x?|-rocm.*)?", name))
    extra = "12" if driver_major == "12" else "13"
    install = f"pip install cupy-cuda{extra}x, or 'gemm-probe[cu{extra}]'"
    if not installed:
        return finding("cupy", State.MISSING, "not installed", install, needed=True)
    seen = ", ".join(f"{name} {version_of(name)}" for name in installed)
    if len(installed) > 1:
        return finding("cupy", State.BROKEN, f"{seen}: they overwrite each other's files", f"uninstall all, then {install}", needed=True)
    if installed[0] == "cupy":
        return finding("cupy", State.OK, f"{seen}, built from source: its metadata does not say for which CUDA", needed=True)
    made = re.fullmatch(r"cupy-cuda(\d\d)\d?x?", installed[0])
    if made is None:
        return finding("cupy", State.BROKEN, f"{seen} is not for CUDA", install, needed=True)
    return _against_driver("cupy", seen, made[1], driver_major, install)


def _bindings(driver_major: str) -> Finding:
    version, whole = version_of("cuda-bindings"), version_of("cuda-python")
    install = f"pip install '{'cuda-python>=12.6,<13' if driver_major == '12' else 'cuda-python>=13,<14'}'"
    if not version:
        seen = f"cuda-python {whole} comes without cuda-bindings" if whole else "neither cuda-python nor cuda-bindings is installed"
        return finding("cuda-python", State.MISSING, seen, install, needed=True)
    seen = f"cuda-bindings {version}" + (f", cuda-python {whole}" if whole else "")
    return _against_driver("cuda-python", seen, version.partition(".")[0], driver_major, install)


def _against_driver(name: str, seen: str, major: str, driver_major: str, install: str) -> Finding:
    """A package made for one CUDA generation, beside the driver's: an older generation works, a newer one does not."""
    if not driver_major:
        return finding(name, State.OK, f"{seen}, for CUDA {major}; there is no driver to compare with", needed=True)
    if int(major) > int(driver_major):
        seen = f"{seen}, for CUDA {major}; the driver supports CUDA {driver_major}"
        return finding(name, State.BROKEN, seen, f"{install}, or a newer driver", needed=True)
    return finding(name, State.OK, f"{seen}, for CUDA {major}, as the driver supports", needed=True)


def _triton(environ: Mapping[str, str]) -> Finding:
    version = version_of("triton")
    if not version:
        return finding("triton", State.MISSING, "not installed", "only generated kernels need it: pip install 'gemm-probe[triton]'")
    given = environ.get("TRITON_PTXAS_PATH")
    bundled = importlib.metadata.distribution("triton").locate_file("triton/backends/nvidia/bin/ptxas")
    ptxas, whose = (given, "TRITON_PTXAS_PATH") if given else (str(bundled), "bundled")
    try:
        said = subprocess.run([ptxas, "--version"], capture_output=True, text=True, errors="replace", timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return finding("triton", State.BROKEN, f"{version}, but its ptxas ({whose}, {ptxas}) does not run: {error}",
                       "pip install --force-reinstall triton, or unset TRITON_PTXAS_PATH")
    release = re.search(r"\bV([0-9.]+)", said)
    return finding("triton", State.OK, f"{version}, ptxas {release[1] if release else 'that names no version'} ({whose})")


def _torch() -> list[Finding]:
    version = version_of("torch")
    return [finding("torch", State.OK, version)] if version else []


def folders(environ: Mapping[str, str]) -> list[Finding]:
    """The folder of stored libraries, the room on its disk, and the working folder."""
    findings = []
    try:
        root = store_root(environ)
    except EnvironmentProblem as problem:
        findings.append(finding("cache folder", State.BROKEN, problem.message, problem.hint))
    else:
        place = root
        while not place.exists() and place != place.parent:
            place = place.parent
        there = str(root) if place == root else f"{root}, to be made in {place}"
        if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
            findings.append(finding("cache folder", State.OK, there))
        else:
            findings.append(finding("cache folder", State.BROKEN, f"{there}: not a folder that this user may write to",
                                    "set PROBE_HOME to a folder that you may write to"))
        free = shutil.disk_usage(place).free
        low = free < LOW_DISK
        what = f"fetching a library takes up to {LOW_DISK / 2**30:g} GiB: free some, or set PROBE_HOME to a larger disk"
        findings.append(finding("disk", State.WARN if low else State.OK, f"{free / 2**30:.1f} GiB free for {root}", what if low else ""))
    here = Path.cwd()
    if os.access(here, os.W_OK | os.X_OK):
        findings.append(finding("working folder", State.OK, str(here)))
    else:
        findings.append(finding("working folder", State.WARN, f"{here} cannot be written to", "give -o a path elsewhere"))
    return findings


def device_files(devices: Path = Path("/dev")) -> Finding:
    """The driver's device files, which CUDA opens for reading and writing."""
    names = sorted(f.name for f in devices.iterdir() if re.fullmatch(r"nvidia([0-9]+|ctl|-uvm)", f.name))
    if not any(re.fullmatch(r"nvidia[0-9]+", name) for name in names):
        there = f"; there is {', '.join(names)}" if names else ""
        return finding("device files", State.MISSING, f"no {devices}/nvidia0{there}",
                       "start the container with its GPUs (docker run --gpus all), or load the driver (nvidia-modprobe)")
    closed = [name for name in names if not os.access(devices / name, os.R_OK | os.W_OK)]
    if closed:
        return finding("device files", State.BROKEN, f"this user may not open {', '.join(closed)}",
                       f"ls -l {devices}/nvidia* shows the group to join", needed=True)
    return finding("device files", State.OK, ", ".join(names))


def variables(environ: Mapping[str, str]) -> Finding:
    """Variables that the library reads and that can move its answers or its bits."""
    held = [f"{name}={value}" for name, value in sorted(environ.items()) if _MOVES_ANSWERS.fullmatch(name)]
    if held:
        action = "they can move the library's answers and no record names them: unset them, or keep them equal in all that you compare"
        return finding("variables", State.WARN, ", ".join(held), action)
    return finding("variables", State.OK, "none that can move the library's answers is set")
