// The optimizer step over any number of tensors at once: what each tensor needs (layout), and the step itself
// (Group), on the CPU or on a GPU.
//
// Memory: the caller owns every buffer. A Group keeps pointers, not data; they must stay valid until the
// Group is destroyed or rebound. Zero bytes are the initial state of every format.
// Threads: a Group is used by one thread at a time; different Groups are independent.
// Streams: on a GPU every call works on the stream it is given and returns without waiting for it; nothing is
// allocated and nothing synchronises, so a step may be captured in a CUDA graph. A null stream is the
// device's default stream, as in the CUDA API. Errors: everything is checked before the first byte is
// written; a failed call changes no buffer.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/grad_norm.h>
#include <octavo/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace octavo {

// The options that fix the moments. The other hyper-parameters may change at every step.
struct GroupConfig {
  Algorithm algorithm = Algorithm::adamw;
  bool amsgrad = false;  // adam and adamw: keep the running maximum of v, a third moment
  bool momentum = true;  // sgd: false keeps no state at all
  Device device{};       // where every buffer of the group is
  // The same for every option that changes the moments (describe.h): bit i is the i-th of the algorithm's.
  // The two above are bits too, where an algorithm has such an option.
  std::uint32_t switches = 0;
};

// A tensor's description, without its buffers.
struct TensorSpec {
  std::int64_t numel = 0;
  std::array<std::int64_t, kMaxDims> shape{};  // used by 4bit-rank1; its product must be numel when ndim > 0
  int ndim = 0;                                // 0: treated as one dimension
  DType param_dtype = DType::f32;
  DType grad_dtype = DType::f32;
  WeightStore store = WeightStore::nearest;
  StateFormat format = StateFormat::fp32;
  std::int64_t block_size = 0;  // 0: the format's default
};

struct SlotLayout {
  std::int64_t codes_bytes = 0;
  std::int64_t scales = 0;  // number of floats
};

struct TensorLayout {
  int slots = 0;
  std::array<SlotLayout, kMaxSlots> slot{};
  std::int64_t residual_bytes = 0;
  std::int64_t workspace_bytes = 0;  // on the CPU; Group::workspace_bytes says what a group needs in all

  // Codes and scales of all moments; this is what "bytes per parameter" counts.
  [[nodiscard]] std::int64_t state_bytes() const {
    std::int64_t total = 0;
    for (int i = 0; i < slots; ++i) {
      const auto& s = slot[static_cast<std::size_t>(i)];
      total += s.codes_bytes + 4 * s.scales;
    }
    return total;
  }
};

// The buffers a tensor needs. Exact: the planner and the benchmark print these numbers.
OCTAVO_API Result<TensorLayout> layout(const GroupConfig& config, const TensorSpec& spec);

// The format that a parameter gets where `wanted` is asked for: the one rule of all adapters. Below
// `min_quantized_size` elements formats with blocks become fp32; fp32 and bf16 stay. `whole_numel` is the
// size of the whole parameter, never of the shard at hand, so that sharding does not change precision. An
// error where `wanted` has scales that belong to the whole parameter (4bit-rank1) and the tensor is
// `sharded`.
OCTAVO_API Result<StateFormat> format_for(StateFormat wanted, std::int64_t whole_numel,
                                          std::int64_t min_quantized_size = kMinQuantizedSize,
                                          bool sharded = false);

struct StateSlot {
  void* codes = nullptr;    // aligned to the code's element (4 for fp32, 2 for bf16, else 1)
  float* scales = nullptr;  // null when the layout asks for none
};

struct TensorArgs {
  TensorSpec spec;
  void* param = nullptr;       // updated in place
  const void* grad = nullptr;  // never written
  void* residual = nullptr;    // for the residual stores
  std::array<StateSlot, kMaxSlots> state{};
  // Stochastic rounding is keyed by (seed, step, id, offset + index): give each parameter its id, and each
  // shard the index of its first element in the whole parameter.
  std::uint64_t id = 0;
  std::int64_t offset = 0;
};

// Where weight decay is applied. By name: it is added to the gradient in adam and sgd (as in torch), and
// applied to the parameter in adamw and lion.
enum class Decay : std::uint32_t { by_name = 0, coupled = 1, decoupled = 2 };

struct HyperParams {
  double lr = 1e-3;  // rounded to fp32 before anything is derived from it
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double momentum = 0.0;   // sgd
  double dampening = 0.0;  // sgd
  bool nesterov = false;   // sgd
  bool maximize = false;
  Decay decay = Decay::by_name;
  double own[kMaxOwn] = {};  // what the algorithm's description places here
  friend bool operator==(const HyperParams&, const HyperParams&) = default;
};

struct StepReport {
  bool skipped = false;        // the step was not taken: no parameter or state was written
  bool pending = false;        // on a GPU the outcome is not known when step returns: see StepScalars::report
  std::int64_t nonfinite = 0;  // elements that caused it (counted only with the guard on)
};

// Inputs that may be in the memory of the group's device, so that they can change without the host (a CUDA
// graph, a norm that is still being computed). They are read in stream order; step and report are written in
// stream order. Null: the value in StepArgs is used.
struct StepScalars {
  const float* lr = nullptr;          // instead of hyper.lr
  std::int64_t* step = nullptr;       // steps taken so far; a step that is taken adds one and uses the sum
  const float* loss_scale = nullptr;  // gradients are divided by it, besides grad_factor
  const float* found_inf = nullptr;   // not zero: the step is skipped, as torch's GradScaler asks
  const GradNorm* norm = nullptr;     // of the gradients before any factor: see StepArgs::max_norm
  StepReport* report = nullptr;       // receives what happened
};

// Called between the two passes of a rule that measures (LARS, LAMB), for tensors of which other ranks hold
// parts: it adds what they have measured. `sums` has two numbers per tensor of the group, in its order: the
// squares of the weights and the squares of the updates. They are in the memory of the group's device, in
// stream order; the hook must not wait for the stream.
struct SumHook {
  void (*add)(void* context, double* sums, std::int64_t count, void* stream) = nullptr;
  void* context = nullptr;
};

struct StepArgs {
  HyperParams hyper{};
  std::int64_t step = 0;     // from 1; sgd's first step stores the plain gradient, as torch does
  double grad_factor = 1.0;  // multiplies every gradient: 1 / loss scale, clipping, or both
  double max_norm = 0.0;     // with scalars.norm: gradients are clipped to it; 0 does not clip
  bool guard = false;        // a non-finite gradient (or its square) skips the step whole; with scalars.norm
                             // its count decides and the gradients are not read once more
  std::uint64_t seed = 0;    // of stochastic rounding
  int threads = 0;           // CPU; 0: the pool's size
  void* stream = nullptr;    // GPU: the cudaStream_t to work on, of the group's device
  StepScalars scalars{};
  SumHook sums{};
  // At least Group::workspace_bytes(), aligned to 16, on the group's device. On a GPU the group keeps its
  // table of tensors there: pass the same untouched buffer at every step, and it is not written again.
  std::span<std::byte> workspace{};
};

class OCTAVO_API Group {
 public:
  // Checks every argument and buffer (null, alignment, overlap) once; step then only checks its own
  // arguments.
  static Result<Group> create(const GroupConfig& config, std::span<const TensorArgs> tensors);

  Group(Group&&) noexcept;
  Group& operator=(Group&&) noexcept;
  ~Group();

  Result<StepReport> step(const StepArgs& args);

  // New buffers for the same config; on error the group keeps its old ones.
  Status rebind(std::span<const TensorArgs> tensors);

  // New gradients of the same dtypes and sizes, one per tensor, in order. For callers that free gradients
  // between steps. Cheaper than rebind, because overlap with other buffers is not checked again.
  Status rebind_grads(std::span<const void* const> grads);

  [[nodiscard]] std::int64_t workspace_bytes() const;
  [[nodiscard]] std::size_t size() const;

 private:
  struct Impl;
  explicit Group(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Create and step in one call, for callers whose buffers move every time.
OCTAVO_API Result<StepReport> step(const GroupConfig& config, std::span<const TensorArgs> tensors,
                                   const StepArgs& args);

}  // namespace octavo
