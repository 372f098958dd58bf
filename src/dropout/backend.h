// The interface of a device's dropout. The public function checks its arguments and forwards.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/dropout.h>

namespace octavo {

// The numbering of a sample's elements: rows of `length`, `count` of them for each index in the batch.
struct DropoutRows {
  std::int64_t length, count, pitch;

  explicit DropoutRows(const DropoutArgs& args)
      : length(args.row != 0 ? args.row : args.inner),
        count(args.inner / length),
        pitch(args.row != 0 ? args.pitch : args.inner) {}
};

// REQUIRES: arguments that dropout() accepts, with at least one element.
Status dropout_cpu(const DropoutArgs& args);
Status dropout_cuda(const DropoutArgs& args);

}  // namespace octavo
