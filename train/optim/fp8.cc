// SPDX-License-Identifier: MIT
#include "train/optim/fp8.h"

#include <octavo/torch/fp8.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <mutex>
#include <utility>

namespace octavo_train {
namespace {

namespace adapter = octavo::torch::fp8;
using ::torch::Tensor;

constexpr const char* kDecisions = "decisions";
constexpr const char* kSettings = "settings";

adapter::Options options_of(const Fp8Settings& settings, std::int64_t passes) {
  adapter::Options out;
  out.format = octavo::fp8::name(settings.recipe.format);
  out.recipe = octavo::fp8::name(settings.recipe.recipe);
  out.amax_history_len = settings.recipe.amax_history_len;
  out.amax_compute_algo = octavo::fp8::name(settings.recipe.amax_compute_algo);
  out.margin = settings.recipe.margin;
  out.select = settings.select == Fp8Select::measure ? "measure" : "always";
  out.fallback = settings.fallback == Fp8Fallback::bf16 ? "bf16" : "error";
  out.casts_of_weight = 1.0 / static_cast<double>(std::max<std::int64_t>(passes, 1));
  return out;
}

// Returns true if the parameter can be a matmul's weight: [in, out], [out, in], one for each group, or a
// convolution over one position.
bool may_be_weight(const Tensor& parameter) { return parameter.dim() == 2 || parameter.dim() == 3; }

}  // namespace

struct Fp8::Parts {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::shared_ptr<adapter::Context> context;  // null: the device has no FP8
};

Fp8::Fp8(const Fp8Settings& settings, const NamedTensors& parameters, std::int64_t passes,
         Measuring measuring)
    : parts_(std::make_unique<Parts>()), settings_(octavo::fp8::text(settings.recipe)) {
  const std::shared_ptr<adapter::Context> context = adapter::Context::make(options_of(settings, passes));
  context->set_log([parts = parts_.get()](const std::string& line) {
    const std::lock_guard<std::mutex> lock(parts->mutex);
    parts->lines.push_back("fp8: " + line);
  });
  context->set_measuring(measuring == Measuring::here);
  if (!parameters.empty() && !context->is_available(parameters.front().second.device())) return;
  for (const auto& [name, parameter] : parameters)
    if (may_be_weight(parameter)) context->add(name, parameter);
  parts_->context = context;
}

// Removes the log callback, because an autograd graph may keep the context alive after this object.
Fp8::~Fp8() {
  if (active()) parts_->context->set_log(nullptr);
}

bool Fp8::active() const { return parts_->context != nullptr; }

MatmulPrecisionScope Fp8::scope() const { return MatmulPrecisionScope(parts_->context); }

void Fp8::step_done(const Tensor& skipped) {
  if (active()) parts_->context->step_done(skipped);
}

Tensor Fp8::amaxes() const { return active() ? parts_->context->amaxes() : at::empty({0}); }

void Fp8::set_amaxes(const Tensor& amaxes) {
  if (active()) parts_->context->set_amaxes(amaxes);
}

std::vector<std::string> Fp8::decisions() const {
  std::vector<std::string> out;
  if (!active()) return out;
  for (const adapter::Decision& each : parts_->context->decisions()) out.push_back(each.saved());
  return out;
}

std::size_t Fp8::choices() const { return active() ? parts_->context->decisions().size() : 0; }

void Fp8::adopt(const std::vector<std::string>& decisions) {
  if (active()) parts_->context->adopt(decisions);
}

std::vector<std::string> Fp8::news() {
  const std::lock_guard<std::mutex> lock(parts_->mutex);
  return std::exchange(parts_->lines, {});
}

std::int64_t Fp8::bytes() const { return active() ? parts_->context->bytes() : 0; }

void Fp8::save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const {
  const adapter::State state = active() ? parts_->context->state() : adapter::State();
  tensors.insert(tensors.end(), state.tensors.begin(), state.tensors.end());
  numbers[kSettings] = settings_;
  numbers[kDecisions] = state.decisions;
}

Result<Checkpointable::Commit> Fp8::load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) {
  adapter::State state;
  state.tensors = tensors;
  state.decisions = numbers.at(kDecisions).get<std::vector<std::string>>();
  if (!active()) return Checkpointable::Commit([] {});
  // Scales and measured times are valid only for their format and recipe.
  if (const auto then = numbers.at(kSettings).get<std::string>(); then != settings_) {
    anew_ = "those of the checkpoint have other settings (" + then + ")";
    return Checkpointable::Commit([] {});
  }
  // A run that fell back to bf16 has saved no tensors.
  if (state.tensors.empty() &&
      parts_->context->options().recipe == octavo::fp8::name(octavo::fp8::Recipe::delayed))
    return Checkpointable::Commit([] {});
  try {
    parts_->context->check(state);
  } catch (const c10::Error& error) {
    return Status::invalid(std::string("its state of FP8 does not fit: ") + error.what_without_backtrace() +
                           "; use the FP8 settings it was saved with, or start in another output_dir");
  }
  return Checkpointable::Commit([this, state] {
    parts_->context->load(state);
    anew_.clear();
  });
}

}  // namespace octavo_train
