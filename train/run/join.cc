// SPDX-License-Identifier: MIT
#include "train/run/join.h"

#include "train/base/status.h"
#include "train/console/signals.h"
#include "train/device/device.h"

#include <chrono>
#include <string>
#include <utility>

namespace octavo_train {

Result<std::shared_ptr<ProcessGroup>> join_ranks(const Config& config, const RankInfo& place,
                                                 std::optional<RankFailure>* failure) {
  if (starts_ranks(config, place)) {
    return Status::invalid("training.num_gpus: got " + std::to_string(*config.settings.training.num_gpus) +
                           ", but this process is alone: octavo train, torchrun or Slurm start the ranks");
  }
  if (!place.grouped()) return std::shared_ptr<ProcessGroup>(ProcessGroup::alone());
  ASSIGN_OR_RETURN(auto device, rank_device(config, place));
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(config.settings.training.rank_timeout));
  const auto stop = [] { return StopSignals::received() != 0; };
  auto world =
      ProcessGroup::join(place, device, {.timeout = timeout, .start = timeout, .stop = stop}, failure);
  if (!world.ok() && stop()) return std::shared_ptr<ProcessGroup>();
  if (!world.ok()) return world.status();
  return std::shared_ptr<ProcessGroup>(std::move(*world));
}

}  // namespace octavo_train
