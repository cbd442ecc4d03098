"""Captures: their records, their order, and on a GPU what one cuBLASLt call launches."""

import random
from dataclasses import replace

import numpy as np
import pytest

from probe.answer import Answer
from probe.capture import Capture, Kernel, Memcpy, MemoryKind, Memset, capture, dependency_order
from probe.cublaslt import Extras, Library, PreparedMatmul, alter, ask, ask_many, check_answer, find_library
from probe.device import Device
from probe.errors import Declined, DeclineReason, EnvironmentProblem, UsageError
from probe.names import ComputeType, DType, Epilogue, Layout, PointerMode
from probe.preference import Preference
from probe.problem import Problem

KERNEL = Kernel("nvjet_sm90_hss_64x8", (3, 1, 1), (384, 1, 1), (2, 1, 1), 180676)
NODES = (
    Memset(0, 4, 16, 1),
    KERNEL,
    replace(KERNEL, cluster=None),
    Memcpy(MemoryKind.DEVICE, MemoryKind.HOST, 64, 1, 1),
)


def test_a_capture_survives_json_with_its_order() -> None:
    made = Capture(NODES)
    assert Capture.from_json(made.to_json()) == made
    assert Capture.from_json(Capture(NODES[::-1]).to_json()).nodes == NODES[::-1]
    assert made.kernels == NODES[1:3]
    with pytest.raises(UsageError, match="kind"):
        Capture.from_json(made.to_json().replace('"memset"', '"host"'))


@pytest.mark.parametrize(
    "change",
    [{"grid": (0, 1, 1)}, {"block": (1, 1)}, {"cluster": (0, 0, 0)}, {"shared_bytes": -1}, {"name": ""}],
)
def test_a_kernel_is_checked(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        replace(KERNEL, **change)  # type: ignore[arg-type]


def test_a_memset_value_fits_its_element() -> None:
    assert Memset(255, 1, 1, 1).value == 255
    with pytest.raises(UsageError):
        Memset(256, 1, 1, 1)
    with pytest.raises(UsageError):
        Memset(0, 8, 1, 1)


def test_nodes_come_after_what_they_depend_on() -> None:
    rng = random.Random(7)
    for count in (1, 2, 9, 40):
        names = rng.sample(range(count), count)  # a hidden order that edges follow
        edges = [
            (names[i], names[j]) for i in range(count) for j in range(i + 1, count) if rng.random() < 0.2
        ]
        order = dependency_order(count, edges)
        assert sorted(order) == list(range(count))
        assert all(order.index(before) < order.index(after) for before, after in edges)
    with pytest.raises(UsageError):
        dependency_order(2, [(0, 1), (1, 0)])


def _device() -> Device | None:
    try:
        return Device.open(0)
    except EnvironmentProblem:
        return None


def test_without_a_gpu_the_doors_say_what_is_missing() -> None:
    try:
        Device.open(0)
    except EnvironmentProblem as problem:
        assert problem.hint and "\n" not in problem.message
    else:
        pytest.skip("this machine has a GPU")
    with pytest.raises(EnvironmentProblem) as caught:
        capture(lambda stream: None)
    assert caught.value.hint


# From here on a GPU is needed.


@pytest.fixture(scope="module")
def device() -> Device:
    found = _device()
    if found is None:
        pytest.skip("no GPU")
    return found


@pytest.fixture(scope="module")
def library(device: Device) -> Library:
    return Library.open(find_library(None))


PREFERENCE = Preference()


class Bench:
    """One problem on the device: its answer, operands and a prepared call. C is D."""

    def __init__(
        self, device: Device, library: Library, problem: Problem, extras: Extras | None = None
    ) -> None:
        answer = ask(library, problem, PREFERENCE)
        assert not isinstance(answer, Declined), answer
        self.answer, self.device, self.problem = answer, device, problem
        self.prepared = PreparedMatmul(library, problem, answer, PREFERENCE, extras)
        self.a = device.allocate(problem.operand_bytes("a"), "A")
        self.b = device.allocate(problem.operand_bytes("b"), "B")
        self.d = device.allocate(problem.operand_bytes("d"), "D")
        self.workspace = device.allocate(answer.workspace_bytes, "the workspace")
        self.launch = self.prepared.launcher(
            self.a.ptr, self.b.ptr, self.d.ptr, self.d.ptr, self.workspace.ptr
        )


@pytest.mark.gpu
def test_a_capture_runs_nothing_and_needs_no_warm_up(device: Device, library: Library) -> None:
    bench = Bench(device, library, Problem.gemm(64, 64, 576, DType.FP16))
    bench.a.fill(0)
    bench.b.fill(0)
    bench.d.fill(0xAA)
    captured = capture(bench.launch)
    assert captured.kernels
    raw = bench.d.read(np.uint8, (bench.d.nbytes,))
    assert (raw == 0xAA).all()
    bench.launch(0)
    assert (bench.d.read(np.uint8, (bench.d.nbytes,)) == 0).all()
    assert capture(bench.launch) == captured


@pytest.mark.gpu
def test_small_whole_numbers_multiply_exactly(device: Device, library: Library) -> None:
    """Sums below 2048 of whole numbers are exact in fp16 in any order, so numpy is the judge."""
    rng = np.random.default_rng(11)
    for layout_change in ("nn", "tn", "nt", "tt"):
        problem = Problem.gemm(24, 40, 72, DType.FP16, layout=Layout(layout_change))
        bench = Bench(device, library, problem)
        a = rng.integers(-3, 4, (24, 72)).astype(np.float16)
        b = rng.integers(-3, 4, (72, 40)).astype(np.float16)
        bench.a.write(a.T if problem.layout.a_transposed else a)
        bench.b.write(b.T if problem.layout.b_transposed else b)
        bench.d.fill(0xAA)
        bench.launch(0)
        got = bench.d.read(np.float16, (24, 40))
        assert (got == a.astype(np.float64) @ b.astype(np.float64)).all(), layout_change


@pytest.mark.gpu
def test_an_exception_inside_a_capture_passes_and_the_next_capture_works(
    device: Device, library: Library
) -> None:
    bench = Bench(device, library, Problem.gemm(64, 64, 576, DType.FP16))

    def fails(stream: int) -> None:
        bench.launch(stream)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        capture(fails)
    assert capture(bench.launch).kernels
    assert capture(lambda stream: None).nodes == ()


@pytest.mark.gpu
def test_a_misaligned_address_is_refused_before_the_call(device: Device, library: Library) -> None:
    bench = Bench(device, library, Problem.gemm(64, 64, 576, DType.FP16))
    with pytest.raises(UsageError, match="address of B"):
        bench.prepared.launch(bench.a.ptr, bench.b.ptr + 2, 0, bench.d.ptr, bench.workspace.ptr)


@pytest.mark.gpu
def test_an_answer_runs_again_from_its_attributes_alone(device: Device, library: Library) -> None:
    problem = Problem.gemm(64, 64, 4096, DType.FP16)
    bench = Bench(device, library, problem)
    bare = PreparedMatmul(library, problem, replace(bench.answer, blob=None), PREFERENCE)
    launch = bare.launcher(bench.a.ptr, bench.b.ptr, bench.d.ptr, bench.d.ptr, bench.workspace.ptr)
    assert capture(launch) == capture(bench.launch)


@pytest.mark.gpu
def test_what_does_not_fit_is_refused_before_it_is_allocated(device: Device) -> None:
    with pytest.raises(UsageError, match="A needs"):
        device.allocate(device.identity.total_bytes + 1, "A")


@pytest.mark.gpu
def test_bytes_go_to_the_device_and_come_back(device: Device) -> None:
    data = np.random.default_rng(3).integers(0, 256, 1000, dtype=np.uint8)
    buffer = device.upload(data, offset=24)
    assert buffer.ptr % 256 == 0
    assert (buffer.read(np.uint8, (1000,), offset=24) == data).all()
    buffer.fill(0x5C, offset=24, nbytes=10)
    back = buffer.read(np.uint8, (1000,), offset=24)
    assert (back[:10] == 0x5C).all() and (back[10:] == data[10:]).all()
    with pytest.raises(UsageError):
        buffer.read(np.uint8, (1001,), offset=24)


# 64 products of ones are 64; every number below is exact in fp16 and bf16, whatever the order.
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("problem", "values", "result"),
    [
        (Problem.gemm(32, 48, 64, DType.FP16, epilogue=Epilogue.BIAS), {"bias": 0.5}, 64.5),
        (Problem.gemm(32, 48, 64, DType.FP16, epilogue=Epilogue.RELU_BIAS), {"bias": -65.0}, 0.0),
        (
            Problem.gemm(32, 48, 64, DType.E4M3, a_scale=True, b_scale=True),
            {"a_scale": 0.5, "b_scale": 4},
            128,
        ),
        (
            Problem.gemm(32, 48, 64, DType.FP16, pointer_mode=PointerMode.DEVICE, beta=1.0),
            {"alpha": 2.0, "beta": 0.25},
            130.0,
        ),
        (Problem.gemm(32, 48, 64, DType.FP16, alpha=0.5, beta=-1.0), {}, 24.0),
        (Problem.gemm(32, 48, 64, DType.FP16, batch_count=3, b_stride=0), {}, 64.0),
        (Problem.gemm(32, 48, 64, DType.FP16, compute_type=ComputeType.FP16, alpha=0.25), {}, 16.0),
    ],
    ids=lambda value: value.key if isinstance(value, Problem) else "",
)
def test_extras_scalars_and_batches_reach_the_call(
    device: Device, library: Library, problem: Problem, values: dict[str, float], result: float
) -> None:
    """C holds 8 before the call, so beta shows; one wrong pointer gives another number in every element."""
    kinds = {name: np.float16 if name == "bias" else np.float32 for name in values}
    held = {name: device.upload(np.full(48, value, kinds[name])) for name, value in values.items()}
    bench = Bench(device, library, problem, Extras(**{name: buffer.ptr for name, buffer in held.items()}))
    for buffer in (bench.a, bench.b):
        one: np.ndarray = np.array([0x38] if problem.a_dtype is DType.E4M3 else [0x00, 0x3C], np.uint8)
        buffer.write(np.resize(one, buffer.nbytes))
    eight = np.array([0x00, 0x48] if problem.d_dtype is DType.FP16 else [0x00, 0x41], np.uint8)
    bench.d.write(np.resize(eight, bench.d.nbytes))
    bench.launch(0)
    raw = bench.d.read(np.uint16, (bench.d.nbytes // 2,))
    got = (
        raw.view(np.float16)
        if problem.d_dtype is DType.FP16
        else (raw.astype(np.uint32) << 16).view(np.float32)
    )
    assert np.unique(got).tolist() == [result]


@pytest.mark.gpu
def test_memsets_and_copies_are_read_in_order(device: Device) -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    one, two = device.allocate(64), device.allocate(64)

    def launch(stream: int) -> None:
        assert int(driver.cuMemsetD32Async(one.ptr, 7, 16, stream)[0]) == 0
        assert int(driver.cuMemcpyDtoDAsync(two.ptr, one.ptr, 64, stream)[0]) == 0

    first, second = capture(launch).nodes
    assert first == Memset(7, 4, 16, 1)
    assert second == Memcpy(MemoryKind.DEVICE, MemoryKind.DEVICE, 64, 1, 1)


@pytest.mark.gpu
def test_a_split_shows_its_reduction_after_its_parts(device: Device, library: Library) -> None:
    bench = Bench(device, library, Problem.gemm(64, 64, 4096, DType.FP16))
    if bench.answer.splitk_num < 2:
        pytest.skip(f"this device does not split: {bench.answer}")
    kernels = capture(bench.launch).kernels
    assert len(kernels) == 2 and "splitKreduce" in kernels[1].name and "splitKreduce" not in kernels[0].name


@pytest.mark.gpu
def test_the_cost_model_declines_what_the_library_lacks(library: Library) -> None:
    outcome = ask(library, Problem.gemm(64, 64, 576, DType.FP16, output=DType.BF16), PREFERENCE)
    assert isinstance(outcome, Declined) and outcome.reason is DeclineReason.NO_ALGORITHM


@pytest.mark.gpu
def test_the_first_of_several_answers_is_the_answer(library: Library) -> None:
    problem = Problem.gemm(64, 64, 4096, DType.FP16)
    several, one = ask_many(library, problem, PREFERENCE, 8), ask(library, problem, PREFERENCE)
    assert isinstance(several, tuple) and several[0] == one and len(set(several)) == len(several)
    assert isinstance(one, Answer) and check_answer(library, problem, one) == one


@pytest.mark.gpu
def test_the_library_refuses_an_altered_answer_that_it_cannot_run(library: Library) -> None:
    problem = Problem.gemm(64, 64, 4096, DType.FP16)
    one = ask(library, problem, PREFERENCE)
    assert isinstance(one, Answer)
    two_parts = check_answer(library, problem, alter(library, one, splitk_num=2, reduction_scheme=2))
    assert isinstance(two_parts, Answer) and two_parts.splitk_num == 2
    refused = check_answer(library, problem, alter(library, one, tile=9999))
    assert isinstance(refused, Declined) and refused.reason is DeclineReason.CANNOT_RUN
