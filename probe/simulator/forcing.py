"""The simulated library's algorithms, forced answers, and the fault of an address that a stand-in kernel cannot take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probe.answer import CONFIG_ATTRIBUTES, Answer
from probe.capabilities import Capabilities
from probe.errors import Declined, DeclineReason, EnvironmentProblem
from probe.preference import Preference
from probe.problem import DType, Problem
from probe.simulator.library import (
    COMPUTE_TYPE,
    CUTLASS_SHORT_FIRST,
    CUTLASS_SINGLE,
    FFMA,
    NVJET,
    NVJET_ALIGNMENT,
    OUTPUT_TYPE,
    SimulatedLibrary,
    is_aligned,
)

_MOST_SPLITS = 132
# what cublasLtMatmulAlgoInit would make of any algorithm
_DEFAULTS: dict[str, Any] = {name: int(name == "splitk_num") for name in CONFIG_ATTRIBUTES}
_HINT = "probe answers lists what can be forced"


def simulated_algorithms(library: SimulatedLibrary, problem: Problem) -> tuple[int, ...] | Declined:
    """The numbers of the stand-in kernels for the dtypes of a problem. Declined as asking is."""
    asked = library.ask(problem, Preference())
    if isinstance(asked, Declined):
        return asked
    if problem.a_dtype.is_fp8:
        return (NVJET,)
    return (CUTLASS_SINGLE, CUTLASS_SHORT_FIRST, *((FFMA,) if problem.d_dtype is not DType.FP32 else ()), NVJET)


def simulated_capabilities(library: SimulatedLibrary, problem: Problem, algo_id: int) -> Capabilities | Declined:
    """What a stand-in kernel can be set to; Declined for a number that is none."""
    known = simulated_algorithms(library, problem)
    if isinstance(known, Declined):
        return known
    if algo_id not in known:
        return Declined(DeclineReason.UNSUPPORTED, f"the simulated library has no algorithm {algo_id} for {problem.a_dtype} inputs")
    size = NVJET_ALIGNMENT if algo_id == NVJET else problem.a_dtype.itemsize
    split = algo_id != FFMA
    return Capabilities(algo_id, splitk=split, reduction_scheme_mask=COMPUTE_TYPE | OUTPUT_TYPE if split else 0, swizzling=1, tiles=(),
                        stages=(), custom_option_max=0, a_alignment=size, b_alignment=size, c_alignment=problem.d_dtype.itemsize,
                        d_alignment=problem.d_dtype.itemsize, out_of_place=True, strided_batch=False, epilogue_mask=0, numerical_flags=0)


def forced_answer(library: SimulatedLibrary, problem: Problem, preference: Preference) -> Answer | Declined:
    """What `probe.cublaslt.force.force` does, on the stand-in: the base, the attributes on it, and a check of the whole."""
    forced = preference.forced
    assert forced is not None
    own = library.ask(problem, replace(preference, forced=None))
    if isinstance(own, Declined):
        return own
    base = own
    if forced.algo_id is not None:
        base = replace(own, **_DEFAULTS)
    given: dict[str, Any] = dict(forced.given)
    answer = replace(base, **given)
    refusal = _refusal(library, problem, preference, answer)
    if refusal:
        return Declined(DeclineReason.CANNOT_RUN, f"the simulated library refuses {refusal}; forced {forced}", _HINT)
    wanted = library.workspace(problem, answer.splitk_num) if answer.splitk_num > 1 else 0
    if wanted > preference.workspace_bytes:
        return Declined(DeclineReason.CANNOT_RUN, f"the forced algorithm wants {wanted} bytes of workspace and "
                                                  f"{preference.workspace_bytes} are allowed", "more workspace")
    return replace(answer, workspace_bytes=wanted)


def _refusal(library: SimulatedLibrary, problem: Problem, preference: Preference, answer: Answer) -> str:
    can = simulated_capabilities(library, problem, answer.algo_id)
    if isinstance(can, Declined):
        return f"algorithm {answer.algo_id}"
    blocks = -(-problem.k // (128 if problem.a_dtype.is_fp8 else 64))
    if not 1 <= answer.splitk_num <= (min(_MOST_SPLITS, blocks) if can.splitk else 1):
        return f"splitk_num = {answer.splitk_num} of algorithm {answer.algo_id} at K = {problem.k}"
    if answer.reduction_scheme not in ((0,) if answer.splitk_num == 1 else (COMPUTE_TYPE, OUTPUT_TYPE)):
        return f"reduction_scheme = {answer.reduction_scheme} with splitk_num = {answer.splitk_num}"
    if answer.swizzling not in (0, 1):
        return f"swizzling = {answer.swizzling}"
    for name in ("tile", "custom_option", "stages", "inner_shape", "cluster_shape"):
        if getattr(answer, name):
            return f"{name} = {getattr(answer, name)}"
    if answer.algo_id == NVJET and not is_aligned(problem, preference):
        return f"algorithm {NVJET} where N, K, a leading dimension or a promised address is no multiple of {NVJET_ALIGNMENT} bytes"
    return ""


def check_addresses(problem: Problem, answer: Answer) -> None:
    """Raise what a device does where the kernel of an answer meets an address that it cannot load from: the promise was not kept."""
    if answer.algo_id == NVJET and min(problem.alignment("a"), problem.alignment("b")) < NVJET_ALIGNMENT:
        raise EnvironmentProblem("the simulated GPU reported a failed kernel: misaligned address",
                                 "an alignment preference that the addresses keep")
