"""The verbs of probe as Python functions, the same names as on the command line."""

from __future__ import annotations

import secrets
from pathlib import Path

from probe.apart import TIME_LIMIT, needs_child, walk_apart
from probe.children import Child
from probe.errors import Declined, UsageError
from probe.forced import Forced
from probe.oracle import SIMULATED_LIBRARIES, open_oracle
from probe.pipeline import Progress, walk_problem
from probe.preference import Preference, parse_alignments
from probe.problem import DType, Layout, Problem
from probe.records import Point, check_output, write_point
from probe.values import check_int, parse_enum

MAX_SEED = 2**60 - 1  # four streams are drawn from a seed and must stay apart in 62 bits


def walk(shape: str, dtype: str = "fp16", out: str | None = None, layout: str | None = None, *, workspace_bytes: int = 32 * 2**20,
         reduction_schemes: int = 7, fast_accumulation: bool = False, lda: int | None = None, ldb: int | None = None,
         ldd: int | None = None, a_offset: int = 0, b_offset: int = 0, d_offset: int = 0, align: str = "true", force: str | None = None,
         library: str | None = None, gpu: int = 0, exhaustive: bool = False, seed: int | None = None, time_limit: float | None = None,
         output: Path | str | None = None, progress: Progress = lambda step: None, notice: Progress = lambda text: None,
         ) -> Point | Declined:
    """Recover and prove the summation order of one shape.

    shape: "MxNxK". dtype: fp16, bf16 or e4m3. out: output dtype, default the input dtype (bf16 for e4m3). layout: nn, tn, nt, tt,
    default nn (tn for e4m3). workspace_bytes and reduction_schemes (0 to 7: 1 in place, 2 compute type, 4 output type): what the library
    may use. lda, ldb, ldd: elements between two rows as stored, None is packed; a_offset, b_offset, d_offset: bytes from a 256-byte
    boundary to the first element; of the output (D, and C in the same memory) as of A and B.
    align: the alignment that the library may count on: "true", that of these addresses; "default", 256 bytes, as it assumes of a caller
    who says nothing; or a number of bytes. force: "splitk_num=4" varies the library's own answer, "algo_id=66,splitk_num=4" starts from
    that algorithm's defaults.
    library: a path, cu12, cu13, the name of a stored library, a version prefix ("12.8") or sim; None is the GPU with the installed cuBLASLt
    or, said through `notice`, the simulated library.
    seed: 0 to 2^60 - 1; None is a fresh one, which the point names. time_limit: seconds; the walk then runs in a child process. What may
    fault or hang (a forced answer, a promised alignment that the addresses lack) always does, within 300 s unless said otherwise.
    output: a new .parquet or .json file. progress: called with the name of each step. Returns the point, confirmed or not
    (`point.outcome`), or a decline, and then writes no file. Everything that the caller gave is checked before a library is opened.
    Raises UsageError, EnvironmentProblem or LibraryError, and ChildBug for a bug in a child.
    """
    m, n, k = Problem.parse_shape(shape)
    problem = Problem.gemm(m, n, k, parse_enum("dtype", dtype, DType), None if out is None else parse_enum("out", out, DType),
                           None if layout is None else parse_enum("layout", layout, Layout), fast_accumulation,
                           lda=lda, ldb=ldb, ldc=ldd, ldd=ldd, a_offset_bytes=a_offset, b_offset_bytes=b_offset,
                           c_offset_bytes=d_offset, d_offset_bytes=d_offset)
    check_int("reduction_schemes", reduction_schemes, 0, 7, "0 to 7, a sum of 1 in place, 2 compute type, 4 output type")
    preference = Preference(workspace_bytes=workspace_bytes, reduction_scheme_mask=reduction_schemes, **parse_alignments(align),
                            forced=None if force is None else Forced.parse(force))
    check_int("gpu", gpu, 0, 1023)
    if library in SIMULATED_LIBRARIES and gpu != 0:
        raise UsageError(f"the simulated library runs on no GPU, so there is no number {gpu}", "leave out gpu, or name another library")
    if seed is not None:
        check_int("seed", seed, 0, MAX_SEED)
    if time_limit is not None:
        check_time("time_limit", time_limit)
    path = None if output is None else Path(output)
    if path is not None:
        check_output(path)
    if time_limit is not None or needs_child(problem, preference):
        limit = TIME_LIMIT if time_limit is None else time_limit
        point = _walk_in_child(problem, preference, library, gpu, exhaustive, seed, limit, progress, notice)
    else:
        opened = open_oracle(library, gpu)
        _say(notice, opened.notice, opened.oracle.announcement)
        point = walk_problem(problem, preference, opened, exhaustive=exhaustive, seed=seed, progress=progress)
    if path is not None and isinstance(point, Point):
        write_point(point, path)
    return point


def _walk_in_child(problem: Problem, preference: Preference, library: str | None, gpu: int, exhaustive: bool, seed: int | None,
                   time_limit: float, progress: Progress, notice: Progress) -> Point | Declined:
    with Child(library, gpu) as child:
        progress("open")
        identity = child.identify()
        _say(notice, identity.notice, identity.announcement)
        fresh = secrets.randbits(48) if seed is None else seed
        return walk_apart(child, problem, preference, fresh, exhaustive=exhaustive, time_limit=time_limit, progress=progress)


def _say(notice: Progress, *texts: str) -> None:
    for text in texts:
        if text:
            notice(text)


def check_time(name: str, value: float) -> float:
    """Return `value` if it is a number of seconds that can be waited for, else raise UsageError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**6:
        raise UsageError(f"{name} = {value!r} is no time", "seconds, more than 0")
    return value
