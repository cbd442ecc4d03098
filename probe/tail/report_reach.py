"""Of the report: what the fault reaches below cuBLASLt's other settings, in layers of models, and through PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from probe.tail.reach_table import Part, Row, totals
from probe.tail.results import Release, Results
from probe.tail.text import listed, table

_AXES = {"input_dtype": "inputs", "output_dtype": "output", "layout": "layout", "epilogue": "epilogue",
         "workspace_bytes": "workspace, bytes", "reduction_scheme_mask": "reduction mask"}
_MOST_LAYERS = 20


def reach(results: Results) -> list[str]:
    """Other ways to ask, the smallest K, layers."""
    lines = ["## What it reaches", ""]
    have = [one for one in results.releases if one.reaches]
    if not have:
        return [*lines, "Other layouts, outputs, epilogues, workspaces and masks, the smallest K of each, and layers of models: not "
                "run.", ""]
    for one in have:
        rows = [row for _, some, _ in one.reaches for row in some]
        lines += [f"### cuBLASLt {one.version} on {one.target.device_name}", ""]
        left = sum(about["left"] for _, _, about in one.reaches)
        if left:
            lines += [f"{left} tasks were not done, for time: what follows is what the others gave.", ""]
        makers: dict[Part, Callable[[list[Row]], list[str]]] = {Part.VARIANT: _variants, Part.SMALLEST: _smallest, Part.LAYER: _layers}
        for part, make in makers.items():
            mine = [row for row in rows if row["part"] == part]
            lines += make(mine) if mine else [f"Not run: {part}.", ""]
    return lines


def _variants(rows: list[Row]) -> list[str]:
    shapes = sorted({(r["k"], r["m"], r["n"], r["input_dtype"]) for r in rows})
    settings = dict.fromkeys((r["m"], r["n"], r["k"]) for r in rows)
    names = listed(f"{m}x{n}x{k}" for m, n, k in settings)
    lines = [f"{len(settings)} shapes ({names}), {len(shapes)} with their dtypes, asked in every combination of the settings below; "
             "every answer ran. Short where the answer still splits K so that the condition names a loss:", ""]
    out = []
    for name, title in _AXES.items():
        for value in sorted({r[name] for r in rows}):
            out.append([title, f"{value:,}" if type(value) is int else value, *_counts(r for r in rows if r[name] == value)])
    total = totals(rows)
    return [*lines, *table(["setting", "value", "asked", "nothing offered", "split by ALGO_ID 66", "named by the condition", "ran", "short",
                            "another amount than named", "did not run"], [*out, ["all", "", *_counts(rows)]]),
            *(["Sums that lost another number than our condition names are in the table.", ""] if total["other"] else []),
            f"Short sums had the reduction schemes {listed(sorted({r['reduction_scheme'] for r in rows if r['short']}))} "
            "(1 in place, 2 in the compute type, 4 in the output type).", ""]


def _counts(rows: Iterable[Row]) -> list[int]:
    total = totals(rows)
    return [total[name] for name in ("asked", "declined", "split", "named", "ran", "short", "other", "failed")]


def _smallest(rows: list[Row]) -> list[str]:
    plain = [r for r in rows if r["epilogue"] == "default"]
    lines = [f"The smallest K that is short, by asking K in steps of 16 bytes to {max(r['most_k'] for r in rows):,} and running what the "
             "condition names; `-`: none that was run is short. Workspace 32 MiB, every reduction scheme:", ""]
    settings = sorted({_setting(r) for r in plain})
    sides = sorted({(r["m"], r["n"]) for r in plain})
    cells: dict[tuple[int, int, str], str] = {(r["m"], r["n"], _setting(r)): str(r["k"] or "-") for r in plain}
    whole = [s for s in settings if sum((m, n, s) in cells for m, n in sides) > 4]
    out = [[f"{m}x{n}", *(cells.get((m, n, s), "") for s in whole)] for m, n in sides if any((m, n, s) in cells for s in whole)]
    if whole:
        lines += table(["M x N", *whole], out)
    lines += ["And over the (M, N) that were asked in every setting, the smallest of each:", ""]
    every: dict[tuple[str, str], list[Row]] = {}
    for r in rows:
        every.setdefault((_setting(r), r["epilogue"]), []).append(r)
    epilogues = sorted({epilogue for _, epilogue in every})
    found = []
    for setting in sorted({s for s, _ in every}):
        line: list[object] = [setting]
        for epilogue in epilogues:
            some = every.get((setting, epilogue), [])
            short = [(r["k"], r["m"], r["n"]) for r in some if r["k"]]
            offered = any(r["asked"] > r["declined"] for r in some)
            line.append(f"{min(short)[1]}x{min(short)[2]}x{min(short)[0]}" if short else "-" if offered else "not offered" if some else "")
        found.append(line)
    return [*lines, *table(["inputs -> output, layout", *epilogues], found)]


def _setting(row: Row) -> str:
    return f"{row['input_dtype']} -> {row['output_dtype']}, {row['layout']}" + (", fast" if row["fast_accumulation"] else "")


def _layers(rows: list[Row]) -> list[str]:
    hit = [r for r in rows if r["named"]]
    total = totals(rows)
    weights = {(r["n"], r["k"], str(r["layer"]).startswith("backward")) for r in rows}
    most = max((r["most_split"] or 0 for r in rows), default=0)
    lines = [f"Layers of the 16 models of the paper's Appendix C, as far as its Table 4 gives their widths (no attention projections): "
             f"{len(weights)} weights forward (x @ w.T) and backward (dX), in {len(rows)} settings of dtypes, each at every M: "
             f"{total['asked']:,} asked, {total['split']:,} split by ALGO_ID 66, split counts to {most}. The condition names a loss at "
             f"{total['named']:,} of them, in {len(hit)} of the {len(rows)}; {total['short']:,} of {total['ran']:,} "
             "that ran are short.", ""]
    if not hit:
        return lines
    out = [[r["layer"], f"{r['n']} x {r['k']}", _setting(r), r["hits"], r["splitk_num"] or "-", r["ran"], r["short"], r["lost"] or "-"]
           for r in hit[:_MOST_LAYERS]]
    more = [f"{len(hit) - _MOST_LAYERS} more are in the table of the folder.", ""] if len(hit) > _MOST_LAYERS else []
    head = ["layer", "N x K", "dtypes, layout", "M that are hit", "parts", "ran", "short", "values lost at the first"]
    return [*lines, *table(head, out), *more]


# PyTorch

def torch(results: Results) -> list[str]:
    """Each run of tools/tail_torch.py."""
    lines = ["## PyTorch", ""]
    if not results.torch:
        return [*lines, "Not run.", ""]
    for name, document in results.torch:
        lines += _torch_run(name, document, results.releases)
    return lines


def _torch_run(name: str, document: dict[str, Any], releases: list[Release]) -> list[str]:
    about, libraries = document["about"], document["libraries"]
    known = {one.target.sha256: one for one in releases}
    same = [f"{one['version']} (`{one['sha256'][:16]}`" + (f", {known[one['sha256']].state} above)" if one["sha256"] in known else ")")
            for one in libraries]
    lines = [f"`{name}`: torch {about['torch']} on {about['gpu']}; libcublasLt in its process: {listed(same)}. A is zeros but for ones in "
             f"the last {document['window']} values of k, so any loss of the tail shows in fp16 and bf16 too.", ""]
    groups: dict[tuple[str, str, str], tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    for which, entries in enumerate((document["cases"], document["sweeps"])):
        for entry in entries:
            groups.setdefault((entry["blas"], entry["operator"], entry["dtype"]), ([], []))[which].append(entry)
    rows = []
    for (blas, operator, dtype), (cases, sweeps) in groups.items():
        ran = [c for c in cases if "refused" not in c]
        short = [c for c in ran if c["lost"] != 0]
        seen = [c for c in ran if "kernels" in c]
        split = sum(any("splitK" in k or "split_k" in k.lower() for k in c["kernels"]) for c in seen)
        nvjet = sum(any("nvjet" in k and "splitK" in k for k in c["kernels"]) for c in seen)
        found = [s for s in sweeps if s["smallest_k"]]
        smallest = min(found, key=lambda s: s["smallest_k"]) if found else None
        to_k = f"to {min((s['to_k'] for s in sweeps), default=0):,}"
        refused = f" ({len(cases) - len(ran)} refused)" if len(ran) < len(cases) else ""
        rows.append([f"{operator}, {dtype}", blas, f"{len(short)} of {len(ran)}{refused}",
                     f"{split}, {nvjet} of {len(seen)}" if seen else "not seen", f"{len(found)} of {len(sweeps)}, {to_k}",
                     f"{smallest['m']}x{smallest['n']}x{smallest['smallest_k']}" if smallest else "-"])
    reached = [row[0] for row in rows if not str(row[2]).startswith("0 ") or row[5] != "-"]
    by_operator: dict[str, list[str]] = {}
    for name in dict.fromkeys(map(str, reached)):
        operator, _, dtype = name.rpartition(", ")
        by_operator.setdefault(operator, []).append(dtype)
    words = (f"The fault reaches: {'; '.join(f'{operator} ({listed(dtypes)})' for operator, dtypes in by_operator.items())}."
             if reached else "No operator showed it.")
    head = ["operator, dtype", "BLAS", "short at known shapes", "with a split-K kernel, with nvjet's", "sweeps along K with a short sum",
            "smallest short"]
    return [*lines, *table(head, rows), words, ""]
