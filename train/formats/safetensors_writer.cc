// Writes tensors: the complete layout is computed first, then the bytes are fetched one tensor at a time. See
// safetensors.h.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/formats/safetensors_format.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>
#include <set>

namespace octavo_train {
namespace {

Status check_source(const TensorSource& source, std::set<std::string_view>& names) {
  const std::string what = "tensor " + quote_name(source.name) + ": ";
  if (source.name == kMetadata) return Status::invalid(what + "the format keeps this name for itself");
  if (!names.insert(source.name).second) return Status::invalid(what + "given twice; names must differ");
  if (!source.bytes) return Status::invalid(what + "has no function that gives its bytes");
  if (element_size(source.dtype) == 0) {
    return Status::invalid(what + "dtype " + quote_name(source.dtype) + ", expected one of " +
                           known_dtypes());
  }
  if (!tensor_bytes(source.dtype, source.shape)) {
    return Status::invalid(what + "shape " + shape_text(source.shape) +
                           ", expected extents of 0 or more and less than 2^63 bytes");
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
    text += json_text(source.name) + R"(:{"dtype":")" + source.dtype + R"(","shape":)" +
            json_text(source.shape) + R"(,"data_offsets":[)" + std::to_string(offset) + "," +
            std::to_string(end) + "]}";
    offset = end;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

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
    return Status::invalid("names, shapes and metadata take " + size_text(plan.header.size()) +
                           ", expected at most " + size_text(kHeaderLimit) + "; use more files");
  }
  plan.size += kLengthBytes + plan.header.size();
  return plan;
}

Status write_planned(OutputFile& file, const SafetensorsLayout& plan, std::span<const TensorSource> sources) {
  std::array<std::byte, kLengthBytes> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::byte>(plan.header.size() >> (8 * i) & 0xff);
  }
  RETURN_IF_ERROR(file.write(length));
  RETURN_IF_ERROR(file.write(std::as_bytes(std::span(plan.header))));
  for (const std::size_t index : plan.order) {
    const TensorSource& source = sources[index];
    const std::string what = file.path() + ": tensor " + quote_name(source.name) + ": ";
    const Result<Bytes> bytes = source.bytes();
    if (!bytes.ok()) return {bytes.status().code(), what + bytes.status().message()};
    if (const auto expected = tensor_bytes(source.dtype, source.shape); bytes->size() != expected) {
      return Status::invalid(what + std::to_string(bytes->size()) + " bytes given, expected " +
                             std::to_string(expected.value_or(0)) + " for " + source.dtype + " " +
                             shape_text(source.shape));
    }
    RETURN_IF_ERROR(file.write(*bytes));
  }
  return {};
}

Result<std::uint64_t> safetensors_size(std::span<const TensorSource> sources,
                                       const std::map<std::string, std::string>& metadata) {
  const Result<SafetensorsLayout> plan = plan_safetensors(sources, metadata);
  if (!plan.ok()) return plan.status();
  return plan->size;
}

Status write_safetensors(const std::string& path, std::span<const TensorSource> sources,
                         const std::map<std::string, std::string>& metadata) {
  const Result<SafetensorsLayout> plan = plan_safetensors(sources, metadata);
  if (!plan.ok()) return {plan.status().code(), path + ": " + plan.status().message()};
  const Result<std::string> partial = partial_path(path);
  if (!partial.ok()) return partial.status();
  Result<OutputFile> file = OutputFile::create(*partial, {0, plan->size});
  if (!file.ok()) return file.status();
  RETURN_IF_ERROR(write_planned(*file, *plan, sources));
  return file->finish_as(path);
}

}  // namespace octavo_train
