// Converts the entries and the pickle of a torch file to tensors; see torch_file.h.
// SPDX-License-Identifier: MIT
#include "train/formats/torch_file.h"

#include "train/base/status.h"
#include "train/formats/pickle.h"
#include "train/formats/safetensors_format.h"
#include "train/formats/zip.h"
#include "train/io/little_endian.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace octavo_train {
namespace {

constexpr std::string_view kPickleName = "/data.pkl";
// Strides can repeat bytes without limit. So all copies together may take at most the size of the file plus
// this number of bytes.
constexpr std::uint64_t kCopyAllowance = 16 << 20;

// Returns the folder that contains all entries, with its slash.
Result<std::string_view> find_root(std::span<const ZipEntry> entries) {
  std::string_view root;
  for (const ZipEntry& entry : entries) {
    if (!entry.name.ends_with(kPickleName)) continue;
    const std::string_view folder = entry.name.substr(0, entry.name.size() - kPickleName.size() + 1);
    if (folder.find('/') != folder.size() - 1) continue;
    if (!root.empty()) return Status::invalid("two files data.pkl, expected one");
    root = folder;
  }
  if (root.empty()) {
    return Status::invalid("a zip archive without NAME/data.pkl, expected one that torch.save wrote");
  }
  return root;
}

Status check_byte_order(std::span<const ZipEntry> entries, const std::string& root) {
  const ZipEntry* order = find_entry(entries, root + "byteorder");  // older versions of torch do not write it
  if (order == nullptr || as_text(order->bytes) == "little") return {};
  return Status::unsupported(quote_name(order->name) + ": " + quote_name(as_text(order->bytes)) +
                             ", expected \"little\"");
}

Result<Bytes> storage_bytes(std::span<const ZipEntry> entries, const std::string& root,
                            const PickledStorage& storage) {
  const std::string name = root + "data/" + std::string(storage.key);
  const ZipEntry* entry = find_entry(entries, name);
  if (entry == nullptr) return Status::invalid("its storage " + quote_name(name) + " is not in the archive");
  const std::array<std::int64_t, 1> extent = {storage.elements};
  const std::optional<std::uint64_t> size = tensor_bytes(storage.dtype, extent);
  if (!size || *size != entry->bytes.size()) {
    return Status::invalid("its storage " + quote_name(name) + " has " + std::to_string(entry->bytes.size()) +
                           " bytes, expected " + std::to_string(storage.elements) + " elements of " +
                           std::string(storage.dtype));
  }
  return entry->bytes;
}

// Returns the number of elements from the tensor's first to its last element in the storage; nullopt if a
// stride is negative or the number does not fit. REQUIRES: tensor_bytes() returned a number for the tensor.
std::optional<std::uint64_t> extent_of(const PickledTensor& tensor) {
  constexpr std::uint64_t kLimit = INT64_MAX;
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.strides[i] < 0) return std::nullopt;
    const auto steps = static_cast<std::uint64_t>(tensor.shape[i] - 1);
    const auto stride = static_cast<std::uint64_t>(tensor.strides[i]);
    if (stride != 0 && steps > (kLimit - last) / stride) return std::nullopt;
    last += steps * stride;
  }
  return last + 1;
}

bool is_contiguous(const PickledTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

// Returns a contiguous copy of a tensor. REQUIRES: the tensor is not empty, and all its elements are inside
// its storage.
std::vector<std::byte> contiguous(const PickledTensor& tensor, const std::byte* first, std::size_t bytes) {
  const std::size_t size = element_size(tensor.storage.dtype);
  std::vector<std::byte> copy(bytes);
  std::vector<std::int64_t> index(tensor.shape.size(), 0);
  std::int64_t from = 0;
  for (std::size_t to = 0; to < bytes; to += size) {
    std::memcpy(copy.data() + to, first + static_cast<std::size_t>(from) * size, size);
    for (std::size_t i = index.size(); i-- > 0;) {
      if (tensor.shape[i] == 1) continue;  // its stride means nothing and may be any number
      from += tensor.strides[i];
      if (++index[i] < tensor.shape[i]) break;
      from -= tensor.strides[i] * tensor.shape[i];
      index[i] = 0;
    }
  }
  return copy;
}

// The bytes of a tensor's elements in its storage; checked.
struct Range {
  Bytes bytes;
  std::size_t size = 0;  // bytes of the contiguous tensor
};

Result<Range> range_of(const PickledTensor& tensor, Bytes storage) {
  const std::string what = std::string(tensor.storage.dtype) + " " + shape_text(tensor.shape) +
                           " with strides " + shape_text(tensor.strides) + " at element " +
                           std::to_string(tensor.offset);
  const std::optional<std::uint64_t> bytes = tensor_bytes(tensor.storage.dtype, tensor.shape);
  if (!bytes) return Status::invalid(what + ", expected extents of 0 or more and less than 2^63 bytes");
  const auto elements = static_cast<std::uint64_t>(tensor.storage.elements);
  const std::uint64_t extent = *bytes == 0 ? 0 : extent_of(tensor).value_or(UINT64_MAX);
  if (tensor.offset < 0 || static_cast<std::uint64_t>(tensor.offset) > elements ||
      extent > elements - static_cast<std::uint64_t>(tensor.offset)) {
    return Status::invalid(what + " does not fit its storage of " + std::to_string(elements) + " elements");
  }
  const std::size_t size = element_size(tensor.storage.dtype);
  return Range{storage.subspan(static_cast<std::size_t>(tensor.offset) * size,
                               static_cast<std::size_t>(extent) * size),
               static_cast<std::size_t>(*bytes)};
}

}  // namespace

Result<TorchFile> TorchFile::read(Bytes file) {
  if (!is_zip(file)) {
    return Status::invalid(
        "not a zip archive; files of torch before 1.6 are not read: load them there and save again");
  }
  const Result<std::vector<ZipEntry>> entries = read_zip(file);
  if (!entries.ok()) return entries.status();
  const Result<std::string_view> found = find_root(*entries);
  if (!found.ok()) return found.status();
  const std::string root(*found);
  RETURN_IF_ERROR(check_byte_order(*entries, root));
  const ZipEntry* pickle = find_entry(*entries, root + std::string(kPickleName.substr(1)));
  const Result<std::vector<PickledTensor>> pickled = read_pickle(pickle->bytes);
  if (!pickled.ok()) return placed(quote_name(pickle->name), pickled.status());

  TorchFile opened;
  std::vector<StoredTensor> tensors;
  std::uint64_t copied = 0;
  for (const PickledTensor& tensor : *pickled) {
    const std::string what = "tensor " + quote_name(tensor.name);
    const Result<Bytes> storage = storage_bytes(*entries, root, tensor.storage);
    if (!storage.ok()) return placed(what, storage.status());
    const Result<Range> range = range_of(tensor, *storage);
    if (!range.ok()) return placed(what, range.status());
    Bytes bytes = range->bytes;
    if (range->size != 0 && !is_contiguous(tensor)) {
      const std::uint64_t limit = file.size() + kCopyAllowance;
      if (range->size > limit - copied) {
        return placed(what,
                      Status::invalid("its strides repeat elements: " + std::to_string(range->size) +
                                      " bytes to copy, expected at most " + std::to_string(limit - copied)));
      }
      copied += range->size;
      bytes = opened.copies_.emplace_back(contiguous(tensor, bytes.data(), range->size));
    }
    tensors.push_back({std::string(tensor.name), std::string(tensor.storage.dtype), tensor.shape, bytes});
  }

  Result<TensorList> stored = TensorList::of(std::move(tensors));
  if (!stored.ok()) return stored.status();
  opened.tensors_ = std::move(*stored);
  return opened;
}

Result<TorchFile> TorchFile::open(const std::string& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped.ok()) return mapped.status();
  Result<TorchFile> opened = read(mapped->bytes());
  if (!opened.ok()) return placed(path, opened.status());
  opened->file_ = std::move(*mapped);
  return opened;
}

}  // namespace octavo_train
