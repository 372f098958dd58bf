// Reads the pickle of a state dict, with a virtual machine that supports only the opcodes,
// classes and functions that torch.save writes for a state dict: nothing is imported, called or executed.
// Everything else is an error that names the opcode, its byte offset and the global.
//
// Values refer to each other by indices and are never traversed recursively, so cycles and nesting are
// harmless. Every opcode adds a bounded amount of memory, so the machine's memory is proportional to the size
// of the pickle: at most about 25 bytes for each of its bytes.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/tensor_list.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {

inline constexpr std::size_t kPickleLimit = std::size_t{16} << 20;  // bytes; 100 are enough for a tensor
inline constexpr std::size_t kDimensionLimit = 64;                  // as in torch
inline constexpr std::size_t kTensorLimit = 100'000;                // tensors in a state dict
inline constexpr std::size_t kDictLimit = 4 * kTensorLimit;         // each tensor and each module has a dict
inline constexpr std::size_t kNameLimit = 4096;  // bytes of a tensor's name or a storage's key
inline constexpr std::size_t kStackLimit = std::size_t{1} << 20;  // two values for each tensor of a dict

// The opcodes that a state dict needs.
enum class Opcode : std::uint8_t {
  mark = '(',
  stop = '.',
  none = 'N',
  newtrue = 0x88,
  newfalse = 0x89,
  binint = 'J',
  binint1 = 'K',
  binint2 = 'M',
  long1 = 0x8a,
  binunicode = 'X',
  global = 'c',
  empty_tuple = ')',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  tuple = 't',
  empty_dict = '}',
  setitem = 's',
  setitems = 'u',
  binput = 'q',
  long_binput = 'r',
  binget = 'h',
  long_binget = 'j',
  binpersid = 'Q',
  reduce = 'R',
  build = 'b',
  proto = 0x80,
};

// A storage as the pickle describes it. Its bytes are not in the pickle; they are found by its key.
struct PickledStorage {
  std::string_view dtype;  // as in element_size()
  std::string_view key;
  std::int64_t elements = 0;
};

// A tensor as the pickle describes it. Its numbers are not checked, except that they are integers.
struct PickledTensor {
  std::string_view name;
  PickledStorage storage;
  std::int64_t offset = 0;  // in elements
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // same length as `shape`
};

// Returns the tensors in the order of the dict. Names are unique: the memo could repeat a name for two bytes,
// so without this rule all names together could be longer than the pickle. The texts are views of `pickle`.
// Errors begin with a byte offset.
Result<std::vector<PickledTensor>> read_pickle(std::span<const std::byte> pickle);

// Returns torch's name of the storage class of a dtype, such as `FloatStorage`; empty if there is none.
[[nodiscard]] std::string_view torch_storage(std::string_view dtype);

}  // namespace octavo_train
