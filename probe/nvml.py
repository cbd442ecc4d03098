"""NVML, the driver's management library, by ctypes: what it says of the driver and of every GPU of the machine. Needs no CUDA context.

Part of the device's door that needs no cupy. NVML counts all GPUs that the container shows, CUDA those of CUDA_VISIBLE_DEVICES and in an
order of its own: the PCI address tells which is which. Where NVML refuses one question ("not supported" for MIG, "no permission"), that
field is "" and the others stand. Source of names and numbers: the NVML API reference.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar

from probe.values import Record, check_int, check_text

SONAME = "libnvidia-ml.so.1"
_SUCCESS = 0
_TEXT = 96  # bytes: NVML_DEVICE_UUID_V2_BUFFER_SIZE and NVML_DEVICE_NAME_V2_BUFFER_SIZE; a driver version takes 80
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}  # nvmlComputeMode_t
_SWITCH = {0: "disabled", 1: "enabled"}  # nvmlEnableState_t, and the MIG modes


@dataclass(frozen=True)
class NvmlGpu(Record):
    """One GPU. pci: domain, bus and device number. memory in bytes. mig, persistence: enabled, disabled, or "" where NVML does not tell;
    compute_mode: default, exclusive thread, prohibited, exclusive process, or ""."""

    KIND: ClassVar[str] = "nvml-gpu"
    FORM: ClassVar[int] = 1

    pci: tuple[int, int, int]
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    mig: str
    compute_mode: str
    persistence: str

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_int("total_bytes", self.total_bytes, 0, 2**64 - 1)
        check_int("free_bytes", self.free_bytes, 0, 2**64 - 1)


@dataclass(frozen=True)
class Nvml(Record):
    """driver: its own version, "580.95.05", or "". gpus: all that NVML counts. problem: "" or one line that says why there is nothing."""

    KIND: ClassVar[str] = "nvml"
    FORM: ClassVar[int] = 1

    driver: str
    gpus: tuple[NvmlGpu, ...]
    problem: str


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_: ClassVar[list[Any]] = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t, as nvmlDeviceGetPciInfo_v3 fills it."""

    _fields_: ClassVar[list[Any]] = [
        ("busIdLegacy", c_char * 16), ("domain", c_uint), ("bus", c_uint), ("device", c_uint), ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint), ("busId", c_char * 32)]


def driver_version() -> str:
    """The driver's own version ("580.95.05"), or "" where NVML is not there or refuses."""
    return read_nvml(devices=False).driver


def read_nvml(devices: bool = True) -> Nvml:
    """What NVML tells; never raises for what it does not. devices: whether to look at the GPUs too."""
    try:
        nvml = ctypes.CDLL(SONAME)
    except OSError as error:
        return Nvml("", (), f"{SONAME} cannot be loaded: {error}")
    code = nvml.nvmlInit_v2()
    if code != _SUCCESS:
        return Nvml("", (), f"NVML does not start: {_words(nvml, code)}")
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion)
        if not devices:
            return Nvml(driver, (), "")
        count = c_uint()
        code = nvml.nvmlDeviceGetCount_v2(byref(count))
        if code != _SUCCESS:
            return Nvml(driver, (), f"NVML does not count the GPUs: {_words(nvml, code)}")
        gpus, problem = [], ""
        for index in range(count.value):
            handle = c_void_p()
            code = nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(handle))
            if code == _SUCCESS:
                gpus.append(_gpu(nvml, handle))
            else:  # a GPU that fell off the bus, or one that this user may not see
                problem = f"NVML does not open GPU {index} of {count.value}: {_words(nvml, code)}"
        return Nvml(driver, tuple(gpus), problem)
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: ctypes.CDLL, handle: c_void_p) -> NvmlGpu:
    memory, pci = _Memory(), _Pci()
    known = nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory)) == _SUCCESS
    found = nvml.nvmlDeviceGetPciInfo_v3(handle, byref(pci)) == _SUCCESS
    mig, pending = c_uint(), c_uint()
    has_mig = nvml.nvmlDeviceGetMigMode(handle, byref(mig), byref(pending)) == _SUCCESS
    return NvmlGpu(
        pci=(pci.domain, pci.bus, pci.device) if found else (-1, -1, -1),
        name=_text(nvml.nvmlDeviceGetName, handle) or "a GPU without a name",
        uuid=_text(nvml.nvmlDeviceGetUUID, handle),
        total_bytes=memory.total if known else 0,
        free_bytes=memory.free if known else 0,
        mig=_SWITCH.get(mig.value, f"unknown({mig.value})") if has_mig else "",
        compute_mode=_number(nvml.nvmlDeviceGetComputeMode, handle, _COMPUTE_MODES),
        persistence=_number(nvml.nvmlDeviceGetPersistenceMode, handle, _SWITCH),
    )


def _text(function: Any, *before: Any) -> str:
    """The text that a call writes to a buffer, or "" where it refuses."""
    buffer = ctypes.create_string_buffer(_TEXT)
    return buffer.value.decode("utf-8", "replace") if function(*before, buffer, c_uint(_TEXT)) == _SUCCESS else ""


def _number(function: Any, handle: c_void_p, names: dict[int, str]) -> str:
    """The name of the number that a call gives, or "" where it refuses."""
    value = c_int()
    return names.get(value.value, f"unknown({value.value})") if function(handle, byref(value)) == _SUCCESS else ""


def _words(nvml: ctypes.CDLL, code: int) -> str:
    """NVML's own words for a status."""
    nvml.nvmlErrorString.restype = c_char_p
    said = nvml.nvmlErrorString(c_int(code))
    return f"{said.decode('utf-8', 'replace') if said else 'no words'} ({code})"
