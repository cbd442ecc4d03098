"""`probe walk`: one shape, from the question to the proof."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = """Examples:

\b
probe walk --shape 64x64x4096
probe walk --shape 1x8x11528 --out fp32 --library sim
probe walk --shape 16x16x8192 --dtype e4m3 --json -o point.parquet
probe walk --shape 512x512x512 --layout tn --a-offset 2 --align default
probe walk --shape 64x64x4096 --force splitk_num=5
probe walk --shape 64x64x4096 --force algo_id=66,splitk_num=4,reduction_scheme=2

Exit codes: 0 recovered and confirmed, 1 not confirmed or ambiguous, 2 usage, 3 declined, 4 environment."""


def command(
    shape: Annotated[str, typer.Option(help="MxNxK of C (M x N) = A (M x K) @ B (K x N), for example 64x64x4096.")],
    dtype: Annotated[str, typer.Option(help="Input dtype: fp16, bf16 or e4m3.")] = "fp16",
    out: Annotated[str | None, typer.Option(help="Output dtype: fp32, fp16 or bf16. Default: the input dtype; bf16 for e4m3.")] = None,
    layout: Annotated[str | None, typer.Option(help="nn (A @ B), tn (x @ w.T, nn.Linear), nt or tt. Default: nn; tn for e4m3.")] = None,
    fast_accumulation: Annotated[bool, typer.Option("--fast-accumulation", help="e4m3: the library's fast accumulation mode.")] = False,
    workspace: Annotated[str, typer.Option(help="Workspace that the library may use, for example 32MiB or 0.")] = "32MiB",
    reduction_schemes: Annotated[int, typer.Option(help="Allowed split-K reduction schemes, as a sum: 1 in place, 2 compute type, "
                                                        "4 output type.")] = 7,
    lda: Annotated[int | None, typer.Option(help="Elements between two rows of A as stored. Default: packed.")] = None,
    ldb: Annotated[int | None, typer.Option(help="The same of B.")] = None,
    ldd: Annotated[int | None, typer.Option(help="The same of the output.")] = None,
    a_offset: Annotated[int, typer.Option(help="Bytes from a 256-byte boundary to the first element of A.")] = 0,
    b_offset: Annotated[int, typer.Option(help="The same of B.")] = 0,
    d_offset: Annotated[int, typer.Option(help="The same of the output.")] = 0,
    align: Annotated[str, typer.Option(help="Alignment that the library may count on: true (that of these addresses), default (256 bytes, "
                                            "as of a caller who says nothing) or bytes.")] = "true",
    force: Annotated[str | None, typer.Option(help="Attributes of the answer to insist on, splitk_num=4,...: varied from the library's own "
                                                   "answer or, with algo_id=N, from that algorithm's defaults.")] = None,
    library: Annotated[str | None, typer.Option(help="cu12, cu13, a name or version prefix (12.8) of a stored or installed library, a "
                                                     "path, sim, sim-2 or sim-vectors. Default: the GPU and the installed library, or, "
                                                     "announced, the simulated one.")] = None,
    gpu: Annotated[int, typer.Option(help="Number of the GPU.")] = 0,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Read every index instead of only what is still open.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of all draws. Default: a fresh one, which the record names.")] = None,
    time_limit: Annotated[float | None, typer.Option(help="Seconds for a walk in a child process. Default: no child and no limit, but 300 "
                                                          "for what may fault or hang (--force, --align beyond the truth).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, also for a decline or a failure.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the point to a new .parquet or .json file as well.")] = None,
) -> None:
    """Learn in which order the library sums one shape, how that was found out, and whether it is true."""
    from probe.cli.show import print_point
    from probe.cli.stream import emit, emit_json, progress_line, say
    from probe.errors import Declined
    from probe.verbs import walk

    with progress_line() as progress:
        point = walk(shape, dtype, out, layout, workspace_bytes=_bytes(workspace), reduction_schemes=reduction_schemes,
                     fast_accumulation=fast_accumulation, lda=lda, ldb=ldb, ldd=ldd, a_offset=a_offset, b_offset=b_offset,
                     d_offset=d_offset, align=align, force=force, library=library, gpu=gpu, exhaustive=exhaustive, seed=seed,
                     time_limit=time_limit, output=output, progress=progress, notice=say)
    if isinstance(point, Declined):
        say(f"declined: {point}")
        if as_json:
            emit_json({"kind": "declined", "reason": str(point.reason), "text": point.text, "hint": point.hint,
                       "exit_code": int(point.exit_code)})
    elif as_json:
        emit_json(point.to_document())
    else:
        print_point(point)
        if output is not None:
            emit(f"{'written':<11}{output}")
    raise typer.Exit(int(point.exit_code))


def _bytes(text: str) -> int:
    """The workspace in bytes; the error names the option."""
    from probe.errors import UsageError
    from probe.preference import parse_bytes

    try:
        return parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"workspace: {error.message}", error.hint) from None
