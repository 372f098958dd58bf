// The engine's small work on the CPU: done on return, and memory of the host is memory of the device.
// SPDX-License-Identifier: MIT
#include "optimizers/backend.h"
#include "optimizers/tree_sum.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace octavo {
namespace {

class CpuNormOps final : public NormOps {
 public:
  Status check_pointer(const std::string& /*where*/, const void* /*data*/) override { return {}; }
  Status check_stream(const std::string& where, void* stream) override {
    if (stream == nullptr) return {};
    return Status::invalid(where + " stream: got a stream, expected null (the work is on the CPU)");
  }
  bool capturing(void* /*stream*/) override { return false; }
  bool in_graph(const void* /*workspace*/, void* /*stream*/) override { return false; }

  Status clear(GradNorm* out, void* /*stream*/) override {
    *out = {};
    return {};
  }

  Status copy_previous(const GradNorm* previous, const GradNorm* own, GradNorm* out,
                       void* /*stream*/) override {
    *out = {previous->l2, previous->max, own->nonfinite};
    return {};
  }

  Status join(std::span<const GradNorm* const> parts, std::span<std::byte> /*workspace*/, GradNorm* out,
              void* /*stream*/) override {
    std::vector<double> squares;
    squares.reserve(parts.size());
    GradNorm all;
    for (const GradNorm* part : parts) {
      squares.push_back(part->l2 * part->l2);
      // NaN stays: a comparison with it is false.
      if (!(part->max <= all.max) && !std::isnan(all.max)) all.max = part->max;
      all.nonfinite += part->nonfinite;
    }
    all.l2 = std::sqrt(tree_sum(squares));
    *out = all;
    return {};
  }
  [[nodiscard]] std::int64_t join_bytes(std::size_t /*parts*/) const override { return 0; }

  Status store_previous(const GradNorm* total, GradNorm* previous, void* /*stream*/) override {
    if (std::isfinite(total->l2)) *previous = *total;
    return {};
  }

  Status write_report(const GradNorm* norm, const float* found_inf, StepReport* report,
                      void* /*stream*/) override {
    const std::int64_t nonfinite = norm != nullptr ? norm->nonfinite : 0;
    *report = {nonfinite > 0 || (found_inf != nullptr && *found_inf != 0.0F), false, nonfinite};
    return {};
  }
};

}  // namespace

std::unique_ptr<NormOps> make_cpu_norm_ops() { return std::make_unique<CpuNormOps>(); }

}  // namespace octavo
