// The names that `octavo bench optimizer --shape` accepts, and the parser of --numel.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/shapes.h"

#include "benchmarks/engine/model_shapes.h"
#include "apps/octavo/common/cli.h"

#include <charconv>
#include <system_error>
#include <utility>

namespace octavo::cli {
namespace {

constexpr std::int64_t kFlatRow = 1024;

std::vector<TensorShape> flat(std::int64_t numel) {
  std::vector<TensorShape> out{TensorShape("flat", {numel})};
  out.front().row = kFlatRow;
  return out;
}

struct Model {
  const char* name;
  std::vector<TensorShape> (*tensors)();
};

constexpr std::array<Model, 6> kModels = {{{"gpt2", gpt2_tensors},
                                           {"parakeet", parakeet_tensors},
                                           {"gpt2-embedding", gpt2_embedding_tensors},
                                           {"moe", moe_tensors},
                                           {"lora", lora_tensors},
                                           {"vit-g", vit_g_tensors}}};

}  // namespace

TensorShape::TensorShape(std::string tensor_name, std::initializer_list<std::int64_t> sizes)
    : name(std::move(tensor_name)) {
  for (const std::int64_t size : sizes) dims.at(static_cast<std::size_t>(ndim++)) = size;
  if (ndim > 1) row = numel() / dims[0];
}

std::int64_t TensorShape::numel() const {
  std::int64_t product = 1;
  for (int i = 0; i < ndim; ++i) product *= dims[static_cast<std::size_t>(i)];
  return product;
}

std::vector<std::string> shape_names() {
  std::vector<std::string> out{"flat"};
  for (const Model& model : kModels) out.emplace_back(model.name);
  return out;
}

std::vector<TensorShape> tensor_list(std::string_view name, std::int64_t flat_numel) {
  if (name == "flat") return flat(flat_numel);
  for (const Model& model : kModels)
    if (name == model.name) return model.tensors();
  throw Failure(kExitUsage,
                "--shape: got '" + std::string(name) + "', expected one of " + joined(shape_names()));
}

std::int64_t parse_numel(std::string_view text, std::string_view flag) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 50;  // byte counts stay far from overflow
  const auto bad = [&] {
    return Failure(kExitUsage,
                   std::string(flag) + ": got '" + std::string(text) +
                       "', expected a whole number from 1 to 2^50, such as 67108864, 2^26, 64M or 64Mi");
  };
  const char* const end = text.data() + text.size();
  std::int64_t value = 0;
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || value < 1 || value > kLimit) throw bad();
  std::string_view rest(at, static_cast<std::size_t>(end - at));

  std::int64_t factor = 1, times = 0;
  if (rest.starts_with('^')) {
    const auto [stop, failed] = std::from_chars(at + 1, end, times);
    if (failed != std::errc() || stop != end || times < 0 || times > 62) throw bad();
    factor = std::exchange(value, 1);
  } else if (!rest.empty()) {
    factor = rest.ends_with('i') ? 1024 : 1000;
    if (factor == 1024) rest.remove_suffix(1);
    const std::size_t unit =
        std::string_view("KMG").find(rest.size() == 1 ? (rest == "k" ? 'K' : rest[0]) : '?');
    if (unit == std::string_view::npos) throw bad();
    times = static_cast<std::int64_t>(unit) + 1;
  }
  for (; times > 0; --times) {
    if (value > kLimit / factor) throw bad();
    value *= factor;
  }
  return value;
}

}  // namespace octavo::cli
