// Opening a safetensors file: the header is checked against the size of the file before a tensor is handed
// out.
// SPDX-License-Identifier: MIT
#include "train/files/safetensors.h"

#include "train/files/safetensors_format.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace octavo::train {
namespace {

// The header's text, from a file that is at least this long.
Result<std::string_view> find_header(Bytes file) {
  if (file.size() < kLengthBytes) {
    return Status::invalid(std::to_string(file.size()) +
                           " bytes, too short for a safetensors file; it is torn or of another format");
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
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

// Sorts the entries as their bytes lie and checks that these fill `room` without holes or overlaps.
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

Result<Safetensors> Safetensors::open(const std::string& path) {
  const auto with_path = [&](const Status& status) {
    return Status(status.code(), path + ": " + status.message());
  };
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok()) return mapped.status();
  const Bytes file = mapped->bytes();
  const Result<std::string_view> text = find_header(file);
  if (!text.ok()) return with_path(text.status());
  Result<SafetensorsHeader> header = parse_header(*text);
  if (!header.ok()) return with_path(header.status());
  const Bytes data = file.subspan(kLengthBytes + text->size());
  if (Status status = check_layout(header->entries, data.size()); !status.ok()) return with_path(status);

  Safetensors opened;
  opened.file_ = std::move(*mapped);
  opened.metadata_ = std::move(header->metadata);
  for (HeaderEntry& entry : header->entries) {
    const Bytes bytes = data.subspan(static_cast<std::size_t>(entry.begin),
                                     static_cast<std::size_t>(entry.end - entry.begin));
    opened.tensors_.push_back({std::move(entry.name), std::move(entry.dtype), std::move(entry.shape), bytes});
  }

  const auto name_of = [&](std::size_t index) -> std::string_view { return opened.tensors_[index].name; };
  std::vector<std::size_t>& index = opened.by_name_;
  index.resize(opened.tensors_.size());
  std::iota(index.begin(), index.end(), std::size_t{0});
  std::ranges::sort(index, {}, name_of);
  const auto twin = std::ranges::adjacent_find(index, {}, name_of);
  if (twin != index.end())
    return with_path(Status::invalid("tensor " + quote_name(name_of(*twin)) + ": given twice"));
  return opened;
}

const StoredTensor* Safetensors::find(std::string_view name) const {
  const auto name_of = [&](std::size_t index) -> std::string_view { return tensors_[index].name; };
  const auto place = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return place != by_name_.end() && name_of(*place) == name ? &tensors_[*place] : nullptr;
}

}  // namespace octavo::train
