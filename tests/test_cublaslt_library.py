"""The real libcublasLt of the nvidia-cublas wheel, as far as it goes without a GPU."""

import ctypes
import hashlib
import importlib.metadata
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from probe import vendor
from probe.answer import CONFIG_ATTRIBUTES, Answer
from probe.cublaslt import Library, alter, ask, find_library
from probe.cublaslt import status as statuses
from probe.cublaslt.algo import read_answer, read_attributes, rebuild, write_attribute
from probe.cublaslt.ask import read_results
from probe.cublaslt.asker import Asker, Quick
from probe.cublaslt.descriptors import (
    C_TYPES,
    Described,
    Extras,
    MatmulDesc,
    MatmulPreference,
    MatrixLayout,
    asking_extras,
    describe,
    describe_preference,
)
from probe.cublaslt.signatures import SIGNATURES, HeuristicResult, MatmulAlgo
from probe.errors import Declined, DeclineReason, EnvironmentProblem, LibraryError, UsageError
from probe.names import ComputeType, DType, Epilogue, Layout, PointerMode
from probe.preference import Preference
from probe.problem import Problem
from probe.questions import draw
from probe.stream import Alignment, Axis, Output, ProblemStream, RandomRegime

ROOT = Path(__file__).resolve().parent.parent
DESC, LAYOUT, PREF = "CUBLASLT_MATMUL_DESC_", "CUBLASLT_MATRIX_LAYOUT_", "CUBLASLT_MATMUL_PREF_"


def _wheel_version() -> str:
    try:
        return importlib.metadata.version("nvidia-cublas")
    except importlib.metadata.PackageNotFoundError:
        return ""


pytestmark = pytest.mark.skipif(not _wheel_version(), reason="the wheel nvidia-cublas is not installed")


@pytest.fixture(scope="module")
def library() -> Library:
    return Library.open(find_library("cu13", {}))


def _gpu(library: Library) -> bool:
    try:
        return bool(library.handle)
    except LibraryError:
        return False


# The file, its functions and its statuses


def test_the_version_is_that_of_the_wheel(library: Library) -> None:
    assert _wheel_version().startswith(library.version + ".")


def test_the_hash_is_of_the_whole_file(library: Library) -> None:
    digest = hashlib.sha256()
    with library.path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    assert library.sha256 == digest.hexdigest()


def test_the_committed_enums_are_those_of_the_wheel() -> None:
    if vendor.source() != f"nvidia-cublas {_wheel_version()}":
        pytest.skip(f"the committed enums are of {vendor.source()}, the wheel is {_wheel_version()}")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "extract_enums.py"), "--check"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, "same"), done.stdout + done.stderr


def test_every_signature_has_as_many_arguments_as_the_header() -> None:
    files = importlib.metadata.files("nvidia-cublas") or []
    header = next(Path(str(f.locate())).read_text() for f in files if f.name == "cublasLt.h")
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.DOTALL)
    for name, (_, arguments) in SIGNATURES.items():
        match = re.search(rf"\b{name}\(([^)]*)\)", plain)
        assert match is not None, name
        declared = [a for a in match[1].split(",") if a.strip() not in ("", "void")]
        assert len(declared) == len(arguments), name


def test_struct_sizes_are_those_of_the_header() -> None:
    assert ctypes.sizeof(MatmulAlgo) == 8 * 8
    assert ctypes.sizeof(HeuristicResult) == 8 * 8 + 8 + 4 + 4 + 4 * 4


def test_every_status_has_the_librarys_name_and_texts_of_ours(library: Library) -> None:
    known = statuses.statuses()
    for number in range(32):
        theirs = library.functions.cublasLtGetStatusName(number).decode()
        if number in known:
            assert known[number].name == theirs
            assert known[number].meaning and known[number].action
        else:
            assert theirs == "unrecognized status"
            assert statuses.describe(number).name == f"unknown({number})"


def test_a_failed_call_raises_with_name_meaning_and_action() -> None:
    statuses.check("cublasLtCreate", 0)
    with pytest.raises(LibraryError) as caught:
        statuses.check("cublasLtMatmul", 15)
    assert (caught.value.function, caught.value.status) == ("cublasLtMatmul", 15)
    assert caught.value.name == "CUBLAS_STATUS_NOT_SUPPORTED" and caught.value.action


def test_a_library_without_a_gpu_gives_no_handle_and_says_what_to_do(library: Library) -> None:
    if _gpu(library):
        pytest.skip("this machine has a GPU")
    with pytest.raises(LibraryError, match="nvidia-smi") as caught:
        ask(library, Problem.gemm(64, 64, 576, DType.FP16), Preference())
    assert caught.value.function == "cublasLtCreate"


def test_one_library_per_process(library: Library, tmp_path: Path) -> None:
    assert Library.open(find_library("cu13", {})) is library
    other = tmp_path / "libcublasLt.so.13"
    other.write_bytes(b"\x7fELF" + bytes(60))
    with pytest.raises(EnvironmentProblem, match="one cuBLASLt per process"):
        Library.open(find_library(str(other), {}))


def _open_in_child(path: Path) -> str:
    code = (
        "import sys; from probe.cublaslt import Library, find_library\n"
        "from probe.errors import EnvironmentProblem\n"
        "try: Library.open(find_library(sys.argv[1], {})); print('opened')\n"
        "except EnvironmentProblem as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT)
    return done.stdout + done.stderr


def test_a_file_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "libcublasLt.so.13"
    broken.write_bytes(b"\x7fELF" + bytes(60))
    said = _open_in_child(broken)
    assert "cannot be loaded" in said and said.count("\n") == 1


def test_a_library_that_is_another_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    spare = next(Path("/lib").glob("*-linux-gnu/libm.so.6"), None)
    if spare is None:
        pytest.skip("no other library at hand")
    said = _open_in_child(spare)
    assert "is no cuBLASLt" in said and "cublasLtGetVersion" in said and said.count("\n") == 1


# Attributes


@pytest.mark.parametrize(
    ("enum", "prefix", "kind"),
    [
        ("cublasLtMatmulDescAttributes_t", DESC, MatmulDesc),
        ("cublasLtMatrixLayoutAttribute_t", LAYOUT, MatrixLayout),
        ("cublasLtMatmulPreferenceAttributes_t", PREF, MatmulPreference),
    ],
)
def test_the_width_of_every_attribute_is_the_librarys(
    library: Library, enum: str, prefix: str, kind: type
) -> None:
    """The library itself says how wide an attribute is: a read of 0 bytes returns the size that it needs."""
    arguments = {MatmulDesc: (68, 0), MatrixLayout: (DType.FP16, 64, 32, 64), MatmulPreference: ()}[kind]
    group = vendor._data()["attributes"][enum]
    assert group and all(name.startswith(prefix) for name in group)
    with kind(library, *arguments) as made:
        call = getattr(library.functions, f"{kind.CREATE}GetAttribute")  # type: ignore[attr-defined]
        for name in group:
            attribute, need = vendor.attribute(name), ctypes.c_size_t()
            assert call(made.pointer, attribute.number, None, 0, ctypes.byref(need)) == 0, name
            assert need.value == ctypes.sizeof(C_TYPES[attribute.c_type]), name


def test_every_config_attribute_has_the_width_of_the_header_and_no_other_works(library: Library) -> None:
    algo, buffer, written = MatmulAlgo(), ctypes.create_string_buffer(8), ctypes.c_size_t()
    for name in CONFIG_ATTRIBUTES.values():
        attribute = vendor.attribute(name)
        right = ctypes.sizeof(C_TYPES[attribute.c_type])
        assert right == (2 if attribute.number in (7, 8) else 4)
        for width in (1, 2, 4, 8):
            code = library.functions.cublasLtMatmulAlgoConfigGetAttribute(
                ctypes.byref(algo), attribute.number, buffer, width, ctypes.byref(written)
            )
            assert code == (0 if width == right else statuses.INVALID_VALUE), (name, width)


def test_preference_defaults_are_those_that_must_be_overridden(library: Library) -> None:
    with MatmulPreference(library) as made:
        assert made.get(PREF + "MAX_WORKSPACE_BYTES") == 0
        assert made.get(PREF + "REDUCTION_SCHEME_MASK") == 7
        assert {made.get(f"{PREF}MIN_ALIGNMENT_{x}_BYTES") for x in "ABCD"} == {256}


def test_a_preference_sets_what_it_says_with_a_and_b_crossed(library: Library) -> None:
    with describe_preference(library, Preference(12345, 2), (2, 4, 8, 16)) as made:
        assert made.get(PREF + "MAX_WORKSPACE_BYTES") == 12345
        assert made.get(PREF + "REDUCTION_SCHEME_MASK") == 2
        read = {x: made.get(f"{PREF}MIN_ALIGNMENT_{x}_BYTES") for x in "ABCD"}
    assert read == {"A": 4, "B": 2, "C": 8, "D": 16}


def test_the_library_accepts_layouts_that_are_nonsense_and_probe_does_not(library: Library) -> None:
    pointer = ctypes.c_void_p()
    create = library.functions.cublasLtMatrixLayoutCreate
    for dtype, rows, columns, ld in [(2, 0, 4, 1), (2, 64, 4, 8), (999, 64, 4, 64)]:
        assert create(ctypes.byref(pointer), dtype, rows, columns, ld) == 0
        library.functions.cublasLtMatrixLayoutDestroy(pointer)
    for rows, columns, ld in [(0, 4, 1), (64, 0, 64), (64, 4, 8), (64, 4, 2**63)]:
        with pytest.raises(UsageError):
            MatrixLayout(library, DType.FP16, rows, columns, ld)
    with pytest.raises(UsageError):
        MatrixLayout(library, 999, 64, 4, 64)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("FAST_ACCUM", 128), ("SM_COUNT_TARGET", 2**31), ("EPILOGUE", -1), ("BIAS_POINTER", 2**64)],
)
def test_a_value_that_would_wrap_is_refused(library: Library, name: str, value: int) -> None:
    with MatmulDesc(library, 68, 0) as made:
        before = made.get(DESC + name)
        with pytest.raises(UsageError, match=name):
            made.set(DESC + name, value)
        assert made.get(DESC + name) == before


def test_closing_twice_does_nothing(library: Library) -> None:
    made = MatmulDesc(library, 68, 0)
    made.close()
    made.close()
    assert made.pointer == 0


# A whole problem


@pytest.mark.parametrize("layout", Layout)
def test_layouts_are_those_of_the_transposed_call(library: Library, layout: Layout) -> None:
    problem = Problem.gemm(5, 7, 11, DType.BF16, output=DType.FP32, layout=layout, ldd=9)
    with describe(library, problem, Extras()) as made:
        trans = [made.matmul.get(DESC + f"TRANS{x}") for x in "AB"]
        sizes = [[int(x.get(LAYOUT + n)) for n in ("ROWS", "COLS", "LD", "TYPE")] for x in (
            made.first, made.second, made.c, made.d)]  # fmt: skip
    # op(first) is n x k and op(second) is k x m, in the column-major call that computes N x M
    for (rows, columns, ld, dtype), transposed, want in zip(sizes, trans, ((7, 11), (11, 5)), strict=False):
        assert ((columns, rows) if transposed else (rows, columns)) == want
        assert ld == rows and dtype == DType.BF16.cuda_value
    assert trans == [int(c == "t") for c in layout]
    assert sizes[2] == [7, 5, 7, DType.FP32.cuda_value]
    assert sizes[3] == [7, 5, 9, DType.FP32.cuda_value]


def test_descriptors_that_stay_hold_what_new_ones_would(library: Library) -> None:
    """Set for one problem after another, each is what `describe` makes for that problem, whatever came before."""
    kinds = ((DType.FP16, DType.FP32, Layout.NN), (DType.E4M3, DType.BF16, Layout.TN), (DType.BF16, DType.BF16, Layout.TT))
    sizes = ((64, 64, 64), (16, 4096, 64), (16, 16, 300000 // 16 * 16), (64, 64, 64), (512, 32, 16))
    names = [LAYOUT + n for n in ("TYPE", "ROWS", "COLS", "LD", "BATCH_COUNT", "STRIDED_BATCH_OFFSET")]
    matmul = [DESC + n for n in ("COMPUTE_TYPE", "SCALE_TYPE", "TRANSA", "TRANSB", "EPILOGUE", "FAST_ACCUM", "POINTER_MODE")]

    def read(made: Described) -> list[list[int | float]]:
        layouts = [[x.get(name) for name in names] for x in (made.first, made.second, made.c, made.d)]
        return [*layouts, [made.matmul.get(name) for name in matmul]]

    with Asker(library) as asker:
        for m, n, k in sizes:
            for (dtype, out, layout), more in product(kinds, (0, 32)):
                columns = (m if layout.a_transposed else k, k if layout.b_transposed else n, n)
                lda, ldb, ldd = (c + more for c in columns)
                problem = Problem.gemm(m, n, k, dtype, out, layout, lda=lda, ldb=ldb, ldc=ldd, ldd=ldd)
                kind = asker.kind(Problem.gemm(16, 16, 16, dtype, out, layout))
                kind.sizes(m, n, k, lda, ldb, ldd)
                with describe(library, problem, asking_extras(problem)) as fresh:
                    assert read(kind.described) == read(fresh)


def test_without_a_gpu_the_asker_says_what_ask_says(library: Library) -> None:
    if _gpu(library):
        pytest.skip("this machine has a GPU")
    with Asker(library) as asker, pytest.raises(LibraryError, match="cublasLtCreate"):
        asker.ask(asker.kind(Problem.gemm(16, 16, 16, DType.FP16)), (8, 8, 8, 8, 8, 8), 0, 7, (256, 256, 256, 256))


@pytest.mark.gpu
def test_the_asker_answers_as_ask_does(library: Library) -> None:
    axis = Axis(16, 4096, multiple=2)
    regime = RandomRegime("any", axis, axis, Axis(16, 20000), (DType.FP16, DType.BF16, DType.E4M3), (Output.SAME, Output.FP32),
                          tuple(Layout), (False, True), (0, 2**25), (2, 7), (0, 16), (0, 64), tuple(Alignment))
    questions = draw(ProblemStream(5, (), (regime,)), 0, 400)
    with Asker(library) as asker:
        for place, (kind, (m, n, k, lda, ldb, ldd, _, _, _, workspace, mask, a, b, d)) in enumerate(questions.each()):
            got = asker.ask(asker.kind(kind.problem()), (m, n, k, lda, ldb, ldd), workspace, mask, (a, b, d, d))
            asked = questions.asked(place)
            want = ask(library, asked.problem, asked.preference)
            if isinstance(want, Answer):
                assert isinstance(got, Quick)
                assert (got.attributes, got.workspace_bytes, got.waves) == (want.attributes, want.workspace_bytes, want.waves)
            else:
                assert got is want.reason


def test_everything_a_problem_says_is_set_on_the_descriptors(library: Library) -> None:
    problem = Problem.gemm(
        16, 32, 64, DType.E4M3, output=DType.E4M3, fast_accumulation=True, epilogue=Epilogue.GELU_BIAS,
        a_scale=True, b_scale=True, d_scale=True, pointer_mode=PointerMode.DEVICE, sm_count_target=66,
        batch_count=3, a_stride=0,
    )  # fmt: skip
    extras = Extras(a_scale=256, b_scale=512, d_scale=1024, bias=2048, alpha=16, beta=32)
    with describe(library, problem, extras) as made:
        read = {n: made.matmul.get(DESC + n) for n in (
            "FAST_ACCUM", "EPILOGUE", "BIAS_DATA_TYPE", "BIAS_POINTER", "A_SCALE_POINTER", "B_SCALE_POINTER",
            "C_SCALE_POINTER", "D_SCALE_POINTER", "POINTER_MODE", "SM_COUNT_TARGET", "COMPUTE_TYPE",
            "SCALE_TYPE",
        )}  # fmt: skip
        batch = [(x.get(LAYOUT + "BATCH_COUNT"), x.get(LAYOUT + "STRIDED_BATCH_OFFSET")) for x in (
            made.first, made.second, made.c, made.d)]  # fmt: skip
    assert read == {
        "FAST_ACCUM": 1, "EPILOGUE": 36, "BIAS_DATA_TYPE": 14, "BIAS_POINTER": 2048,
        "A_SCALE_POINTER": 512, "B_SCALE_POINTER": 256,  # the call's A is our B
        "C_SCALE_POINTER": 0, "D_SCALE_POINTER": 1024, "POINTER_MODE": 1, "SM_COUNT_TARGET": 66,
        "COMPUTE_TYPE": 68, "SCALE_TYPE": 0,
    }  # fmt: skip
    assert batch == [(3, 32 * 64), (3, 0), (3, 16 * 32), (3, 16 * 32)]


def test_a_plain_problem_leaves_the_librarys_defaults(library: Library) -> None:
    with (
        MatmulDesc(library, 68, 0) as plain,
        describe(library, Problem.gemm(8, 8, 8, DType.FP16), Extras()) as made,
    ):
        for name in vendor._data()["attributes"]["cublasLtMatmulDescAttributes_t"]:
            assert made.matmul.get(name) == plain.get(name), name


def test_half_precision_accumulation_has_half_precision_scalars(library: Library) -> None:
    problem = Problem.gemm(8, 8, 8, DType.FP16, compute_type=ComputeType.FP16, alpha=0.5)
    with describe(library, problem, Extras()) as made:
        assert [made.matmul.get(DESC + n) for n in ("COMPUTE_TYPE", "SCALE_TYPE")] == [64, 2]


def test_a_missing_address_is_refused_by_name(library: Library) -> None:
    problem = Problem.gemm(16, 16, 16, DType.E4M3, epilogue=Epilogue.BIAS, b_scale=True)
    with pytest.raises(UsageError, match="b_scale, bias"):
        describe(library, problem, Extras())
    describe(library, problem, asking_extras(problem)).close()


# Answers


def _algo(library: Library, **attributes: int) -> MatmulAlgo:
    algo = MatmulAlgo()
    for name, value in attributes.items():
        write_attribute(library, algo, name, value)
    return algo


CHANGES = {
    "tile": 393, "splitk_num": -1, "reduction_scheme": 2, "swizzling": 1, "custom_option": 7, "stages": 36,
    "inner_shape": 4, "cluster_shape": 11,
}  # fmt: skip


def test_attributes_written_to_an_algorithm_are_read_back_signed(library: Library) -> None:
    assert read_attributes(library, _algo(library, **CHANGES)) == {"algo_id": 0, **CHANGES}


def test_an_answer_is_rebuilt_from_its_blob_and_checked(library: Library) -> None:
    result = HeuristicResult(algo=_algo(library, **CHANGES), workspace_size=6160, state=0, waves_count=0.25)
    answer = read_answer(library, result)
    assert (answer.splitk_num, answer.workspace_bytes, answer.waves) == (-1, 6160, 0.25)
    problem = Problem.gemm(64, 64, 576, DType.FP16)
    assert bytes(rebuild(library, problem, answer)) == answer.blob
    with pytest.raises(UsageError, match="reads back"):
        rebuild(library, problem, replace(answer, tile=1))


def test_an_answer_is_altered_one_attribute_at_a_time(library: Library) -> None:
    answer = read_answer(library, HeuristicResult(algo=_algo(library, **CHANGES)))
    changed = alter(library, answer, splitk_num=5)
    assert changed == replace(answer, splitk_num=5) and changed.blob != answer.blob
    for wrong in ({"algo_id": 1}, {"colour": 1}, {"inner_shape": 2**16}):
        with pytest.raises(UsageError):
            alter(library, answer, **wrong)
    with pytest.raises(UsageError, match="blob"):
        alter(library, replace(answer, blob=None), splitk_num=5)


@pytest.mark.parametrize(
    ("code", "count", "state", "reason"),
    [
        (15, 0, 0, DeclineReason.NO_ALGORITHM),
        (0, 0, 0, DeclineReason.NO_ALGORITHM),
        (0, 1, 15, DeclineReason.NO_ALGORITHM),
        (7, 0, 0, DeclineReason.UNSUPPORTED),
        (8, 0, 0, DeclineReason.UNSUPPORTED),
    ],
)
def test_no_is_a_decline(library: Library, code: int, count: int, state: int, reason: DeclineReason) -> None:
    problem = Problem.gemm(64, 64, 576, DType.FP16)
    results = (HeuristicResult * 1)(HeuristicResult(state=state))
    outcome = read_results(library, problem, code, results, count)
    assert isinstance(outcome, Declined) and outcome.reason is reason and problem.key in outcome.text


def test_a_failure_is_not_a_decline_and_a_bad_result_is_left_out(library: Library) -> None:
    problem = Problem.gemm(64, 64, 576, DType.FP16)
    results = (HeuristicResult * 2)(HeuristicResult(state=15), HeuristicResult(algo=_algo(library, tile=5)))
    with pytest.raises(LibraryError):
        read_results(library, problem, 14, results, 0)
    good = read_results(library, problem, 0, results, 2)
    assert isinstance(good, tuple) and [a.tile for a in good] == [5]
    assert all(isinstance(a, Answer) for a in good)
