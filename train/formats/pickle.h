// The pickle of a state dict, read by a machine that knows the opcodes, classes and functions that torch.save
// writes for one, and no other: nothing is imported, called or executed. Everything else is an error that
// names the opcode, its byte and the global.
//
// Values refer to each other by numbers and are never walked to any depth, so cycles and nesting cost
// nothing. Every opcode adds a bounded amount, so the machine's memory is proportional to the size of the
// pickle: some 25 bytes for each of its bytes at most.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo::train {

inline constexpr std::size_t kPickleLimit = std::size_t{16} << 20;  // bytes; 100 are enough for a tensor
inline constexpr std::size_t kDimensionLimit = 64;                  // as in torch
inline constexpr std::size_t kTensorLimit = 100'000;                // of a state dict
inline constexpr std::size_t kDictLimit = 4 * kTensorLimit;         // each tensor has one, and each module
inline constexpr std::size_t kNameLimit = 4096;  // bytes of a tensor's name or a storage's key
inline constexpr std::size_t kStackLimit = std::size_t{1} << 20;  // two values for each tensor of a dict

// A storage as the pickle describes it; its bytes are elsewhere, under its key.
struct PickledStorage {
  std::string_view dtype;  // as in safetensors.h
  std::string_view key;
  std::int64_t elements = 0;
};

// Numbers as the pickle has them: nothing is checked but that they are integers.
struct PickledTensor {
  std::string_view name;
  PickledStorage storage;
  std::int64_t offset = 0;  // in elements
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // as many
};

// The tensors in the order of the dict, no name twice: the memo could repeat one for two bytes, so all names
// together are no longer than the pickle. The texts lie in `pickle`. Errors begin with a byte.
Result<std::vector<PickledTensor>> read_pickle(std::span<const std::byte> pickle);

// How torch calls the storage of a dtype, `FloatStorage`. Empty: there is none.
[[nodiscard]] std::string_view torch_storage(std::string_view dtype);

}  // namespace octavo::train
