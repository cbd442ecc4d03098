"""libcublasLt out of a wheel: that one library and the licence, each checked against the wheel's own RECORD."""

from __future__ import annotations

import base64
import csv
import email.parser
import hashlib
import io
import posixpath
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from probe.errors import UsageError

_LIBRARY = re.compile(r"libcublasLt\.so\.[0-9]+")
_LICENCE = re.compile(r"licen[cs]e[^/]*", re.IGNORECASE)
_BROKEN = "fetch or copy the wheel once more"
_PIECE = 2**22  # bytes
_SMALL = 2**24  # more than any RECORD or METADATA has


@dataclass(frozen=True)
class Unpacked:
    """What came out of a wheel: its distribution and version, the library file and the licence text (None for none) where they were put."""

    distribution: str
    version: str
    library: Path
    library_sha256: str
    licence: Path | None


def unpack(wheel: Path, folder: Path, progress: Callable[[str], None]) -> Unpacked:
    """Write the libcublasLt.so.N and the licence of a wheel into `folder`. progress: called with a text about every megabytes.

    Raises UsageError, one line, for a file that is no wheel, is broken, holds no libcublasLt for Linux, or holds what its RECORD does not
    list; OSError where the folder cannot be written.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            return _unpack(archive, wheel.name, folder, progress)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError) as error:
        raise UsageError(f"{wheel.name} is a broken wheel: {error}", _BROKEN) from None


def _unpack(archive: zipfile.ZipFile, called: str, folder: Path, progress: Callable[[str], None]) -> Unpacked:
    names = archive.namelist()
    infos = [n for n in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)]
    if len(infos) != 1:
        raise UsageError(f"{called} is not a wheel: it has no .dist-info/METADATA", "a wheel of nvidia-cublas or nvidia-cublas-cu12")
    info = posixpath.dirname(infos[0])
    libraries = [n for n in names if _LIBRARY.fullmatch(posixpath.basename(n))]
    if len(libraries) != 1:
        tags = _small(archive, called, f"{info}/WHEEL")
        made_for = ", ".join(t.rsplit("-", 1)[-1] for t in re.findall(r"^Tag: (\S+)", tags, re.MULTILINE)) or "no platform that it names"
        raise UsageError(f"{called} holds {'no' if not libraries else len(libraries)} libcublasLt.so; it is made for {made_for}",
                         "a wheel of nvidia-cublas or nvidia-cublas-cu12 for Linux on this machine's processor")
    listed = _record(_small(archive, called, f"{info}/RECORD"))
    metadata = email.parser.HeaderParser().parsestr(_small(archive, called, f"{info}/METADATA"))
    if not metadata["Name"] or not metadata["Version"]:
        raise UsageError(f"{called} is a broken wheel: its METADATA lacks a name or a version", _BROKEN)
    licences = sorted((n for n in names if n.startswith(f"{info}/") and _LICENCE.fullmatch(posixpath.basename(n))), key=len)
    licence = None
    if licences:
        licence = folder / posixpath.basename(licences[0])
        _write(archive, called, licences[0], licence, listed, lambda text: None)
    library = folder / posixpath.basename(libraries[0])
    digest = _write(archive, called, libraries[0], library, listed, progress)
    name = re.sub(r"[-_.]+", "-", str(metadata["Name"])).lower()
    return Unpacked(name, str(metadata["Version"]), library, digest, licence)


def _small(archive: zipfile.ZipFile, called: str, name: str) -> str:
    """A text of the .dist-info folder."""
    try:
        entry = archive.getinfo(name)
    except KeyError:
        raise UsageError(f"{called} is a broken wheel: it has no {posixpath.basename(name)}", _BROKEN) from None
    if entry.file_size > _SMALL:
        raise UsageError(f"{called} is a broken wheel: its {posixpath.basename(name)} has {entry.file_size} bytes", _BROKEN)
    return archive.read(entry).decode("utf-8")


def _record(text: str) -> dict[str, tuple[str, str]]:
    """path -> ("sha256=...", size) of a RECORD (PyPA specification of recorded projects: CSV, urlsafe base64 without padding)."""
    return {row[0]: (row[1], row[2]) for row in csv.reader(io.StringIO(text)) if len(row) == 3}


def _write(archive: zipfile.ZipFile, called: str, name: str, target: Path, listed: dict[str, tuple[str, str]],
           progress: Callable[[str], None]) -> str:
    """Write one file and compare it with RECORD while it is written. Returns its SHA-256, hex."""
    if name not in listed:
        raise UsageError(f"{called} is a broken wheel: its RECORD does not list {name}", _BROKEN)
    hashed, size = listed[name]
    entry, digest, done = archive.getinfo(name), hashlib.sha256(), 0
    with archive.open(entry) as source, target.open("wb") as out:
        while piece := source.read(_PIECE):
            digest.update(piece)
            out.write(piece)
            done += len(piece)
            progress(f"unpack {done / 1e6:.0f} of {entry.file_size / 1e6:.0f} MB")
    if hashed != "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode() or size != str(done):
        raise UsageError(f"{called} is a broken wheel: {name} is not what its RECORD says", _BROKEN)
    return digest.hexdigest()
