"""`probe walk`: one shape, from the question to the proof."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    shape: Annotated[str, typer.Option(help="MxNxK of C (M x N) = A @ B, for example 64x64x4096.")],
    dtype: Annotated[str, typer.Option(help="Input dtype: fp16, bf16 or e4m3.")] = "fp16",
    out: Annotated[str | None, typer.Option(help="Output dtype: fp32, fp16 or bf16. Default: the input dtype; bf16 for e4m3.")] = None,
    layout: Annotated[str | None, typer.Option(help="nn (A @ B), tn (x @ w.T, nn.Linear), nt or tt. Default nn; tn for e4m3.")] = None,
    workspace: Annotated[str, typer.Option(help="Workspace that the library may use, for example 32MiB or 0.")] = "32MiB",
    reduction_schemes: Annotated[int, typer.Option(help="Mask of allowed split-K reduction schemes: 1 in place, 2 compute type, 4 output type.")] = 7,
    fast_accumulation: Annotated[bool, typer.Option("--fast-accumulation", help="e4m3: the library's fast accumulation mode.")] = False,
    library: Annotated[str | None, typer.Option(help="cu12, cu13, a path to libcublasLt, or sim. Default: the GPU and the installed "
                                                     "library, or, announced, the simulated one.")] = None,
    gpu: Annotated[int, typer.Option(help="Number of the GPU.")] = 0,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Read every index instead of only what is still open.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of all draws. Default: a fresh one, which the record names.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole record as JSON on stdout.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the point to a new .parquet or .json file.")] = None,
) -> None:
    """Learn in which order the library sums one shape, how that was found out, and whether it is true."""
    from probe.cli.show import print_point, progress_line, say
    from probe.errors import Declined
    from probe.preference import parse_bytes
    from probe.verbs import walk

    with progress_line() as progress:
        point = walk(shape, dtype, out, layout, workspace_bytes=parse_bytes(workspace), reduction_schemes=reduction_schemes,
                     fast_accumulation=fast_accumulation, library=library, gpu=gpu, exhaustive=exhaustive, seed=seed, output=output,
                     progress=progress, notice=say)
    if isinstance(point, Declined):
        if as_json:
            print(json.dumps({"kind": "declined", "reason": str(point.reason), "text": point.text, "hint": point.hint}))
        else:
            say(f"declined: {point}")
        sys.exit(int(point.exit_code))
    if as_json:
        print(json.dumps(point.to_document()))
    else:
        print_point(point)
        if output is not None:
            print(f"written   {output}")
    sys.exit(int(point.exit_code))
