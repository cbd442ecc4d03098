#!/usr/bin/env python3
"""Whether the lost tail of cuBLASLt reaches PyTorch's operators: a script for a machine with torch and a GPU. Needs no probe.

    python tools/tail_torch.py -o reports/splitk-tail/torch.json [--seconds 60] [MxNxK ...]

A is zeros but for ones in the last 256 values of k, B is ones. So every output is 256, exact in fp16, bf16 and fp32 alike, or less by the
values of k that were lost: up to 131 are known to be (reports/splitk-tail/report.md). Operators: matmul (B as it is and transposed), addmm,
linear with and without bias, mm with an fp32 output, _scaled_mm in e4m3. Each runs with both BLAS libraries that torch can prefer (cublas,
cublaslt), at the shapes given or known, and then, for four (M, N), along K: 16 bytes beyond every whole number of blocks, since the most
split counts lose there. The sweeps share what is left of --seconds; what they did not reach is said. Recorded too: which libcublasLt the
process has loaded (end of the path, version, SHA-256), torch's version and settings, and the kernels of every known shape (torch.profiler).

Exit codes: 0 some sum is short, 1 none is, 2 it cannot run (no torch, no GPU, bad arguments). The file is written for 0 and 1.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KIND = "splitk-tail-torch"
WINDOW = 256  # ones at the end of k
# What cuBLASLt 13.1.0 and 12.8.5 lose at on an H200
SHAPES = [(1, 8, 11528), (32, 32, 11528), (64, 64, 11528), (128, 128, 11528), (1, 8, 57608), (1, 8, 57616), (4, 8, 206464), (3, 8, 115288)]
FP8_SHAPES = [(16, 16, 379904)]
SIDES = [(1, 16), (32, 32), (64, 64), (128, 128)]
MOST_K = 65_536
KERNEL_NAME = 160  # letters of a kernel's name that are kept
Run = Callable[[], Any]


def stop(why: str) -> None:
    print(f"cannot run: {why}", file=sys.stderr)
    sys.exit(2)


class Operands:
    """Memory for every shape of one dtype, made once: A of zeros with a window of ones, B of ones."""

    def __init__(self, torch: Any, device: str, dtype: Any, elements: int) -> None:
        self.torch, self.dtype = torch, dtype
        self.narrow = dtype.itemsize == 1
        raw = torch.uint8 if self.narrow else dtype
        self.one = 0x38 if self.narrow else 1  # e4m3 1.0 has exponent bits 7 and no mantissa
        self._a = torch.zeros(elements, dtype=raw, device=device)
        self._b = torch.full((elements,), self.one, dtype=raw, device=device)

    def pair(self, m: int, n: int, k: int) -> tuple[Any, Any]:
        """A (m x k) and B as (n x k), both packed."""
        flat = self._a[:m * k]
        flat.zero_()
        flat.view(m, k)[:, max(0, k - WINDOW):] = self.one
        a, b = flat.view(m, k), self._b[:n * k].view(n, k)
        return (a.view(self.dtype), b.view(self.dtype)) if self.narrow else (a, b)


def wide_operators(torch: Any, device: str, dtype: Any) -> dict[str, Callable[[Any, Any, int, int, int], Any]]:
    """name -> function of (A as m x k, B as n x k, m, n, k). B is ones, so that its memory is a k x n matrix too."""
    zeros = torch.zeros(1 << 20, dtype=dtype, device=device)
    linear = torch.nn.functional.linear
    out = {
        "matmul": lambda a, b, m, n, k: torch.matmul(a, b.view(k, n)),
        "matmul, B transposed": lambda a, b, m, n, k: torch.matmul(a, b.t()),
        "addmm": lambda a, b, m, n, k: torch.addmm(zeros[:n], a, b.view(k, n)),
        "addmm, matrix added": lambda a, b, m, n, k: torch.addmm(zeros[:m * n].view(m, n), a, b.view(k, n)),
        "linear": lambda a, b, m, n, k: linear(a, b),
        "linear with bias": lambda a, b, m, n, k: linear(a, b, zeros[:n]),
    }
    try:  # torch 2.8 and later, CUDA only
        probe = torch.ones((16, 16), dtype=dtype, device=device)
        torch.mm(probe, probe, out_dtype=torch.float32)
        out["mm, out fp32"] = lambda a, b, m, n, k: torch.mm(a, b.view(k, n), out_dtype=torch.float32)
    except (TypeError, RuntimeError) as error:
        print(f"mm with an fp32 output is not offered here: {one_line(error)}", file=sys.stderr)
    return out


def narrow_operators(torch: Any, device: str) -> dict[str, Callable[[Any, Any, int, int, int], Any]]:
    """_scaled_mm to each output, with fast accumulation and without, scales 1."""
    scale = torch.ones((), dtype=torch.float32, device=device)

    def make(output: Any, fast: bool) -> Callable[[Any, Any, int, int, int], Any]:
        return lambda a, b, m, n, k: torch._scaled_mm(a, b.t(), scale, scale, out_dtype=output, use_fast_accum=fast)

    names = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    return {f"_scaled_mm, out {name}{', fast accumulation' if fast else ''}": make(output, fast)
            for name, output in names.items() for fast in (False, True)}


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def measure(call: Run, expected: int) -> dict[str, Any]:
    """What came back: least and most of the output, and the values lost; or the error."""
    try:
        out = call().float()
        least, most = float(out.min()), float(out.max())
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return {"refused": one_line(error)}
    good = least == least and most == most
    return {"units": expected, "least": least if good else None, "most": most if good else None,
            "lost": expected - least if good and most <= expected else None}


def kernels(torch: Any, call: Run) -> list[str]:
    """Names of the kernels of one call, in order; none where the profiler shows none or does not work, which costs no result."""
    profiler = torch.profiler
    try:
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA, profiler.ProfilerActivity.CPU], acc_events=True) as seen:
            call()
            torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"the profiler does not work here: {one_line(error)}", file=sys.stderr)
        return []
    found = [e for e in seen.events() if str(getattr(e, "device_type", "")).endswith("CUDA")]
    return [e.name[:KERNEL_NAME] for e in sorted(found, key=lambda e: e.time_range.start)]


def sweep(torch: Any, operator: Any, operands: Operands, m: int, n: int, deadline: float, most_k: int) -> dict[str, Any]:
    """Along K, one value of 16 bytes beyond whole blocks. Stops at the first short sum, or at the deadline."""
    block, step = (128, 16) if operands.narrow else (64, 8)
    out: dict[str, Any] = {"m": m, "n": n, "ran": 0, "smallest_k": None, "to_k": 0}
    for k in range(block * 8 + step, most_k + 1, block):
        if time.monotonic() > deadline:
            out["ended_early"] = True
            break
        a, b = operands.pair(m, n, k)
        got = measure(lambda a=a, b=b, k=k: operator(a, b, m, n, k), WINDOW)
        if "refused" in got:
            out["refused"] = got["refused"]
            break
        out["ran"] += 1
        out["to_k"] = k
        if got["lost"] != 0:
            out |= {"smallest_k": k, "lost": got["lost"]}
            break
    return out


def loaded_libraries() -> list[dict[str, Any]]:
    """Every libcublasLt in this process, as /proc/self/maps shows it; its own version, and the hash of the file."""
    maps = Path("/proc/self/maps").read_text()
    out = []
    for path in sorted(set(re.findall(r"(/\S*libcublasLt\.so\S*)$", maps, re.MULTILINE))):
        library = ctypes.CDLL(path)
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        number = library.cublasLtGetVersion()
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        out.append({"file": "/".join(Path(path).parts[-4:]), "sha256": digest,
                    "version": f"{number // 10000}.{number // 100 % 100}.{number % 100}"})
    return out


def about_torch(torch: Any, device: str) -> dict[str, Any]:
    cuda = device == "cuda"
    variables = ("CUBLASLT_WORKSPACE_SIZE", "CUBLAS_WORKSPACE_CONFIG", "TORCH_BLAS_PREFER_CUBLASLT", "DISABLE_ADDMM_CUDA_LT")
    properties = torch.cuda.get_device_properties(0) if cuda else None
    return {"torch": torch.__version__, "torch_cuda": torch.version.cuda, "gpu": properties.name if cuda else "none: on the CPU",
            "sm": f"sm_{properties.major}{properties.minor}" if cuda else "", "sm_count": properties.multi_processor_count if cuda else 0,
            "environment": {name: os.environ[name] for name in variables if name in os.environ}}


def prefer(torch: Any, name: str) -> None:
    """Which BLAS torch takes, where it has a choice."""
    torch.backends.cuda.preferred_blas_library(name)


def run(torch: Any, options: argparse.Namespace) -> dict[str, Any]:
    device, began = options.device, time.monotonic()
    known = options.shapes or SHAPES
    narrow_known = [s for s in options.shapes if s[1] % 16 == s[2] % 16 == 0] if options.shapes else FP8_SHAPES
    largest = max(max(m, n) * k for m, n, k in [*known, *narrow_known, *((m, n, options.most_k) for m, n in SIDES)])
    cases: list[dict[str, Any]] = []
    sweeps: list[dict[str, Any]] = []
    plans = []
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        narrow = dtype.itemsize == 1
        operands = Operands(torch, device, dtype, largest)
        operators = narrow_operators(torch, device) if narrow else wide_operators(torch, device, dtype)
        plans.append((str(dtype).removeprefix("torch."), operands, operators, narrow_known if narrow else known))
    backends = ("cublas", "cublaslt") if device == "cuda" else ("none",)
    for backend in backends:
        if device == "cuda":
            prefer(torch, backend)
        for dtype_name, operands, operators, shapes in plans:
            for (name, operator), (m, n, k) in ((o, s) for o in operators.items() for s in shapes):
                a, b = operands.pair(m, n, k)

                def call(operator: Any = operator, a: Any = a, b: Any = b, m: int = m, n: int = n, k: int = k) -> Any:
                    return operator(a, b, m, n, k)

                case = {"blas": backend, "operator": name, "dtype": dtype_name, "m": m, "n": n, "k": k} | measure(call, min(WINDOW, k))
                if device == "cuda" and "refused" not in case and not options.no_kernels:
                    names = kernels(torch, call)
                    case |= {"kernels": names} if names else {}
                cases.append(case)
    jobs = [(backend, plan, name, m, n) for backend in backends for plan in plans for name in plan[2] for m, n in SIDES]
    for number, (backend, plan, name, m, n) in enumerate(jobs):
        if device == "cuda":
            prefer(torch, backend)
        left = began + options.seconds - time.monotonic()
        deadline = time.monotonic() + max(0.0, left) / (len(jobs) - number)  # an even share of what is left
        got = sweep(torch, plan[2][name], plan[1], m, n, deadline, options.most_k)
        sweeps.append({"blas": backend, "operator": name, "dtype": plan[0]} | got)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"kind": KIND, "date": date, "about": about_torch(torch, device), "libraries": loaded_libraries(), "window": WINDOW,
            "most_k": options.most_k, "seconds": round(time.monotonic() - began, 1),
            "cases": cases, "sweeps": sweeps}


def shape(text: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"[1-9][0-9]{0,7}x[1-9][0-9]{0,7}x[1-9][0-9]{0,7}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not MxNxK")
    m, n, k = (int(x) for x in text.split("x"))
    return m, n, k


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shapes", nargs="*", type=shape, help="MxNxK in place of the known ones")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a new .json file")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all of it; the known shapes run whatever it says")
    parser.add_argument("--most-k", type=int, default=MOST_K, help="how far the sweep goes")
    parser.add_argument("--no-kernels", action="store_true", help="leave the profiler alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script; it says nothing of cuBLASLt")
    options = parser.parse_args()
    if options.output.exists():
        stop(f"{options.output} exists and is not overwritten")
    if not options.output.parent.is_dir():
        stop(f"there is no folder {options.output.parent}")
    try:
        import torch
    except ImportError as error:
        stop(f"torch cannot be imported: {one_line(error)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        stop("torch shows no GPU")
    document = run(torch, options)
    aside = options.output.with_name(f".{options.output.name}.{os.getpid()}")
    aside.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    aside.rename(options.output)
    short = [c for c in document["cases"] if c.get("lost", 0) != 0]
    found = [s for s in document["sweeps"] if s["smallest_k"]]
    early = sum("ended_early" in s for s in document["sweeps"])
    refused = sum("refused" in c for c in document["cases"])
    versions = ", ".join(one["version"] for one in document["libraries"]) or "none"
    print(f"torch {document['about']['torch']} on {document['about']['gpu']}, cuBLASLt loaded: {versions}")
    print(f"{len(short)} of {len(document['cases']) - refused} sums at known shapes are short ({refused} refused); {len(found)} of "
          f"{len(document['sweeps'])} sweeps along K found a short one ({early} ended early, for time)")
    return 0 if short or found else 1


if __name__ == "__main__":
    sys.exit(main())
