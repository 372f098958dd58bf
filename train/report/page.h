// Writes a page as one HTML text: data as JSON, and the style and the scripts that draw it. The page needs no
// other file and makes no request. A browser never interprets a text of the data as markup or script. Without
// scripts, the page shows the data as plain text.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <initializer_list>
#include <string>
#include <string_view>

namespace octavo_train {

// A file of assets/. embed.cmake generates the definitions.
struct Asset {
  std::string_view text;
  std::string_view sha256;  // in hexadecimal digits
};

extern const Asset page_html, page_css, page_js;    // of all pages
extern const Asset chart_js, charts_js, report_js;  // chart_js is empty in a build without Chart.js
extern const Asset plan_sums_js, plan_js, survey_js;

// Returns the page. Its scripts are page_js and then `scripts`; they find the data in #data.
std::string html_page(const std::string& title, const nlohmann::ordered_json& data,
                      std::initializer_list<const Asset*> scripts);

// Escapes a text for the inside of an element or of a quoted attribute. Control characters, which HTML cannot
// hold, become their pictures (␀ and so on); bytes that are not UTF-8 become U+FFFD.
std::string escaped(std::string_view text);

// Returns the JSON in ASCII for a <script> element of any type, which no text in it can end.
std::string json_for_script(const nlohmann::ordered_json& data);

// Returns the data as text with a line per value. Long lists of numbers are replaced by their length.
std::string plain_text(const nlohmann::ordered_json& data);

// Returns the page of `octavo plan`: memory by owner, time by kernel, and controls that answer "what if" in
// the browser. It is one HTML text that needs no other file and makes no request. Without scripts it shows
// every number of the plan. A browser never interprets a text of a config as markup or script.
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
std::string plan_page(const nlohmann::ordered_json& data);

}  // namespace octavo_train
