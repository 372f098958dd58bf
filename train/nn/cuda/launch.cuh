// Helpers of the host functions that launch kernels.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/cuda/drop_call.h"
#include "train/nn/cuda/dropping.cuh"

#include <cuda_runtime_api.h>

namespace octavo_train::cuda {

inline const char* launched() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

inline Dropping dropping(const DropoutArgs& call) {
  return {call.samples, formula::dropout_base(call.seed, call.step), call.layer,
          formula::make_dropout(call.probability)};
}

}  // namespace octavo_train::cuda
