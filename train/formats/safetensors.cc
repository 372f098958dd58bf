// Reads safetensors files: the header is parsed event by event (SAX), so that neither depth nor size of
// hostile JSON costs anything, and checked against the size of the file before a tensor is returned. Writes
// them: the complete layout is computed first, then the bytes are fetched one tensor at a time.
// SPDX-License-Identifier: MIT
#include "train/formats/safetensors.h"

#include "train/io/little_endian.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace octavo_train {
namespace {

constexpr std::uint64_t kLengthBytes = 8;               // bytes of the header's length field
constexpr std::uint64_t kHeaderLimit = 100'000'000;     // bytes; as in the Python package
constexpr std::string_view kMetadata = "__metadata__";  // the only header entry that is not a tensor

struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // offset of its first byte from the end of the header
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;  // in the order of the header
  std::map<std::string, std::string> metadata;
};

using Json = nlohmann::json;

Status not_json(std::size_t position) {
  return invalid_error("header byte {}: not JSON; the file is torn or of another format", position);
}

class HeaderHandler final : public nlohmann::json_sax<Json> {
 public:
  SafetensorsHeader header;
  std::string error;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a truth value"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a fraction"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::shape && place_ != Place::offsets) return unexpected("a number");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return fail(fmt::format("{}{}, expected a number below 2^63", what(), value));
    if (place_ == Place::shape)
      entry().shape.push_back(static_cast<std::int64_t>(value));
    else if (++offsets_ <= 2)
      (offsets_ == 1 ? entry().begin : entry().end) = value;
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      const bool fresh = header.metadata.emplace(key_, std::move(value)).second;
      return fresh || fail(what() + "given twice");
    }
    if (place_ != Place::tensor || key_ != "dtype") return unexpected("a text");
    entry().dtype = std::move(value);
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) {
      place_ = Place::top;
    } else if (place_ == Place::top && key_ == kMetadata) {
      if (std::exchange(has_metadata_, true)) return fail(what() + "given twice");
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      header.entries.push_back({key_, {}, {}, 0, 0});
      fields_ = 0;
      place_ = Place::tensor;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    key_ = std::move(value);
    if (place_ != Place::tensor) return true;
    const unsigned field = key_ == "dtype" ? 1 : key_ == "shape" ? 2 : key_ == "data_offsets" ? 4 : 0;
    if (field == 0) return fail(what() + "expected only dtype, shape and data_offsets");
    if ((fields_ & field) != 0) return fail(what() + "given twice");
    fields_ |= field;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor && fields_ != 7)
      return fail("tensor " + quote_name(entry().name) + ": expected dtype, shape and data_offsets");
    place_ = place_ == Place::top ? Place::end : Place::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") return unexpected("a list");
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2)
      return fail(fmt::format("{}{} numbers, expected two", what(), offsets_));
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    return fail(not_json(position).message());
  }

 private:
  enum class Place { start, top, metadata, tensor, shape, offsets, end };

  HeaderEntry& entry() { return header.entries.back(); }

  // Returns the start of an error message: the part of the header that is wrong.
  std::string what() {
    if (place_ == Place::start || place_ == Place::end) return "header: ";
    const std::string key = quote_name(key_) + ": ";
    if (place_ == Place::top) return key;
    return (place_ == Place::metadata ? std::string(kMetadata) : "tensor " + quote_name(entry().name)) +
           ": " + key;
  }

  std::string_view wanted() const {
    if (place_ == Place::shape || place_ == Place::offsets) return "numbers of 0 or more";
    if (place_ == Place::metadata) return "a text";
    if (place_ == Place::tensor) return key_ == "dtype" ? "a text" : "a list";
    return "an object";
  }

  bool fail(std::string message) {
    error = std::move(message);
    return false;
  }
  bool unexpected(std::string_view given) {
    return fail(what() + std::string(given) + ", expected " + std::string(wanted()));
  }

  Place place_ = Place::start;
  std::string key_;
  unsigned fields_ = 0;  // fields of the current tensor: 1 dtype, 2 shape, 4 data_offsets
  std::uint64_t offsets_ = 0;
  bool has_metadata_ = false;
};

// Parses a header. Checks only that the JSON has the form of a header. Errors begin with the tensor or the
// byte offset, so that the caller can put a path before them.
Result<SafetensorsHeader> parse_header(std::string_view text) {
  // The JSON library interprets a zero byte as the end of the text and would ignore the rest.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) return not_json(zero + 1);
  HeaderHandler handler;
  if (!Json::sax_parse(text.begin(), text.end(), &handler)) return Status::invalid(handler.error);
  return std::move(handler.header);
}

// Returns the header's text, after checking that the file contains all of it.
Result<std::string_view> find_header(Bytes file) {
  if (file.size() < kLengthBytes) {
    return invalid_error("{} bytes, too short for a safetensors file; it is torn or of another format",
                         file.size());
  }
  const auto length = load_little<std::uint64_t>(file, 0);
  if (const std::uint64_t room = file.size() - kLengthBytes; length > std::min(room, kHeaderLimit)) {
    return invalid_error(
        "its first bytes say that the header has {} bytes, expected at most {}; the file is torn or of "
        "another format",
        length, std::min(room, kHeaderLimit));
  }
  const Bytes header = file.subspan(kLengthBytes, static_cast<std::size_t>(length));
  if (header.empty() || header.front() != std::byte{'{'})
    return Status::invalid("its header does not begin with '{'; the file is torn or of another format");
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
      return unsupported_error("{}dtype {}, expected one of {}", what, quote_name(entry.dtype),
                               known_dtypes());
    }
    const std::optional<std::uint64_t> bytes = tensor_bytes(entry.dtype, entry.shape);
    const std::string range = fmt::format("{} to {}", entry.begin, entry.end);
    if (!bytes || entry.end < entry.begin || entry.end - entry.begin != *bytes) {
      return invalid_error("{}bytes {} do not fit {} {}{}", what, range, entry.dtype, shape_text(entry.shape),
                           bytes ? fmt::format(", which takes {}", *bytes) : "");
    }
    if (entry.begin != at) {
      return invalid_error("{}bytes {}, expected to begin at {}{}", what, range, at,
                           entry.begin < at ? ": it overlaps the tensor before" : ": there is a hole before");
    }
    at = entry.end;
  }
  if (at == room) return {};
  return invalid_error("{} bytes follow the header, which describes {}{}", room, at,
                       room < at ? ": the file is cut short" : ": the rest is unknown");
}

Status check_source(const TensorSource& source, std::set<std::string_view>& names) {
  const std::string what = "tensor " + quote_name(source.name) + ": ";
  if (source.name == kMetadata) return Status::invalid(what + "the format keeps this name for itself");
  RETURN_IF_ERROR(check_unique(source, names));
  if (element_size(source.dtype) == 0)
    return invalid_error("{}dtype {}, expected one of {}", what, quote_name(source.dtype), known_dtypes());
  if (!tensor_bytes(source.dtype, source.shape)) {
    return invalid_error("{}shape {}, expected extents of 0 or more and less than 2^63 bytes", what,
                         shape_text(source.shape));
  }
  return {};
}

// Throws if a text is not UTF-8.
std::string json_text(const nlohmann::json& value) { return value.dump(); }

std::string header_text(std::span<const TensorSource> sources, std::span<const std::size_t> order,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += json_text(kMetadata) + ":" + json_text(metadata);
  std::uint64_t offset = 0;
  for (const std::size_t index : order) {
    const TensorSource& source = sources[index];
    const std::uint64_t end = offset + tensor_bytes(source.dtype, source.shape).value_or(0);
    text += text.size() == 1 ? "" : ",";
    text += fmt::format(R"({}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", json_text(source.name),
                        source.dtype, json_text(source.shape), offset, end);
    offset = end;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

Result<Safetensors> Safetensors::read(Bytes file) {
  ASSIGN_OR_RETURN(const std::string_view text, find_header(file));
  ASSIGN_OR_RETURN(SafetensorsHeader header, parse_header(text));
  const Bytes data = file.subspan(kLengthBytes + text.size());
  RETURN_IF_ERROR(check_layout(header.entries, data.size()));

  std::vector<StoredTensor> tensors;
  for (HeaderEntry& entry : header.entries) {
    const Bytes bytes = data.subspan(static_cast<std::size_t>(entry.begin),
                                     static_cast<std::size_t>(entry.end - entry.begin));
    tensors.push_back({std::move(entry.name), std::move(entry.dtype), std::move(entry.shape), bytes});
  }
  ASSIGN_OR_RETURN(TensorList stored, TensorList::of(std::move(tensors)));
  Safetensors opened;
  opened.tensors_ = std::move(stored);
  opened.metadata_ = std::move(header.metadata);
  return opened;
}

Result<Safetensors> Safetensors::open(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
  ASSIGN_OR_RETURN(Safetensors opened, with_context(path, read(mapped.bytes())));
  opened.file_ = std::move(mapped);
  return opened;
}

Result<SafetensorsLayout> plan_safetensors(std::span<const TensorSource> sources,
                                           const std::map<std::string, std::string>& metadata) {
  SafetensorsLayout plan;
  std::set<std::string_view> names;
  for (const TensorSource& source : sources) {
    RETURN_IF_ERROR(check_source(source, names));
    const std::uint64_t bytes = tensor_bytes(source.dtype, source.shape).value_or(0);
    if (bytes > INT64_MAX - plan.size)
      return Status::invalid("the tensors have more than 2^63 bytes together");
    plan.size += bytes;
  }
  plan.order.resize(sources.size());
  std::iota(plan.order.begin(), plan.order.end(), std::size_t{0});
  std::stable_sort(plan.order.begin(), plan.order.end(), [&](std::size_t a, std::size_t b) {
    return element_size(sources[a].dtype) > element_size(sources[b].dtype);
  });
  try {
    plan.header = header_text(sources, plan.order, metadata);
  } catch (const nlohmann::json::exception&) {
    return Status::invalid("a name of a tensor or a metadata text is not UTF-8, which the format asks for");
  }
  if (plan.header.size() > kHeaderLimit) {
    return invalid_error("names, shapes and metadata take {}, expected at most {}; use more files",
                         size_text(plan.header.size()), size_text(kHeaderLimit));
  }
  plan.size += kLengthBytes + plan.header.size();
  return plan;
}

Status write_planned(OutputFile& file, const SafetensorsLayout& plan, std::span<const TensorSource> sources) {
  std::string start;
  append_little(start, std::uint64_t{plan.header.size()});
  start += plan.header;
  RETURN_IF_ERROR(file.write(std::as_bytes(std::span(start))));
  for (const std::size_t index : plan.order) {
    const TensorSource& source = sources[index];
    ASSIGN_OR_RETURN(const Bytes bytes,
                     with_context(file.path() + ": tensor " + quote_name(source.name), bytes_of(source)));
    RETURN_IF_ERROR(file.write(bytes));
  }
  return {};
}

Result<std::uint64_t> safetensors_size(std::span<const TensorSource> sources,
                                       const std::map<std::string, std::string>& metadata) {
  ASSIGN_OR_RETURN(const SafetensorsLayout plan, plan_safetensors(sources, metadata));
  return plan.size;
}

Status write_safetensors(const std::string& path, std::span<const TensorSource> sources,
                         const std::map<std::string, std::string>& metadata) {
  ASSIGN_OR_RETURN(const SafetensorsLayout plan, with_context(path, plan_safetensors(sources, metadata)));
  return write_atomically(path, plan.size,
                          [&](OutputFile& file) { return write_planned(file, plan, sources); });
}

}  // namespace octavo_train
