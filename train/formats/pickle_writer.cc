// Writes the opcodes for tensors. It writes no memo, because texts and globals cost less than their
// bookkeeping. See pickle_of() in pickle.h.
// SPDX-License-Identifier: MIT
#include "train/formats/pickle.h"

#include "train/formats/tensor_list.h"
#include "train/io/little_endian.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo_train {
namespace {

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

}  // namespace

std::string pickle_of(std::span<const TensorSource> sources) {
  PickleText pickle;
  pickle.protocol().ordered_dict() << Opcode::mark;
  for (std::size_t i = 0; i < sources.size(); ++i) put_tensor(pickle, sources[i], i);
  pickle << Opcode::setitems << Opcode::stop;
  return pickle.take();
}

}  // namespace octavo_train
