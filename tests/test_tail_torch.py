"""The script for a machine with torch: what it refuses, what it makes of outputs, its sweep; all of it where torch is installed."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tools import tail_torch

SCRIPT = Path(tail_torch.__file__)


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], cwd=folder, capture_output=True, text=True, timeout=250, check=False)


class Output:
    """An output tensor, as far as the script looks at one."""

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most

    def float(self) -> Output:
        return self

    def min(self) -> float:
        return self._least

    def max(self) -> float:
        return self._most


class Operands:
    narrow = False

    def pair(self, m: int, n: int, k: int) -> tuple[None, None]:
        return None, None


def test_it_needs_python_and_torch_alone() -> None:
    tree = ast.parse(SCRIPT.read_text())
    names = {a.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= {*sys.stdlib_module_names, "torch"}
    assert not any("torch" in line and line.startswith(("import", "from")) for line in SCRIPT.read_text().splitlines())


def test_what_cannot_run_is_one_line_and_writes_nothing(tmp_path: Path) -> None:
    wanted = "torch cannot be imported" if importlib.util.find_spec("torch") is None else "torch shows no GPU"
    if wanted == "torch shows no GPU":
        import torch
        if torch.cuda.is_available():
            pytest.skip("torch and a GPU are here: it can run")
    ended = run("-o", "torch.json", folder=tmp_path)
    assert ended.returncode == 2 and wanted in ended.stderr and len(ended.stderr.splitlines()) == 1
    assert "there is no folder" in run("-o", "nowhere/torch.json", folder=tmp_path).stderr
    assert "is not MxNxK" in run("-o", "torch.json", "8x8", folder=tmp_path).stderr
    assert not list(tmp_path.iterdir())
    (tmp_path / "torch.json").write_text("")
    ended = run("-o", "torch.json", folder=tmp_path)
    assert ended.returncode == 2 and "not overwritten" in ended.stderr


def test_an_output_tells_what_is_lost() -> None:
    def fails() -> Output:
        raise RuntimeError("no\nsuch kernel")

    assert tail_torch.measure(lambda: Output(256, 256), 256)["lost"] == 0
    assert tail_torch.measure(lambda: Output(248, 256), 256)["lost"] == 8
    assert tail_torch.measure(lambda: Output(256, 257), 256)["lost"] is None  # too many: no count at all
    assert tail_torch.measure(lambda: Output(math.nan, math.nan), 256) == {"units": 256, "least": None, "most": None, "lost": None}
    assert tail_torch.measure(fails, 256) == {"refused": "no such kernel"}


def test_a_sweep_stops_at_the_first_short_sum_or_at_its_time() -> None:
    def loses_from(least: int):  # type: ignore[no-untyped-def]
        return lambda a, b, m, n, k: Output(256 - 8 * (k >= least), 256)

    got = tail_torch.sweep(None, loses_from(3000), Operands(), 1, 16, math.inf, 9000)  # type: ignore[arg-type]
    steps = [k for k in range(64 * 8 + 8, 9001, 64) if k >= 3000]
    assert got["smallest_k"] == steps[0] and got["lost"] == 8 and got["to_k"] == steps[0]
    assert tail_torch.sweep(None, loses_from(99_999), Operands(), 1, 16, math.inf, 9000)["smallest_k"] is None  # type: ignore[arg-type]
    late = tail_torch.sweep(None, loses_from(3000), Operands(), 1, 16, 0.0, 9000)  # type: ignore[arg-type]
    assert late["ended_early"] and late["ran"] == 0


@pytest.mark.slow
def test_every_operator_runs_on_the_cpu_and_counts_right(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ended = run("-o", "torch.json", "--device", "cpu", "--seconds", "5", "--most-k", "700", "1x16x1040", folder=tmp_path)
    document = json.loads((tmp_path / "torch.json").read_text())
    assert ended.returncode == 1 and document["kind"] == tail_torch.KIND
    ran = [c for c in document["cases"] if "refused" not in c]
    assert {c["operator"].split(",")[0] for c in ran} >= {"matmul", "addmm", "linear", "linear with bias", "_scaled_mm"}
    assert all(c["lost"] == 0 and c["units"] == tail_torch.WINDOW for c in ran)
