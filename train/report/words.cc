// SPDX-License-Identifier: MIT
#include "train/report/words.h"

#include "train/base/numbers.h"

namespace octavo_train {

std::string rate_name(const RunData& run) {
  std::string out = run.unit + " per second";
  if (out[0] >= 'a' && out[0] <= 'z') out[0] = static_cast<char>(out[0] - 'a' + 'A');
  return out;
}

std::string entropy_unit(const RunData& run, const std::string& of) {
  if (!number_in(run.start, "/unigram_entropy")) return {};
  return of + " per " + run.unit.substr(0, run.unit.size() - (run.unit.ends_with('s') ? 1 : 0));
}

Ending ending_of(const RunData& run) {
  const std::optional<std::string> reason = text_in(run.end, "/reason");
  if (!reason) return {"No end recorded: still running, or killed", "open"};
  if (*reason == "finished") return {"Finished", "good"};
  if (*reason == "interrupted") return {"Interrupted", "fair"};
  if (*reason == "diverged") return {"Diverged", "bad"};
  if (*reason == "failed") return {"Failed", "bad"};
  return {*reason, "fair"};
}

std::string subtitle_of(const RunData& run) {
  std::string out;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : " · ") + part; };
  if (const auto model = text_in(run.start, "/model")) add(*model);
  if (const auto params = number_in(run.start, "/params")) add(short_count(params) + " parameters");
  if (const auto device = text_in(run.start, "/device")) add(*device);
  if (run.began) add("began " + date_text(run.began));
  if (const auto version = text_in(run.start, "/octavo")) add("octavo " + *version);
  return out;
}

}  // namespace octavo_train
