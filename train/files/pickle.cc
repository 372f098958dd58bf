// The machine; see pickle.h.
// SPDX-License-Identifier: MIT
#include "train/files/pickle.h"

#include "train/files/byte_order.h"
#include "train/files/pickle_opcodes.h"
#include "train/files/safetensors_format.h"

#include <algorithm>
#include <array>
#include <string>

namespace octavo::train {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kStorages = {{
    {"BOOL", "BoolStorage"},
    {"U8", "ByteStorage"},
    {"I8", "CharStorage"},
    {"I16", "ShortStorage"},
    {"I32", "IntStorage"},
    {"I64", "LongStorage"},
    {"F16", "HalfStorage"},
    {"BF16", "BFloat16Storage"},
    {"F32", "FloatStorage"},
    {"F64", "DoubleStorage"},
}};

enum class Kind : std::uint8_t {
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

std::string_view kind_name(Kind kind) {
  constexpr std::array<std::string_view, 10> kNames = {
      "None",       "a truth value", "a number", "a text",    "a class of storages",
      "a function", "a tuple",       "a dict",   "a storage", "a tensor"};
  return kNames[static_cast<std::size_t>(kind)];
}

enum class Function : std::uint32_t { ordered_dict, rebuild_tensor, rebuild_parameter };

// `first` and `count` say where a text lies in the pickle or a tuple in the pool of items. `first` alone is
// the number of anything else that has one; `count` is an integer's value.
struct Value {
  Kind kind = Kind::none;
  std::uint32_t first = 0;
  std::int64_t count = 0;
};

struct Tensor {
  std::uint32_t storage = 0;
  std::int64_t offset = 0;
  Value shape;  // tuples of integers
  Value strides;
};

using Items = std::vector<std::pair<Value, Value>>;

class Machine {
 public:
  explicit Machine(std::span<const std::byte> pickle) : pickle_(pickle) {}

  Result<std::vector<PickledTensor>> run() {
    if (pickle_.size() > kPickleLimit) {
      return Status::invalid("a pickle of " + std::to_string(pickle_.size()) + " bytes, expected at most " +
                             std::to_string(kPickleLimit));
    }
    while (!stopped_) {
      opcode_at_ = at_;
      opcode_ = 0;
      if (at_ == pickle_.size())
        return placed_here(Status::invalid("the pickle ends without STOP: it is cut short"));
      opcode_ = std::to_integer<std::uint8_t>(pickle_[at_++]);
      if (Status status = step(); !status.ok()) return placed_here(status);
    }
    Result<std::vector<PickledTensor>> tensors = finish();
    if (!tensors.ok()) return placed_here(tensors.status());
    return tensors;
  }

 private:
  [[nodiscard]] Status placed_here(const Status& status) const {
    const std::string opcode =
        opcode_at_ < pickle_.size() ? ": opcode " + opcode_text(opcode_) : std::string();
    return placed("byte " + std::to_string(opcode_at_) + opcode, status);
  }

  Status step() {
    switch (static_cast<Opcode>(opcode_)) {
      case Opcode::proto:
        return protocol();
      case Opcode::stop:
        stopped_ = true;
        return {};
      case Opcode::mark:
        marks_.push_back(stack_.size());
        return {};
      case Opcode::none:
        return push({});
      case Opcode::newtrue:
        return push({Kind::truth, 0, 1});
      case Opcode::newfalse:
        return push({Kind::truth, 0, 0});
      case Opcode::binint:
        return push_number<std::uint32_t, std::int32_t>();
      case Opcode::binint1:
        return push_number<std::uint8_t, std::uint8_t>();
      case Opcode::binint2:
        return push_number<std::uint16_t, std::uint16_t>();
      case Opcode::long1:
        return push_long();
      case Opcode::binunicode:
        return push_text();
      case Opcode::global:
        return push_global();
      case Opcode::empty_tuple:
        return push({Kind::tuple, 0, 0});
      case Opcode::tuple1:
        return push_tuple(1);
      case Opcode::tuple2:
        return push_tuple(2);
      case Opcode::tuple3:
        return push_tuple(3);
      case Opcode::tuple:
        return push_marked_tuple();
      case Opcode::empty_dict:
        return push_dict();
      case Opcode::setitem:
        return set_items(2);
      case Opcode::setitems:
        return set_marked_items();
      case Opcode::binput:
        return put<std::uint8_t>();
      case Opcode::long_binput:
        return put<std::uint32_t>();
      case Opcode::binget:
        return get<std::uint8_t>();
      case Opcode::long_binget:
        return get<std::uint32_t>();
      case Opcode::binpersid:
        return load_storage();
      case Opcode::reduce:
        return reduce();
      case Opcode::build:
        return build();
    }
    return Status::unsupported("not one that a state dict needs; only tensors by name are read");
  }

  // What follows an opcode.
  template <class T>
  Result<T> argument() {
    if (pickle_.size() - at_ < sizeof(T))
      return Status::invalid("the pickle ends too early: it is cut short");
    at_ += sizeof(T);
    return load_little<T>(pickle_, at_ - sizeof(T));
  }

  Status protocol() {
    const Result<std::uint8_t> version = argument<std::uint8_t>();
    if (!version.ok()) return version.status();
    if (*version == 2 && opcode_at_ == 0) return {};
    return Status::unsupported("protocol " + std::to_string(*version) +
                               ", expected 2 and at the front, as torch.save writes it");
  }

  Status push(Value value) {
    stack_.push_back(value);
    return {};
  }

  template <class Stored, class Number>
  Status push_number() {
    const Result<Stored> value = argument<Stored>();
    if (!value.ok()) return value.status();
    return push({Kind::integer, 0, static_cast<Number>(*value)});
  }

  Status push_long() {
    const Result<std::uint8_t> size = argument<std::uint8_t>();
    if (!size.ok()) return size.status();
    if (*size > 8)
      return Status::invalid("a number of " + std::to_string(*size) + " bytes, expected at most 8");
    if (pickle_.size() - at_ < *size) return Status::invalid("the pickle ends too early: it is cut short");
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const bool negative = *size > 0 && (pickle_[at_ + *size - 1] & std::byte{0x80}) != std::byte{0};
      const std::uint64_t byte = i < *size  ? std::to_integer<std::uint64_t>(pickle_[at_ + i])
                                 : negative ? 0xff
                                            : 0;
      value |= byte << (8 * i);
    }
    at_ += *size;
    return push({Kind::integer, 0, static_cast<std::int64_t>(value)});
  }

  Status push_text() {
    const Result<std::uint32_t> size = argument<std::uint32_t>();
    if (!size.ok()) return size.status();
    if (*size > pickle_.size() - at_) {
      return Status::invalid("a text of " + std::to_string(*size) + " bytes, but only " +
                             std::to_string(pickle_.size() - at_) + " follow");
    }
    at_ += *size;
    return push({Kind::text, static_cast<std::uint32_t>(at_ - *size), *size});
  }

  Result<std::string_view> line() {
    const std::string_view rest = as_text(pickle_.subspan(at_));
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) return Status::invalid("a name that does not end");
    at_ += end + 1;
    return rest.substr(0, end);
  }

  Status push_global() {
    const Result<std::string_view> module = line();
    if (!module.ok()) return module.status();
    const Result<std::string_view> name = line();
    if (!name.ok()) return name.status();
    const auto function = [&](Function which) {
      return push({Kind::function, static_cast<std::uint32_t>(which), 0});
    };
    if (*module == "collections" && *name == "OrderedDict") return function(Function::ordered_dict);
    if (*module == "torch._utils" && *name == "_rebuild_tensor_v2") return function(Function::rebuild_tensor);
    if (*module == "torch._utils" && *name == "_rebuild_parameter")
      return function(Function::rebuild_parameter);
    for (std::uint32_t i = 0; i < kStorages.size(); ++i) {
      if (*module == "torch" && *name == kStorages[i].second) return push({Kind::storage_class, i, 0});
    }
    return Status::unsupported(
        "global " + quote_name(*module) + " " + quote_name(*name) +
        " is not one that a state dict needs; nothing of it is run. Load the file where "
        "you trust it, and save its state_dict() alone");
  }

  // The values above the last mark, or above the bottom.
  [[nodiscard]] std::size_t height() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }

  Status need(std::size_t count) const {
    if (height() >= count) return {};
    return Status::invalid("takes " + std::to_string(count) + " values from a stack that has " +
                           std::to_string(height()));
  }

  Value pop() {
    const Value top = stack_.back();
    stack_.pop_back();
    return top;
  }

  // Goes down to the last mark and removes it: the number of values above it.
  Result<std::size_t> unmark() {
    if (marks_.empty()) return Status::invalid("there is no MARK");
    const std::size_t count = height();
    marks_.pop_back();
    return count;
  }

  Status push_tuple(std::size_t count) {
    if (Status status = need(count); !status.ok()) return status;
    const Value tuple{Kind::tuple, static_cast<std::uint32_t>(items_.size()),
                      static_cast<std::int64_t>(count)};
    items_.insert(items_.end(), stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return push(tuple);
  }

  Status push_marked_tuple() {
    const Result<std::size_t> count = unmark();
    return count.ok() ? push_tuple(*count) : count.status();
  }

  Status push_dict() {
    dicts_.emplace_back();
    return push({Kind::dict, static_cast<std::uint32_t>(dicts_.size() - 1), 0});
  }

  // `count` values, keys and values by turns, into the dict below them.
  Status set_items(std::size_t count) {
    if (count % 2 != 0) return Status::invalid("a key without a value");
    if (Status status = need(count + 1); !status.ok()) return status;
    const std::size_t first = stack_.size() - count;
    if (Status status = expect(stack_[first - 1], Kind::dict, "the target"); !status.ok()) return status;
    Items& items = dicts_[stack_[first - 1].first];
    for (std::size_t i = first; i < stack_.size(); i += 2) {
      if (Status status = expect(stack_[i], Kind::text, "a key"); !status.ok()) return status;
      items.emplace_back(stack_[i], stack_[i + 1]);
    }
    stack_.resize(first);
    return {};
  }

  Status set_marked_items() {
    const Result<std::size_t> count = unmark();
    return count.ok() ? set_items(*count) : count.status();
  }

  // Python numbers the memo from 0 upwards, so a number beyond the next one is made up.
  template <class T>
  Status put() {
    const Result<T> index = argument<T>();
    if (!index.ok()) return index.status();
    if (Status status = need(1); !status.ok()) return status;
    if (*index > memo_.size()) {
      return Status::invalid("memo " + std::to_string(*index) + ", expected at most " +
                             std::to_string(memo_.size()));
    }
    if (*index == memo_.size()) memo_.emplace_back();
    memo_[*index] = stack_.back();
    return {};
  }

  template <class T>
  Status get() {
    const Result<T> index = argument<T>();
    if (!index.ok()) return index.status();
    if (*index < memo_.size()) return push(memo_[*index]);
    return Status::invalid("memo " + std::to_string(*index) + " is not there; it has " +
                           std::to_string(memo_.size()));
  }

  static Status expect(const Value& value, Kind kind, std::string_view what) {
    if (value.kind == kind) return {};
    return Status::invalid(std::string(what) + " is " + std::string(kind_name(value.kind)) + ", expected " +
                           std::string(kind_name(kind)));
  }

  [[nodiscard]] std::span<const Value> items_of(const Value& tuple) const {
    return std::span(items_).subspan(tuple.first, static_cast<std::size_t>(tuple.count));
  }
  [[nodiscard]] std::string_view text_of(const Value& text) const {
    return as_text(pickle_.subspan(text.first, static_cast<std::size_t>(text.count)));
  }

  // Whether a tuple has these kinds.
  Status expect_items(const Value& tuple, std::span<const Kind> kinds, std::string_view what) const {
    if (Status status = expect(tuple, Kind::tuple, what); !status.ok()) return status;
    if (tuple.count != static_cast<std::int64_t>(kinds.size())) {
      return Status::invalid(std::string(what) + " has " + std::to_string(tuple.count) + " parts, expected " +
                             std::to_string(kinds.size()));
    }
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const std::string part = std::string(what) + ": part " + std::to_string(i + 1);
      if (Status status = expect(items_of(tuple)[i], kinds[i], part); !status.ok()) return status;
    }
    return {};
  }

  // ('storage', torch.FloatStorage, '0', 'cpu', 6): where the storage was does not matter here.
  Status load_storage() {
    if (Status status = need(1); !status.ok()) return status;
    constexpr std::array kParts = {Kind::text, Kind::storage_class, Kind::text, Kind::text, Kind::integer};
    const Value id = pop();
    if (Status status = expect_items(id, kParts, "a storage's id"); !status.ok()) return status;
    const auto parts = items_of(id);
    if (text_of(parts[0]) != "storage") {
      return Status::invalid("an id of " + quote_name(text_of(parts[0])) + ", expected of a storage");
    }
    storages_.push_back({kStorages[parts[1].first].first, text_of(parts[2]), parts[4].count});
    return push({Kind::storage, static_cast<std::uint32_t>(storages_.size() - 1), 0});
  }

  Status reduce() {
    if (Status status = need(2); !status.ok()) return status;
    const Value arguments = pop();
    const Value function = pop();
    if (Status status = expect(function, Kind::function, "what is called"); !status.ok()) return status;
    switch (static_cast<Function>(function.first)) {
      case Function::ordered_dict:
        if (Status status = expect_items(arguments, {}, "collections.OrderedDict"); !status.ok())
          return status;
        return push_dict();
      case Function::rebuild_tensor:
        return rebuild_tensor(arguments);
      case Function::rebuild_parameter:
        break;
    }
    constexpr std::array kParts = {Kind::tensor, Kind::truth, Kind::dict};
    if (Status status = expect_items(arguments, kParts, "torch._utils._rebuild_parameter"); !status.ok())
      return status;
    return push(items_of(arguments)[0]);
  }

  // storage, offset, shape, strides, requires_grad, backward_hooks
  Status rebuild_tensor(const Value& arguments) {
    constexpr std::array kParts = {Kind::storage, Kind::integer, Kind::tuple,
                                   Kind::tuple,   Kind::truth,   Kind::dict};
    constexpr std::string_view kWhat = "torch._utils._rebuild_tensor_v2";
    if (Status status = expect_items(arguments, kParts, kWhat); !status.ok()) return status;
    const auto parts = items_of(arguments);
    if (parts[2].count != parts[3].count || parts[2].count > static_cast<std::int64_t>(kDimensionLimit)) {
      return Status::invalid(std::string(kWhat) + ": " + std::to_string(parts[2].count) + " extents and " +
                             std::to_string(parts[3].count) + " strides, expected as many, and at most " +
                             std::to_string(kDimensionLimit));
    }
    for (const Value& tuple : {parts[2], parts[3]}) {
      for (const Value& number : items_of(tuple)) {
        if (Status status = expect(number, Kind::integer, "an extent or a stride"); !status.ok())
          return status;
      }
    }
    tensors_.push_back({parts[0].first, parts[1].count, parts[2], parts[3]});
    return push({Kind::tensor, static_cast<std::uint32_t>(tensors_.size() - 1), 0});
  }

  // Attributes of a dict: torch keeps versions of modules there, which nobody needs.
  Status build() {
    if (Status status = need(2); !status.ok()) return status;
    if (Status status = expect(pop(), Kind::dict, "the state of an object"); !status.ok()) return status;
    return expect(stack_.back(), Kind::dict, "an object with a state");
  }

  [[nodiscard]] std::vector<std::int64_t> numbers_of(const Value& tuple) const {
    std::vector<std::int64_t> numbers;
    for (const Value& item : items_of(tuple)) numbers.push_back(item.count);
    return numbers;
  }

  Result<std::vector<PickledTensor>> finish() const {
    if (at_ != pickle_.size())
      return Status::invalid("bytes after the end of the pickle; the rest is unknown");
    if (stack_.size() != 1 || !marks_.empty()) {
      return Status::invalid(std::to_string(stack_.size()) + " values and " + std::to_string(marks_.size()) +
                             " MARKs are left, expected one value");
    }
    if (Status status = expect(stack_[0], Kind::dict, "the file's content"); !status.ok()) return status;
    const Items& items = dicts_[stack_[0].first];
    if (items.size() > kTensorLimit) {
      return Status::invalid(std::to_string(items.size()) + " tensors, expected at most " +
                             std::to_string(kTensorLimit));
    }
    std::vector<PickledTensor> found;
    for (const auto& [key, value] : items) {
      if (Status status = expect(value, Kind::tensor, quote_name(text_of(key))); !status.ok()) return status;
      const Tensor& tensor = tensors_[value.first];
      found.push_back({text_of(key), storages_[tensor.storage], tensor.offset, numbers_of(tensor.shape),
                       numbers_of(tensor.strides)});
    }
    return found;
  }

  std::span<const std::byte> pickle_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  std::uint8_t opcode_ = 0;
  bool stopped_ = false;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;  // heights of the stack
  std::vector<Value> memo_;
  std::vector<Value> items_;  // of all tuples
  std::vector<Items> dicts_;
  std::vector<PickledStorage> storages_;
  std::vector<Tensor> tensors_;
};

}  // namespace

Result<std::vector<PickledTensor>> read_pickle(std::span<const std::byte> pickle) {
  return Machine(pickle).run();
}

std::string_view torch_storage(std::string_view dtype) {
  const auto* found =
      std::ranges::find(kStorages, dtype, &std::pair<std::string_view, std::string_view>::first);
  return found == kStorages.end() ? std::string_view() : found->second;
}

}  // namespace octavo::train
