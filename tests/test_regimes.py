"""Regimes and files of shapes: what they hold, what options do to them, and every kind of bad line, named by its number."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import probe
from probe.errors import EnvironmentProblem, UsageError
from probe.regimes import Case, Chosen, Regime, cases_of, regime_cases


def read(path: Path, text: str, chosen: Chosen | None = None) -> list[str]:
    path.write_text(text, encoding="utf-8")
    return [case.name for case in cases_of(path, chosen)[0]]


def refused(path: Path, text: str, chosen: Chosen | None = None) -> str:
    with pytest.raises(UsageError) as raised:
        read(path, text, chosen)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("regime", Regime)
def test_a_regime_is_a_fixed_list_without_repeats(regime: Regime) -> None:
    cases = regime_cases(regime)
    assert cases == regime_cases(regime) and len({case.name for case in cases}) == len({case.problem() for case in cases}) == len(cases)


def test_the_linear_regime_asks_as_nn_linear_does() -> None:
    problems = [case.problem() for case in regime_cases(Regime.LINEAR)]
    assert {str(p.layout) for p in problems} == {"tn"} and {str(p.a_dtype) for p in problems} == {"bf16"}
    assert {1, 2, 256, 512} <= {p.m for p in problems} and any(p.m % 2 and p.m > 1 for p in problems)
    assert (28672, 4096) in {(p.n, p.k) for p in problems}  # gate and up of the 8B model: 2 * 14336


def test_options_choose_cases_of_a_regime() -> None:
    every = regime_cases(Regime.ACCEPTANCE)
    chosen, repeats = cases_of("acceptance", Chosen(dtype="e4m3", fast=True))
    assert repeats == 0 and chosen == tuple(c for c in every if c.dtype == "e4m3" and c.fast) and 0 < len(chosen) < len(every)


def test_options_that_leave_nothing_say_what_there_is() -> None:
    with pytest.raises(UsageError, match="no case of regime linear") as raised:
        cases_of("linear", Chosen(dtype="fp16"))
    assert "bf16 bf16 tn" in raised.value.hint


def test_text_lines(tmp_path: Path) -> None:
    text = "# shapes of a model\n64x64x576\n\n 16x16x8192 e4m3 bf16 tn fast # decode\n8x8x64 bf16 fp32 nt\n8x8x64 bf16\n"
    assert read(tmp_path / "s.txt", text) == ["64x64x576.fp16.fp16.nn", "16x16x8192.e4m3.bf16.tn.fast", "8x8x64.bf16.fp32.nt",
                                              "8x8x64.bf16.bf16.nn"]


def test_options_fill_in_what_a_line_leaves_out(tmp_path: Path) -> None:
    names = read(tmp_path / "s.txt", "64x64x576\n64x64x576 fp16\n", Chosen(dtype="bf16", out="fp32", layout="tn"))
    assert names == ["64x64x576.bf16.fp32.tn", "64x64x576.fp16.fp32.tn"]


def test_a_fast_line_may_leave_out_what_stands_before(tmp_path: Path) -> None:
    assert read(tmp_path / "s.txt", "16x16x512 e4m3 fast") == ["16x16x512.e4m3.bf16.tn.fast"]


def test_equal_shapes_are_compared_once_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "s.txt"
    path.write_text("8x8x64\n008x8x64 fp16\n8x8x64 fp16 fp16 nn\n")
    cases, repeats = cases_of(path)
    assert [c.name for c in cases] == ["8x8x64.fp16.fp16.nn"] and repeats == 2


@pytest.mark.parametrize(("line", "said"), [
    ("64x64", "2 sizes"), ("64x64x0", "not positive"), ("64x64x99999999999", "too large"), ("64x64x64 fp12", "fp12"),
    ("64x64x64 fp16 fp16 xx", "xx"), ("64x64x64 fp16 fp16 nn slow", "too many"), ("64x64x64 fp16 fast", "8-bit"),
    ("64x64x65 e4m3", "multiple of 16"), ("héllo", "3"),
])
def test_a_bad_line_is_named_by_its_number(line: str, said: str, tmp_path: Path) -> None:
    text = refused(tmp_path / "s.txt", f"8x8x64\n# fine\n{line}\n")
    assert text.startswith("s.txt, line 3: ") and said in text


def test_csv_and_parquet_say_the_same(tmp_path: Path) -> None:
    rows = pd.DataFrame({"m": [8, 16], "n": [8, 16], "k": [64, 512], "dtype": ["bf16", "e4m3"], "out": [None, "fp32"],
                         "fast": [False, True], "unrelated": [1, 2]})
    rows.to_csv(tmp_path / "s.csv", index=False)
    rows.to_parquet(tmp_path / "s.parquet")
    wanted = (Case("8x8x64", "bf16", "bf16"), Case("16x16x512", "e4m3", "fp32", "tn", True))
    assert cases_of(tmp_path / "s.csv") == cases_of(tmp_path / "s.parquet") == (wanted, 0)


def test_a_dataset_of_points_is_a_file_of_shapes(tmp_path: Path) -> None:
    probe.walk("16x16x96", dtype="bf16", out="fp32", library="sim", output=tmp_path / "point.parquet")
    assert [c.name for c in cases_of(tmp_path / "point.parquet")[0]] == ["16x16x96.bf16.fp32.nn"]


@pytest.mark.parametrize(("text", "said"), [
    ("m,n\n8,8\n", "no column shape"), ("shape,dtype\n8x8x64,fp16\n8x8x64\n", "line 3"), ("", "no column shape"),
    ("m,n,k\n8,8,x\n", "line 2: k = 'x' is not a whole number"), ("shape,fast\n8x8x64,perhaps\n", "line 2"),
])
def test_a_bad_csv(text: str, said: str, tmp_path: Path) -> None:
    assert said in refused(tmp_path / "s.csv", text)


def test_bad_files(tmp_path: Path) -> None:
    assert "neither a regime nor a file" in refused_path(tmp_path / "absent.txt") and "acceptance" in refused_path(tmp_path / "absent.txt")
    assert "holds no shape" in refused(tmp_path / "empty.txt", "# nothing\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    assert "not text" in refused_path(tmp_path / "binary.txt")
    (tmp_path / "no.parquet").write_text("8x8x64")
    assert "no Parquet" in refused_path(tmp_path / "no.parquet")
    pd.DataFrame({"m": [8], "n": [8], "k": [-1]}).to_parquet(tmp_path / "bad.parquet")
    assert "bad.parquet, row 1" in refused_path(tmp_path / "bad.parquet")
    with pytest.raises(EnvironmentProblem, match="cannot be read"):
        cases_of(tmp_path)  # a folder


def refused_path(path: Path) -> str:
    with pytest.raises(UsageError) as raised:
        cases_of(path)
    return str(raised.value)
