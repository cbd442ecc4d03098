"""A child process that holds one library: start it, ask it, limit its time, end it. One library a process, so a command over
several libraries has several children.

What goes wrong in a child costs one request. It dies, hangs or speaks nonsense: the request is declined and the child, with its
process group, is gone; the next request starts another. Where none can be started, that is an EnvironmentProblem.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

import probe
from probe.errors import Declined, DeclineReason, EnvironmentProblem, UsageError
from probe.wire import Identity, Request, error_from_document, identifying

T = TypeVar("T")

START_SECONDS = 300.0  # to import, load and hash a library: 5 s warm, minutes from a slow disk
_GRACE_SECONDS = 1.0  # at least, for a reply that lies ready when its time is over because the parent was busy elsewhere
_EXIT_SECONDS = 5.0  # for an idle child to leave by itself
_KILL_SECONDS = 60.0  # for the kernel to take down a killed child, with what it holds of a GPU
_LINE_BYTES = 2**30  # a reply that is longer is nonsense
_TAIL_BYTES = 2**14


class Child:
    """One child, as a context manager. Not for several threads at once.

    library and gpu: as `probe walk` takes them. command: another program that speaks the protocol of probe.wire. name: what the child is
    called in messages.
    """

    def __init__(self, library: str | None = None, gpu: int = 0, *, name: str = "", command: Sequence[str] | None = None) -> None:
        self.name = name or library or "the installed library"
        self._command = list(command) if command is not None else _command(library, gpu)
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._kept = ""  # the end of what a child that is gone wrote to stderr
        self._identity: Identity | None = None
        self._known = False  # whether the running child has said who it is
        self._number = 0
        self._pending: tuple[Request[Any], float] | None = None
        self._buffer = bytearray()

    def __enter__(self) -> Child:
        """Starts the process and does not wait for it, so that several open their libraries side by side."""
        self._spawn()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the running child, which leads its own process group; None where none runs."""
        return None if self._process is None else self._process.pid

    @property
    def last_words(self) -> str:
        """The end of what the child wrote to stderr, the fault handler's report included."""
        if self._stderr is None:
            return self._kept
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _TAIL_BYTES))
        return self._stderr.read().decode(errors="replace")

    def identify(self) -> Identity:
        """Who the child is; starts it where none runs. Raises what opening the library raised, and EnvironmentProblem where the child
        dies, hangs, or is another library than the first time."""
        if self._process is None:
            self._spawn()
        if not self._known:
            got = self._exchange(identifying(), START_SECONDS)
            if isinstance(got, Declined):
                raise EnvironmentProblem(f"{self.name} cannot be used: {got.text}", got.hint or "probe doctor looks at what is there")
            if self._identity is not None and got.target != self._identity.target:
                self._end()
                raise EnvironmentProblem(f"{self.name} is another library than before", "do not change a library while it is in use")
            self._identity, self._known = got, True
        assert self._identity is not None
        return self._identity

    def call(self, request: Request[T], timeout_s: float, step: Callable[[str], None] | None = None) -> T | Declined:
        """The reply to one request, within `timeout_s` seconds. step: called with the name of each step of the work.

        Declined where the child died or spoke nonsense (cannot_run) or ran out of time (timed_out). What the child raised is raised
        here, as the same class, a bug as ChildBug. Raises EnvironmentProblem where no child can be started.
        """
        self.begin(request, timeout_s)
        return self.finish(request, step)

    def begin(self, request: Request[Any], timeout_s: float) -> None:
        """Send a request without waiting, so that two children work side by side; its time runs from now. `finish` fetches the reply."""
        if self._pending is not None:
            raise RuntimeError(f"{self.name} still has a request to finish")
        self.identify()
        self._send(request, timeout_s)

    def finish(self, request: Request[T], step: Callable[[str], None] | None = None) -> T | Declined:
        """The reply to the request that `begin` sent; as `call`."""
        if self._pending is None or self._pending[0] is not request:
            raise RuntimeError(f"{self.name} was not asked this")
        return self._receive(request, step)

    def close(self) -> None:
        """End the child and its process group, and wait for it. An idle one leaves by itself, one at work is killed. Safe to repeat."""
        if self._process is not None and self._pending is None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
            self._await_exit(_EXIT_SECONDS)
        self._end()

    # The process

    def _spawn(self) -> None:
        if self._process is not None:
            return
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the child: `_end` closes it
        self._buffer.clear()
        self._known = False
        try:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                                             env=_environment(), start_new_session=True, bufsize=0)
            os.set_blocking(self._process.stdin.fileno(), False)  # type: ignore[union-attr]  # a pipe was asked for
        except OSError as error:
            self._end()
            raise EnvironmentProblem(f"no child process can be started: {error.strerror}", "fewer processes, or more memory") from None

    def _await_exit(self, seconds: float) -> bool:
        """Whether the child ended by itself within the time. It stays a zombie, so that its group still has its number."""
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while True:
            if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)

    def _end(self) -> int:
        """Kill the group, wait for the child, close the pipes. Returns its exit status, negative for a signal."""
        process, self._process, self._pending = self._process, None, None
        status = 0
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):  # Darwin says so of a group of zombies
                os.killpg(process.pid, signal.SIGKILL)
            try:
                status = process.wait(_KILL_SECONDS)
            except subprocess.TimeoutExpired:
                raise EnvironmentProblem(f"the child process {process.pid} of {self.name} was killed and does not end",
                                         "the driver holds it: look at the GPU with nvidia-smi") from None
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        if self._stderr is not None:
            self._kept = self.last_words
            self._stderr.close()
            self._stderr = None
        return status

    def _lost(self, what: str, reason: DeclineReason, hint: str = "") -> Declined:
        self._end()
        return Declined(reason, f"the child process {what}", hint)

    def _died(self, op: str) -> Declined:
        """The pipe has ended. What ended the child: its own status, if it has one before it is killed."""
        by_itself = self._await_exit(1.0)
        status = self._end()
        if not by_itself:
            how = "closed its pipe"
        elif status < 0:
            how = f"died of {_signal_name(-status)}"
        else:
            how = f"ended with status {status}"
        return Declined(DeclineReason.CANNOT_RUN, f"the child process {how} during {op}")

    # The conversation

    def _exchange(self, request: Request[T], timeout_s: float) -> T | Declined:
        self._send(request, timeout_s)
        return self._receive(request, None)

    def _send(self, request: Request[Any], timeout_s: float) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._number += 1
        deadline = time.monotonic() + timeout_s
        self._pending = (request, deadline)
        line = json.dumps({"id": self._number, "op": request.op, **request.arguments}, separators=(",", ":")).encode() + b"\n"
        left, descriptor = memoryview(line), self._process.stdin.fileno()
        with suppress(BrokenPipeError):  # it is dead; `_receive` finds that out, as it does a child that never reads
            while left and (room := deadline - time.monotonic()) > 0:
                if select.select([], [descriptor], [], room)[1]:
                    left = left[os.write(descriptor, left):]

    def _receive(self, request: Request[T], step: Callable[[str], None] | None) -> T | Declined:
        assert self._pending is not None
        deadline = max(self._pending[1], time.monotonic() + _GRACE_SECONDS)
        while True:
            line = self._line(deadline)
            if line is None:
                return self._lost(f"did not finish {request.op} within its time limit", DeclineReason.TIMED_OUT, "a longer time limit")
            if not line:
                return self._died(request.op)
            try:
                document = json.loads(line)
                if document["id"] != self._number or not {"step", "ok", "error"} & set(document):
                    raise ValueError("not a reply to this request")
                if "step" in document:
                    if step is not None:
                        step(str(document["step"]))
                    continue
                failure = error_from_document(document["error"]) if "error" in document else None
                if failure is None:
                    got = request.read(document["ok"])
            except (ValueError, KeyError, TypeError, AttributeError):  # UsageError is a ValueError: a value that is none
                return self._lost(f"spoke nonsense during {request.op}: {_excerpt(line)}", DeclineReason.CANNOT_RUN)
            self._pending = None
            if failure is not None:
                if not isinstance(failure, UsageError):
                    self._end()  # not asked again: after a failure of the device its GPU context may be broken
                raise failure
            if isinstance(got, Declined) and got.reason is DeclineReason.CANNOT_RUN:
                self._end()  # the call that failed may have left a GPU context in which nothing works any more
            return got

    def _line(self, deadline: float) -> bytes | None:
        """The next line without its end; empty at the end of the pipe, None at the deadline."""
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        start = 0
        while True:
            end = self._buffer.find(b"\n", start)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[:end + 1]
                return line or b"(an empty line)"
            start = len(self._buffer)
            room = deadline - time.monotonic()
            if room <= 0:
                return None
            if start > _LINE_BYTES:
                return b"(a line without end)"
            ready, _, _ = select.select([descriptor], [], [], room)
            if ready:
                piece = os.read(descriptor, 2**20)
                if not piece:
                    return b""
                self._buffer += piece


def _command(library: str | None, gpu: int) -> list[str]:
    """-P: the child takes probe from where this process has it, never from a folder `probe` that happens to be where the user stands."""
    named = [] if library is None else ["--library", library]
    return [sys.executable, "-P", "-m", "probe.worker", *named, "--gpu", str(gpu), "--parent", str(os.getpid())]


def _environment() -> dict[str, str]:
    """This environment; from a tree that is not installed, with its root for the child to import from."""
    root = Path(probe.__file__).resolve().parents[1]
    if str(root) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _excerpt(line: bytes) -> str:
    text = line[:60].decode(errors="replace")
    return repr(text) + ("..." if len(line) > 60 else "")
