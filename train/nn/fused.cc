// SPDX-License-Identifier: MIT
#include "nn/fused.h"

#include <octavo/torch/native.h>

namespace octavo::train {

KernelScope::KernelScope(const ::torch::Tensor& x)
    : guard_(x.device()),
      stream_(octavo::torch::native::handle_of(octavo::torch::native::current_stream(x.device()))) {}

}  // namespace octavo::train
