// The CUDA backends of a build without CUDA return an error that names the build option.
// SPDX-License-Identifier: MIT
#include "optimizers/backend.h"

#include "dropout/backend.h"
#include "fp8/backend.h"
#include "optimizers/checks.h"

namespace octavo {
namespace {

Status no_cuda(const std::string& where, int device) {
  return Status::unsupported(where + " device: got cuda:" + std::to_string(device) +
                             ", but this build has no CUDA backend; configure with -DOCTAVO_CUDA=ON");
}

}  // namespace

Result<std::unique_ptr<StepBackend>> make_cuda_step(const GroupConfig& config,
                                                    std::span<const TensorArgs> /*tensors*/,
                                                    std::span<std::int64_t* const> /*counts*/) {
  return no_cuda(tag(config), config.device.index);
}

Result<std::unique_ptr<NormBackend>> make_cuda_norm(int device, std::span<const GradView> /*grads*/) {
  return no_cuda("[grad_norm]", device);
}

Result<std::unique_ptr<NormOps>> make_cuda_norm_ops(const std::string& where, int device) {
  return no_cuda(where, device);
}

Status dropout_cuda(const DropoutArgs& args) { return no_cuda("[dropout]", args.device.index); }

namespace fp8 {

Status cast_cuda(const CastArgs& args) { return no_cuda("[fp8]", args.device.index); }
Status matmul_cuda(const MatmulArgs& args) { return no_cuda("[fp8]", args.device.index); }
Status update_scales_cuda(const ScaleUpdate& update) { return no_cuda("[fp8]", update.device.index); }

}  // namespace fp8

}  // namespace octavo
