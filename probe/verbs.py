"""The verbs of probe as Python functions, the same names as on the command line."""

from __future__ import annotations

from pathlib import Path

from probe.errors import Declined, UsageError
from probe.oracle import SIMULATED_LIBRARIES, open_oracle
from probe.pipeline import Progress, walk_problem
from probe.preference import Preference
from probe.problem import DType, Layout, Problem
from probe.records import Point, check_output, write_point
from probe.values import check_int, parse_enum

MAX_SEED = 2**60 - 1  # four streams are drawn from a seed and must stay apart in 62 bits


def walk(shape: str, dtype: str = "fp16", out: str | None = None, layout: str | None = None, *, workspace_bytes: int = 32 * 2**20,
         reduction_schemes: int = 7, fast_accumulation: bool = False, library: str | None = None, gpu: int = 0,
         exhaustive: bool = False, seed: int | None = None, output: Path | str | None = None,
         progress: Progress = lambda step: None, notice: Progress = lambda text: None) -> Point | Declined:
    """Recover and prove the summation order of one shape.

    shape: "MxNxK". dtype: fp16, bf16 or e4m3. out: output dtype, default the input dtype (bf16 for e4m3). layout: nn, tn, nt, tt,
    default nn (tn for e4m3). workspace_bytes and reduction_schemes (0 to 7: 1 in place, 2 compute type, 4 output type): what the library
    may use.
    library: a path, cu12, cu13, the name of a stored library, a version prefix ("12.8") or sim; None is the GPU with the installed cuBLASLt
    or, said through `notice`, the simulated library.
    seed: 0 to 2^60 - 1; None is a fresh one, which the point names. output: a new .parquet or .json file. progress: called with the name of
    each step. Returns the point, confirmed or not (`point.outcome`), or a decline, and then writes no file. Everything that the caller
    gave is checked before a library is opened. Raises UsageError, EnvironmentProblem or LibraryError.
    """
    m, n, k = Problem.parse_shape(shape)
    problem = Problem.gemm(m, n, k, parse_enum("dtype", dtype, DType), None if out is None else parse_enum("out", out, DType),
                           None if layout is None else parse_enum("layout", layout, Layout), fast_accumulation)
    check_int("reduction_schemes", reduction_schemes, 0, 7, "0 to 7, a sum of 1 in place, 2 compute type, 4 output type")
    preference = Preference(workspace_bytes=workspace_bytes, reduction_scheme_mask=reduction_schemes)
    check_int("gpu", gpu, 0, 1023)
    if library in SIMULATED_LIBRARIES and gpu != 0:
        raise UsageError(f"the simulated library runs on no GPU, so there is no number {gpu}", "leave out gpu, or name another library")
    if seed is not None:
        check_int("seed", seed, 0, MAX_SEED)
    path = None if output is None else Path(output)
    if path is not None:
        check_output(path)
    opened = open_oracle(library, gpu)
    for text in (opened.notice, opened.oracle.announcement):
        if text:
            notice(text)
    point = walk_problem(problem, preference, opened, exhaustive=exhaustive, seed=seed, progress=progress)
    if path is not None and isinstance(point, Point):
        write_point(point, path)
    return point
