"""Finding a library: the order of the steps, what they record, and what is refused."""

import zipfile
from pathlib import Path

import pytest
from store_parts import library_file, make_wheel, needs_cc

from probe.cublaslt.fetch import add
from probe.cublaslt.find import VARIABLE, Step, check_file, find_library
from probe.cublaslt.store import Store, store_root
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
    for step in set(Step) - {Step.STORE}:  # the store is looked through for names and versions only
        assert step in said.message
    assert "nvidia-cublas" in said.hint


def _keep(environ: dict[str, str], path: Path, name: str | None = None) -> Path:
    """Put a library into the store that these variables name; returns its file."""
    return add(Store(store_root(environ)), path, name=name, progress=lambda text: None, notice=lambda text: None).path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PROBE_HOME": str(tmp_path / "home"), "LD_LIBRARY_PATH": ""}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on sys.path where the wheel nvidia-cublas-cu12 12.9.1.4 is installed; the library file."""
    site = tmp_path / "site"
    with zipfile.ZipFile(make_wheel(tmp_path / "wheels", "12.9.1.4")) as wheel:
        wheel.extractall(site)
    monkeypatch.syspath_prepend(site)
    return site / "nvidia" / "cublas" / "lib" / "libcublasLt.so.12"


@needs_cc
@pytest.mark.usefixtures("no_wheels")
def test_a_stored_name_is_taken_from_the_option_and_the_variable(tmp_path: Path, environ: dict[str, str]) -> None:
    file = _keep(environ, library_file(tmp_path / "a"), "mine")
    found = find_library("mine", environ)
    assert found.path == file.resolve() and [s.step for s in found.steps] == [Step.OPTION, Step.STORE]
    assert found.stored is not None
    with found.stored.hold():
        pass
    found = find_library(None, {**environ, VARIABLE: "mine"})
    assert [s.step for s in found.steps] == [Step.OPTION, Step.VARIABLE, Step.STORE] and found.stored is not None
    assert find_library(str(file), environ).stored is None  # a path is a path


@needs_cc
@pytest.mark.usefixtures("no_wheels")
def test_a_version_prefix_takes_the_newest_by_components_and_says_so(tmp_path: Path, environ: dict[str, str]) -> None:
    files = {}
    for version in ("12.8.4.1", "12.8.10.2", "12.80.0.1"):
        files[version] = _keep(environ, make_wheel(tmp_path, version)).resolve()
    for version, number in (("13.1.0", 130100), ("13.10.0", 131000)):
        plain = library_file(tmp_path / version, "libcublasLt.so.13", version=number, soname="libcublasLt.so.13")
        files[version] = _keep(environ, plain).resolve()
    for prefix, version in [("12.8", "12.8.10.2"), ("12.8.4", "12.8.4.1"), ("12.8.4.1", "12.8.4.1"), ("12", "12.80.0.1"),
                            ("13.1", "13.1.0"), ("13", "13.10.0"), ("13.10.0", "13.10.0")]:
        found = find_library(prefix, environ)
        assert found.path == files[version] and found.won.step is Step.STORE, prefix
        assert f"version {version}, the newest match for {prefix} of" in found.won.note
    note = find_library("12.8", environ).won.note
    assert "12.8.4.1" in note and "12.8.10.2" in note and "12.80" not in note


@needs_cc
def test_installed_wheels_are_versions_too(tmp_path: Path, environ: dict[str, str], installed: Path) -> None:
    found = find_library("12.9", environ)
    assert found.path == installed.resolve() and found.won.step is Step.WHEEL and found.stored is None
    assert [s.step for s in found.steps] == [Step.OPTION, Step.STORE, Step.WHEEL]
    older = _keep(environ, make_wheel(tmp_path / "older", "12.9.0.13"))
    assert find_library("12.9", environ).path == installed.resolve() and "older" in find_library("12.9", environ).steps[1].note
    assert find_library("12.9.0", environ).path == older.resolve()
    same = _keep(environ, make_wheel(tmp_path / "same", "12.9.1.4"))
    assert find_library("12.9", environ).path == same.resolve()  # of equals the one whose hash was checked


@needs_cc
def test_an_installed_wheel_without_its_library_is_told(environ: dict[str, str], installed: Path) -> None:
    installed.unlink()
    with pytest.raises(EnvironmentProblem):
        find_library("12.9", environ)


@needs_cc
@pytest.mark.usefixtures("no_wheels")
def test_what_is_not_in_store_names_what_is_and_how_to_fetch(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"the store is empty.*probe library fetch RELEASE"):
        find_library("nothing", environ)
    _keep(environ, make_wheel(tmp_path, "12.8.4.1"))
    with pytest.raises(UsageError, match=r"there are cublas-12\.8\.4\.1 \(12\.8\.4\).*fetch 'nvidia-cublas==13\.2\.\*'"):
        find_library("13.2", environ)
    with pytest.raises(UsageError, match=r"fetch 'nvidia-cublas-cu12==12\.8\.5\.5'"):
        find_library("12.8.5.5", environ)
    with pytest.raises(UsageError, match="CUDA 12 or 13"):
        find_library("11.8", environ)


@needs_cc
@pytest.mark.usefixtures("no_wheels")
def test_a_stored_file_that_vanished_is_told_and_not_replaced(tmp_path: Path, environ: dict[str, str]) -> None:
    _keep(environ, make_wheel(tmp_path, "12.8.4.1"))
    _keep(environ, make_wheel(tmp_path, "12.8.5.5")).unlink()
    for option in ("cublas-12.8.5.5", "12.8"):
        with pytest.raises(EnvironmentProblem, match=r"cublas-12\.8\.5\.5 cannot be used: file missing.*library remove"):
            find_library(option, environ)


@needs_cc
@pytest.mark.usefixtures("no_wheels")
def test_a_name_that_is_a_file_here_as_well_is_said(tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = _elf(tmp_path / "mine")
    assert find_library("mine", environ).path == here.resolve()
    stored = _keep(environ, library_file(tmp_path / "a"), "mine")
    found = find_library("mine", environ)
    assert found.path == stored.resolve() and "./mine is another file" in found.won.note
    assert find_library("./mine", environ).path == here.resolve()
