// The CPU's and the GPU's implementations of cast(), matmul() and update_scales(). The public functions check
// their arguments and call them.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/fp8.h>

namespace octavo::fp8 {

// REQUIRES: arguments that the public functions have checked, with at least one element.
void cast_cpu(const CastArgs& args);
void matmul_cpu(const MatmulArgs& args);
Status cast_cuda(const CastArgs& args);
Status matmul_cuda(const MatmulArgs& args);
Status update_scales_cuda(const ScaleUpdate& update);

}  // namespace octavo::fp8
