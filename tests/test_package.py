"""What a user gets from pip: the metadata, the data files, and no more packages than were promised."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import probe

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _installed() -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution("gemm-probe")
    except importlib.metadata.PackageNotFoundError:
        return None


needs_install = pytest.mark.skipif(_installed() is None, reason="gemm-probe is not installed here: pip install -e '.[test]'")


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9-]", one, maxsplit=1)[0] for one in requirements}


def test_the_data_files_are_beside_the_code() -> None:
    assert files("probe").joinpath("vendor_enums.json").is_file()


def test_torch_is_named_by_its_own_extra_only() -> None:
    extras = PROJECT["optional-dependencies"]
    assert [name for name, wanted in extras.items() if "torch" in _names(wanted)] == ["torch"]
    assert "torch" not in _names(PROJECT["dependencies"])


def test_every_direct_import_of_the_package_is_a_dependency() -> None:
    """A package that is only there because another one pulled it in goes away without a word."""
    promised = _names(PROJECT["dependencies"]).union(*map(_names, PROJECT["optional-dependencies"].values()))
    modules = {name.replace("-", "_") for name in promised}
    imported = {
        match
        for path in (ROOT / "probe").rglob("*.py")
        for match in re.findall(r"^\s*(?:import|from) ([a-z_0-9]+)", path.read_text(), flags=re.MULTILINE)
    }
    assert imported - set(sys.stdlib_module_names) - {"probe"} <= modules


@needs_install
def test_the_installed_metadata_is_this_project() -> None:
    metadata = importlib.metadata.metadata("gemm-probe")
    assert metadata["Version"] == probe.__version__
    assert metadata["License-Expression"] == "Apache-2.0"


@needs_install
def test_the_command_and_the_module_are_one_program() -> None:
    command = Path(sys.executable).with_name("probe")
    ways = [[str(command)], [sys.executable, "-m", "probe"]]
    told = [subprocess.run([*way, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout for way in ways]
    # Each names itself in the usage line: "probe" and "python -m probe".
    command_help, module_help = ([line for line in text.splitlines() if "Usage:" not in line] for text in told)
    assert command_help == module_help
    assert any("walk" in line for line in command_help)
