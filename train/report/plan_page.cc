// SPDX-License-Identifier: MIT
#include "train/report/plan_page.h"

#include "train/report/assets.h"
#include "train/report/html.h"
#include "train/report/plan_tables.h"
#include "train/base/numbers.h"

#include <string_view>

namespace octavo_train {
namespace {

std::string plan_header(const Record& plan, std::string_view title) {
  const auto total = number_in(plan, "/total"), memory = number_in(planned_gpu(plan), "/memory");
  std::string verdict;
  if (total && memory) {
    verdict = " " + (*total <= *memory ? element_of("span", "badge good", "fits")
                                       : element_of("span", "badge bad", "does not fit"));
  }
  std::string source = element_of("code", "", text_in(plan, "/config").value_or(""));
  for (const Record& each : plan_list(plan, "overrides")) {
    if (each.is_string()) source += " " + element_of("code", "", each.get<std::string>());
  }
  return "<header>\n" + element_of("p", "eyebrow", "Octavo plan") + "\n" +
         element("h1", "", escaped(title) + verdict) + "\n" + element("p", "subtitle", source) +
         "\n</header>\n";
}

std::string plan_card(const std::string& name, const std::string& value, const std::string& note) {
  return element("div", "card",
                 element_of("dt", "", name) + element_of("dd", "", value) +
                     (note.empty() ? "" : element_of("dd", "note", note))) +
         "\n";
}

std::string plan_cards(const Record& plan) {
  const auto total = number_in(plan, "/total"), memory = number_in(planned_gpu(plan), "/memory");
  std::string left;
  if (total && memory) {
    left = *total <= *memory
               ? bytes_text(*memory - *total) + " of " + bytes_text(memory) + " are left"
               : bytes_text(*total - *memory) + " more than the " + bytes_text(memory) + " that there are";
  }
  const std::string unit = text_in(plan, "/unit").value_or("units");
  return element("dl", "cards",
                 "\n" + plan_card("Memory of a GPU", bytes_text(total), left) +
                     plan_card("Time of a step", brief_time(number_in(plan, "/step_seconds")),
                               "bound by " + text_in(plan, "/bound").value_or(kUnknown)) +
                     plan_card("Throughput",
                               short_count(number_in(plan, "/units_per_second")) + " " + unit + "/s",
                               "of all GPUs")) +
         "\n";
}

// Returns the element of the controls, which plan.js fills.
std::string what_if(const Record& plan) {
  const auto none = [&](const char* list) { return plan_list(plan, list).empty(); };
  if (none("gpus") || none("states") || none("points")) return {};
  return "<div id=\"what-if-controls\"></div>\n<noscript>" +
         element_of("p", "notice",
                    "The controls need JavaScript, which is off here. The other tables have every number of "
                    "the plan, and the last one those that the controls compute from.") +
         "</noscript>\n";
}

std::string command_text(const Record& plan) {
  std::string text;
  for (const Record& line : plan_list(plan, "lines")) {
    if (line.is_string()) text += line.get<std::string>() + "\n";
  }
  return text.empty() ? text : element("div", "scroll", element_of("pre", "command", text)) + "\n";
}

}  // namespace

std::string plan_page(const nlohmann::ordered_json& data) {
  const Record plan = data;
  const std::string title = text_in(plan, "/title").value_or("A plan");
  const std::string out =
      page_head(title + " · Octavo", script_source(plan_sums_js) + " " + script_source(plan_js),
                plan_css.text) +
      "<body>\n<main>\n" + plan_header(plan, title) + plan_cards(plan) +
      section("memory", "Memory by owner", planned_memory(plan)) +
      section("what-if", "What if", what_if(plan)) + section("time", "Time by kernel", kernel_times(plan)) +
      section("text", "What the command says", command_text(plan)) +
      section("points", "What the controls compute from", planned_points(plan)) +
      element_of("footer", "quiet", "Made by octavo plan. This page needs no network.") + "\n</main>\n";
  return out +
         page_end(data.dump(-1, ' ', false, Record::error_handler_t::replace), {&plan_sums_js, &plan_js});
}

}  // namespace octavo_train
