"""Every cublasStatus_t: its number, name, meaning, and what to do about it.

Numbers and names come from the header (vendor_enums.json). The meanings are this project's words for what the
header and the cuBLAS documentation say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from probe import vendor
from probe.errors import LibraryError

SUCCESS = 0
NOT_INITIALIZED = 1
INVALID_VALUE = 7
ARCH_MISMATCH = 8
NOT_SUPPORTED = 15


@dataclass(frozen=True)
class Status:
    """One status: number, header name, meaning and action as half sentences in plain words."""

    number: int
    name: str
    meaning: str
    action: str


_TEXTS = {
    "CUBLAS_STATUS_SUCCESS": ("the call succeeded", "nothing to do"),
    "CUBLAS_STATUS_NOT_INITIALIZED": (
        "the library has no working handle, most often because there is no usable GPU or CUDA context",
        "check that nvidia-smi lists a GPU and that its driver is new enough for this library",
    ),
    "CUBLAS_STATUS_ALLOC_FAILED": (
        "the library could not allocate what it needs",
        "free device or host memory and try again",
    ),
    "CUBLAS_STATUS_INVALID_VALUE": (
        "an argument or a combination of attributes is not legal for this call",
        "compare the dtypes, leading dimensions, alignments and workspace with the library's documentation",
    ),
    "CUBLAS_STATUS_ARCH_MISMATCH": (
        "the operation needs a feature that this GPU does not have",
        "use another dtype or compute type, or a newer GPU",
    ),
    "CUBLAS_STATUS_MAPPING_ERROR": (
        "an access to device memory failed",
        "check the pointers; start a fresh process, for the CUDA context may be unusable",
    ),
    "CUBLAS_STATUS_EXECUTION_FAILED": (
        "a kernel could not be launched or failed while running",
        "check pointers and alignments; start a fresh process, for the CUDA context may be unusable",
    ),
    "CUBLAS_STATUS_INTERNAL_ERROR": (
        "the library failed inside, for example while copying or launching",
        "start a fresh process and try again; if it stays, report the call to the vendor",
    ),
    "CUBLAS_STATUS_NOT_SUPPORTED": (
        "the library has no implementation for this combination on this GPU",
        "try another layout, dtype, alignment or more workspace",
    ),
    "CUBLAS_STATUS_LICENSE_ERROR": (
        "the library's license check failed",
        "check the installation of the library",
    ),
}


@cache
def statuses() -> dict[int, Status]:
    """Every status of the header, by number."""
    members = vendor.members("cublasStatus_t")
    return {number: Status(number, name, *_TEXTS[name]) for name, number in members.items()}


def describe(number: int) -> Status:
    """The status of that number; one that the header does not name is described as unknown."""
    unknown = Status(
        number,
        f"unknown({number})",
        f"{vendor.source()} does not name it",
        "look in the library's own header",
    )
    return statuses().get(number, unknown)


def check(function: str, number: int) -> None:
    """Raise LibraryError unless `number`, returned by the C function `function`, is success."""
    if number != SUCCESS:
        status = describe(number)
        raise LibraryError(function, number, status.name, status.meaning, status.action)
