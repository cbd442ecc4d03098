"""Bring a library into the store: a release by pip, a wheel or a plain file; checked, asked for its version, put in place when complete."""

from __future__ import annotations

import datetime
import hashlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from probe.cublaslt import pip_client
from probe.cublaslt.elf import check_library
from probe.cublaslt.pip_client import Requirement
from probe.cublaslt.store import Store, Work, name_taken, storage_errors
from probe.cublaslt.stored import NOTICE, LibraryRecord, StoredLibrary, check_name, hash_file
from probe.cublaslt.wheel import Unpacked, unpack
from probe.errors import EnvironmentProblem, UsageError
from probe.values import check_sha256

DISTRIBUTIONS = ("nvidia-cublas", "nvidia-cublas-cu12")
# At its peak a fetch holds pip's two copies of the wheel, or the wheel and the library: 1.19 and 1.35 GB for 12.8.5.5, whose wheel has
# 0.594 GB and whose library has 0.752.
ROOM = 2.5
_TYPICAL = "a wheel of cuBLAS has about 0.4 to 0.6 GB, its library 0.5 to 0.8 GB"
_VERSION_LIMIT = 120  # seconds; the call takes less than one once the file is in memory
_PIECE = 2**22  # bytes

Said = Callable[[str], None]

# The child loads the library and nothing of probe: one library a process, and this process may hold another.
_ASK_VERSION = """
import ctypes, sys
try:
    library = ctypes.CDLL(sys.argv[1])
except OSError as error:
    sys.exit("cannot be loaded: " + str(error).removeprefix(sys.argv[1] + ": "))
try:
    ask = library.cublasLtGetVersion
except AttributeError:
    sys.exit("is no cuBLASLt: it lacks cublasLtGetVersion")
ask.restype = ctypes.c_size_t
print(ask())
"""


def fetch(store: Store, requirement: str, *, name: str | None = None, sha256: str | None = None, progress: Said,
          notice: Said) -> StoredLibrary:
    """The library of a release ("nvidia-cublas-cu12==12.8.5.5"), downloaded by pip unless the store has it already.

    name: in the store, default "cublas-VERSION". sha256: what the wheel must have; pip compares it with the index's own in any case. Raises
    UsageError, EnvironmentProblem.
    """
    wanted = Requirement.parse(requirement, DISTRIBUTIONS)
    if name is not None:
        check_name(name)
    if sha256 is not None:
        check_sha256("sha256", sha256)
    with storage_errors(store.root):
        there = _already(store, wanted, name, sha256)
        if there is not None:
            notice(f"{wanted} is in the store already, as {there.name}")
            return there
        what = "fetch-" + hashlib.sha256(f"{wanted} {name}".encode()).hexdigest()[:16]
        with store.reserved(what, lambda: notice(f"another process is fetching {wanted}: waiting for it")):
            there = _already(store, wanted, name, sha256)
            if there is not None:
                notice(f"{wanted} is in the store by now, as {there.name}")
                return there
            with store.work() as work:
                progress(f"ask pip for {wanted}")
                wheel = pip_client.download(wanted, work.folder, work.lock, lambda size: _check_room(store, size, notice), progress)
                return _keep_wheel(store, work, wheel, f"pip download {wanted}", name, sha256, progress, notice)


def add(store: Store, path: Path, *, name: str | None = None, sha256: str | None = None, progress: Said, notice: Said) -> StoredLibrary:
    """A copy of a libcublasLt.so.N, or the one in a wheel, in the store. Neither is moved or altered.

    name: default "cublas-VERSION", of the wheel or as the library reports it. sha256: what the file at `path` must have. Raises UsageError,
    EnvironmentProblem.
    """
    path = path.expanduser().absolute()
    if name is not None:
        check_name(name)
    if sha256 is not None:
        check_sha256("sha256", sha256)
    if path.suffix != ".whl":
        check_library(path, path.name)
    elif not path.is_file():
        why = "is not a file" if path.exists() else "does not exist"
        raise UsageError(f"{path} {why}", "the path of a wheel or of libcublasLt.so.N")
    with storage_errors(store.root), store.work() as work:
        size = path.stat().st_size
        # a wheel is a zip: what it unpacks to has stayed below 1.5 times its size
        _refuse_without_room(store, int(size * (1.5 if path.suffix == ".whl" else 1)), f"{path.name} has {_in_words(size)}", notice)
        if path.suffix == ".whl":
            return _keep_wheel(store, work, path, str(path), name, sha256, progress, notice)
        return _keep_file(store, work, path, name, sha256, progress, notice)


def reported_version(path: Path, called: str) -> str:
    """ "12.8.5", from cublasLtGetVersion of the file, in a child process. Raises UsageError where it is no library that works here."""
    try:
        done = subprocess.run([sys.executable, "-I", "-c", _ASK_VERSION, str(path)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", timeout=_VERSION_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"{called} did not report its version within {_VERSION_LIMIT} s",
                                 "try again on a machine at rest") from None
    hint = "the libcublasLt.so.12 or .13 of a release for this machine"
    if done.returncode < 0:
        raise UsageError(f"{called} ended the process that loaded it, by signal {-done.returncode}", hint)
    if done.returncode or not re.fullmatch(r"[0-9]{5,7}", done.stdout.strip()):
        why = done.stderr.strip() or f"reports the version {done.stdout.strip()!r}"
        raise UsageError(f"{called} {why.splitlines()[-1].replace(str(path), called)}", hint)
    number = int(done.stdout)
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"  # cublasLt.h: major * 10000 + minor * 100 + patch


def _already(store: Store, wanted: Requirement, name: str | None, sha256: str | None) -> StoredLibrary | None:
    """The library of an exact release, if the store has it under that name. Raises UsageError where the name is another's."""
    version = wanted.version
    if version is None:
        return None
    called = name or _default_name(version)
    there = store.get(called) if name else store.of_wheel(wanted.distribution, version) or store.get(called)
    if there is None:
        return None
    if there.record is None or (there.record.distribution, there.record.wheel_version) != (wanted.distribution, version):
        raise name_taken(there.name)
    _check_hash(str(wanted), there.record.wheel_sha256 or "", sha256)
    there.check()
    return there


def _keep_wheel(store: Store, work: Work, wheel: Path, origin: str, name: str | None, sha256: str | None, progress: Said,
                notice: Said) -> StoredLibrary:
    progress("hash the wheel")
    wheel_sha256 = hash_file(wheel)
    _check_hash(wheel.name, wheel_sha256, sha256)
    unpacked = unpack(wheel, work.entry, progress)
    origin = origin if origin.endswith(wheel.name) else f"{origin} ({wheel.name})"
    return _keep(store, work, unpacked, unpacked.library, unpacked.library_sha256, wheel_sha256, origin, name, progress, notice)


def _keep_file(store: Store, work: Work, path: Path, name: str | None, sha256: str | None, progress: Said, notice: Said) -> StoredLibrary:
    copy = work.entry / check_library(path, path.name).soname
    digest, done, size = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as source, copy.open("wb") as out:
        while piece := source.read(_PIECE):
            digest.update(piece)
            out.write(piece)
            done += len(piece)
            progress(f"copy {done / 1e6:.0f} of {size / 1e6:.0f} MB")
    _check_hash(path.name, digest.hexdigest(), sha256)
    return _keep(store, work, None, copy, digest.hexdigest(), None, str(path), name, progress, notice)


def _keep(store: Store, work: Work, wheel: Unpacked | None, library: Path, file_sha256: str, wheel_sha256: str | None, origin: str,
          name: str | None, progress: Said, notice: Said) -> StoredLibrary:
    """Ask the file in the working folder what it is, and give it its place."""
    elf = check_library(library, library.name)
    progress("ask the library for its version")
    version = reported_version(library, library.name)
    record = LibraryRecord(
        name=name or _default_name(wheel.version if wheel else version), distribution=wheel.distribution if wheel else None,
        wheel_version=wheel.version if wheel else None, wheel_sha256=wheel_sha256, file=library.name, file_sha256=file_sha256,
        file_bytes=library.stat().st_size, soname=elf.soname, version=version, origin=origin,
        date=datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat(),
        licence_file=wheel.licence.name if wheel and wheel.licence else None, licence=NOTICE)
    with store.reserved(f"name-{record.name}", lambda: None):
        there = store.get(record.name)
        if there is None:
            return store.publish(work, record)
    if there.record is None or (there.record.file_sha256, there.record.wheel_sha256) != (file_sha256, wheel_sha256):
        raise name_taken(record.name)
    there.check()
    notice(f"the very same file is in the store already, as {there.name}")
    return there


def _default_name(version: str) -> str:
    return f"cublas-{version}"


def _check_hash(called: str, sha256: str, wanted: str | None) -> None:
    if wanted is not None and sha256 != wanted:
        raise UsageError(f"{called} has SHA-256 {sha256}, not {wanted}: refused", "check the hash, and where the file comes from")


def _check_room(store: Store, wheel_bytes: int | None, notice: Said) -> None:
    """Say what the download takes; raise EnvironmentProblem where there is no room for it."""
    if wheel_bytes is None:
        notice(f"pip does not tell the size; {_TYPICAL}. {_in_words(store.free_bytes())} are free in {store.root}")
        return
    need = int(wheel_bytes * ROOM)
    _refuse_without_room(store, need, f"the wheel has {_in_words(wheel_bytes)}; with what is unpacked it takes up to {_in_words(need)} "
                         "until it is done", notice)


def _refuse_without_room(store: Store, need: int, said: str, notice: Said) -> None:
    free = store.free_bytes()
    if free < need:
        raise EnvironmentProblem(f"{said}, and {store.root} has {_in_words(free)} free",
                                 "free some, or set PROBE_HOME to a folder on a larger disk")
    notice(f"{said}; {_in_words(free)} are free in {store.root}")


def _in_words(count: int) -> str:
    """Bytes as pip writes them, in units of 1000."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
