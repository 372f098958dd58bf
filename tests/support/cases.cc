// See cases.h.
// SPDX-License-Identifier: MIT
#include "tests/support/cases.h"

#include <octavo/describe.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <utility>

namespace test {
namespace {

bool is_set(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr && text[0] == '1';
}

struct Given {
  std::string_view option;
  double value;
};

// Returns an algorithm's defaults with some options changed. An unknown option is an error of the test.
octavo::HyperParams hyper(octavo::Algorithm algorithm, std::initializer_list<Given> given) {
  octavo::HyperParams out = octavo::defaults(algorithm);
  for (const auto& [name, value] : given) {
    bool known = false;
    for (const octavo::Option& option : octavo::describe(algorithm)->options) {
      if (option.name != name || option.at < 0) continue;
      octavo::set(out, option, value);
      known = true;
    }
    if (!known) throw std::logic_error(std::string(name));
  }
  return out;
}

octavo::GroupConfig config(octavo::Algorithm algorithm, std::uint32_t switches = 0) {
  octavo::GroupConfig out{algorithm, false, false};
  out.switches = switches;
  return out;
}

constexpr std::uint32_t kMomentum = 1, kCentered = 2;

}  // namespace

using octavo::Algorithm;
using octavo::DType;
using octavo::StateFormat;
using octavo::WeightStore;

std::vector<OptimizerCase> optimizers(bool options) {
  octavo::HyperParams plain;
  plain.lr = 3e-3;
  plain.weight_decay = 0.05;
  plain.momentum = 0.9;
  octavo::HyperParams coupled = plain;
  coupled.decay = octavo::Decay::coupled;
  octavo::HyperParams no_momentum = plain;
  no_momentum.momentum = 0.0;
  std::vector<OptimizerCase> list = {
      {"adam", {Algorithm::adam, false, true}, plain},
      {"adamw", {Algorithm::adamw, false, true}, plain},
      {"adamw-amsgrad", {Algorithm::adamw, true, true}, plain},
      {"sgd", {Algorithm::sgd, false, false}, no_momentum},
      {"sgd-momentum", {Algorithm::sgd, false, true}, coupled},
      {"lion", {Algorithm::lion, false, true}, plain},
      {"rmsprop", config(Algorithm::rmsprop), hyper(Algorithm::rmsprop, {{"weight_decay", 0.05}})},
      {"rmsprop-centered-momentum", config(Algorithm::rmsprop, kMomentum | kCentered),
       hyper(Algorithm::rmsprop, {{"lr", 1e-3}, {"alpha", 0.9}, {"momentum", 0.8}, {"weight_decay", 0.05}})},
      {"adagrad", config(Algorithm::adagrad),
       hyper(Algorithm::adagrad, {{"lr_decay", 0.1}, {"initial_accumulator_value", 0.2}})},
      {"lars", config(Algorithm::lars), hyper(Algorithm::lars, {{"weight_decay", 0.05}, {"nesterov", 1.0}})},
      {"lamb", config(Algorithm::lamb), hyper(Algorithm::lamb, {{"weight_decay", 0.05}})},
      {"ademamix", config(Algorithm::ademamix),
       hyper(Algorithm::ademamix, {{"weight_decay", 0.05}, {"t_alpha", 5.0}, {"t_beta3", 7.0}})},
  };
  if (!options) return list;

  octavo::HyperParams maximize = plain;
  maximize.maximize = true;
  maximize.beta1 = 0.95;
  maximize.beta2 = 0.98;
  octavo::HyperParams no_decay = plain;
  no_decay.weight_decay = 0.0;
  octavo::HyperParams nesterov = plain;
  nesterov.decay = octavo::Decay::decoupled;
  nesterov.nesterov = true;
  octavo::HyperParams dampening = coupled;
  dampening.dampening = 0.3;
  dampening.maximize = true;
  no_momentum.decay = octavo::Decay::coupled;
  no_momentum.maximize = true;
  const auto other = [](Algorithm algorithm) {
    octavo::HyperParams changed = hyper(algorithm, {{"weight_decay", 0.05}});
    changed.decay = octavo::Decay::decoupled;
    changed.maximize = true;
    return changed;
  };
  octavo::HyperParams unclipped = hyper(Algorithm::lamb, {{"max_unorm", 0.0}, {"weight_decay", 0.05}});
  unclipped.maximize = true;
  const std::vector<OptimizerCase> more = {
      {"adam-amsgrad-maximize", {Algorithm::adam, true, true}, maximize},
      {"adam-no-decay", {Algorithm::adam, false, true}, no_decay},
      {"adamw-maximize", {Algorithm::adamw, false, true}, maximize},
      {"sgd-coupled-maximize", {Algorithm::sgd, false, false}, no_momentum},
      {"sgd-nesterov", {Algorithm::sgd, false, true}, nesterov},
      {"sgd-dampening-maximize", {Algorithm::sgd, false, true}, dampening},
      {"lion-coupled", {Algorithm::lion, false, true}, coupled},
      {"lion-maximize", {Algorithm::lion, false, true}, maximize},
      {"rmsprop-momentum", config(Algorithm::rmsprop, kMomentum),
       hyper(Algorithm::rmsprop, {{"momentum", 0.9}})},
      {"rmsprop-centered", config(Algorithm::rmsprop, kCentered),
       hyper(Algorithm::rmsprop, {{"eps", 1e-4}, {"weight_decay", 0.05}})},
      {"adagrad-decoupled-maximize", config(Algorithm::adagrad), other(Algorithm::adagrad)},
      {"lars-trust-ratio", config(Algorithm::lars),
       hyper(Algorithm::lars, {{"weight_decay", 0.05}, {"trust_ratio", 1.0}, {"trust_coefficient", 0.02}})},
      {"lars-decoupled-maximize", config(Algorithm::lars), other(Algorithm::lars)},
      {"lamb-trust-ratio", config(Algorithm::lamb),
       hyper(Algorithm::lamb, {{"weight_decay", 0.05}, {"trust_ratio", 1.0}})},
      {"lamb-coupled-uncorrected", config(Algorithm::lamb),
       hyper(Algorithm::lamb, {{"weight_decay", 0.05},
                               {"bias_correction", 0.0},
                               {"adam_w_mode", 0.0},
                               {"max_unorm", 0.1},
                               {"trust_ratio", 1.0}})},
      {"lamb-maximize-unclipped", config(Algorithm::lamb), unclipped},
      {"ademamix-constant", config(Algorithm::ademamix), hyper(Algorithm::ademamix, {{"beta1", 0.0}})},
  };
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

void PrintTo(const OptimizerCase& optimizer, std::ostream* out) { *out << optimizer.name; }

std::string test_name(const testing::TestParamInfo<OptimizerCase>& parameter) {
  std::string name = parameter.param.name;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

std::vector<StoreCase> stores() {
  return {
      {"fp32", DType::f32, WeightStore::nearest},
      {"bf16", DType::bf16, WeightStore::nearest},
      {"fp16", DType::f16, WeightStore::nearest},
      {"bf16-stochastic", DType::bf16, WeightStore::stochastic},
      {"bf16-residual8", DType::bf16, WeightStore::residual8},
      {"bf16-residual16", DType::bf16, WeightStore::residual16},
  };
}

octavo::StepArgs step_args(const OptimizerCase& optimizer, std::int64_t step) {
  octavo::StepArgs args;
  args.hyper = optimizer.hyper;
  args.step = step;
  args.seed = 0x5EEDu;
  args.threads = 1;
  return args;
}

bool has_blocks(StateFormat format) { return format != StateFormat::fp32 && format != StateFormat::bf16; }

bool quick() { return is_set("OCTAVO_TEST_QUICK"); }
bool full() { return is_set("OCTAVO_TEST_FULL"); }

std::vector<std::string> supported_implementations() {
  std::vector<std::string> names;
  for (const octavo::Implementation& implementation : octavo::implementations()) {
    if (implementation.supported) names.emplace_back(implementation.name);
  }
  return names;
}

std::string first_difference(const void* got, const void* expected, std::size_t count,
                             std::size_t element_bytes) {
  const auto* a = static_cast<const unsigned char*>(got);
  const auto* b = static_cast<const unsigned char*>(expected);
  std::size_t different = 0;
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i * element_bytes, b + i * element_bytes, element_bytes) == 0) continue;
    if (different++ > 0) continue;
    std::uint64_t x = 0;
    std::uint64_t y = 0;
    std::memcpy(&x, a + i * element_bytes, element_bytes);
    std::memcpy(&y, b + i * element_bytes, element_bytes);
    char line[96];
    std::snprintf(line, sizeof line, "element %zu: got %0*llx, expected %0*llx", i,
                  static_cast<int>(2 * element_bytes), static_cast<unsigned long long>(x),
                  static_cast<int>(2 * element_bytes), static_cast<unsigned long long>(y));
    text = line;
  }
  if (different > 1) text += " and " + std::to_string(different - 1) + " more";
  return text;
}

}  // namespace test
