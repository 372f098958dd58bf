// Chooses the tensors whose states are offloaded.
// SPDX-License-Identifier: MIT
#include <octavo/offload.h>

#include <cmath>

namespace octavo {

Result<std::vector<Residence>> choose_residences(std::span<const ResidenceTensor> tensors,
                                                 const ResidenceOptions& options) {
  if (!(options.ratio >= 0.0 && options.ratio <= 1.0)) {
    return Status::invalid("[offload] ratio: got " + std::to_string(options.ratio) +
                           ", expected a number from 0 (nothing leaves the device) to 1 (all)");
  }
  if (options.budget >= 0 && options.ratio != 1.0) {
    return Status::invalid("[offload] ratio and budget: got " + std::to_string(options.ratio) + " and " +
                           std::to_string(options.budget) + " bytes, expected one of them");
  }
  std::vector<Residence> chosen(tensors.size(), Residence::device);
  if (options.wanted == Residence::device) return chosen;
  std::int64_t all = 0;
  for (const ResidenceTensor& tensor : tensors) all += tensor.state_bytes;
  const double leaves = options.ratio * static_cast<double>(all);
  std::int64_t left =
      options.budget >= 0 ? options.budget : all - static_cast<std::int64_t>(std::ceil(leaves));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel < options.min_size) continue;
    if (tensors[i].state_bytes <= left) {
      left -= tensors[i].state_bytes;
    } else {
      chosen[i] = options.wanted;
    }
  }
  return chosen;
}

}  // namespace octavo
