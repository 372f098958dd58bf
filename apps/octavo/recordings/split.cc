// SPDX-License-Identifier: MIT
#include "apps/octavo/recordings/split.h"

#include "train/base/status.h"
#include "train/data/mix.h"
#include "train/io/mapped_file.h"
#include "train/tasks/speech/manifest/manifest.h"
#include "train/tasks/speech/manifest/manifest_line.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string_view>
#include <vector>

namespace octavo::recordings {
namespace {

namespace fs = std::filesystem;

struct Line {
  std::string_view text;
  double seconds = 0;
  std::size_t group = 0;
  bool wanted = true;
};

struct Group {
  std::uint64_t hash = 0;
  std::int64_t clips = 0;
  bool held_out = false;
};

std::uint64_t hash_of(std::string_view text, std::uint64_t seed) {
  std::uint64_t out = octavo_train::mix(seed + octavo_train::kGoldenGamma);
  for (const char c : text)
    out = octavo_train::mix(out + octavo_train::kGoldenGamma + static_cast<unsigned char>(c));
  return out;
}

// Returns the value of a field of the entry; nullopt if the entry lacks it.
std::optional<std::string> value_of(const octavo_train::ManifestLine& line, std::string_view field) {
  if (field == "audio_filepath") return line.entry.audio;
  if (field == "text") return line.text_filepath.empty() ? line.entry.text : line.text_filepath;
  return field == "speaker" ? line.entry.speaker : line.entry.lang;
}

// Splits the manifest into lines, each with the number of its group. REQUIRES: Manifest::open() succeeded, so
// that every line is an entry.
Status read_lines(const std::string& path, std::string_view text, const SplitOptions& plan,
                  const octavo_train::ManifestOptions& options, std::vector<Line>& lines,
                  std::vector<Group>& groups) {
  std::map<std::string, std::size_t> numbers;
  octavo_train::ManifestLine read;
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (++number == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const auto place = [&] { return path + ':' + std::to_string(number) + ": "; };
    if (const auto problem = octavo_train::read_manifest_line(line, options, read))
      return Status::invalid(place() + problem->reason);
    const auto value = value_of(read, plan.together);
    if (!value)
      return Status::invalid(place() + "there is no " + plan.together + ", by which clips are kept together");
    const auto [at, is_new] = numbers.try_emplace(*value, groups.size());
    if (is_new) groups.push_back({hash_of(*value, plan.seed)});
    groups[at->second].clips += read.unwanted ? 0 : 1;
    lines.push_back({line, read.entry.duration, at->second, !read.unwanted});
  }
  return {};
}

// Returns the line for a manifest in `folder`, with relative paths adjusted. The line is unchanged if its
// paths are absolute or `folder` is the original folder.
std::string line_for(std::string_view line, const fs::path& from, const fs::path& folder) {
  std::string out(line);
  if (from == folder) return out;
  auto json = nlohmann::ordered_json::parse(line);
  bool changed = false;
  for (const char* key : {"audio_filepath", "text_filepath"}) {
    if (!json.contains(key)) continue;
    const fs::path path = json[key].get<std::string>();
    if (path.is_absolute() || path.string().starts_with("~/") || !fs::exists(from / path)) continue;
    json[key] = (from / path).lexically_normal().lexically_relative(folder).string();
    changed = true;
  }
  return changed ? json.dump() : out;
}

fs::path folder_of(const fs::path& folder) {
  std::error_code bad;
  const fs::path out = fs::weakly_canonical(folder.empty() ? fs::path(".") : folder, bad);
  return bad ? fs::absolute(folder) : out;
}

// Marks groups as held out, in increasing order of their hashes.
Status choose(const std::string& path, std::int64_t wanted, std::int64_t all, std::vector<Group>& groups) {
  std::vector<std::size_t> order(groups.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return groups[a].hash < groups[b].hash; });
  std::int64_t taken = 0;
  for (std::size_t i = 0; taken < wanted && i < order.size(); ++i) {
    groups[order[i]].held_out = true;
    taken += groups[order[i]].clips;
  }
  if (taken < all) return {};
  return Status::invalid(
      path + ": of " + std::to_string(all) + " clips in " + std::to_string(groups.size()) +
      " groups none would be left to train on; hold out fewer, or keep other clips together");
}

}  // namespace

Result<Split> split_manifest(const std::string& manifest, const SplitOptions& plan,
                             const std::string& train_folder, const std::string& val_folder) {
  const octavo_train::ManifestOptions options = {.min_duration = 0, .max_duration = 1e9};
  const octavo_train::ManifestSource source = {manifest};
  ASSIGN_OR_RETURN(const auto opened, octavo_train::Manifest::open(std::span(&source, 1), options));
  ASSIGN_OR_RETURN(const auto file, octavo_train::MappedFile::open(manifest));
  const auto bytes = file.bytes();
  std::vector<Line> lines;
  std::vector<Group> groups;
  RETURN_IF_ERROR(read_lines(manifest, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, plan,
                             options, lines, groups));
  const std::int64_t all = opened.report().taken;
  const auto share = static_cast<std::int64_t>(std::ceil(plan.share * static_cast<double>(all)));
  RETURN_IF_ERROR(choose(manifest, plan.clips.value_or(std::max<std::int64_t>(1, share)), all, groups));
  Split out;
  const fs::path from = folder_of(fs::path(manifest).parent_path());
  const fs::path train = folder_of(train_folder), val = folder_of(val_folder);
  for (const Line& line : lines) {
    const bool held_out = groups[line.group].held_out;
    SplitPart& part = held_out ? out.val : out.train;
    part.lines += line_for(line.text, from, held_out ? val : train) + '\n';
    part.clips += line.wanted ? 1 : 0;
    part.seconds += line.wanted ? line.seconds : 0;
  }
  for (const Group& group : groups) ++(group.held_out ? out.val : out.train).groups;
  return out;
}

}  // namespace octavo::recordings
