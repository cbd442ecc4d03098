"""Stand-ins for what a machine without a GPU lacks: a driver, CuPy, and a cuBLASLt that can be asked and launched there.

Device memory is the host's. The library splits K as cuBLASLt 13.1.0 does on an H200 where it is asked with workspace and scheme 2: K / 1280
parts, each of floor(K / s) rounded up to blocks of 64, or 128 for e4m3. It checks every call (status 7), offers what it has (status 15
otherwise), and counts the ones that it is pointed at. Environment: LT_VERSION is what it reports; WHOLE=1 launches parts that cover K;
BROKEN=1 makes its other algorithm short; FULL=1 leaves the driver without memory. probe's own code runs against it unchanged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import probe

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler here to make small shared libraries with")
ROOT = Path(__file__).resolve().parents[1]

DRIVER = r"""
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
int cuInit(unsigned f) { return 0; }
int cuDeviceGet(int *d, int i) { *d = 0; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "stand-in"); return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)1; return 0; }
int cuCtxSetCurrent(void *c) { return c != (void *)1; }
int cuMemAlloc_v2(void **p, size_t n) { if (getenv("FULL")) return 2; *p = aligned_alloc(256, (n + 255) / 256 * 256); return 0; }
int cuMemsetD32_v2(unsigned *p, unsigned v, size_t n) { for (size_t i = 0; i < n; i++) p[i] = v; return 0; }
int cuMemsetD16_v2(unsigned short *p, unsigned short v, size_t n) { for (size_t i = 0; i < n; i++) p[i] = v; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuMemcpyDtoH_v2(void *d, void *s, size_t n) { memcpy(d, s, n); return 0; }
"""

LIBRARY = r"""
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct { int type; uint64_t rows, columns; int64_t ld; } Layout;
typedef struct { uint64_t algo[8]; size_t workspace; int state; float waves; int reserved[4]; } Result;
typedef struct { uint64_t is[32]; } Attributes;
enum { BAD = 7, NONE = 15, TRANSA = 3, TRANSB = 4, EPILOGUE = 7, BIAS = 8, BIAS_TYPE = 26, WORKSPACE = 1, MASK = 3,
       FP32 = 0, FP16 = 2, BF16 = 14, E4M3 = 28 };
static const void *handle = (void *)7;
size_t cublasLtGetVersion(void) { return getenv("LT_VERSION") ? atoi(getenv("LT_VERSION")) : 130100; }
size_t cublasLtGetCudartVersion(void) { return 13000; }
const char *cublasLtGetStatusName(int s) { return "a status"; }
const char *cublasLtGetStatusString(int s) { return "a status"; }
int cublasLtCreate(const void **h) { *h = handle; return 0; }
int cublasLtDestroy(void *h) { return 0; }
static int made(void **d) { *d = calloc(1, sizeof(Attributes)); return 0; }
static int set(Attributes *a, int which, const void *v, size_t size) { if (which < 0 || which > 31 || size > 8) return BAD;
  a->is[which] = 0; memcpy(&a->is[which], v, size); return 0; }
int cublasLtMatmulDescCreate(void **d, int compute, int scale) {
  made(d); ((Attributes *)*d)->is[EPILOGUE] = 1; return compute == 68 && scale == 0 ? 0 : BAD; }
int cublasLtMatmulDescDestroy(void *d) { free(d); return 0; }
int cublasLtMatmulDescSetAttribute(Attributes *d, int which, const void *v, size_t size) { return set(d, which, v, size); }
int cublasLtMatmulDescGetAttribute(Attributes *d, int which, void *v, size_t size, size_t *w) { return BAD; }
int cublasLtMatrixLayoutCreate(void **d, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  Layout *l = malloc(sizeof *l); l->type = type; l->rows = rows; l->columns = columns; l->ld = ld; *d = l;
  return ld == (int64_t)rows ? 0 : BAD; }
int cublasLtMatrixLayoutDestroy(void *d) { free(d); return 0; }
int cublasLtMatrixLayoutSetAttribute(void *d, int which, const void *v, size_t size) { return BAD; }
int cublasLtMatrixLayoutGetAttribute(void *d, int which, void *v, size_t size, size_t *w) { return BAD; }
int cublasLtMatmulPreferenceCreate(void **p) { made(p); ((Attributes *)*p)->is[MASK] = 7; return 0; }
int cublasLtMatmulPreferenceDestroy(void *p) { free(p); return 0; }
int cublasLtMatmulPreferenceSetAttribute(Attributes *p, int which, const void *v, size_t size) {
  if (which >= 5 && which <= 8 && (size != 4 || *(const uint32_t *)v != 256)) return BAD;
  if (which == WORKSPACE && size != 8) return BAD;
  return set(p, which, v, size); }
int cublasLtMatmulPreferenceGetAttribute(void *d, int which, void *v, size_t size, size_t *w) { return BAD; }

/* The call: A is rows x k or transposed, B k x columns or transposed, column-major. */
typedef struct { uint64_t rows, columns, k; } Sizes;
static int sizes(Attributes *d, Layout *a, Layout *b, Layout *c, Sizes *s) {
  int ta = d->is[TRANSA], tb = d->is[TRANSB];
  s->rows = ta ? a->columns : a->rows; s->k = ta ? a->rows : a->columns;
  s->columns = tb ? b->rows : b->columns;
  return (tb ? b->columns : b->rows) != s->k || c->rows != s->rows || c->columns != s->columns; }
static int offered(Attributes *d, Layout *a, Layout *b, Layout *c) {
  if (a->type != b->type) return 0;
  if (a->type == E4M3) return d->is[TRANSA] == 1 && !d->is[TRANSB] && (c->type == FP32 || c->type == BF16 || c->type == FP16);
  return (a->type == FP16 || a->type == BF16) && (c->type == FP32 || c->type == a->type); }
static int split(Sizes s, size_t workspace, int mask) {
  int parts = s.k / 1280; return parts > 1 && (mask & 2) && workspace >= parts * s.rows * s.columns * 4 ? parts : 1; }
static void fill(Result *r, int id, int parts, Sizes s) {
  memset(r, 0, sizeof *r); r->algo[0] = id; r->algo[2] = parts; r->algo[3] = parts > 1 ? 2 : 0; r->waves = 1;
  r->workspace = parts > 1 ? parts * s.rows * s.columns * 4 : 0; }
int cublasLtMatmulAlgoGetHeuristic(void *h, Attributes *d, Layout *a, Layout *b, Layout *c, Layout *e, Attributes *p, int n, Result *r,
                                   int *got) {
  Sizes s; if (h != handle || sizes(d, a, b, c, &s) || !p->is[5] || !p->is[6] || !p->is[7] || !p->is[8]) return BAD;
  if (!offered(d, a, b, c)) return NONE;
  fill(&r[0], 66, split(s, p->is[WORKSPACE], p->is[MASK]), s); *got = 1;
  if (n > 1) { fill(&r[1], 23, 1, s); *got = 2; }
  return 0; }
int cublasLtMatmulAlgoGetIds(void) { return NONE; }
int cublasLtMatmulAlgoCapGetAttribute(Result *r, int which, void *v, size_t size, size_t *w) { return BAD; }
int cublasLtMatmulAlgoInit(void *h, int compute, int scale, int a, int b, int c, int d, int id, Result *r) {
  memset(r->algo, 0, 64); r->algo[0] = id; return 0; }
int cublasLtMatmulAlgoCheck(void *h, Attributes *d, Layout *a, Layout *b, Layout *c, Layout *e, Result *algo, Result *r) {
  Sizes s; if (sizes(d, a, b, c, &s)) return BAD;
  int parts = algo->algo[2]; uint64_t kept[8]; memcpy(kept, algo->algo, 64); fill(r, kept[0], parts, s); memcpy(r->algo, kept, 64);
  return offered(d, a, b, c) && parts > 0 ? 0 : NONE; }
int cublasLtMatmulAlgoConfigGetAttribute(Result *r, int which, void *v, size_t size, size_t *written) {
  if (which > 8 || size != (which < 7 ? 4 : 2)) return BAD;
  if (which < 7) memcpy(v, &r->algo[which], 4); else memcpy(v, (char *)&r->algo[7] + 2 * (which - 7), 2);
  return 0; }
int cublasLtMatmulAlgoConfigSetAttribute(Result *r, int which, const void *v, size_t size) {
  if (which < 1 || which > 8 || size != (which < 7 ? 4 : 2)) return BAD;
  if (which < 7) { r->algo[which] = 0; memcpy(&r->algo[which], v, 4); } else memcpy((char *)&r->algo[7] + 2 * (which - 7), v, 2);
  return 0; }

static int is_one(const void *p, uint64_t at, int type) {
  if (type == E4M3) return ((const uint8_t *)p)[at] == 0x38;
  return ((const uint16_t *)p)[at] == (type == FP16 ? 0x3C00 : 0x3F80); }
static void put(void *p, uint64_t at, int type, float x) {
  uint32_t bits; memcpy(&bits, &x, 4);
  if (type == FP32) ((float *)p)[at] = x;
  else if (type == BF16) ((uint16_t *)p)[at] = bits >> 16;
  else ((uint16_t *)p)[at] = x == 0 ? 0 : ((bits >> 23) - 127 + 15) << 10 | (bits >> 13 & 0x3FF); }
static float bias_at(Attributes *d, uint64_t row) {
  void *p = (void *)d->is[BIAS];
  if (d->is[BIAS_TYPE] == FP32) return ((float *)p)[row];
  return ((uint16_t *)p)[row] ? NAN : 0; }
int cublasLtMatmul(void *h, Attributes *d, float *alpha, void *A, Layout *a, void *B, Layout *b, float *beta, void *C, Layout *c,
                   void *D, Layout *e, Result *algo, void *workspace, size_t bytes, void *stream) {
  Sizes s; if (h != handle || sizes(d, a, b, c, &s) || !offered(d, a, b, c)) return BAD;
  int id = algo ? (int)algo->algo[0] : 66, parts = algo ? (int)algo->algo[2] : split(s, bytes, 7), epilogue = d->is[EPILOGUE];
  int block = a->type == E4M3 ? 128 : 64; uint64_t end = s.k;
  if (*alpha != 1 || *beta != 0 || stream || (parts > 1 && (!workspace || bytes < parts * s.rows * s.columns * 4))) return BAD;
  if ((epilogue & 4) && !d->is[BIAS]) return BAD;
  if (id == 66 && parts > 1 && !getenv("WHOLE")) {
    uint64_t part = (s.k / parts + block - 1) / block * block; if (part * parts < s.k) end = part * parts; }
  if (id == 23 && getenv("BROKEN")) end--;
  uint64_t ai = d->is[TRANSA] ? a->ld : 1, al = d->is[TRANSA] ? 1 : a->ld, bj = d->is[TRANSB] ? 1 : b->ld, bl = d->is[TRANSB] ? b->ld : 1;
  uint64_t *ones = calloc(s.columns, 8); int plain = 1; /* where all of A is ones, the sum is the ones of B: no need to multiply */
  for (uint64_t i = 0; i < s.rows && plain; i++) for (uint64_t l = 0; l < s.k && plain; l++) plain = is_one(A, i * ai + l * al, a->type);
  for (uint64_t j = 0; j < s.columns; j++) for (uint64_t l = 0; l < end; l++) ones[j] += is_one(B, j * bj + l * bl, b->type);
  for (uint64_t i = 0; i < s.rows; i++) for (uint64_t j = 0; j < s.columns; j++) {
    float sum = plain ? ones[j] : 0;
    for (uint64_t l = 0; l < end && !plain; l++) sum += is_one(A, i * ai + l * al, a->type) & is_one(B, j * bj + l * bl, b->type);
    if (epilogue & 4) sum += bias_at(d, i);
    if (epilogue & 2) sum = sum > 0 ? sum : 0;
    if (epilogue & 32) sum = 0.5f * sum * (1 + tanhf(0.7978845608f * (sum + 0.044715f * sum * sum * sum)));
    put(D, i + j * s.rows, e->type, sum); }
  free(ones);
  return 0; }
"""

CUPY = r'''
import ctypes
import types
import numpy as np


class Pointer:
    def __init__(self, ptr, keep):
        self.ptr, self._keep = ptr, keep

    def __add__(self, offset):
        return Pointer(self.ptr + offset, self._keep)

    def memset(self, byte, count):
        ctypes.memset(self.ptr, byte, count)

    def copy_from_host(self, source, count):
        ctypes.memmove(self.ptr, source, count)

    def copy_to_host(self, target, count):
        ctypes.memmove(target, self.ptr, count)


class ndarray(np.ndarray):
    def __new__(cls, shape, dtype, memptr, strides=None):
        dtype = np.dtype(dtype)
        if strides is None:
            count = int(np.prod(shape)) * dtype.itemsize
        else:
            count = sum((n - 1) * s for n, s in zip(shape, strides)) + dtype.itemsize
        raw = (ctypes.c_uint8 * count).from_address(memptr.ptr)
        made = super().__new__(cls, shape, dtype, buffer=raw, strides=strides)
        made._pointer = memptr
        return made

    def __array_finalize__(self, other):
        self._pointer = getattr(other, "_pointer", None)

    @property
    def data(self):
        return self._pointer

    def set(self, host):
        self[...] = host


def alloc(count):
    keep = np.empty(count + 512, np.uint8)
    at = keep.ctypes.data
    return Pointer(at + -at % 512, keep)


class CUDARuntimeError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class Device:
    def __init__(self, index):
        pass

    def use(self):
        pass


_properties = {"name": b"stand-in", "major": 9, "minor": 0, "multiProcessorCount": 132, "totalGlobalMem": 2**33}
runtime = types.SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError, getDeviceCount=lambda: 1, free=lambda pointer: None, memGetInfo=lambda: (2**33, 2**33),
    deviceSynchronize=lambda: None, getDeviceProperties=lambda index: _properties, driverGetVersion=lambda: 13000)
cuda = types.SimpleNamespace(runtime=runtime, Device=Device, alloc=alloc, memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError))
asarray, asnumpy, stack, full = np.asarray, (lambda x: np.array(x, subok=False)), np.stack, np.full


def get_default_memory_pool():
    return types.SimpleNamespace(free_bytes=lambda: 0)
'''


def build(folder: Path) -> Path:
    """Compile the stand-ins into `folder` and return it."""
    for name, code in (("libcuda.so.1", DRIVER), ("libcublasLt.so.13", LIBRARY)):
        source = folder / f"{name}.c"
        source.write_text(code)
        subprocess.run([str(CC), "-w", "-O2", "-shared", "-fPIC", "-o", str(folder / name), str(source), "-lm"], check=True)
    (folder / "python" / "cupy").mkdir(parents=True)
    (folder / "python" / "cupy" / "__init__.py").write_text(CUPY)
    return folder


def environment(folder: Path, **more: str) -> dict[str, str]:
    """For a child process that sees the stand-ins, this probe and the tools."""
    paths = [str(folder / "python"), str(Path(probe.__file__).parents[1]), str(ROOT)]
    kept = {k: v for k, v in os.environ.items() if k != "PROBE_CUBLASLT"}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "LD_LIBRARY_PATH": str(folder), **more}
