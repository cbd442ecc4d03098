"""The CUDA driver, libcuda, by ctypes: which CUDA it supports and which devices it shows. Makes no context and needs no cupy.

Numbers of attributes: CUdevice_attribute of the CUDA driver API reference.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t
from dataclasses import dataclass
from typing import ClassVar

from probe.values import Record, check_int, check_text

SONAME = "libcuda.so.1"
_SUCCESS = 0
_MULTIPROCESSORS, _BUS, _DEVICE, _DOMAIN, _MAJOR, _MINOR = 16, 33, 34, 50, 75, 76


@dataclass(frozen=True)
class CudaDevice(Record):
    """A device as CUDA counts it. sm: "sm_90". pci: domain, bus and device number."""

    KIND: ClassVar[str] = "cuda-device"
    FORM: ClassVar[int] = 1

    index: int
    name: str
    sm: str
    sm_count: int
    total_bytes: int
    pci: tuple[int, int, int]

    def __post_init__(self) -> None:
        check_int("index", self.index, 0, 1023)
        check_text("name", self.name)
        check_text("sm", self.sm)


@dataclass(frozen=True)
class CudaDriver(Record):
    """cuda: the CUDA version that the driver supports, "13.0", or "". problem: "" or one line that says why there is no device."""

    KIND: ClassVar[str] = "cuda-driver"
    FORM: ClassVar[int] = 1

    cuda: str
    devices: tuple[CudaDevice, ...]
    problem: str


def read_driver() -> CudaDriver:
    """What libcuda tells; never raises for what it does not. Starts the driver in this process, so ask in a child."""
    try:
        cuda = ctypes.CDLL(SONAME)
    except OSError as error:
        return CudaDriver("", (), f"{SONAME} cannot be loaded: {error}")
    number = c_int()
    version = ""
    if cuda.cuDriverGetVersion(byref(number)) == _SUCCESS and number.value:  # answers without a GPU too
        version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    code = cuda.cuInit(0)
    if code != _SUCCESS:
        return CudaDriver(version, (), f"the CUDA driver does not start: {_words(cuda, code)}")
    code = cuda.cuDeviceGetCount(byref(number))
    if code != _SUCCESS:
        return CudaDriver(version, (), f"the CUDA driver does not count its devices: {_words(cuda, code)}")
    return CudaDriver(version, tuple(_device(cuda, index) for index in range(number.value)),
                      "" if number.value else "the CUDA driver shows no device")


def _device(cuda: ctypes.CDLL, index: int) -> CudaDevice:
    device, name, total = c_int(), ctypes.create_string_buffer(256), c_size_t()
    cuda.cuDeviceGet(byref(device), c_int(index))
    cuda.cuDeviceGetName(name, c_int(256), device)
    cuda.cuDeviceTotalMem_v2(byref(total), device)

    def attribute(which: int) -> int:
        value = c_int()
        return value.value if cuda.cuDeviceGetAttribute(byref(value), c_int(which), device) == _SUCCESS else -1

    said = name.value.decode("utf-8", "replace") or "a device without a name"
    return CudaDevice(index, said, f"sm_{attribute(_MAJOR)}{attribute(_MINOR)}", attribute(_MULTIPROCESSORS), total.value,
                      (attribute(_DOMAIN), attribute(_BUS), attribute(_DEVICE)))


def _words(cuda: ctypes.CDLL, code: int) -> str:
    """The driver's own name for a status."""
    text = c_char_p()
    known = cuda.cuGetErrorName(c_int(code), byref(text)) == _SUCCESS
    return f"{text.value.decode() if known and text.value else 'unknown'} ({code})"
