// The base class of all classes of octavo/torch/optim.h: a torch::optim::Optimizer over the engine of the
// core. A step first checks all groups; an error throws before anything is written. Then the engine makes one
// native call per group, device and step count, on the current stream, without waiting for it. Not
// thread-safe, like torch's optimizers; the hooks of gradient release and of offload wait for one another.
// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <octavo/torch/devices.h>
#include <octavo/torch/records.h>
#include <octavo/torch/release.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace octavo::torch {

// A gradient that is read although its parameter does not have it any more.
struct Reading {
  std::uint32_t handle;
  native::Used grad;
};

// The choices of set_shard and set_format for a parameter. The weak pointer keeps the address from being used
// for another tensor, and it expires with the parameter.
struct Owned {
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> param;
  Own own;
};

// What an optimizer has besides torch's members, so that it can be moved as a whole.
struct OptimizerMembers {
  explicit OptimizerMembers(const Algorithm& algorithm)
      : algorithm_(&algorithm),
        name_(algorithm.info.title),
        engine_(native::make_engine(algorithm.info.number)) {}

  const Algorithm* algorithm_;
  const char* name_;
  native::Engine engine_;
  std::vector<Record> records_;                              // by handle: the parameter's number among all
  std::vector<std::pair<std::size_t, std::size_t>> places_;  // by handle: group and index in it
  std::unordered_map<const void*, std::uint32_t> handles_;
  std::unordered_map<const void*, Owned> own_;
  std::list<DeviceBuffers> devices_;   // one per device; they stay where they are
  std::vector<::torch::Tensor> kept_;  // workspaces that a CUDA graph may still use
  std::uint64_t plan_ = 0;             // that the workspaces are large enough for
  ::torch::Tensor norm_, loss_scale_, found_inf_;
  std::vector<::torch::Tensor> rates_;  // by group; undefined: the options' number
  NormReduction reduce_;
  std::exception_ptr failure_;  // of reduce_, inside a step
  std::unique_ptr<ReleaseHooks> hooks_;
  // Offload.
  bool placed_ = false;    // residences and places are chosen for all parameters that there are
  bool attached_ = false;  // steps are deferred
  std::function<bool()> complete_;
  std::vector<std::uint32_t> order_, told_order_;  // of wait() since the last step; of the engine
  std::vector<bool> waited_;                       // by handle: it is in order_
  std::deque<Reading> reading_;                    // oldest first
  std::int64_t reading_bytes_ = 0;
  // Scalars as they were when a deferred step began, with the tensors that they are copies of; those of the
  // step that may be under way, and of the next.
  std::vector<std::pair<::torch::Tensor, ::torch::Tensor>> used_scalars_, scalars_;
};

class Optimizer : public ::torch::optim::Optimizer, private OptimizerMembers {
 public:
  using Tensor = ::torch::Tensor;
  using ParamGroup = ::torch::optim::OptimizerParamGroup;

  Optimizer(Optimizer&& other) noexcept
      : ::torch::optim::Optimizer(std::move(other)), OptimizerMembers(std::move(other)) {
    if (hooks_) hooks_->belong_to(this);
  }
  Optimizer& operator=(Optimizer&& other) noexcept {
    if (engine_) octavo_engine_synchronize(engine_.get());
    ::torch::optim::Optimizer::operator=(std::move(other));
    OptimizerMembers::operator=(std::move(other));
    if (hooks_) hooks_->belong_to(this);
    return *this;
  }

  // What is under way uses memory of the optimizer.
  ~Optimizer() override {
    if (engine_) octavo_engine_synchronize(engine_.get());
  }

  // One step over every parameter that has a gradient. Returns the closure's loss.
  Tensor step(LossClosure closure = nullptr) override;

  // torch's, with the group's options completed and checked; on an error the group is not added.
  void add_param_group(const ParamGroup& group);

  // The norm of the last step's gradients before clipping (a 0-d tensor on their device), where max_grad_norm
  // or guard had it computed; else undefined.
  Tensor grad_norm() const { return norm_.defined() ? norm_[0].clone() : Tensor(); }
  // Whether the guard skipped the last step. Waits for the device.
  bool last_step_skipped() const;
  // The same without waiting: 0-d, 0 or 1, on the device of the first gradient; undefined without the guard.
  Tensor skipped() const;

  // Dynamic loss scaling: gradients are divided by this inside the step, before clipping. One float on the
  // parameters' device, read at each step; undefined (the default): gradients are not divided. grad_norm() is
  // the norm of the scaled gradients.
  void set_loss_scale(Tensor scale) { loss_scale_ = checked_scalar("loss_scale", std::move(scale)); }
  // Where it is not 0 the step changes nothing. One float on the parameters' device.
  void set_found_inf(Tensor found) { found_inf_ = checked_scalar("found_inf", std::move(found)); }
  // A group's learning rate on the device, for CUDA graphs: replaces the option `lr` while it is defined.
  void set_lr(std::size_t group, Tensor rate);

  // The tensor is a part of a larger parameter, of which this process has no more. Its format is that of the
  // whole parameter, and stochastic rounding is that of its place. Before its first step.
  void set_shard(const Tensor& param, const Shard& shard);
  // Called at each step that takes a norm, for each part that set_shard named, in the order of their numbers,
  // also where no gradient of it is here: so every rank calls it as often. Algorithms that measure whole
  // tensors before they update them call it for that, too; ranks then need gradients of the same parameters.
  // `sum` adds values over ranks. `largest`, called after it, takes their maximum: without it the largest
  // gradient of the norm is that of this rank.
  void set_norm_reduce(ReduceNorm sum, ReduceNorm largest = nullptr) {
    reduce_ = {std::move(sum), std::move(largest)};
  }
  // The state format of one parameter, whatever its size. Before its first step.
  void set_format(const Tensor& param, const std::string& format, std::int64_t block_size = 0);

  // --- Offload: docs/guides/offload.md ---

  // From now on step() returns before offloaded parameters are up to date: they are updated while the next
  // forward pass runs. LibTorch's modules have no hooks, so the forward pass itself says which it is about to
  // use: wait() before any use of a parameter, that of evaluation and saving included. step() also takes the
  // gradients of offloaded parameters over, because they are read later. The order of the waits is the order
  // of the next updates.
  void attach() { attached_ = true; }
  bool attached() const { return attached_; }
  // What is queued on the current stream from now on sees these parameters up to date: all of them, some, or
  // those of a module and its children. Parameters of others are passed over.
  void wait();
  void wait(const std::vector<Tensor>& params);
  void wait(const ::torch::nn::Module& module) { wait(module.parameters()); }
  // Takes a parameter's gradient to host memory, adds it to what was taken since the last step, and frees it:
  // what offload_gradients does when a gradient is complete. Does nothing where the state is on the device.
  void take(const Tensor& param);
  // Asked before offload_gradients takes a gradient in the backward pass; false leaves it with its parameter:
  // more of it may come. step() uses it as it is, or adds it to what was taken.
  void set_take_filter(std::function<bool()> complete) { complete_ = std::move(complete); }
  // torch's. Also forgets gradients that were taken, which the function of the base class does not.
  void zero_grad(bool set_to_none = true);
  // Forgets them alone.
  void drop_taken();
  // Somebody has written parameters in a way that autograd does not see (data(), set_data and in-place
  // functions it does): "to_host" makes the copies that the host updates again; "to_device" makes the
  // parameters from the copies.
  void sync_params(const std::string& way);
  // Where a parameter's state lives, or will with its first step: "device", "host" or "stream".
  const char* residence_of(const Tensor& param);
  // Bytes of host memory: offloaded states, and the engine's copies of weights and gradients.
  std::int64_t host_state_bytes() const;
  std::int64_t host_copy_bytes() const { return octavo_engine_host_bytes(engine_.get()); }

  const char* algorithm() const { return algorithm_->info.name; }  // as options call it

  // Bytes of moments, scales and master bits, wherever they are.
  std::int64_t state_bytes() const;
  // Bytes of the workspaces of steps and norms, after the first step, and of what offloaded states are
  // brought through.
  std::int64_t workspace_bytes() const;
  // A parameter's state; null before its first step. Waits for what is under way where states are offloaded.
  const ParamState* state_of(const Tensor& param) const {
    settle();
    return find_state(param);
  }
  // What its state is, or will be with its first step.
  Kind kind_of(const Tensor& param) const;
  // Sets the state of a parameter, for checkpoints of another kind than save() writes. Throws and changes
  // nothing where the state does not fit, or the parameter belongs to another optimizer.
  void set_state(const Tensor& param, std::unique_ptr<ParamState> state);

  // Groups must be those that were saved, in the same order: parameters have no names here. Options are
  // loaded with the states. Everything is checked first: on an error nothing has changed.
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

 protected:
  Optimizer(const std::vector<ParamGroup>& groups, std::unique_ptr<Options> defaults);

 private:
  friend class ReleaseHooks;

  struct Call {
    std::vector<octavo_engine_device> devices;
    octavo_engine_args args = native::sized<octavo_engine_args>();
  };

  const Options& own_defaults() const { return static_cast<const Options&>(*defaults_); }
  const Settings& whole() const { return own_defaults().settings(); }
  const Options& options_of(std::size_t group) const {
    return static_cast<const Options&>(param_groups_[group].options());
  }
  Where where(std::uint32_t handle) const { return {name_, places_[handle].first, places_[handle].second}; }
  void expect(octavo_status status) const;
  const Tensor& param_of(std::uint32_t handle) const;
  std::uint32_t handle_of(const Tensor& param, const char* caller) const;
  const Own& own_of(const Tensor& param) const;
  ParamState* find_state(const Tensor& param) const;
  bool needs_norm() const { return whole().guard.value || whole().max_grad_norm.value > 0; }
  Tensor checked_scalar(const char* what, Tensor scalar) const;
  void set_own(const Tensor& param, std::uint32_t handle, const Own& own);

  void complete_groups();
  void number_parameters();
  void forget(const std::vector<std::uint32_t>& handles);
  void set_group(std::size_t number, const Options& options);
  Item item_of(std::uint32_t handle) const;
  std::vector<Item> look();
  void prepare(std::vector<Item>& items);
  void tell(const std::vector<Item*>& changed, bool on_device);
  DeviceBuffers& buffers_of(const ::torch::Device& device);
  void begin(const std::vector<Item>& items);
  void make_room();
  Call call_with(bool norm, bool report, bool defer);
  static std::int32_t add_sums(void* self, std::uint32_t kind, std::int32_t index, std::uint32_t part,
                               double* sums, std::int64_t count) noexcept;
  void rethrow();
  std::vector<NormPart> norm_parts(const std::vector<Item>& items);
  void take_norm(const std::vector<NormPart>& parts, const octavo_engine_args& args);
  void bump(const std::vector<Item>& items);
  void came(const Tensor& param);
  void ready(std::uint32_t handle);
  void ready(const Item& item);
  void finish();

  bool offloads() const { return whole().offload.value != "none"; }
  bool held(std::uint32_t handle) const {
    return offloads() && octavo_engine_holds(engine_.get(), handle) != 0;
  }
  const std::uint32_t* find_handle(const Tensor& param) const;
  void place();
  void check_room(const std::vector<std::uint32_t>& leaving, const std::vector<Kind>& kinds) const;
  void place_on_host(const std::vector<std::uint32_t>& leaving, const std::vector<Kind>& kinds);
  const HostPlace& place_of(const Item& item, const Kind& kind);
  void take(std::uint32_t handle);
  void refresh(const std::vector<Item>& items);
  void keep(std::uint32_t handle, const Tensor& grad);
  void let_go(const std::vector<std::uint32_t>& handles);
  void let_go_of_all();
  void end(Reading& read);
  void hand_over(const std::vector<Item>& items);
  void wait_for(const std::vector<std::uint32_t>& handles, std::uint32_t what);
  void tell_order();
  Tensor steady(const Tensor& scalar);
  void settle() const;
};

inline Optimizer::Optimizer(const std::vector<ParamGroup>& groups, std::unique_ptr<Options> defaults)
    : ::torch::optim::Optimizer(std::vector<ParamGroup>{}, std::move(defaults)),
      OptimizerMembers(own_defaults().algorithm()) {
  own_defaults().check();
  set_group(0, own_defaults());  // only to check the numbers
  if (whole().gradient_release.value || whole().offload_gradients.value)
    hooks_ = std::make_unique<ReleaseHooks>(this);
  for (const ParamGroup& group : groups) add_param_group(group);
}

inline void Optimizer::add_param_group(const ParamGroup& group) {
  ::torch::optim::Optimizer::add_param_group(group);
  // torch may have merged nothing, or only the defaults. The options that the caller gave are used.
  if (group.has_options()) param_groups_.back().set_options(group.options().clone());
  try {
    complete_groups();
  } catch (...) {
    param_groups_.pop_back();
    number_parameters();
    throw;
  }
}

// Groups may also be added through torch's base class, whose function is not virtual. So this is checked at
// every step.
inline void Optimizer::complete_groups() {
  bool complete = true;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    auto* options = dynamic_cast<Options*>(&param_groups_[g].options());
    TORCH_CHECK(
        options != nullptr && typeid(*options) == typeid(*defaults_) && &options->algorithm() == algorithm_,
        "octavo::torch::", name_, ": group ", g,
        " has options of another class, expected octavo::torch::", name_, "Options");
    if (options->complete()) continue;
    Settings::whole([&](const char* option, auto field) {
      const auto& mine = options->settings().*field;
      TORCH_CHECK(!mine.given || mine.value == (whole().*field).value, "octavo::torch::", name_, ": group ",
                  g, ": ", option, " is of the whole optimizer; set it on the optimizer's options");
    });
    const std::unique_ptr<::torch::optim::OptimizerOptions> merged = options->clone();
    static_cast<Options&>(*merged).inherit(own_defaults());
    static_cast<Options&>(*merged).check();
    options->inherit(own_defaults());
    complete = false;
  }
  number_parameters();
  if (complete) return;
  std::unordered_set<const void*> seen;
  for (std::uint32_t handle = 0; handle < places_.size(); ++handle) {
    const Tensor& param = param_of(handle);
    check_param(param, where(handle));
    TORCH_CHECK(seen.insert(param.unsafeGetTensorImpl()).second, where(handle),
                "it is there twice, and one step would write it twice");
    store_of(param, options_of(places_[handle].first).settings().master.value, where(handle));
  }
  for (std::size_t g = 0; g < param_groups_.size(); ++g) set_group(g, options_of(g));
}

// Handles are places among all parameters. What the engine knows of a parameter that is not there any more,
// or has moved, is forgotten: its memory may be another's by now.
inline void Optimizer::number_parameters() {
  places_.clear();
  std::vector<std::uint32_t> stale;
  for (std::size_t g = 0; g < param_groups_.size(); ++g) {
    const auto& params = param_groups_[g].params();
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto handle = static_cast<std::uint32_t>(places_.size());
      places_.emplace_back(g, i);
      if (handle == records_.size()) records_.emplace_back();
      Record& record = records_[handle];
      if (!params[i].defined()) continue;
      const bool same = record.impl == params[i].unsafeGetTensorImpl();
      const bool moved = record.known && record.told.param != params[i].data_ptr();
      // One that has moved and has a gradient is told again before the step.
      if (same && (!moved || params[i].grad().defined() || held(handle))) continue;
      if (record.known) stale.push_back(handle);
      if (!same) {
        if (record.place.data != nullptr) settle();  // steps that are under way write there
        record.place = HostPlace(), placed_ = false;
      }
      // Another parameter may have the address of the one before it later.
      if (const auto before = handles_.find(record.impl);
          before != handles_.end() && before->second == handle)
        handles_.erase(before);
      record.impl = params[i].unsafeGetTensorImpl();
      handles_[record.impl] = handle;
    }
  }
  for (std::size_t gone = places_.size(); gone < records_.size(); ++gone) {
    if (records_[gone].known) stale.push_back(static_cast<std::uint32_t>(gone));
  }
  forget(stale);
  records_.resize(places_.size());
  if (hooks_) hooks_->watch();
}

inline void Optimizer::forget(const std::vector<std::uint32_t>& handles) {
  if (handles.empty()) return;
  settle();
  reading_.clear(), reading_bytes_ = 0;
  native::check(
      octavo_engine_remove(engine_.get(), handles.data(), static_cast<std::int64_t>(handles.size())),
      "octavo: ");
  for (const std::uint32_t handle : handles) records_[handle].known = false;
}

// Groups of the engine have the numbers of ours. One that is not in use can be set to check its options.
inline void Optimizer::set_group(std::size_t number, const Options& options) {
  options.check();
  octavo_step_args args = options.step_args();
  args.clip_grad_norm = whole().max_grad_norm.value;
  ::torch::Device device(::torch::kCPU);
  if (number < rates_.size() && rates_[number].defined()) {
    args.scalar_lr = steady(rates_[number]).data_ptr<float>();
    device = rates_[number].device();
  }
  expect(octavo_engine_set_group(engine_.get(), static_cast<std::uint32_t>(number), options.switches(), &args,
                                 native::device_kind(device), native::device_index(device)));
}

// A failure of the engine, with the parameter that it is about.
inline void Optimizer::expect(octavo_status status) const {
  if (status == 0) return;
  const std::string message = octavo_last_error();
  const std::int64_t handle = octavo_engine_failed_tensor(engine_.get());
  TORCH_CHECK(handle < 0 || handle >= static_cast<std::int64_t>(places_.size()),
              where(static_cast<std::uint32_t>(handle)), message);
  TORCH_CHECK(false, "octavo::torch::", name_, ": ", message);
}

inline const ::torch::Tensor& Optimizer::param_of(std::uint32_t handle) const {
  return param_groups_[places_[handle].first].params()[places_[handle].second];
}

// Null: it is not of this optimizer.
inline const std::uint32_t* Optimizer::find_handle(const Tensor& param) const {
  const auto found = handles_.find(param.unsafeGetTensorImpl());
  const bool mine = found != handles_.end() && found->second < records_.size() &&
                    records_[found->second].impl == param.unsafeGetTensorImpl();
  return mine ? &found->second : nullptr;
}

inline std::uint32_t Optimizer::handle_of(const Tensor& param, const char* caller) const {
  const std::uint32_t* const handle = find_handle(param);
  TORCH_CHECK(handle != nullptr, "octavo::torch::", name_, ": ", caller,
              ": the parameter is not of this optimizer");
  return *handle;
}

inline const Own& Optimizer::own_of(const Tensor& param) const {
  static const Own none;
  const auto found = own_.find(param.unsafeGetTensorImpl());
  return found == own_.end() ? none : found->second.own;
}

inline ParamState* Optimizer::find_state(const Tensor& param) const {
  const auto found = state_.find(param.unsafeGetTensorImpl());
  return found == state_.end() ? nullptr : dynamic_cast<ParamState*>(found->second.get());
}

inline Kind Optimizer::kind_of(const Tensor& param) const {
  const std::uint32_t handle = handle_of(param, "kind_of");
  return octavo::torch::kind_of(param, options_of(places_[handle].first), own_of(param), find_state(param),
                                where(handle));
}

inline std::int64_t Optimizer::workspace_bytes() const {
  std::int64_t total = 0;
  for (const DeviceBuffers& buffers : devices_) total += buffers.workspace_bytes + buffers.staging_bytes;
  return total;
}

inline std::int64_t Optimizer::state_bytes() const {
  std::int64_t total = 0;
  for (const auto& group : param_groups_) {
    for (const Tensor& param : group.params()) {
      if (const ParamState* state = find_state(param)) total += state->bytes();
    }
  }
  return total;
}

}  // namespace octavo::torch

#include <octavo/torch/checkpoint.h>  // IWYU pragma: export
#include <octavo/torch/offload.h>     // IWYU pragma: export
#include <octavo/torch/scalars.h>     // IWYU pragma: export
#include <octavo/torch/step.h>        // IWYU pragma: export
