// SPDX-License-Identifier: MIT
#include "train/tasks/speech/manifest/manifest_line.h"

#include "train/tasks/speech/manifest/json_line.h"

#include <algorithm>
#include <array>

namespace octavo_train {
namespace {

constexpr double kLongest = 1e9;  // seconds, about 30 years; a larger value is a mistake

enum class Field : std::uint8_t {
  audio,
  duration,
  offset,
  text,
  text_filepath,
  normalized_text,
  lang,
  speaker,
  skip,
  other
};
constexpr std::size_t kFields = 9;  // without `other`

// Returns the field with this name. `audio_filename` and `audio_file` are older names that NeMo accepts too.
Field field_of(std::string_view name, const ManifestOptions& options) {
  if (name == options.text_field) return Field::text;
  if (name == options.lang_field) return Field::lang;
  if (name == "audio_filepath" || name == "audio_filename" || name == "audio_file") return Field::audio;
  if (name == "duration") return Field::duration;
  if (name == "offset") return Field::offset;
  if (name == "speaker") return Field::speaker;
  if (name == "text_filepath") return Field::text_filepath;
  if (name == "normalized_text") return Field::normalized_text;
  if (name == "_skipme") return Field::skip;
  return Field::other;
}

class LineReader {
 public:
  LineReader(std::string_view line, const ManifestOptions& options, ManifestLine& out)
      : json_(line), options_(options), out_(out) {}

  bool read() {
    out_.entry.offset = 0;
    out_.entry.lang.reset();
    out_.entry.speaker.reset();
    out_.text_filepath.clear();
    out_.unwanted = false;
    if (!json_.take('{', "{: a manifest has a JSON object in every line")) return false;
    const std::size_t begin = json_.next() - 1;
    if (json_.peek() == '}') {
      json_.take('}', "");
    } else {
      do {
        if (!pair()) return false;
      } while (json_.peek() == ',' && json_.take(',', ""));
      if (!json_.take('}', "a comma or } after a value")) return false;
    }
    if (!json_.ended()) return json_.fail("expected the end of the line, got " + json_.shown());
    return complete(begin);
  }

  [[nodiscard]] LineProblem problem() const { return {json_.byte(), json_.reason()}; }

 private:
  bool pair() {
    json_.peek();
    const std::size_t place = json_.next();
    if (!json_.string(name_) || !json_.take(':', "a colon after a name")) return false;
    const Field field = field_of(name_, options_);
    if (field == Field::other) return json_.skip();
    bool& given = given_.at(static_cast<std::size_t>(field));
    if (given) return json_.fail_at(place, name_ + " is given twice");
    json_.peek();
    const std::size_t value = json_.next();
    const bool optional =
        field == Field::offset || field == Field::lang || field == Field::speaker || field == Field::skip;
    if (optional && json_.null()) return true;
    given = true;
    if (value_of(field, value)) return true;
    if (!json_.reason().starts_with(name_)) return json_.fail_at(json_.byte(), name_ + ": " + json_.reason());
    return false;
  }

  bool value_of(Field field, std::size_t place) {
    ManifestEntry& entry = out_.entry;
    switch (field) {
      case Field::audio:
        if (!json_.string(entry.audio)) return false;
        return path(entry.audio, place);
      case Field::duration:
        if (!json_.number(entry.duration)) return false;
        return (entry.duration > 0 && entry.duration <= kLongest) ||
               json_.fail_at(place, "expected seconds above 0");
      case Field::offset:
        if (!json_.number(entry.offset)) return false;
        return (entry.offset >= 0 && entry.offset <= kLongest) ||
               json_.fail_at(place, "expected seconds from 0 on");
      case Field::text:
        return json_.string(entry.text);
      case Field::text_filepath:
        if (!json_.string(out_.text_filepath)) return false;
        return path(out_.text_filepath, place);
      case Field::normalized_text:
        return json_.string(normalized_);
      case Field::lang:
        return json_.string(entry.lang.emplace());
      case Field::speaker:
        return word(entry.speaker.emplace());
      case Field::skip:
        return json_.boolean(out_.unwanted);
      case Field::other:
        break;
    }
    return true;
  }

  bool path(const std::string& value, std::size_t place) {
    if (value.empty()) return json_.fail_at(place, "it is empty, expected a path");
    if (value.find('\0') != std::string::npos) return json_.fail_at(place, "a path has no \\u0000");
    return true;
  }

  // Reads a speaker, which is a string or a number.
  bool word(std::string& value) {
    const char first = json_.peek();
    if (first != '-' && (first < '0' || first > '9')) return json_.string(value);
    std::string_view text;
    if (!json_.skip(&text)) return false;
    value = text;
    return true;
  }

  [[nodiscard]] bool has(Field field) const { return given_.at(static_cast<std::size_t>(field)); }

  bool complete(std::size_t begin) {
    if (!has(Field::audio)) return json_.fail_at(begin, "audio_filepath is missing");
    if (!has(Field::duration)) return json_.fail_at(begin, "duration is missing, the seconds of the clip");
    const bool standard = options_.text_field == "text";
    if (has(Field::text)) {
      out_.text_filepath.clear();
    } else if (standard && has(Field::text_filepath)) {
      out_.entry.text.clear();
    } else if (standard && has(Field::normalized_text)) {
      out_.entry.text = normalized_;
    } else if (!options_.needs_text) {
      out_.entry.text.clear();
    } else {
      return json_.fail_at(begin, options_.text_field + " is missing, what is said in the clip");
    }
    return true;
  }

  JsonLine json_;
  const ManifestOptions& options_;
  ManifestLine& out_;
  std::array<bool, kFields> given_ = {};
  std::string name_, normalized_;
};

}  // namespace

std::optional<LineProblem> read_manifest_line(std::string_view line, const ManifestOptions& options,
                                              ManifestLine& out) {
  LineReader reader(line, options, out);
  if (reader.read()) return std::nullopt;
  return reader.problem();
}

std::size_t column_of(std::string_view line, std::size_t byte) {
  const std::string_view before = line.substr(0, byte);
  return 1 + static_cast<std::size_t>(std::ranges::count_if(
                 before, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80; }));
}

}  // namespace octavo_train
