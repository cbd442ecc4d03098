"""The door to cuBLASLt: find a library, open it, ask its cost model, run its answers."""

from probe.cublaslt.algo import alter, check_answer
from probe.cublaslt.ask import ask, ask_many
from probe.cublaslt.descriptors import Extras
from probe.cublaslt.find import Found, find_library
from probe.cublaslt.force import algorithm_ids, capabilities, force
from probe.cublaslt.library import Library
from probe.cublaslt.run import PreparedMatmul

__all__ = [
    "Extras",
    "Found",
    "Library",
    "PreparedMatmul",
    "algorithm_ids",
    "alter",
    "ask",
    "ask_many",
    "capabilities",
    "check_answer",
    "find_library",
    "force",
]
