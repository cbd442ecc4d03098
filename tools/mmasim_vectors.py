"""Record what MMA-Sim says about random dot products, as test vectors for probe.tensorcore.

    python -m tools.mmasim_vectors tests/data/mmasim

Needs mmasim 2.1.1, torch 2.13.0 (CPU) and a C++ compiler, none of which probe itself needs. Committed are
the answers, the seed, the SHA-256 of the inputs and the version; the inputs come back from `operands`,
which uses nothing but the raw output of a counter-based Philox generator, so no change of numpy's
distributions can move them.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from probe.formats import FORMATS, bits_dtype, decode, encode_rn
from probe.names import DType

SEED = 20261130
BATCH, M, N = 10, 32, 32  # 10,240 dot products per instruction and operand class
OPERAND_CLASSES = ("flat", "spread", "extreme", "cancelling", "special")
Array = np.ndarray[Any, Any]

# (sm, dtype) -> (MMA-Sim class, architecture, instruction, k of the instruction)
INSTRUCTIONS: dict[tuple[int, DType], tuple[str, str, str, int]] = {
    (80, DType.FP16): ("MMA", "Ampere", "m16n8k16.f32.f16.f16.f32", 16),
    (80, DType.BF16): ("MMA", "Ampere", "m16n8k16.f32.bf16.bf16.f32", 16),
    (89, DType.FP16): ("MMA", "Ada Lovelace", "m16n8k16.f32.f16.f16.f32", 16),
    (89, DType.BF16): ("MMA", "Ada Lovelace", "m16n8k16.f32.bf16.bf16.f32", 16),
    (89, DType.E4M3): ("MMA", "Ada Lovelace", "m16n8k32.f32.e4m3.e4m3.f32", 32),
    (90, DType.FP16): ("WGMMA", "Hopper", "m64n8k16.f32.f16.f16", 16),
    (90, DType.BF16): ("WGMMA", "Hopper", "m64n8k16.f32.bf16.bf16", 16),
    (90, DType.E4M3): ("WGMMA", "Hopper", "m64n8k32.f32.e4m3.e4m3", 32),
    (100, DType.FP16): ("TCGen05MMA", "Blackwell", "m64n8k16.kind::f16.f32.f16.f16", 16),
    (100, DType.BF16): ("TCGen05MMA", "Blackwell", "m64n8k16.kind::f16.f32.bf16.bf16", 16),
    (100, DType.E4M3): ("TCGen05MMA", "Blackwell", "m64n8k32.kind::f8f6f4.f32.e4m3.e4m3", 32),
}


class _Draw:
    """Numbers from the raw 64-bit words of a Philox generator."""

    def __init__(self, *key: int) -> None:
        stream = sum(v << (16 * i) for i, v in enumerate(key))
        self._raw = np.random.Philox(key=np.array([SEED, stream], np.uint64))

    def words(self, shape: tuple[int, ...]) -> Array:
        return np.asarray(self._raw.random_raw(int(np.prod(shape)))).reshape(shape)

    def below(self, bound: int, shape: tuple[int, ...]) -> Array:
        return (self.words(shape) >> np.uint64(33)).astype(np.int64) % bound

    def bell(self, shape: tuple[int, ...]) -> Array:
        """The sum of four uniform numbers, centred, variance 1: gaussian enough, exact to regenerate."""
        total = (self.words((4, *shape)) >> np.uint64(20)).astype(np.int64).sum(axis=0)
        centred: Array = (total - (2 << 44)) * (3.0**0.5 / 2**44)
        return centred


def operands(sm: int, dtype: DType, operand_class: str) -> tuple[Array, Array, Array]:
    """Raw bits of a (BATCH, M, K), b (BATCH, K, N) in `dtype` and of c (BATCH, M, N) in fp32, K that of the
    instruction.
    """
    k = INSTRUCTIONS[sm, dtype][3]
    draw = _Draw(sm, list(DType).index(dtype), OPERAND_CLASSES.index(operand_class))
    shapes = (BATCH, M, k), (BATCH, k, N), (BATCH, M, N)
    kinds = (dtype, dtype, DType.FP32)
    if operand_class == "extreme":
        a, b, c = (_extreme(draw, d, s) for d, s in zip(kinds, shapes, strict=True))
        return a, b, c
    reach = {DType.FP16: 7, DType.BF16: 9, DType.E4M3: 4, DType.FP32: 14}
    values = []
    for kind, shape in zip(kinds, shapes, strict=True):
        drawn = draw.bell(shape)
        if operand_class == "spread":
            drawn = np.ldexp(drawn, (draw.below(2 * reach[kind] + 1, shape) - reach[kind]).astype(np.int32))
        values.append(drawn)
    a_value, b_value, c_value = values
    if operand_class == "cancelling":
        keep = draw.below(4, (BATCH, M, k // 2)) > 0  # three of four pairs cancel, up to one rounding of a
        a_value[..., 1::2] = np.where(keep, -a_value[..., ::2], a_value[..., 1::2])
        off = draw.below(5, (BATCH, M, k // 2)) == 0
        a_value[..., 1::2] *= 1 + 2.0 ** -FORMATS[dtype].fraction_bits * off
        b_value[:, 1::2] = b_value[:, ::2]
        c_value = np.ldexp(c_value, -draw.below(20, c_value.shape).astype(np.int32))
    bits = [encode_rn(v, d) for v, d in zip((a_value, b_value, c_value), kinds, strict=True)]
    if operand_class == "special":
        bits = [_with_specials(draw, x, d) for x, d in zip(bits, kinds, strict=True)]
        bits[0][0] = FORMATS[dtype].sign_bit  # batch 0: every product is a zero, half the accumulators are -0
        bits[2][0, ::2] = FORMATS[DType.FP32].sign_bit
    return bits[0], bits[1], bits[2]


def _extreme(draw: _Draw, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Batches 0 to 3: any finite number. 4 to 6: subnormal operands, or (bf16) products near 2^-149. 7 to
    9: near the overflow of fp32.
    """
    form = FORMATS[dtype]
    random = draw.words(shape)
    code = (random & np.uint64((1 << form.bits) - 1)).astype(np.int64)
    fraction = code & ((1 << form.fraction_bits) - 1)
    choice = draw.below(1 << 20, shape)
    # (lowest, number of) exponent fields of the small and of the large batches
    small = {DType.FP16: (0, 3), DType.BF16: (38, 22), DType.E4M3: (0, 2), DType.FP32: (0, 4)}[dtype]
    large = {DType.FP16: (28, 3), DType.BF16: (184, 9), DType.E4M3: (13, 3), DType.FP32: (252, 3)}[dtype]
    for batches, (first, count) in ((slice(4, 7), small), (slice(7, 10), large)):
        field = first + choice[batches] % count
        code[batches] = (code[batches] & form.sign_bit) | field << form.fraction_bits | fraction[batches]
    code = np.where((code & (form.sign_bit - 1)) > form.max_bits, code & form.sign_bit, code)
    code = np.where(choice % 11 == 0, code & form.sign_bit, code)  # signed zeros
    if dtype is DType.FP32:
        code[5] = np.where(choice[5] % 2 == 0, 0, code[5])
    return code.astype(bits_dtype(dtype))


def _with_specials(draw: _Draw, bits: Array, dtype: DType) -> Array:
    """A few infinities, NaN (quiet, signalling, either sign) and signed zeros."""
    form = FORMATS[dtype]
    inf = form.max_bits + 1 if form.has_inf else form.nan
    menu = np.array([inf, inf | form.sign_bit, form.nan, form.nan | form.sign_bit, min(inf + 1, form.nan), 0,
                     form.sign_bit, form.sign_bit], bits.dtype)
    rare = draw.below(90 if dtype is not DType.FP32 else 20, bits.shape) == 0
    out = np.where(rare, menu[draw.below(len(menu), bits.shape)], bits)
    return out.astype(bits.dtype)


def digest(*arrays: Array) -> str:
    """SHA-256 over the bytes of the inputs, in order, little-endian."""
    h = hashlib.sha256()
    for x in arrays:
        h.update(np.ascontiguousarray(x).astype(x.dtype.newbyteorder("<")).tobytes())
    return h.hexdigest()


def file_name(sm: int, dtype: DType) -> str:
    return f"sm{sm}_{dtype}.npz"


def record(sm: int, dtype: DType) -> dict[str, Array]:
    """MMA-Sim's fp32 result bits (BATCH, M, N) and the input digest, per operand class."""
    import torch  # type: ignore[import-not-found]
    from mmasim import nv_ptx  # type: ignore[import-not-found]

    kind, arch, instruction, k = INSTRUCTIONS[sm, dtype]
    model = getattr(nv_ptx, kind)(arch, instruction)
    out: dict[str, Array] = {"seed": np.array(SEED), "mmasim": np.array(version("mmasim")),
                             "torch": np.array(version("torch")), "instruction": np.array(instruction)}
    types = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16, DType.E4M3: torch.float8_e4m3fn}
    for operand_class in OPERAND_CLASSES:
        a, b, c = operands(sm, dtype, operand_class)
        ta, tb = (torch.from_numpy(x.copy()).view(types[dtype]) for x in (a, b))
        tc = torch.from_numpy(c.copy()).view(torch.float32)
        # a of every output: (BATCH, M, N, k); b likewise, k last
        wide_a = ta[:, :, None, :].expand(BATCH, M, N, k).contiguous()
        wide_b = tb.transpose(1, 2)[:, None, :, :].expand(BATCH, M, N, k).contiguous()
        out[operand_class] = model.dpa(wide_a, wide_b, tc).view(torch.int32).numpy().view(np.uint32)
        out[operand_class + ".sha256"] = np.array(digest(a, b, c))
        values = decode(out[operand_class], DType.FP32)
        counts = {"nan": np.isnan(values), "inf": np.isinf(values), "zero": values == 0,
                  "subnormal": (values != 0) & (abs(values) < 2.0**-126)}
        print(sm, dtype, operand_class, *(f"{name} {int(hit.sum())}" for name, hit in counts.items()))
    return out


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m tools.mmasim_vectors FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for sm, dtype in INSTRUCTIONS:
        np.savez_compressed(folder / file_name(sm, dtype), **record(sm, dtype))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
