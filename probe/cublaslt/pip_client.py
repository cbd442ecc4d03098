"""pip as the client of package indexes: one wheel into a folder, with pip's own settings, and its errors in one line each.

pip runs as a child of this interpreter. Its output is read line by line: the line "Downloading NAME.whl (594.3 MB)" comes before the first
byte, so the need for room is said, and refused, before anything is written. (pip 23.2 to 26 print it.) pip downloads to a temporary
folder and then copies, so both stand inside the working folder of the store, and two wheels' worth of room is needed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from probe.errors import EnvironmentProblem, UsageError

_POLL = 0.25  # seconds between two looks at how much has come
_UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_PR_SET_PDEATHSIG = 1
# What pip 23.2 to 26 prints where the index, or the way to it, does not answer or breaks off.
_NO_NETWORK = ("connection broken by", "Failed to establish a new connection", "Max retries exceeded", "Read timed out", "ReadTimeout",
               "Connection aborted", "IncompleteRead", "incomplete-download", "not enough bytes", "ProtocolError", "ChunkedEncodingError",
               "ConnectionResetError", "Could not fetch URL", "Network is unreachable", "name resolution",
               "is not a trusted or secure host")
_libc = ctypes.CDLL(None)  # before any fork: nothing may be loaded between fork and exec

Said = Callable[[str], None]


@dataclass(frozen=True)
class Requirement:
    """A release as pip takes it. distribution: normalised name. specifier: "==12.8.5.5", ">=12.9,<13", or "" for the newest."""

    distribution: str
    specifier: str

    def __str__(self) -> str:
        return self.distribution + self.specifier

    @property
    def version(self) -> str | None:
        """The version, where it is pinned to one."""
        match = re.fullmatch(r"==([0-9]+(?:\.[0-9]+)*)", self.specifier)
        return match[1] if match else None

    @classmethod
    def parse(cls, text: str, distributions: tuple[str, ...]) -> Requirement:
        """The requirement that a text like "nvidia-cublas-cu12==12.8.5.5" names, for one of these distributions. Raises UsageError."""
        example = f"for example {distributions[-1]}==12.8.5.5, or {' or '.join(distributions)} for the newest"
        match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)((?:(?:[=~!]=|[<>]=?)[0-9A-Za-z.*+!]+,?)*)", re.sub(r"\s+", "", text))
        if match is None:
            raise UsageError(f"{text!r} is no release", example)
        name = re.sub(r"[-_.]+", "-", match[1]).lower()
        if name not in distributions:
            raise UsageError(f"{name} is not a distribution of cuBLAS that probe fetches", example)
        return cls(name, match[2].rstrip(","))


def download(requirement: Requirement, folder: Path, lock: int, sized: Callable[[int | None], None], progress: Said) -> Path:
    """The wheel of a release, in `folder`/wheel. pip's settings (PIP_INDEX_URL, pip.conf, ...) hold, its cache is left alone.

    lock: a file descriptor that pip inherits. sized: called once, before the download, with the wheel's size in bytes, None where the index
    does not tell it; what it raises stops pip. Raises UsageError for what the index does not have, EnvironmentProblem where pip or the
    network fails.
    """
    temporary, target = folder / "tmp", folder / "wheel"
    temporary.mkdir()
    target.mkdir()
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input",
               "--disable-pip-version-check", "--no-color", "--progress-bar=off", f"--dest={target}", str(requirement)]
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    pip = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           errors="replace", pass_fds=(lock,), start_new_session=True, preexec_fn=_end_with_parent)
    assert pip.stdout is not None
    heard: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(pip.stdout, heard), daemon=True)
    reader.start()
    try:
        lines = _watch(heard, temporary, sized, progress)
        code = pip.wait()
    finally:
        pip.kill()
        pip.wait()
        reader.join()
        pip.stdout.close()
    if code:
        raise failure(requirement, lines)
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise EnvironmentProblem(f"pip said that it downloaded {requirement} and left {len(wheels)} wheels",
                                 f"python -m pip download --no-deps {requirement} shows more")
    return wheels[0]


def _end_with_parent() -> None:
    """In the child: a killed probe takes pip with it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _read(stream: IO[str], heard: queue.Queue[str | None]) -> None:
    """Hand over line by line what pip prints, then None."""
    for line in stream:
        heard.put(line.rstrip())
    heard.put(None)


def _watch(heard: queue.Queue[str | None], temporary: Path, sized: Callable[[int | None], None], progress: Said) -> list[str]:
    """Take what pip prints until it is through; returns its lines."""
    lines: list[str] = []
    total: int | None = None
    told = False
    while True:
        try:
            line = heard.get(timeout=_POLL)
        except queue.Empty:
            if told:
                progress(_so_far(temporary, total))
            continue
        if line is None:
            return lines
        lines.append(line)
        if not told and (match := re.match(r"\s*(Downloading|Processing|Using cached) (.+\.whl)(?: \(([0-9.]+) (\w+)\))?$", line)):
            told = True
            total = _size(match[2], match[3], match[4])
            sized(total)


def _size(name: str, number: str | None, unit: str | None) -> int | None:
    """Bytes of the wheel in such a line, rounded as pip rounds; of a local wheel, its own."""
    if number is not None and unit in _UNITS:
        return int(float(number) * _UNITS[unit])
    path = Path(name)
    return path.stat().st_size if path.is_file() else None


def _so_far(temporary: Path, total: int | None) -> str:
    """How much has come, in words."""
    done = 0
    for folder, _, names in os.walk(temporary):
        for name in names:
            try:
                done += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue  # pip moves and deletes while we look
    if not total:
        return f"download {done / 1e6:.0f} MB"
    return f"download {min(done, total) / 1e6:.0f} of {total / 1e6:.0f} MB"


def failure(requirement: Requirement, lines: list[str]) -> Exception:
    """What pip's output says went wrong, as an error to raise."""
    text = "\n".join(lines)
    machine = f"{platform.system()} {platform.machine()}"
    errors = [line.split(" ", 1)[1] for line in lines if line.startswith("ERROR: ")]
    if "No module named pip" in text:
        return EnvironmentProblem("this Python has no pip", "python -m ensurepip, or download the wheel elsewhere and probe library add it")
    if re.search(r"No space left on device|Disk quota exceeded", text):
        return EnvironmentProblem("the disk was full before the wheel was there",
                                  "free some, or set PROBE_HOME to a folder on a larger disk")
    if re.search(r"DO NOT MATCH THE HASHES", text):
        return EnvironmentProblem(f"the wheel of {requirement} does not have the hash that the index gives for it; it was not kept",
                                  "try again; if it stays, the index or a proxy on the way alters files")
    found = re.search(r"\(from versions: ([^)]*)\)", text)
    silent = any(sign in text for sign in _NO_NETWORK)
    if found is not None and found[1] != "none":
        return UsageError(f"there is no wheel of {requirement} for this machine ({machine})",
                          f"there are {found[1]}" + ("; an index did not answer, though" if silent else ""))
    if silent:
        return EnvironmentProblem(f"pip could not get {requirement} from its index: the network or the index does not answer",
                                  "check pip's index and proxy (python -m pip config list), or probe library add a wheel that you have")
    if found is not None:
        return UsageError(f"pip finds no wheel of {requirement.distribution} for this machine ({machine})",
                          "another platform, or an index that lacks it or does not answer: python -m pip config list shows the indexes")
    last = errors[-1] if errors else next((line for line in reversed(lines) if line.strip()), "it said nothing")
    return EnvironmentProblem(f"pip failed: {last.strip()}", f"python -m pip download --no-deps {requirement} shows more")
