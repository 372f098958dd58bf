// The queues and pinned pages of GPUs, in a build without CUDA: errors.
// SPDX-License-Identifier: MIT
#include "offload/pin.h"
#include "offload/queue.h"

namespace octavo::offload {

Result<std::unique_ptr<DeviceQueues>> make_cuda_queues(const std::string& where, int device) {
  return Status::unsupported(where + " device: got cuda:" + std::to_string(device) +
                             ", but this build has no CUDA backend; configure with -DOCTAVO_CUDA=ON");
}

Status pin_pages(void* /*data*/, std::int64_t /*bytes*/) {
  return Status::unsupported("this build has no CUDA backend");
}
void unpin_pages(void* /*data*/) {}

}  // namespace octavo::offload
