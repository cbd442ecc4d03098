"""Finding a library: the order of the steps, what they record, and what is refused."""

from pathlib import Path

import pytest

from probe.cublaslt.find import VARIABLE, Step, check_file, find_library
from probe.errors import EnvironmentProblem, UsageError


def _elf(path: Path) -> Path:
    """A file that passes for a shared library until somebody loads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF" + bytes(60))
    return path


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide installed wheels, so that the later steps are reached on any machine."""
    import importlib.metadata

    def gone(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", gone)


def test_an_option_wins_over_the_variable(tmp_path: Path) -> None:
    one, two = _elf(tmp_path / "a" / "libcublasLt.so.13"), _elf(tmp_path / "b" / "libcublasLt.so.13")
    found = find_library(str(one), {VARIABLE: str(two)})
    assert found.path == one.resolve() and found.won.step is Step.OPTION


def test_the_variable_is_the_whole_search_where_it_is_set(tmp_path: Path) -> None:
    file = _elf(tmp_path / "libcublasLt.so.13")
    found = find_library(None, {VARIABLE: str(file)})
    assert found.path == file.resolve()
    assert [s.step for s in found.steps] == [Step.OPTION, Step.VARIABLE]
    with pytest.raises(UsageError, match=VARIABLE):
        find_library(None, {VARIABLE: str(tmp_path / "none.so")})


def test_libcublas_in_place_of_libcublaslt_is_refused_by_name(tmp_path: Path) -> None:
    wrong = _elf(tmp_path / "libcublas.so.13")
    with pytest.raises(UsageError, match=r"is libcublas, not libcublasLt"):
        find_library(str(wrong), {})
    alias = tmp_path / "libcublasLt.so.13"
    alias.symlink_to(wrong)
    with pytest.raises(UsageError, match=r"is libcublas, not libcublasLt"):
        find_library(str(alias), {})


def test_a_file_that_is_no_library_gives_one_line_that_says_why(tmp_path: Path) -> None:
    text = tmp_path / "libcublasLt.so"
    text.write_text("INPUT(libcublasLt.so.13)")
    for path, says in [(text, "ELF"), (tmp_path, "not a file"), (tmp_path / "none", "does not exist")]:
        why = check_file(path)
        assert says in why and "\n" not in why
        with pytest.raises(UsageError, match=says):
            find_library(str(path), {})
    assert check_file(_elf(tmp_path / "libcublasLt.so.12")) == ""


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(UsageError, match="cu11"):
        find_library("cu11", {})


@pytest.mark.usefixtures("no_wheels")
def test_the_toolkit_comes_before_the_loader(tmp_path: Path) -> None:
    home = tmp_path / "cuda"
    in_toolkit = _elf(home / "lib64" / "libcublasLt.so.12")
    in_loader = _elf(tmp_path / "lib" / "libcublasLt.so.12")
    environ = {"CUDA_HOME": str(home), "LD_LIBRARY_PATH": str(in_loader.parent)}
    found = find_library("cu12", environ)
    assert found.path == in_toolkit.resolve() and found.won.step is Step.TOOLKIT
    in_toolkit.unlink()
    found = find_library("cu12", environ)
    assert found.path == in_loader.resolve() and found.won.step is Step.LOADER
    assert [s.step for s in found.steps[:2]] == [Step.OPTION, Step.WHEEL]
    assert all(s.path is None and s.note for s in found.steps[:-1])


@pytest.mark.usefixtures("no_wheels")
def test_where_nothing_is_found_every_step_is_told(tmp_path: Path) -> None:
    try:
        found = find_library(None, {"CUDA_HOME": str(tmp_path), "LD_LIBRARY_PATH": ""})
    except EnvironmentProblem as problem:
        said = problem
    else:
        pytest.skip(f"this machine has {found.path}, so the search cannot come back empty")
    for step in Step:
        assert step in said.message
    assert "nvidia-cublas" in said.hint
