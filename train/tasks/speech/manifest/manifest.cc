// Opens manifests and reads their entries. Opening memory-maps a file and keeps an index of 16 bytes per
// line; an entry is read again with pread(). So memory does not grow with the number of entries read, and a
// file that has shrunk causes an error, not a signal.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/manifest/manifest.h"

#include "train/base/numbers.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/data/mix.h"
#include "train/data/order.h"
#include "train/io/checksums.h"
#include "train/io/files.h"
#include "train/io/little_endian.h"
#include "train/io/text_file.h"
#include "train/tasks/speech/manifest/manifest_line.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace octavo_train {
// A clip's line in the manifests (file, byte and line number) and the clip's duration.
class IndexedClip {
 public:
  static constexpr int kPlaceBits = 48;

  IndexedClip(std::size_t source, std::uint64_t byte, std::uint64_t line)
      : line_(static_cast<std::uint32_t>(line)), at_((std::uint64_t{source} << kPlaceBits) | byte) {}

  [[nodiscard]] std::size_t source() const { return at_ >> kPlaceBits; }
  [[nodiscard]] std::uint64_t byte() const { return at_ & ((std::uint64_t{1} << kPlaceBits) - 1); }
  [[nodiscard]] std::uint32_t line() const { return line_; }  // the first line is 1

  float seconds = 0;

 private:
  std::uint32_t line_;
  std::uint64_t at_;
};
static_assert(sizeof(IndexedClip) == 16);

struct ManifestFile {
  std::string path, folder;
  FileDescriptor descriptor;
};

namespace {

constexpr std::size_t kMostSources = 1 << 16;
constexpr double kMostTurns = 1000;                       // the largest weight
constexpr std::uint64_t kTextLimit = 1 << 20;             // bytes of a file that text_filepath names
constexpr std::uint64_t kSubsetKey = 0x6D616E6966657374;  // arbitrary; determines the subsets

std::string spoken(double number) { return significant(number, 6); }
std::string count_text(std::int64_t number) { return grouped(static_cast<double>(number)); }
std::string in_seconds(double seconds) { return spoken(seconds) + " s"; }

// Returns the line without the white space at its end; empty for a blank line.
std::string_view line_text(std::string_view line) {
  return line.substr(0, line.find_last_not_of(" \t\r") + 1);  // npos + 1 is 0
}

std::string full_path(const std::string& folder, std::string path) {
  if (path.starts_with('/')) return path;
  if (path.starts_with("~/")) {
    const char* home = std::getenv("HOME");
    return home == nullptr ? path : home + path.substr(1);
  }
  std::string beside = folder.empty() ? path : folder + '/' + path;
  // Like NeMo, fall back to the working directory.
  return !path_exists(beside) && path_exists(path) ? path : beside;
}

// Returns the line that begins at a byte. Uses pread(), so several threads may call it concurrently.
Result<std::string> line_at(const ManifestFile& file, std::uint64_t byte) {
  std::string out;
  std::array<char, 1024> block{};
  for (;;) {
    const ssize_t count =
        ::pread(file.descriptor.get(), block.data(), block.size(), static_cast<off_t>(byte + out.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(file.path, "read", errno);
    const std::string_view got(block.data(), static_cast<std::size_t>(count));
    const std::size_t end = got.find('\n');
    out.append(got.substr(0, end));
    if (count == 0 || end != std::string_view::npos) return std::string(line_text(out));
  }
}

Status check_options(std::span<const ManifestSource> sources, const ManifestOptions& options) {
  if (sources.empty()) return Status::invalid("no manifest is given; name at least one file of JSON lines");
  if (sources.size() > kMostSources)
    return unsupported_error("got {} manifests, at most {} are possible; join some", sources.size(),
                             kMostSources);
  for (const ManifestSource& source : sources) {
    if (!(source.weight > 0 && source.weight <= kMostTurns))
      return invalid_error("{}: weight: got {}, expected a number above 0, at most {}", source.path,
                           spoken(source.weight), spoken(kMostTurns));
  }
  if (!(options.min_duration >= 0 && options.max_duration > 0 &&
        options.min_duration <= options.max_duration))
    return invalid_error(
        "min_duration {} and max_duration {}: expected seconds from 0 on, the first at most the second",
        spoken(options.min_duration), spoken(options.max_duration));
  if (options.text_field.empty() || options.lang_field.empty() || options.text_field == options.lang_field)
    return invalid_error("text_field \"{}\" and lang_field \"{}\": expected two names of fields",
                         options.text_field, options.lang_field);
  return {};
}

// A manifest's share of an epoch.
struct Turns {
  std::int64_t clips = 0;  // numbers continue from the manifest before it
  double weight = 1;
};

// Returns the clips of a manifest, numbered from 0, in the order in which they occur in an epoch. They occur
// as often as the integer part of the weight, and then a random subset occurs once more. The subset depends
// only on the number of clips and the fraction; a larger fraction adds clips to the subset of a smaller
// fraction.
std::vector<std::uint32_t> turns_of(const Turns& manifest) {
  const auto clips = static_cast<std::uint32_t>(manifest.clips);
  const double whole = std::floor(manifest.weight);
  std::vector<std::uint32_t> out;
  for (int i = 0; i < static_cast<int>(whole); ++i) {
    for (std::uint32_t clip = 0; clip < clips; ++clip) out.push_back(clip);
  }
  const auto rest = static_cast<std::uint32_t>(std::llround((manifest.weight - whole) * clips));
  if (rest == 0) return out;
  const Permutation random(clips, mix(kSubsetKey + clips));
  const auto begin = static_cast<std::ptrdiff_t>(out.size());
  for (std::uint32_t i = 0; i < rest; ++i) out.push_back(static_cast<std::uint32_t>(random(i)));
  std::sort(out.begin() + begin, out.end());
  return out;
}

// The next entry of a manifest (`turn`) among all its entries in the epoch (`turns`).
struct Next {
  std::uint64_t turn = 0, turns = 0;
  std::size_t manifest = 0;
};

// Orders entries by their position in the epoch, (turn + 1/2) / turns. The comparison is exact, because a
// turn is below 2^32.
struct Later {
  bool operator()(const Next& a, const Next& b) const {
    const std::uint64_t left = (2 * a.turn + 1) * b.turns, right = (2 * b.turn + 1) * a.turns;
    return left != right ? left > right : a.manifest > b.manifest;
  }
};

// Returns the clip of each entry of an epoch, or an empty vector if every clip occurs once, in order. The
// first n entries contain every manifest in proportion to clips × weight, within one entry.
Result<std::vector<std::uint32_t>> mixed_turns(std::span<const Turns> manifests) {
  constexpr double kMost = std::numeric_limits<std::int32_t>::max();
  if (manifests.size() == 1 && manifests[0].weight == 1) return std::vector<std::uint32_t>();
  double entries = 0;
  for (const Turns& manifest : manifests)
    entries += static_cast<double>(manifest.clips) * std::max(manifest.weight, 1.0);
  if (entries > kMost)
    return Status::unsupported(
        "an epoch of all manifests with their weights would have more than 2,147,483,647 clips; use smaller "
        "weights");
  std::vector<std::vector<std::uint32_t>> turns;
  std::vector<std::uint32_t> first;  // number of clips in the preceding manifests
  std::priority_queue<Next, std::vector<Next>, Later> next;
  std::uint32_t clips = 0;
  std::size_t total = 0;
  for (std::size_t i = 0; i < manifests.size(); ++i) {
    turns.push_back(turns_of(manifests[i]));
    first.push_back(clips);
    clips += static_cast<std::uint32_t>(manifests[i].clips);
    total += turns.back().size();
    if (!turns.back().empty()) next.push({0, turns.back().size(), i});
  }
  if (total == 0)
    return Status::invalid("the manifests' weights are so small that no clip is left; use larger ones");
  std::vector<std::uint32_t> out;
  out.reserve(total);
  while (!next.empty()) {
    Next turn = next.top();
    next.pop();
    out.push_back(first[turn.manifest] + turns[turn.manifest][turn.turn]);
    if (++turn.turn < turn.turns) next.push(turn);
  }
  return out;
}

}  // namespace

struct Manifest::Index {
  ManifestOptions options;
  ManifestReport report;
  std::vector<ManifestFile> files;
  std::vector<IndexedClip> clips, left_out;
  std::vector<std::uint32_t> turns;  // the clip of each entry; empty: every clip once, in order
  std::string fingerprint;
  std::string first_problem = {};  // of a bad line, with its place
  ManifestLine line = {};          // the line that is read, with its strings' capacity

  [[nodiscard]] std::size_t clip_of(std::int64_t index) const {
    const auto at = static_cast<std::size_t>(index);
    return turns.empty() ? at : turns[at];
  }
  [[nodiscard]] std::string place(const IndexedClip& clip) const {
    return fmt::format("{}:{}", files[clip.source()].path, clip.line());
  }
  [[noreturn]] void changed(const IndexedClip& clip, const std::string& reason) const {
    throw Error(failed_error("{}: the line has changed since the manifest was opened ({}); start again",
                             place(clip), reason));
  }

  // Adds the lines of the last file.
  Status add_lines(std::string_view text) {
    constexpr std::string_view kMark = "\xEF\xBB\xBF";  // byte order mark, which some editors write
    std::size_t begin = text.starts_with(kMark) ? kMark.size() : 0;
    for (std::uint64_t number = 1; begin < text.size(); ++number) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view text_of_line = line_text(text.substr(begin, end - begin));
      if (number > std::numeric_limits<std::uint32_t>::max())
        return Status::unsupported(files.back().path + ": more than 4,294,967,295 lines; split the file");
      if (!text_of_line.empty()) add_line(text_of_line, IndexedClip(files.size() - 1, begin, number));
      begin = end + 1;
    }
    return {};
  }

  void add_line(std::string_view text, IndexedClip clip) {
    ++report.lines;
    if (const auto problem = read_manifest_line(text, options, line)) {
      ++report.bad;
      if (first_problem.empty())
        first_problem =
            fmt::format("{}:{}: {}", place(clip), column_of(text, problem->byte), problem->reason);
      left_out.push_back(clip);
      return;
    }
    const double seconds = line.entry.duration;
    const bool too_short = seconds < options.min_duration;
    clip.seconds = static_cast<float>(seconds);
    if (line.unwanted || too_short || seconds > options.max_duration) {
      ++(line.unwanted ? report.unwanted : too_short ? report.too_short : report.too_long);
      report.seconds_left_out += seconds;
      left_out.push_back(clip);
      return;
    }
    ++report.taken;
    report.seconds += seconds;
    clips.push_back(clip);
  }
};

std::string ManifestReport::text(const ManifestOptions& options) const {
  std::string out = fmt::format("{}{} clips ({} hours)", count_text(taken),
                                left_out() > 0 ? " of " + count_text(lines) : "", fixed(seconds / 3600, 1));
  const char* before = "; skipped: ";
  const auto add = [&](std::int64_t count, const std::string& what) {
    if (count > 0) out += std::exchange(before, ", ") + count_text(count) + ' ' + what;
  };
  add(too_long, "longer than " + in_seconds(options.max_duration));
  add(too_short, "shorter than " + in_seconds(options.min_duration));
  add(unwanted, "with _skipme");
  add(bad, bad == 1 ? "bad line" : "bad lines");
  return out;
}

Result<Manifest> Manifest::open(std::span<const ManifestSource> sources, const ManifestOptions& options) {
  RETURN_IF_ERROR(check_options(sources, options));
  auto index = std::make_shared<Index>();
  index->options = options;
  Hasher hasher;
  const auto hash = [&](std::string_view text) { hasher.add(std::as_bytes(std::span(text))); };
  hash(fmt::format("{} {} {} {}", spoken(options.min_duration), spoken(options.max_duration),
                   options.text_field, options.lang_field));
  std::vector<Turns> turns;
  for (const ManifestSource& source : sources) {
    ASSIGN_OR_RETURN(InputFile file, InputFile::open(source.path));
    ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::open(source.path));
    if (file.size >> IndexedClip::kPlaceBits != 0)
      return Status::unsupported(source.path + ": too large for a manifest");
    index->files.push_back({source.path, parent_folder(source.path), std::move(file.descriptor)});
    const std::size_t before = index->clips.size();
    RETURN_IF_ERROR(index->add_lines(as_text(mapped.bytes())));
    turns.push_back({static_cast<std::int64_t>(index->clips.size() - before), source.weight});
    hash(' ' + spoken(source.weight) + ' ');
    hasher.add(mapped.bytes());
  }
  const ManifestReport& report = index->report;
  if (report.bad > 0 && options.bad == BadClips::error) {
    return invalid_error("{}{} ({} skips bad lines and lists them)", index->first_problem,
                         report.bad > 1 ? "; " + count_text(report.bad - 1) + " more lines are bad" : "",
                         options.how_to_skip);
  }
  if (report.taken == 0) {
    return invalid_error("{}{}: no clip can be used: {}{}", sources[0].path,
                         sources.size() > 1 ? " and the other manifests" : "", report.text(options),
                         index->first_problem.empty() ? "" : "; the first: " + index->first_problem);
  }
  ASSIGN_OR_RETURN(index->turns, mixed_turns(turns));
  index->clips.shrink_to_fit();
  index->left_out.shrink_to_fit();
  index->fingerprint = hasher.hex();
  return Manifest(std::move(index));
}

std::int64_t Manifest::size() const {
  return static_cast<std::int64_t>(index_->turns.empty() ? index_->clips.size() : index_->turns.size());
}
std::int64_t Manifest::clip(std::int64_t index) const {
  return static_cast<std::int64_t>(index_->clip_of(index));
}
double Manifest::duration(std::int64_t index) const { return index_->clips[index_->clip_of(index)].seconds; }
std::string Manifest::place(std::int64_t index) const {
  return index_->place(index_->clips[index_->clip_of(index)]);
}
const ManifestReport& Manifest::report() const { return index_->report; }
const ManifestOptions& Manifest::options() const { return index_->options; }
const std::string& Manifest::fingerprint() const { return index_->fingerprint; }
std::size_t Manifest::bytes() const {
  return (index_->clips.capacity() + index_->left_out.capacity()) * sizeof(IndexedClip) +
         index_->turns.capacity() * sizeof(std::uint32_t);
}

ManifestEntry Manifest::entry(std::int64_t index) const {
  const IndexedClip& clip = index_->clips[index_->clip_of(index)];
  const ManifestFile& file = index_->files[clip.source()];
  ManifestLine line;
  const std::string text = line_at(file, clip.byte()).value();
  if (const auto problem = read_manifest_line(text, index_->options, line))
    index_->changed(clip, problem->reason);
  if (static_cast<float>(line.entry.duration) != clip.seconds)
    index_->changed(clip, "its duration is different");
  if (!line.text_filepath.empty()) {
    const auto read = read_text_file(full_path(file.folder, line.text_filepath), kTextLimit);
    if (!read.ok()) throw Error(with_context(index_->place(clip) + ": text_filepath", read.status()));
    line.entry.text = line_text(std::string_view(*read).substr(0, read->find_last_not_of('\n') + 1));
  }
  line.entry.audio = full_path(file.folder, std::move(line.entry.audio));
  return std::move(line.entry);
}

SkippedClip Manifest::left_out(std::int64_t number) const {
  const IndexedClip& clip = index_->left_out[static_cast<std::size_t>(number)];
  const ManifestFile& file = index_->files[clip.source()];
  const ManifestOptions& options = index_->options;
  const std::string place = index_->place(clip);
  const auto text = line_at(file, clip.byte());
  if (!text.ok()) return {place, "", text.status().message()};
  ManifestLine line;
  if (const auto problem = read_manifest_line(*text, options, line))
    return {fmt::format("{}:{}", place, column_of(*text, problem->byte)), "", problem->reason};
  const std::string audio = full_path(file.folder, std::move(line.entry.audio));
  if (line.unwanted) return {place, audio, "_skipme is true"};
  const double seconds = line.entry.duration;
  const bool too_short = seconds < options.min_duration;
  return {place, audio,
          fmt::format("{} are {} {}", in_seconds(seconds),
                      too_short ? "shorter than min_duration" : "longer than max_duration",
                      in_seconds(too_short ? options.min_duration : options.max_duration))};
}

}  // namespace octavo_train
