"""What one call launches, read from a CUDA graph: nothing is executed.

The call is made on a stream that is being captured, so its kernels become nodes of a graph, which is read and
thrown away. The capture mode is relaxed, because a library may load a kernel's code at its first use and the
other modes forbid that. Loading then happens inside the capture: 2 to 3 ms for a kernel's first time (18 ms
for the first of the process), 0.1 ms for a capture after that, 0.04 ms in a loop (H200, driver 580,
cuBLASLt 13.1.0).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from probe.errors import EnvironmentProblem, UsageError
from probe.values import Record, check_enum, check_int, check_text

_LIMIT = 2**31 - 1


def _check_dimensions(name: str, value: object) -> None:
    if not isinstance(value, tuple) or len(value) != 3:
        raise UsageError(f"{name} must be three numbers, got {value!r}")
    for size in value:
        check_int(name, size, 1, _LIMIT)


@dataclass(frozen=True)
class Kernel(Record):
    """One kernel launch. name: mangled, as the driver gives it. grid: blocks; block: threads; cluster:
    blocks, or None where the launch states no cluster. shared_bytes: dynamic shared memory per block."""

    KIND: ClassVar[str] = "kernel"
    FORM: ClassVar[int] = 1

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    shared_bytes: int

    def __post_init__(self) -> None:
        check_text("name", self.name)
        _check_dimensions("grid", self.grid)
        _check_dimensions("block", self.block)
        if self.cluster is not None:
            _check_dimensions("cluster", self.cluster)
        check_int("shared_bytes", self.shared_bytes, 0, _LIMIT)

    def __str__(self) -> str:
        sizes = [("grid", self.grid), ("block", self.block), ("cluster", self.cluster)]
        words = [f"{name} {'x'.join(map(str, size))}" for name, size in sizes if size is not None]
        return f"{self.name} {' '.join(words)} shared {self.shared_bytes}"


@dataclass(frozen=True)
class Memset(Record):
    """One memset. value: the repeated element, `element_bytes` (1, 2, 4) wide; width elements in each of
    `height` rows. The address is not recorded: it says nothing about the order."""

    KIND: ClassVar[str] = "memset"
    FORM: ClassVar[int] = 1

    value: int
    element_bytes: int
    width: int
    height: int

    def __post_init__(self) -> None:
        if self.element_bytes not in (1, 2, 4):
            raise UsageError(f"element_bytes must be 1, 2 or 4, got {self.element_bytes!r}")
        check_int("value", self.value, 0, 2 ** (8 * self.element_bytes) - 1)
        check_int("width", self.width, 1, 2**63 - 1)
        check_int("height", self.height, 1, 2**63 - 1)

    def __str__(self) -> str:
        return f"memset {self.width}x{self.height} elements of {self.element_bytes} B to {self.value}"


class MemoryKind(StrEnum):
    """Where a memcpy reads or writes (CUmemorytype)."""

    HOST = "host"
    DEVICE = "device"
    ARRAY = "array"
    UNIFIED = "unified"


@dataclass(frozen=True)
class Memcpy(Record):
    """One memcpy: from and to which memory; `width_bytes` in each of `height` rows and `depth` planes."""

    KIND: ClassVar[str] = "memcpy"
    FORM: ClassVar[int] = 1

    source: MemoryKind
    destination: MemoryKind
    width_bytes: int
    height: int
    depth: int

    def __post_init__(self) -> None:
        check_enum("source", self.source, MemoryKind)
        check_enum("destination", self.destination, MemoryKind)
        for name in ("width_bytes", "height", "depth"):
            check_int(name, getattr(self, name), 1, 2**63 - 1)

    def __str__(self) -> str:
        return f"memcpy {self.source} to {self.destination} {self.width_bytes}x{self.height}x{self.depth} B"


Node = Kernel | Memset | Memcpy


@dataclass(frozen=True)
class Capture(Record):
    """The nodes of one call in an order in which they may run: every node after those it depends on."""

    KIND: ClassVar[str] = "capture"
    FORM: ClassVar[int] = 1

    nodes: tuple[Kernel | Memset | Memcpy, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, tuple) or not all(
            isinstance(n, (Kernel, Memset, Memcpy)) for n in self.nodes
        ):
            raise UsageError(f"nodes must be a tuple of kernels, memsets and memcpys, got {self.nodes!r}")

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels alone, in order."""
        return tuple(n for n in self.nodes if isinstance(n, Kernel))

    def __str__(self) -> str:
        return "; ".join(map(str, self.nodes)) or "nothing"


def dependency_order(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Nodes 0 to count - 1 so that every edge (before, after) holds; ties by number. UsageError on a
    cycle."""
    waiting = [0] * count
    for _, after in edges:
        waiting[after] += 1
    order: list[int] = []
    ready = [n for n in range(count) if waiting[n] == 0]
    while ready:
        node = min(ready)
        ready.remove(node)
        order.append(node)
        for before, after in edges:
            if before == node:
                waiting[after] -= 1
                if waiting[after] == 0:
                    ready.append(after)
    if len(order) != count:
        raise UsageError("the edges form a cycle")
    return order


def capture(launch: Callable[[int], None]) -> Capture:
    """What `launch(stream)` launches, without running it.

    launch: enqueues its work on the stream whose address (CUstream) it is given, and on no other. A CUDA
    context must be current (`Device.open`). It need not have run before. An exception from `launch` passes
    through, with the capture ended. Raises EnvironmentProblem where cuda-python or a context is missing, or
    a driver call fails.
    """
    driver = _driver()
    if int(_call(driver, "cuCtxGetCurrent")) == 0:
        raise EnvironmentProblem("no CUDA context is current", "open the device first")
    stream = _call(driver, "cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    graph = None
    try:
        _call(
            driver, "cuStreamBeginCapture", stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        )
        try:
            launch(int(stream))
        except BaseException:
            # The first failure is the one to report; ending a broken capture may fail again.
            _, graph = driver.cuStreamEndCapture(stream)
            raise
        graph = _call(driver, "cuStreamEndCapture", stream)
        return Capture(_read_graph(driver, graph))
    finally:
        if graph is not None and int(graph):
            driver.cuGraphDestroy(graph)
        driver.cuStreamDestroy(stream)


def _driver() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise EnvironmentProblem(
            f"cuda-python cannot be imported: {error}", "pip install cuda-bindings"
        ) from None


def _call(driver: Any, name: str, *arguments: Any) -> Any:
    """The results of a driver call without its status: none, one, or a tuple. EnvironmentProblem if it
    fails."""
    try:
        code, *results = getattr(driver, name)(*arguments)
    except RuntimeError as error:  # cuda-python raises this where libcuda is missing
        raise EnvironmentProblem(f"{name} cannot be called: {error}", "install the NVIDIA driver") from None
    if int(code) != 0:
        raise EnvironmentProblem(f"{name} failed with {getattr(code, 'name', code)} ({int(code)})")
    return results[0] if len(results) == 1 else tuple(results)


def _read_graph(driver: Any, graph: Any) -> tuple[Node, ...]:
    """The nodes of a graph in dependency order."""
    _, count = _call(driver, "cuGraphGetNodes", graph, 0)
    if count == 0:
        return ()
    nodes = list(_call(driver, "cuGraphGetNodes", graph, count)[0])[:count]
    number = {int(node): i for i, node in enumerate(nodes)}
    edge_count = _call(driver, "cuGraphGetEdges", graph, 0)[-1]
    edges: list[tuple[int, int]] = []
    if edge_count:
        # from, to, then (since CUDA 13) edge data, then the count
        sources, sinks, *_ = _call(driver, "cuGraphGetEdges", graph, edge_count)
        edges = [(number[int(s)], number[int(t)]) for s, t in zip(sources, sinks, strict=True)]
    return tuple(_read_node(driver, nodes[i]) for i in dependency_order(len(nodes), edges))


def _read_node(driver: Any, node: Any) -> Node:
    kinds = driver.CUgraphNodeType
    kind = _call(driver, "cuGraphNodeGetType", node)
    if kind == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
        return _read_kernel(driver, node)
    if kind == kinds.CU_GRAPH_NODE_TYPE_MEMSET:
        p = _call(driver, "cuGraphMemsetNodeGetParams", node)
        return Memset(int(p.value), int(p.elementSize), int(p.width), int(p.height))
    if kind == kinds.CU_GRAPH_NODE_TYPE_MEMCPY:
        p = _call(driver, "cuGraphMemcpyNodeGetParams", node)
        source, destination = _memory_kind(driver, p.srcMemoryType), _memory_kind(driver, p.dstMemoryType)
        return Memcpy(source, destination, int(p.WidthInBytes), int(p.Height), int(p.Depth))
    raise EnvironmentProblem(f"the call launches a node that probe cannot read: {getattr(kind, 'name', kind)}")


def _read_kernel(driver: Any, node: Any) -> Kernel:
    """A kernel node. It holds a CUfunction, or a CUkernel where the library loaded its code that way."""
    p = _call(driver, "cuGraphKernelNodeGetParams", node)
    if int(p.func):
        name = _call(driver, "cuFuncGetName", p.func)
    elif int(p.kern):
        name = _call(driver, "cuKernelGetName", p.kern)
    else:
        raise EnvironmentProblem("a kernel node holds neither a CUfunction nor a CUkernel")
    attribute = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster = _call(driver, "cuGraphKernelNodeGetAttribute", node, attribute).clusterDim
    # A launch without a cluster reads back as 0 x 0 x 0.
    size = (int(cluster.x), int(cluster.y), int(cluster.z))
    return Kernel(
        name=name.decode() if isinstance(name, bytes) else str(name),
        grid=(int(p.gridDimX), int(p.gridDimY), int(p.gridDimZ)),
        block=(int(p.blockDimX), int(p.blockDimY), int(p.blockDimZ)),
        cluster=size if any(size) else None,
        shared_bytes=int(p.sharedMemBytes),
    )


def _memory_kind(driver: Any, value: Any) -> MemoryKind:
    names = driver.CUmemorytype
    table = {
        int(names.CU_MEMORYTYPE_HOST): MemoryKind.HOST,
        int(names.CU_MEMORYTYPE_DEVICE): MemoryKind.DEVICE,
        int(names.CU_MEMORYTYPE_ARRAY): MemoryKind.ARRAY,
        int(names.CU_MEMORYTYPE_UNIFIED): MemoryKind.UNIFIED,
    }
    if int(value) not in table:
        raise EnvironmentProblem(f"a memcpy names a memory kind that probe cannot read: {value}")
    return table[int(value)]
