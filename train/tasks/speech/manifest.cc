// Opening manifests and reading entries again; see manifest.h. A file is mapped while it is opened and its
// pages are given back; then lines are read one at a time, so that memory does not grow with the entries that
// were asked for, and a file that shrinks is an error and no signal.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/manifest.h"

#include "train/files/byte_order.h"
#include "train/files/checkpoint_names.h"
#include "train/files/checksums.h"
#include "train/files/file_descriptor.h"
#include "train/files/mapped_file.h"
#include "train/files/text_file.h"
#include "train/format/numbers.h"
#include "train/tasks/speech/manifest_line.h"
#include "train/tasks/speech/manifest_order.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

namespace octavo::train {
namespace {

constexpr std::uint64_t kTextLimit = 1 << 20;  // of a file that text_filepath names
constexpr std::size_t kMostSources = 1 << 16;
constexpr int kPlaceBits = 48;

// 16 bytes: where the line begins, in which file, how long the clip is.
struct Clip {
  std::uint64_t at = 0;  // the file's number, then the byte
  float seconds = 0;
  std::uint32_t line = 0;  // from 1

  Clip() = default;
  Clip(std::size_t source, std::uint64_t byte, double duration, std::uint64_t number)
      : at((std::uint64_t{source} << kPlaceBits) | byte),
        seconds(static_cast<float>(duration)),
        line(static_cast<std::uint32_t>(number)) {}
  [[nodiscard]] std::size_t source() const { return at >> kPlaceBits; }
  [[nodiscard]] std::uint64_t byte() const { return at & ((std::uint64_t{1} << kPlaceBits) - 1); }
};
static_assert(sizeof(Clip) == 16);

struct File {
  std::string path, folder;
  FileDescriptor descriptor;
};

std::string spoken(double number) { return significant(number, 6); }
std::string count_text(std::int64_t number) { return grouped(static_cast<double>(number)); }

// The line without its end.
std::string_view trimmed(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t'))
    line.remove_suffix(1);
  return line;
}

bool blank(std::string_view line) { return line.find_first_not_of(" \t\r") == std::string_view::npos; }

std::string full_path(const std::string& folder, std::string path) {
  if (path.starts_with('/')) return path;
  if (path.starts_with("~/")) {
    const char* home = std::getenv("HOME");
    return home == nullptr ? path : home + path.substr(1);
  }
  std::string beside = folder.empty() ? path : folder + '/' + path;
  // As NeMo, which takes the working directory too.
  if (!path_exists(beside) && path_exists(path)) return path;
  return beside;
}

// The line that begins at a byte, by reads of its own: several threads may ask at once.
Result<std::string> line_at(const File& file, std::uint64_t byte) {
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
    if (count == 0 || end != std::string_view::npos) return std::string(trimmed(out));
  }
}

}  // namespace

struct Manifest::Index {
  ManifestOptions options;
  ManifestReport report;
  std::vector<File> files;
  std::vector<Clip> clips, left_out;
  std::vector<std::uint32_t> turns;  // the clip of every entry; empty: each once, in order
  std::string fingerprint;

  [[nodiscard]] std::size_t clip_of(std::int64_t index) const {
    const auto at = static_cast<std::size_t>(index);
    return turns.empty() ? at : turns[at];
  }
  [[nodiscard]] std::string place(const Clip& clip) const {
    return files[clip.source()].path + ':' + std::to_string(clip.line);
  }
  [[noreturn]] void changed(const Clip& clip, const std::string& reason) const {
    throw Error(Status::failed(place(clip) + ": the line has changed since the manifest was opened (" +
                               reason + "); start again"));
  }
};

namespace {

// Reads one file into the index.
class FileReader {
 public:
  FileReader(std::size_t source, std::string path, const ManifestOptions& options, ManifestReport& report)
      : source_(source), path_(std::move(path)), options_(options), report_(report) {}

  Status read(std::string_view text, std::vector<Clip>& clips, std::vector<Clip>& left_out) {
    constexpr std::string_view kMark = "\xEF\xBB\xBF";  // that some editors put before UTF-8
    std::size_t begin = text.starts_with(kMark) ? kMark.size() : 0;
    for (std::uint64_t number = 1; begin < text.size(); ++number) {
      const std::size_t found = text.find('\n', begin);
      const std::size_t end = found == std::string_view::npos ? text.size() : found;
      const std::string_view line = text.substr(begin, end - begin);
      if (number > std::numeric_limits<std::uint32_t>::max())
        return Status::unsupported(path_ + ": more than 4,294,967,295 lines; split the file");
      if (!blank(line)) take(line, Clip(source_, begin, 0, number), clips, left_out);
      begin = end + 1;
    }
    return {};
  }

  [[nodiscard]] const std::string& first_problem() const { return first_problem_; }

 private:
  void take(std::string_view line, Clip clip, std::vector<Clip>& clips, std::vector<Clip>& left_out) {
    ++report_.lines;
    if (const auto problem = read_manifest_line(trimmed(line), options_, line_)) {
      ++report_.bad;
      if (first_problem_.empty()) {
        first_problem_ = path_ + ':' + std::to_string(clip.line) + ':' +
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
  add(too_long, "longer than " + spoken(options.max_duration) + " s");
  add(too_short, "shorter than " + spoken(options.min_duration) + " s");
  add(unwanted, "with _skipme");
  add(bad, bad == 1 ? "bad line" : "bad lines");
  return out + why;
}

Manifest::Manifest(std::unique_ptr<Index> index) : index_(std::move(index)) {}
Manifest::Manifest(Manifest&&) noexcept = default;
Manifest& Manifest::operator=(Manifest&&) noexcept = default;
Manifest::~Manifest() = default;

Result<Manifest> Manifest::open(std::span<const ManifestSource> sources, const ManifestOptions& options) {
  if (Status bad = check_options(sources, options); !bad.ok()) return bad;
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
    if (file->size >> kPlaceBits != 0) return Status::unsupported(path + ": too large for a manifest");
    const std::string_view text = as_text(mapped->bytes());
    const auto before = static_cast<std::int64_t>(index->clips.size());
    FileReader reader(i, path, options, index->report);
    if (Status bad = reader.read(text, index->clips, index->left_out); !bad.ok()) return bad;
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
                           " (data.bad_clips: skip leaves bad lines out and lists them)");
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
  return (index_->clips.capacity() + index_->left_out.capacity()) * sizeof(Clip) +
         index_->turns.capacity() * sizeof(std::uint32_t);
}

ManifestEntry Manifest::entry(std::int64_t index) const {
  const Clip& clip = index_->clips[index_->clip_of(index)];
  const File& file = index_->files[clip.source()];
  ManifestLine line;
  const std::string text = line_at(file, clip.byte()).value();
  if (const auto problem = read_manifest_line(text, index_->options, line))
    index_->changed(clip, problem->reason);
  if (static_cast<float>(line.entry.duration) != clip.seconds)
    index_->changed(clip, "its duration is another");
  if (!line.text_filepath.empty()) {
    auto read = read_text_file(full_path(file.folder, line.text_filepath), kTextLimit);
    if (!read.ok())
      throw Error(
          Status(read.status().code(), index_->place(clip) + ": text_filepath: " + read.status().message()));
    line.entry.text = trimmed(std::string_view(*read).substr(0, read->find_last_not_of('\n') + 1));
  }
  line.entry.audio = full_path(file.folder, std::move(line.entry.audio));
  return std::move(line.entry);
}

LeftOutClip Manifest::left_out(std::int64_t number) const {
  const Clip& clip = index_->left_out[static_cast<std::size_t>(number)];
  const File& file = index_->files[clip.source()];
  LeftOutClip out{index_->place(clip), "", ""};
  const auto text = line_at(file, clip.byte());
  if (!text.ok()) {
    out.reason = text.status().message();
    return out;
  }
  ManifestLine line;
  if (const auto problem = read_manifest_line(*text, index_->options, line)) {
    out.place += ':' + std::to_string(column_of(*text, problem->byte));
    out.reason = problem->reason;
    return out;
  }
  const double seconds = line.entry.duration;
  const ManifestOptions& options = index_->options;
  out.audio = full_path(file.folder, std::move(line.entry.audio));
  if (line.unwanted) {
    out.reason = "_skipme is true";
  } else {
    out.reason =
        seconds < options.min_duration
            ? spoken(seconds) + " s are shorter than min_duration " + spoken(options.min_duration) + " s"
            : spoken(seconds) + " s are longer than max_duration " + spoken(options.max_duration) + " s";
  }
  return out;
}

}  // namespace octavo::train
