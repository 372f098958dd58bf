// The host part of the multi-tensor step on a GPU: the kernels of a group, the table that they read, and the
// calls of a step.
//
// The table is in the caller's workspace. Kernels that carry it as arguments write it, so no host memory has
// to outlive the call, nothing waits, and a step may be captured in a graph. A graph always contains these
// writes, so it uses the tensors that it was captured with. As long as the graph exists, steps outside it
// that use the same workspace, of this group or of a later one, write the table every time (graph_use.h).
// SPDX-License-Identifier: MIT
#include "cuda/rank1/matrix_view.h"
#include "cuda/runtime/graph_use.h"
#include "cuda/runtime/runtime.h"
#include "cuda/runtime/upload.h"
#include "cuda/step/kernels.h"
#include "cuda/step/launch_shape.h"
#include "optimizers/backend.h"
#include "optimizers/checks.h"
#include "optimizers/format_resolution.h"
#include "status/first_error.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <vector>

namespace octavo {
namespace cuda {
namespace {

WeightKind kind_of(const TensorSpec& spec) {
  switch (spec.store) {
    case WeightStore::nearest:
      break;
    case WeightStore::stochastic:
      return WeightKind::stochastic;
    case WeightStore::residual8:
      return WeightKind::residual8;
    case WeightStore::residual16:
      return WeightKind::residual16;
  }
  return spec.param_dtype == DType::f32 ? WeightKind::f32 : WeightKind::half;
}

bool is_aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

// The tensors of one launch: those of one format and one kind of weight, and small ones with fp32 states.
// Tensors with rank-1 scales that can use panels have a separate launch.
struct Launch {
  StateFormat format;
  WeightKind kind;
  StepKernel kernel;
  bool by_panels;
  Rank1Slots rank1_slots;
  LaunchShape shape, rank1_shape, panel_shape;
  std::vector<TensorEntry> entries;  // with a sentinel at the end, whose first_unit is `units`
  std::vector<std::size_t> tensor;   // the tensor of each entry
  std::int64_t units = 0, panels = 0;
  std::int64_t counters_at = 0, entries_at = 0, map_at = 0, panel_map_at = 0;  // offsets in the workspace

  [[nodiscard]] std::int64_t tensors() const { return static_cast<std::int64_t>(tensor.size()); }
};

class CudaStep final : public StepBackend {
 public:
  CudaStep(const GroupConfig& config, std::size_t algorithm, std::span<std::int64_t* const> counts)
      : config_(config),
        algorithm_(algorithm),
        slots_(slots_of(algorithm)),
        device_(config.device.index),
        counts_(counts.begin(), counts.end()) {}

  Status bind(std::span<const TensorArgs> tensors) {
    blocks_ = multiprocessors(device_);
    sort_tensors(tensors);
    for (Launch& launch : launches_) {
      const auto shape = prepare_kernel(tag(config_), launch.kernel, device_);
      if (!shape.ok()) return shape.status();
      launch.shape = *shape;
      if (has_trust_ratio()) {
        StepKernel first = launch.kernel;
        first.kernel = first.trust_ratio;
        const auto same = prepare_kernel(tag(config_), first, device_);
        if (!same.ok()) return same.status();
      }
      OCTAVO_TRY(prepare_rank1(launch));
      if (launch.units >= kMaxUnits || launch.panels >= kMaxUnits) {
        return Status::invalid(tag(config_),
                               " tensors: got over 2^40 elements of one format, expected fewer; make ",
                               "several groups of them");
      }
    }
    lay_out();
    return {};
  }

  Status bind_grads(std::span<const void* const> grads) override {
    for (Launch& launch : launches_) {
      for (std::size_t i = 0; i < launch.tensor.size(); ++i) {
        TensorEntry& entry = launch.entries[i];
        const void* grad = grads[launch.tensor[i]];
        // The alignment decides the path: if it changes, the complete entry does.
        const bool same = is_aligned(entry.grad) == is_aligned(grad);
        entry.grad = grad;
        if (!same) {
          set_alignment(launch, entry);
          table_at_ = nullptr;
        }
      }
    }
    grads_fresh_ = false;
    return {};
  }

  Result<StepReport> step(const StepArgs& args) override {
    auto* stream = static_cast<cudaStream_t>(args.stream);
    const DeviceScope scope(device_);
    auto* workspace = args.workspace.data();
    OCTAVO_TRY(refresh_table(workspace, stream));

    const formula::StepInputs inputs = formula::step_inputs(describe(config_.algorithm)->decay, args);
    const StepScalars& s = args.scalars;
    StepReport report;
    report.pending = inputs.skip_nonfinite || s.found_inf != nullptr;
    const bool on_device = report.pending || s.lr != nullptr || s.step != nullptr ||
                           s.loss_scale != nullptr || s.norm != nullptr || s.report != nullptr;
    StepParams params{};
    // The host's constants are always used: they contain what no scalar on the device can change.
    formula::StepInputs host = inputs;
    host.scalars = {};
    host.skip_nonfinite = false;
    params.constants = prepare_on_host(algorithm_, host);
    if (on_device) {
      params.prepared = reinterpret_cast<const Prepared*>(workspace);
      OCTAVO_TRY(decide_on_device(inputs, workspace, stream));
    }
    for (const Launch& launch : launches_) {  // both passes of a rule with a trust ratio decode by old scales
      if (launch.panels == 0) continue;
      const cudaError_t error =
          open_rank1(table_of(launch, workspace), launch.tensors(), launch.rank1_slots, stream);
      if (error != cudaSuccess) return launch_failed("folding rank-1 maxima", error);
    }
    if (has_trust_ratio()) OCTAVO_TRY(run_trust_ratio_pass(params, args.sums, workspace, stream));
    for (const Launch& launch : launches_) {
      if (launch.panels == 0) continue;
      OCTAVO_TRY(find_maxima(launch, params, workspace, stream));
    }
    for (const Launch& launch : launches_) {
      const Status bad = launch.by_panels ? run_panels(launch, launch.kernel.panels->kernel,
                                                       launch.panel_shape, params, workspace, stream)
                                          : run(launch, params, workspace, stream);
      if (!bad.ok()) return bad;
    }
    if (!counts_.empty()) {
      const cudaError_t error =
          advance(params.prepared, reinterpret_cast<std::int64_t* const*>(workspace + counts_at_),
                  static_cast<std::int64_t>(counts_.size()), stream);
      if (error != cudaSuccess) return launch_failed("advance_kernel", error);
    }
    return report;
  }

  [[nodiscard]] std::int64_t workspace_bytes() const override { return workspace_bytes_; }
  void forget_workspace() override { table_at_ = nullptr; }

 private:
  [[nodiscard]] bool has_trust_ratio() const { return kRuleFacts[algorithm_].passes > 1; }

  // Prepares the kernels of a launch whose moments have rank-1 scales.
  Status prepare_rank1(Launch& launch) const {
    if (launch.kernel.rank1 == nullptr) return {};
    const auto rank1 = prepare_kernel(tag(config_), *launch.kernel.rank1, device_);
    if (!rank1.ok()) return rank1.status();
    launch.rank1_shape = *rank1;
    if (!launch.by_panels) return {};
    const auto panels = prepare_kernel(tag(config_), *launch.kernel.panels, device_);
    if (!panels.ok()) return panels.status();
    launch.panel_shape = *panels;
    return {};
  }
  // Finds the new maxima of rank-1 scales and makes them the scales.
  Status find_maxima(const Launch& launch, const StepParams& params, std::byte* workspace,
                     cudaStream_t stream) const {
    OCTAVO_TRY(
        run_panels(launch, launch.kernel.rank1->kernel, launch.rank1_shape, params, workspace, stream));
    const cudaError_t error = close_rank1(params.prepared, table_of(launch, workspace), launch.tensors(),
                                          launch.rank1_slots, stream);
    return error == cudaSuccess ? Status() : launch_failed("publishing rank-1 maxima", error);
  }
  static TensorEntry* table_of(const Launch& launch, std::byte* workspace) {
    return reinterpret_cast<TensorEntry*>(workspace + launch.entries_at);
  }

  // Runs the first of two passes: the sums of tiles, those of tensors, and the ratios in the table.
  Status run_trust_ratio_pass(const StepParams& params, const SumHook& hook, std::byte* workspace,
                              cudaStream_t stream) const {
    const auto sums_at = [&](std::int64_t at) { return reinterpret_cast<formula::Sums*>(workspace + at); };
    const auto entries_of = [&](const Launch& launch) { return table_of(launch, workspace); };
    formula::Sums* const sums = sums_at(sums_at_);
    cudaError_t error = cudaSuccess;
    // Tensors without elements here have no sums, and must not keep the values that the hook added in an
    // earlier step.
    if (hook.add != nullptr && tensors_ > 0)
      error = cudaMemsetAsync(sums, 0, static_cast<std::size_t>(tensors_) * sizeof *sums, stream);
    StepParams first = params;
    first.sums = sums_at(tiles_at_);
    for (const Launch& launch : launches_)
      OCTAVO_TRY(run(launch, launch.kernel.trust_ratio, first, workspace, stream));
    if (error == cudaSuccess && nodes_ > 0)
      error = add_tiles(params.prepared, sums_at(tiles_at_), nodes_, sums_at(nodes_at_), stream);
    for (const Launch& launch : launches_) {
      if (error == cudaSuccess)
        error = add_nodes(params.prepared, entries_of(launch), launch.tensors(), sums_at(nodes_at_), sums,
                          stream);
    }
    if (error == cudaSuccess && hook.add != nullptr)
      hook.add(hook.context, reinterpret_cast<double*>(sums), 2 * tensors_, stream);
    for (const Launch& launch : launches_) {
      if (error == cudaSuccess)
        error = set_ratios(algorithm_, params, sums, entries_of(launch), launch.tensors(), stream);
    }
    return error == cudaSuccess ? Status() : launch_failed("adding the sums of tensors", error);
  }

  void sort_tensors(std::span<const TensorArgs> tensors) {
    using Key = std::tuple<StateFormat, WeightKind, bool>;  // the last one: uses panels
    std::map<Key, std::vector<std::size_t>> by_kernel;
    tensors_ = static_cast<std::int64_t>(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorSpec& spec = tensors[i].spec;
      if (spec.numel == 0) continue;
      const StateFormat format =
          slots_.count == 0 ? StateFormat::fp32 : stored_format(spec.format, spec.ndim);
      const bool panels = step_kernel(algorithm_, format, kind_of(spec)).panels != nullptr &&
                          uses_panels(view_of_spec(spec), block_of(spec.format, spec.block_size));
      by_kernel[{format, kind_of(spec), panels}].push_back(i);
    }
    // Small tensors with fp32 states are part of the launch of a format that has blocks.
    for (auto plain = by_kernel.begin(); plain != by_kernel.end();) {
      auto host = by_kernel.end();
      if (std::get<StateFormat>(plain->first) == StateFormat::fp32) {
        host = std::find_if(by_kernel.begin(), by_kernel.end(), [&](const auto& other) {
          const auto [format, kind, panels] = other.first;
          return kind == std::get<WeightKind>(plain->first) && default_block_size(format) > 0 &&
                 !has_rank1_scales(format);
        });
      }
      if (host == by_kernel.end() || !all_small(tensors, plain->second)) {
        ++plain;
      } else {
        // These come first: they take a warp longest, and other warps must not wait for them at the end.
        host->second.insert(host->second.begin(), plain->second.begin(), plain->second.end());
        plain = by_kernel.erase(plain);
      }
    }
    for (const auto& [key, list] : by_kernel) {
      const auto [format, kind, panels] = key;
      Launch launch{};
      launch.format = format;
      launch.kind = kind;
      launch.kernel = step_kernel(algorithm_, format, kind);
      launch.by_panels = panels;
      for (std::int32_t s = 0; s < slots_.count; ++s) {
        if (has_rank1_scales(format, slots_.moment[static_cast<std::size_t>(s)]))
          launch.rank1_slots.slot[launch.rank1_slots.count++] = s;
      }
      for (const std::size_t i : list) add(launch, i, tensors[i]);
      TensorEntry end{};
      end.first_unit = static_cast<std::uint32_t>(launch.units);
      end.rank1.first_panel = static_cast<std::uint32_t>(launch.panels);
      launch.entries.push_back(end);
      launches_.push_back(std::move(launch));
    }
  }

  static bool all_small(std::span<const TensorArgs> tensors, const std::vector<std::size_t>& list) {
    return std::all_of(list.begin(), list.end(),
                       [&](std::size_t i) { return tensors[i].spec.numel < kMinQuantizedSize; });
  }

  void add(Launch& launch, std::size_t index, const TensorArgs& t) {
    TensorEntry entry{};
    entry.param = t.param;
    entry.grad = t.grad;
    entry.residual = t.residual;
    const bool blocked = default_block_size(launch.format) > 0;
    const StateFormat stored = stored_format(t.spec.format, t.spec.ndim);
    entry.plain = blocked && stored == StateFormat::fp32 ? 1 : 0;
    entry.block =
        static_cast<std::int32_t>(slots_.count == 0 ? 0 : block_of(t.spec.format, t.spec.block_size));
    entry.numel = t.spec.numel;
    entry.offset = t.offset;
    entry.id = t.id;
    entry.first_unit = static_cast<std::uint32_t>(launch.units);
    entry.param_dtype = static_cast<std::uint8_t>(t.spec.param_dtype);
    entry.grad_dtype = static_cast<std::uint8_t>(t.spec.grad_dtype);
    const DType usual = launch.kind == WeightKind::f32 ? DType::f32 : DType::bf16;
    // A rule may use one codec of a format with two, and that codec has its own default size.
    const bool default_block = entry.block == launch.kernel.block;
    entry.usual = t.spec.param_dtype == usual && t.spec.grad_dtype == usual && default_block ? 1 : 0;
    if (entry.block > 0) {
      const auto lanes = static_cast<std::uint32_t>(std::min(entry.block, kTile) / (2 * kChunk));
      entry.lanes_log2 = static_cast<std::uint8_t>(std::countr_zero(lanes));
    }
    entry.ndim = t.spec.ndim;
    std::copy(t.spec.shape.begin(), t.spec.shape.end(), entry.shape);
    for (std::size_t s = 0; s < static_cast<std::size_t>(slots_.count); ++s) {
      entry.codes[s] = t.state[s].codes;
      entry.scales[s] = t.state[s].scales;
    }
    if (launch.kernel.rank1 != nullptr) add_rank1(launch, t.spec, entry);
    entry.tensor = static_cast<std::uint32_t>(index);
    entry.first_tile = static_cast<std::uint32_t>(nodes_ * kTilesOfNode);
    if (has_trust_ratio()) nodes_ += nodes_of(t.spec.numel);
    set_alignment(launch, entry);
    const std::int64_t unit = std::max<std::int64_t>(kTile, entry.block);
    launch.units += (entry.numel + unit - 1) / unit;
    launch.entries.push_back(entry);
    launch.tensor.push_back(index);
  }

  [[nodiscard]] static Rank1View view_of_spec(const TensorSpec& spec) {
    return view_of({spec.shape.data(), static_cast<std::size_t>(spec.ndim)},
                   block_of(spec.format, spec.block_size));
  }
  // Addresses are known only with the workspace; until then these are offsets in it, in floats.
  void add_rank1(Launch& launch, const TensorSpec& spec, TensorEntry& entry) {
    entry.rank1 = view_of_spec(spec);
    entry.rank1.first_panel = static_cast<std::uint32_t>(launch.panels);
    launch.panels += panels_of(entry.rank1);
    const std::int64_t maxima =
        whole_quads(launch.rank1_slots.count * cpu::rank1_maxima_count({spec.shape.data(), spec.ndim}));
    rank1_of_.push_back({launches_.size(), launch.tensor.size(), rank1_floats_, rank1_floats_ + maxima});
    rank1_floats_ += maxima + launch.rank1_slots.count * folded_floats(entry.rank1);
  }

  // Tiles are quick if all buffers but the gradient are aligned and the kernel has a vectorized path for the
  // format and its blocks.
  static void set_alignment(const Launch& launch, TensorEntry& entry) {
    entry.aligned = is_aligned(entry.grad) ? 1 : 0;
    // Rank-1 scales are looked up by rows: chunks must not cross rows, and 32 bits must suffice to count
    // them.
    const bool rank1 = launch.kernel.rank1 != nullptr;
    const bool rows = !rank1 || (entry.rank1.columns % kChunk == 0 && entry.block <= kTile &&
                                 entry.numel / kChunk <= 0xFFFFFFFFLL);
    const bool quick = launch.kernel.quick && others_aligned(entry) && entry.plain == 0 && rows;
    const bool large = entry.block > kTile;
    const std::int64_t tiles = std::min(entry.numel / kTile, kMaxQuickUnits);
    entry.rank1.quick = quick && rank1 ? 1 : 0;
    entry.quick_units = quick && !large ? static_cast<std::uint32_t>(tiles) : 0;
    entry.quick_large = quick && large && tiles < kMaxQuickUnits ? 1 : 0;
    // An end of complete chunks is quick, too; without blocks, an end of at least half a tile is.
    const std::int64_t end = entry.numel - tiles * kTile;
    const bool whole = entry.block > 0 ? end % kChunk == 0 : end % (kChunk / 2) == 0 && end >= kTile / 2;
    entry.quick_end = quick && !rank1 && end < kTile && whole && (large || end > 0) ? 1 : 0;
  }
  [[nodiscard]] static bool others_aligned(const TensorEntry& entry) {
    bool good = is_aligned(entry.param) && is_aligned(entry.residual);
    for (const void* codes : entry.codes) good = good && is_aligned(codes);
    return good;
  }

  // Lays out the workspace: the decision of a step, its count of non-finite elements, tables and maps, rank-1
  // maxima, step counts, and the sums of a rule with a trust ratio.
  void lay_out() {
    std::int64_t at = aligned(sizeof(Prepared)) + kAlignment;
    for (Launch& launch : launches_) {
      launch.counters_at = at;
      launch.entries_at = at + kAlignment;
      at = launch.entries_at;
      at += aligned(static_cast<std::int64_t>(launch.entries.size() * sizeof(TensorEntry)));
      launch.map_at = at;
      at += aligned(4 * ((launch.units + kMapStep - 1) / kMapStep));
      launch.panel_map_at = at;
      at += aligned(4 * ((launch.panels + kMapStep - 1) / kMapStep));
    }
    rank1_at_ = at;
    counts_at_ = rank1_at_ + aligned(4 * rank1_floats_);
    tiles_at_ = counts_at_ + aligned(static_cast<std::int64_t>(counts_.size() * sizeof(counts_[0])));
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(formula::Sums));
    nodes_at_ = tiles_at_ + aligned(kSize * nodes_ * kTilesOfNode);
    sums_at_ = nodes_at_ + aligned(kSize * nodes_);
    workspace_bytes_ = has_trust_ratio() ? sums_at_ + kSize * tensors_ : tiles_at_;
  }
  static std::int64_t counter_at() { return aligned(sizeof(Prepared)); }

  Status refresh_table(std::byte* workspace, cudaStream_t stream) {
    if (launches_.empty() && counts_.empty()) return {};
    GraphUse use;
    if (const cudaError_t error = graph_use(workspace, stream, use); error != cudaSuccess)
      return launch_failed("asking for the capture status", error);
    const bool whole = use.live || use.ended != table_ended_ || table_at_ != workspace;
    if (!whole && grads_fresh_) return {};
    auto* rank1 = reinterpret_cast<float*>(workspace + rank1_at_);
    for (const Rank1Of& of : rank1_of_) {
      TensorEntry& entry = launches_[of.launch].entries[of.entry];
      entry.new_scales = rank1 + of.maxima_at;
      entry.rank1.folded = rank1 + of.folded_at;
    }
    if (whole && !counts_.empty()) {
      const cudaError_t error = upload(std::as_bytes(std::span(counts_)), workspace + counts_at_, stream);
      if (error != cudaSuccess) return launch_failed("writing the table of step counts", error);
    }
    if (whole && nodes_ > 0) {  // tiles without a tensor stay zero
      const auto bytes = static_cast<std::size_t>(nodes_at_ - tiles_at_);
      const cudaError_t error = cudaMemsetAsync(workspace + tiles_at_, 0, bytes, stream);
      if (error != cudaSuccess) return launch_failed("clearing the sums of tiles", error);
    }
    for (Launch& launch : launches_) {
      auto* entries = reinterpret_cast<TensorEntry*>(workspace + launch.entries_at);
      cudaError_t error = cudaSuccess;
      if (whole) {
        error = cudaMemsetAsync(workspace + launch.counters_at, 0, kAlignment, stream);
        if (error == cudaSuccess) error = upload(std::as_bytes(std::span(launch.entries)), entries, stream);
        if (error == cudaSuccess)
          error = build_map(entries, launch.tensors(), launch.units,
                            reinterpret_cast<std::uint32_t*>(workspace + launch.map_at), stream);
        if (error == cudaSuccess && launch.panels > 0)
          error = build_panel_map(entries, launch.tensors(), launch.panels,
                                  reinterpret_cast<std::uint32_t*>(workspace + launch.panel_map_at), stream);
      } else {
        std::vector<const void*> grads;
        std::vector<std::uint32_t> index;
        grads.reserve(launch.tensor.size());
        index.reserve(launch.tensor.size());
        for (std::size_t i = 0; i < launch.tensor.size(); ++i) {
          grads.push_back(launch.entries[i].grad);
          index.push_back(static_cast<std::uint32_t>(i));
        }
        error = upload_grads(index, grads, entries, stream);
      }
      if (error != cudaSuccess) return launch_failed("writing the table of tensors", error);
    }
    table_at_ = workspace;
    table_ended_ = use.ended;
    grads_fresh_ = true;
    return {};
  }

  Status decide_on_device(const formula::StepInputs& inputs, std::byte* workspace, cudaStream_t stream) {
    auto* counter = reinterpret_cast<std::int64_t*>(workspace + counter_at());
    const bool counting = formula::must_count(inputs);
    if (counting) {
      if (const cudaError_t error = cudaMemsetAsync(counter, 0, sizeof *counter, stream);
          error != cudaSuccess)
        return launch_failed("clearing a counter", error);
      for (const Launch& launch : launches_) {
        const cudaError_t error =
            count_nonfinite(inputs, reinterpret_cast<const TensorEntry*>(workspace + launch.entries_at),
                            reinterpret_cast<const std::uint32_t*>(workspace + launch.map_at), launch.units,
                            counter, blocks_, stream);
        if (error != cudaSuccess) return launch_failed("count_kernel", error);
      }
    }
    const cudaError_t error = prepare(algorithm_, inputs, counting ? counter : nullptr,
                                      reinterpret_cast<Prepared*>(workspace), stream);
    return error == cudaSuccess ? Status() : launch_failed("prepare_kernel", error);
  }

  Status run(const Launch& launch, const StepParams& params, std::byte* workspace,
             cudaStream_t stream) const {
    return run(launch, launch.kernel.kernel, params, workspace, stream);
  }
  Status run(const Launch& launch, const void* kernel, const StepParams& params, std::byte* workspace,
             cudaStream_t stream) const {
    return start(launch, kernel, launch.shape, params, launch.units, launch.map_at, workspace, stream);
  }
  Status run_panels(const Launch& launch, const void* kernel, const LaunchShape& shape,
                    const StepParams& params, std::byte* workspace, cudaStream_t stream) const {
    return start(launch, kernel, shape, params, launch.panels, launch.panel_map_at, workspace, stream);
  }
  Status start(const Launch& launch, const void* kernel, const LaunchShape& shape, StepParams params,
               std::int64_t units, std::int64_t map_at, std::byte* workspace, cudaStream_t stream) const {
    params.tensors = table_of(launch, workspace);
    params.map = reinterpret_cast<const std::uint32_t*>(workspace + map_at);
    params.counters = reinterpret_cast<std::uint32_t*>(workspace + launch.counters_at);
    params.units = static_cast<std::uint32_t>(units);
    void* arguments[] = {&params};
    const std::int64_t warps = shape.threads / 32;
    const auto grid = std::min<std::int64_t>(blocks_, (units + warps - 1) / warps);
    // The last units are processed one by one, and so are all units of a small launch.
    const std::int64_t together = launch.kernel.together;
    params.grouped = static_cast<std::uint32_t>(std::max<std::int64_t>(units - grid * warps * together, 0) /
                                                together * together);
    const cudaError_t error = cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(grid)),
                                               dim3(static_cast<unsigned>(shape.threads)), arguments,
                                               static_cast<std::size_t>(shape.shared), stream);
    if (error == cudaSuccess) return {};
    (void)cudaGetLastError();
    return launch_failed("step_kernel (" + std::string(name(launch.format)) + ", " +
                             std::to_string(launch.tensors()) + " tensors, " + std::to_string(grid) +
                             " blocks of " + std::to_string(shape.threads) + " threads, " +
                             std::to_string(shape.shared) + " bytes of shared memory)",
                         error);
  }

  [[nodiscard]] Status launch_failed(const std::string& what, cudaError_t error) const {
    return failed(tag(config_) + " " + what + " on cuda:" + std::to_string(device_), error);
  }

  struct Rank1Of {
    std::size_t launch, entry;
    std::int64_t maxima_at, folded_at;
  };

  const GroupConfig config_;
  const std::size_t algorithm_;
  const SlotList slots_;
  const int device_;
  const std::vector<std::int64_t*> counts_;  // incremented in addition to StepScalars::step
  int blocks_ = 1;
  std::vector<Launch> launches_;
  std::int64_t tensors_ = 0;
  std::vector<Rank1Of> rank1_of_;
  std::int64_t nodes_ = 0, tiles_at_ = 0, nodes_at_ = 0, sums_at_ = 0;  // for rules with a trust ratio
  std::int64_t rank1_floats_ = 0, rank1_at_ = 0, counts_at_ = 0, workspace_bytes_ = 0;
  const std::byte* table_at_ = nullptr;  // the workspace with the table
  std::uint64_t table_ended_ = 0;        // GraphUse::ended when the table was written
  bool grads_fresh_ = true;
};

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<StepBackend>> make_cuda_step(const GroupConfig& config,
                                                    std::span<const TensorArgs> tensors,
                                                    std::span<std::int64_t* const> counts) {
  OCTAVO_TRY(cuda::check_device(tag(config), config.device.index));
  auto backend = std::make_unique<cuda::CudaStep>(config, algorithm_index(config), counts);
  OCTAVO_TRY(backend->bind(tensors));
  return std::unique_ptr<StepBackend>(std::move(backend));
}

}  // namespace octavo
