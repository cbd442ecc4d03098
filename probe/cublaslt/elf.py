"""What a file says about itself before anybody loads it: is it a shared library, for which machine, under which soname."""

from __future__ import annotations

import platform
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from probe.errors import UsageError

_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of the ELF specification: EM_X86_64, EM_AARCH64
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_LONGEST_NAME = 4096


@dataclass(frozen=True)
class Elf:
    """machine: as `uname -m` names it, "e_machine N" for one that cuBLASLt is not made for. soname: "" where the file has none."""

    machine: str
    soname: str


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


def check_library(path: Path, called: str) -> Elf:
    """What the file says about itself, if it is a libcublasLt for this machine by its own words. Loads nothing.

    called: how a message names the file. Raises UsageError, one line.
    """
    why = check_file(path)
    if why:
        raise UsageError(why, "the path of libcublasLt.so.12 or .13")
    try:
        elf = read_elf(path)
    except (struct.error, ValueError, OverflowError) as error:
        raise UsageError(f"{called} is a broken shared library: {error}", "fetch or copy it once more") from None
    if elf.machine != platform.machine():
        raise UsageError(f"{called} is a library for {elf.machine}, this machine is {platform.machine()}", "the library for this machine")
    if not re.fullmatch(r"libcublasLt\.so\.[0-9]+", elf.soname):
        says = f"its soname is {elf.soname}" if elf.soname else "it has no soname"
        raise UsageError(f"{called} is not libcublasLt: {says}", "the path of libcublasLt.so.12 or .13")
    return elf


def read_elf(path: Path) -> Elf:
    """Machine and soname of a 64-bit little-endian ELF file. Raises ValueError or struct.error for anything else."""
    with path.open("rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF" or head[4:6] != b"\x02\x01":
            raise ValueError("it is no 64-bit little-endian ELF file")
        (number,) = struct.unpack_from("<H", head, 18)
        (table,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(table)
        rows = file.read(size * count)
        # type, flags, offset, virtual address, physical address, size in the file
        segments = [struct.unpack_from("<IIQQQQ", rows, i * size) for i in range(count)]
        soname = ""
        for kind, _, offset, _, _, length in segments:
            if kind != _PT_DYNAMIC:
                continue
            file.seek(offset)
            raw = file.read(length)
            entries: dict[int, int] = {}
            for tag, value in struct.iter_unpack("<qQ", raw[: len(raw) // 16 * 16]):
                if tag == _DT_NULL:
                    break
                entries.setdefault(tag, value)
            if _DT_SONAME in entries and _DT_STRTAB in entries:
                address = entries[_DT_STRTAB] + entries[_DT_SONAME]
                start = next((address - s[3] + s[2] for s in segments if s[0] == _PT_LOAD and s[3] <= address < s[3] + s[5]), None)
                if start is None:
                    raise ValueError("its table of names lies outside the file")
                file.seek(start)
                soname = file.read(_LONGEST_NAME).split(b"\0", 1)[0].decode("utf-8", "replace")
    return Elf(_MACHINES.get(number, f"e_machine {number}"), soname)
