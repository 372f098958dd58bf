// Which parameters of a model are trained, and how: `training.groups` and `training.no_decay` held against
// the names of a model. Of two groups whose patterns match a name, the first one counts (as in the Python
// package's param_groups). A group's own weight_decay counts before no_decay.
//
// Parameters with equal options are one group here whatever the config calls them, so a config without groups
// gives one group and the bits of a run without groups.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/nn/named_tensors.h"

#include <octavo/status.h>
#include <torch/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace octavo::train {

// What the parameters of a group have instead of the run's own.
struct GroupOptions {
  double weight_decay = 0;
  double learning_rate = 0;  // the highest
  StateFormat state = StateFormat::fp32;
  friend bool operator==(const GroupOptions&, const GroupOptions&) = default;
};

struct ParameterGroups {
  std::vector<GroupOptions> options;  // by group; each has at least one parameter
  NamedTensors parameters;            // those that are trained, in the model's order
  std::vector<std::size_t> group;     // by parameter
  NamedTensors frozen;

  // The parameters of one group, in the model's order.
  [[nodiscard]] std::vector<torch::Tensor> tensors_of(std::size_t group) const;
};

// All parameters with the run's own options.
ParameterGroups one_group(const OptimizerName& optimizer, const TrainingSettings& training,
                          NamedTensors parameters);

// An error names the pattern that matches nothing, and names that are like it. Changes no parameter.
Result<ParameterGroups> resolve_groups(const OptimizerName& optimizer, const TrainingSettings& training,
                                       const NamedTensors& parameters);

// The same groups with states of one format: those of a device that has no other, or for comparison.
ParameterGroups with_states(ParameterGroups groups, StateFormat state);

// Frozen parameters need no gradients: autograd computes none, and they take no memory for them.
void freeze(const ParameterGroups& groups);

// The rate of a group where the schedule, whose highest is `highest`, has reached `rate`.
double rate_of(const GroupOptions& options, double highest, double rate);

// What differs from the run's own options, a line for each: for the console and the log.
std::vector<std::string> group_lines(const ParameterGroups& groups, const OptimizerName& optimizer,
                                     const TrainingSettings& training);

}  // namespace octavo::train
