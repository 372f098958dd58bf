// The engine: one object per optimizer, between an adapter's tensors and the native steps. It knows every
// tensor once, and then steps any of them that have a gradient: it finds which can be stepped by one call,
// keeps those plans, counts steps per tensor, takes norms over devices, clips, guards, and steps gradients
// that arrive early.
//
// Memory: the engine owns no tensor. Parameters, states, step counts, workspaces, norms and reports are the
// caller's and must stay valid until they are replaced or removed (on a GPU: in stream order).
// Errors: a failed call has written no buffer, advanced no step count and changed nothing in the engine. Only
// where a device itself fails (StatusCode::failed) a part of a step may have been taken; counts say which.
// Offload: the states of a tensor may lie in host memory (Residence). The engine then keeps copies of weights
// and gradients there itself, by the caller's allocator, and has queues and threads of its own that work
// while the caller goes on. A step orders the caller's stream behind them, unless it defers that to `wait`.
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
inline constexpr std::int64_t kStepsUnknown = -1;    // not equal to any other tensor's, as far as is known
inline constexpr std::int64_t kStepsUnchanged = -2;  // what the tensor of this handle held before

// One tensor: a whole parameter, or the shard of one that is here.
struct EngineTensor {
  TensorArgs tensor;        // `grad` and `spec.grad_dtype` are not looked at: begin gives them
  Device param_device{};    // of parameter and gradient
  Device state_device{};    // of codes, scales and residual: param_device, or the CPU (host, stream)
  std::uint32_t group = 0;  // one that set_group has set
  std::uint32_t part = 0;   // 0: its gradient is whole in this process; else a number of the caller's for
                            // the ranks that share it (see norm)
  std::int64_t whole_numel = 0;  // of the whole parameter; 0: numel
  // Steps taken so far, of this tensor alone. In host memory the engine reads and advances it. In device
  // memory it is never read by the host: tensors that are known to have equal counts are stepped by one call,
  // which reads one of the counts and advances all, unless the step is skipped.
  std::int64_t* step = nullptr;
  bool step_on_device = false;               // in memory of param_device
  std::int64_t known_steps = kStepsUnknown;  // step_on_device: what *step holds, or will in stream order
  // Where the state lives and who updates it. `host` needs a step count in host memory. Host memory that is
  // not pinned works, but copies then hold up the caller. The parameter of an offloaded tensor shares no
  // memory with another. Where an algorithm measures whole tensors (octavo::passes is 2), those that ranks
  // share (part is not 0) cannot be offloaded.
  Residence residence = Residence::device;
  bool held_in_fp32 = false;  // gradients that `take` keeps are added up in fp32, else in their own dtype
};

// What all tensors of a group share. May change at every step.
struct EngineGroup {
  HyperParams hyper{};
  std::uint64_t seed = 0;  // of stochastic rounding
  double max_norm = 0.0;   // gradients are clipped to it by the norm over all gradients; 0 does not clip
  // Bit i: the i-th switching option of the algorithm's description is on. Switches decide which moments
  // a tensor has: where they change, the group's tensors must be given to `set` again before they are
  // stepped. Where the first step fills a moment (AlgorithmInfo::first_step_fills), it does so at step count
  // 1: who switches it on for a tensor that was stepped before gives it zeros and sets its step count to 0.
  std::uint32_t switches = 0;
  // In memory of lr_device: replaces hyper.lr for the tensors there. Null: hyper.lr counts everywhere.
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
  // workspace writes into it at every replay: keep it, and take another one for steps outside the graph (or
  // pass the same: tables are then written again at every step).
  std::span<std::byte> workspace{};
  const float* loss_scale = nullptr;  // gradients are divided by it, besides grad_factor
  const float* found_inf = nullptr;   // not zero: the step is skipped, as torch's GradScaler asks
  // At least Engine::staging_bytes(device), aligned to 256, of this engine alone: what `stream` brings states
  // through. It is used on the engine's own queues, also after a call has returned; before it is freed or
  // replaced the engine must be asked to wait for all weights and gradients (Engine::wait without handles).
  std::span<std::byte> staging{};
  // step: the norm of all gradients, of all devices and ranks. ready and finish: that of the previous step.
  GradNorm* norm = nullptr;
  // Receives what happened; also on a device of which no tensor is stepped: what the norm says.
  StepReport* report = nullptr;
};

// Adds what other ranks have measured, where an algorithm measures whole tensors before it updates them
// (octavo::passes is 2) and parts of them are elsewhere. Called once per cohort of tensors of one device and
// part (not 0), between the two passes: `sums` has `count` numbers in the device's memory, squares that are
// to be summed over the ranks of the part, in place and in stream order, on the device's stream. All ranks
// make the same calls in the same order, if the same tensors have gradients there. Not 0: it failed, and so
// does the step, of which a part may have been taken.
struct EngineSums {
  std::int32_t (*add)(void* user, Device device, std::uint32_t part, double* sums,
                      std::int64_t count) = nullptr;
  void* user = nullptr;
};

struct EngineArgs {
  bool guard = false;  // a non-finite gradient anywhere skips the step whole; needs a norm on each device
  double grad_factor = 1.0;                 // multiplies every gradient
  int threads = 0;                          // CPU; 0: the pool's size
  std::span<const EngineDevice> devices{};  // all that begun tensors are on; others may be there, too
  // Offloaded tensors may be written after step has returned, in stream order or not: nobody may read or
  // write their parameters, or free their gradients, before `wait`. Not deferred: step itself waits, in
  // stream order, for all of them.
  bool defer = false;
  EngineSums sums{};  // needed where an algorithm measures tensors that ranks share
};

// What Engine::wait waits for: that weights are as the last step leaves them, or that gradients were read.
enum class EngineWait : std::uint32_t { weights = 0, gradients = 1 };

// Which way Engine::refresh copies.
enum class EngineCopy : std::uint32_t { to_host = 0, to_device = 1 };

// The norm of the begun gradients of one device and part.
struct EngineNormPart {
  Device device{};
  std::uint32_t part = 0;
  GradNorm* out = nullptr;  // memory of the device; zeros where no begun gradient belongs to the part
};

// The caller's function that sums norms over ranks and devices. Not 0: it failed.
struct EngineCombine {
  std::int32_t (*call)(void* user) = nullptr;
  void* user = nullptr;
};

struct EnginePlan {
  bool fresh = false;        // begin made it
  std::uint64_t number = 0;  // from 1; while it is the same, workspaces need the same
  std::int64_t cohorts = 0;  // native calls of a step
};

class Engine {
 public:
  static Result<Engine> create(Algorithm algorithm);
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  // Groups have numbers below 2^20. Every number is checked here; nothing happens where nothing changed.
  Status set_group(std::uint32_t group, const EngineGroup& options);

  // Adds tensors, or replaces those of the same handle: numbers of the caller below 2^24, best dense. Specs,
  // buffers and overlap are checked here (on a GPU also where every pointer lies) and not again. Parameters
  // may share memory with one another (views): they are then stepped one after the other, in the order of
  // begin. No other buffer may share memory with any. Costs a pass over all tensors, so give many at once.
  // What begin has begun is over.
  Status set(std::span<const std::uint32_t> handles, std::span<const EngineTensor> tensors);
  // Handles that are not known are passed over.
  void remove(std::span<const std::uint32_t> handles);
  // Somebody else has written step counts in device memory (loaded, reset). `values`: what they hold (or
  // kStepsUnknown), or empty: not known. Counts in host memory need no telling. What begin has begun is over.
  Status set_counts(std::span<const std::uint32_t> handles, std::span<const std::int64_t> values);

  // The tensors that have a gradient now: dense, in the parameter's memory order, on its device (which is not
  // asked of the driver). Checks handles, null, alignment and dtypes, and for a new plan that no gradient
  // shares memory with what is written. The order is that of the norm's sum. `with_norm`: norm, or ready with
  // a norm, will follow. Plans are kept by handles and dtypes. No handle at all is allowed. Null stands for
  // the gradient that `take` has taken; its dtype is not looked at.
  Result<EnginePlan> begin(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
                           std::span<const DType> dtypes, bool with_norm = false);

  // What norm, step, ready and finish need now on a device.
  [[nodiscard]] std::int64_t workspace_bytes(Device device) const;

  // The norms of the begun gradients. Every device and part of a begun tensor must be listed; parts of which
  // other ranks may have gradients are listed although this one has none, in one order on all ranks. One
  // part of number 0 needs no `combine`: its `out` is the device's norm. Otherwise `combine` is called once,
  // when the parts are queued: it sums each part over its ranks, and all of them into the `norm` of every
  // device (l2: root of the sum of squares; max: the largest; nonfinite: the sum), on the devices' streams.
  Status norm(const EngineArgs& args, std::span<const EngineNormPart> parts, EngineCombine combine = {});

  // One step of the begun tensors, cohort by cohort. With max_norm or guard every device needs its norm. On
  // a GPU with guard or found_inf, and in a graph, only the device knows whether the step is taken: step
  // counts must be there.
  Result<StepReport> step(const EngineArgs& args);

  // Gradient release: steps the begun tensors (as a rule one; all on one device) before the other gradients
  // are known. They are clipped by the previous step's norm, the device's `norm` (zeros at first: not
  // clipped), and guarded by the count of their own. `own`: two GradNorms of the caller in the device's
  // memory, untouched until finish: [0] receives the norm of these gradients, [1] the norm that clips. Null:
  // no norm (no guard, no clipping). Where their part is not 0 `combine` sums own[0] over the ranks. A tensor
  // that was ready since the last finish already is an error. Offloaded tensors: without `defer` the stream
  // waits for each of them; with it they are updated while the backward pass goes on.
  Result<StepReport> ready(const EngineArgs& args, GradNorm* own, EngineCombine combine = {});
  // Ends the step. `parts`, one per device with part 0: `out` receives the norm of the gradients that were
  // ready there, in the order of handles; where there are several, `combine` makes each of them the norm of
  // all. The devices' `norm` then take it for the next step (where l2 is finite), and their reports say
  // whether a tensor was skipped. No parts: nobody asks for norms. Without `defer` the streams go on behind
  // the weights of all offloaded tensors.
  Status finish(const EngineArgs& args, std::span<const EngineNormPart> parts, EngineCombine combine = {});
  // Forgets which tensors were ready: other states were loaded.
  void forget_ready();

  // --- Offload ---

  // Gradients of offloaded tensors (host, stream; all on one device) go to host memory, in their own dtype
  // and behind what is queued on `stream`; there they are added to what was taken of the same tensor since
  // its last step. A tensor whose dtype differs from the first time, or that lives on the device, is an
  // error. The gradients are read until wait(gradients) says so, on the CPU, too.
  Status take(std::span<const std::uint32_t> handles, std::span<const void* const> grads,
              std::span<const DType> dtypes, Device device, void* stream);
  // Whether a gradient of it was taken and not stepped yet.
  [[nodiscard]] bool holds(std::uint32_t handle) const;
  // Forgets what was taken (none: of all tensors).
  Status drop(std::span<const std::uint32_t> handles);
  // What is queued on `stream` from now on begins after the weights of these tensors (none: of all) are up to
  // date, or their gradients were read. On the CPU it returns when that is so. Also returns an error of work
  // that was done meanwhile: the state of the engine's tensors is then not known, and every later call fails.
  Status wait(std::span<const std::uint32_t> handles, EngineWait what, Device device, void* stream);
  // Somebody else has written parameters (none: of all `host` tensors): their copies in host memory are made
  // again, in stream order; or the other way round.
  Status refresh(std::span<const std::uint32_t> handles, EngineCopy way, Device device, void* stream);
  // The copy of a `host` tensor's parameter, in its dtype and memory order; null: there is none yet (the
  // first step makes it, or refresh). After synchronize it may be read and written until the next call of the
  // engine.
  [[nodiscard]] void* host_param(std::uint32_t handle) const;
  // The host waits until nothing is under way: states, counts and host_param may be read.
  Status synchronize();
  // The order in which offloaded tensors are updated, as far as groups and step counts allow it: that of the
  // next forward pass. Those that are not listed come last. Without: the order of begin. Where it is another
  // order than before, what begin has begun is over.
  Status set_order(std::span<const std::uint32_t> handles);
  // What the next step needs as EngineDevice::staging.
  [[nodiscard]] std::int64_t staging_bytes(Device device) const;
  // Before the first offloaded tensor is set. Without: pinned memory of octavo/offload.h.
  Status set_host_memory(offload::HostAllocator memory);
  // Host memory that the engine has allocated.
  [[nodiscard]] std::int64_t host_bytes() const;

  // The handle that the last failing call was about; -1: none.
  [[nodiscard]] std::int64_t failed_tensor() const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace octavo::engine
