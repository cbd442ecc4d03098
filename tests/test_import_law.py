"""The import law at run time: import-linter reads the source, these tests look at what a fresh process has loaded.

Both take the floors from one place, the layers contract in pyproject.toml.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
GPU_PACKAGES = {"cupy", "cuda", "triton", "torch"}
HEAVY_PACKAGES = GPU_PACKAGES | {"numpy", "pandas", "pyarrow"}
FLOORS = ["roof", "upstairs", "hall", "doors", "core", "stones"]


@cache
def _contracts() -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {contract["id"]: contract for contract in settings["contracts"]}


def _floor(name: str) -> list[str]:
    """Full names of the modules of one floor."""
    layers = dict(zip(FLOORS, _contracts()["floors"]["layers"], strict=True))
    return [f"probe.{part.strip()}" for part in layers[name].replace("|", ":").split(":")]


def _loaded_after(code: str) -> set[str]:
    """Top-level names in sys.modules of a fresh interpreter after `code`. Raises if the code fails."""
    report = "\nimport json, sys\nprint('\\n' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code + report], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def _submodules(packages: list[str]) -> str:
    """Source text that imports the named modules and all that lies below them."""
    return f"""
import importlib, pkgutil
for name in {packages!r}:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        importlib.import_module(found.name)
"""


def test_the_probe_of_this_file_sees_a_loaded_package() -> None:
    assert "numpy" in _loaded_after("import numpy")


def test_the_contracts_name_every_module_of_their_floors() -> None:
    stones, core = _floor("stones"), _floor("core")
    assert sorted(_contracts()["stones"]["source_modules"]) == sorted(stones)
    assert sorted(_contracts()["core"]["source_modules"]) == sorted(stones + core)


def test_core_loads_no_gpu_package() -> None:
    loaded = _loaded_after(_submodules(_floor("stones") + _floor("core")))
    assert "numpy" in loaded
    assert not loaded & GPU_PACKAGES


def test_stones_load_the_standard_library_only() -> None:
    loaded = _loaded_after("import sys; before = set(sys.modules)\n" + _submodules(_floor("stones")))
    assert not loaded & (HEAVY_PACKAGES | {"typer", "click", "rich", "ml_dtypes"})


def test_doors_hall_and_upstairs_load_no_gpu_package_until_they_are_used() -> None:
    assert not _loaded_after(_submodules(_floor("doors") + _floor("hall") + _floor("upstairs"))) & GPU_PACKAGES


@pytest.mark.parametrize("arguments", [["--help"], ["walk", "--help"]])
def test_help_loads_no_heavy_package(arguments: list[str]) -> None:
    code = f"""
import runpy, sys
sys.argv = ["probe", *{arguments!r}]
try:
    runpy.run_module("probe", run_name="__main__", alter_sys=True)
except SystemExit as stop:
    assert stop.code in (0, None), stop.code
else:
    raise AssertionError("help did not exit")
"""
    assert not _loaded_after(code) & HEAVY_PACKAGES
