// Opens manifests; see manifest.h. A file is memory-mapped only while it is opened.
// SPDX-License-Identifier: MIT
#include "train/base/numbers.h"
#include "train/base/status.h"
#include "train/io/checksums.h"
#include "train/io/little_endian.h"
#include "train/io/mapped_file.h"
#include "train/tasks/speech/manifest/manifest.h"
#include "train/tasks/speech/manifest/manifest_index.h"
#include "train/tasks/speech/manifest/manifest_line.h"
#include "train/tasks/speech/manifest/manifest_order.h"

#include <limits>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

constexpr std::size_t kMostSources = 1 << 16;

std::string spoken(double number) { return significant(number, 6); }
std::string count_text(std::int64_t number) { return grouped(static_cast<double>(number)); }

bool blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

// Reads one file into the index.
class FileReader {
 public:
  FileReader(std::size_t source, std::string path, const ManifestOptions& options, ManifestReport& report)
      : source_(source), path_(std::move(path)), options_(options), report_(report) {}

  Status read(std::string_view text, std::vector<IndexedClip>& clips, std::vector<IndexedClip>& left_out) {
    constexpr std::string_view kMark = "\xEF\xBB\xBF";  // byte order mark, which some editors write
    std::size_t begin = text.starts_with(kMark) ? kMark.size() : 0;
    for (std::uint64_t number = 1; begin < text.size(); ++number) {
      const std::size_t found = text.find('\n', begin);
      const std::size_t end = found == std::string_view::npos ? text.size() : found;
      const std::string_view line = text.substr(begin, end - begin);
      if (number > std::numeric_limits<std::uint32_t>::max())
        return Status::unsupported(path_ + ": more than 4,294,967,295 lines; split the file");
      if (!blank(line)) take(line, IndexedClip(source_, begin, number), clips, left_out);
      begin = end + 1;
    }
    return {};
  }

  [[nodiscard]] const std::string& first_problem() const { return first_problem_; }

 private:
  void take(std::string_view line, IndexedClip clip, std::vector<IndexedClip>& clips,
            std::vector<IndexedClip>& left_out) {
    ++report_.lines;
    if (const auto problem = read_manifest_line(line_text(line), options_, line_)) {
      ++report_.bad;
      if (first_problem_.empty()) {
        first_problem_ = path_ + ':' + std::to_string(clip.line()) + ':' +
                         std::to_string(column_of(line, problem->byte)) + ": " + problem->reason;
      }
      left_out.push_back(clip);
      return;
    }
    const double seconds = line_.entry.duration;
    clip.seconds = static_cast<float>(seconds);
    if (line_.unwanted || seconds < options_.min_duration || seconds > options_.max_duration) {
      ++(line_.unwanted                    ? report_.unwanted
         : seconds < options_.min_duration ? report_.too_short
                                           : report_.too_long);
      report_.seconds_left_out += seconds;
      left_out.push_back(clip);
      return;
    }
    ++report_.taken;
    report_.seconds += seconds;
    clips.push_back(clip);
  }

  std::size_t source_;
  std::string path_;
  const ManifestOptions& options_;
  ManifestReport& report_;
  ManifestLine line_;
  std::string first_problem_;
};

Status check_options(std::span<const ManifestSource> sources, const ManifestOptions& options) {
  if (sources.empty()) return Status::invalid("no manifest is given; name at least one file of JSON lines");
  if (sources.size() > kMostSources)
    return Status::unsupported("got " + std::to_string(sources.size()) + " manifests, at most " +
                               std::to_string(kMostSources) + " are possible; join some");
  for (const ManifestSource& source : sources) {
    if (!(source.weight > 0 && source.weight <= kMostTurns))
      return Status::invalid(source.path + ": weight: got " + spoken(source.weight) +
                             ", expected a number above 0, at most " + spoken(kMostTurns));
  }
  if (!(options.min_duration >= 0 && options.max_duration > 0 &&
        options.min_duration <= options.max_duration))
    return Status::invalid("min_duration " + spoken(options.min_duration) + " and max_duration " +
                           spoken(options.max_duration) +
                           ": expected seconds from 0 on, the first at most the second");
  if (options.text_field.empty() || options.lang_field.empty() || options.text_field == options.lang_field)
    return Status::invalid("text_field \"" + options.text_field + "\" and lang_field \"" +
                           options.lang_field + "\": expected two names of fields");
  return {};
}

}  // namespace

std::string ManifestReport::text(const ManifestOptions& options) const {
  std::string out = count_text(taken) + (left_out() > 0 ? " of " + count_text(lines) : "") + " clips (" +
                    fixed(seconds / 3600, 1) + " hours)";
  std::string why;
  const auto add = [&](std::int64_t count, const std::string& what) {
    if (count > 0) why += (why.empty() ? "; left out: " : ", ") + count_text(count) + ' ' + what;
  };
  add(too_long, "longer than " + seconds_text(options.max_duration));
  add(too_short, "shorter than " + seconds_text(options.min_duration));
  add(unwanted, "with _skipme");
  add(bad, bad == 1 ? "bad line" : "bad lines");
  return out + why;
}

Result<Manifest> Manifest::open(std::span<const ManifestSource> sources, const ManifestOptions& options) {
  RETURN_IF_ERROR(check_options(sources, options));
  auto index = std::make_unique<Index>();
  index->options = options;
  Hasher hasher;
  const auto hash = [&](std::string_view text) { hasher.add(std::as_bytes(std::span(text))); };
  hash(spoken(options.min_duration) + ' ' + spoken(options.max_duration) + ' ' + options.text_field + ' ' +
       options.lang_field);
  std::vector<Turns> turns;
  std::string first_problem;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::string& path = sources[i].path;
    Result<InputFile> file = InputFile::open(path);
    if (!file.ok()) return file.status();
    Result<MappedFile> mapped = MappedFile::open(path);
    if (!mapped.ok()) return mapped.status();
    if (file->size >> IndexedClip::kPlaceBits != 0)
      return Status::unsupported(path + ": too large for a manifest");
    const std::string_view text = as_text(mapped->bytes());
    const auto before = static_cast<std::int64_t>(index->clips.size());
    FileReader reader(i, path, options, index->report);
    RETURN_IF_ERROR(reader.read(text, index->clips, index->left_out));
    if (first_problem.empty()) first_problem = reader.first_problem();
    turns.push_back({static_cast<std::int64_t>(index->clips.size()) - before, sources[i].weight});
    hash(" " + spoken(sources[i].weight) + ' ');
    hasher.add(mapped->bytes());
    index->files.push_back({path, parent_folder(path), std::move(file->descriptor)});
  }
  const ManifestReport& report = index->report;
  if (report.bad > 0 && options.bad == BadClips::error) {
    return Status::invalid(first_problem +
                           (report.bad > 1 ? "; " + count_text(report.bad - 1) + " more lines are bad" : "") +
                           " (" + options.how_to_skip + " leaves bad lines out and lists them)");
  }
  if (report.taken == 0) {
    return Status::invalid(sources[0].path + (sources.size() > 1 ? " and the other manifests" : "") +
                           ": no clip is there to take: " + report.text(options) +
                           (first_problem.empty() ? "" : "; the first: " + first_problem));
  }
  Result<std::vector<std::uint32_t>> order = mixed_turns(turns);
  if (!order.ok()) return order.status();
  index->turns = std::move(*order);
  index->clips.shrink_to_fit();
  index->left_out.shrink_to_fit();
  index->fingerprint = hasher.hex();
  return Manifest(std::move(index));
}

}  // namespace octavo_train
