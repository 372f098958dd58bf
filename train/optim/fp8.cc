// SPDX-License-Identifier: MIT
#include "train/optim/fp8.h"

#include <octavo/torch/fp8_options.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <span>
#include <utility>

namespace octavo_train {
namespace {

namespace adapter = octavo::torch::fp8;
using torch::Tensor;

constexpr const char* kDecisions = "decisions";
constexpr const char* kSettings = "settings";

adapter::Options context_options(const Fp8Settings& settings, std::int64_t uses) {
  adapter::Options out;
  out.format = octavo::fp8::name(settings.recipe.format);
  out.recipe = octavo::fp8::name(settings.recipe.recipe);
  out.amax_history_len = settings.recipe.amax_history_len;
  out.amax_compute_algo = octavo::fp8::name(settings.recipe.amax_compute_algo);
  out.margin = settings.recipe.margin;
  out.select = settings.select == Fp8Select::measure ? "measure" : "always";
  out.fallback = settings.fallback == Fp8Fallback::bf16 ? "bf16" : "error";
  out.casts_of_weight = 1.0 / static_cast<double>(std::max<std::int64_t>(uses, 1));
  return out;
}

// Returns true if the parameter can be a matmul's weight: [in, out], [out, in], one for each group, or a
// convolution over one position.
bool may_be_weight(const Tensor& parameter) { return parameter.dim() == 2 || parameter.dim() == 3; }

}  // namespace

Fp8::Fp8(const Fp8Settings& settings, const NamedTensors& parameters, std::int64_t uses, Measuring measuring)
    : settings_(octavo::fp8::text(settings.recipe)) {
  const std::shared_ptr<adapter::Context> context = adapter::Context::make(context_options(settings, uses));
  context->set_log([this](const std::string& line) {
    const std::lock_guard<std::mutex> lock(mutex_);
    lines_.push_back("fp8: " + line);
  });
  context->set_measuring(measuring == Measuring::here);
  if (!parameters.empty() && !context->is_available(parameters.front().second.device())) return;
  for (const auto& [name, parameter] : parameters)
    if (may_be_weight(parameter)) context->add(name, parameter);
  context_ = context;
}

// Removes the log callback, because an autograd graph may keep the context alive after this object.
Fp8::~Fp8() {
  if (active()) context_->set_log(nullptr);
}

bool Fp8::active() const { return context_ != nullptr; }

MatmulPrecisionScope Fp8::scope() const { return MatmulPrecisionScope(context_); }

void Fp8::step_done(const Tensor& skipped) {
  if (active()) context_->step_done(skipped);
}

Tensor Fp8::amaxes() const { return active() ? context_->amaxes() : at::empty({0}); }

void Fp8::set_amaxes(const Tensor& amaxes) {
  if (active()) context_->set_amaxes(amaxes);
}

std::vector<std::string> Fp8::decisions() const {
  std::vector<std::string> out;
  if (!active()) return out;
  for (const adapter::Decision& each : context_->decisions()) out.push_back(each.saved());
  return out;
}

std::size_t Fp8::choices() const { return active() ? context_->decisions().size() : 0; }

void Fp8::adopt(const std::vector<std::string>& decisions) {
  if (active()) context_->adopt(decisions);
}

std::vector<std::string> Fp8::pop_log_lines() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(lines_, {});
}

std::int64_t Fp8::bytes() const { return active() ? context_->bytes() : 0; }

void Fp8::save(NamedTensors& tensors, nlohmann::ordered_json& scalars) const {
  const adapter::State state = active() ? context_->state() : adapter::State();
  tensors.insert(tensors.end(), state.tensors.begin(), state.tensors.end());
  scalars[kSettings] = settings_;
  scalars[kDecisions] = state.decisions;
}

Result<Checkpointable::Commit> Fp8::load(const NamedTensors& tensors, const nlohmann::ordered_json& scalars) {
  adapter::State state;
  state.tensors = tensors;
  state.decisions = scalars.at(kDecisions).get<std::vector<std::string>>();
  if (!active()) return Checkpointable::Commit([] {});
  // Scales and measured times are valid only for their format and recipe.
  if (const auto then = scalars.at(kSettings).get<std::string>(); then != settings_) {
    reset_reason_ = "the checkpoint's FP8 state has other settings (" + then + ")";
    return Checkpointable::Commit([] {});
  }
  // A run that fell back to bf16 has saved no tensors.
  if (state.tensors.empty() && context_->options().recipe == octavo::fp8::name(octavo::fp8::Recipe::delayed))
    return Checkpointable::Commit([] {});
  try {
    context_->check(state);
  } catch (const c10::Error& error) {
    return invalid_error("{}{}; use the FP8 settings it was saved with, or start in another output_dir",
                         "its FP8 state does not fit this model: ", error.what_without_backtrace());
  }
  return Checkpointable::Commit([this, state] {
    context_->load(state);
    reset_reason_.clear();
  });
}

Result<Fp8Choice> choose_fp8(const Fp8Settings& settings, const torch::Device& device) {
  if (!settings.enabled) return Fp8Choice{};
  const std::string why =
      octavo::torch::fp8::why_unsupported(device, static_cast<std::uint32_t>(settings.recipe.recipe));
  if (why.empty()) return Fp8Choice{true, {}};
  if (settings.fallback == Fp8Fallback::bf16)
    return Fp8Choice{false,
                     "training.fp8: " + why + "; matmuls are computed without FP8 (fp8.fallback: bf16)"};
  return unsupported_error(
      "training.fp8: {}; set fp8.enabled: false (use_fp8), or fp8.fallback: bf16 to train without FP8 on "
      "devices that do not support it",
      why);
}

void agree_on_fp8(ProcessGroup& process_group, Fp8Choice& choice) {
  std::int64_t without = choice.enabled ? 0 : 1;
  process_group.max(std::span(&without, 1));
  if (without == 0 || !choice.enabled) return;
  choice = {false, "training.fp8: FP8 is off: at least one rank's GPU does not support it"};
}

std::string fp8_text(const Fp8Settings& settings) {
  return octavo::fp8::text(settings.recipe) +
         (settings.select == Fp8Select::always
              ? "; every matmul with a weight whose sizes FP8 supports"
              : "; for each matmul with a weight, FP8 or bf16, whichever is faster");
}

void reduce_maxima(ProcessGroup& process_group, Fp8& fp8) {
  if (!process_group.grouped()) return;
  const torch::Tensor maxima = fp8.amaxes();
  if (maxima.numel() == 0) return;
  process_group.all_reduce(maxima, ProcessGroup::Reduce::max).wait();
  fp8.set_amaxes(maxima);
}

void share_choices(ProcessGroup& process_group, Fp8& fp8) {
  const nlohmann::json mine = fp8.decisions();
  fp8.adopt(nlohmann::json::parse(process_group.broadcast_text(mine.dump())).get<std::vector<std::string>>());
}

}  // namespace octavo_train
