// Determines which parameters of a model are trained, and with which options: applies `training.groups` and
// `training.no_decay` to the parameter names. If the patterns of two groups match a name, the first group
// applies (as in the Python package's param_groups). A group's own weight_decay overrides no_decay.
//
// Parameters with equal options form one group, however the config groups them. Groups that change no option
// therefore give results that are bit-identical to those of a config without groups.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/nn/named_tensors.h"

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace octavo_train {

// The options of a parameter group.
struct GroupOptions {
  double weight_decay = 0;
  double learning_rate = 0;  // the schedule's highest rate
  octavo::StateFormat state = octavo::StateFormat::fp32;
  friend bool operator==(const GroupOptions&, const GroupOptions&) = default;
};

struct ParameterGroups {
  std::vector<GroupOptions> options;  // by group; each has at least one parameter
  NamedTensors parameters;            // trained parameters, in the model's order
  std::vector<std::size_t> group;     // group number, by parameter
  NamedTensors frozen;

  // Returns the parameters of a group, in the model's order.
  [[nodiscard]] std::vector<torch::Tensor> tensors_of(std::size_t group) const;
};

// Returns one group that contains all parameters, with the run's own options.
ParameterGroups one_group(const TrainingSettings& training, NamedTensors parameters);

// Assigns parameters to groups. If a pattern matches no name, the error has the pattern and similar names.
// Changes no parameter.
Result<ParameterGroups> resolve_groups(const TrainingSettings& training, const NamedTensors& parameters);

// Returns the groups with one state format for all, for comparison.
ParameterGroups with_states(ParameterGroups groups, octavo::StateFormat state);

// Turns off gradients of the frozen parameters, so autograd neither computes nor stores them.
void freeze(const ParameterGroups& groups);

// Returns the learning rate of a step, from 1 to `steps`. It rises linearly to learning_rate over
// warmup_steps, then follows the scheduler's curve, which would reach min_lr one step after the last.
// REQUIRES: 1 <= step.
double learning_rate(const TrainingSettings& training, std::int64_t step, std::int64_t steps);

// Returns the learning rate of a group when the schedule, whose highest rate is `highest`, is at `rate`.
double rate_of(const GroupOptions& options, double highest, double rate);

// Returns a line for each group whose options differ from the run's own, for the console and the log.
std::vector<std::string> group_lines(const ParameterGroups& groups, const TrainingSettings& training);

}  // namespace octavo_train
