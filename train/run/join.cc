// SPDX-License-Identifier: MIT
#include "train/run/join.h"

#include "train/console/signals.h"
#include "train/device/device.h"
#include "train/run/errors.h"

#include <chrono>
#include <string>
#include <utility>

namespace octavo::train {

Result<std::shared_ptr<World>> join_ranks(const Config& config, const Place& place,
                                          std::optional<RankFailure>* failure) {
  if (starts_ranks(config, place)) {
    return Status::invalid("training.num_gpus: got " + std::to_string(*config.settings.training.num_gpus) +
                           ", but this process is alone: octavo train, torchrun or Slurm start the ranks");
  }
  if (!place.grouped()) return std::shared_ptr<World>(World::alone());
  auto device = rank_device(config, place);
  if (!device.ok()) return device.status();
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(config.settings.training.rank_timeout));
  const auto stop = [] { return StopSignals::received() != 0; };
  auto world = World::join(place, *device, {.timeout = timeout, .start = timeout, .stop = stop}, failure);
  if (!world.ok() && stop()) return std::shared_ptr<World>();
  if (!world.ok()) return world.status();
  return std::shared_ptr<World>(std::move(*world));
}

Result<std::unique_ptr<Session>> open_joined(const Config& config, Console& console, Purpose purpose,
                                             const std::shared_ptr<World>& world) {
  Status thrown;
  try {
    return open_session(config, console, purpose, nullptr, world);
  } catch (const WorldError& error) {
    world->fail(error.failure());
    return status_of(error);
  } catch (const c10::Error& error) {
    thrown = Status::failed("the run could not be set up: " + error_text(error));
  } catch (const std::exception& error) {
    thrown = status_of(error);
  }
  world->fail(thrown.message());
  return thrown;
}

}  // namespace octavo::train
