// The rules of update by their definitions, element by element in fp32, with the constants of a step in
// double. They share no code with the library.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"

#include <vector>

namespace reference {

// Returns the moments of an algorithm in the order of its slots.
std::vector<octavo::Moment> moments_of(const octavo::GroupConfig& config);

// Returns true if a step first sums over the complete tensor.
bool has_trust_ratio(const octavo::GroupConfig& config);

// Writes the new moments to `s` and returns the new parameter. `ratio` is the tensor's trust ratio, if there
// is one.
float update(const octavo::GroupConfig& config, const octavo::StepArgs& args, float grad, float p, float* s,
             float ratio);

// Returns the value that is squared and summed over a tensor together with its weights, and overwrites `s`.
float unscaled_update(const octavo::GroupConfig& config, const octavo::StepArgs& args, float grad, float p,
                      float* s);
// Returns the ratio from the sums of squares.
float ratio(const octavo::GroupConfig& config, const octavo::StepArgs& args, double weights, double updates);

// Adds neighbours, then neighbouring pairs, and so on.
double tree_sum(std::vector<double> values);

}  // namespace reference
