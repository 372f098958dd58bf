// What is set for one parameter alone, scalars that live on the device, and reports of the last step, of
// octavo::torch::Optimizer. Included by optimizer.h.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/torch/optimizer.h>

#include <iterator>

namespace octavo::torch {

inline ::torch::Tensor Optimizer::checked_scalar(const char* what, Tensor scalar) const {
  if (!scalar.defined()) return scalar;
  TORCH_CHECK(scalar.scalar_type() == ::torch::kFloat32 && scalar.numel() == 1, "octavo::torch::", name_,
              ": ", what, ": got ", scalar.numel(), " of ", c10::toString(scalar.scalar_type()),
              ", expected one Float");
  for (const auto& group : param_groups_) {
    for (const Tensor& param : group.params()) {
      TORCH_CHECK(param.device() == scalar.device(), "octavo::torch::", name_, ": ", what, " is on ",
                  scalar.device(), ", expected ", param.device(), ", where the parameters are");
    }
  }
  return scalar;
}

inline void Optimizer::set_lr(std::size_t group, Tensor rate) {
  TORCH_CHECK(group < param_groups_.size(), "octavo::torch::", name_, ": set_lr: got group ", group,
              ", expected one of ", param_groups_.size());
  rates_.resize(std::max(rates_.size(), group + 1));
  rates_[group] = checked_scalar("lr", std::move(rate));
}

inline void Optimizer::set_own(const Tensor& param, std::uint32_t handle, const Own& own) {
  TORCH_CHECK(find_state(param) == nullptr, where(handle), "it has ", find_state(param)->format,
              " states already; set its shard and format before its first step");
  octavo::torch::kind_of(param, options_of(places_[handle].first), own, nullptr, where(handle));
  for (auto each = own_.begin(); each != own_.end();)
    each = each->second.param.expired() ? own_.erase(each) : std::next(each);
  own_.insert_or_assign(param.unsafeGetTensorImpl(),
                        Owned{decltype(Owned::param)(param.getIntrusivePtr()), own});
  placed_ = false;
}

inline void Optimizer::set_shard(const Tensor& param, const Shard& shard) {
  const std::uint32_t handle = handle_of(param, "set_shard");
  const std::int64_t whole = shard.whole_numel == 0 ? param.numel() : shard.whole_numel;
  TORCH_CHECK(shard.offset >= 0 && shard.offset + param.numel() <= whole, where(handle),
              "set_shard: got offset ", shard.offset, " and whole_numel ", shard.whole_numel,
              ", expected a whole of at least the offset and this part's ", param.numel(), " elements");
  const std::uint32_t switches = options_of(places_[handle].first).switches();
  TORCH_CHECK(shard.part != 0 || octavo_algorithm_passes(algorithm_->index, switches) == 1, where(handle),
              "set_shard: got part 0, expected the number of a part, because ", algorithm_->info.name,
              " measures whole tensors, over all ranks");
  Own own = own_of(param);
  own.shard = shard;
  set_own(param, handle, own);
}

inline void Optimizer::set_format(const Tensor& param, const std::string& format, std::int64_t block_size) {
  Own own = own_of(param);
  own.format = format, own.block_size = block_size;
  set_own(param, handle_of(param, "set_format"), own);
}

inline ::torch::Tensor Optimizer::skipped() const {
  if (!whole().guard.value || devices_.empty()) return {};
  // The count over all devices decides, so every report says the same.
  static_assert(offsetof(octavo_device_report, skipped) == 0);
  return devices_.front().report.tensor().view(::torch::kUInt8)[0];
}

inline bool Optimizer::last_step_skipped() const {
  if (!whole().guard.value) return false;
  for (const DeviceBuffers& buffers : devices_) {
    const Tensor here = buffers.report.tensor().cpu();
    if (static_cast<const octavo_device_report*>(here.data_ptr())->skipped != 0) return true;
  }
  return false;
}

}  // namespace octavo::torch
