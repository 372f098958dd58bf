// What a device does for cast() and product(); the public functions check their arguments and forward.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/fp8.h>

namespace octavo::fp8 {

// REQUIRES: arguments that the public functions accept, with at least one element.
void cast_cpu(const CastArgs& args);
void product_cpu(const ProductArgs& args);

}  // namespace octavo::fp8
