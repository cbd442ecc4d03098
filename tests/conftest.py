"""What holds for every test: where the folder `tools` is found, and when a test marked `gpu` is skipped."""

from __future__ import annotations

import ctypes
import signal
import sys
from functools import cache
from pathlib import Path

import pytest

# For `tools`, which no wheel holds. Last, so that an installed probe comes before the one in this tree.
sys.path.append(str(Path(__file__).resolve().parents[1]))

# Started in the background by a shell without job control, this process ignores Ctrl-C, and so would every child that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What a process that Ctrl-C ended leaves, which a shell shows as 130 either way: where the interrupt strikes while an import runs an exec()
# of source text (dataclasses do), CPython ends itself by the signal, whatever status was asked for.
INTERRUPTED = (130, -signal.SIGINT)

_SUCCESS = 0


@cache
def _no_device() -> str:
    """Why no CUDA device can be used here; "" where there is one.

    Asks the driver itself and not CuPy: on a machine with a GPU and without CuPy the tests must fail and say so,
    a skip would pass for a green run.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver (libcuda.so.1) on this machine"
    status = driver.cuInit(0)
    if status != _SUCCESS:
        return f"the CUDA driver does not start (cuInit returned {status})"
    count = ctypes.c_int(0)
    status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != _SUCCESS or count.value == 0:
        return f"the CUDA driver shows no device (cuDeviceGetCount returned {status}, count {count.value})"
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `gpu` where there is no device, before any fixture is made."""
    if item.get_closest_marker("gpu") is not None and (reason := _no_device()):
        pytest.skip(reason)
