// Implements the parts of a state dict: the supported globals, storages, tensors and the dict. See pickle.h
// and pickle_machine.h.
// SPDX-License-Identifier: MIT
#include "train/formats/pickle.h"

#include "train/base/status.h"
#include "train/formats/pickle_machine.h"
#include "train/formats/safetensors_format.h"

#include <algorithm>
#include <array>
#include <string>

namespace octavo_train {
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

enum class PickleFunction : std::uint32_t { ordered_dict, rebuild_tensor, rebuild_parameter };

Status check_length(std::string_view text, std::string_view what) {
  if (text.size() <= kNameLimit) return {};
  return Status::invalid(std::string(what) + " of " + std::to_string(text.size()) +
                         " bytes, expected at most " + std::to_string(kNameLimit));
}

Status check_twins(std::vector<std::string_view> names) {
  std::ranges::sort(names);
  const auto twin = std::ranges::adjacent_find(names);
  return twin == names.end() ? Status() : Status::invalid("tensor " + quote_name(*twin) + ": given twice");
}

}  // namespace

Status PickleMachine::push_global() {
  const Result<std::string_view> module = line();
  if (!module.ok()) return module.status();
  const Result<std::string_view> name = line();
  if (!name.ok()) return name.status();
  const auto function = [&](PickleFunction which) {
    return push({PickleKind::function, static_cast<std::uint32_t>(which), 0});
  };
  if (*module == "collections" && *name == "OrderedDict") return function(PickleFunction::ordered_dict);
  if (*module == "torch._utils" && *name == "_rebuild_tensor_v2")
    return function(PickleFunction::rebuild_tensor);
  if (*module == "torch._utils" && *name == "_rebuild_parameter")
    return function(PickleFunction::rebuild_parameter);
  for (std::uint32_t i = 0; i < kStorages.size(); ++i) {
    if (*module == "torch" && *name == kStorages[i].second) return push({PickleKind::storage_class, i, 0});
  }
  return Status::unsupported("global " + quote_name(*module) + " " + quote_name(*name) +
                             " is not one that a state dict needs; nothing of it is run. Load the file where "
                             "you trust it, and save its state_dict() alone");
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
  if (text_of(parts[0]) != "storage") {
    return Status::invalid("an id of " + quote_name(text_of(parts[0])) + ", expected of a storage");
  }
  RETURN_IF_ERROR(check_length(text_of(parts[2]), "a storage's key"));
  storages_.push_back({kStorages[parts[1].first].first, text_of(parts[2]), parts[4].count});
  return push({PickleKind::storage, static_cast<std::uint32_t>(storages_.size() - 1), 0});
}

Status PickleMachine::reduce() {
  RETURN_IF_ERROR(need(2));
  const PickleValue arguments = pop();
  const PickleValue function = pop();
  RETURN_IF_ERROR(expect(function, PickleKind::function, "what is called"));
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
    return Status::invalid(std::string(kWhat) + ": " + std::to_string(parts[2].count) + " extents and " +
                           std::to_string(parts[3].count) + " strides, expected as many, and at most " +
                           std::to_string(kDimensionLimit));
  }
  for (const PickleValue& tuple : {parts[2], parts[3]}) {
    for (const PickleValue& number : items_of(tuple)) {
      RETURN_IF_ERROR(expect(number, PickleKind::integer, "an extent or a stride"));
    }
  }
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
  if (stack_.size() != 1 || !marks_.empty()) {
    return Status::invalid(std::to_string(stack_.size()) + " values and " + std::to_string(marks_.size()) +
                           " MARKs are left, expected one value");
  }
  RETURN_IF_ERROR(expect(stack_[0], PickleKind::dict, "the file's content"));
  const Items& items = dicts_[stack_[0].first];
  if (items.size() > kTensorLimit) {
    return Status::invalid(std::to_string(items.size()) + " tensors, expected at most " +
                           std::to_string(kTensorLimit));
  }
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

Result<std::vector<PickledTensor>> read_pickle(std::span<const std::byte> pickle) {
  return PickleMachine(pickle).run();
}

std::string_view torch_storage(std::string_view dtype) {
  const auto* found =
      std::ranges::find(kStorages, dtype, &std::pair<std::string_view, std::string_view>::first);
  return found == kStorages.end() ? std::string_view() : found->second;
}

}  // namespace octavo_train
