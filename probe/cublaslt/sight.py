"""Every libcublasLt and libcublas in sight of this process, wherever it came from. Loads nothing.

`find` stops at the library that probe would use; this looks on, and wider: every wheel, every toolkit, LD_LIBRARY_PATH, the loader's cache,
the folder of the Python environment. The store and the variable are the caller's to add, for they hold libcublasLt alone.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LT, FULL = "libcublasLt", "libcublas"
_WHEEL = re.compile(r"nvidia[-_.]cublas([-_.]cu[0-9]+)?", re.IGNORECASE)
_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig")


@dataclass(frozen=True)
class Sighting:
    """One file, resolved, and every way that led to it, in words ("wheel nvidia-cublas 13.1.0.3", "loader cache")."""

    path: Path
    how: tuple[str, ...]


def in_sight(stem: str, environ: Mapping[str, str], more: tuple[tuple[Path, str], ...] = ()) -> tuple[Sighting, ...]:
    """The files of LT or FULL: `more` (path, how) first, then wheels, toolkits, LD_LIBRARY_PATH, the loader's cache, the environment."""
    found: dict[Path, list[str]] = {}
    for path, how in [*more, *_all(stem, environ)]:
        ways = found.setdefault(path.resolve(), [])
        if how not in ways:
            ways.append(how)
    return tuple(Sighting(path, tuple(ways)) for path, ways in found.items())


def _all(stem: str, environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    name = re.compile(re.escape(stem) + r"\.so(\.[0-9]+)*")
    for distribution in importlib.metadata.distributions():
        called = distribution.metadata["Name"] or ""
        if _WHEEL.fullmatch(called):
            for file in distribution.files or []:
                if name.fullmatch(file.name):
                    yield Path(str(file.locate())), f"wheel {called} {distribution.version}"
    places = [(folder, f"toolkit {home}") for home in _toolkits(environ) for folder in _libraries(home)]
    places += [(Path(f), "LD_LIBRARY_PATH") for f in environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    for folder, how in places:
        yield from ((file, how) for file in _matching(folder, name))
    yield from ((file, "loader cache") for file in _cached(name))
    roots = [environ.get("CONDA_PREFIX"), sys.prefix]
    for root in dict.fromkeys(r for r in roots if r):
        yield from ((file, f"environment {root}") for file in _matching(Path(root) / "lib", name))


def _toolkits(environ: Mapping[str, str]) -> list[Path]:
    """CUDA_HOME, CUDA_PATH and what is installed side by side in the usual place."""
    given = [Path(environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    return list(dict.fromkeys([*given, *sorted(Path("/usr/local").glob("cuda*"))]))


def _libraries(home: Path) -> list[Path]:
    return [home / "lib64", home / "lib", *sorted(home.glob("targets/*-linux/lib"))]


def _matching(folder: Path, name: re.Pattern[str]) -> list[Path]:
    """Files of that name in a folder, the plain name before the numbered ones. A folder that is not there or not readable has none."""
    try:
        return sorted(file for file in folder.iterdir() if name.fullmatch(file.name) and file.exists())
    except OSError:
        return []


def _cached(name: re.Pattern[str]) -> list[Path]:
    """Files of that name in the dynamic loader's cache (`ldconfig -p`); none where there is no ldconfig (musl, macOS)."""
    program = next((p for p in _LDCONFIG if Path(p).exists()), None)
    if program is None:
        return []
    listing = subprocess.run([program, "-p"], capture_output=True, text=True, errors="replace", check=False, timeout=30)
    entries = [line.strip().split(" => ") for line in listing.stdout.splitlines() if " => " in line]
    files = [Path(path) for entry, path in entries if name.fullmatch(entry.split()[0])]
    return [file for file in files if file.exists()]
