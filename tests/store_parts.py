"""Real parts for the tests of the store: small shared objects made by the C compiler, wheels around them, and an index on this machine."""

from __future__ import annotations

import atexit
import base64
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import probe

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler here to make a small shared library with")
MACHINE_TAG = f"py3-none-manylinux2014_{platform.machine()}"
OTHER_TAG = "py3-none-manylinux2014_" + ("x86_64" if platform.machine() == "aarch64" else "aarch64")
COMMAND = [sys.executable, "-m", "probe"]


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="probe-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def shared_object(version: int = 120805, soname: str = "libcublasLt.so.12", code: str = "") -> Path:
    """A shared library with that soname whose cublasLtGetVersion returns `version`; `code` in its place if given."""
    made_of = hashlib.sha256(f"{version} {soname} {code}".encode()).hexdigest()[:12]
    source = _folder() / f"{made_of}.c"
    source.write_text(code or f"#include <stddef.h>\nsize_t cublasLtGetVersion(void) {{ return {version}; }}\n")
    out = source.with_suffix(".so")
    assert CC is not None
    subprocess.run([CC, "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(out), str(source)], check=True, timeout=60)
    return out


def library_file(folder: Path, name: str = "libcublasLt.so.12", **how: object) -> Path:
    """A copy of such a library under the name that it would have."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(shared_object(**how), folder / name))  # type: ignore[arg-type]


def make_wheel(folder: Path, version: str = "12.8.5.5", distribution: str = "nvidia-cublas-cu12", tag: str = MACHINE_TAG,
               library: bytes | None = None, name: str = "nvidia/cublas/lib/libcublasLt.so.12", padding: int = 0, altered: str = "",
               unlisted: str = "") -> Path:
    """A wheel with a libcublasLt, a second library of `padding` random bytes, and the licence. altered, unlisted: a file whose content is
    not what RECORD says, or that RECORD lacks."""
    if library is None:
        number = sum(int(part) * unit for part, unit in zip(version.split("."), (10000, 100, 1), strict=False))
        library = shared_object(number).read_bytes()
    stem = f"{distribution.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {
        name: library,
        "nvidia/cublas/lib/libcublas.so.12": os.urandom(padding),
        f"{info}/licenses/License.txt": b"the terms of the vendor",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if path != unlisted:
            record += f"{path},sha256={digest},{len(data)}\n"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data[:-1] + bytes([data[-1] ^ 1]) if path == altered else data)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return wheel


class Index:
    """A package index on this machine over a folder of wheels. delay: seconds for each 64 KiB sent. wrong_hash: give a hash that is not the
    wheel's. sized: tell how long an answer is. served: how often a wheel was asked for."""

    def __init__(self, wheels: Path, delay: float = 0.0, wrong_hash: bool = False, sized: bool = True) -> None:
        self.wheels, self.delay, self.wrong_hash, self.sized, self.served = wheels, delay, wrong_hash, sized, 0
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/files/"):
                    index.served += 1
                    self._send((index.wheels / self.path.removeprefix("/files/")).read_bytes(), "application/octet-stream", True)
                    return
                project = self.path.strip("/").removeprefix("simple/")
                found = [w for w in sorted(index.wheels.glob("*.whl")) if w.name.split("-")[0].replace("_", "-") == project]
                if not found:
                    self.send_error(404)
                    return
                links = ""
                for wheel in found:
                    digest = hashlib.sha256(b"other" if index.wrong_hash else wheel.read_bytes()).hexdigest()
                    links += f'<a href="/files/{wheel.name}#sha256={digest}">{wheel.name}</a>\n'
                self._send(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html", False)

            def _send(self, data: bytes, kind: str, delayed: bool) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                if index.sized:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                try:
                    for start in range(0, len(data), 2**16):
                        self.wfile.write(data[start: start + 2**16])
                        self.wfile.flush()
                        time.sleep(index.delay if delayed else 0)
                except OSError:
                    pass  # the reader was killed

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/simple"


@contextmanager
def serving(wheels: Path, **how: object) -> Iterator[Index]:
    """The index, answering."""
    index = Index(wheels, **how)  # type: ignore[arg-type]
    thread = threading.Thread(target=index.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.server.shutdown()
        index.server.server_close()


def environment(home: Path, index: str = "", links: Path | None = None) -> dict[str, str]:
    """The variables of a process whose store is under `home` and whose pip asks that index, or that folder, and no other."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PIP_") and k not in ("PROBE_CUBLASLT", "XDG_CACHE_HOME")}
    kept |= {"PROBE_HOME": str(home), "PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": str(Path(probe.__file__).parents[1]),
             "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    kept |= {"PIP_INDEX_URL": index} if index else {"PIP_NO_INDEX": "1"}
    return kept | ({"PIP_FIND_LINKS": str(links)} if links else {})


def use(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Make these the variables of this process."""
    for name in set(os.environ) - set(variables):
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def left_over(home: Path) -> list[str]:
    """What a failed command left in the store, lock files (which stay, empty) apart."""
    root = home / "libraries"
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.name != ".work" and not p.is_relative_to(root / ".locks"))


def on_small_disk(home: Path, kilobytes: int, command: list[str], variables: dict[str, str],
                  mount: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command where `home` is a disk of that size (or what `mount` makes of it), in a mount namespace of its own. Files that are on
    it afterwards are told on stderr, as "LEFT path"."""
    home.mkdir(exist_ok=True)
    how = mount or f"mount -t tmpfs -o size={kilobytes}k none {home}"
    script = f'{how} || exit 99; "$@"; code=$?; find {home} -type f -size +0 -printf "LEFT %p\\n" >&2; exit $code'
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "sh", "-c", how], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespace here (unshare -rm), so no full or read-only disk to try")
    return subprocess.run([unshare, "-rm", "sh", "-c", script, "sh", *command], env=variables, capture_output=True, text=True, timeout=60,
                          check=False)
