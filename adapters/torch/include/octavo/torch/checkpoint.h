// save(), load() and set_state() of octavo::torch::Optimizer. Archives are torch's. A state has its
// parameter's number among all groups.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/optimizer.h>

namespace octavo::torch {

constexpr std::int64_t kArchiveVersion = 1;

inline void Optimizer::save(::torch::serialize::OutputArchive& archive) const {
  synchronize();
  const auto write = [&](const std::string& key, const auto& part) {
    ::torch::serialize::OutputArchive inner(archive.compilation_unit());
    part.serialize(inner);
    archive.write(key, inner);
  };
  archive.write("octavo_version", c10::IValue(kArchiveVersion));
  archive.write("optimizer", c10::IValue(std::string(name_)));
  archive.write("groups", c10::IValue(static_cast<std::int64_t>(param_groups_.size())));
  write("defaults", *defaults_);
  std::int64_t number = 0;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    const std::string group = "group_" + std::to_string(g);
    const auto& params = param_groups_[g].params();
    archive.write(group + "_size", c10::IValue(static_cast<std::int64_t>(params.size())));
    write(group + "_options", param_groups_[g].options());
    for (const Tensor& param : params) {
      if (const ParamState* state = find_state(param)) write("state_" + std::to_string(number), *state);
      ++number;
    }
  }
}

inline void Optimizer::set_state(const Tensor& param, std::unique_ptr<ParamState> state) {
  complete_groups();
  const std::uint32_t handle = handle_of(param, "set_state");
  check_state(*state, kind_of(handle, state.get()), name_of(handle));
  remove_from_engine({handle});
  residences_chosen_ = false;
  engine_.forget_ready();
  state_[param.unsafeGetTensorImpl()] = std::move(state);
}

inline void Optimizer::load(::torch::serialize::InputArchive& archive) {
  complete_groups();
  const std::string prefix = std::string("octavo::torch::") + name_ + ": load: ";
  const auto read = [&](const std::string& key) {
    c10::IValue value;
    TORCH_CHECK(archive.try_read(key, value), prefix, "the archive has no '", key,
                "'; it was not saved by octavo::torch");
    return value;
  };
  const auto read_options = [&](const std::string& key) {
    ::torch::serialize::InputArchive inner;
    TORCH_CHECK(archive.try_read(key, inner), prefix, "the archive has no '", key, "'");
    auto options = defaults_->clone();
    options->serialize(inner);
    send_options(param_groups_.size(), static_cast<const Options&>(*options));  // only to check the numbers
    return options;
  };
  const std::int64_t version = read("octavo_version").toInt();
  TORCH_CHECK(version == kArchiveVersion, prefix, "the archive is of version ", version, ", expected ",
              kArchiveVersion);
  const std::string saved = read("optimizer").toStringRef();
  TORCH_CHECK(saved == name_, prefix, "the archive is of ", saved, ", expected ", name_);
  const auto groups = static_cast<std::size_t>(read("groups").toInt());
  TORCH_CHECK(groups == param_groups_.size(), prefix, "the archive has ", groups,
              " parameter groups, expected ", param_groups_.size());

  auto defaults = read_options("defaults");
  std::vector<std::unique_ptr<::torch::optim::OptimizerOptions>> options;
  std::vector<std::pair<Tensor, std::unique_ptr<ParamState>>> states;  // null: none was saved
  std::int64_t number = 0;
  for (std::size_t g = 0; g < groups; ++g) {
    const std::string group = "group_" + std::to_string(g);
    const auto& params = param_groups_[g].params();
    const std::int64_t size = read(group + "_size").toInt();
    TORCH_CHECK(size == static_cast<std::int64_t>(params.size()), prefix, "group ", g, " of the archive has ",
                size, " parameters, expected ", params.size());
    options.push_back(read_options(group + "_options"));
    const auto& loaded = static_cast<const Options&>(*options.back());
    for (std::size_t i = 0; i < params.size(); ++i, ++number) {
      ::torch::serialize::InputArchive inner;
      states.emplace_back(params[i], nullptr);
      if (!archive.try_read("state_" + std::to_string(number), inner)) continue;
      auto state = std::make_unique<ParamState>();
      state->serialize(inner);
      const ParamName name{name_, g, i};
      check_state(*state,
                  octavo::torch::kind_of(params[i], loaded, overrides_of(params[i]), state.get(), name),
                  name);
      states.back().second = std::move(state);
    }
  }

  // Nothing below fails.
  std::vector<std::uint32_t> all;
  for (std::uint32_t handle = 0; handle < members_.size(); ++handle) all.push_back(handle);
  remove_from_engine(all);
  residences_chosen_ = false;
  engine_.forget_ready();
  defaults_ = std::move(defaults);
  for (std::size_t g = 0; g < groups; ++g) param_groups_[g].set_options(std::move(options[g]));
  for (auto& [param, state] : states) {
    state_.erase(param.unsafeGetTensorImpl());
    if (state != nullptr) state_[param.unsafeGetTensorImpl()] = std::move(state);
  }
}

}  // namespace octavo::torch
