// The page of `octavo plan`: memory by owner, time by kernel, and controls that answer "what if" in the
// browser. It is one HTML text that needs no other file and makes no request. Without scripts it shows every
// number of the plan. A browser never interprets a text of a config as markup or script.
//
// `data` has the members that the page shows unchanged (title, config, overrides, unit, memory_rows, total,
// allocated, reserved, step_seconds, units_per_second, bound, lines, kernels), and:
//
//   gpus     [{key, name, memory, context, bandwidth, bf16}]    the GPUs to choose from
//   now      {rows, length, checkpointing, state, gpu, num_gpus, zero}    the requested values
//   states   [{name, states, master}]    bytes in each format, summed over all ranks
//   points   [{rows, length, checkpointing, weights, gradients, activations, workspace, rounding,
//             fragmentation, evaluation, step_seconds, units}]    plans for one GPU, gradients not sharded
//   lengths_known    false: all points have the same length, whose number has no meaning
//
// assets/plan_sums.js computes from these members. If gpus, states or points is empty, the page has no
// controls.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace octavo_train {

std::string plan_page(const nlohmann::ordered_json& data);

}  // namespace octavo_train
