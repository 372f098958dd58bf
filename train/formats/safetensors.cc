// Opens safetensors files: the header is checked against the size of the file before a tensor is returned.
// SPDX-License-Identifier: MIT
#include "train/formats/safetensors.h"

#include "train/base/status.h"
#include "train/formats/safetensors_format.h"
#include "train/io/little_endian.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace octavo_train {
namespace {

// Returns the header's text, after checking that the file contains all of it.
Result<std::string_view> find_header(Bytes file) {
  if (file.size() < kLengthBytes) {
    return Status::invalid(std::to_string(file.size()) +
                           " bytes, too short for a safetensors file; it is torn or of another format");
  }
  const auto length = load_little<std::uint64_t>(file, 0);
  if (const std::uint64_t room = file.size() - kLengthBytes; length > std::min(room, kHeaderLimit)) {
    return Status::invalid("its first bytes say that the header has " + std::to_string(length) +
                           " bytes, expected at most " + std::to_string(std::min(room, kHeaderLimit)) +
                           "; the file is torn or of another format");
  }
  const Bytes header = file.subspan(kLengthBytes, static_cast<std::size_t>(length));
  if (header.empty() || header.front() != std::byte{'{'}) {
    return Status::invalid("its header does not begin with '{'; the file is torn or of another format");
  }
  return std::string_view(reinterpret_cast<const char*>(header.data()), header.size());
}

// Sorts the entries by the position of their bytes, and checks that these fill `room` bytes without gaps or
// overlaps.
Status check_layout(std::vector<HeaderEntry>& entries, std::uint64_t room) {
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::uint64_t at = 0;
  for (const HeaderEntry& entry : entries) {
    const std::string what = "tensor " + quote_name(entry.name) + ": ";
    if (element_size(entry.dtype) == 0) {
      return Status::unsupported(what + "dtype " + quote_name(entry.dtype) + ", expected one of " +
                                 known_dtypes());
    }
    const std::optional<std::uint64_t> bytes = tensor_bytes(entry.dtype, entry.shape);
    const std::string range = std::to_string(entry.begin) + " to " + std::to_string(entry.end);
    if (!bytes || entry.end < entry.begin || entry.end - entry.begin != *bytes) {
      return Status::invalid(what + "bytes " + range + " do not fit " + entry.dtype + " " +
                             shape_text(entry.shape) +
                             (bytes ? ", which takes " + std::to_string(*bytes) : std::string()));
    }
    if (entry.begin != at) {
      return Status::invalid(
          what + "bytes " + range + ", expected to begin at " + std::to_string(at) +
          (entry.begin < at ? ": it overlaps the tensor before" : ": there is a hole before"));
    }
    at = entry.end;
  }
  if (at == room) return {};
  return Status::invalid(std::to_string(room) + " bytes follow the header, which describes " +
                         std::to_string(at) +
                         (room < at ? ": the file is cut short" : ": the rest is unknown"));
}

}  // namespace

Result<Safetensors> Safetensors::read(Bytes file) {
  const Result<std::string_view> text = find_header(file);
  if (!text.ok()) return text.status();
  Result<SafetensorsHeader> header = parse_header(*text);
  if (!header.ok()) return header.status();
  const Bytes data = file.subspan(kLengthBytes + text->size());
  RETURN_IF_ERROR(check_layout(header->entries, data.size()));

  std::vector<StoredTensor> tensors;
  for (HeaderEntry& entry : header->entries) {
    const Bytes bytes = data.subspan(static_cast<std::size_t>(entry.begin),
                                     static_cast<std::size_t>(entry.end - entry.begin));
    tensors.push_back({std::move(entry.name), std::move(entry.dtype), std::move(entry.shape), bytes});
  }
  Result<TensorList> stored = TensorList::of(std::move(tensors));
  if (!stored.ok()) return stored.status();
  Safetensors opened;
  opened.tensors_ = std::move(*stored);
  opened.metadata_ = std::move(header->metadata);
  return opened;
}

Result<Safetensors> Safetensors::open(const std::string& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok()) return mapped.status();
  Result<Safetensors> opened = read(mapped->bytes());
  if (!opened.ok()) return placed(path, opened.status());
  opened->file_ = std::move(*mapped);
  return opened;
}

}  // namespace octavo_train
