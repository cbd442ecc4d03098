"""Where the cuBLASLt library is: search steps in a fixed order, each recorded with what it saw.

Finding loads nothing. Order: the caller's option, the variable PROBE_CUBLASLT, the wheels nvidia-cublas and
nvidia-cublas-cu12 of this environment, the CUDA toolkit, the dynamic loader's own folders. An option or
variable that is given is the whole search: what it names is used or refused, never replaced.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from probe.errors import EnvironmentProblem, UsageError

VARIABLE = "PROBE_CUBLASLT"
WHEELS = {13: "nvidia-cublas", 12: "nvidia-cublas-cu12"}  # major version -> distribution
MAJORS = (13, 12)  # newest first
_ACCEPTED = "a path to libcublasLt.so, or cu12, or cu13"


class Step(StrEnum):
    """The places that are searched, in order."""

    OPTION = "option"
    VARIABLE = "variable"
    WHEEL = "wheel"
    TOOLKIT = "toolkit"
    LOADER = "loader"


@dataclass(frozen=True)
class SearchStep:
    """One step: where it looked, the file it found (None for none) and a note in words."""

    step: Step
    where: str
    path: Path | None
    note: str

    def __str__(self) -> str:
        return f"{self.step} {self.where}: {self.path or self.note}"


@dataclass(frozen=True)
class Found:
    """The library file that won (resolved path), and the steps up to it; the last one won."""

    path: Path
    steps: tuple[SearchStep, ...]

    @property
    def won(self) -> SearchStep:
        """The step that found it."""
        return self.steps[-1]


def find_library(option: str | None = None, environ: Mapping[str, str] | None = None) -> Found:
    """The cuBLASLt library to use.

    option: a path, "cu12" or "cu13"; None searches every step. environ: the environment variables, os.environ
    by default. Raises UsageError if the option or the variable names something unusable, EnvironmentProblem
    with all steps if nothing was found.
    """
    environ = os.environ if environ is None else environ
    if option is not None:
        return _given(Step.OPTION, "--library", option, environ)
    steps = [SearchStep(Step.OPTION, "--library", None, "not given")]
    if environ.get(VARIABLE):
        found = _given(Step.VARIABLE, VARIABLE, environ[VARIABLE], environ)
        return Found(found.path, (*steps, *found.steps))
    steps.append(SearchStep(Step.VARIABLE, VARIABLE, None, "not set"))
    return _search(MAJORS, environ, steps)


def check_file(path: Path) -> str:
    """ "" if the file can be a libcublasLt, else one line that says why not. Reads four bytes."""
    names = {path.name, path.resolve().name}
    wrong = sorted(n for n in names if re.match(r"lib(cublas|nvblas)\.so", n))
    if wrong:
        return f"{path} is {wrong[0].split('.')[0]}, not libcublasLt: give the libcublasLt.so beside it"
    if not path.exists():
        return f"{path} does not exist"
    if not path.is_file():
        return f"{path} is not a file"
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if magic != b"\x7fELF":
        return f"{path} is not a shared library: it does not start with the ELF mark"
    return ""


def _given(step: Step, where: str, value: str, environ: Mapping[str, str]) -> Found:
    """The library that an option or a variable names."""
    match = re.fullmatch(r"cu([0-9]+)", value)
    if match is not None:
        major = int(match[1])
        if major not in MAJORS:
            raise UsageError(f"{where} = {value!r} is not a known release", _ACCEPTED)
        first = SearchStep(step, where, None, f"asks for {value}")
        return _search((major,), environ, [first])
    path = Path(value).expanduser()
    why = check_file(path)
    if why:
        raise UsageError(f"{where}: {why}", _ACCEPTED)
    return Found(path.resolve(), (SearchStep(step, where, path.resolve(), "given as a path"),))


def _search(majors: Iterable[int], environ: Mapping[str, str], steps: list[SearchStep]) -> Found:
    """The first library of the wheels, the toolkit and the loader, in this order."""
    majors = tuple(majors)
    places: list[tuple[Step, str, Callable[[], tuple[list[Path], str]]]] = []
    for major in majors:
        places.append((Step.WHEEL, WHEELS[major], lambda m=major: _wheel(m)))  # type: ignore[misc]
    for folder in _toolkits(environ):
        places.append((Step.TOOLKIT, str(folder), lambda f=folder: _toolkit(f, majors)))  # type: ignore[misc]
    for major in majors:
        soname = f"libcublasLt.so.{major}"
        places.append((Step.LOADER, soname, lambda s=soname: _loader(s, environ)))  # type: ignore[misc]
    for step, where, look in places:
        candidates, note = look()
        for candidate in candidates:
            why = check_file(candidate)
            if not why:
                steps.append(SearchStep(step, where, candidate.resolve(), note))
                return Found(candidate.resolve(), tuple(steps))
            note = why
        steps.append(SearchStep(step, where, None, note))
    tried = "; ".join(map(str, steps))
    wanted = " or ".join(f"{WHEELS[m]} (CUDA {m})" for m in majors)
    raise EnvironmentProblem(f"no libcublasLt was found. Searched: {tried}", f"install the wheel {wanted}")


def _wheel(major: int) -> tuple[list[Path], str]:
    """Files libcublasLt.so.MAJOR that the wheel of this environment lists, and a note."""
    try:
        distribution = importlib.metadata.distribution(WHEELS[major])
    except importlib.metadata.PackageNotFoundError:
        return [], "not installed"
    soname = f"libcublasLt.so.{major}"
    files = [Path(str(f.locate())) for f in distribution.files or [] if f.name == soname]
    return files, f"version {distribution.version}" + ("" if files else f" has no {soname}")


def _toolkits(environ: Mapping[str, str]) -> list[Path]:
    """Folders of CUDA toolkits, in order and without repeats."""
    given = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    return list(dict.fromkeys([*given, Path("/usr/local/cuda")]))


def _toolkit(folder: Path, majors: tuple[int, ...]) -> tuple[list[Path], str]:
    """Files libcublasLt.so.MAJOR under one toolkit, and a note."""
    if not folder.is_dir():
        return [], "no such folder"
    libraries = [folder / "lib64", *sorted(folder.glob("targets/*-linux/lib"))]
    names = [f"libcublasLt.so.{major}" for major in majors]
    files = [place / name for name in names for place in libraries if (place / name).exists()]
    return files, "toolkit" if files else "has no " + " or ".join(names)


def _loader(soname: str, environ: Mapping[str, str]) -> tuple[list[Path], str]:
    """Where the dynamic loader would find a soname: LD_LIBRARY_PATH, then its cache (`ldconfig -p`)."""
    folders = [Path(f) for f in environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    files = [folder / soname for folder in folders if (folder / soname).exists()]
    if files:
        return files, "LD_LIBRARY_PATH"
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if Path(program).exists():
            listing = subprocess.run([program, "-p"], capture_output=True, text=True, check=False, timeout=30)
            lines = [line for line in listing.stdout.splitlines() if line.split()[:1] == [soname]]
            files = [Path(line.rsplit("=> ", 1)[1]) for line in lines if "=> " in line]
            return files, "loader cache" if files else "not in LD_LIBRARY_PATH or the loader cache"
    return [], "not in LD_LIBRARY_PATH, and there is no ldconfig to ask"
