// Reads the pickle of a state dict: a virtual machine with a stack, a memo, and values that are indices. See
// pickle.h.
// SPDX-License-Identifier: MIT
#include "train/formats/pickle.h"

#include "train/io/little_endian.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace octavo_train {
namespace {

// The names of all opcodes as in Python's pickletools, each after its code, in the order of the codes.
constexpr std::string_view kOpcodeNames =
    "28 MARK 29 EMPTY_TUPLE 2e STOP 30 POP 31 POP_MARK 32 DUP 42 BINBYTES 43 SHORT_BINBYTES 46 FLOAT 47 "
    "BINFLOAT 49 INT 4a BININT 4b BININT1 4c LONG 4d BININT2 4e NONE 50 PERSID 51 BINPERSID 52 REDUCE 53 "
    "STRING 54 BINSTRING 55 SHORT_BINSTRING 56 UNICODE 58 BINUNICODE 5d EMPTY_LIST 61 APPEND 62 BUILD 63 "
    "GLOBAL 64 DICT 65 APPENDS 67 GET 68 BINGET 69 INST 6a LONG_BINGET 6c LIST 6f OBJ 70 PUT 71 BINPUT 72 "
    "LONG_BINPUT 73 SETITEM 74 TUPLE 75 SETITEMS 7d EMPTY_DICT 80 PROTO 81 NEWOBJ 82 EXT1 83 EXT2 84 EXT4 85 "
    "TUPLE1 86 TUPLE2 87 TUPLE3 88 NEWTRUE 89 NEWFALSE 8a LONG1 8b LONG4 8c SHORT_BINUNICODE 8d BINUNICODE8 "
    "8e BINBYTES8 8f EMPTY_SET 90 ADDITEMS 91 FROZENSET 92 NEWOBJ_EX 93 STACK_GLOBAL 94 MEMOIZE 95 FRAME 96 "
    "BYTEARRAY8 97 NEXT_BUFFER 98 READONLY_BUFFER ";

// Returns text such as `0x52 REDUCE`. A byte that is not an opcode of any protocol has no name.
std::string opcode_text(std::uint8_t opcode) {
  const std::string code = fmt::format("{:02x} ", opcode);
  const std::size_t at = kOpcodeNames.find(code);
  const std::string_view name = at == kOpcodeNames.npos ? "" : kOpcodeNames.substr(at + code.size());
  return "0x" + code.substr(0, 2) + (name.empty() ? "" : " ") + std::string(name.substr(0, name.find(' ')));
}

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

  Status stop() {
    stopped_ = true;
    return {};
  }
  Status push(PickleValue value);
  Status push_truth(std::int64_t value) { return push({PickleKind::truth, 0, value}); }
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

  [[nodiscard]] std::string place() const;  // of the current opcode, for errors
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

std::string_view kind_name(PickleKind kind) {
  constexpr std::array<std::string_view, 10> kNames = {
      "None",       "a truth value", "a number", "a text",    "a class of storages",
      "a function", "a tuple",       "a dict",   "a storage", "a tensor"};
  return kNames[static_cast<std::size_t>(kind)];
}

Status too_many(const char* what, std::size_t limit) {
  return invalid_error("more than {} {}, which is the limit", limit, what);
}

Status cut_short() { return Status::invalid("the pickle is cut short"); }

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

enum class PickleFunction : std::uint32_t { ordered_dict, rebuild_tensor, rebuild_parameter };

Status check_length(std::string_view text, std::string_view what) {
  if (text.size() <= kNameLimit) return {};
  return invalid_error("{} of {} bytes, expected at most {}", what, text.size(), kNameLimit);
}

Status check_twins(std::vector<std::string_view> names) {
  std::ranges::sort(names);
  const auto twin = std::ranges::adjacent_find(names);
  return twin == names.end() ? Status() : invalid_error("tensor {}: given twice", quote_name(*twin));
}

// Reads the argument of an opcode.
template <class T>
Result<T> PickleMachine::argument() {
  if (pickle_.size() - at_ < sizeof(T)) return cut_short();
  at_ += sizeof(T);
  return load_little<T>(pickle_, at_ - sizeof(T));
}

template <class Stored, class Number>
Status PickleMachine::push_number() {
  ASSIGN_OR_RETURN(const Stored value, argument<Stored>());
  return push({PickleKind::integer, 0, static_cast<Number>(value)});
}

// Python numbers memo entries from 0 upwards, so an index beyond the next free index is invalid.
template <class T>
Status PickleMachine::put() {
  ASSIGN_OR_RETURN(const T index, argument<T>());
  RETURN_IF_ERROR(need(1));
  if (index > memo_.size()) return invalid_error("memo {}, expected at most {}", index, memo_.size());
  if (index == memo_.size()) memo_.emplace_back();
  memo_[index] = stack_.back();
  return {};
}

template <class T>
Status PickleMachine::get() {
  ASSIGN_OR_RETURN(const T index, argument<T>());
  if (index < memo_.size()) return push(memo_[index]);
  return invalid_error("memo {} is not there; it has {}", index, memo_.size());
}

Result<std::vector<PickledTensor>> PickleMachine::run() {
  if (pickle_.size() > kPickleLimit)
    return invalid_error("a pickle of {} bytes, expected at most {}", pickle_.size(), kPickleLimit);
  while (!stopped_) {
    opcode_at_ = at_;
    opcode_ = 0;
    if (at_ == pickle_.size())
      return with_context(place(), Status::invalid("the pickle ends without STOP: it is cut short"));
    opcode_ = std::to_integer<std::uint8_t>(pickle_[at_++]);
    RETURN_IF_ERROR(with_context(place(), step()));
  }
  return with_context(place(), finish());
}

std::string PickleMachine::place() const {
  return fmt::format("byte {}{}", opcode_at_,
                     opcode_at_ < pickle_.size() ? ": opcode " + opcode_text(opcode_) : "");
}

Status PickleMachine::step() {
  using M = PickleMachine;
  struct Row {
    Opcode opcode;
    Status (*run)(M&);
  };
  static constexpr Row kRows[] = {
      {Opcode::proto, [](M& m) { return m.protocol(); }},
      {Opcode::stop, [](M& m) { return m.stop(); }},
      {Opcode::mark, [](M& m) { return m.push_mark(); }},
      {Opcode::none, [](M& m) { return m.push({}); }},
      {Opcode::newtrue, [](M& m) { return m.push_truth(1); }},
      {Opcode::newfalse, [](M& m) { return m.push_truth(0); }},
      {Opcode::binint, [](M& m) { return m.push_number<std::uint32_t, std::int32_t>(); }},
      {Opcode::binint1, [](M& m) { return m.push_number<std::uint8_t, std::uint8_t>(); }},
      {Opcode::binint2, [](M& m) { return m.push_number<std::uint16_t, std::uint16_t>(); }},
      {Opcode::long1, [](M& m) { return m.push_long(); }},
      {Opcode::binunicode, [](M& m) { return m.push_text(); }},
      {Opcode::global, [](M& m) { return m.push_global(); }},
      {Opcode::empty_tuple, [](M& m) { return m.push_tuple(0); }},
      {Opcode::tuple1, [](M& m) { return m.push_tuple(1); }},
      {Opcode::tuple2, [](M& m) { return m.push_tuple(2); }},
      {Opcode::tuple3, [](M& m) { return m.push_tuple(3); }},
      {Opcode::tuple, [](M& m) { return m.push_marked_tuple(); }},
      {Opcode::empty_dict, [](M& m) { return m.push_dict(); }},
      {Opcode::setitem, [](M& m) { return m.set_items(2); }},
      {Opcode::setitems, [](M& m) { return m.set_marked_items(); }},
      {Opcode::binput, [](M& m) { return m.put<std::uint8_t>(); }},
      {Opcode::long_binput, [](M& m) { return m.put<std::uint32_t>(); }},
      {Opcode::binget, [](M& m) { return m.get<std::uint8_t>(); }},
      {Opcode::long_binget, [](M& m) { return m.get<std::uint32_t>(); }},
      {Opcode::binpersid, [](M& m) { return m.load_storage(); }},
      {Opcode::reduce, [](M& m) { return m.reduce(); }},
      {Opcode::build, [](M& m) { return m.build(); }},
  };
  const auto* const row = std::ranges::find(kRows, static_cast<Opcode>(opcode_), &Row::opcode);
  if (row != std::end(kRows)) return row->run(*this);
  return Status::unsupported("not one that a state dict needs; only tensors by name are read");
}

Status PickleMachine::protocol() {
  ASSIGN_OR_RETURN(const std::uint8_t version, argument<std::uint8_t>());
  if (version == 2 && opcode_at_ == 0) return {};
  return unsupported_error("protocol {}, expected 2 and at the front, as torch.save writes it", version);
}

Status PickleMachine::push(PickleValue value) {
  if (stack_.size() == kStackLimit) return too_many("values on the stack", kStackLimit);
  stack_.push_back(value);
  return {};
}

Status PickleMachine::push_mark() {
  if (marks_.size() == kStackLimit) return too_many("MARKs", kStackLimit);
  marks_.push_back(stack_.size());
  return {};
}

Status PickleMachine::push_long() {
  ASSIGN_OR_RETURN(const std::uint8_t size, argument<std::uint8_t>());
  if (size > 8) return invalid_error("a number of {} bytes, expected at most 8", size);
  if (pickle_.size() - at_ < size) return cut_short();
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value |= std::to_integer<std::uint64_t>(pickle_[at_ + i]) << (8 * i);
  // The sign is the highest stored bit.
  const auto missing = static_cast<unsigned>(64 - 8 * size);
  if (size > 0) value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << missing) >> missing);
  at_ += size;
  return push({PickleKind::integer, 0, static_cast<std::int64_t>(value)});
}

Status PickleMachine::push_text() {
  ASSIGN_OR_RETURN(const std::uint32_t size, argument<std::uint32_t>());
  if (size > pickle_.size() - at_)
    return invalid_error("a text of {} bytes, but only {} follow", size, pickle_.size() - at_);
  at_ += size;
  return push({PickleKind::text, static_cast<std::uint32_t>(at_ - size), size});
}

Result<std::string_view> PickleMachine::line() {
  const std::string_view rest = as_text(pickle_.subspan(at_));
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos) return Status::invalid("a name that does not end");
  at_ += end + 1;
  return rest.substr(0, end);
}

Status PickleMachine::need(std::size_t count) const {
  if (height() >= count) return {};
  return invalid_error("takes {} values from a stack that has {}", count, height());
}

PickleValue PickleMachine::pop() {
  const PickleValue top = stack_.back();
  stack_.pop_back();
  return top;
}

// Removes the last mark and returns the number of values above it.
Result<std::size_t> PickleMachine::unmark() {
  if (marks_.empty()) return Status::invalid("there is no MARK");
  const std::size_t count = height();
  marks_.pop_back();
  return count;
}

Status PickleMachine::push_tuple(std::size_t count) {
  RETURN_IF_ERROR(need(count));
  const PickleValue tuple{PickleKind::tuple, static_cast<std::uint32_t>(items_.size()),
                          static_cast<std::int64_t>(count)};
  items_.insert(items_.end(), stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
  stack_.resize(stack_.size() - count);
  return push(tuple);
}

Status PickleMachine::push_marked_tuple() {
  ASSIGN_OR_RETURN(const std::size_t count, unmark());
  return push_tuple(count);
}

Status PickleMachine::push_dict() {
  if (dicts_.size() == kDictLimit) return too_many("dicts", kDictLimit);
  dicts_.emplace_back();
  return push({PickleKind::dict, static_cast<std::uint32_t>(dicts_.size() - 1), 0});
}

// Moves the top `count` values of the stack, which alternate between keys and values, to the dict below them.
Status PickleMachine::set_items(std::size_t count) {
  if (count % 2 != 0) return Status::invalid("a key without a value");
  RETURN_IF_ERROR(need(count + 1));
  const std::size_t first = stack_.size() - count;
  RETURN_IF_ERROR(expect(stack_[first - 1], PickleKind::dict, "the target"));
  Items& items = dicts_[stack_[first - 1].first];
  for (std::size_t i = first; i < stack_.size(); i += 2) {
    RETURN_IF_ERROR(expect(stack_[i], PickleKind::text, "a key"));
    items.emplace_back(stack_[i], stack_[i + 1]);
  }
  stack_.resize(first);
  return {};
}

Status PickleMachine::set_marked_items() {
  ASSIGN_OR_RETURN(const std::size_t count, unmark());
  return set_items(count);
}

Status PickleMachine::expect(const PickleValue& value, PickleKind kind, std::string_view what) {
  if (value.kind == kind) return {};
  return invalid_error("{} is {}, expected {}", what, kind_name(value.kind), kind_name(kind));
}

// Checks that a tuple has items of these kinds.
Status PickleMachine::expect_items(const PickleValue& tuple, std::span<const PickleKind> kinds,
                                   std::string_view what) const {
  RETURN_IF_ERROR(expect(tuple, PickleKind::tuple, what));
  if (tuple.count != static_cast<std::int64_t>(kinds.size()))
    return invalid_error("{} has {} parts, expected {}", what, tuple.count, kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    RETURN_IF_ERROR(expect(items_of(tuple)[i], kinds[i], fmt::format("{}: part {}", what, i + 1)));
  }
  return {};
}

Status PickleMachine::push_global() {
  ASSIGN_OR_RETURN(const std::string_view module, line());
  ASSIGN_OR_RETURN(const std::string_view name, line());
  const auto function = [&](PickleFunction which) {
    return push({PickleKind::function, static_cast<std::uint32_t>(which), 0});
  };
  if (module == "collections" && name == "OrderedDict") return function(PickleFunction::ordered_dict);
  if (module == "torch._utils" && name == "_rebuild_tensor_v2")
    return function(PickleFunction::rebuild_tensor);
  if (module == "torch._utils" && name == "_rebuild_parameter")
    return function(PickleFunction::rebuild_parameter);
  for (std::uint32_t i = 0; i < kStorages.size(); ++i)
    if (module == "torch" && name == kStorages[i].second) return push({PickleKind::storage_class, i, 0});
  return unsupported_error(
      "global {} {} is not one that a state dict needs; nothing of it is run. Load the file where you trust "
      "it, and save its state_dict() alone",
      quote_name(module), quote_name(name));
}

// Reads the id of a storage: ('storage', torch.FloatStorage, '0', 'cpu', 6). The device of the storage is
// ignored.
Status PickleMachine::load_storage() {
  RETURN_IF_ERROR(need(1));
  constexpr std::array kParts = {PickleKind::text, PickleKind::storage_class, PickleKind::text,
                                 PickleKind::text, PickleKind::integer};
  const PickleValue id = pop();
  RETURN_IF_ERROR(expect_items(id, kParts, "a storage's id"));
  const auto parts = items_of(id);
  if (text_of(parts[0]) != "storage")
    return invalid_error("an id of {}, expected of a storage", quote_name(text_of(parts[0])));
  RETURN_IF_ERROR(check_length(text_of(parts[2]), "a storage's key"));
  storages_.push_back({kStorages[parts[1].first].first, text_of(parts[2]), parts[4].count});
  return push({PickleKind::storage, static_cast<std::uint32_t>(storages_.size() - 1), 0});
}

Status PickleMachine::reduce() {
  RETURN_IF_ERROR(need(2));
  const PickleValue arguments = pop();
  const PickleValue function = pop();
  RETURN_IF_ERROR(expect(function, PickleKind::function, "the called object"));
  switch (static_cast<PickleFunction>(function.first)) {
    case PickleFunction::ordered_dict:
      RETURN_IF_ERROR(expect_items(arguments, {}, "collections.OrderedDict"));
      return push_dict();
    case PickleFunction::rebuild_tensor:
      return rebuild_tensor(arguments);
    case PickleFunction::rebuild_parameter:
      break;
  }
  constexpr std::array kParts = {PickleKind::tensor, PickleKind::truth, PickleKind::dict};
  RETURN_IF_ERROR(expect_items(arguments, kParts, "torch._utils._rebuild_parameter"));
  return push(items_of(arguments)[0]);
}

// The arguments are storage, offset, shape, strides, requires_grad, backward_hooks.
Status PickleMachine::rebuild_tensor(const PickleValue& arguments) {
  constexpr std::array kParts = {PickleKind::storage, PickleKind::integer, PickleKind::tuple,
                                 PickleKind::tuple,   PickleKind::truth,   PickleKind::dict};
  constexpr std::string_view kWhat = "torch._utils._rebuild_tensor_v2";
  RETURN_IF_ERROR(expect_items(arguments, kParts, kWhat));
  const auto parts = items_of(arguments);
  if (parts[2].count != parts[3].count || parts[2].count > static_cast<std::int64_t>(kDimensionLimit)) {
    return invalid_error("{}: {} extents and {} strides, expected equal numbers of at most {}", kWhat,
                         parts[2].count, parts[3].count, kDimensionLimit);
  }
  for (const PickleValue& tuple : {parts[2], parts[3]})
    for (const PickleValue& number : items_of(tuple))
      RETURN_IF_ERROR(expect(number, PickleKind::integer, "an extent or a stride"));
  tensors_.push_back({parts[0].first, parts[1].count, parts[2], parts[3]});
  return push({PickleKind::tensor, static_cast<std::uint32_t>(tensors_.size() - 1), 0});
}

// Ignores the attributes of a dict: torch keeps versions of modules there, which are not needed.
Status PickleMachine::build() {
  RETURN_IF_ERROR(need(2));
  RETURN_IF_ERROR(expect(pop(), PickleKind::dict, "the state of an object"));
  return expect(stack_.back(), PickleKind::dict, "an object with a state");
}

std::vector<std::int64_t> PickleMachine::numbers_of(const PickleValue& tuple) const {
  std::vector<std::int64_t> numbers;
  for (const PickleValue& item : items_of(tuple)) numbers.push_back(item.count);
  return numbers;
}

Result<std::vector<PickledTensor>> PickleMachine::finish() const {
  if (at_ != pickle_.size()) return Status::invalid("bytes after the end of the pickle; the rest is unknown");
  if (stack_.size() != 1 || !marks_.empty())
    return invalid_error("{} values and {} MARKs are left, expected one value", stack_.size(), marks_.size());
  RETURN_IF_ERROR(expect(stack_[0], PickleKind::dict, "the file's content"));
  const Items& items = dicts_[stack_[0].first];
  if (items.size() > kTensorLimit)
    return invalid_error("{} tensors, expected at most {}", items.size(), kTensorLimit);
  std::vector<std::string_view> names;
  for (const auto& [key, value] : items) {
    RETURN_IF_ERROR(check_length(text_of(key), "a tensor's name"));
    names.push_back(text_of(key));
  }
  RETURN_IF_ERROR(check_twins(std::move(names)));
  std::vector<PickledTensor> found;
  for (const auto& [key, value] : items) {
    RETURN_IF_ERROR(expect(value, PickleKind::tensor, quote_name(text_of(key))));
    const Tensor& tensor = tensors_[value.first];
    found.push_back({text_of(key), storages_[tensor.storage], tensor.offset, numbers_of(tensor.shape),
                     numbers_of(tensor.strides)});
  }
  return found;
}

}  // namespace

Result<std::vector<PickledTensor>> read_pickle(std::span<const std::byte> pickle) {
  return PickleMachine(pickle).run();
}

std::string_view torch_storage(std::string_view dtype) {
  const auto* found =
      std::ranges::find(kStorages, dtype, &std::pair<std::string_view, std::string_view>::first);
  return found == kStorages.end() ? std::string_view() : found->second;
}

}  // namespace octavo_train
