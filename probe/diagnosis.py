"""The verb `doctor`: what this machine has for a walk on a GPU, what of it is missing or broken, and what to do about each.

Nothing is written to disk. Packages are read by their metadata; the driver, every library and the first steps of a walk are tried in a
child process each (`probe.examine`), so that what crashes or hangs there is a finding here. Loads no numpy unless there is a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from probe import checkup
from probe.cublaslt.find import VARIABLE, Found, Step, find_library
from probe.cublaslt.sight import FULL, LT, Sighting, in_sight
from probe.cublaslt.store import Store, store_root
from probe.cublaslt.stored import hash_file
from probe.driver import CudaDevice, CudaDriver
from probe.errors import EnvironmentProblem, UsageError
from probe.examine import Failure, examine
from probe.findings import Binding, Finding, Gpu, Report, SeenLibrary, State, finding
from probe.nvml import Nvml

Progress = Callable[[str], None]
_NO_DRIVER = "install the NVIDIA driver; in a container, start it with its GPUs (docker run --gpus all)"
_ASK_DRIVER = "nvidia-smi and the kernel's log (dmesg) say more"
_REINSTALL = "install or fetch it again"


def doctor(library: str | None = None, *, environ: Mapping[str, str] | None = None, progress: Progress = lambda step: None) -> Report:
    """What this machine has for a walk on a GPU.

    library: the one to judge, as `walk` takes it; None is the one that a walk would use. environ: the environment variables, os.environ by
    default. progress: called with the name of each step. Takes about a second for each library in sight (its hash), and some on a GPU.
    Raises UsageError for a `library` that cannot be.
    """
    environ = dict(os.environ if environ is None else environ)
    findings = [checkup.python()]
    progress("driver and GPUs")
    driver, nvml = _machine(environ, findings)
    gpus = tuple(_gpu(device, nvml) for device in driver.devices)
    findings += [*(_gpu_finding(gpu) for gpu in gpus)] if gpus else [_no_gpu(driver, nvml)]
    findings.append(checkup.device_files())
    used = _used(library, environ, findings)
    libraries = _libraries(used, environ, driver.cuda, findings, progress)
    bindings = _bindings(used, libraries, environ, findings, progress)
    findings += [*checkup.gpu_packages(driver.cuda, environ), *checkup.base_packages()]
    progress("the first steps of a walk")
    findings += [*_walk(gpus, used, environ), *checkup.folders(environ), checkup.variables(environ)]
    return Report(not any(f.stops for f in findings), nvml.driver, driver.cuda, gpus, libraries, bindings, tuple(findings))


def _machine(environ: Mapping[str, str], findings: list[Finding]) -> tuple[CudaDriver, Nvml]:
    """The driver, as libcuda and as NVML tell it."""
    told = examine("machine", environ=environ)
    if isinstance(told, Failure):
        findings.append(finding("driver", State.BROKEN, f"asking the driver failed: {told.reason}", told.hint or _ASK_DRIVER, needed=True))
        return CudaDriver("", (), told.reason), Nvml("", (), told.reason)
    driver, nvml = CudaDriver.from_document(told["driver"]), Nvml.from_document(told["nvml"])
    if driver.cuda:
        also = f"; {nvml.problem}" if nvml.problem else ""
        findings.append(finding("driver", State.OK, f"{nvml.driver or 'version unknown'}, supports CUDA {driver.cuda}{also}", needed=True))
    else:
        version = f"driver {nvml.driver}; " if nvml.driver else ""
        findings.append(finding("driver", State.MISSING, f"{version}{driver.problem}", _NO_DRIVER, needed=True))
    return driver, nvml


def _gpu(device: CudaDevice, nvml: Nvml) -> Gpu:
    """One device with what NVML knows of the GPU at its PCI address."""
    known = next((g for g in nvml.gpus if g.pci == device.pci), None)
    told = (known.mig, known.compute_mode, known.persistence) if known else ("", "", "")
    return Gpu(device.index, device.name, device.sm, device.sm_count, device.total_bytes, *told)


def _no_gpu(driver: CudaDriver, nvml: Nvml) -> Finding:
    if not nvml.gpus:
        return finding("gpu", State.MISSING, driver.problem, _NO_DRIVER, needed=True)
    seen = f"{driver.problem}; NVML shows {', '.join(g.name for g in nvml.gpus)}"
    return finding("gpu", State.MISSING, seen, "look at CUDA_VISIBLE_DEVICES, at the MIG instances and at nvidia-smi", needed=True)


def _gpu_finding(gpu: Gpu) -> Finding:
    words = [("MIG", gpu.mig), ("compute mode", gpu.compute_mode), ("persistence", gpu.persistence)]
    seen = ", ".join([f"{gpu.name}, {gpu.sm}, {gpu.sm_count} SMs, {gpu.total_bytes / 2**30:.1f} GiB", *(f"{n} {v}" for n, v in words if v)])
    name = f"gpu {gpu.index}"
    if gpu.compute_mode == "prohibited":
        return finding(name, State.BROKEN, seen, f"nvidia-smi -i {gpu.index} -c DEFAULT lets programs use it", needed=True)
    actions = []
    if gpu.compute_mode.startswith("exclusive"):
        actions.append("one process at a time can use it: end the others")
    if gpu.mig == "enabled":
        actions.append("the SM count is that of the MIG instance and answers depend on it: compare only with instances of that size")
    if model := _no_model(gpu.sm):
        actions.append(model)
    return finding(name, State.WARN if actions else State.OK, seen, "; ".join(actions), needed=True)


def _no_model(sm: str) -> str:
    """What to know where there is no model of this SM's matrix instructions; "" where there is one."""
    try:
        from probe.tensorcore import row_for  # loads numpy, which may be what is missing here
    except ImportError:
        return ""
    from probe.names import DType

    try:
        row_for(int(sm.removeprefix("sm_")), DType.FP16)
    except (UsageError, ValueError) as error:
        return f"a walk will not confirm matrix instructions here: {error}"
    return ""


def _used(library: str | None, environ: Mapping[str, str], findings: list[Finding]) -> Found | None:
    """The library that a walk would use."""
    try:
        return find_library(library, environ)
    except (EnvironmentProblem, UsageError) as problem:
        if library is not None and isinstance(problem, UsageError):
            raise
        state = State.BROKEN if library is not None or environ.get(VARIABLE) else State.MISSING
        findings.append(finding("library", state, problem.message, problem.hint or "probe library fetch nvidia-cublas", needed=True))
        return None


def _libraries(used: Found | None, environ: Mapping[str, str], cuda: str, findings: list[Finding],
               progress: Progress) -> tuple[SeenLibrary, ...]:
    """Every libcublasLt in sight, the one that a walk would use first."""
    given = used is not None and used.won.step in (Step.OPTION, Step.VARIABLE)  # a path, which no search need come upon
    more = [(used.path, used.won.where)] if used is not None and given else []
    sightings = list(in_sight(LT, environ, (*more, *_stored(environ, findings))))
    if used is not None:
        if used.path not in [s.path for s in sightings]:
            sightings.append(Sighting(used.path, (f"{used.won.step} {used.won.where}",)))
        sightings.sort(key=lambda s: s.path != used.path)
    seen = []
    for number, sighting in enumerate(sightings, 1):
        progress(f"{sighting.path.name}, {number} of {len(sightings)}: hash and version")
        one, said = _library(sighting, used is not None and sighting.path == used.path, environ, cuda)
        seen.append(one)
        findings.append(said)
    return tuple(seen)


def _stored(environ: Mapping[str, str], findings: list[Finding]) -> list[tuple[Path, str]]:
    """The files of the store, and how they are called there."""
    files = []
    try:
        for stored in Store(store_root(environ)).libraries():
            if stored.record is None:
                name, action = f"stored library {stored.name}", f"probe library remove {stored.name}"
                findings.append(finding(name, State.BROKEN, stored.problem, action))
            else:
                files.append((stored.path, f"stored library {stored.name}"))
    except (EnvironmentProblem, OSError) as error:
        findings.append(finding("stored libraries", State.BROKEN, f"the store cannot be read: {error}", "set PROBE_HOME to another folder"))
    return files


def _library(sighting: Sighting, used: bool, environ: Mapping[str, str], cuda: str) -> tuple[SeenLibrary, Finding]:
    """One libcublasLt: hashed here, opened in a child."""
    path, how, name = sighting.path, ", ".join(sighting.how), "library" if used else "other library"
    sha256, size = "", 0
    try:
        size = path.stat().st_size
        sha256 = hash_file(path)
    except OSError as error:
        told: dict[str, str] | Failure = Failure(f"cannot be read: {error.strerror}")
    else:
        told = examine("library", str(path), environ=environ)
    if isinstance(told, Failure):
        why = told.reason.removeprefix(f"{path} ")
        return (SeenLibrary(str(path), sighting.how, sha256, size, "", "", used),
                finding(name, State.BROKEN, f"{path} ({how}): {why}", told.hint or _REINSTALL, needed=used))
    one = SeenLibrary(str(path), sighting.how, sha256, size, told["version"], told["cuda"], used)
    seen = f"{one.version}, {path} ({how}), for CUDA {one.cuda}, {size / 1e6:.0f} MB, sha256 {sha256[:16]}"
    # Inside a major version any driver runs any library (CUDA's minor version compatibility); a driver runs libraries of older majors too.
    needs, has = one.cuda.partition(".")[0], cuda.partition(".")[0]
    if has and int(needs) > int(has):
        seen += f"; the driver is too old for it: it supports CUDA {cuda}"
        action = f"a driver of CUDA {needs}, or a library of CUDA {has}: probe library fetch nvidia-cublas-cu{has}, then --library cu{has}"
        return one, finding(name, State.BROKEN if used else State.WARN, seen, action, needed=used)
    return one, finding(name, State.OK, seen, needed=used)


def _bindings(used: Found | None, libraries: tuple[SeenLibrary, ...], environ: Mapping[str, str], findings: list[Finding],
              progress: Progress) -> tuple[Binding, ...]:
    """What each libcublas in sight would bring into a program, beside what a walk would use. Two copies of one file are the same."""
    hashes = {one.path: one.sha256 for one in libraries}
    bindings = []
    for sighting in in_sight(FULL, environ):
        progress(f"{sighting.path.name}: what it binds to")
        path, how = str(sighting.path), ", ".join(sighting.how)
        told = examine("bound", path, environ=environ)
        if isinstance(told, Failure):
            bindings.append(Binding(path, sighting.how, ""))
            findings.append(finding("libcublas", State.WARN, f"{path} ({how}): {told.reason}", told.hint or _REINSTALL))
            continue
        bound = str(Path(told["bound"]).resolve())
        bindings.append(Binding(path, sighting.how, bound))
        seen = f"a program that loads {path} ({how}) gets {bound}"
        if used is None or bound == str(used.path) or hashes.get(bound, bound) == hashes[str(used.path)]:
            findings.append(finding("libcublas", State.OK, seen))
        else:
            findings.append(finding("libcublas", State.WARN, f"{seen}; a walk uses {used.path}",
                                    f"to learn what such a program gets: --library {bound}"))
    return tuple(bindings)


def _walk(gpus: tuple[Gpu, ...], used: Found | None, environ: Mapping[str, str]) -> list[Finding]:
    """The first steps of a walk, tried on the first GPU: context, question, graph capture, one launch."""
    if not gpus or used is None:
        lacks = "a GPU with its driver" if not gpus else "a library"
        return [finding("graph capture", State.MISSING, f"not tried: it needs {lacks}", f"bring {lacks} first", needed=True)]
    told = examine("walk", str(gpus[0].index), str(used.path), environ=environ)
    if isinstance(told, Failure):
        return [finding("walk", State.BROKEN, f"its first steps failed: {told.reason}", told.hint or _ASK_DRIVER, needed=True)]
    findings = [finding(name, State.OK, seen, needed=True) for name, seen in told["steps"]]
    if told["failed"] is not None:
        name, reason, hint = told["failed"]
        findings.append(finding(name, State.BROKEN, reason, hint or _ASK_DRIVER, needed=True))
    return findings
