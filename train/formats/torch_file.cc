// Converts the entries and the pickle of a torch file to tensors, and writes torch files: the layout is
// computed first, then the bytes are fetched one tensor at a time. See torch_file.h.
// SPDX-License-Identifier: MIT
#include "train/formats/torch_file.h"

#include "train/base/utf8.h"
#include "train/formats/pickle.h"
#include "train/formats/zip.h"
#include "train/io/little_endian.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

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
  if (root.empty())
    return Status::invalid("a zip archive without NAME/data.pkl, expected one that torch.save wrote");
  return root;
}

Status check_byte_order(std::span<const ZipEntry> entries, const std::string& root) {
  const ZipEntry* order = find_entry(entries, root + "byteorder");  // older versions of torch do not write it
  if (order == nullptr || as_text(order->bytes) == "little") return {};
  return unsupported_error("{}: {}, expected \"little\"", quote_name(order->name),
                           quote_name(as_text(order->bytes)));
}

Result<Bytes> storage_bytes(std::span<const ZipEntry> entries, const std::string& root,
                            const PickledStorage& storage) {
  const std::string name = root + "data/" + std::string(storage.key);
  const ZipEntry* entry = find_entry(entries, name);
  if (entry == nullptr) return invalid_error("its storage {} is not in the archive", quote_name(name));
  const std::array<std::int64_t, 1> extent = {storage.elements};
  const std::optional<std::uint64_t> size = tensor_bytes(storage.dtype, extent);
  if (!size || *size != entry->bytes.size()) {
    return invalid_error("its storage {} has {} bytes, expected {} elements of {}", quote_name(name),
                         entry->bytes.size(), storage.elements, storage.dtype);
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
  const std::string what = fmt::format("{} {} with strides {} at element {}", tensor.storage.dtype,
                                       shape_text(tensor.shape), shape_text(tensor.strides), tensor.offset);
  const std::optional<std::uint64_t> bytes = tensor_bytes(tensor.storage.dtype, tensor.shape);
  if (!bytes) return Status::invalid(what + ", expected extents of 0 or more and less than 2^63 bytes");
  const auto elements = static_cast<std::uint64_t>(tensor.storage.elements);
  const std::uint64_t extent = *bytes == 0 ? 0 : extent_of(tensor).value_or(UINT64_MAX);
  if (tensor.offset < 0 || static_cast<std::uint64_t>(tensor.offset) > elements ||
      extent > elements - static_cast<std::uint64_t>(tensor.offset))
    return invalid_error("{} does not fit its storage of {} elements", what, elements);
  const std::size_t size = element_size(tensor.storage.dtype);
  return Range{storage.subspan(static_cast<std::size_t>(tensor.offset) * size,
                               static_cast<std::size_t>(extent) * size),
               static_cast<std::size_t>(*bytes)};
}

Status check_torch_source(const TensorSource& source, std::set<std::string_view>& names) {
  const std::string what = "tensor " + quote_name(source.name) + ": ";
  if (!is_utf8(source.name))
    return Status::invalid(what + "the name is not UTF-8, which the format requires");
  RETURN_IF_ERROR(check_unique(source, names));
  if (torch_storage(source.dtype).empty()) {
    return unsupported_error("{}torch has no storage class for dtype {}; write it as safetensors", what,
                             quote_name(source.dtype));
  }
  if (source.shape.size() > kDimensionLimit || !tensor_bytes(source.dtype, source.shape)) {
    return invalid_error("{}shape {}, expected at most {} extents of 0 or more and less than 2^63 bytes",
                         what, shape_text(source.shape), kDimensionLimit);
  }
  return {};
}

Status add_text(ZipWriter& zip, const std::string& name, const std::string& text) {
  RETURN_IF_ERROR(zip.begin(name, text.size()));
  RETURN_IF_ERROR(zip.add(std::as_bytes(std::span(text))));
  return zip.end();
}

// Adds a tensor. Calls `source.bytes` only if bytes are written, not if they are only counted.
Status add_tensor(ZipWriter& zip, const std::string& name, const TensorSource& source) {
  const std::uint64_t size = tensor_bytes(source.dtype, source.shape).value_or(0);
  RETURN_IF_ERROR(zip.begin(name, size));
  if (zip.counts_only()) {
    zip.skip(size);
    return zip.end();
  }
  ASSIGN_OR_RETURN(const Bytes bytes, with_context("tensor " + quote_name(source.name), bytes_of(source)));
  RETURN_IF_ERROR(zip.add(bytes));
  return zip.end();
}

Status add_all(ZipWriter& zip, const TorchFileLayout& plan, std::span<const TensorSource> sources) {
  RETURN_IF_ERROR(add_text(zip, plan.root + "/data.pkl", plan.pickle));
  RETURN_IF_ERROR(add_text(zip, plan.root + "/byteorder", "little"));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    RETURN_IF_ERROR(add_tensor(zip, fmt::format("{}/data/{}", plan.root, i), sources[i]));
  }
  RETURN_IF_ERROR(add_text(zip, plan.root + "/version", "3\n"));
  return zip.finish();
}

// Builds the bytes of a pickle.
class PickleText {
 public:
  PickleText& operator<<(Opcode opcode) {
    text_ += static_cast<char>(opcode);
    return *this;
  }
  PickleText& operator<<(std::string_view text) {
    *this << Opcode::binunicode;
    append_little(text_, static_cast<std::uint32_t>(text.size()));
    text_ += text;
    return *this;
  }
  PickleText& operator<<(std::int64_t number) {  // 0 or more
    if (number < 256) {
      *this << Opcode::binint1;
      append_little(text_, static_cast<std::uint8_t>(number));
    } else if (number <= INT32_MAX) {
      *this << Opcode::binint;
      append_little(text_, static_cast<std::uint32_t>(number));
    } else {
      *this << Opcode::long1;
      append_little(text_, std::uint8_t{8});
      append_little(text_, static_cast<std::uint64_t>(number));
    }
    return *this;
  }
  PickleText& global(std::string_view module, std::string_view name) {
    *this << Opcode::global;
    text_ += std::string(module) + "\n" + std::string(name) + "\n";
    return *this;
  }
  PickleText& ordered_dict() {
    return global("collections", "OrderedDict") << Opcode::empty_tuple << Opcode::reduce;
  }
  PickleText& numbers(std::span<const std::int64_t> values) {
    *this << Opcode::mark;
    for (const std::int64_t value : values) *this << value;
    return *this << Opcode::tuple;
  }
  PickleText& protocol() {
    *this << Opcode::proto;
    append_little(text_, std::uint8_t{2});
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::vector<std::int64_t> strides_of(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    // This avoids an overflow: a shape with an extent of 0 may have any other extents.
    const std::int64_t extent = std::max<std::int64_t>(shape[i], 1);
    stride = stride > INT64_MAX / extent ? INT64_MAX : stride * extent;
  }
  return strides;
}

void put_tensor(PickleText& pickle, const TensorSource& source, std::size_t index) {
  const std::uint64_t bytes = tensor_bytes(source.dtype, source.shape).value_or(0);
  pickle << std::string_view(source.name);
  pickle.global("torch._utils", "_rebuild_tensor_v2")
      << Opcode::mark << Opcode::mark << std::string_view("storage");
  pickle.global("torch", torch_storage(source.dtype))
      << std::string_view(std::to_string(index)) << std::string_view("cpu")
      << static_cast<std::int64_t>(bytes / element_size(source.dtype)) << Opcode::tuple << Opcode::binpersid
      << std::int64_t{0};
  pickle.numbers(source.shape).numbers(strides_of(source.shape)) << Opcode::newfalse;
  pickle.ordered_dict() << Opcode::tuple << Opcode::reduce;
}

// Returns the pickle of an OrderedDict of contiguous tensors, for torch.load(weights_only=True). The key of
// each storage is the tensor's index in `sources`. It has no memo, because texts and globals cost less than
// their bookkeeping. REQUIRES: dtypes with a storage class in torch, and shapes that tensor_bytes() accepts.
std::string pickle_of(std::span<const TensorSource> sources) {
  PickleText pickle;
  pickle.protocol().ordered_dict() << Opcode::mark;
  for (std::size_t i = 0; i < sources.size(); ++i) put_tensor(pickle, sources[i], i);
  pickle << Opcode::setitems << Opcode::stop;
  return pickle.take();
}

}  // namespace

Result<TorchFile> TorchFile::read(Bytes file) {
  if (!is_zip(file)) {
    return Status::invalid(
        "not a zip archive; files of torch before 1.6 are not read: load them there and save again");
  }
  ASSIGN_OR_RETURN(const std::vector<ZipEntry> entries, read_zip(file));
  ASSIGN_OR_RETURN(const std::string_view found, find_root(entries));
  const std::string root(found);
  RETURN_IF_ERROR(check_byte_order(entries, root));
  const ZipEntry* pickle = find_entry(entries, root + std::string(kPickleName.substr(1)));
  ASSIGN_OR_RETURN(const std::vector<PickledTensor> pickled,
                   with_context(quote_name(pickle->name), read_pickle(pickle->bytes)));

  TorchFile opened;
  std::vector<StoredTensor> tensors;
  std::uint64_t copied = 0;
  for (const PickledTensor& tensor : pickled) {
    const std::string what = "tensor " + quote_name(tensor.name);
    ASSIGN_OR_RETURN(const Bytes storage, with_context(what, storage_bytes(entries, root, tensor.storage)));
    ASSIGN_OR_RETURN(const Range range, with_context(what, range_of(tensor, storage)));
    Bytes bytes = range.bytes;
    if (range.size != 0 && !is_contiguous(tensor)) {
      const std::uint64_t limit = file.size() + kCopyAllowance;
      if (range.size > limit - copied) {
        return with_context(
            what, invalid_error("its strides repeat elements: {} bytes to copy, expected at most {}",
                                range.size, limit - copied));
      }
      copied += range.size;
      bytes = opened.copies_.emplace_back(contiguous(tensor, bytes.data(), range.size));
    }
    tensors.push_back({std::string(tensor.name), std::string(tensor.storage.dtype), tensor.shape, bytes});
  }

  ASSIGN_OR_RETURN(TensorList stored, TensorList::of(std::move(tensors)));
  opened.tensors_ = std::move(stored);
  return opened;
}

Result<TorchFile> TorchFile::open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
  ASSIGN_OR_RETURN(TorchFile opened, with_context(path, read(mapped.bytes())));
  opened.file_ = std::move(mapped);
  return opened;
}

Result<TorchFileLayout> plan_torch_file(std::span<const TensorSource> sources, std::string root) {
  std::set<std::string_view> names;
  std::uint64_t bytes = 0;
  if (sources.size() > kTensorLimit)
    return invalid_error("{} tensors, expected at most {}", sources.size(), kTensorLimit);
  for (const TensorSource& source : sources) {
    RETURN_IF_ERROR(check_torch_source(source, names));
    const std::uint64_t size = tensor_bytes(source.dtype, source.shape).value_or(0);
    if (size > INT64_MAX / 2 - bytes)
      return Status::invalid("the tensors have more than 2^62 bytes together");
    bytes += size;
  }
  TorchFileLayout plan;
  plan.root = std::move(root);
  plan.pickle = pickle_of(sources);
  if (plan.pickle.size() > kPickleLimit) {
    return invalid_error("names and shapes take {}, expected at most {}", size_text(plan.pickle.size()),
                         size_text(kPickleLimit));
  }
  ZipWriter counter(nullptr);
  RETURN_IF_ERROR(add_all(counter, plan, sources));
  plan.size = counter.size();
  return plan;
}

Status write_planned(const ByteSink& sink, const TorchFileLayout& plan,
                     std::span<const TensorSource> sources) {
  ZipWriter zip(&sink);
  return add_all(zip, plan, sources);
}

Status write_torch_file(const std::string& path, std::span<const TensorSource> sources) {
  ASSIGN_OR_RETURN(const TorchFileLayout plan, with_context(path, plan_torch_file(sources)));
  return write_atomically(path, plan.size, [&](OutputFile& file) {
    const ByteSink sink = [&](std::span<const std::byte> bytes) { return file.write(bytes); };
    return with_context(path, write_planned(sink, plan, sources));
  });
}

}  // namespace octavo_train
