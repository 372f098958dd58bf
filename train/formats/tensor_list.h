// Tensors in files of weights: their dtypes and sizes, the tensors of an opened file, which every reader
// returns, and the tensors to be written, which every writer takes.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

using Bytes = std::span<const std::byte>;

// Returns the bytes per element of a dtype as the format spells it: BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0, U16
// I16 F16 BF16, U32 I32 F32, U64 I64 F64. Returns 0 for any other dtype.
[[nodiscard]] std::size_t element_size(std::string_view dtype);
// Returns the number of bytes of a tensor; nullopt for an unknown dtype, a negative extent or a size of at
// least 2^63 bytes.
[[nodiscard]] std::optional<std::uint64_t> tensor_bytes(std::string_view dtype,
                                                        std::span<const std::int64_t> shape);

// Returns a name for messages: in JSON's quotes, in ASCII, and truncated if it is long, because names come
// from untrusted files.
std::string quote_name(std::string_view name);
std::string shape_text(std::span<const std::int64_t> shape);  // [2, 3]
std::string known_dtypes();

struct StoredTensor {
  std::string name;
  std::string dtype;  // as in element_size()
  std::vector<std::int64_t> shape;
  Bytes bytes;  // contiguous; valid while the file is open; aligned only if the writer aligned it, as ours do
};

// Defines a tensor to be written.
struct TensorSource {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;  // {}: a scalar
  // Returns the tensor's bytes. Called once, in the order of the file. The bytes must stay valid until the
  // next call or the end of the write. So one buffer is enough to copy the tensors of a GPU one at a time.
  std::function<Result<Bytes>()> bytes;
};

// Returns an error if `names` has the source's name, or if the source has no function. Adds the name.
Status check_unique(const TensorSource& source, std::set<std::string_view>& names);

// Returns the bytes of a source, or an error if their number does not fit the dtype and the shape.
Result<Bytes> bytes_of(const TensorSource& source);

class TensorList {
 public:
  TensorList() = default;
  // Returns an error if two tensors have the same name.
  static Result<TensorList> of(std::vector<StoredTensor> tensors);

  [[nodiscard]] std::span<const StoredTensor> all() const { return tensors_; }
  [[nodiscard]] const StoredTensor* find(std::string_view name) const;  // nullptr if there is none

 private:
  std::vector<StoredTensor> tensors_;
  std::vector<std::size_t> by_name_;  // indices of tensors_
};

}  // namespace octavo_train
