"""Errors, names, problems, preferences, answers and targets: what is refused, and what survives JSON."""

import json
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe import vendor
from probe.answer import CONFIG_ATTRIBUTES, Answer
from probe.errors import Declined, DeclineReason, EnvironmentProblem, ExitCode, LibraryError, UsageError
from probe.names import ComputeType, DType, Epilogue, Layout, PointerMode
from probe.preference import Preference, parse_bytes
from probe.problem import Problem
from probe.target import LibraryKind, Target
from probe.values import Record

FP16 = Problem.gemm(64, 64, 576, DType.FP16)
FP8 = Problem.gemm(64, 64, 512, DType.E4M3)


# Errors


def test_a_usage_error_says_what_is_wrong_and_what_would_work() -> None:
    error = UsageError("K = 24 is odd", "K = 32")
    assert (error.message, error.hint, str(error)) == ("K = 24 is odd", "K = 32", "K = 24 is odd (K = 32)")
    assert str(UsageError("K = 24 is odd")) == "K = 24 is odd"
    assert isinstance(error, ValueError)


def test_each_kind_of_ending_has_its_own_exit_code() -> None:
    codes = [UsageError.exit_code, Declined.exit_code, EnvironmentProblem.exit_code]
    assert codes == [ExitCode.USAGE, ExitCode.DECLINED, ExitCode.ENVIRONMENT]
    assert sorted(ExitCode) == [0, 1, 2, 3, 4]


def test_a_library_error_names_the_call_the_number_and_the_action() -> None:
    text = str(LibraryError("cublasLtCreate", 1, "CUBLAS_STATUS_NOT_INITIALIZED", "no GPU", "run nvidia-smi"))
    for part in ("cublasLtCreate", "(1)", "CUBLAS_STATUS_NOT_INITIALIZED", "no GPU", "run nvidia-smi"):
        assert part in text


def test_a_decline_is_a_value_and_needs_a_reason_and_a_text() -> None:
    declined = Declined(DeclineReason.NO_ALGORITHM, "nothing for 1x1x1")
    assert declined == Declined(DeclineReason.NO_ALGORITHM, "nothing for 1x1x1")
    assert not isinstance(declined, BaseException)
    with pytest.raises(UsageError):
        Declined(DeclineReason.NO_ALGORITHM, " ")
    with pytest.raises(UsageError):
        Declined("no", "text")  # type: ignore[arg-type]


# Names against the header's numbers


@pytest.mark.parametrize(
    ("enum", "prefix", "names"),
    [
        (
            "cublasComputeType_t",
            "CUBLAS_COMPUTE_",
            {
                "16F": ComputeType.FP16,
                "16F_PEDANTIC": ComputeType.FP16_PEDANTIC,
                "32F": ComputeType.FP32,
                "32F_PEDANTIC": ComputeType.FP32_PEDANTIC,
                "32F_FAST_16F": ComputeType.FP32_FAST_FP16,
                "32F_FAST_16BF": ComputeType.FP32_FAST_BF16,
                "32F_FAST_TF32": ComputeType.FP32_FAST_TF32,
                "32F_EMULATED_16BFX9": ComputeType.FP32_EMULATED_BF16X9,
            },
        ),
        ("cublasLtEpilogue_t", "CUBLASLT_EPILOGUE_", {e.name: e for e in Epilogue}),
        ("cublasLtPointerMode_t", "CUBLASLT_POINTER_MODE_", {p.name: p for p in PointerMode}),
    ],
)
def test_names_carry_the_numbers_of_the_header(enum: str, prefix: str, names: dict[str, object]) -> None:
    members = vendor.members(enum)
    assert len(set(names.values())) == len(type(next(iter(names.values()))))  # type: ignore[arg-type]
    for header, ours in names.items():
        assert members[prefix + header] == ours.cublas_value  # type: ignore[attr-defined]


def test_layout_letters_say_which_operand_is_stored_transposed() -> None:
    shapes = {x: (replace(FP16, layout=x, m=2, n=3, k=5)) for x in Layout}
    assert {x: (p.a_shape, p.b_shape) for x, p in shapes.items()} == {
        Layout.NN: ((2, 5), (5, 3)),
        Layout.TN: ((2, 5), (3, 5)),
        Layout.NT: ((5, 2), (5, 3)),
        Layout.TT: ((5, 2), (3, 5)),
    }


# Shapes and sizes


@pytest.mark.parametrize(("text", "shape"), [("64x64x576", (64, 64, 576)), (" 1X2x03 ", (1, 2, 3))])
def test_a_shape_is_read(text: str, shape: tuple[int, int, int]) -> None:
    assert Problem.parse_shape(text) == shape


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("64x64", "2 sizes"),
        ("64x64x", "2 sizes"),
        ("1x2x3x4", "4 sizes"),
        ("", "0 sizes"),
        ("0x4x4", "M = 0"),
        ("4x-4x4", "N = -4"),
        ("4x4x2147483648", "K is too large"),
        ("4x4x" + "9" * 6000, "K is too large"),
        ("4x4xq", "'q'"),
        ("4x4x1e3", "'1e3'"),
        ("4x4x٣", "not a whole number"),
    ],
)
def test_a_wrong_shape_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        Problem.parse_shape(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1024", 1024), ("32MiB", 32 << 20), ("1.5 GiB", 3 << 29), ("64kB", 64000), ("0.5kib", 512)],
)
def test_a_size_in_bytes_is_read_exactly(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "32 parsec", "-1", "1e3", "0.3B", "0.0001kB", "99999999999GiB"])
def test_a_wrong_size_in_bytes_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)


# Problems


def test_the_usual_problem_has_the_defaults_of_its_dtype() -> None:
    assert (FP16.layout, FP16.c_dtype, FP16.d_dtype) == (Layout.NN, DType.FP16, DType.FP16)
    assert (FP8.layout, FP8.c_dtype, FP8.d_dtype) == (Layout.TN, DType.BF16, DType.BF16)
    e4m3_out = Problem.gemm(16, 16, 16, DType.E4M3, output=DType.E4M3)
    assert (e4m3_out.c_dtype, e4m3_out.d_dtype) == (DType.BF16, DType.E4M3)
    bias = Problem.gemm(16, 16, 16, DType.E4M3, output=DType.FP32, epilogue=Epilogue.BIAS)
    assert (bias.c_dtype, bias.bias_dtype) == (DType.FP32, DType.BF16)
    half = Problem.gemm(16, 16, 16, DType.FP16, compute_type=ComputeType.FP16)
    assert half.scale_type is DType.FP16


def test_eight_bit_inputs_have_rules_and_an_odd_m_is_none_of_them() -> None:
    assert Problem.gemm(63, 64, 32, DType.E4M3).m == 63
    with pytest.raises(UsageError, match="K = 24") as caught:
        Problem.gemm(63, 64, 24, DType.E4M3)
    assert "32" in caught.value.hint and "16" in caught.value.hint
    with pytest.raises(UsageError, match="N = 8"):
        Problem.gemm(64, 8, 32, DType.E4M3)
    with pytest.raises(UsageError, match="layout tn"):
        Problem.gemm(64, 64, 32, DType.E4M3, layout=Layout.NN)


@pytest.mark.parametrize(
    "change",
    [
        {"m": 0},
        {"n": -1},
        {"k": 2**31},
        {"m": True},
        {"k": 5.0},
        {"a_dtype": "fp16"},
        {"layout": "nn"},
        {"b_dtype": DType.BF16},
        {"c_dtype": DType.FP32},
        {"lda": 575},
        {"ldb": 63},
        {"ldd": 63},
        {"a_offset_bytes": 1},
        {"d_offset_bytes": -2},
        {"a_scale": True},
        {"a_stride": 5},
        {"batch_count": 0},
        {"batch_count": 2, "d_stride": 64 * 63},
        {"fast_accumulation": True},
        {"fast_accumulation": 1},
        {"epilogue": Epilogue.BIAS},
        {"bias_dtype": DType.FP16},
        {"alpha": 0.1},
        {"beta": -0.0},
        {"alpha": float("nan")},
        {"beta": float("inf")},
        {"alpha": 1e300},
        {"compute_type": ComputeType.FP16},
        {"scale_type": DType.FP16},
        {"sm_count_target": -1},
    ],
)
def test_what_is_no_gemm_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError) as caught:
        replace(FP16, **change)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"b_dtype": DType.FP16},
        {"a_dtype": DType.E5M2, "b_dtype": DType.E5M2},
        {"c_dtype": DType.FP32},
        {"lda": 520},
        {"a_offset_bytes": 8},
        {"compute_type": ComputeType.FP32_PEDANTIC},
        {"d_scale": True},
    ],
)
def test_what_the_library_cannot_do_with_eight_bits_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        replace(FP8, **change)  # type: ignore[arg-type]


def test_packed_strides_in_full_are_the_packed_problem() -> None:
    same = replace(FP16, lda=576, ldb=64, ldc=64, ldd=64)
    assert same == FP16 and same.to_json() == FP16.to_json() and same.key == FP16.key
    batch = replace(FP16, batch_count=3)
    assert replace(batch, a_stride=64 * 576, d_stride=64 * 64) == batch
    assert batch.batch_stride("a") == 64 * 576 and FP16.batch_stride("a") == 0


def test_operand_bytes_reach_the_last_element_and_no_further() -> None:
    assert FP16.operand_bytes("a") == 64 * 576 * 2
    padded = replace(FP16, lda=600, a_offset_bytes=6)
    assert padded.operand_bytes("a") == 6 + (63 * 600 + 576) * 2
    shared = replace(FP16, batch_count=5, b_stride=0)
    assert shared.operand_bytes("b") == FP16.operand_bytes("b")
    assert shared.operand_bytes("a") == 5 * FP16.operand_bytes("a")
    assert replace(FP16, beta=1.0).total_bytes - FP16.total_bytes == FP16.operand_bytes("c")


def test_alignment_comes_from_the_offset_unless_the_preference_states_one() -> None:
    problem = replace(FP16, a_offset_bytes=6, b_offset_bytes=32, d_offset_bytes=512)
    assert problem.alignments(Preference()) == (2, 32, 256, 256)
    assert problem.alignments(Preference(a_alignment=1, d_alignment=16)) == (1, 32, 256, 16)


# One different value for every field: a field that the key or the JSON forgot would not tell them apart.
_OTHER: dict[str, dict[str, object]] = {
    "m": {"m": 65},
    "n": {"n": 65},
    "k": {"k": 577},
    "a_dtype": {"a_dtype": DType.BF16, "b_dtype": DType.BF16},
    "b_dtype": {"a_dtype": DType.BF16, "b_dtype": DType.BF16, "lda": 577},
    "c_dtype": {"c_dtype": DType.FP32, "d_dtype": DType.FP32},
    "d_dtype": {"c_dtype": DType.BF16, "d_dtype": DType.BF16},
    "compute_type": {"compute_type": ComputeType.FP32_PEDANTIC},
    "scale_type": {"compute_type": ComputeType.FP16, "scale_type": DType.FP16},
    "layout": {"layout": Layout.TN},
    "fast_accumulation": {},  # below: 8-bit inputs only
    "epilogue": {"epilogue": Epilogue.RELU},
    "bias_dtype": {"epilogue": Epilogue.BIAS, "bias_dtype": DType.FP16},
    "alpha": {"alpha": 0.5},
    "beta": {"beta": 1.0},
    "pointer_mode": {"pointer_mode": PointerMode.DEVICE},
    "sm_count_target": {"sm_count_target": 66},
    "batch_count": {"batch_count": 2},
    **{f"ld{x}": {f"ld{x}": 640} for x in "abcd"},
    **{f"{x}_offset_bytes": {f"{x}_offset_bytes": 2} for x in "abcd"},
    **{f"{x}_stride": {"batch_count": 2, f"{x}_stride": 64 * 640} for x in "abcd"},
}


def test_every_field_is_in_the_key_and_in_the_json() -> None:
    problems = [FP16, *(replace(FP16, **c) for c in _OTHER.values() if c)]  # type: ignore[arg-type]
    problems += [FP8, replace(FP8, fast_accumulation=True)]
    out = Problem.gemm(64, 64, 512, DType.E4M3, output=DType.E4M3)
    problems += [out, *(replace(out, **{f"{x}_scale": True}) for x in "abd")]  # type: ignore[arg-type]
    assert {f.name for f in fields(Problem)} == set(_OTHER) | {f"{x}_scale" for x in "abcd"}
    assert len(set(problems)) == len(problems)
    assert len({p.key for p in problems}) == len(problems)
    assert len({p.to_json() for p in problems}) == len(problems)
    for problem in problems:
        assert Problem.from_json(problem.to_json()) == problem
        assert set(problem.key) <= set("abcdefghijklmnopqrstuvwxyz0123456789.=_+-")


@given(
    st.integers(1, 2**31 - 1),
    st.integers(1, 2**31 - 1),
    st.integers(1, 2**31 - 1),
    st.sampled_from([DType.FP32, DType.FP16, DType.BF16]),
    st.sampled_from(Layout),
    st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda x: str(x) != "-0.0"),
)
def test_problems_survive_json_bit_for_bit(
    m: int, n: int, k: int, dtype: DType, layout: Layout, alpha: float
) -> None:
    problem = Problem.gemm(m, n, k, dtype, layout=layout, alpha=alpha)
    text = problem.to_json()
    again = Problem.from_json(text)
    assert again == problem and again.to_json() == text


@pytest.mark.parametrize(
    "break_it",
    [
        lambda d: d | {"colour": 1},
        lambda d: {n: v for n, v in d.items() if n != "k"},
        lambda d: d | {"kind": "answer"},
        lambda d: d | {"form": 2},
        lambda d: d | {"form": True},
        lambda d: d | {"m": "64"},
        lambda d: d | {"m": 64.0},
        lambda d: d | {"layout": "xx"},
        lambda d: d | {"layout": 1},
        lambda d: d | {"fast_accumulation": 0},
        lambda d: d | {"alpha": "1"},
        lambda d: [d],
    ],
)
def test_json_that_is_not_exactly_a_problem_is_refused(break_it) -> None:  # type: ignore[no-untyped-def]
    document = FP16.to_document()
    assert Problem.from_document(document) == FP16
    with pytest.raises(UsageError):
        Problem.from_json(json.dumps(break_it(document)))


def test_json_with_a_field_twice_or_cut_short_is_refused() -> None:
    text = FP16.to_json()
    with pytest.raises(UsageError, match="twice: k"):
        Problem.from_json(text.replace('"k":576', '"k":576,"k":577'))
    with pytest.raises(UsageError, match="not JSON"):
        Problem.from_json(text[:-1])


def test_values_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        FP16.m = 1  # type: ignore[misc]


def test_a_problem_has_no_other_fields() -> None:
    with pytest.raises(UsageError, match="colour"):
        Problem.gemm(1, 1, 1, DType.FP16, colour="red")


# Preferences


def test_a_preference_is_checked_and_survives_json() -> None:
    preference = Preference(1024, 2, a_alignment=16)
    assert Preference.from_json(preference.to_json()) == preference
    assert len({p.key for p in (preference, Preference(), replace(preference, a_alignment=None))}) == 3
    bad: list[dict[str, int]] = [
        {"workspace_bytes": -1},
        {"reduction_scheme_mask": 8},
        {"c_alignment": 3},
        {"d_alignment": 0},
    ]
    for change in bad:
        with pytest.raises(UsageError):
            Preference(**change)


# Answers

ANSWER = Answer(66, 393, 3, 2, 0, 3, 36, 0, 2, 6160, 0.5, bytes(range(64)))


def test_an_answer_keeps_its_numbers_and_says_their_names() -> None:
    assert ANSWER.attributes == (66, 393, 3, 2, 0, 3, 36, 0, 2)
    tile = vendor.members("cublasLtMatmulTile_t")
    assert tile[f"CUBLASLT_MATMUL_TILE_{ANSWER.tile_name}"] == ANSWER.tile
    assert ANSWER.reduction_scheme_name == "COMPUTE_TYPE"
    assert replace(ANSWER, reduction_scheme=6).reduction_scheme_name == "COMPUTE_TYPE|OUTPUT_TYPE"
    assert ANSWER.cluster_shape_name == "1x1x1"


def test_a_number_that_the_header_does_not_name_prints_as_unknown() -> None:
    strange = replace(ANSWER, tile=9999, stages=9999, reduction_scheme=64, inner_shape=9999, cluster_shape=1)
    for name in ("tile", "stages", "reduction_scheme", "inner_shape", "cluster_shape"):
        assert getattr(strange, f"{name}_name") == f"unknown({getattr(strange, name)})"
        assert f"unknown({getattr(strange, name)})" in str(strange)


def test_a_negative_split_count_is_legal_and_is_not_clamped() -> None:
    negative = replace(ANSWER, splitk_num=-1)
    assert Answer.from_json(negative.to_json()).splitk_num == -1
    assert "split-K -1" in str(negative)
    assert negative != replace(ANSWER, splitk_num=1)


@pytest.mark.parametrize(
    "change",
    [
        {"tile": -1},
        {"algo_id": 2**31},
        {"inner_shape": 2**16},
        {"cluster_shape": -1},
        {"workspace_bytes": -1},
        {"waves": float("nan")},
        {"waves": 1},
        {"blob": b"short"},
    ],
)
def test_a_number_that_the_headers_type_cannot_hold_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        replace(ANSWER, **change)  # type: ignore[arg-type]


def test_the_blob_is_kept_and_is_no_part_of_equality() -> None:
    bare = replace(ANSWER, blob=None)
    assert bare == ANSWER and hash(bare) == hash(ANSWER)
    assert Answer.from_json(ANSWER.to_json()).blob == ANSWER.blob
    assert Answer.from_json(bare.to_json()).blob is None
    for name in CONFIG_ATTRIBUTES:
        assert replace(ANSWER, **{name: getattr(ANSWER, name) + 1}) != ANSWER


# Targets

TARGET = Target("sm_90", 132, "NVIDIA H200", "CUDA 13.0", LibraryKind.CUBLASLT, "13.1.0", "ab" * 32)


def test_a_target_survives_json_and_has_no_path() -> None:
    assert Target.from_json(TARGET.to_json()) == TARGET
    assert "path" not in TARGET.to_document()
    assert TARGET.sm_number == 90
    others = [
        replace(TARGET, version="13.10.0"),
        replace(TARGET, sha256="cd" * 32),
        replace(TARGET, sm_count=78),
    ]
    assert len({TARGET.key, *(t.key for t in others)}) == 4


@pytest.mark.parametrize(
    "change",
    [{"sm": "90"}, {"sm": "sm_9"}, {"version": "13.1"}, {"sha256": "AB" * 32}, {"library": "cublasLt"}],
)
def test_a_wrong_target_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        replace(TARGET, **change)  # type: ignore[arg-type]


def test_a_record_may_not_have_a_field_that_its_form_uses() -> None:
    with pytest.raises(TypeError, match="kind"):

        class Bad(Record):
            kind: str
