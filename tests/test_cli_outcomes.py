"""Outcomes that the simulated library does not give by itself, and how schedules, cuts and kernel names are put in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probe.answer import Answer
from probe.capture import Capture
from probe.cli import main
from probe.cli.picture import cut_lines, schedule_line
from probe.cli.show import short_name
from probe.cublaslt import status
from probe.descriptor import GEMMDesc, Instruction, KCut
from probe.errors import Declined, DeclineReason, LibraryError
from probe.inputs.draws import Draw, DrawKind
from probe.inputs.operands import Operands
from probe.oracle import DeviceOracle, Opened, SimulatedOracle
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.schedule import ZERO, Row, contiguous_runs, mma
from probe.simulator.library import SimulatedLibrary, SimulatedSumming
from probe.summing import Cells
from probe.tensorcore import row_for

Patch, Caught = pytest.MonkeyPatch, pytest.CaptureFixture[str]


# The command in this process, with one part of the simulated library replaced

class Oracle(SimulatedOracle):
    """The simulated library whose summing passes through `change(operands, bits)`."""

    def change(self, operands: Operands, bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return bits

    def summing(self, problem: Problem, answer: Answer, preference: Preference) -> Any:
        plain, change = self.library.summing(problem, answer), self.change

        class Changed(SimulatedSumming):
            def outputs(self, batch: Sequence[tuple[Operands, Cells | None]]) -> list[np.ndarray[Any, Any]]:
                bits = super().outputs(batch)
                return [change(operands, one) for (operands, _), one in zip(batch, bits, strict=True)]

        return Changed(plain.m, plain.n, plain.k, plain.schedule, plain.input_dtype, plain.output_dtype)


def call(monkeypatch: Patch, oracle: Any, *options: str) -> int:
    """Exit code of `probe walk` in this process, with that oracle behind it."""
    monkeypatch.setattr("probe.verbs.open_oracle", lambda library, gpu: Opened(oracle, ""))
    monkeypatch.setattr(sys, "argv", ["probe", "walk", "--shape", "16x16x96", *options])
    with pytest.raises(SystemExit) as stop:
        main()
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_no_algorithm_is_declined(monkeypatch: Patch, capsys: Caught) -> None:
    class Nothing(Oracle):
        def ask(self, problem: Problem, preference: Preference) -> Declined:
            return Declined(DeclineReason.NO_ALGORITHM, f"the library offers no algorithm for {problem.key}", "more workspace")

    assert call(monkeypatch, Nothing()) == 3
    said = capsys.readouterr()
    assert said.out == "" and "probe: declined: no_algorithm: the library offers no algorithm" in said.err
    assert said.err.endswith("(more workspace)\n")


def _refuse(function: str, number: int) -> LibraryError:
    with pytest.raises(LibraryError) as raised:
        status.check(function, number)
    return raised.value


class _Device(DeviceOracle):
    """A device oracle on a device of 1 MiB whose every call of cublasLtMatmul fails."""

    def __init__(self) -> None:
        target = SimulatedLibrary().target
        device: Any = SimpleNamespace(identity=SimpleNamespace(target=lambda library: target, total_bytes=2**20))
        super().__init__(device, SimpleNamespace(), "a test")  # type: ignore[arg-type]

    def _summing(self, problem: Problem, answer: Answer, preference: Preference) -> Any:
        def fail() -> None:
            raise _refuse("cublasLtMatmul", status.NOT_SUPPORTED)

        return SimpleNamespace(capture=fail, trial=fail)


@pytest.mark.parametrize("when", ["capture", "trial"])
def test_an_offered_algorithm_that_fails_to_run_is_declined(when: str, monkeypatch: Patch, capsys: Caught) -> None:
    class Failing(Oracle):
        def capture(self, problem: Problem, answer: Answer, preference: Preference) -> Any:
            return _Device().capture(problem, answer, preference) if when == "capture" else Capture(())

        def summing(self, problem: Problem, answer: Answer, preference: Preference) -> Any:
            return _Device().summing(problem, answer, preference)

    assert call(monkeypatch, Failing(), "--json") == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["reason"]) == ("declined", "cannot_run")
    assert "cublasLtMatmul returned CUBLAS_STATUS_NOT_SUPPORTED (15)" in document["text"]


def test_operands_larger_than_the_device_are_declined() -> None:
    declined = _Device().ask(Problem.gemm(1024, 1024, 1024, DType.FP16), Preference())
    assert isinstance(declined, Declined) and declined.reason is DeclineReason.TOO_LARGE


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_library_whose_create_fails(options: tuple[str, ...], monkeypatch: Patch, capsys: Caught) -> None:
    class Broken(Oracle):
        def ask(self, problem: Problem, preference: Preference) -> Answer:
            raise _refuse("cublasLtCreate", status.NOT_INITIALIZED)

    assert call(monkeypatch, Broken(), *options) == 4
    said = capsys.readouterr()
    assert "cublasLtCreate returned CUBLAS_STATUS_NOT_INITIALIZED (1)" in said.err and "nvidia-smi" in said.err
    if options:
        document = json.loads(said.out)
        assert document["kind"] == "library" and "nvidia-smi" in document["hint"]


class Refuted(Oracle):
    """Gives other bytes on flat draws only, which are the proof's alone."""

    def change(self, operands: Operands, bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if isinstance(operands, Draw) and operands.kind is DrawKind.FLAT:
            bits = bits.copy()
            bits[3, 5] ^= 1
        return bits


def test_a_refuted_proof_exits_1_and_names_the_first_difference(monkeypatch: Patch, capsys: Caught) -> None:
    assert call(monkeypatch, Refuted()) == 1
    verdict = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("verdict"))
    assert "NOT CONFIRMED" in verdict and "flat draw 0" in verdict and "(3, 5)" in verdict


def test_a_refuted_point_is_recorded_as_that(monkeypatch: Patch, tmp_path: Path) -> None:
    assert call(monkeypatch, Refuted(), "-o", str(tmp_path / "point.parquet")) == 1
    row = pd.read_parquet(tmp_path / "point.parquet").iloc[0]
    assert row.outcome == "refuted" and row.first_difference.startswith("flat draw 0")
    draws = dict(one.split(":") for one in row.draws.split(","))
    assert row.outputs_differing == int(draws["flat"])  # one element of each


def test_an_arithmetic_that_is_not_among_the_candidates_is_not_confirmed(monkeypatch: Patch, capsys: Caught) -> None:
    """The tree is read rightly, no candidate sums like the library: exit 1 with counts that were taken, never a decline."""
    odd = GEMMDesc(k=96, k_summed=96, input_dtype=DType.FP16, output_dtype=DType.FP16, row=Row(16, 20), instruction_k=16,
                   instruction=Instruction.WGMMA).schedule()

    class Other(Oracle):
        def summing(self, problem: Problem, answer: Answer, preference: Preference) -> Any:
            return SimulatedSumming(16, 16, 96, odd, DType.FP16, DType.FP16)

    assert call(monkeypatch, Other(), "--json") == 1
    (result,) = json.loads(capsys.readouterr().out)["classes"]
    proof = result["proof"]
    assert result["outcome"] == "refuted" and proof["elements"] >= 4096 and 1 < proof["differing"] < proof["compared"]


def test_ambiguous_exits_1_and_lists_what_stands(monkeypatch: Patch, capsys: Caught) -> None:
    monkeypatch.setattr("probe.recovery.settle.ROUNDS", ())  # no draw is compared, so nothing is refuted
    monkeypatch.setattr("probe.pipeline.LIKE_ROUNDS", ())
    assert call(monkeypatch, Oracle()) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("verdict    AMBIGUOUS") for line in lines) and any(line.startswith("or ") for line in lines)


def test_elements_that_sum_differently_are_shown_as_classes(monkeypatch: Patch, capsys: Caught) -> None:
    class TwoOrders(Oracle):
        """The first four rows of the output come from a split kernel, the others from a single chain."""

        def summing(self, problem: Problem, answer: Answer, preference: Preference) -> Any:
            single = super().summing(problem, answer, preference)
            split = _desc(problem.k, problem.k, KCut(48)).schedule()

            class Both(SimulatedSumming):
                def outputs(self, batch: Sequence[tuple[Operands, Cells | None]]) -> list[np.ndarray[Any, Any]]:
                    out = []
                    for (_, cells), top, rest in zip(batch, super().outputs(batch), single.outputs(batch), strict=True):
                        rows = np.arange(problem.m)[:, None] if cells is None else cells.rows
                        out.append(np.where(rows < 4, top, rest))
                    return out

            return Both(problem.m, problem.n, problem.k, split, problem.a_dtype, problem.d_dtype)

    assert call(monkeypatch, TwoOrders()) == 0
    lines = capsys.readouterr().out.splitlines()
    sizes = {line.split(": ")[1] for line in lines if line.startswith("class ")}
    assert sizes == {"64 of 256 output elements sum like this", "192 of 256 output elements sum like this"}
    assert sum("CONFIRMED" in line for line in lines) == 2
    assert any("2 parts of 48" in line for line in lines) and any("one sum of 96, no cut" in line for line in lines)


def test_runs_that_differ_are_declined(monkeypatch: Patch, capsys: Caught) -> None:
    class Unsteady(Oracle):
        calls = 0

        def change(self, operands: Operands, bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            self.calls += 1
            return bits ^ np.uint16(self.calls % 4)

    assert call(monkeypatch, Unsteady()) == 3
    assert "declined: nondeterministic" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback_and_is_no_verdict(monkeypatch: Patch, capsys: Caught) -> None:
    class Buggy(Oracle):
        def ask(self, problem: Problem, preference: Preference) -> Answer:
            raise ZeroDivisionError("planted")

    assert call(monkeypatch, Buggy()) == 70
    assert "Traceback" in capsys.readouterr().err


# Names, schedules and cuts in words

@pytest.mark.parametrize(("mangled", "short"), [
    ("nvjet_sm90_hss_64x8_64x16_1x1_h_bz_splitK_NNT", "nvjet_sm90_hss_64x8_64x16_1x1_h_bz_splitK_NNT"),
    ("_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffffLb1ELb0ELb0EEEv18cublasSplitKParamsIT4_E", "cublasLt::splitKreduce_kernel"),
    ("_ZN7cutlass7Kernel2I34cutlass_80_tensorop_f16_gemm_alignEEvNT_6ParamsE", "cutlass::Kernel2<cutlass_80_tensorop_f16_gemm_align>"),
    ("_Z17gemv2T_kernel_valIiiffffLi128EEv16cublasGemvParams", "gemv2T_kernel_val"),
])
def test_short_kernel_names(mangled: str, short: str) -> None:
    assert short_name(mangled) == short


def _desc(k: int, summed: int, *cuts: KCut) -> GEMMDesc:
    row = row_for(90, DType.FP16)
    return GEMMDesc(k, summed, DType.FP16, DType.FP16, row, row.products, k_cuts=cuts, instruction=Instruction.WGMMA)


def test_a_schedule_that_fits_is_written_in_full_and_a_long_one_abbreviated() -> None:
    full, abbreviated = schedule_line(_desc(576, 576).schedule(), 139)
    assert not abbreviated and full == "0 | 0..15 | 16..31 | ... | 560..575 -> fp16"
    short, abbreviated = schedule_line(_desc(4096, 4096, KCut(1408)).schedule(), 139)
    assert abbreviated and "[1408..2815]" in short and "(0 | 2816..2831" in short and len(short) <= 139


def test_the_picture_has_a_bar_for_each_level_and_marks_a_dropped_tail() -> None:
    desc = _desc(4104, 4096, KCut(2048), KCut(512))
    outer, words, inner, inner_words = cut_lines(desc.schedule(), desc, desc.k)
    assert outer.count("|") == 2 and outer.endswith("x 4104") and inner.count("|") == 5
    assert words == "2 parts of 2048; added first to last; the last 8 are not summed"
    assert inner_words == "the first of them: 4 parts of 512; added first to last"


def test_an_order_without_a_cut_is_one_sum() -> None:
    term = mma(ZERO, row_for(90, DType.FP16), contiguous_runs(0, 64, 16))
    bar, words = cut_lines(term, replace(_desc(64, 64)), 64)
    assert bar.count("|") == 2 and words == "one sum of 64, no cut"
