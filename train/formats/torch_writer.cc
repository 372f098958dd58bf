// Writes torch files: the layout is computed first, then the bytes are fetched one tensor at a time. See
// torch_file.h.
// SPDX-License-Identifier: MIT
#include "train/base/status.h"
#include "train/formats/pickle.h"
#include "train/formats/pickle_writer.h"
#include "train/formats/safetensors_format.h"
#include "train/formats/torch_file.h"
#include "train/formats/zip_writer.h"
#include "train/io/little_endian.h"
#include "train/io/output_file.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <set>
#include <string_view>
#include <utility>

namespace octavo_train {
namespace {

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
  const std::string what = "tensor " + quote_name(source.name);
  const Result<Bytes> bytes = source.bytes();
  if (!bytes.ok()) return placed(what, bytes.status());
  if (bytes->size() != size) {
    return placed(what, Status::invalid(std::to_string(bytes->size()) + " bytes given, expected " +
                                        std::to_string(size) + " for " + source.dtype + " " +
                                        shape_text(source.shape)));
  }
  RETURN_IF_ERROR(zip.add(*bytes));
  return zip.end();
}

Status add_all(ZipWriter& zip, const TorchFileLayout& plan, std::span<const TensorSource> sources) {
  RETURN_IF_ERROR(add_text(zip, plan.root + "/data.pkl", plan.pickle));
  RETURN_IF_ERROR(add_text(zip, plan.root + "/byteorder", "little"));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::string name = plan.root + "/data/" + std::to_string(i);
    RETURN_IF_ERROR(add_tensor(zip, name, sources[i]));
  }
  RETURN_IF_ERROR(add_text(zip, plan.root + "/version", "3\n"));
  return zip.finish();
}

}  // namespace

Result<TorchFileLayout> plan_torch_file(std::span<const TensorSource> sources, std::string root) {
  std::set<std::string_view> names;
  std::uint64_t bytes = 0;
  if (sources.size() > kTensorLimit) {
    return Status::invalid(std::to_string(sources.size()) + " tensors, expected at most " +
                           std::to_string(kTensorLimit));
  }
  for (const TensorSource& source : sources) {
    RETURN_IF_ERROR(check_source(source, names));
    const std::uint64_t size = tensor_bytes(source.dtype, source.shape).value_or(0);
    if (size > INT64_MAX / 2 - bytes)
      return Status::invalid("the tensors have more than 2^62 bytes together");
    bytes += size;
  }
  TorchFileLayout plan;
  plan.root = std::move(root);
  plan.pickle = pickle_of(sources);
  if (plan.pickle.size() > kPickleLimit) {
    return Status::invalid("names and shapes take " + size_text(plan.pickle.size()) + ", expected at most " +
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
  const Result<TorchFileLayout> plan = plan_torch_file(sources);
  if (!plan.ok()) return placed(path, plan.status());
  const Result<std::string> partial = partial_path(path);
  if (!partial.ok()) return partial.status();
  Result<OutputFile> file = OutputFile::create(*partial, {0, plan->size});
  if (!file.ok()) return file.status();
  const ByteSink sink = [&](std::span<const std::byte> bytes) { return file->write(bytes); };
  if (Status status = write_planned(sink, *plan, sources); !status.ok()) return placed(path, status);
  return file->finish_as(path);
}

}  // namespace octavo_train
