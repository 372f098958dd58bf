// The virtual machine of pickle.h: a stack, a memo, and values that are indices. The opcodes are in
// pickle_machine.cc; the parts of a state dict are in pickle.cc.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/formats/pickle.h"
#include "train/io/little_endian.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {

enum class PickleKind : std::uint8_t {
  none,
  truth,
  integer,
  text,
  storage_class,
  function,
  tuple,
  dict,
  storage,
  tensor
};

// A value of the machine. `first` and `count` are the range of a text in the pickle, or of a tuple in the
// pool of items. For an integer, `count` is its value. For other kinds, `first` is the index of the object,
// if it has one.
struct PickleValue {
  PickleKind kind = PickleKind::none;
  std::uint32_t first = 0;
  std::int64_t count = 0;
};

class PickleMachine {
 public:
  explicit PickleMachine(std::span<const std::byte> pickle) : pickle_(pickle) {}

  // Runs to the end of the pickle. Must be called only once.
  Result<std::vector<PickledTensor>> run();

 private:
  struct Tensor {
    std::uint32_t storage = 0;
    std::int64_t offset = 0;
    PickleValue shape;  // tuples of integers
    PickleValue strides;
  };
  using Items = std::vector<std::pair<PickleValue, PickleValue>>;

  Status step();  // executes one opcode

  // Read the argument of an opcode.
  template <class T>
  Result<T> argument();
  Result<std::string_view> line();

  Status push(PickleValue value);
  Status push_mark();
  template <class Stored, class Number>
  Status push_number();
  Status push_long();
  Status push_text();
  Status push_tuple(std::size_t count);
  Status push_marked_tuple();
  Status push_dict();
  Status set_items(std::size_t count);
  Status set_marked_items();
  template <class T>
  Status put();
  template <class T>
  Status get();
  Status protocol();

  // Operations that only a state dict needs.
  Status push_global();
  Status load_storage();
  Status reduce();
  Status rebuild_tensor(const PickleValue& arguments);
  Status build();
  [[nodiscard]] Result<std::vector<PickledTensor>> finish() const;

  // Returns the number of values above the last mark, or of all values if there is no mark. Values below the
  // mark must not be popped.
  [[nodiscard]] std::size_t height() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  [[nodiscard]] Status need(std::size_t count) const;
  PickleValue pop();
  Result<std::size_t> unmark();

  [[nodiscard]] Status placed_here(const Status& status) const;
  static Status expect(const PickleValue& value, PickleKind kind, std::string_view what);
  [[nodiscard]] Status expect_items(const PickleValue& tuple, std::span<const PickleKind> kinds,
                                    std::string_view what) const;

  [[nodiscard]] std::span<const PickleValue> items_of(const PickleValue& tuple) const {
    return std::span(items_).subspan(tuple.first, static_cast<std::size_t>(tuple.count));
  }
  [[nodiscard]] std::string_view text_of(const PickleValue& text) const {
    return as_text(pickle_.subspan(text.first, static_cast<std::size_t>(text.count)));
  }
  [[nodiscard]] std::vector<std::int64_t> numbers_of(const PickleValue& tuple) const;

  std::span<const std::byte> pickle_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  std::uint8_t opcode_ = 0;
  bool stopped_ = false;
  std::vector<PickleValue> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack at the MARKs
  std::vector<PickleValue> memo_;
  std::vector<PickleValue> items_;  // items of all tuples
  std::vector<Items> dicts_;
  std::vector<PickledStorage> storages_;
  std::vector<Tensor> tensors_;
};

}  // namespace octavo_train
