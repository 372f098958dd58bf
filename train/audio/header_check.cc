// Checks signatures, and the lengths that headers promise; see decoder.h.
// SPDX-License-Identifier: MIT
#include "train/audio/decoder.h"

#include "train/base/status.h"
#include "train/io/little_endian.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

namespace octavo_train {
namespace {

// Reads bytes of a file by position. Bytes after the end of the file read as zeros.
class FileBytes {
 public:
  FileBytes(const InputFile& file) : descriptor_(file.descriptor.get()), size_(file.size) {}
  [[nodiscard]] std::uint64_t size() const { return size_; }

  [[nodiscard]] std::string at(std::uint64_t position, std::size_t count) const {
    std::string text(count, '\0');
    if (position < size_) {
      const ssize_t got = ::pread(descriptor_, text.data(), count, static_cast<off_t>(position));
      std::fill(text.begin() + std::max<ssize_t>(got, 0), text.end(), '\0');
    }
    return text;
  }

 private:
  int descriptor_;
  std::uint64_t size_;
};

std::uint32_t byte_of(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }
std::uint32_t little16(std::string_view text, std::size_t at) { return load_little<std::uint16_t>(text, at); }
std::uint32_t little32(std::string_view text, std::size_t at) { return load_little<std::uint32_t>(text, at); }
std::uint32_t big32(std::string_view text, std::size_t at) {
  return byte_of(text, at) << 24 | byte_of(text, at + 1) << 16 | byte_of(text, at + 2) << 8 |
         byte_of(text, at + 3);
}

// Programs that write to a pipe put this value or a larger one in length fields.
constexpr std::uint32_t kUnknown32 = 0x7FFFF000;

Status cut_short(const std::string& path, std::uint64_t promised, std::uint64_t there) {
  return invalid_error(
      "{}: is cut short: its header promises {} bytes, the file has {}; get the complete file, or omit it",
      path, promised, there);
}

// Checks that the sample rate agrees with the bytes per second. If they differ, one of the two is wrong, and
// the header does not show which.
Status check_wav_rate(const std::string& format, const std::string& path) {
  const std::uint32_t tag = little16(format, 0), rate = little32(format, 4), bytes = little32(format, 8),
                      frame = little16(format, 12);
  const bool plain = tag == 1 || tag == 3 || tag == 0xFFFE;  // integers, floats, or either of them
  if (!plain || bytes == 0 || frame == 0 || bytes == std::uint64_t{rate} * frame) return {};
  return invalid_error(
      "{}: its header says {} samples a second, and {} bytes a second, which are {} samples: one is "
      "wrong; write the file again at its true rate",
      path, rate, bytes, bytes / frame);
}

Status check_wav(const FileBytes& file, const std::string& path) {
  std::uint64_t position = 12;
  for (int chunks = 0; chunks < 1000 && position + 8 <= file.size(); ++chunks) {
    const std::string head = file.at(position, 8);
    const std::uint32_t size = little32(head, 4);
    if (head.starts_with("data")) {
      if (size < kUnknown32 && position + 8 + size > file.size())
        return cut_short(path, position + 8 + size, file.size());
      return {};
    }
    if (head.starts_with("fmt ")) {
      RETURN_IF_ERROR(check_wav_rate(file.at(position + 8, 16), path));
    }
    position += 8 + std::uint64_t{size} + size % 2;
  }
  return Status::invalid(path +
                         ": is a WAV file without samples (no data chunk): it is cut short, or damaged");
}

// Returns the total file size that the headers of the rarer formats promise. Returns 0 if the header has no
// size or was written to a pipe.
std::uint64_t promised_bytes(const FileBytes& file) {
  const std::string head = file.at(0, 32);
  const auto known = [](std::uint64_t size, std::uint64_t before) {
    return size < kUnknown32 ? size + before : 0;
  };
  if (head.starts_with("FORM") || head.starts_with("RIFX")) return known(big32(head, 4), 8);
  if (head.starts_with(".snd")) return known(big32(head, 8), big32(head, 4));
  if (head.substr(12, 4) == "ds64") return load_little<std::uint64_t>(head, 20) + 8;  // RF64, BW64
  if (head.starts_with("riff")) return load_little<std::uint64_t>(head, 16);          // W64
  return 0;
}

Status several_recordings(const std::string& path, const std::string& seen) {
  return invalid_error(
      "{}: contains several recordings in one file ({}), of which only the first would be read; join them "
      "into one, for example with `ffmpeg -i FILE FILE.flac`",
      path, seen);
}

struct OggPage {
  bool begins_stream = false;
  std::uint32_t serial = 0;
  std::uint64_t bytes = 0;
};

// Returns the page at a position; nullopt if no page begins there.
std::optional<OggPage> ogg_page(const FileBytes& file, std::uint64_t position) {
  const std::string head = file.at(position, 27 + 255);
  if (!head.starts_with(std::string_view("OggS\0", 5))) return std::nullopt;
  const std::size_t segments = byte_of(head, 26);
  OggPage page{(byte_of(head, 5) & 2) != 0, little32(head, 14), 27 + segments};
  for (std::size_t i = 0; i < segments; ++i) page.bytes += byte_of(head, 27 + i);
  return page;
}

// Returns true for a chained file: streams begin after the first pages, or the last page belongs to another
// stream. Only the first pages of a long file are read, so a chained file with equal serial numbers and a
// long first part is not recognized.
bool is_chained_ogg(const FileBytes& file, std::uint32_t last_serial) {
  constexpr int kPages = 1000;  // about 4 MB
  std::set<std::uint32_t> serials;
  bool first_pages = true;
  std::uint64_t position = 0;
  for (int i = 0; i < kPages; ++i) {
    const auto page = ogg_page(file, position);
    if (!page) break;
    if (page->begins_stream && !first_pages) return true;
    if (page->begins_stream) serials.insert(page->serial);
    first_pages = page->begins_stream;
    position += page->bytes;
  }
  return !serials.empty() && !serials.contains(last_serial);
}

// Checks that the last page is complete and belongs to one of the first streams.
Status check_ogg(const FileBytes& file, const std::string& path) {
  constexpr std::uint64_t largest = 27 + 255 + 255 * 255;
  const std::uint64_t from = file.size() > largest ? file.size() - largest : 0;
  const std::string end = file.at(from, static_cast<std::size_t>(file.size() - from));
  const std::size_t page = end.rfind(std::string_view("OggS\0", 5));
  if (page == std::string::npos) return {};
  const auto last = ogg_page(file, from + page);
  if (!last) return {};
  const std::uint64_t bytes = from + page + last->bytes;
  if (bytes > file.size()) return cut_short(path, bytes, file.size());
  if (is_chained_ogg(file, last->serial)) return several_recordings(path, "a chained OGG");
  return {};
}

// Returns the offset of the first MP3 frame, which follows an optional ID3 tag (which may hold a picture).
std::uint64_t behind_tag(const std::string& head) {
  if (!head.starts_with("ID3")) return 0;
  std::uint64_t size = 0;
  for (std::size_t i = 6; i < 10; ++i) size = size << 7 | (byte_of(head, i) & 0x7F);
  return 10 + size + ((byte_of(head, 5) & 0x10) != 0 ? 10 : 0);
}

bool is_frame(const std::string& head) {
  return byte_of(head, 0) == 0xFF && (byte_of(head, 1) & 0xE0) == 0xE0;
}

// Returns the offset of the length in the first frame of an MP3 file; nullopt if the frame has none.
std::optional<std::size_t> length_in_frame(const std::string& head) {
  const bool first_version = (byte_of(head, 1) & 8) != 0, mono = byte_of(head, 3) >> 6 == 3;
  const std::size_t at = 4 + (first_version ? (mono ? 17U : 32U) : (mono ? 9U : 17U));
  if (!is_frame(head) || (head.substr(at, 4) != "Xing" && head.substr(at, 4) != "Info")) return std::nullopt;
  return at;
}

// Returns true if another recording begins at the offset where the header of the first one ends: a frame with
// a length, or more data than the few frames by which a header may miscount. Tags do not count as a
// recording.
bool another_begins(const FileBytes& file, std::uint64_t end) {
  constexpr std::uint64_t kFewFrames = 8192;  // bytes
  const std::string head = file.at(end + behind_tag(file.at(end, 12)), 64);
  return length_in_frame(head) || (is_frame(head) && end + kFewFrames < file.size());
}

// Compares the file size with the byte count that most encoders store in the first frame.
Status check_mp3(const FileBytes& file, std::uint64_t start, const std::string& path) {
  const std::string head = file.at(start, 64);
  const std::optional<std::size_t> at = length_in_frame(head);
  if (!at) return {};
  const std::uint32_t flags = big32(head, *at + 4);
  if ((flags & 2) == 0) return {};
  const std::uint64_t promised = start + big32(head, *at + 8 + (flags & 1) * 4);
  if (promised > file.size() + file.size() / 100) return cut_short(path, promised, file.size());
  if (!another_begins(file, promised)) return {};
  return several_recordings(path, fmt::format("its header counts {} of its {} bytes", promised, file.size()));
}

Status unknown_format(const FileBytes& file, const std::string& path) {
  const std::string head = file.at(0, 12);
  std::string what;
  if (head.starts_with("version http")) {
    what = "it is a pointer of Git LFS: `git lfs pull` gets the file";
  } else if (head.substr(4, 4) == "ftyp") {
    what = "it is MP4 or M4A: convert it, for example with `ffmpeg -i FILE FILE.flac`";
  } else if (head.starts_with("\x1A\x45\xDF\xA3")) {
    what = "it is WebM or Matroska: convert it, for example with `ffmpeg -i FILE FILE.flac`";
  } else if (std::ranges::all_of(head,
                                 [](char c) { return (c >= 32 && c < 127) || c == '\n' || c == '\r'; })) {
    what = "it is text, beginning with '" + head.substr(0, head.find_first_of("\r\n")) + "'";
  } else {
    what = fmt::format("it begins with the bytes {:02x} {:02x} {:02x} {:02x}", byte_of(head, 0),
                       byte_of(head, 1), byte_of(head, 2), byte_of(head, 3));
  }
  return invalid_error("{}: unsupported audio format (expected WAV, FLAC, OGG or MP3): {}", path, what);
}

}  // namespace

Status check_header(const InputFile& input, const std::string& path) {
  const FileBytes file(input);
  if (file.size() == 0) return Status::invalid(path + ": is empty (0 bytes); omit it, or get it again");
  const std::string head = file.at(0, 12);
  if (head.starts_with("RIFF") && head.substr(8, 4) == "WAVE") return check_wav(file, path);
  if (head.starts_with("OggS")) return check_ogg(file, path);
  const std::uint64_t start = behind_tag(head);
  if (start > 0 ? !file.at(start, 4).starts_with("fLaC") : is_frame(head))
    return check_mp3(file, start, path);
  for (const std::string_view known :
       {"RIFX", "RF64", "BW64", "riff", "fLaC", "FORM", ".snd", "caff", "NIST", "ID3"}) {
    if (!head.starts_with(known)) continue;
    const std::uint64_t promised = promised_bytes(file);
    return promised > file.size() ? cut_short(path, promised, file.size()) : Status();
  }
  return unknown_format(file, path);
}

}  // namespace octavo_train
