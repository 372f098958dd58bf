// Decompresses with zlib, which checks each member's CRC and length; see gzip.h.
// SPDX-License-Identifier: MIT
#include "train/formats/gzip.h"

#include "train/io/files.h"
#include "train/io/little_endian.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

namespace octavo_train {
namespace {

constexpr std::size_t kFirstRoom = 1 << 16;
constexpr int kGzipOnly = 16 + MAX_WBITS;

class Inflater {
 public:
  explicit Inflater(std::span<const std::byte> file) : file_(file) {
    started_ = inflateInit2(&stream_, kGzipOnly) == Z_OK;
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() {
    if (started_) inflateEnd(&stream_);
  }

  // Calls inflate() once, advances by the bytes that it used and produced, and returns zlib's code.
  int round(HeapBytes& out) {
    if (!started_) return Z_MEM_ERROR;
    const std::span<const std::byte> rest = file_.subspan(at_);
    const std::span<std::byte> room = out.room();
    stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(rest.data()));
    stream_.avail_in = clamp(rest.size());
    stream_.next_out = reinterpret_cast<Bytef*>(room.data());
    stream_.avail_out = clamp(room.size());
    const uInt in = stream_.avail_in;
    const uInt space = stream_.avail_out;
    const int code = inflate(&stream_, Z_NO_FLUSH);
    at_ += in - stream_.avail_in;
    out.take(space - stream_.avail_out);
    return code;
  }

  // Returns true if another member follows. Otherwise skips zeros, which may pad the last member.
  bool next_member() {
    const auto rest = file_.subspan(at_);
    if (is_gzip(rest)) return inflateReset(&stream_) == Z_OK;
    while (at_ < file_.size() && file_[at_] == std::byte{0}) ++at_;
    return false;
  }

  [[nodiscard]] std::size_t at() const { return at_; }
  [[nodiscard]] bool at_end() const { return at_ == file_.size(); }

 private:
  static uInt clamp(std::size_t size) {
    return static_cast<uInt>(std::min<std::size_t>(size, std::numeric_limits<uInt>::max()));
  }

  std::span<const std::byte> file_;
  std::size_t at_ = 0;
  z_stream stream_{};
  bool started_ = false;
};

}  // namespace

bool HeapBytes::grow(std::size_t limit) {
  const std::size_t wanted =
      std::min(limit, std::max(kFirstRoom, capacity_ > limit / 2 ? limit : 2 * capacity_));
  // realloc() is used because it moves the pages of a large block and not their bytes.
  auto* moved = static_cast<std::byte*>(std::realloc(data_.get(), wanted));
  if (moved == nullptr) return false;
  static_cast<void>(data_.release());
  data_.reset(moved);
  capacity_ = wanted;
  return true;
}

bool is_gzip(std::span<const std::byte> file) {
  return file.size() >= 2 && file[0] == std::byte{0x1f} && file[1] == std::byte{0x8b};
}

Result<HeapBytes> inflate_gzip(std::span<const std::byte> file, std::uint64_t limit) {
  limit = std::min(limit, kInflatedAllowance + kInflatedRatio * std::uint64_t{file.size()});
  const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(limit, SIZE_MAX - 1)) + 1;
  Inflater inflater(file);
  HeapBytes out;
  while (true) {
    if (out.room().empty() && !out.grow(most)) {
      return failed_error(
          "not enough memory to decompress more than {}; decompress the file with gunzip and use the result",
          size_text(out.bytes().size()));
    }
    const std::size_t before = inflater.at();
    const std::size_t had = out.bytes().size();
    const int code = inflater.round(out);
    if (out.bytes().size() > limit) {
      return invalid_at(
          inflater.at(),
          "the file unpacks to more than {}, which is the limit; unpack it with gunzip if you trust it",
          size_text(limit));
    }
    if (code == Z_STREAM_END) {
      if (inflater.next_member()) continue;
      if (inflater.at_end()) return out;
      return invalid_at(inflater.at(), "the bytes after the compressed data are not gzip");
    }
    if (code == Z_MEM_ERROR) return Status::failed("not enough memory to decompress gzip");
    const bool stuck = inflater.at() == before && out.bytes().size() == had;
    if (code == Z_BUF_ERROR || (code == Z_OK && stuck)) {
      if (out.room().empty()) continue;
      return invalid_at(inflater.at(), "the compressed data is cut short");
    }
    if (code != Z_OK) return invalid_at(inflater.at(), "the compressed data is damaged");
  }
}

}  // namespace octavo_train
