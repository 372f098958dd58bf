// SPDX-License-Identifier: MIT
#include "train/optim/fp8_choice.h"

#include <octavo/torch/fp8_options.h>

#include <nlohmann/json.hpp>

#include <span>
#include <vector>

namespace octavo_train {

Result<Fp8Choice> choose_fp8(const Fp8Settings& settings, const ::torch::Device& device) {
  if (!settings.enabled) return Fp8Choice{};
  const std::string why =
      octavo::torch::fp8::why_unsupported(device, static_cast<std::uint32_t>(settings.recipe.recipe));
  if (why.empty()) return Fp8Choice{true, {}};
  if (settings.fallback == Fp8Fallback::bf16)
    return Fp8Choice{false,
                     "training.fp8: " + why + "; products are computed without FP8 (fp8.fallback: bf16)"};
  return Status::unsupported("training.fp8: " + why +
                             "; set fp8.enabled: false (use_fp8), or fp8.fallback: bf16 to train without FP8 "
                             "where there is none");
}

void agree(ProcessGroup& world, Fp8Choice& plan) {
  std::int64_t without = plan.enabled ? 0 : 1;
  world.max(std::span(&without, 1));
  if (without == 0 || !plan.enabled) return;
  plan = {false, "training.fp8: not every rank's device has FP8; products are computed without it on all"};
}

std::string fp8_text(const Fp8Settings& settings) {
  return octavo::fp8::text(settings.recipe) +
         (settings.select == Fp8Select::always ? "; every product with a weight, where sizes allow it"
                                               : "; of each product with a weight the faster way, by time");
}

void reduce_maxima(ProcessGroup& world, Fp8& fp8) {
  if (!world.grouped()) return;
  const ::torch::Tensor maxima = fp8.amaxes();
  if (maxima.numel() == 0) return;
  world.all_reduce(maxima, ProcessGroup::Reduce::max).wait();
  fp8.set_amaxes(maxima);
}

void share_choices(ProcessGroup& world, Fp8& fp8) {
  const nlohmann::json mine = fp8.decisions();
  fp8.adopt(nlohmann::json::parse(world.broadcast_text(mine.dump())).get<std::vector<std::string>>());
}

}  // namespace octavo_train
