"""Where the cuBLASLt library is: search steps in a fixed order, each recorded with what it saw.

Finding loads nothing. Order: the caller's option, the variable PROBE_CUBLASLT, the wheels nvidia-cublas and
nvidia-cublas-cu12 of this environment, the CUDA toolkit, the dynamic loader's own folders. An option or
variable that is given is the whole search: what it names is used or refused, never replaced. Both take a path,
cu12 or cu13 (a search of wheels, toolkit and loader), the name of a stored library, or the first components of a
version: then the store and the wheels of this environment are looked through and the newest that matches is taken.
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

from probe.cublaslt.elf import check_file
from probe.cublaslt.store import Store, storage_errors, store_root
from probe.cublaslt.stored import StoredLibrary, begins_with, components, is_name, is_version
from probe.errors import EnvironmentProblem, UsageError

VARIABLE = "PROBE_CUBLASLT"
WHEELS = {13: "nvidia-cublas", 12: "nvidia-cublas-cu12"}  # major version -> distribution
MAJORS = (13, 12)  # newest first
_ACCEPTED = "a path to libcublasLt.so, cu12, cu13, a version such as 12.8, or a name of `probe library list`"


class Step(StrEnum):
    """The places that are searched, in order."""

    OPTION = "option"
    VARIABLE = "variable"
    STORE = "store"  # only for names and versions
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
        return f"{self.step} {self.where}: " + (self.note if self.path is None else f"{self.path} ({self.note})")


@dataclass(frozen=True)
class Found:
    """The library file that won (resolved path), and the steps up to it; the last one won.

    stored: the library of the store that the file belongs to, None for any other; who opens it holds it.
    """

    path: Path
    steps: tuple[SearchStep, ...]
    stored: StoredLibrary | None = None

    @property
    def won(self) -> SearchStep:
        """The step that found it."""
        return self.steps[-1]


def find_library(option: str | None = None, environ: Mapping[str, str] | None = None) -> Found:
    """The cuBLASLt library to use.

    option: a path, "cu12", "cu13", a stored name or the first components of a version; None searches every step.
    environ: the environment variables, os.environ by default. Raises UsageError if the option or the variable names
    something unusable, EnvironmentProblem with all steps if nothing was found, or if a stored library lost its file.
    """
    environ = os.environ if environ is None else environ
    if option is not None:
        return _given(Step.OPTION, "--library", option, environ)
    steps = [SearchStep(Step.OPTION, "--library", None, "not given")]
    if environ.get(VARIABLE):
        found = _given(Step.VARIABLE, VARIABLE, environ[VARIABLE], environ)
        return Found(found.path, (*steps, *found.steps), found.stored)
    steps.append(SearchStep(Step.VARIABLE, VARIABLE, None, "not set"))
    return _search(MAJORS, environ, steps)


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
    if is_version(value) or is_name(value):
        store = Store(store_root(environ))
        with storage_errors(store.root):
            if is_version(value):
                return _version(step, where, value, store, environ)
            stored = store.get(value)
            if stored is not None:
                also = f"; ./{value} is another file" if path.exists() else ""
                steps = (SearchStep(step, where, None, f"asks for {value}"),
                         SearchStep(Step.STORE, value, stored.check(), f"stored library {value}{also}"))
                return Found(stored.path.resolve(), steps, stored)
            if not path.exists():
                raise _not_stored(where, value, store)
    why = check_file(path)
    if why:
        raise UsageError(f"{where}: {why}", _ACCEPTED)
    return Found(path.resolve(), (SearchStep(step, where, path.resolve(), "given as a path"),))


def _version(step: Step, where: str, prefix: str, store: Store, environ: Mapping[str, str]) -> Found:
    """The newest library, stored or in a wheel of this environment, whose version begins with these components."""
    stored = [(s.record.release, s) for s in store.matching(prefix) if s.record is not None]
    installed = [(version, WHEELS[major]) for major in MAJORS if (version := _wheel_version(major)) and begins_with(version, prefix)]
    if not stored and not installed:
        raise _not_stored(where, prefix, store)
    matches = ", ".join([f"{s.name} ({r})" for r, s in stored] + [f"{w} {v} of this environment" for v, w in installed])
    best = max(components(version) for version, _ in [*stored, *installed])
    version = ".".join(map(str, best))
    note = f"version {version}, the newest match for {prefix} of: {matches}"
    asked = SearchStep(step, where, None, f"asks for version {prefix}")
    for release, library in stored:  # before a wheel of the same version: its hash was checked, and it can be held
        if components(release) == best:
            path = library.check().resolve()
            return Found(path, (asked, SearchStep(Step.STORE, library.name, path, note)), library)
    wheel = next(w for v, w in installed if components(v) == best)
    older = f"{', '.join(r for r, _ in stored)}, older than the wheel" if stored else f"no version {prefix}"
    steps = [asked, SearchStep(Step.STORE, str(store.root), None, older)]
    found = _search([m for m in MAJORS if WHEELS[m] == wheel], environ, steps)
    if found.won.step is not Step.WHEEL:
        raise EnvironmentProblem(f"{wheel} {version} of this environment has no library file that can be used", f"install {wheel} again")
    return Found(found.path, (*found.steps[:-1], SearchStep(Step.WHEEL, wheel, found.path, note)))


def _not_stored(where: str, value: str, store: Store) -> UsageError:
    """The error for a name or version that neither the store nor this environment has."""
    there = [f"{s.name} ({s.record.version})" if s.record else f"{s.name} (broken)" for s in store.libraries()]
    there += [f"{WHEELS[m]} {v} of this environment" for m in MAJORS if (v := _wheel_version(m))]
    known = "there are " + ", ".join(there) if there else "the store is empty"
    return UsageError(f"{where} = {value!r} is no library that is here; {known}", f"{_how_to_fetch(value)} brings one; else {_ACCEPTED}")


def _how_to_fetch(value: str) -> str:
    """The command that would bring a version."""
    if not is_version(value):
        return "probe library fetch RELEASE"
    wheel = WHEELS.get(components(value)[0])
    if wheel is None:
        return "probe library fetch, of CUDA 12 or 13,"
    return f"probe library fetch '{wheel}=={value}{'' if len(components(value)) > 3 else '.*'}'"


def _wheel_version(major: int) -> str | None:
    """The version of the wheel of this environment, None for none."""
    try:
        return importlib.metadata.distribution(WHEELS[major]).version
    except importlib.metadata.PackageNotFoundError:
        return None


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
