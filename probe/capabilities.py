"""What one algorithm of the library can be set to: cublasLtMatmulAlgoCapAttributes_t, as a checked value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from probe import vendor
from probe.values import Record, check_bool, check_int

# field of Capabilities -> attribute of the header. The call's A is our B, so the two alignments are crossed.
CAPABILITY_ATTRIBUTES = {
    "splitk": "CUBLASLT_ALGO_CAP_SPLITK_SUPPORT",
    "reduction_scheme_mask": "CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK",
    "swizzling": "CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT",
    "tiles": "CUBLASLT_ALGO_CAP_TILE_IDS",
    "stages": "CUBLASLT_ALGO_CAP_STAGES_IDS",
    "custom_option_max": "CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX",
    "a_alignment": "CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES",
    "b_alignment": "CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES",
    "c_alignment": "CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES",
    "d_alignment": "CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES",
    "out_of_place": "CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT",
    "strided_batch": "CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT",
    "epilogue_mask": "CUBLASLT_ALGO_CAP_EPILOGUE_MASK",
    "numerical_flags": "CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS",
}
_YES_NO = ("splitk", "out_of_place", "strided_batch")


@dataclass(frozen=True)
class Capabilities(Record):
    """One algorithm for one combination of dtypes.

    splitk: whether K may be split. reduction_scheme_mask: the schemes that it has (1 in place, 2 compute type, 4 output type). swizzling:
    0 none, else the largest number. tiles, stages: numbers of cublasLtMatmulTile_t and cublasLtMatmulStages_t; empty where the
    library lists none. custom_option_max: custom options are 0 to this. a_alignment to d_alignment: bytes, of our A, B, C, D; 0 where
    the library states none. out_of_place: whether D may be other memory than C. numerical_flags: cublasLtNumericalImplFlags_t.
    """

    KIND: ClassVar[str] = "capabilities"
    FORM: ClassVar[int] = 1

    algo_id: int
    splitk: bool
    reduction_scheme_mask: int
    swizzling: int
    tiles: tuple[int, ...]
    stages: tuple[int, ...]
    custom_option_max: int
    a_alignment: int
    b_alignment: int
    c_alignment: int
    d_alignment: int
    out_of_place: bool
    strided_batch: bool
    epilogue_mask: int
    numerical_flags: int

    def __post_init__(self) -> None:
        check_int("algo_id", self.algo_id, -(2**31), 2**31 - 1)
        for name in _YES_NO:
            check_bool(name, getattr(self, name))
        for name in ("reduction_scheme_mask", "swizzling", "epilogue_mask", *(f"{x}_alignment" for x in "abcd")):
            check_int(name, getattr(self, name), 0, 2**32 - 1)
        check_int("custom_option_max", self.custom_option_max, -(2**31), 2**31 - 1)
        check_int("numerical_flags", self.numerical_flags, 0, 2**64 - 1)
        for name in ("tiles", "stages"):
            for one in getattr(self, name):
                check_int(name, one, 0, 2**32 - 1)

    @classmethod
    def of(cls, algo_id: int, values: dict[str, Any]) -> Capabilities:
        """From the library's own numbers, by field: what is yes or no to the header is an int there."""
        typed: dict[str, Any] = {name: bool(v) if name in _YES_NO else v for name, v in values.items()}
        return cls(algo_id=algo_id, **typed)

    def tile_names(self, version: str | None = None) -> tuple[str, ...]:
        """Tiles as "64x64", by the table of that library version ("13.1.0"); None: the default table."""
        return tuple(vendor.short_name("cublasLtMatmulTile_t", one, version) for one in self.tiles)

    def stage_names(self, version: str | None = None) -> tuple[str, ...]:
        """Stages as "64xAUTO", by the same table."""
        return tuple(vendor.short_name("cublasLtMatmulStages_t", one, version) for one in self.stages)
