// The rules of update by their definitions, element by element in fp32; numbers that are the same for a whole
// step in double. Nothing here is shared with the library.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/optimizer.h>

#include <vector>

namespace reference {

// What an algorithm keeps, in the order of its slots.
std::vector<octavo::Moment> moments_of(const octavo::GroupConfig& config);

// Whether a step first measures the whole tensor.
bool has_trust_ratio(const octavo::GroupConfig& config);

// New moments in `s`, new parameter returned. `ratio`: of the tensor, where a step measures.
float update(const octavo::GroupConfig& config, const octavo::StepArgs& args, float grad, float p, float* s,
             float ratio);

// What is squared and summed over a tensor beside its weights; `s` becomes worthless.
float unscaled_update(const octavo::GroupConfig& config, const octavo::StepArgs& args, float grad, float p,
                      float* s);
// The ratio from the sums of squares.
float ratio(const octavo::GroupConfig& config, const octavo::StepArgs& args, double weights, double updates);

// Neighbours, then neighbouring pairs, and so on.
double tree_sum(std::vector<double> values);

}  // namespace reference
