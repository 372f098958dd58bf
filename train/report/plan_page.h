// The page of a plan: memory by owner, time by kernel, and controls that answer "what if" in the browser. One
// HTML text that needs no other file and makes no request. Without script it has every number of the plan.
// No text of a config is ever read by a browser as markup or script.
//
// `data` has, besides what the page shows as it is (title, config, overrides, unit, memory_rows, total,
// allocated, reserved, step_seconds, units_per_second, bound, lines, kernels):
//
//   gpus     [{key, name, memory, context, bandwidth, bf16}]    those to choose from
//   now      {rows, length, checkpointing, state, gpu, num_gpus, zero}    what was asked for
//   states   [{name, states, master}]    bytes in each format, of all ranks together
//   points   [{rows, length, checkpointing, weights, gradients, activations, workspace, rounding,
//             fragmentation, evaluation, step_seconds, units}]    plans of one GPU with whole gradients
//   lengths_known    false: points are of one length, whose number says nothing
//
// assets/plan_sums.js computes from these. Where gpus, states or points are empty, the page has no controls.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo::train {

std::string plan_page(const nlohmann::ordered_json& data);

}  // namespace octavo::train
