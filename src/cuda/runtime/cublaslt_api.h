// The part of cuBLASLt's C interface that Octavo uses, declared by its ABI: the build needs no header of it,
// and the library is loaded at run time. The numbers are those of cublasLt.h, which have not changed since
// CUDA 11. If that header is found, cublaslt.cc compares them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace octavo::cuda::lt {

using Status = int;  // cublasStatus_t: 0 is success
using Handle = struct HandleTag*;
using Operation = struct OperationTag*;    // cublasLtMatmulDesc_t
using Layout = struct LayoutTag*;          // cublasLtMatrixLayout_t
using Preference = struct PreferenceTag*;  // cublasLtMatmulPreference_t

struct Algorithm {
  std::uint64_t data[8];
};
struct Heuristic {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  std::size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};

// cudaDataType
inline constexpr int kFloat32 = 0, kFloat16 = 2, kBfloat16 = 14, kE4M3 = 28, kE5M2 = 29;
// cublasComputeType_t: products in fp32, never TF32
inline constexpr int kCompute32 = 68;
// cublasOperation_t
inline constexpr std::int32_t kPlain = 0, kTransposed = 1;
// cublasLtMatmulDescAttributes_t
inline constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8;
// FP8 operands: the factor of codes, which codes share a factor (since CUDA 12.9), and sums in the matrix
// units' own precision of about 14 bits instead of fp32
inline constexpr int kScaleA = 17, kScaleB = 18, kFastSums = 25, kScaleModeA = 31, kScaleModeB = 32;
// cublasLtMatmulMatrixScale_t
inline constexpr std::int32_t kOneScale = 0, kScaleOfRow = 3, kScaleOfLine = 4, kScaleOfSquare = 5;
// cublasLtEpilogue_t
inline constexpr std::uint32_t kEpilogueBias = 4;
// cublasLtMatmulPreferenceAttributes_t
inline constexpr int kMaxWorkspace = 1, kReductions = 3;
// alignments in bytes of the addresses of an operation's matrices; 256 by default
inline constexpr int kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8;
// cublasLtReductionScheme_t: none, or sums of partial results in a workspace, in a fixed order
inline constexpr std::uint32_t kReductionInWorkspace = 2;

// Pointers to the functions, named without "cublasLt".
struct Functions {
  Status (*Create)(Handle*);
  Status (*Matmul)(Handle, Operation, const void* alpha, const void* a, Layout, const void* b, Layout,
                   const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*,
                   void* workspace, std::size_t, cudaStream_t);
  Status (*MatmulDescCreate)(Operation*, int compute, int scale);
  Status (*MatmulDescDestroy)(Operation);
  Status (*MatmulDescSetAttribute)(Operation, int, const void*, std::size_t);
  Status (*MatrixLayoutCreate)(Layout*, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t);
  Status (*MatrixLayoutDestroy)(Layout);
  Status (*MatmulPreferenceCreate)(Preference*);
  Status (*MatmulPreferenceDestroy)(Preference);
  Status (*MatmulPreferenceSetAttribute)(Preference, int, const void*, std::size_t);
  Status (*MatmulAlgoGetHeuristic)(Handle, Operation, Layout a, Layout b, Layout c, Layout d, Preference,
                                   int wanted, Heuristic*, int* found);
};

}  // namespace octavo::cuda::lt
