// Writing a torch file as torch does it: storages aligned to 64 bytes, so that they can be mapped; sizes
// behind the bytes, because those come only once; zip64 where 32 bits end. See torch_file.h.
// SPDX-License-Identifier: MIT
#include "train/files/byte_order.h"
#include "train/files/output_file.h"
#include "train/files/pickle.h"
#include "train/files/pickle_opcodes.h"
#include "train/files/safetensors_format.h"
#include "train/files/torch_file.h"
#include "train/files/zip.h"

#include <zlib.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <set>

namespace octavo::train {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint32_t kIn64 = 0xffffffff;
constexpr std::uint16_t kFlags = 0x0808;  // sizes follow the bytes; names are UTF-8

// A pickle as it grows.
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
    stride *= std::max<std::int64_t>(shape[i], 1);
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

std::string pickle_of(std::span<const TensorSource> sources) {
  PickleText pickle;
  pickle.protocol().ordered_dict() << Opcode::mark;
  for (std::size_t i = 0; i < sources.size(); ++i) put_tensor(pickle, sources[i], i);
  pickle << Opcode::setitems << Opcode::stop;
  return pickle.take();
}

bool is_utf8(const std::string& text) {
  try {
    static_cast<void>(nlohmann::json(text).dump());
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

Status check_source(const TensorSource& source, std::set<std::string_view>& names) {
  const std::string what = "tensor " + quote_name(source.name) + ": ";
  if (!is_utf8(source.name))
    return Status::invalid(what + "the name is not UTF-8, which the format asks for");
  if (!names.insert(source.name).second) return Status::invalid(what + "given twice; names must differ");
  if (!source.bytes) return Status::invalid(what + "has no function that gives its bytes");
  if (torch_storage(source.dtype).empty()) {
    return Status::unsupported(what + "torch has no storage class for dtype " + quote_name(source.dtype) +
                               "; write it as safetensors");
  }
  if (source.shape.size() > kDimensionLimit || !tensor_bytes(source.dtype, source.shape)) {
    return Status::invalid(what + "shape " + shape_text(source.shape) + ", expected at most " +
                           std::to_string(kDimensionLimit) +
                           " extents of 0 or more and less than 2^63 bytes");
  }
  return {};
}

// Writes entries and remembers them for the directory. Without a sink it only counts.
class ZipWriter {
 public:
  explicit ZipWriter(const ByteSink* sink) : sink_(sink) {}

  Status begin(const std::string& name, std::uint64_t size) {
    entries_.push_back({name, size, at_, 0});
    const bool large = size >= kIn64;
    std::string extra;
    if (large) {
      append_little(extra, kZip64Extra);
      append_little(extra, std::uint16_t{16});
      extra.append(16, '\0');
    }
    // torch's own padding: a field `FB` whose content nobody reads.
    const std::uint64_t bare = at_ + kZipLocalSize + name.size() + extra.size() + 4;
    const auto padding = static_cast<std::uint16_t>((kAlignment - bare % kAlignment) % kAlignment);
    extra += "FB";
    append_little(extra, padding);
    extra.append(padding, 'Z');
    std::string header;
    append_little(header, kZipLocal);
    append_little(header, version_of(large));
    append_little(header, kFlags);
    header.append(20 - 4 - 4 + 6, '\0');  // stored; time, date, CRC and sizes are 0
    append_little(header, static_cast<std::uint16_t>(name.size()));
    append_little(header, static_cast<std::uint16_t>(extra.size()));
    return put(header + name + extra);
  }

  Status add(std::span<const std::byte> bytes) {
    std::uint32_t& crc = entries_.back().crc;
    for (std::span<const std::byte> rest = bytes; !rest.empty();) {
      const auto piece = rest.first(std::min<std::size_t>(rest.size(), 1 << 20));
      crc = static_cast<std::uint32_t>(
          crc32(crc, reinterpret_cast<const Bytef*>(piece.data()), static_cast<uInt>(piece.size())));
      rest = rest.subspan(piece.size());
    }
    return put(bytes);
  }

  // As if the bytes had been added.
  void skip(std::uint64_t size) { at_ += size; }

  Status end() {
    const Entry& entry = entries_.back();
    std::string descriptor;
    append_little(descriptor, kZipDescriptor);
    append_little(descriptor, entry.crc);
    for (int i = 0; i < 2; ++i) {
      if (entry.size >= kIn64) {
        append_little(descriptor, entry.size);
      } else {
        append_little(descriptor, static_cast<std::uint32_t>(entry.size));
      }
    }
    return put(descriptor);
  }

  Status finish() {
    const std::uint64_t directory = at_;
    for (const Entry& entry : entries_) {
      if (Status status = put(central(entry)); !status.ok()) return status;
    }
    const std::uint64_t end = at_;
    const std::uint64_t count = entries_.size();
    std::string text;
    append_little(text, kZip64End);
    append_little(text, std::uint64_t{kZip64EndSize - 12});
    append_little(text, version_of(true));
    append_little(text, version_of(true));
    text.append(8, '\0');  // one disk
    for (const std::uint64_t number : {count, count, end - directory, directory}) append_little(text, number);
    append_little(text, kZip64Locator);
    text.append(4, '\0');
    append_little(text, end);
    append_little(text, std::uint32_t{1});
    append_little(text, kZipEnd);
    text.append(4, '\0');
    for (int i = 0; i < 2; ++i)
      append_little(text, static_cast<std::uint16_t>(std::min<std::uint64_t>(count, 0xffff)));
    append_little(text, in32(end - directory));
    append_little(text, in32(directory));
    text.append(2, '\0');
    return put(text);
  }

  [[nodiscard]] std::uint64_t size() const { return at_; }

 private:
  struct Entry {
    std::string name;
    std::uint64_t size = 0;
    std::uint64_t header = 0;
    std::uint32_t crc = 0;
  };

  static std::uint16_t version_of(bool zip64) { return zip64 ? 45 : 20; }
  static std::uint32_t in32(std::uint64_t number) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(number, kIn64));
  }

  static std::string central(const Entry& entry) {
    std::string numbers;
    if (entry.size >= kIn64) {
      append_little(numbers, entry.size);
      append_little(numbers, entry.size);
    }
    if (entry.header >= kIn64) append_little(numbers, entry.header);
    std::string extra;
    if (!numbers.empty()) {
      append_little(extra, kZip64Extra);
      append_little(extra, static_cast<std::uint16_t>(numbers.size()));
      extra += numbers;
    }
    std::string record;
    append_little(record, kZipCentral);
    append_little(record, version_of(!extra.empty()));
    append_little(record, version_of(!extra.empty()));
    append_little(record, kFlags);
    record.append(6, '\0');  // stored; time and date
    append_little(record, entry.crc);
    append_little(record, in32(entry.size));
    append_little(record, in32(entry.size));
    append_little(record, static_cast<std::uint16_t>(entry.name.size()));
    append_little(record, static_cast<std::uint16_t>(extra.size()));
    record.append(10, '\0');  // no comment, one disk, no attributes
    append_little(record, in32(entry.header));
    return record + entry.name + extra;
  }

  Status put(std::span<const std::byte> bytes) {
    at_ += bytes.size();
    return sink_ == nullptr ? Status() : (*sink_)(bytes);
  }
  Status put(const std::string& text) { return put(std::as_bytes(std::span(text))); }

  const ByteSink* sink_;
  std::uint64_t at_ = 0;
  std::vector<Entry> entries_;
};

Status add_text(ZipWriter& zip, const std::string& name, const std::string& text) {
  if (Status status = zip.begin(name, text.size()); !status.ok()) return status;
  if (Status status = zip.add(std::as_bytes(std::span(text))); !status.ok()) return status;
  return zip.end();
}

// `source.bytes` is called only if there is something to write.
Status add_tensor(ZipWriter& zip, const std::string& name, const TensorSource& source, bool write) {
  const std::uint64_t size = tensor_bytes(source.dtype, source.shape).value_or(0);
  if (Status status = zip.begin(name, size); !status.ok()) return status;
  if (!write) {
    zip.skip(size);
    return zip.end();
  }
  const std::string what = "tensor " + quote_name(source.name);
  const Result<Bytes> bytes = source.bytes();
  if (!bytes.ok()) return placed(what, bytes.status());
  if (bytes->size() != size) {
    return placed(what, Status::invalid(std::to_string(bytes->size()) + " bytes given, expected " +
                                        std::to_string(size) + " for " + source.dtype + " " +
                                        shape_text(source.shape)));
  }
  if (Status status = zip.add(*bytes); !status.ok()) return status;
  return zip.end();
}

Status add_all(ZipWriter& zip, const TorchPlan& plan, std::span<const TensorSource> sources, bool write) {
  if (Status status = add_text(zip, plan.root + "/data.pkl", plan.pickle); !status.ok()) return status;
  if (Status status = add_text(zip, plan.root + "/byteorder", "little"); !status.ok()) return status;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::string name = plan.root + "/data/" + std::to_string(i);
    if (Status status = add_tensor(zip, name, sources[i], write); !status.ok()) return status;
  }
  if (Status status = add_text(zip, plan.root + "/version", "3\n"); !status.ok()) return status;
  return zip.finish();
}

}  // namespace

Result<TorchPlan> plan_torch_file(std::span<const TensorSource> sources, std::string root) {
  std::set<std::string_view> names;
  std::uint64_t bytes = 0;
  if (sources.size() > kTensorLimit) {
    return Status::invalid(std::to_string(sources.size()) + " tensors, expected at most " +
                           std::to_string(kTensorLimit));
  }
  for (const TensorSource& source : sources) {
    if (Status status = check_source(source, names); !status.ok()) return status;
    const std::uint64_t size = tensor_bytes(source.dtype, source.shape).value_or(0);
    if (size > INT64_MAX / 2 - bytes)
      return Status::invalid("the tensors have more than 2^62 bytes together");
    bytes += size;
  }
  TorchPlan plan;
  plan.root = std::move(root);
  plan.pickle = pickle_of(sources);
  if (plan.pickle.size() > kPickleLimit) {
    return Status::invalid("names and shapes take " + size_text(plan.pickle.size()) + ", expected at most " +
                           size_text(kPickleLimit));
  }
  ZipWriter counter(nullptr);
  if (Status status = add_all(counter, plan, sources, false); !status.ok()) return status;
  plan.size = counter.size();
  return plan;
}

Status write_planned(const ByteSink& sink, const TorchPlan& plan, std::span<const TensorSource> sources) {
  ZipWriter zip(&sink);
  return add_all(zip, plan, sources, true);
}

Status write_torch_file(const std::string& path, std::span<const TensorSource> sources) {
  const Result<TorchPlan> plan = plan_torch_file(sources);
  if (!plan.ok()) return placed(path, plan.status());
  const Result<std::string> partial = partial_path(path);
  if (!partial.ok()) return partial.status();
  Result<OutputFile> file = OutputFile::create(*partial, {0, plan->size});
  if (!file.ok()) return file.status();
  const ByteSink sink = [&](std::span<const std::byte> bytes) { return file->write(bytes); };
  if (Status status = write_planned(sink, *plan, sources); !status.ok()) return placed(path, status);
  return file->finish_as(path);
}

}  // namespace octavo::train
