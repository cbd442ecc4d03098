#!/usr/bin/env python3
"""cuBLASLt leaves the last values of k out of a split-K matrix multiplication.

    python splitk_tail_repro.py [path of libcublasLt.so] [MxNxK ...] [--json]

A (M x K) and B (K x N) hold ones in fp16, and C = A @ B is written in fp32. So every element of C must be exactly K: it counts the
values of k that were summed. Each shape runs as cublasLtMatmul picks for itself (algo = NULL) and with the explicit answer of
cublasLtMatmulAlgoGetHeuristic. A shape that loses something has three controls: no workspace, another algorithm, a K that the parts divide.
Needs Python 3.8 or later on Linux, an NVIDIA driver and libcublasLt; nothing else.

Exit: 0 the fault shows and all controls are whole, 1 no shape loses anything, 2 this cannot run here, 3 a control is not whole either.
"""
import ctypes as C
import glob
import json
import os
import sys

# Which shapes lose moves with GPU and library: on an H200 with 13.1.0 all of these do, but for 8648, which other GPUs lose.
SHAPES = [(1, 8, 11528), (32, 32, 11528), (64, 64, 11528), (1, 8, 57608), (1, 8, 57616), (1, 8, 8648), (128, 128, 11528)]
WORKSPACE = 32 << 20  # bytes; without a workspace the library cannot split K
F32, F16, COMPUTE_32F, NVJET = 0, 2, 68, 66  # cudaDataType, cublasComputeType_t; NVJET is the ALGO_ID that loses
ATTRIBUTES = ("algo_id", "tile", "splitk_num", "reduction_scheme")  # numbers 0 to 3 of cublasLtMatmulAlgoConfigAttributes_t
OUT = sys.stderr if "--json" in sys.argv else sys.stdout


class Result(C.Structure):  # cublasLtMatmulHeuristicResult_t; its first member is the opaque cublasLtMatmulAlgo_t
    _fields_ = [("algo", C.c_uint64 * 8), ("workspace", C.c_size_t), ("state", C.c_int), ("waves", C.c_float), ("reserved", C.c_int * 4)]


def stop(why):
    print("cannot run: " + why, file=sys.stderr)
    sys.exit(2)


def load(names):
    for name in names:
        try:
            return C.CDLL(name)
        except OSError as error:
            why = str(error)
    stop("a library does not load: " + why)


def call(library, name, *arguments):
    status = getattr(library, name)(*arguments)
    if status:
        stop("%s returned status %d" % (name, status))


def made(library, name, *arguments):
    out = C.c_void_p()
    call(library, name, C.byref(out), *arguments)
    return out


class Gemm:
    """C (M x N) = A @ B, all row-major. The library is column-major, so it computes C^T = B^T @ A^T: its first operand is our B."""

    def __init__(self, m, n, k):
        self.m, self.n, self.k = m, n, k
        self.desc = made(lt, "cublasLtMatmulDescCreate", COMPUTE_32F, F32)
        self.b, self.a, self.c = [made(lt, "cublasLtMatrixLayoutCreate", dtype, C.c_uint64(rows), C.c_uint64(columns), C.c_int64(rows))
                                  for dtype, rows, columns in ((F16, n, k), (F16, k, m), (F32, n, m))]

    def answers(self, count, schemes=7):
        """Up to `count` answers of the library, its first choice first, each a Result. schemes: how a split may be reduced; 0: no split."""
        preference, results, got = made(lt, "cublasLtMatmulPreferenceCreate"), (Result * count)(), C.c_int()
        wishes = [(1, C.c_uint64(WORKSPACE)), (3, C.c_uint32(schemes))]  # then 5 to 8: alignments in bytes of the call's A, B, C and D
        wishes += [(5 + i, C.c_uint32(min(256, p.value & -p.value))) for i, p in enumerate((ones, ones, output, output))]
        for number, value in wishes:
            call(lt, "cublasLtMatmulPreferenceSetAttribute", preference, number, C.byref(value), C.c_size_t(C.sizeof(value)))
        layouts = self.b, self.a, self.c, self.c
        call(lt, "cublasLtMatmulAlgoGetHeuristic", handle, self.desc, *layouts, preference, count, results, C.byref(got))
        return [r for r in results[:got.value] if r.state == 0]

    def run(self, what, result, workspace):
        """Run it, say and return what came back. result None is algo = NULL; workspace: bytes."""
        call(cuda, "cuMemsetD32_v2", output, -1, C.c_size_t(self.m * self.n))  # an element that is not written reads NaN
        one, zero, algo = C.c_float(1), C.c_float(0), C.byref(result) if result else None
        call(lt, "cublasLtMatmul", handle, self.desc, C.byref(one), ones, self.b, ones, self.a, C.byref(zero), output, self.c,
             output, self.c, algo, scratch if workspace else None, C.c_size_t(workspace), None)
        out = (C.c_float * (self.m * self.n))()
        call(cuda, "cuCtxSynchronize")
        call(cuda, "cuMemcpyDtoH_v2", out, output, C.c_size_t(C.sizeof(out)))
        least = min(int(x) if x == x else -1 for x in out)
        row = dict(attributes(result) if result else {}, run=what, m=self.m, n=self.n, k=self.k, sum=least, lost=self.k - least)
        answer = ", ".join("%s %d" % (name, row[name]) for name in ATTRIBUTES if name in row)
        print("%-16s %-30s %-51s sum %6d: %s" % ("%dx%dx%d" % (self.m, self.n, self.k), what, answer, least,
              "LOST %d" % row["lost"] if row["lost"] else "whole"), file=OUT, flush=True)
        return row


def attributes(result):
    """The first four attributes of an answer, by name."""
    value, written, out = C.c_int32(), C.c_size_t(), {}
    for number, name in enumerate(ATTRIBUTES):
        call(lt, "cublasLtMatmulAlgoConfigGetAttribute", C.byref(result), number, C.byref(value), C.c_size_t(4), C.byref(written))
        out[name] = value.value
    return out


words = [w for w in sys.argv[1:] if w != "--json"]
path = [words.pop(0)] if words and ".so" in words[0] else []
try:
    shapes = [tuple(int(x) for x in w.split("x")) for w in words] or SHAPES
    if any(len(s) != 3 or min(s) < 1 or s[2] > 1 << 24 for s in shapes):
        raise ValueError
except ValueError:
    stop("a shape is MxNxK, with K at most 2^24: so far fp32 counts exactly")
cuda, device, gpu, driver = load(["libcuda.so.1"]), C.c_int(), C.create_string_buffer(99), C.c_int()
call(cuda, "cuInit", 0)
call(cuda, "cuDeviceGet", C.byref(device), 0)
call(cuda, "cuDeviceGetName", gpu, 99, device)
call(cuda, "cuDriverGetVersion", C.byref(driver))
call(cuda, "cuCtxSetCurrent", made(cuda, "cuDevicePrimaryCtxRetain", device))
wheels = [f for p in sys.path for f in sorted(glob.glob(os.path.join(p, "nvidia", "*", "lib", "libcublasLt.so.1*")), reverse=True)]
lt = load(path or wheels + ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"])
lt.cublasLtGetVersion.restype = C.c_size_t
number, handle = lt.cublasLtGetVersion(), made(lt, "cublasLtCreate")
about = {"cublasLt": "%d.%d.%d" % (number // 10000, number // 100 % 100, number % 100), "gpu": gpu.value.decode(),
         "driver_cuda": "%d.%d" % (driver.value // 1000, driver.value % 1000 // 10)}
print("cuBLASLt %(cublasLt)s on %(gpu)s, driver for CUDA %(driver_cuda)s" % about, file=OUT, flush=True)
most = max(max(m, n) * k for m, n, k in shapes)
ones, output, scratch = [made(cuda, "cuMemAlloc_v2", C.c_size_t(n)) for n in (2 * most, 4 * max(m * n for m, n, k in shapes), WORKSPACE)]
call(cuda, "cuMemsetD16_v2", ones, 0x3C00, C.c_size_t(most))  # fp16 1.0; the same memory serves as A and as B
runs, controls = [], []
for m, n, k in shapes:
    gemm = Gemm(m, n, k)
    first = gemm.answers(1)[:1]
    tried = [gemm.run("algo = NULL", None, WORKSPACE)] + [gemm.run("explicit answer", r, r.workspace) for r in first]
    runs += tried
    if any(r["lost"] for r in tried):
        controls.append(gemm.run("control: no workspace", None, 0))
        offered = [(attributes(r), r) for r in gemm.answers(64) + gemm.answers(64, 0)]
        others = [r for a, r in offered if a["algo_id"] != NVJET] + [r for a, r in offered if a["splitk_num"] == 1]
        controls += [gemm.run("control: another algorithm", r, r.workspace) for r in others[:1]]
        step = 64 * max(1, tried[-1].get("splitk_num", 1))  # whole blocks of 64 for each part
        if k >= step:
            controls.append(Gemm(m, n, k // step * step).run("control: K that parts divide", None, WORKSPACE))
short, broken = [r for r in runs if r["lost"]], [r for r in controls if r["lost"]]
code = 3 if broken else 0 if short else 1
print("%d of %d runs lost values of k; %d of %d controls are whole" % (len(short), len(runs), len(controls) - len(broken), len(controls)),
      file=OUT)
if OUT is sys.stderr:
    print(json.dumps(dict(about, runs=runs, controls=controls, exit_code=code)))
sys.exit(code)
