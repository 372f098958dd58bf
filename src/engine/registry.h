// The groups and tensors of an engine. All of them were checked. A call that fails changes nothing.
//
// The host never reads step counts in device memory. Instead each tensor has a history, a number that only
// tensors with equal counts share. Tensors get a common history if the caller gives equal counts. Tensors
// that are stepped together get a new history together, because the device applies or skips the step for all
// of them.
// SPDX-License-Identifier: MIT
#pragma once

#include "engine/engine.h"
#include "engine/ranges.h"
#include "offload/offloaded_tensor.h"

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace octavo::engine {

// Returns for example "cuda:1".
std::string name_of(Device device);

struct Record {
  TensorArgs args;
  Device device;
  std::uint32_t group = 0, part = 0;
  std::uint32_t switches = 0;  // the group's when the tensor was checked
  bool known = false;
  bool shares = false;  // its parameter shares memory with others
  bool on_device = false;
  std::int64_t* step = nullptr;
  std::uint64_t history = 0;       // if on_device
  mutable std::uint64_t seen = 0;  // number of the last call with this handle, to find duplicates
  Residence residence = Residence::device;
  std::unique_ptr<offload::OffloadedTensor> offloaded;  // null: the state is on the device
  // Gradient release: set by `ready`, reset by `finish`.
  bool ready = false;
  const GradNorm* own = nullptr;
};

struct GroupRecord {
  bool known = false;
  bool measures = false;  // the algorithm needs sums of complete tensors before it updates them
  EngineGroup options;
  GroupConfig config;  // for every device
};

// An error and its tensor (-1: none).
struct Failure {
  Status status;
  std::int64_t tensor = -1;
};

class Registry {
 public:
  explicit Registry(Algorithm algorithm) : algorithm_(algorithm) {}

  [[nodiscard]] std::string tag() const;
  // Returns the failure of a tensor: its name in messages and `text`.
  [[nodiscard]] Failure failure(std::uint32_t handle, const std::string& text) const;
  [[nodiscard]] const GroupRecord& group(std::uint32_t number) const { return groups_[number]; }
  [[nodiscard]] bool measures(std::uint32_t group) const { return groups_[group].measures; }
  [[nodiscard]] const Ranges& ranges() const { return ranges_; }
  [[nodiscard]] std::size_t size() const { return records_.size(); }
  // Returns true if an offloaded tensor was ever registered.
  [[nodiscard]] bool offloads() const { return offloads_; }
  // The offloaded tensors, in the order of their handles.
  [[nodiscard]] std::span<offload::OffloadedTensor* const> offloaded() const { return offloaded_; }
  // REQUIRES: a registered handle.
  [[nodiscard]] const Record& operator[](std::uint32_t handle) const { return records_[handle]; }
  [[nodiscard]] Record& operator[](std::uint32_t handle) { return records_[handle]; }
  [[nodiscard]] bool knows(std::uint32_t handle) const {
    return handle < records_.size() && records_[handle].known;
  }
  // Returns a failure if a handle is not registered or is there twice.
  Failure check_handles(std::span<const std::uint32_t> handles) const;
  // Checks the dtype of a tensor's gradient.
  [[nodiscard]] Status check_dtype(std::uint32_t handle, DType dtype) const;

  Status set_group(std::uint32_t number, const EngineGroup& options);
  Failure set(std::span<const std::uint32_t> handles, std::span<const EngineTensor> tensors);
  void remove(std::span<const std::uint32_t> handles);
  Failure set_counts(std::span<const std::uint32_t> handles, std::span<const std::int64_t> values);
  // Gives these tensors, which were stepped together, a new common history.
  void stepped(std::span<const std::uint32_t> handles);

 private:
  Status check(const std::string& where, const EngineTensor& tensor, std::uint32_t handle,
               std::vector<Range>& ranges) const;
  Failure check_shared(const Ranges& ranges, std::span<const std::uint32_t> handles,
                       std::span<const EngineTensor> tensors) const;
  static bool needs_offloaded(const Record& record, const EngineTensor& tensor);
  std::uint64_t history_of(std::int64_t steps, std::uint64_t before);
  void note_sharing(std::span<const std::uint32_t> sharing);
  void list_offloaded();

  Algorithm algorithm_;
  std::vector<GroupRecord> groups_;
  std::vector<Record> records_;
  std::vector<offload::OffloadedTensor*> offloaded_;
  Ranges ranges_;
  mutable std::uint64_t calls_ = 0;
  std::uint64_t histories_ = 0;
  bool offloads_ = false;
  std::unordered_map<std::int64_t, std::uint64_t> known_steps_;  // histories by known count
};

}  // namespace octavo::engine
