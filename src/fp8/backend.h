// What a device does for cast(), product() and update_scales(); the public functions check their arguments
// and forward.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/fp8.h>

namespace octavo::fp8 {

// REQUIRES: arguments that the public functions accept, with at least one element.
void cast_cpu(const CastArgs& args);
void product_cpu(const ProductArgs& args);
Status cast_cuda(const CastArgs& args);
Status product_cuda(const ProductArgs& args);
Status update_scales_cuda(const ScaleUpdate& update);

}  // namespace octavo::fp8
