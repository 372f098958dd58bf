// SPDX-License-Identifier: MIT
#include "train/optim/convert_states.h"

#include "train/config/options.h"
#include "train/optim/optimizer.h"

#include <octavo/codec.h>
#include <octavo/describe.h>
#include <octavo/formats.h>
#include <octavo/torch/tensors.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace octavo_train {
namespace {

using torch::Tensor;
using Json = nlohmann::ordered_json;

template <class T>
std::span<T> span_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {static_cast<T*>(tensor.data_ptr()), tensor.nbytes() / sizeof(T)};
}

// flattened() returns a tensor's elements in the memory order of `like`, a parameter; shaped() is its
// inverse.
Tensor flattened(const Tensor& tensor, const Tensor& like) {
  const auto options = tensor.options().requires_grad(false);
  Tensor ordered = torch::empty_strided(like.sizes(), like.strides(), options);
  ordered.copy_(tensor.detach());
  return ordered.as_strided({like.numel()}, {1});
}
Tensor shaped(const Tensor& elements, const Tensor& like) {
  Tensor out = torch::empty_strided(like.sizes(), like.strides(), elements.options());
  out.as_strided({like.numel()}, {1}).copy_(elements);
  return out;
}

// Tensors by name. A tensor that take() removes is dropped unless it is put() back.
class Store {
 public:
  explicit Store(NamedTensors& tensors) : tensors_(tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) places_[tensors[i].first] = i;
  }
  Tensor take(const std::string& name) {
    const auto found = places_.find(name);
    if (found == places_.end()) return {};
    return std::exchange(tensors_[found->second].second, Tensor());
  }
  void put(const std::string& name, Tensor tensor) {
    const auto found = places_.find(name);
    if (found != places_.end()) {
      tensors_[found->second].second = std::move(tensor);
    } else if (tensor.defined()) {
      places_[name] = tensors_.size();
      tensors_.emplace_back(name, std::move(tensor));
    }
  }
  [[nodiscard]] bool has(const std::string& name) const {
    const auto found = places_.find(name);
    return found != places_.end() && tensors_[found->second].second.defined();
  }
  void close() {
    std::erase_if(tensors_, [](const auto& each) { return !each.second.defined(); });
  }

 private:
  NamedTensors& tensors_;
  std::map<std::string, std::size_t, std::less<>> places_;
};

// How a state is stored.
struct StateKind {
  bool of_libtorch = false;  // saved by LibTorch's own optimizer: torch's names and the parameter's shape
  octavo::StateFormat format = octavo::StateFormat::fp32;
  std::int64_t block_size = 0;
  friend bool operator==(const StateKind&, const StateKind&) = default;

  [[nodiscard]] std::string text() const {
    return std::string(name(format)) + (of_libtorch ? " (plain LibTorch)" : "");
  }
};

class Converter {
 public:
  Converter(const TrainingSettings& training, const ParameterGroups& groups, SavedRun& saved)
      : algorithm_(training.optimizer.algorithm),
        groups_(groups),
        saved_(saved),
        states_(saved.states),
        weights_(saved.weights),
        slots_(slots(algorithm_, group_config(training, algorithm_).switches)),
        store_(has_bf16_weights(training) ? weight_store(training) : octavo::WeightStore::nearest) {}

  Result<std::vector<std::string>> run() {
    for (std::size_t i = 0; i < groups_.parameters.size(); ++i) {
      const auto& [name, param] = groups_.parameters[i];
      RETURN_IF_ERROR(weight(name, param, /*trained=*/true));
      RETURN_IF_ERROR(moments(name, param, groups_.options[groups_.group[i]].state));
    }
    for (const auto& [name, param] : groups_.frozen) {
      RETURN_IF_ERROR(weight(name, param, /*trained=*/false));
      if (saved_.scalars.erase(name) == 0) continue;
      for (const std::string& part : parts()) states_.take(name + '.' + part);
      ++changes_["states of parameters that are frozen now: left out"];
    }
    states_.close();
    std::vector<std::string> out;
    for (const auto& [change, count] : changes_)
      out.push_back(fmt::format("{} ({} parameter{})", change, count, count == 1 ? "" : "s"));
    return out;
  }

 private:
  static std::string moment_name(std::size_t slot, bool scale) {
    return "moment_" + std::to_string(slot) + (scale ? "_scale" : "");
  }
  [[nodiscard]] std::string part_name(const StateKind& kind, std::size_t slot) const {
    return kind.of_libtorch ? std::string(slots_[slot].name) : moment_name(slot, false);
  }
  // Returns all names that a part of a state may have in a checkpoint.
  [[nodiscard]] std::vector<std::string> parts() const {
    std::vector<std::string> out = {"master"};
    for (std::size_t slot = 0; slot < static_cast<std::size_t>(octavo::kMaxSlots); ++slot) {
      out.push_back(moment_name(slot, false));
      out.push_back(moment_name(slot, true));
    }
    for (const octavo::Slot& slot : slots_) out.emplace_back(slot.name);
    return out;
  }

  static octavo::WeightStore store_of(const Tensor& residual) {
    if (!residual.defined()) return octavo::WeightStore::nearest;
    return residual.scalar_type() == torch::kInt8 ? octavo::WeightStore::residual8
                                                  : octavo::WeightStore::residual16;
  }
  static bool keeps_master(octavo::WeightStore store) { return octavo::residual_bytes(store, 1) > 0; }

  // Converts a weight and its master bits to the types of this run.
  Status weight(const std::string& name, const Tensor& param, bool trained) {
    const Tensor have = weights_.has(name) ? weights_.take(name) : Tensor();
    if (!have.defined() || have.sizes() != param.sizes()) {
      weights_.put(name, have);  // the loader of the weights reports the error
      return {};
    }
    const std::string master = name + ".master";
    const bool has_state = trained && saved_.scalars.contains(name);
    const Tensor residual = states_.take(master);
    const octavo::WeightStore from = store_of(residual),
                              to = has_state ? store_ : octavo::WeightStore::nearest;
    const bool same_bits = have.scalar_type() == param.scalar_type() &&
                           (have.scalar_type() != torch::kBFloat16 || !trained ||
                            octavo::residual_bytes(from, 1) == octavo::residual_bytes(to, 1));
    if (same_bits) {
      weights_.put(name, have);
      if (trained) states_.put(master, residual);
      return {};
    }
    Tensor values = flattened(have, param).to(torch::kFloat32);
    if (have.scalar_type() == torch::kBFloat16) {
      const Tensor halves = flattened(have, param);
      RETURN_IF_ERROR(with_context(
          master, octavo::join_weights(from, span_of<const std::uint16_t>(halves),
                                       span_of<const std::byte>(residual), span_of<float>(values))));
    }
    if (param.scalar_type() != torch::kBFloat16) {
      weights_.put(name, shaped(values, param));
    } else {
      const Tensor halves = torch::empty({param.numel()}, torch::kBFloat16);
      const Tensor bits =
          torch::empty({param.numel()}, to == octavo::WeightStore::residual16 ? torch::kInt16 : torch::kInt8);
      const bool keeps = keeps_master(to);
      RETURN_IF_ERROR(with_context(
          master, octavo::split_weights(to, span_of<const float>(values), span_of<std::uint16_t>(halves),
                                        keeps ? span_of<std::byte>(bits) : std::span<std::byte>())));
      weights_.put(name, shaped(halves, param));
      if (keeps) states_.put(master, bits);
    }
    const auto text = [](torch::ScalarType type, octavo::WeightStore store) {
      if (type != torch::kBFloat16) return std::string("float32");
      return std::string("bfloat16") +
             (keeps_master(store) ? std::string(" with a ") + master_name(store) + "-bit master" : "");
    };
    ++changes_["weights: " + text(have.scalar_type(), from) + " -> " + text(param.scalar_type(), to)];
    return {};
  }

  // Returns how the state of a parameter was saved.
  [[nodiscard]] Result<StateKind> kind_of(const std::string& name, const Json& entry) const {
    StateKind out;
    const auto format = entry.at("format").get<std::string>();
    if (!format.empty()) {
      ASSIGN_OR_RETURN(out.format, with_context(name, octavo::parse_state_format(format)));
    }
    out.block_size = entry.at("block_size").get<std::int64_t>();
    out.of_libtorch = !slots_.empty() && states_.has(name + '.' + std::string(slots_[0].name));
    return out;
  }

  [[nodiscard]] octavo::MomentSpec spec_of(std::size_t slot, const StateKind& kind,
                                           const Tensor& param) const {
    octavo::MomentSpec spec;
    spec.moment = slots_[slot].moment;
    spec.format = kind.format;
    spec.block_size = kind.block_size;
    spec.numel = param.numel();
    const at::DimVector shape = octavo::torch::memory_shape(param);
    if (shape.size() <= spec.shape.size()) {
      spec.ndim = static_cast<int>(shape.size());
      std::ranges::copy(shape, spec.shape.begin());
    }
    return spec;
  }

  static torch::ScalarType code_type(const octavo::MomentSpec& spec) {
    const std::string_view element =
        octavo::describe(spec.format)->moment[static_cast<std::size_t>(spec.moment)].element;
    if (element == "float32") return torch::kFloat32;
    return element == "bfloat16" ? torch::kBFloat16 : torch::kUInt8;
  }

  Status moments(const std::string& name, const Tensor& param, octavo::StateFormat wanted) {
    if (!saved_.scalars.contains(name)) return {};
    Json& entry = saved_.scalars.at(name);
    RETURN_IF_ERROR(check_algorithm(entry, name, algorithm_));
    ASSIGN_OR_RETURN(auto from, kind_of(name, entry));
    const StateKind to{false, octavo::format_for(wanted, param.numel()).value(), 0};
    if (slots_.empty() || from == to) return {};
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      RETURN_IF_ERROR(moment(name, param, slot, from, to));
    }
    // LibTorch does not count the steps of every algorithm (some are saved as 0). Converted moments are
    // filled, so the step is at least 1.
    const bool filled = describe(algorithm_)->first_step_fills;
    if (filled && entry.at("step").get<std::int64_t>() == 0) entry["step"] = 1;
    entry["format"] = std::string(octavo::name(to.format));
    entry["block_size"] = to.block_size;
    ++changes_["optimizer states: " + from.text() + " -> " + to.text()];
    return {};
  }

  Status moment(const std::string& name, const Tensor& param, std::size_t slot, const StateKind& from,
                const StateKind& to) {
    const std::string old_name = name + '.' + part_name(from, slot);
    Tensor codes = states_.take(old_name), scales = states_.take(name + '.' + moment_name(slot, true));
    if (!codes.defined())
      return invalid_error(
          "there is no {}, which {} keeps; the states are of another algorithm, or of other options of it",
          old_name, describe(algorithm_)->title);
    if (from.of_libtorch) {
      if (codes.sizes() != param.sizes())
        return invalid_error("its {} has another shape than the parameter", old_name);
      codes = flattened(codes, param);
    }
    const octavo::MomentSpec source = spec_of(slot, from, param), target = spec_of(slot, to, param);
    ASSIGN_OR_RETURN(const auto size, layout(target));
    const auto type = code_type(target);
    Tensor out = torch::zeros({size.codes_bytes / static_cast<std::int64_t>(c10::elementSize(type))}, type);
    Tensor out_scales = size.scales > 0 ? torch::zeros({size.scales}, torch::kFloat32) : Tensor();
    RETURN_IF_ERROR(
        with_context(old_name, convert(source, span_of<const std::byte>(codes), span_of<const float>(scales),
                                       target, span_of<std::byte>(out), span_of<float>(out_scales))));
    states_.put(name + '.' + moment_name(slot, false), out);
    states_.put(name + '.' + moment_name(slot, true), out_scales);
    return {};
  }

  octavo::Algorithm algorithm_;
  const ParameterGroups& groups_;
  SavedRun& saved_;
  Store states_, weights_;
  std::span<const octavo::Slot> slots_;
  octavo::WeightStore store_;
  std::map<std::string, int> changes_;
};

}  // namespace

Result<std::vector<std::string>> convert_states(const TrainingSettings& training,
                                                const ParameterGroups& groups, SavedRun& saved) {
  return Converter(training, groups, saved).run();
}

}  // namespace octavo_train
