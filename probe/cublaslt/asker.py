"""Ask the cost model often: descriptors are made once for each kind of problem, and only the numbers that differ are set anew.

`probe.cublaslt.ask` makes and destroys six descriptors a question; what it answers is what is answered here.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from probe import vendor
from probe.cublaslt import status
from probe.cublaslt.algo import call_layouts, read_attributes
from probe.cublaslt.ask import refused
from probe.cublaslt.descriptors import C_TYPES, Described, MatmulPreference, asking_extras, describe, describe_preference
from probe.cublaslt.library import Library
from probe.cublaslt.signatures import HeuristicResult, MatmulAlgo
from probe.errors import DeclineReason
from probe.preference import Preference
from probe.problem import Problem

_SIZES = ("ROWS", "COLS", "LD")
_MOST_KEPT = 4096  # preferences and algorithms: a library has some thousand answers
_FUNCTION = "cublasLtMatmulAlgoGetHeuristic"


@dataclass(frozen=True)
class Quick:
    """An answer as numbers: the nine attributes in the header's order, the workspace in bytes, the waves."""

    attributes: tuple[int, ...]
    workspace_bytes: int
    waves: float


class _Layout:
    """A layout descriptor whose sizes are set; what it holds already is not set again."""

    def __init__(self, library: Library, pointer: int) -> None:
        self._set = library.functions.cublasLtMatrixLayoutSetAttribute
        attributes = [vendor.attribute(f"CUBLASLT_MATRIX_LAYOUT_{name}") for name in _SIZES]
        self._boxes: list[Any] = [C_TYPES[a.c_type]() for a in attributes]
        self._calls = [(ctypes.c_void_p(pointer), ctypes.c_int(a.number), ctypes.c_void_p(ctypes.addressof(box)),
                        ctypes.c_size_t(ctypes.sizeof(box))) for a, box in zip(attributes, self._boxes, strict=True)]
        self._held = [-1, -1, -1]

    def sizes(self, rows: int, columns: int, ld: int) -> None:
        """Rows, columns and leading dimension as the column-major library sees them."""
        for place, value in enumerate((rows, columns, ld)):
            if self._held[place] != value:
                self._boxes[place].value = value
                code = self._set(*self._calls[place])
                if code:
                    status.check(f"cublasLtMatrixLayoutSetAttribute({_SIZES[place]})", code)
                self._held[place] = value


class KindDescriptors:
    """The descriptors of all problems that are like one in all but M, N, K, leading dimensions and addresses. Made by `Asker.kind`."""

    def __init__(self, library: Library, like: Problem, described: Described) -> None:
        self.described = described
        self.arguments = call_layouts(described)
        self._layout = like.layout
        self._b, self._a, self._c, self._d = (_Layout(library, pointer) for pointer in self.arguments[1:])

    def sizes(self, m: int, n: int, k: int, lda: int, ldb: int, ldd: int) -> None:
        """Set them, in elements. C has the output's leading dimension."""
        # a stored row-major matrix, seen column-major, is its transpose
        self._a.sizes(*((m, k) if self._layout.a_transposed else (k, m)), lda)
        self._b.sizes(*((k, n) if self._layout.b_transposed else (n, k)), ldb)
        self._c.sizes(n, m, ldd)
        self._d.sizes(n, m, ldd)


class Asker:
    """Asks one library, as a context manager. Not for several threads at once.

    Needs a GPU to ask, none to make the descriptors.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._kinds: dict[Problem, KindDescriptors] = {}
        self._wishes: dict[tuple[int, ...], MatmulPreference] = {}
        self._attributes: dict[bytes, tuple[int, ...]] = {}
        self._result, self._count = (HeuristicResult * 1)(), ctypes.c_int()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()
        for wish in self._wishes.values():
            wish.close()
        self._wishes.clear()

    def kind(self, like: Problem) -> KindDescriptors:
        """The descriptors of problems like one that is packed and without offsets; they live as long as the asker."""
        kind = self._kinds.get(like)
        if kind is None:
            described = self._open.enter_context(describe(self._library, like, asking_extras(like)))
            kind = self._kinds[like] = KindDescriptors(self._library, like, described)
        return kind

    def ask(self, kind: KindDescriptors, sizes: tuple[int, int, int, int, int, int], workspace_bytes: int, mask: int,
            alignments: tuple[int, int, int, int]) -> Quick | DeclineReason:
        """What the library picks, or why it picks nothing.

        sizes: M, N, K, lda, ldb, ldd in elements. mask: of reduction schemes. alignments: bytes, of A, B, C, D. Raises LibraryError.
        """
        kind.sizes(*sizes)
        code = self._library.functions.cublasLtMatmulAlgoGetHeuristic(
            self._library.handle, *kind.arguments, self._wish(workspace_bytes, mask, alignments), 1, self._result,
            ctypes.byref(self._count))
        if code:
            reason = refused(code)
            if reason is None:
                status.check(_FUNCTION, code)
            assert reason is not None  # status.check raises for every other code
            return reason
        result = self._result[0]
        if self._count.value < 1 or result.state != status.SUCCESS:
            return DeclineReason.NO_ALGORITHM
        return Quick(self._read(result.algo), int(result.workspace_size), float(result.waves_count))

    def _wish(self, workspace_bytes: int, mask: int, alignments: tuple[int, int, int, int]) -> int:
        key = (workspace_bytes, mask, *alignments)
        wish = self._wishes.get(key)
        if wish is None:
            if len(self._wishes) >= _MOST_KEPT:
                self._wishes.pop(next(iter(self._wishes))).close()
            wish = self._wishes[key] = describe_preference(self._library, Preference(workspace_bytes, mask), alignments)
        return wish.pointer

    def _read(self, algo: MatmulAlgo) -> tuple[int, ...]:
        key = bytes(algo)
        known = self._attributes.get(key)
        if known is None:
            if len(self._attributes) >= _MOST_KEPT:
                self._attributes.clear()
            known = self._attributes[key] = tuple(read_attributes(self._library, algo).values())
        return known
