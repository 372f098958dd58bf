// The top of the page: title, notices, and the key facts of the runs.
// SPDX-License-Identifier: MIT
#include "train/report/sections.h"

#include "train/report/facts.h"
#include "train/report/html.h"
#include "train/report/words.h"
#include "train/base/numbers.h"

#include <algorithm>

namespace octavo_train {
namespace {

std::string counted(std::size_t count, const std::string& one, const std::string& many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

// Returns the prefix of a run's messages: its name, if the page shows several runs.
std::string speaker(std::span<const RunData> runs, const RunData& run) {
  return runs.size() > 1 ? run.name + ": " : std::string();
}

std::string notices(std::span<const RunData> runs) {
  std::string out;
  for (const RunData& run : runs) {
    const std::string who = speaker(runs, run);
    if (ending_of(run).style == "bad") {
      const std::string why =
          text_in(run.end, "/message").value_or("the last warnings and metrics.jsonl say more");
      out += element_of("p", "notice bad",
                        who + "the run " + text_in(run.end, "/reason").value_or("failed") + " at step " +
                            grouped(number_in(run.end, "/step")) + "; " + why + ".");
    }
    if (!run.warnings.empty()) {
      out += element("p", "notice",
                     escaped(who + counted(run.warnings.size(), "warning", "warnings") +
                             ". The last: " + text_in(run.warnings.back(), "/message").value_or("")) +
                         " <a href=\"#warnings\">All</a>");
    }
    if (run.bad_lines > 0) {
      out += element_of("p", "notice",
                        who + counted(static_cast<std::size_t>(run.bad_lines), "line", "lines") +
                            " of metrics.jsonl skipped: torn or no record.");
    }
    if (run.records == 0) out += element_of("p", "notice", who + "metrics.jsonl has no record yet.");
  }
  return out.empty() ? out : out + "\n";
}

// Returns the index of the run with the best value of a row, or facts.size() if the values do not differ.
std::size_t best_of(const std::vector<std::vector<Fact>>& facts, std::size_t row) {
  std::optional<std::size_t> best;
  bool differ = false;
  for (std::size_t run = 0; run < facts.size(); ++run) {
    const Fact& fact = facts[run][row];
    if (!fact.rank || fact.better == Fact::Better::neither) continue;
    if (!best) {
      best = run;
      continue;
    }
    const double held = *facts[*best][row].rank;
    differ = differ || *fact.rank != held;
    if (fact.better == Fact::Better::lower ? *fact.rank < held : *fact.rank > held) best = run;
  }
  return best && differ ? *best : facts.size();
}

std::string facts_list(const std::vector<Fact>& facts) {
  std::string out;
  for (const Fact& fact : facts) {
    const std::string note = fact.note.empty() ? "" : " " + element_of("small", "", fact.note);
    out +=
        element("div", "", element_of("dt", "", fact.label) + element("dd", "", escaped(fact.value) + note)) +
        "\n";
  }
  return element("dl", "facts", "\n" + out) + "\n";
}

std::string comparison(std::span<const RunData> runs) {
  const std::vector<std::vector<Fact>> facts = facts_of(runs);
  HtmlTable table("compare");
  table.head(run_heads(runs));
  std::vector<Fact> shared;
  for (std::size_t row = 0; row < facts.front().size(); ++row) {
    const Fact& first = facts.front()[row];
    const bool same = std::all_of(facts.begin(), facts.end(), [&](const std::vector<Fact>& each) {
      return each[row].value == first.value && each[row].note == first.note;
    });
    if (same && !first.headline) {
      shared.push_back(first);
      continue;
    }
    const std::size_t best = best_of(facts, row);
    std::vector<Cell> cells = {{first.label}};
    for (std::size_t run = 0; run < runs.size(); ++run) {
      const Fact& fact = facts[run][row];
      cells.push_back({fact.value, fact.note, run == best ? "best" : ""});
    }
    table.row(std::move(cells));
  }
  if (shared.empty()) return table.html();
  return table.html() + element_of("p", "quiet", "The same in all runs:") + "\n" + facts_list(shared);
}

std::string one_run(const RunData& run) {
  std::string cards;
  std::vector<Fact> others;
  for (const Fact& fact : facts_of(run)) {
    if (fact.headline) {
      cards += element("div", "card",
                       element_of("dt", "", fact.label) + element_of("dd", "", fact.value) +
                           element_of("dd", "note", fact.note)) +
               "\n";
    } else {
      others.push_back(fact);
    }
  }
  return element("dl", "cards", "\n" + cards) + "\n" + facts_list(others);
}

}  // namespace

std::vector<Cell> run_heads(std::span<const RunData> runs, std::string style) {
  std::vector<Cell> out = {{""}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    out.push_back({runs[i].name, "", "run r" + std::to_string(i % kRunColors) + style});
  }
  return out;
}

std::string run_heading(std::span<const RunData> runs, std::size_t run) {
  if (runs.size() == 1) return {};
  return element("h3", "", element_of("span", "run r" + std::to_string(run % kRunColors), runs[run].name)) +
         "\n";
}

std::string header_html(std::span<const RunData> runs) {
  std::string title;
  if (runs.size() == 1) {
    const Ending ending = ending_of(runs.front());
    title =
        element("h1", "",
                escaped(runs.front().name) + " " + element_of("span", "badge " + ending.style, ending.text));
    title += "\n" + element_of("p", "subtitle", subtitle_of(runs.front()));
  } else {
    title = element_of("h1", "", "Comparison of " + std::to_string(runs.size()) + " runs") + "\n";
    std::string names;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      names += element_of("span", "run r" + std::to_string(i % kRunColors), runs[i].name) + " ";
    }
    title += element("p", "subtitle", names);
  }
  return "<header>\n" + element_of("p", "eyebrow", "Octavo training report") + "\n" + title +
         "\n</header>\n" + notices(runs);
}

std::string summary_html(std::span<const RunData> runs) {
  return section("summary", "Summary", runs.size() == 1 ? one_run(runs.front()) : comparison(runs));
}

}  // namespace octavo_train
