// Implements the opcodes, the stack and the memo; see pickle_machine.h.
// SPDX-License-Identifier: MIT
#include "train/formats/pickle_machine.h"

#include "train/base/status.h"
#include "train/formats/pickle_opcodes.h"
#include "train/io/little_endian.h"

#include <array>

namespace octavo_train {
namespace {

std::string_view kind_name(PickleKind kind) {
  constexpr std::array<std::string_view, 10> kNames = {
      "None",       "a truth value", "a number", "a text",    "a class of storages",
      "a function", "a tuple",       "a dict",   "a storage", "a tensor"};
  return kNames[static_cast<std::size_t>(kind)];
}

Status too_many(const char* what, std::size_t limit) {
  return Status::invalid("more than " + std::to_string(limit) + " " + what + ", which is the limit");
}

Status cut_short() { return Status::invalid("the pickle ends too early: it is cut short"); }

}  // namespace

// Reads the argument of an opcode.
template <class T>
Result<T> PickleMachine::argument() {
  if (pickle_.size() - at_ < sizeof(T)) return cut_short();
  at_ += sizeof(T);
  return load_little<T>(pickle_, at_ - sizeof(T));
}

template <class Stored, class Number>
Status PickleMachine::push_number() {
  const Result<Stored> value = argument<Stored>();
  if (!value.ok()) return value.status();
  return push({PickleKind::integer, 0, static_cast<Number>(*value)});
}

// Python numbers memo entries from 0 upwards, so an index beyond the next free index is invalid.
template <class T>
Status PickleMachine::put() {
  const Result<T> index = argument<T>();
  if (!index.ok()) return index.status();
  RETURN_IF_ERROR(need(1));
  if (*index > memo_.size()) {
    return Status::invalid("memo " + std::to_string(*index) + ", expected at most " +
                           std::to_string(memo_.size()));
  }
  if (*index == memo_.size()) memo_.emplace_back();
  memo_[*index] = stack_.back();
  return {};
}

template <class T>
Status PickleMachine::get() {
  const Result<T> index = argument<T>();
  if (!index.ok()) return index.status();
  if (*index < memo_.size()) return push(memo_[*index]);
  return Status::invalid("memo " + std::to_string(*index) + " is not there; it has " +
                         std::to_string(memo_.size()));
}

Result<std::vector<PickledTensor>> PickleMachine::run() {
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

Status PickleMachine::placed_here(const Status& status) const {
  const std::string opcode = opcode_at_ < pickle_.size() ? ": opcode " + opcode_text(opcode_) : std::string();
  return placed("byte " + std::to_string(opcode_at_) + opcode, status);
}

Status PickleMachine::step() {
  switch (static_cast<Opcode>(opcode_)) {
    case Opcode::proto:
      return protocol();
    case Opcode::stop:
      stopped_ = true;
      return {};
    case Opcode::mark:
      return push_mark();
    case Opcode::none:
      return push({});
    case Opcode::newtrue:
      return push({PickleKind::truth, 0, 1});
    case Opcode::newfalse:
      return push({PickleKind::truth, 0, 0});
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
      return push({PickleKind::tuple, 0, 0});
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

Status PickleMachine::protocol() {
  const Result<std::uint8_t> version = argument<std::uint8_t>();
  if (!version.ok()) return version.status();
  if (*version == 2 && opcode_at_ == 0) return {};
  return Status::unsupported("protocol " + std::to_string(*version) +
                             ", expected 2 and at the front, as torch.save writes it");
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
  const Result<std::uint8_t> size = argument<std::uint8_t>();
  if (!size.ok()) return size.status();
  if (*size > 8)
    return Status::invalid("a number of " + std::to_string(*size) + " bytes, expected at most 8");
  if (pickle_.size() - at_ < *size) return cut_short();
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < *size; ++i) {
    value |= std::to_integer<std::uint64_t>(pickle_[at_ + i]) << (8 * i);
  }
  // The sign is the highest stored bit.
  const auto missing = static_cast<unsigned>(64 - 8 * *size);
  if (*size > 0) value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << missing) >> missing);
  at_ += *size;
  return push({PickleKind::integer, 0, static_cast<std::int64_t>(value)});
}

Status PickleMachine::push_text() {
  const Result<std::uint32_t> size = argument<std::uint32_t>();
  if (!size.ok()) return size.status();
  if (*size > pickle_.size() - at_) {
    return Status::invalid("a text of " + std::to_string(*size) + " bytes, but only " +
                           std::to_string(pickle_.size() - at_) + " follow");
  }
  at_ += *size;
  return push({PickleKind::text, static_cast<std::uint32_t>(at_ - *size), *size});
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
  return Status::invalid("takes " + std::to_string(count) + " values from a stack that has " +
                         std::to_string(height()));
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
  const Result<std::size_t> count = unmark();
  return count.ok() ? push_tuple(*count) : count.status();
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
  const Result<std::size_t> count = unmark();
  return count.ok() ? set_items(*count) : count.status();
}

Status PickleMachine::expect(const PickleValue& value, PickleKind kind, std::string_view what) {
  if (value.kind == kind) return {};
  return Status::invalid(std::string(what) + " is " + std::string(kind_name(value.kind)) + ", expected " +
                         std::string(kind_name(kind)));
}

// Checks that a tuple has items of these kinds.
Status PickleMachine::expect_items(const PickleValue& tuple, std::span<const PickleKind> kinds,
                                   std::string_view what) const {
  RETURN_IF_ERROR(expect(tuple, PickleKind::tuple, what));
  if (tuple.count != static_cast<std::int64_t>(kinds.size())) {
    return Status::invalid(std::string(what) + " has " + std::to_string(tuple.count) + " parts, expected " +
                           std::to_string(kinds.size()));
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const std::string part = std::string(what) + ": part " + std::to_string(i + 1);
    RETURN_IF_ERROR(expect(items_of(tuple)[i], kinds[i], part));
  }
  return {};
}

}  // namespace octavo_train
