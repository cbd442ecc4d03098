"""The layer shapes of 16 open-weight models, as far as the paper's Table 4 (Appendix C) gives their widths.

Taming Bitwise Behavior in GPU Kernels with Tensor Core, Table 4: hidden, FFN, expert, experts and vocab of each model, None where the model
has none. By that appendix N is a weight's output width, K its input width: the MLP pair takes N from FFN going up and K from FFN coming
down, the expert pair likewise, and the LM head takes N from vocab. The table gives no head counts, so attention projections are not here.
Beyond the appendix: the fused gate and up pair (2 FFN, 2 expert), the router (N = experts), the first matrix of a LoRA
adapter (N = rank).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """Widths in elements."""

    name: str
    hidden: int
    ffn: int | None
    expert: int | None
    experts: int | None
    vocab: int


MODELS = (
    Model("Qwen3.8-2.4T-A95B", 8192, None, 2048, 512, 248320), Model("DeepSeek-V4-Pro", 7168, None, 3072, 384, 129280),
    Model("DeepSeek-V4-Flash", 4096, None, 2048, 256, 129280), Model("GLM-5.2", 6144, 12288, 2048, 256, 154880),
    Model("GLM-4.7-Flash", 2048, 10240, 1536, 64, 154880), Model("Kimi-K2.6", 7168, 18432, 2048, 384, 163840),
    Model("Kimi-K3", 7168, 33792, 3072, 896, 163840), Model("gpt-oss-120b", 2880, None, 2880, 128, 201088),
    Model("gpt-oss-20b", 2880, None, 2880, 32, 201088), Model("Nemotron-3.5-L", 2688, 1856, 1856, 128, 131072),
    Model("MiniMax-M2", 3072, None, 1536, 256, 200064), Model("Qwen3-30B-A3B", 2048, 6144, 768, 128, 151936),
    Model("Ling-3.0-flash", 2560, 6144, 768, 512, 157184), Model("Qwen3.6-35B-A3B", 2048, None, 512, 256, 248320),
    Model("Qwen3.8-27B", 5120, 17408, None, None, 248320), Model("granite-4.1-8b", 4096, 12800, None, None, 100352))
LORA_RANKS = (8, 16, 64)


@dataclass(frozen=True)
class Weight:
    """One weight, N x K: out and into, in elements; names: which layers of which models have it."""

    out: int
    into: int
    names: tuple[str, ...]


def weights(models: tuple[Model, ...] = MODELS) -> tuple[Weight, ...]:
    """Every weight once, with all its names."""
    found: dict[tuple[int, int], list[str]] = {}
    for model in models:
        for name, out, into in _of(model):
            found.setdefault((out, into), []).append(f"{model.name} {name}")
    return tuple(Weight(out, into, tuple(names)) for (out, into), names in found.items())


def _of(model: Model) -> list[tuple[str, int, int]]:
    h = model.hidden
    out = [("LM head", model.vocab, h)]
    for name, width in (("FFN", model.ffn), ("expert", model.expert)):
        if width is not None:
            out += [(f"{name} up", width, h), (f"{name} gate and up", 2 * width, h), (f"{name} down", h, width)]
    if model.experts is not None:
        out.append(("router", model.experts, h))
    for rank in LORA_RANKS:
        out += [(f"LoRA {rank} of {name}", rank, into) for name, into in (("hidden", h), ("FFN", model.ffn)) if into is not None]
    return out
