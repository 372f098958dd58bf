// The engine of octavo/octavo.h: one object per optimizer, between an adapter's tensors and the native steps.
// octavo.h has the contracts of the calls and of the structs' fields, which have the same names here; this
// header adds what only the C++ side needs to know.
//
// Memory: the engine owns no tensor. Parameters, states, step counts, workspaces, norms and reports are the
// caller's and must stay valid until they are replaced or removed (on a GPU: in stream order).
// Errors: a failed call has written no buffer, advanced no step count and changed nothing in the engine. Only
// if a device itself fails (StatusCode::failed), part of a step may have been taken; counts show which part.
// Offload: the states of a tensor may be in host memory (Residence). The engine then keeps copies of weights
// and gradients there, in memory of the caller's allocator, and has queues and threads that work while the
// caller continues. A step orders the caller's stream after their work, unless it defers that to `wait`.
// Threads: an engine is used by one thread at a time; different engines are independent.
// Streams: norm, step, ready and finish work on the streams they are given. Nothing is allocated on a GPU.
// Without offload they return without waiting for a GPU, so they may be captured in a CUDA graph, if the step
// counts are on the device. With offload the host waits in two places: a norm over gradients in host memory
// needs the sums of the gradients on the device, and a step that does not defer (EngineArgs::defer) returns
// after the CPU's part of it. A graph keeps the tensors and the cohorts that it was captured with: step those
// together outside it, too, because one count of a cohort stands for all.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"
#include "offload/host_arena.h"

#include <cstdint>
#include <memory>
#include <span>

namespace octavo::engine {

// EngineTensor::known_steps.
inline constexpr std::int64_t kStepsUnknown = -1;    // not known to equal the count of another tensor
inline constexpr std::int64_t kStepsUnchanged = -2;  // the count that the tensor of this handle had before

// One tensor: a complete parameter, or this process's shard of one.
struct EngineTensor {
  TensorArgs tensor;             // `grad` and `spec.grad_dtype` are ignored: begin gives them
  Device param_device{};         // of parameter and gradient
  Device state_device{};         // of codes, scales and residual: param_device, or the CPU (host, stream)
  std::uint32_t group = 0;       // set before by set_group
  std::uint32_t part = 0;        // 0: the gradient is complete in this process; else the caller's number for
                                 // the ranks that share it (see norm)
  std::int64_t whole_numel = 0;  // of the complete parameter; 0: numel
  // The steps taken so far, of this tensor alone. In host memory the engine reads and advances it. The host
  // never reads a count in device memory: tensors that are known to have equal counts are stepped by one
  // call, which reads one of the counts and advances all, unless the step is skipped.
  std::int64_t* step = nullptr;
  bool step_on_device = false;               // in memory of param_device
  std::int64_t known_steps = kStepsUnknown;  // step_on_device: the value of *step, now or in stream order
  // Where the state is and which device updates it. `host` needs a step count in host memory. Host memory
  // that is not pinned works, but copies then block the caller. The parameter of an offloaded tensor shares
  // no memory with another. If an algorithm measures complete tensors (octavo::passes is 2), those that ranks
  // share (part is not 0) cannot be offloaded.
  Residence residence = Residence::device;
  bool held_in_fp32 = false;  // gradients that `take` keeps are accumulated in fp32, else in their own dtype
};

// The options that all tensors of a group share. They may change at every step.
struct EngineGroup {
  HyperParams hyper{};
  std::uint64_t seed = 0;       // of stochastic rounding
  double clip_grad_norm = 0.0;  // gradients are clipped to it by the norm over all gradients; 0 does not clip
  // Bit i: the i-th switching option of the algorithm's description is on. Switches decide which moments
  // a tensor has: after a change, the group's tensors must be given to `set` again before they are stepped.
  // If the first step fills a moment (AlgorithmInfo::first_step_fills), it does so at step count 1. To enable
  // the moment for a tensor that has already been stepped, zero the moment and set the step count to 0.
  std::uint32_t switches = 0;
  // In memory of lr_device: replaces hyper.lr for the tensors there. Null: hyper.lr is used everywhere.
  const float* lr = nullptr;
  Device lr_device{};
  friend bool operator==(const EngineGroup&, const EngineGroup&) = default;
};

// One device of a step; all pointers are memory of the device.
struct EngineDevice {
  Device device{};
  void* stream = nullptr;  // GPU: the cudaStream_t to work on
  // At least Engine::workspace_bytes(device), aligned to 16, of this engine alone. The engine keeps tables
  // there: pass the same untouched buffer at every step and they are not written again. Steps that use one
  // workspace on several streams must be ordered by the caller. A CUDA graph that was captured with a
  // workspace writes into it at every replay: keep it, and use another one for steps outside the graph (or
  // pass the same: tables are then written again at every step).
  std::span<std::byte> workspace{};
  const float* loss_scale = nullptr;  // gradients are divided by it, besides grad_factor
  const float* found_inf = nullptr;   // not zero: the step is skipped, as torch's GradScaler expects
  // At least Engine::staging_bytes(device), aligned to 256, of this engine alone: the buffer through which
  // `stream` copies states. The engine's queues use it also after a call has returned; before it is freed or
  // replaced the engine must be asked to wait for all weights and gradients (Engine::wait without handles).
  std::span<std::byte> staging{};
  // step: the norm of all gradients, of all devices and ranks. ready and finish: that of the previous step.
  GradNorm* norm = nullptr;
  // Receives the outcome. On a device without a stepped tensor the norm decides it.
  StepReport* report = nullptr;
};

// Adds the sums of other ranks, if an algorithm measures complete tensors before it updates them
// (octavo::passes is 2) and other ranks have parts of them. Called once per cohort of tensors of one device
// and part (not 0), between the two passes: `sums` has `count` numbers in the device's memory, squares that
// are to be summed over the ranks of the part, in place and in stream order, on the device's stream. All
// ranks make the same calls in the same order, if the same tensors have gradients there. A result other than
// 0 is a failure, and fails the step, of which a part may have been taken.
struct EngineSums {
  std::int32_t (*add)(void* user, Device device, std::uint32_t part, double* sums,
                      std::int64_t count) = nullptr;
  void* user = nullptr;
};

struct EngineArgs {
  bool skip_nonfinite = false;  // a non-finite gradient skips the complete step; needs a norm on each device
  double grad_factor = 1.0;     // multiplies every gradient
  int threads = 0;              // CPU; 0: the pool's size
  std::span<const EngineDevice> devices{};  // all devices of begun tensors; may list others, too
  // Offloaded tensors may be written after step has returned, in stream order or not: before `wait` the
  // caller must not read or write their parameters, or free their gradients. Not deferred: step itself waits,
  // in stream order, for all of them.
  bool defer = false;
  EngineSums sums{};  // needed if an algorithm measures tensors that ranks share
};

// The condition of Engine::wait: weights are as the last step leaves them, or gradients were read.
enum class EngineWait : std::uint32_t { weights = 0, gradients = 1 };

// The direction of Engine::refresh.
enum class EngineCopy : std::uint32_t { to_host = 0, to_device = 1 };

// The norm of the begun gradients of one device and part.
struct EngineNormPart {
  Device device{};
  std::uint32_t part = 0;
  GradNorm* out = nullptr;  // memory of the device; zeros if no begun gradient belongs to the part
};

// The caller's function that sums norms over ranks and devices. A result other than 0 is a failure.
struct EngineCombine {
  std::int32_t (*call)(void* user) = nullptr;
  void* user = nullptr;
};

struct EnginePlan {
  bool fresh = false;        // this begin made it
  std::uint64_t number = 0;  // from 1; workspace needs are unchanged while the number is unchanged
  std::int64_t cohorts = 0;  // native calls of a step
};

class Engine {
 public:
  static Result<Engine> create(Algorithm algorithm);
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  // Groups have numbers below 2^20. Every option is checked here; equal options change nothing.
  Status set_group(std::uint32_t group, const EngineGroup& options);

  // Adds tensors, or replaces those of the same handle: the caller's numbers below 2^24, best dense. Specs,
  // buffers and overlap are checked here (on a GPU also whose memory a pointer is) and not again. Parameters
  // may share memory with one another (views): they are then stepped one after the other, in the order of
  // begin. No other buffer may share memory with any. Costs a pass over all tensors, so give many at once.
  // Invalidates the current begin().
  Status set(std::span<const std::uint32_t> handles, std::span<const EngineTensor> tensors);
  // Unregistered handles are ignored.
  void remove(std::span<const std::uint32_t> handles);
  // Registers that the caller has written step counts in device memory (loaded, reset). `values`: their
  // values (or kStepsUnknown), or empty: unknown. Counts in host memory need no call. Invalidates the current
  // begin().
  Status set_counts(std::span<const std::uint32_t> handles, std::span<const std::int64_t> values);

  // The tensors that have a gradient now: dense, in the parameter's memory order, on its device (the driver
  // is not queried). Checks handles, null, alignment and dtypes, and for a new plan that no gradient shares
  // memory with a written buffer. Their order is the order of the norm's sum. `with_norm`: norm, or ready
  // with a norm, will follow. Plans are kept by handles and dtypes. An empty list is allowed. Null stands for
  // the gradient that `take` has taken; its dtype is ignored.
  Result<EnginePlan> begin(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                           std::span<const DType> dtypes, bool with_norm = false);

  // The workspace that norm, step, ready and finish need now on a device.
  [[nodiscard]] std::int64_t workspace_bytes(Device device) const;

  // The norms of the begun gradients. Every device and part of a begun tensor must be listed; parts of which
  // other ranks may have gradients are listed although this rank has none, in one order on all ranks. One
  // part of number 0 needs no `combine`: its `out` is the device's norm. Otherwise `combine` is called once,
  // when the parts are queued: it sums each part over its ranks, and all of them into the `norm` of every
  // device (l2: root of the sum of squares; max: the largest; nonfinite: the sum), on the devices' streams.
  Status norm(const EngineArgs& args, std::span<const EngineNormPart> parts, EngineCombine combine = {});

  // One step of the begun tensors, cohort by cohort. With clip_grad_norm or skip_nonfinite every device needs
  // its norm. On a GPU with skip_nonfinite or found_inf, and in a graph, only the device knows whether the
  // step is taken: step counts must be in its memory, except those of Residence::host.
  Result<StepReport> step(const EngineArgs& args);

  // Gradient release: steps the begun tensors (usually one; all on one device) before the other gradients
  // are known. They are clipped by the previous step's norm, the device's `norm` (zeros at first: not
  // clipped), and skipped by their own count of non-finite elements. `own`: two GradNorms of the caller in
  // the device's memory, untouched until finish: [0] receives the norm of these gradients, [1] the norm that
  // clips. Null: no norm (no skip_nonfinite, no clipping). If their part is not 0, `combine` sums own[0] over
  // the ranks. It is an error if a tensor has already been ready since the last finish. Offloaded tensors:
  // without `defer` the stream waits for each of them; with it they are updated while the backward pass
  // continues.
  Result<StepReport> ready(const EngineArgs& args, GradNorm* own, EngineCombine combine = {});
  // Ends the step. `parts`, one per device with part 0: `out` receives the norm of the gradients that were
  // ready there, in the order of handles; if there are several, `combine` makes each of them the norm of
  // all. The devices' `norm` is then set to it for the next step (if l2 is finite), and their reports tell
  // whether a tensor was skipped. No parts: no norms. Without `defer` the streams are ordered after the
  // weights of all offloaded tensors.
  Status finish(const EngineArgs& args, std::span<const EngineNormPart> parts, EngineCombine combine = {});
  // Forgets which tensors were ready: other states were loaded.
  void forget_ready();

  // --- Offload ---

  // Copies gradients of offloaded tensors (host, stream; all on one device) to host memory, in their own
  // dtype and ordered after the work on `stream`; there they are added to the gradients taken of the same
  // tensor since its last step. A tensor whose dtype differs from the first time, or whose residence is the
  // device, is an error. The gradients are in use until wait(gradients), on the CPU, too.
  Status take(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
              std::span<const DType> dtypes, Device device, void* stream);
  // True if a gradient of the tensor was taken and not stepped yet.
  [[nodiscard]] bool holds(std::uint32_t handle) const;
  // Drops the taken gradients (no handles: of all tensors).
  Status drop(std::span<const std::uint32_t> handles);
  // Orders later work on `stream` after the weights of these tensors (no handles: of all) are up to date, or
  // their gradients were read. On the CPU it returns when that is done. Also returns an error of queued work:
  // the state of the engine's tensors is then unknown, and every later call fails.
  Status wait(std::span<const std::uint32_t> handles, EngineWait what, Device device, void* stream);
  // Copies parameters that the caller has written (no handles: of all `host` tensors) to their copies in host
  // memory, in stream order; or the copies to the parameters.
  Status refresh(std::span<const std::uint32_t> handles, EngineCopy way, Device device, void* stream);
  // The copy of a `host` tensor's parameter, in its dtype and memory order; null: the first step, or refresh,
  // has not made it yet. After synchronize it may be read and written until the next call of the engine.
  [[nodiscard]] void* host_param(std::uint32_t handle) const;
  // Waits on the host until all queued work is complete: states, counts and host_param may be read.
  Status synchronize();
  // The order in which offloaded tensors are updated, as far as groups and step counts allow it: that of the
  // next forward pass. Tensors that are not listed are last. The default is the order of begin. A changed
  // order invalidates the current begin().
  Status set_order(std::span<const std::uint32_t> handles);
  // The size of EngineDevice::staging that the next step needs.
  [[nodiscard]] std::int64_t staging_bytes(Device device) const;
  // Call it before the first offloaded tensor is set. The default is pinned memory of octavo/offload.h.
  Status set_host_memory(offload::HostAllocator memory);
  // Host memory that the engine has allocated.
  [[nodiscard]] std::int64_t host_bytes() const;

  // The handle of the tensor that caused the last failure; -1: none.
  [[nodiscard]] std::int64_t failed_tensor() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace octavo::engine
