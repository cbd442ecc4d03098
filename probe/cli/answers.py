"""`probe answers`: which algorithms a library has, what each can be set to, and which its cost model picks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from probe.reachable import Answers, Reachable

EPILOG = """Examples:

\b
probe answers --dtype fp16 --layout nn
probe answers --dtype e4m3 --library 13.1 --json
probe walk --shape 64x64x4096 --force algo_id=66,splitk_num=4,reduction_scheme=2

Exit codes: 0 listed, 2 usage, 3 declined, 4 environment."""


def command(
    dtype: Annotated[str, typer.Option(help="Input dtype: fp16, bf16 or e4m3.")] = "fp16",
    layout: Annotated[str | None, typer.Option(help="nn, tn, nt or tt, of the shapes that are asked. Default: nn; tn for e4m3.")] = None,
    out: Annotated[str | None, typer.Option(help="Output dtype: fp32, fp16 or bf16. Default: the input dtype; bf16 for e4m3.")] = None,
    fast_accumulation: Annotated[bool, typer.Option("--fast-accumulation", help="e4m3: the library's fast accumulation mode.")] = False,
    workspace: Annotated[str, typer.Option(help="Workspace that the library may use, for example 32MiB or 0.")] = "32MiB",
    reduction_schemes: Annotated[int, typer.Option(help="Allowed split-K reduction schemes, as a sum: 1 in place, 2 compute type, "
                                                        "4 output type.")] = 7,
    shapes: Annotated[int, typer.Option(help="How many drawn shapes the cost model is asked for.")] = 2000,
    library: Annotated[str | None, typer.Option(help="As probe walk takes it.")] = None,
    gpu: Annotated[int, typer.Option(help="Number of the GPU.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Seed of the shapes. Default: a fresh one, which the result names.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, also for a decline or a failure.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the JSON document to a new .json file as well.")] = None,
) -> None:
    """List the algorithms for a combination of dtypes: what each can be set to, and whether the library picks it by itself."""
    from probe.cli.stream import emit, emit_json, progress_line, say
    from probe.cli.walk import _bytes
    from probe.errors import Declined
    from probe.reachable import answers

    with progress_line() as progress:
        found = answers(dtype, layout, out, fast_accumulation=fast_accumulation, workspace_bytes=_bytes(workspace),
                        reduction_schemes=reduction_schemes, shapes=shapes, library=library, gpu=gpu, seed=seed, output=output,
                        progress=progress, notice=say)
    if isinstance(found, Declined):
        say(f"declined: {found}")
        if as_json:
            emit_json({"kind": "declined", "reason": str(found.reason), "text": found.text, "hint": found.hint,
                       "exit_code": int(found.exit_code)})
    elif as_json:
        emit_json(found.to_document())
    else:
        emit("\n".join(answers_lines(found)))
        if output is not None:
            emit(f"{'written':<11}{output}")
    raise typer.Exit(int(found.exit_code))


def answers_lines(found: Answers) -> list[str]:
    """The table, none of its lines wider than 150 columns unless the library's own words are."""
    from probe.errors import Declined
    from probe.target import LibraryKind

    p, target = found.problem, found.target
    none = sum(found.declined.values())
    found_by = "built into probe" if target.library is LibraryKind.SIMULATED else f"found by {found.found_by}"
    mode = f"{p.a_dtype} in, {p.d_dtype} out, layout {p.layout}" + (", fast accumulation" if p.fast_accumulation else "")
    allowed = f"workspace {found.preference.workspace_bytes} B, reduction schemes {found.preference.reduction_scheme_mask}"
    head = [f"{'asked':<11}{mode}, {allowed}",
            f"{'target':<11}{target}, {found_by}",
            f"{'shapes':<11}{found.shapes:,} drawn (--seed {found.seed} repeats them), {none:,} without an answer"
            + "".join(f", {reason} {n:,}" for reason, n in found.declined.items())]
    rows: list[tuple[str, ...]] = [("algo", "split-K", "reduction", "tiles", "stages", "swizzling", "custom", "align ABCD", "seen",
                                    "split counts seen", "first at")]
    notes = []
    for row in found.rows:
        rows.append(_cells(row))
        if isinstance(row.capabilities, Declined):
            notes.append(f"{'':<11}{row.capabilities}")
        if not row.listed:
            notes.append(f"{'':<11}algorithm {row.algo_id} was seen and is not in the library's list")
    widths = [max(len(line[c]) for line in rows) for c in range(len(rows[0]))]
    table = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in rows]
    return [*head, "", *table, *([""] if notes else []), *notes]


def _cells(row: Reachable) -> tuple[str, ...]:
    from probe.errors import Declined

    can, seen = row.capabilities, row.seen
    if isinstance(can, Declined):
        middle = ("?",) * 7
    else:
        schemes = [name for bit, name in ((1, "in place"), (2, "compute"), (4, "output")) if can.reduction_scheme_mask & bit]
        aligned = ",".join(str(getattr(can, f"{x}_alignment")) for x in "abcd")
        middle = ("yes" if can.splitk else "no", "+".join(schemes) or "none", str(len(can.tiles)), str(len(can.stages)), str(can.swizzling),
                  f"0..{can.custom_option_max}", aligned)
    if seen is None:
        return (str(row.algo_id), *middle, "-", "-", "-")
    splits = seen.values["splitk_num"]
    shown = ",".join(map(str, splits)) if len(splits) <= 5 else f"{splits[0]}..{splits[-1]} ({len(splits)})"
    return (str(row.algo_id), *middle, f"{seen.times:,}", shown, seen.first)
