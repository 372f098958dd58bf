// Replaces cuda_device.cc in a build without CUDA.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/cuda_device.h"
#include "apps/octavo/common/cli.h"

namespace octavo::cli {

std::unique_ptr<BenchDevice> make_cuda_device(int /*index*/) {
  throw Failure(kExitFailure, "--device cuda: this build has no CUDA; configure with -DOCTAVO_CUDA=ON");
}

}  // namespace octavo::cli
