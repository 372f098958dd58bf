// Shows reference texts next to recognized texts, for the last evaluation that has examples. A missed word is
// marked as deleted text, an added word as inserted text. Lines under the words distinguish them, not colour
// alone.
// SPDX-License-Identifier: MIT
#include "train/report/sections.h"
#include "train/base/numbers.h"
#include "train/base/word_diff.h"

#include <algorithm>

namespace octavo_train {
namespace {

constexpr std::size_t kMostExamples = 50;  // a log from another program may have more

const Record* last_examples(const RunData& run) {
  for (auto each = run.evaluations.rbegin(); each != run.evaluations.rend(); ++each) {
    const auto at = each->find("examples");
    if (at != each->end() && at->is_array() && !at->empty()) return &*each;
  }
  return nullptr;
}

std::string errors_text(const std::vector<AlignedWord>& alignment) {
  const auto count = [&](auto of) { return std::to_string(std::ranges::count_if(alignment, of)); };
  return count([](const AlignedWord& word) { return word.edit != Edit::none; }) + " of " +
         count([](const AlignedWord& word) { return word.edit != Edit::insertion; });
}

std::vector<Cell> row_of(const Record& example) {
  const std::string reference = text_in(example, "/reference").value_or(""),
                    hypothesis = text_in(example, "/hypothesis").value_or("");
  const std::vector<AlignedWord> alignment = align_words(reference, hypothesis);
  const WordDiff pair = marked(alignment, {"<del>", "</del>", "<ins>", "</ins>", escaped});
  return {{text_in(example, "/name").value_or(kUnknown)},
          {"", "", "", pair.reference},
          {"", "", "", pair.hypothesis},
          {errors_text(alignment), "", "num"}};
}

}  // namespace

std::string examples_html(std::span<const RunData> runs) {
  std::string out;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Record* const evaluation = last_examples(runs[i]);
    if (evaluation == nullptr) continue;
    HtmlTable table("examples");
    table.head({{"clip"}, {"said"}, {"heard"}, {"errors", "of words", "num"}});
    const Record& examples = evaluation->at("examples");
    for (std::size_t at = 0; at < std::min(examples.size(), kMostExamples); ++at)
      table.row(row_of(examples.at(at)));
    out += run_heading(runs, i) +
           element("p", "quiet",
                   escaped("The evaluation of step " + grouped(number_in(*evaluation, "/step")) + ". ") +
                       "Wavy lines: words that were said and not heard so. Straight lines: words that were "
                       "heard and not said.") +
           "\n" + table.html();
  }
  return section("examples", "Examples", out);
}

}  // namespace octavo_train
