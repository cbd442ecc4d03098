"""Find the release that mends the lost tail: which to test next, how a release gets to a machine without a network, and what is run there.

    python -m tools.tail_bisect next reports/splitk-tail 13.1.2.11 13.2.2.2 13.3.0.5 ...   # which of these to measure next, and why
    python -m tools.tail_bisect pack nvidia-cublas==13.2.2.2 .recon/parts/13.2.2.2         # pip, xz, parts of 54 MB, SHA256 beside them
    python -m tools.tail_bisect calls .recon/parts/13.2.2.2                               # the calls that bring it there and measure it
    python -m tools.tail_bisect measure LIBRARY FOLDER --force-from NAME.answers.json      # there: verb and script, scan, forced answers

`calls` prints one JSON object a call: `carry`, the file that has to travel with the tree, and `command`, run in the tree's root on that
machine, which must keep its /tmp between calls. The last command measures and leaves its files in $OUT; they go to reports/splitk-tail/,
and then `probe bug splitk-tail --report -o reports/splitk-tail` tells. The parts' folder is one that git ignores and lies in the tree.
`next` takes the state of a release from what the folder holds and goes half way between the last release with the fault and the
first without it, per major release. A branch's late patch may be mended before the next branch's first release: only what was measured is
said.
Exit codes: 0 done, 1 a step of `measure` failed (the others are kept), 2 usage, 4 environment.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probe.errors import EnvironmentProblem, LibraryError, UsageError
from probe.tail.results import Release, State, read_results
from probe.vendor import numbers

PART_BYTES = 54_000_000  # with the tree below what one call may carry, 64 MiB
_PLATFORMS = ("manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64")
_CASES, _CASE_SECONDS = 8, 8.0  # forced answers, and the time of each: a machine's command must end though each of them hangs
_VERB_SECONDS, _MORE_SECONDS = 240.0, 60.0  # limits: of the verb, and of the others beyond what they are given


# Which next

def choose(releases: Sequence[Release], candidates: Sequence[str]) -> list[tuple[str | None, str]]:
    """(release to measure next or None, why), for each major release among the candidates. candidates: wheel versions, "13.2.2.2"."""
    out: list[tuple[str | None, str]] = []
    for major in dict.fromkeys(numbers(c)[0] for c in candidates):
        branch = [one for one in releases if numbers(one.version)[0] == major]
        tested = {numbers(one.version): one.state for one in branch if one.state is not State.UNTESTED}
        wanted = sorted((c for c in candidates if numbers(c)[0] == major and numbers(c)[:3] not in tested), key=numbers)
        short = [v for v, state in tested.items() if state is State.SHORT]
        whole = [v for v, state in tested.items() if state is State.WHOLE]
        if not short or not whole:
            state = "with" if short else "without" if whole else "either with or without"
            known = "only releases " + state + " the fault" if tested else "nothing"
            out.append((wanted[len(wanted) // 2] if wanted else None, f"{major}: {known} is tested"))
            continue
        last = max(short)
        first = min((v for v in whole if v > last), default=None)
        if first is None:
            out.append((None, f"{major}: {_dots(last)} has the fault and a release before it has not: no single release mends it"))
            continue
        between = [c for c in wanted if last < numbers(c)[:3] < first]
        if between:
            why = f"{major}: {_dots(last)} has the fault, {_dots(first)} has not, {len(between)} between"
            out.append((between[(len(between) - 1) // 2], why))
        else:
            rest = f"; not tested: {', '.join(wanted)}" if wanted else ""
            out.append((None, f"{major}: mended between {_dots(last)} and {_dots(first)}{rest}"))
    return out


def _dots(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


# Packing

def pack(requirement: str, folder: Path, part_bytes: int = PART_BYTES, pip_options: Sequence[str] = ()) -> list[Path]:
    """Fetch a wheel with pip, take its libcublasLt, and write it to `folder` as parts p00, p01, ... of one xz stream, and SHA256.

    SHA256 holds the hash of the library and its file name. Raises UsageError where the folder is there, EnvironmentProblem.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists and is not overwritten", "another folder, or remove it first")
    if shutil.which("xz") is None:
        raise EnvironmentProblem("there is no xz here", "install xz-utils")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        work = Path(name)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version", "3.12",
                   *pip_options]
        for platform in _PLATFORMS:
            command += ["--platform", platform]
        ended = subprocess.run([*command, "-d", str(work), requirement], capture_output=True, text=True, check=False)
        wheels = list(work.glob("*.whl"))
        if ended.returncode or not wheels:
            said = " ".join(ended.stderr.split())[-200:]
            raise EnvironmentProblem(f"pip cannot fetch {requirement}: {said}", "`pip index versions` lists releases")
        with zipfile.ZipFile(wheels[0]) as wheel:
            members = [n for n in wheel.namelist() if "libcublasLt.so" in Path(n).name]
            if not members:
                raise UsageError(f"{requirement} holds no libcublasLt", "nvidia-cublas==13.x or nvidia-cublas-cu12==12.x")
            library = work / Path(members[0]).name
            with wheel.open(members[0]) as source, library.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 24)
        made = work / "parts"
        made.mkdir()
        with library.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        (made / "SHA256").write_text(f"{digest}  {library.name}\n")
        _split(library, made, part_bytes)
        made.rename(folder)
    return sorted(folder.glob("p[0-9]*"))


def _split(library: Path, folder: Path, part_bytes: int) -> None:
    with subprocess.Popen(["xz", "-T0", "-1", "-c", str(library)], stdout=subprocess.PIPE) as packer:
        assert packer.stdout is not None
        for number in range(100):
            data = packer.stdout.read(part_bytes)
            if not data:
                break
            (folder / f"p{number:02d}").write_bytes(data)
    if packer.returncode:
        raise EnvironmentProblem(f"xz ended with {packer.returncode}", "its own words are above")


# The calls

def calls(folder: Path, measure_options: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One object a call: what it carries and its command. Raises UsageError where the folder holds no parts."""
    parts = sorted(p for p in folder.glob("p*") if p.name.lstrip("part.").isdigit())  # p00 and part.00
    if not parts or not (folder / "SHA256").is_file():
        raise UsageError(f"{folder} holds no packed library", "`python -m tools.tail_bisect pack` makes one")
    digest, name = (folder / "SHA256").read_text().split()
    there = f"/tmp/{folder.name}"
    out = []
    for number, part in enumerate(parts):
        start = f"rm -rf {there} && mkdir {there} && " if number == 0 else ""
        out.append({"carry": [str(part)], "command": f"{start}cat {shlex.quote(str(part))} >> {there}/lt.xz"})
    library = f"{there}/{name}"
    out[-1]["command"] += (f" && xz -dc {there}/lt.xz > {library} && rm {there}/lt.xz && echo '{digest}  {library}' | sha256sum -c && "
                           f"PYTHONPATH=. python3 -W ignore -m tools.tail_bisect measure {library} $OUT "
                           f"{shlex.join(measure_options)}").rstrip()
    return out


# Measuring

def measure(library: Path, folder: Path, options: argparse.Namespace) -> int:
    """The steps, each a child with a time limit, their files in `folder`. A step that fails costs no other."""
    version = version_of(library)
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", "a folder for the results")
    tag = version + (f"-{options.tag}" if options.tag else "")
    python = [sys.executable, "-W", "ignore", "-m"]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        scan = work / f"scan-{tag}.parquet"
        steps: list[tuple[str, list[str], float, tuple[int, ...]]] = [
            ("verb", [*python, "probe", "bug", "splitk-tail", "--library", str(library), "-o", str(work), "--most-k", str(options.most_k)],
             _VERB_SECONDS, (0, 1)),
            ("scan", [*python, "tools.tail_scan", "--library", str(library), "--seconds", str(options.seconds), "--processes",
                      str(options.processes), "--most-k", str(options.scan_k), "-o", str(scan)], options.seconds + _MORE_SECONDS, (0,))]
        if options.force_from:
            steps.append(("forced", [*python, "tools.tail_scan", "--library", str(library), "--force-from", options.force_from,
                                     "--problems", str(_CASES), "--case-seconds", str(_CASE_SECONDS), "-o",
                                     str(work / f"forced-{tag}.json")],
                          2 * _CASES * _CASE_SECONDS + _MORE_SECONDS, (0,)))
        if options.reach:
            steps.append(("reach", [*python, "tools.tail_reach", "--library", str(library), "--seconds", str(options.reach), "--processes",
                                    str(options.processes), "-o", str(work / f"reach-{tag}.parquet")], options.reach + _MORE_SECONDS,
                          (0, 1)))
        for step, command, limit, good in steps:
            began = time.monotonic()
            code = _run(command, limit)
            failed += code not in good
            outcome = f"did not end within {limit:g} s" if code is None else f"ended with {code}"
            print(json.dumps({"step": step, "outcome": outcome, "seconds": round(time.monotonic() - began, 1)}), flush=True)
            for made in sorted(work.iterdir()):  # at once: a call that is stopped from outside keeps what was done
                target = folder / made.name
                if made.is_file() and not made.name.startswith(".") and not target.exists():
                    shutil.copyfile(made, target)
    print(json.dumps({"library": version, "files": sorted(p.name for p in folder.iterdir()), "failed": failed}))
    return 1 if failed else 0


def _run(command: list[str], limit: float) -> int | None:
    """Exit code of a child, None where it was ended at its time limit, its own children with it."""
    child = subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)
    try:
        return child.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return None


def version_of(library: Path) -> str:
    """"13.2.2" as the file says. Raises UsageError for a file that is no cuBLASLt. The GPU is not touched."""
    try:
        functions = ctypes.CDLL(str(library.absolute()))
        functions.cublasLtGetVersion.restype = ctypes.c_size_t
        number = int(functions.cublasLtGetVersion())
    except (OSError, AttributeError) as error:
        raise UsageError(f"{library} is no cuBLASLt that loads: {error}", "the path of libcublasLt.so.12 or .13") from None
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _options(arguments: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m tools.tail_bisect", description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    ask = verbs.add_parser("next", help="which release to measure next")
    ask.add_argument("folder", type=Path)
    ask.add_argument("releases", nargs="+", help="wheel versions that can be had")
    make = verbs.add_parser("pack", help="fetch a release and make parts of it")
    make.add_argument("requirement")
    make.add_argument("folder", type=Path)
    make.add_argument("--part-bytes", type=int, default=PART_BYTES)
    make.add_argument("--pip", default="", help="further options for pip, as one word")
    told = verbs.add_parser("calls", help="the calls for a packed release; options of `measure` are handed on")
    told.add_argument("folder", type=Path)
    run = verbs.add_parser("measure", help="everything about one release, on the machine with the GPU")
    run.add_argument("library", type=Path)
    run.add_argument("folder", type=Path)
    run.add_argument("--seconds", type=float, default=20.0, help="of the scan")
    run.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    run.add_argument("--most-k", type=int, default=65_536, help="of the verb")
    run.add_argument("--scan-k", type=int, default=1_000_000, help="largest K of the scan")
    run.add_argument("--force-from", help="NAME.answers.json of a scan of a release with the fault")
    run.add_argument("--reach", type=float, default=0.0, help="seconds for tools.tail_reach; 0 leaves it out")
    run.add_argument("--tag", default="", help="ends the names of the tables, for a second scan of a release")
    options, more = parser.parse_known_args(arguments)
    if more and options.verb != "calls":
        parser.error(f"unknown: {' '.join(more)}")
    return options, more


def main(arguments: list[str] | None = None) -> int:
    options, more = _options(arguments)
    try:
        if options.verb == "next":
            for release, why in choose(read_results(options.folder).releases, options.releases):
                print(f"{release or '-'}: {why}")
        elif options.verb == "pack":
            for part in pack(options.requirement, options.folder, options.part_bytes, shlex.split(options.pip)):
                print(f"{part} {part.stat().st_size:,}")
        elif options.verb == "calls":
            for call in calls(options.folder, more):
                print(json.dumps(call))
        else:
            return measure(options.library, options.folder, options)
    except (UsageError, EnvironmentProblem, LibraryError) as error:
        print(f"tail_bisect: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
