"""`probe library`: the store of libraries. Releases are data: fetch, add, list, remove."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from probe.cublaslt.stored import StoredLibrary

EPILOG = """Examples:

\b
probe library fetch nvidia-cublas-cu12==12.8.5.5
probe library fetch 'nvidia-cublas-cu12==12.9.*'
probe library list --verify
probe walk --shape 64x64x4096 --library 12.8

The store is $PROBE_HOME/libraries, else $XDG_CACHE_HOME/probe/libraries, else ~/.cache/probe/libraries. What is fetched is NVIDIA's,
under the NVIDIA EULA, whose text is kept beside it."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, epilog=EPILOG,
                  help="Keep releases of cuBLASLt side by side, outside the environment.")

_NAME = typer.Option(help="Its name in the store. Default: cublas-VERSION.")
_SHA256 = typer.Option("--sha256", help="SHA-256 that the file must have, else it is refused.")
_JSON = typer.Option("--json", help="One JSON document on stdout, also for a failure.")


@app.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        from probe.cli.stream import emit
        from probe.errors import ExitCode

        emit(context.get_help())
        raise typer.Exit(int(ExitCode.USAGE))


@app.command("fetch")
def fetch(
    release: Annotated[str, typer.Argument(help="As pip takes it: nvidia-cublas-cu12==12.8.5.5 or nvidia-cublas==13.1.0.3.")],
    name: Annotated[str | None, _NAME] = None,
    sha256: Annotated[str | None, _SHA256] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Download a release with pip and keep its libcublasLt alone."""
    from probe.cli.stream import progress_line, say
    from probe.libraries import fetch_library

    with progress_line() as progress:
        library = fetch_library(release, name=name, sha256=sha256, progress=progress, notice=say)
    _show(library, as_json)


@app.command("add")
def add(
    path: Annotated[Path, typer.Argument(help="A libcublasLt.so.N, or a wheel that holds one. It is copied.")],
    name: Annotated[str | None, _NAME] = None,
    sha256: Annotated[str | None, _SHA256] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Keep a copy of a library file, or of the one in a wheel."""
    from probe.cli.stream import progress_line, say
    from probe.libraries import add_library

    with progress_line() as progress:
        library = add_library(path, name=name, sha256=sha256, progress=progress, notice=say)
    _show(library, as_json)


@app.command("list", epilog="Exit codes: 0 all are as recorded, 1 one is not, 4 the store cannot be read.")
def list_(
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file again; else only its size is looked at.")] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """What is in the store."""
    from probe.cli.stream import emit, emit_json, progress_line
    from probe.cublaslt.store import store_root
    from probe.cublaslt.stored import State
    from probe.errors import ExitCode
    from probe.libraries import list_libraries

    with progress_line() as progress:
        listed = list_libraries(verify=verify, progress=progress)
    if as_json:
        emit_json({"kind": "stored_libraries", "root": str(store_root()), "verified": verify,
                   "libraries": [one.to_document() for one in listed]})
    elif not listed:
        emit(f"no library in {store_root()}; probe library fetch nvidia-cublas-cu12==12.8.5.5 brings one")
    else:
        rows = [("name", "reports", "wheel", "sha256", "MB", "state", "origin")]
        for one in listed:
            r = one.library.record
            if r is None:
                rows.append((one.library.name, "-", "-", "-", "-", str(one.state), one.library.problem))
            else:
                wheel = f"{r.distribution} {r.wheel_version}" if r.distribution else "-"
                rows.append((r.name, r.version, wheel, r.file_sha256[:16], f"{r.file_bytes / 1e6:.1f}", str(one.state), r.origin))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        emit("\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows))
    raise typer.Exit(int(ExitCode.OK if all(one.state is State.OK for one in listed) else ExitCode.NOT_CONFIRMED))


@app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="A name that probe library list shows.")],
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Take a library out of the store. Refused while a process uses it."""
    from probe.cli.stream import emit, emit_json
    from probe.libraries import remove_library

    library = remove_library(name)
    if as_json:
        emit_json(library.to_document() | {"state": "removed"})
    else:
        emit(f"removed {library.name}")


def _show(library: StoredLibrary, as_json: bool) -> None:
    """What was kept, and under which terms."""
    from probe.cli.stream import emit, emit_json

    r = library.record
    assert r is not None  # it was written a moment ago
    if as_json:
        emit_json(library.to_document() | {"state": "ok"})
        return
    wheel = [f"{'wheel':<9}{r.distribution} {r.wheel_version}, sha256 {r.wheel_sha256}"] if r.distribution else []
    licence = f"{r.licence}" + (f": {library.folder / r.licence_file}" if r.licence_file else "")
    emit("\n".join([
        f"{'name':<9}{r.name}", f"{'version':<9}{r.version}, as the library reports it; {r.soname}", *wheel,
        f"{'file':<9}{library.path}", f"{'sha256':<9}{r.file_sha256}", f"{'size':<9}{r.file_bytes / 1e6:.1f} MB",
        f"{'origin':<9}{r.origin}", f"{'licence':<9}{licence}", f"{'use':<9}--library {r.name}, or --library {r.release}"]))
