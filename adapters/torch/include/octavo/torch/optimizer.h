// The base class of all classes of octavo/torch/optim.h, which is the header to include: a
// torch::optim::Optimizer over the engine of the core. step() first checks all groups; an error throws
// c10::Error before anything is written. Then the engine makes one native call per group, device and step
// count, on torch's current stream, and step() returns without waiting for it. Like torch's optimizers, it is
// not thread-safe; the hooks of gradient release and of offload wait for each other.
//
// This header has the contracts. optimizer_impl.h has step() and all functions that it calls,
// offload.h has the functions for states and gradients in host memory, checkpoint.h has save() and load().
// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <octavo/torch/device_buffers.h>
#include <octavo/torch/gradient_hooks.h>
#include <octavo/torch/tensors.h>
#include <torch/nn/module.h>

#include <deque>
#include <list>
#include <unordered_map>

namespace octavo::torch {

// octavo_engine_tensor.residence: where a state is, and what updates it.
constexpr std::uint32_t kOnDevice = 0, kOnHost = 1, kStreamed = 2;

// One parameter, and how it is registered with the engine. Its handle is its number among all parameters, by
// which stochastic rounding is keyed, too.
struct Member {
  std::size_t group = 0, index = 0;
  const void* impl = nullptr;  // the TensorImpl of the parameter
  bool registered = false;     // the engine has it, as `description` and `switches` say
  octavo_engine_tensor description{};
  std::uint32_t switches = 0;
  std::string format;  // of `description`
  ::torch::Tensor
      release_norms;  // gradient release: the norm of its own gradient, and the norm that clips it
  std::uint32_t residence = kOnDevice;
  HostMemory host;            // of its state, if that is offloaded
  std::uint64_t version = 0;  // autograd's, when the engine last read or wrote the parameter
  // The engine's queues write this memory even after the state was removed or the parameter was moved.
  ::torch::Tensor count;
  c10::Storage weight;  // of a deferred step, until a wait
  bool waited = false;  // it is in waited_order_
};

// A parameter of a step.
struct StepTensor {
  std::uint32_t handle;
  ::torch::Tensor param;
  ::torch::Tensor grad;  // in the parameter's memory order; undefined if it is in host memory
  ParamState* state;     // null before its first step
};

// The overrides of one parameter. The weak pointer prevents another tensor from getting the address of the
// parameter while they exist.
struct OwnedOverrides {
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> param;
  Overrides overrides;
};

// A gradient that the engine still reads although it was removed from its parameter.
struct RetainedGrad {
  std::uint32_t handle;
  native::StreamTensor grad;
};

// The data of an optimizer besides torch's, in one object, so that it can be moved.
struct OptimizerMembers {
  explicit OptimizerMembers(const Algorithm& algorithm)
      : algorithm_(&algorithm), name_(algorithm.info.title), engine_(algorithm.info.number) {}

  const Algorithm* algorithm_;
  const char* name_;
  mutable Engine engine_;               // state_of() and save() wait for it
  mutable std::exception_ptr failure_;  // thrown by add_sums() inside a call of the engine
  std::vector<Member> members_;         // by handle
  std::unordered_map<const void*, std::uint32_t> handles_;  // by TensorImpl
  std::unordered_map<const void*, OwnedOverrides> overrides_;
  std::list<DeviceBuffer> devices_;
  std::vector<::torch::Tensor> kept_;  // workspaces that a CUDA graph may still use
  std::uint64_t plan_ = 0;             // the engine's plan that the workspaces are large enough for
  ::torch::Tensor norm_, loss_scale_, found_inf_;
  std::vector<::torch::Tensor> rates_;  // by group; undefined: the rate in the options
  NormReduction reduce_;
  std::unique_ptr<GradientHooks> hooks_;

  // Offload.
  bool residences_chosen_ = false;
  bool attached_ = false;  // steps are deferred
  std::function<bool()> gradient_filter_;
  std::vector<std::uint32_t> waited_order_;  // of wait() since the last step
  std::vector<std::uint32_t> update_order_;  // that the engine has
  std::deque<RetainedGrad> retained_;        // oldest first
  std::int64_t retained_bytes_ = 0;
  // Device scalars and their copies: for the next deferred step, and for the one that may be under way.
  std::vector<std::pair<::torch::Tensor, ::torch::Tensor>> scalar_copies_, used_scalar_copies_;
};

class Optimizer : public ::torch::optim::Optimizer, private OptimizerMembers {
 public:
  using Tensor = ::torch::Tensor;
  using ParamGroup = ::torch::optim::OptimizerParamGroup;

  Optimizer(Optimizer&& other) noexcept
      : ::torch::optim::Optimizer(std::move(other)), OptimizerMembers(std::move(other)) {
    connect_hooks();
  }
  Optimizer& operator=(Optimizer&& other) noexcept {
    if (engine_.get() != nullptr) octavo_engine_synchronize(engine_.get());
    ::torch::optim::Optimizer::operator=(std::move(other));
    OptimizerMembers::operator=(std::move(other));
    connect_hooks();
    return *this;
  }
  // Waits for work that uses memory of the optimizer.
  ~Optimizer() override {
    if (engine_.get() != nullptr) octavo_engine_synchronize(engine_.get());
  }

  // Steps every parameter that has a gradient. Returns the closure's loss.
  Tensor step(LossClosure closure = nullptr) override;

  // Like torch's, but inherits and checks the group's options. After an error the group is not added.
  void add_param_group(const ParamGroup& group);

  // Returns the norm of the last step's gradients before clipping: a 0-d tensor on their device; undefined if
  // neither clip_grad_norm nor skip_nonfinite needed it.
  Tensor grad_norm() const { return norm_.defined() ? norm_[0].clone() : Tensor(); }
  // Returns true if skip_nonfinite skipped the last step. Waits for the device.
  bool last_step_skipped() const;
  // Returns 0 or 1 as a 0-d tensor on the device of the first gradient, without waiting; undefined without
  // skip_nonfinite.
  Tensor skipped() const;

  // Sets the scale of dynamic loss scaling. step() divides gradients by it before clipping. It is one float
  // on the parameters' device, read at each step; undefined (the default): gradients are not divided.
  // grad_norm() is the norm of the scaled gradients.
  void set_loss_scale(Tensor scale) { loss_scale_ = checked_scalar("loss_scale", std::move(scale)); }
  // Sets one float on the parameters' device. If it is not 0, step() changes nothing.
  void set_found_inf(Tensor found) { found_inf_ = checked_scalar("found_inf", std::move(found)); }
  // Sets a group's learning rate on the device, for CUDA graphs. While it is defined it replaces the option
  // lr.
  void set_lr(std::size_t group, Tensor rate);

  // Declares the tensor a part of a larger parameter, the only part in this process. Its format is that of
  // the complete parameter, and stochastic rounding is that of its position. Call it before the first step.
  void set_shard(const Tensor& param, const Shard& shard);
  // step() calls `sum` if it computes a norm, for each part of set_shard() in the order of their numbers,
  // even if this rank has no gradient of the part, so every rank calls it equally often. It adds values over
  // the ranks. Algorithms that measure complete tensors before they update them call it for that, too; ranks
  // must then have gradients of the same parameters. `largest`, called after it, computes their maximum;
  // without it the largest gradient of the norm is that of this rank.
  void set_norm_reduce(ReduceNorm sum, ReduceNorm largest = nullptr) {
    reduce_ = {std::move(sum), std::move(largest)};
  }
  // Sets the state format of one parameter for any size. Call it before its first step.
  void set_format(const Tensor& param, const std::string& format, std::int64_t block_size = 0);

  // --- Offload: docs/guides/offload.md ---

  // Makes step() return before offloaded parameters are updated: they are updated while the next forward pass
  // runs. LibTorch's modules have no hooks, so the forward pass must call wait() before any use of a
  // parameter, also in evaluation and before saving. step() also removes the gradients of offloaded
  // parameters, because they are read later. Updates run in the order of the previous waits.
  void attach() { attached_ = true; }
  bool attached() const { return attached_; }
  // Makes work that is queued on the current stream from now on see updated parameters: all of them, some, or
  // those of a module and its children. Parameters of other optimizers are ignored.
  void wait();
  void wait(const std::vector<Tensor>& params);
  void wait(const ::torch::nn::Module& module) { wait(module.parameters()); }
  // Moves a parameter's gradient to host memory, where it is added to the gradients moved since the last
  // step: what offload_gradients does when a gradient is complete. Does nothing if the state is on the
  // device.
  void offload_gradient(const Tensor& param);
  // offload_gradients calls `filter` before it moves a gradient in the backward pass. If it returns false,
  // the gradient stays with its parameter, because more of it may come. step() uses it there, or adds it to
  // the moved gradients.
  void set_gradient_filter(std::function<bool()> filter) { gradient_filter_ = std::move(filter); }
  // Like torch's, but also drops the gradients in host memory, which torch's function does not.
  void zero_grad(bool set_to_none = true);
  // Drops the gradients in host memory only.
  void drop_gradients();
  // Call it after parameters were written in a way that autograd does not count (data(), set_data() and
  // in-place functions on it): "to_host" renews the copies that the host updates; "to_device" renews the
  // parameters from the copies.
  void sync_params(const std::string& direction);
  // Returns where a parameter's state is, or will be after its first step: "device", "host" or "stream".
  const char* residence_of(const Tensor& param);
  // Return bytes of host memory: offloaded states, and the engine's copies of weights and gradients.
  std::int64_t host_state_bytes() const;
  std::int64_t host_copy_bytes() const { return octavo_engine_host_bytes(engine_.get()); }

  // The former names of three functions.
  void take(const Tensor& param) { offload_gradient(param); }
  void drop_taken() { drop_gradients(); }
  void set_take_filter(std::function<bool()> filter) { set_gradient_filter(std::move(filter)); }

  // --- States ---

  const char* algorithm() const { return algorithm_->info.name; }  // its name in options

  // Returns the bytes of moments, scales and master bits, wherever they are.
  std::int64_t state_bytes() const;
  // Returns the bytes of workspaces and staging memory; 0 before the first step.
  std::int64_t workspace_bytes() const;
  // Returns a parameter's state; null before its first step. With offload it waits for work under way.
  const ParamState* state_of(const Tensor& param) const {
    synchronize();
    return find_state(param);
  }
  // Returns the kind of a parameter's state, also before its first step.
  Kind kind_of(const Tensor& param) const { return kind_of(handle_of(param, "kind_of"), find_state(param)); }
  // Sets the state of a parameter, for checkpoints of another kind than save() writes. Throws and changes
  // nothing if the state does not fit or the parameter belongs to another optimizer.
  void set_state(const Tensor& param, std::unique_ptr<ParamState> state);

  // Groups must be equal to the saved ones and in the same order, because parameters have no names here.
  // Options are loaded with the states. Everything is checked first: after an error nothing has changed.
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

 protected:
  Optimizer(const std::vector<ParamGroup>& groups, std::unique_ptr<Options> defaults);

 private:
  // The arguments of a call of the engine. Moving keeps the address of `devices`.
  struct Call {
    std::vector<octavo_engine_device> devices;
    octavo_engine_args args = octavo::make<octavo_engine_args>();
  };

  const Options& own_defaults() const { return static_cast<const Options&>(*defaults_); }
  const Settings& settings() const { return own_defaults().settings(); }
  const Options& options_of(std::size_t group) const {
    return static_cast<const Options&>(param_groups_[group].options());
  }
  const Options& options_of(const Member& member) const { return options_of(member.group); }
  bool needs_norm() const { return settings().skip_nonfinite.value || settings().clip_grad_norm.value > 0; }
  bool counts_on_device() const {
    return settings().skip_nonfinite.value || settings().capturable.value || found_inf_.defined();
  }
  bool offloads() const { return settings().offload.value != "none"; }

  // Calls f(engine). A failure of the engine becomes a c10::Error with the name of the parameter.
  template <class F>
  void call_engine(F&& f) const;
  ParamName name_of(std::uint32_t handle) const {
    return {name_, members_[handle].group, members_[handle].index};
  }
  const Tensor& param_of(std::uint32_t handle) const {
    return param_groups_[members_[handle].group].params()[members_[handle].index];
  }
  const std::uint32_t* find_handle(const Tensor& param) const;  // null: it is of another optimizer
  std::uint32_t handle_of(const Tensor& param, const char* caller) const;
  ParamState* find_state(const Tensor& param) const {
    const auto found = state_.find(param.unsafeGetTensorImpl());
    return found == state_.end() ? nullptr : dynamic_cast<ParamState*>(found->second.get());
  }
  const Overrides& overrides_of(const Tensor& param) const {
    static const Overrides none;
    const auto found = overrides_.find(param.unsafeGetTensorImpl());
    return found == overrides_.end() ? none : found->second.overrides;
  }
  std::uint32_t part_of(const Tensor& param) const { return overrides_of(param).shard.part; }
  Kind kind_of(std::uint32_t handle, const ParamState* state) const {
    return octavo::torch::kind_of(param_of(handle), options_of(members_[handle]),
                                  overrides_of(param_of(handle)), state, name_of(handle));
  }
  Tensor checked_scalar(const char* what, Tensor scalar) const;
  void set_overrides(const Tensor& param, std::uint32_t handle, const Overrides& overrides);

  // The step, in the order of its calls: optimizer_impl.h.
  std::vector<StepTensor> collect_gradients();
  void complete_groups();
  void update_members();
  void remove_from_engine(const std::vector<std::uint32_t>& handles);
  void send_options(std::size_t group, const Options& options);
  StepTensor make_step_tensor(std::uint32_t handle) const;
  void register_changed(std::vector<StepTensor>& tensors);
  octavo_engine_tensor describe_tensor(const StepTensor& tensor) const;
  void register_tensors(const std::vector<StepTensor*>& changed);
  void begin(const std::vector<StepTensor>& tensors);
  DeviceBuffer& buffer_of(const ::torch::Device& device) {
    for (DeviceBuffer& buffer : devices_) {
      if (buffer.device == device) return buffer;
    }
    return devices_.emplace_back(device);
  }
  void grow_buffers();
  std::vector<NormPart> norm_parts(const std::vector<StepTensor>& tensors);
  Call fill_args(bool norm, bool report, bool defer);
  static std::int32_t add_sums(void* self, std::uint32_t kind, std::int32_t index, std::uint32_t part,
                               double* sums, std::int64_t count) noexcept;
  void compute_norm(const std::vector<NormPart>& parts, const octavo_engine_args& args);
  void increment_versions(const std::vector<StepTensor>& tensors);

  // Gradient release: optimizer_impl.h.
  void connect_hooks();
  void step_one(const StepTensor& tensor);
  void finish_release();

  // Offload: offload.h.
  bool has_host_grad(std::uint32_t handle) const { return offloads() && engine_.holds(handle); }
  void choose_residences();
  void reserve_host_memory(const std::vector<std::pair<std::uint32_t, Kind>>& moving);
  void check_host_memory(const std::vector<std::pair<std::uint32_t, Kind>>& moving) const;
  void offload_gradient(std::uint32_t handle);
  void update_host_copies(const std::vector<StepTensor>& tensors);
  void send_update_order();
  Tensor copy_if_deferred(const Tensor& scalar);
  void retain_grad(const StepTensor& tensor);
  void limit_retained_grads();
  void retain_for_step(const std::vector<StepTensor>& tensors);
  void release_grads(const std::vector<std::uint32_t>& handles);
  template <class What>
  using DeviceCall = void (Engine::*)(Engine::Handles, What, std::uint32_t, std::int32_t, void*);
  template <class What>
  void call_on_devices(DeviceCall<What> call, const std::vector<std::uint32_t>& handles, What what);
  void synchronize() const;
};

// Returns the number of writes to a tensor that autograd has counted; 0 if it does not count.
inline std::uint64_t version_of(const ::torch::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

template <class F>
void Optimizer::call_engine(F&& f) const {
  try {
    f(engine_);
  } catch (const EngineError& error) {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    const std::int64_t handle = error.tensor();
    TORCH_CHECK(handle < 0 || handle >= static_cast<std::int64_t>(members_.size()),
                name_of(static_cast<std::uint32_t>(handle)), error.what());
    TORCH_CHECK(false, "octavo::torch::", name_, ": ", error.what());
  }
}

}  // namespace octavo::torch
