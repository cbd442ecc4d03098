"""The file of a pack: a zip of a manifest, rows as JSON lines, and recordings; read with every size bounded before it is unpacked.

The manifest names every other entry with its size and hash; the pack's own hash is that of the manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from probe.errors import EnvironmentProblem, UsageError
from probe.newfile import new_file

KIND, VERSION = "evidence pack", 1
MANIFEST, ROWS = "manifest.json", "rows.jsonl"
READING = re.compile(r"readings/[A-Za-z0-9][A-Za-z0-9._=+-]{0,120}\.npz")
MOST_FILE = 256 * 2**20  # bytes of the pack
MOST_UNPACKED = 2**30  # bytes of all entries
MOST_MANIFEST = 2**20
MOST_ENTRIES = 4096
MOST_LINE = 2**22  # bytes of one row
_DATE = (1980, 1, 1, 0, 0, 0)  # of every entry: equal packs are equal bytes
_MANIFEST_KEYS = {"kind", "version", "probe", "date", "campaign", "rows", "entries"}
_ENTRY_KEYS = {"name", "bytes", "sha256"}
_END_BYTES = 22  # of a zip's end record without a comment (APPNOTE 4.3.16)
_BAD = "ask whoever made the pack for another"


def write_pack(path: Path, about: Mapping[str, Any], rows: Sequence[bytes], readings: Mapping[str, bytes]) -> str:
    """Write a pack under a new name; returns its hash. about: of the manifest; rows: JSON lines; readings: by entry name.

    Raises UsageError where the name is taken or a limit is passed, EnvironmentProblem where it cannot be written.
    """
    entries = {ROWS: b"".join(row + b"\n" for row in rows), **readings}
    if sum(map(len, entries.values())) > MOST_UNPACKED or len(entries) > MOST_ENTRIES or max(map(len, rows), default=0) > MOST_LINE:
        raise UsageError("the pack passes its limits", f"at most {MOST_UNPACKED // 2**20} MiB unpacked and {MOST_ENTRIES - 1} recordings")
    listed = [{"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in entries.items()]
    manifest = json.dumps({"kind": KIND, "version": VERSION, **about, "rows": len(rows), "entries": listed}, sort_keys=True, indent=1,
                          allow_nan=False).encode()
    if len(manifest) > MOST_MANIFEST:
        raise UsageError("the manifest of the pack is too large", "fewer recordings")
    with new_file(path) as aside:
        with zipfile.ZipFile(aside, "x") as file:
            for name, data in {MANIFEST: manifest, **entries}.items():
                kind = zipfile.ZIP_STORED if READING.fullmatch(name) else zipfile.ZIP_DEFLATED  # an npz is compressed already
                file.writestr(zipfile.ZipInfo(name, _DATE), data, kind, 9)
        if aside.stat().st_size > MOST_FILE:
            raise UsageError(f"the pack passes {MOST_FILE // 2**20} MiB", "fewer rows or recordings")
    return hashlib.sha256(manifest).hexdigest()


class PackFile:
    """An open pack whose names, sizes and hashes are as its manifest says. Made with `open_pack`."""

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        self.path, self._file = path, file
        infos = file.infolist()
        names = [info.filename for info in infos]
        if len(infos) > MOST_ENTRIES or len(set(names)) != len(names) or not {MANIFEST, ROWS} <= set(names):
            raise UsageError(f"{path}: its entries are not those of a pack", _BAD)
        for info in infos:
            if info.filename not in (MANIFEST, ROWS) and not READING.fullmatch(info.filename):
                raise UsageError(f"{path}: {info.filename!r} has no place in a pack", _BAD)
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
                raise UsageError(f"{path}: {info.filename} is packed in a way that packs are not", _BAD)
        if sum(info.file_size for info in infos) > MOST_UNPACKED:
            raise UsageError(f"{path}: it unpacks to more than {MOST_UNPACKED // 2**20} MiB", _BAD)
        text = self.read(MANIFEST, MOST_MANIFEST)
        self.sha256 = hashlib.sha256(text).hexdigest()
        self.manifest = self._manifest(text)
        self.readings = tuple(name for name in names if READING.fullmatch(name))
        listed = {entry["name"]: entry for entry in self.manifest["entries"]}
        if set(listed) != set(names) - {MANIFEST}:
            raise UsageError(f"{path}: its manifest names other entries than it has", _BAD)
        for name, entry in listed.items():
            digest, size = hashlib.sha256(), 0
            for piece in self._pieces(name):
                digest.update(piece)
                size += len(piece)
            if size != entry["bytes"] or digest.hexdigest() != entry["sha256"]:
                raise UsageError(f"{path}: {name} was changed since the pack was made", _BAD)

    def _manifest(self, text: bytes) -> dict[str, Any]:
        manifest = strict_json(text, f"{self.path}: {MANIFEST}")
        if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
            raise UsageError(f"{self.path}: it is no evidence pack", "a file of `probe pack -o`")
        if manifest.get("version") != VERSION:
            raise UsageError(f"{self.path}: it has version {manifest.get('version')!r}, this probe reads {VERSION}",
                             "check it with the probe that wrote it")
        entries = manifest.get("entries")
        good = set(manifest) == _MANIFEST_KEYS and isinstance(entries, list) and all(
            isinstance(e, dict) and set(e) == _ENTRY_KEYS and isinstance(e["name"], str) for e in entries)
        if not good or type(manifest["rows"]) is not int or not all(isinstance(manifest[n], str) for n in ("probe", "date")):
            raise UsageError(f"{self.path}: its manifest is malformed", _BAD)
        return manifest

    def read(self, name: str, most: int) -> bytes:
        """One entry whole. Raises UsageError where it has more than `most` bytes, whatever the directory says of it, or is damaged."""
        data = bytearray()
        for piece in self._pieces(name):
            data += piece
            if len(data) > most:
                raise UsageError(f"{self.path}: {name} has more than {most} bytes", _BAD)
        return bytes(data)

    def rows(self) -> Iterator[bytes]:
        """The rows, a JSON line each. Raises UsageError for a line that is too long, or without an end."""
        left = bytearray()
        for piece in self._pieces(ROWS):
            left += piece
            *lines, rest = bytes(left).split(b"\n")
            if max(map(len, (*lines, rest))) > MOST_LINE:
                raise UsageError(f"{self.path}: a row has more than {MOST_LINE} bytes", _BAD)
            yield from lines
            left = bytearray(rest)
        if left:
            raise UsageError(f"{self.path}: its last row has no end", _BAD)

    def _pieces(self, name: str) -> Iterator[bytes]:
        try:
            with self._file.open(name) as file:
                while piece := file.read(2**20):
                    yield piece
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise UsageError(f"{self.path}: {name} is damaged: {error}", _BAD) from None


@contextmanager
def open_pack(path: Path) -> Iterator[PackFile]:
    """A pack, its sizes bounded and its hashes checked. Raises UsageError for a file that is none, EnvironmentProblem where it cannot be
    read."""
    try:
        if not path.is_file():
            raise UsageError(f"there is no file {path}", "a file of `probe pack -o`")
        if path.stat().st_size > MOST_FILE:
            raise UsageError(f"{path} has more than {MOST_FILE // 2**20} MiB", "no pack is as large")
        stream: IO[bytes] = path.open("rb")
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}", "a file that can be read") from None
    with stream:
        try:
            file = zipfile.ZipFile(stream)
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            raise UsageError(f"{path} is truncated or no pack", "a file of `probe pack -o`") from None
        with file:
            # A recording is a zip itself: of a pack that was cut, or has something before or behind it, another directory may be found.
            stream.seek(-_END_BYTES, io.SEEK_END)
            if stream.read(4) != b"PK\x05\x06" or min((info.header_offset for info in file.infolist()), default=1) != 0:
                raise UsageError(f"{path} is truncated or no pack", "a file of `probe pack -o`")
            yield PackFile(path, file)


def strict_json(text: bytes, where: str) -> Any:
    """JSON without NaN, repeated names or endless nesting. Raises UsageError that names `where`."""
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(items)
        if len(out) != len(items):
            raise ValueError("a name is given twice")
        return out

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is no plain JSON: {error}", _BAD) from None
