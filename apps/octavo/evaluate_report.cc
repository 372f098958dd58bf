// SPDX-License-Identifier: MIT
#include "apps/octavo/evaluate_report.h"

#include "cli/table.h"
#include "train/base/numbers.h"
#include "train/base/terminal_text.h"
#include "train/base/word_diff.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace octavo::cli {
namespace {

using json = nlohmann::ordered_json;
using octavo_train::GroupScore;
using octavo_train::Score;
using octavo_train::terminal_text;
using octavo_train::WordErrors;

constexpr std::size_t kMostGroups = 30;
constexpr std::size_t kMostFailed = 10;

std::string share(std::int64_t count, const WordErrors& errors) {
  if (errors.words == 0) return octavo_train::kUnknown;
  return fixed(100 * static_cast<double>(count) / static_cast<double>(errors.words), 2) + '%';
}

std::string counted(std::int64_t count, const std::string& one) {
  return grouped(count) + ' ' + one + (count == 1 ? "" : "s");
}

std::string total_text(const GroupScore& total) {
  const WordErrors& e = total.errors;
  return fmt::format("WER {}: {} in {} of {} ({})\n  {} ({}), {} ({}), {} ({})\n", share(e.errors(), e),
                     counted(e.errors(), "error"), counted(e.words, "word"), counted(total.clips, "clip"),
                     octavo_train::duration_text(total.seconds), counted(e.substitutions, "substitution"),
                     share(e.substitutions, e), counted(e.deletions, "deletion"), share(e.deletions, e),
                     counted(e.insertions, "insertion"), share(e.insertions, e));
}

std::string omitted_text(std::size_t shown, std::size_t all) {
  if (shown == all) return {};
  return fmt::format("  and {} more: --json FILE has all\n", grouped(static_cast<std::int64_t>(all - shown)));
}

// Lists the largest groups first.
std::string groups_text(const std::string& title, const Score::Groups& groups) {
  if (groups.empty()) return {};
  std::vector<Score::Groups::const_iterator> order;
  for (auto at = groups.begin(); at != groups.end(); ++at) order.push_back(at);
  std::ranges::stable_sort(order, std::greater(), [](const auto& at) { return at->second.errors.words; });
  const std::size_t shown = std::min(order.size(), kMostGroups);
  constexpr auto kRight = Table::Align::right;
  Table table({{title},
               {"clips", kRight},
               {"words", kRight},
               {"WER", kRight},
               {"substitutions", kRight},
               {"deletions", kRight},
               {"insertions", kRight}});
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& [name, group] = *order[i];
    const WordErrors& e = group.errors;
    table.add({name ? terminal_text(*name) : "(not given)", grouped(group.clips), grouped(e.words),
               share(e.errors(), e), share(e.substitutions, e), share(e.deletions, e),
               share(e.insertions, e)});
  }
  return '\n' + table.text() + omitted_text(shown, order.size());
}

std::string worst_text(const std::vector<octavo_train::ScoredClip>& worst) {
  if (worst.empty()) return {};
  std::string out =
      "\nThe clips with the most errors ([-said-] but not transcribed, {+transcribed+} but not said):\n";
  for (const octavo_train::ScoredClip& clip : worst) {
    const octavo_train::WordDiff pair = octavo_train::diff_for_terminal(clip.reference, clip.hypothesis);
    out += fmt::format("  {}  {}  {} in {}\n    said:        {}\n    transcribed: {}\n",
                       terminal_text(clip.place), terminal_text(clip.audio),
                       counted(clip.errors.errors(), "error"), counted(clip.errors.words, "word"),
                       pair.reference, pair.hypothesis);
  }
  return out;
}

std::string failed_text(const std::vector<octavo_train::SkippedClip>& failed) {
  if (failed.empty()) return {};
  const std::size_t shown = std::min(failed.size(), kMostFailed);
  std::string out = fmt::format("\n{} could not be transcribed and {} not counted:\n",
                                counted(std::ssize(failed), "clip"), failed.size() == 1 ? "is" : "are");
  for (std::size_t i = 0; i < shown; ++i)
    out += fmt::format("  {}  {}\n", terminal_text(failed[i].place), terminal_text(failed[i].reason));
  return out + omitted_text(shown, failed.size());
}

json group_json(const GroupScore& group) {
  const WordErrors& e = group.errors;
  return {{"wer", e.rate()},  // null if the rate is infinite (errors without words)
          {"errors", e.errors()},     {"substitutions", e.substitutions},
          {"deletions", e.deletions}, {"insertions", e.insertions},
          {"words", e.words},         {"clips", group.clips},
          {"seconds", group.seconds}};
}

json groups_json(const char* field, const Score::Groups& groups) {
  json out = json::array();
  for (const auto& [name, group] : groups) {
    json row = {{field, name ? json(*name) : json()}};
    row.update(group_json(group));
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

std::string evaluation_text(const octavo_train::ManifestScore& done) {
  const Score& score = done.score;
  return total_text(score.total()) + groups_text("language", score.languages()) +
         groups_text("speaker", score.speakers()) + worst_text(score.worst()) + failed_text(score.failed());
}

// Manifest fields have NeMo's names.
json evaluation_json(const octavo_train::ManifestScore& done) {
  const Score& score = done.score;
  json out = group_json(score.total());
  out["complete"] = done.clips_done == done.clips;
  if (const auto groups = score.languages(); !groups.empty()) out["by_lang"] = groups_json("lang", groups);
  if (const auto groups = score.speakers(); !groups.empty())
    out["by_speaker"] = groups_json("speaker", groups);
  out["worst"] = json::array();
  for (const octavo_train::ScoredClip& clip : score.worst()) {
    out["worst"].push_back({{"place", clip.place},
                            {"audio_filepath", clip.audio},
                            {"text", clip.reference},
                            {"pred_text", clip.hypothesis},
                            {"wer", clip.errors.rate()},
                            {"substitutions", clip.errors.substitutions},
                            {"deletions", clip.errors.deletions},
                            {"insertions", clip.errors.insertions},
                            {"words", clip.errors.words}});
  }
  out["unheard"] = json::array();
  for (const octavo_train::SkippedClip& clip : score.failed())
    out["unheard"].push_back(
        {{"place", clip.place}, {"audio_filepath", clip.audio}, {"reason", clip.reason}});
  return out;
}

}  // namespace octavo::cli
