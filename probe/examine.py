"""What doctor asks of a child process, for it may crash, hang, or load a library that this process must not hold.

Run as `python -m probe.examine JOB ...`, it writes one JSON object on stdout and leaves; whatever a library prints goes to stderr.
`examine` starts it and waits. A child that dies, hangs or says nothing is a `Failure` with the reason in one line.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import Declined, EnvironmentProblem, LibraryError, UsageError

TIME_LIMIT = 120.0  # seconds; a library of 750 MB on a cold disk takes ten, a first CUDA context a few
_FAILED = 3
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Failure:
    """What kept a child from answering, and what to do about it ("" for nothing to add)."""

    reason: str
    hint: str = ""


def examine(job: str, *arguments: str, environ: Mapping[str, str] | None = None,
            time_limit: float = TIME_LIMIT) -> dict[str, Any] | Failure:
    """The answer of a child process. job: machine, library PATH, bound PATH, or walk GPU PATH. time_limit: seconds.

    environ: of the child, os.environ by default. Raises RuntimeError where the child stopped on a bug of probe, with its traceback.
    """
    environ = os.environ if environ is None else environ
    root = str(Path(__file__).resolve().parents[1])  # the probe that runs here, installed or not
    path = os.pathsep.join([root, *filter(None, [environ.get("PYTHONPATH", "")])])
    # nothing is to be written to disk: no .pyc, no kernel cache of cupy
    settings = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "CUPY_CACHE_IN_MEMORY": "1"}
    child = subprocess.Popen([sys.executable, "-m", "probe.examine", job, *arguments], env={**environ, **settings}, text=True,
                             errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             start_new_session=True)
    try:
        said, beside = child.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        return Failure(f"it did not come back within {time_limit:g} s", "try again on a machine at rest; nvidia-smi shows a GPU that hangs")
    finally:
        if child.poll() is None:  # also where a Ctrl-C ends the waiting
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    if child.returncode < 0:
        return Failure(f"the process that tried it was ended by {_signal(-child.returncode)}")
    if child.returncode not in (0, _FAILED):
        if _TRACEBACK in beside:
            raise RuntimeError(f"python -m probe.examine {job} ended with {child.returncode}:\n{textwrap.indent(beside, '  ')}")
        return Failure(f"the process that tried it ended with {child.returncode}: {(beside.strip() or 'no words').splitlines()[-1]}")
    answer: dict[str, Any] = json.loads(said)
    return answer if child.returncode == 0 else Failure(answer["reason"], answer["hint"])


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# Below this line: in the child.


def machine() -> dict[str, Any]:
    """NVML and the CUDA driver, as documents of `probe.nvml.Nvml` and `probe.driver.CudaDriver`."""
    from probe.driver import read_driver
    from probe.nvml import read_nvml

    return {"nvml": read_nvml().to_document(), "driver": read_driver().to_document()}


def library(path: str) -> dict[str, Any]:
    """Version of a cuBLASLt, and the CUDA version that it is built for ("13.0"). It is opened as a walk opens it: no function may lack."""
    opened = _open(path)
    cuda = int(opened.functions.cublasLtGetCudartVersion())
    return {"version": opened.version, "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"}


def bound(path: str) -> dict[str, Any]:
    """The libcublasLt that comes into a process with a libcublas, by the loader's own choice in this environment."""
    import ctypes

    try:
        ctypes.CDLL(path)
    except OSError as error:
        raise EnvironmentProblem(f"it cannot be loaded: {str(error).removeprefix(path + ': ')}") from None
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    files = sorted(set(re.findall(r" (/.*libcublasLt\.so\S*)$", maps, re.MULTILINE)))
    if not files:
        raise EnvironmentProblem("it brings no libcublasLt with it")
    return {"bound": files[0]}


def walk(gpu: str, path: str) -> dict[str, Any]:
    """The first steps of a walk, on a small shape: {"steps": [[name, what was seen]...], "failed": [name, reason, hint] or null}."""
    from probe.answer import Answer
    from probe.capture import Capture
    from probe.device import Device
    from probe.oracle import DeviceOracle
    from probe.preference import Preference
    from probe.problem import DType, Problem

    steps: list[list[str]] = []
    name = "open the device"
    try:
        device = Device.open(int(gpu))
        steps.append([name, f"{device.identity.name}, {device.free_bytes / 2**30:.1f} GiB free"])
        name = "ask the library"
        problem, preference = Problem.gemm(64, 64, 64, DType.FP16), Preference()
        oracle = DeviceOracle(device, _open(path), "doctor")
        answer = _no_decline(oracle.ask(problem, preference), Answer)
        steps.append([name, f"64x64x64 fp16: {answer.describe(oracle.library.version)}"])
        name = "graph capture"
        captured = _no_decline(oracle.capture(problem, answer, preference), Capture)
        steps.append([name, str(captured)])
        name = "launch"
        _no_decline(oracle.summing(problem, answer, preference), object)
        steps.append([name, "64x64x64 fp16 ran"])
    except (EnvironmentProblem, UsageError) as problem_found:
        return {"steps": steps, "failed": [name, problem_found.message, problem_found.hint]}
    except LibraryError as error:
        return {"steps": steps, "failed": [name, f"{error.function} returned {error.name}: {error.meaning}", error.action]}
    except Exception as error:  # cupy and cuda-python raise whatever they like where they do not fit the driver, and that is the finding
        return {"steps": steps, "failed": [name, f"{type(error).__name__}: {error}", "python -m probe.examine walk GPU PATH shows more"]}
    return {"steps": steps, "failed": None}


def _no_decline(value: Any, kind: type) -> Any:
    if isinstance(value, Declined):
        raise EnvironmentProblem(value.text, value.hint)
    assert isinstance(value, kind)
    return value


def _open(path: str) -> Any:
    from probe.cublaslt.find import Found, SearchStep, Step
    from probe.cublaslt.library import Library

    return Library.open(Found(Path(path), (SearchStep(Step.OPTION, "doctor", Path(path), "given as a path"),)))


_JOBS: dict[str, Callable[..., dict[str, Any]]] = {"machine": machine, "library": library, "bound": bound, "walk": walk}


def main(arguments: list[str]) -> int:
    """The child. Exit code 0 with the answer, 3 with {"reason", "hint"}."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # a library that prints must not spoil the answer
        try:
            document, code = _JOBS[arguments[0]](*arguments[1:]), 0
        except (EnvironmentProblem, UsageError) as error:
            document, code = {"reason": error.message, "hint": error.hint}, _FAILED
        json.dump(document, answer)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
