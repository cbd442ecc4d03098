"""The answer: what the library's cost model returns for a problem and a preference.

The nine algorithm attributes are typed as the header types them (cublasLtMatmulAlgoConfigAttributes_t):
algo_id and splitk_num are signed, and a splitk_num of -1 is legal and means what the library means by it.
Numbers are kept; names stand beside them and never replace them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from probe import vendor
from probe.errors import UsageError
from probe.values import Record, check_int

BLOB_BYTES = 64  # cublasLtMatmulAlgo_t is uint64_t[8]

_RANGES = {
    "int32_t": (-(2**31), 2**31 - 1),
    "uint32_t": (0, 2**32 - 1),
    "uint16_t": (0, 2**16 - 1),
}

# field of Answer -> attribute of the header
CONFIG_ATTRIBUTES = {
    "algo_id": "CUBLASLT_ALGO_CONFIG_ID",
    "tile": "CUBLASLT_ALGO_CONFIG_TILE_ID",
    "splitk_num": "CUBLASLT_ALGO_CONFIG_SPLITK_NUM",
    "reduction_scheme": "CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME",
    "swizzling": "CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING",
    "custom_option": "CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION",
    "stages": "CUBLASLT_ALGO_CONFIG_STAGES_ID",
    "inner_shape": "CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID",
    "cluster_shape": "CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID",
}

# field of Answer -> enum that names its numbers
_ENUMS = {
    "tile": "cublasLtMatmulTile_t",
    "reduction_scheme": "cublasLtReductionScheme_t",
    "stages": "cublasLtMatmulStages_t",
    "inner_shape": "cublasLtMatmulInnerShape_t",
    "cluster_shape": "cublasLtClusterShape_t",
}


def check_attribute(name: str, value: object) -> int:
    """Return `value` if the header's type of that attribute, named as the field of Answer, holds it, else raise UsageError."""
    return check_int(name, value, *_RANGES[vendor.attribute(CONFIG_ATTRIBUTES[name]).c_type])


@dataclass(frozen=True)
class Answer(Record):
    """Nine algorithm attributes, the workspace in bytes, and the waves that the library expects.

    `blob` is the library's 64-byte algorithm, for running this very answer again with the same library
    file; None where it was not kept. It is in the JSON and plays no part in equality. Raises UsageError for
    a number that the header's type cannot hold.
    """

    KIND: ClassVar[str] = "answer"
    FORM: ClassVar[int] = 1

    algo_id: int
    tile: int
    splitk_num: int
    reduction_scheme: int
    swizzling: int
    custom_option: int
    stages: int
    inner_shape: int
    cluster_shape: int
    workspace_bytes: int
    waves: float
    blob: bytes | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in CONFIG_ATTRIBUTES:
            check_attribute(name, getattr(self, name))
        check_int("workspace_bytes", self.workspace_bytes, 0, 2**64 - 1)
        if isinstance(self.waves, bool) or not isinstance(self.waves, float) or not math.isfinite(self.waves):
            raise UsageError(f"waves must be a finite float, got {self.waves!r}")
        if self.blob is not None and (not isinstance(self.blob, bytes) or len(self.blob) != BLOB_BYTES):
            raise UsageError(f"blob must be {BLOB_BYTES} bytes")

    @property
    def attributes(self) -> tuple[int, ...]:
        """The nine attributes, in the order of the header."""
        return tuple(getattr(self, name) for name in CONFIG_ATTRIBUTES)

    @property
    def key(self) -> str:
        """Short stable name of the nine attributes and the workspace."""
        return ".".join(map(str, self.attributes)) + f".ws{self.workspace_bytes}"

    def name(self, field: str, version: str | None = None) -> str:
        """The vendor's name of tile ("64x8"), stages, reduction_scheme, inner_shape or cluster_shape, or `unknown(n)`.

        version: of the library that gave the answer ("13.1.0"), whose table of names is read; None: the default table.
        A reduction scheme of several bits is their names joined by |.
        """
        enum, number = _ENUMS[field], getattr(self, field)
        bits = [bit for bit in (1, 2, 4) if number & bit] if field == "reduction_scheme" else []
        if len(bits) > 1 and number == sum(bits):
            return "|".join(vendor.short_name(enum, bit, version) for bit in bits)
        return vendor.short_name(enum, number, version)

    @property
    def tile_name(self) -> str:
        """Tile as "64x8", or `unknown(n)`, by the default table."""
        return self.name("tile")

    @property
    def stages_name(self) -> str:
        """Stages as "64xAUTO", or `unknown(n)`, by the default table."""
        return self.name("stages")

    @property
    def reduction_scheme_name(self) -> str:
        """NONE, INPLACE, COMPUTE_TYPE, OUTPUT_TYPE, several joined by | for a mask, or `unknown(n)`, by the default table."""
        return self.name("reduction_scheme")

    @property
    def inner_shape_name(self) -> str:
        """Inner shape as "MMA16816", or `unknown(n)`, by the default table."""
        return self.name("inner_shape")

    @property
    def cluster_shape_name(self) -> str:
        """Cluster shape as "2x1x1", "AUTO", or `unknown(n)`, by the default table."""
        return self.name("cluster_shape")

    def describe(self, version: str | None = None) -> str:
        """The answer in words. version: of the library that gave it, whose names stand beside the numbers; None: the default table."""
        return (
            f"algo {self.algo_id}, tile {self.name('tile', version)}, split-K {self.splitk_num}, "
            f"reduction {self.name('reduction_scheme', version)}, swizzling {self.swizzling}, "
            f"custom {self.custom_option}, stages {self.name('stages', version)}, inner shape {self.name('inner_shape', version)}, "
            f"cluster {self.name('cluster_shape', version)}, workspace {self.workspace_bytes} B"
        )

    def __str__(self) -> str:
        return self.describe()
