"""The GPU: its identity, and device memory that is allocated, filled, written and read as bytes.

cupy is imported when a device is opened, not before. Operands are bytes here: what they mean is the
business of `probe.inputs` and `probe.compare`.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from probe.errors import EnvironmentProblem, UsageError
from probe.nvml import driver_version
from probe.target import LibraryKind, Target
from probe.values import Record, check_int, check_text

if TYPE_CHECKING:
    from probe.cublaslt.library import Library

_INSTALL = "pip install cupy-cuda13x (or cupy-cuda12x, as the driver supports)"
ALIGNMENT = 256  # of every allocation, in bytes; cupy's allocator gives 512


@dataclass(frozen=True)
class DeviceIdentity(Record):
    """What a device is. driver: "580.95.05 (CUDA 13.0)", or "CUDA 13.0" where NVML cannot be asked."""

    KIND: ClassVar[str] = "device"
    FORM: ClassVar[int] = 1

    index: int
    name: str
    sm: str
    sm_count: int
    driver: str
    total_bytes: int

    def __post_init__(self) -> None:
        check_int("index", self.index, 0, 1023)
        check_text("name", self.name)
        check_text("sm", self.sm)
        check_int("sm_count", self.sm_count, 1, 2**16)
        check_text("driver", self.driver)
        check_int("total_bytes", self.total_bytes, 1, 2**63 - 1)

    def target(self, library: Library) -> Target:
        """The target that this device and a cuBLASLt make. Hashes the library file, once per process."""
        return Target(
            sm=self.sm,
            sm_count=self.sm_count,
            device_name=self.name,
            driver=self.driver,
            library=LibraryKind.CUBLASLT,
            version=library.version,
            sha256=library.sha256,
        )


class Buffer:
    """Device memory of `nbytes` bytes that begins at a 256-byte boundary. Freed with the object."""

    def __init__(self, device: Device, nbytes: int, memory: Any) -> None:
        self._device = device
        self._memory = memory  # cupy.cuda.MemoryPointer
        self.nbytes = nbytes

    @property
    def ptr(self) -> int:
        """Address of the first byte."""
        return int(self._memory.ptr)

    def fill(self, byte: int, offset: int = 0, nbytes: int | None = None) -> None:
        """Set every byte (0 to 255), or `nbytes` of them from `offset`, on the null stream."""
        check_int("byte", byte, 0, 255)
        count = self.nbytes - offset if nbytes is None else nbytes
        self._check_range(offset, count)
        if count:
            (self._memory + offset).memset(byte, count)

    def write(self, array: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy a host array's bytes to the device; returns when they are there."""
        data = np.ascontiguousarray(array)
        self._check_range(offset, data.nbytes)
        if data.nbytes:
            (self._memory + offset).copy_from_host(ctypes.c_void_p(data.ctypes.data), data.nbytes)

    def read(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> npt.NDArray[Any]:
        """A new host array of that dtype and shape from the bytes at `offset`, after all work so far."""
        out = np.empty(shape, dtype)
        self._check_range(offset, out.nbytes)
        self._device.synchronize()
        if out.nbytes:
            (self._memory + offset).copy_to_host(ctypes.c_void_p(out.ctypes.data), out.nbytes)
        return out

    def view(self, dtype: npt.DTypeLike, shape: tuple[int, ...], offset: int = 0) -> Any:
        """A cupy.ndarray on the same memory, row-major; it keeps the memory alive."""
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self._check_range(offset, count)
        return self._device.cupy.ndarray(shape, dtype, memptr=self._memory + offset)

    def _check_range(self, offset: int, count: int) -> None:
        if offset < 0 or count < 0 or offset + count > self.nbytes:
            raise UsageError(
                f"bytes {offset} to {offset + count} are outside a buffer of {self.nbytes} bytes"
            )


class Device:
    """One open GPU; it is the current CUDA device of this thread. Make it with `Device.open`."""

    def __init__(self, cupy: Any, identity: DeviceIdentity) -> None:
        self.cupy = cupy
        self.identity = identity

    @classmethod
    def open(cls, index: int = 0) -> Device:
        """Open device `index` and make it current.

        Raises EnvironmentProblem where cupy, the driver or a GPU is missing, UsageError where there are
        GPUs and not that many.
        """
        check_int("device", index, 0, 1023)
        try:
            cupy = importlib.import_module("cupy")
        except ImportError as error:
            raise EnvironmentProblem(f"cupy cannot be imported: {error}", _INSTALL) from None
        runtime = cupy.cuda.runtime
        try:
            count = int(runtime.getDeviceCount())
        except runtime.CUDARuntimeError as error:
            raise EnvironmentProblem(f"no GPU can be used: {error}", "check nvidia-smi") from None
        if count == 0:
            raise EnvironmentProblem("there is no GPU on this machine", "check nvidia-smi")
        if index >= count:
            raise UsageError(f"there is no device {index}", f"0 to {count - 1}")
        cupy.cuda.Device(index).use()
        runtime.free(0)  # creates the primary context, so that driver calls find one
        return cls(cupy, _identify(cupy, index))

    @property
    def free_bytes(self) -> int:
        """Device memory that is free now, in bytes. Memory that cupy's pool holds unused counts as free."""
        free, _ = self.cupy.cuda.runtime.memGetInfo()
        return int(free) + int(self.cupy.get_default_memory_pool().free_bytes())

    def check_fits(self, nbytes: int, what: str) -> None:
        """Raise UsageError for more than the device has, EnvironmentProblem for more than is free."""
        total, free = self.identity.total_bytes, self.free_bytes
        if nbytes > total:
            raise UsageError(
                f"{what} needs {_size(nbytes)} and {self.identity.name} has {_size(total)}", "a smaller shape"
            )
        if nbytes > free:
            raise EnvironmentProblem(
                f"{what} needs {_size(nbytes)} and {_size(free)} of {_size(total)} are free",
                "end what else uses this GPU, or take a smaller shape",
            )

    def allocate(self, nbytes: int, what: str = "a buffer") -> Buffer:
        """Device memory, 256-byte aligned, contents arbitrary. `what` names it in errors."""
        check_int("nbytes", nbytes, 0, 2**63 - 1)
        self.check_fits(nbytes, what)
        try:
            memory = self.cupy.cuda.alloc(max(nbytes, 1))
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise EnvironmentProblem(f"{what} of {_size(nbytes)} could not be allocated: {error}") from None
        if memory.ptr % ALIGNMENT:
            raise EnvironmentProblem(f"the allocator gave an address that is not {ALIGNMENT}-byte aligned")
        return Buffer(self, nbytes, memory)

    def upload(self, array: npt.NDArray[Any], offset: int = 0, what: str = "an operand") -> Buffer:
        """A buffer that holds a host array's bytes from byte `offset` on."""
        buffer = self.allocate(offset + array.nbytes, what)
        buffer.write(array, offset)
        return buffer

    def synchronize(self) -> None:
        """Wait for all work on the device. Raises EnvironmentProblem where a kernel failed."""
        try:
            self.cupy.cuda.runtime.deviceSynchronize()
        except self.cupy.cuda.runtime.CUDARuntimeError as error:
            raise EnvironmentProblem(
                f"the GPU reported a failed kernel: {error}",
                "this process can no longer use the GPU: run it in a child process",
            ) from None


def _identify(cupy: Any, index: int) -> DeviceIdentity:
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    name = properties["name"]
    cuda = int(cupy.cuda.runtime.driverGetVersion())
    driver = f"CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    version = driver_version()
    return DeviceIdentity(
        index=index,
        name=name.decode() if isinstance(name, bytes) else str(name),
        sm=f"sm_{properties['major']}{properties['minor']}",
        sm_count=int(properties["multiProcessorCount"]),
        driver=f"{version} ({driver})" if version else driver,
        total_bytes=int(properties["totalGlobalMem"]),
    )


def _size(nbytes: int) -> str:
    """Bytes in words: "1.5 GiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
