"""The verbs of probe as Python functions, the same names as on the command line."""

from __future__ import annotations

from pathlib import Path

from probe.errors import Declined
from probe.oracle import open_oracle
from probe.pipeline import Progress, walk_problem
from probe.preference import Preference
from probe.problem import DType, Layout, Problem
from probe.records import Point, check_output, write_point
from probe.values import parse_enum


def walk(shape: str, dtype: str = "fp16", out: str | None = None, layout: str | None = None, *, workspace_bytes: int = 32 * 2**20,
         reduction_schemes: int = 7, fast_accumulation: bool = False, library: str | None = None, gpu: int = 0,
         exhaustive: bool = False, seed: int | None = None, output: Path | None = None,
         progress: Progress = lambda step: None, notice: Progress = lambda text: None) -> Point | Declined:
    """Recover and prove the summation order of one shape.

    shape: "MxNxK". dtype: fp16, bf16 or e4m3. out: output dtype, default the input dtype (bf16 for e4m3). layout: nn, tn, nt, tt, default nn
    (tn for e4m3). library: a path, cu12, cu13 or sim; None is the GPU with the installed cuBLASLt or, said through `notice`, the
    simulated library. output: a new .parquet or .json file. Raises UsageError, EnvironmentProblem or LibraryError.
    """
    m, n, k = Problem.parse_shape(shape)
    problem = Problem.gemm(m, n, k, parse_enum("dtype", dtype, DType), None if out is None else parse_enum("out", out, DType),
                           None if layout is None else parse_enum("layout", layout, Layout), fast_accumulation)
    preference = Preference(workspace_bytes=workspace_bytes, reduction_scheme_mask=reduction_schemes)
    if output is not None:
        check_output(output)
    opened = open_oracle(library, gpu)
    for text in (opened.notice, opened.oracle.announcement):
        if text:
            notice(text)
    point = walk_problem(problem, preference, opened, exhaustive=exhaustive, seed=seed, progress=progress)
    if output is not None and isinstance(point, Point):
        write_point(point, output)
    return point
