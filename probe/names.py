"""The closed sets that a problem is built from, each with the vendor's numbers.

Numbers of compute types are from cublas_api.h, of epilogues and pointer modes from cublasLt.h (nvidia-cublas
13.1.0.3), of element types from library_types.h of CUDA 13.0.
"""

from __future__ import annotations

from enum import StrEnum


class DType(StrEnum):
    """Element types that probe knows."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    E4M3 = "e4m3"
    E5M2 = "e5m2"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    @property
    def cuda_value(self) -> int:
        """Number of this type in cudaDataType (library_types.h)."""
        return _CUDA_VALUE[self]

    @property
    def is_fp8(self) -> bool:
        """True for the two 8-bit types, which have rules of their own."""
        return self.itemsize == 1


_ITEMSIZE = {DType.FP32: 4, DType.FP16: 2, DType.BF16: 2, DType.E4M3: 1, DType.E5M2: 1}
_CUDA_VALUE = {DType.FP32: 0, DType.FP16: 2, DType.BF16: 14, DType.E4M3: 28, DType.E5M2: 29}


class Layout(StrEnum):
    """transa and transb of the column-major call; see the module's first lines."""

    NN = "nn"
    TN = "tn"
    NT = "nt"
    TT = "tt"

    @property
    def b_transposed(self) -> bool:
        """transa: True where our B is stored N x K."""
        return self.value[0] == "t"

    @property
    def a_transposed(self) -> bool:
        """transb: True where our A is stored K x M."""
        return self.value[1] == "t"


class ComputeType(StrEnum):
    """cublasComputeType_t, the members that work on the types of `DType` (cublas_api.h)."""

    FP16 = "fp16"
    FP16_PEDANTIC = "fp16_pedantic"
    FP32 = "fp32"
    FP32_PEDANTIC = "fp32_pedantic"
    FP32_FAST_FP16 = "fp32_fast_fp16"
    FP32_FAST_BF16 = "fp32_fast_bf16"
    FP32_FAST_TF32 = "fp32_fast_tf32"
    FP32_EMULATED_BF16X9 = "fp32_emulated_bf16x9"

    @property
    def cublas_value(self) -> int:
        """Number of this type in cublasComputeType_t."""
        return _COMPUTE_VALUE[self]

    @property
    def scale_type(self) -> DType:
        """Type of alpha and beta that belongs to this compute type."""
        return DType.FP16 if self in (ComputeType.FP16, ComputeType.FP16_PEDANTIC) else DType.FP32


_COMPUTE_VALUE = {
    ComputeType.FP16: 64,
    ComputeType.FP16_PEDANTIC: 65,
    ComputeType.FP32: 68,
    ComputeType.FP32_PEDANTIC: 69,
    ComputeType.FP32_FAST_FP16: 74,
    ComputeType.FP32_FAST_BF16: 75,
    ComputeType.FP32_FAST_TF32: 77,
    ComputeType.FP32_EMULATED_BF16X9: 78,
}


class Epilogue(StrEnum):
    """cublasLtEpilogue_t, the members without an auxiliary buffer or a gradient."""

    DEFAULT = "default"
    RELU = "relu"
    BIAS = "bias"
    RELU_BIAS = "relu_bias"
    GELU = "gelu"
    GELU_BIAS = "gelu_bias"

    @property
    def cublas_value(self) -> int:
        """Number of this epilogue in cublasLtEpilogue_t."""
        return _EPILOGUE_VALUE[self]

    @property
    def has_bias(self) -> bool:
        """True where a bias vector of N elements is added to every row of C."""
        return bool(self.cublas_value & 4)


_EPILOGUE_VALUE = {
    Epilogue.DEFAULT: 1,
    Epilogue.RELU: 2,
    Epilogue.BIAS: 4,
    Epilogue.RELU_BIAS: 6,
    Epilogue.GELU: 32,
    Epilogue.GELU_BIAS: 36,
}


class PointerMode(StrEnum):
    """Where alpha and beta are read from (cublasLtPointerMode_t, the two scalar modes)."""

    HOST = "host"
    DEVICE = "device"

    @property
    def cublas_value(self) -> int:
        """Number of this mode in cublasLtPointerMode_t."""
        return 0 if self is PointerMode.HOST else 1
