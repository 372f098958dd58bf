// Compares the engine's offload on a GPU, with weights and gradients there and states in host memory, with
// the engine on the CPU. The test overwrites everything that the caller may overwrite, in the order of its
// stream.
// SPDX-License-Identifier: MIT
#include "tests/cuda/device.h"
#include "tests/engine/offloads.h"

#include <cmath>
#include <limits>
#include <utility>

namespace test {
namespace {

using octavo::DType;
using octavo::GradNorm;
using octavo::Residence;
using octavo::StateFormat;
using octavo::StepReport;
using octavo::engine::EngineNormPart;
using octavo::engine::EngineWait;

class EngineOffloadCuda : public GpuTest {};

// Bytes on the device.
class Bytes {
 public:
  explicit Bytes(std::int64_t bytes) : size_(usize(bytes)) {
    OCTAVO_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), size_ + 1));
  }
  ~Bytes() { (void)cudaFree(data_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  [[nodiscard]] std::byte* get() const { return data_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data_, size_}; }
  void set(const void* from, cudaStream_t stream) {
    OCTAVO_CUDA(cudaMemcpyAsync(data_, from, size_, cudaMemcpyHostToDevice, stream));
  }
  void get(void* to, cudaStream_t stream) const {
    OCTAVO_CUDA(cudaMemcpyAsync(to, data_, size_, cudaMemcpyDeviceToHost, stream));
  }
  void spoil(cudaStream_t stream) { OCTAVO_CUDA(cudaMemsetAsync(data_, 0xFF, size_, stream)); }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_;
};

class Twin {
 public:
  Twin(const OptimizerCase& optimizer, const std::vector<octavo::TensorSpec>& specs, const Way& way,
       bool guard, cudaStream_t stream)
      : cpu(optimizer, {optimizer.config, specs, 7}),
        states_(cpu.set),
        way_(way),
        guard_(guard),
        counts_(std::vector<std::int64_t>(specs.size())),
        norm_(GradNorm{}, stream),
        report_(StepReport{}, stream),
        engine(octavo::engine::Engine::create(optimizer.config.algorithm).value()),
        stream_(stream) {
    cpu.options.clip_grad_norm = way.clip_grad_norm;
    EXPECT_TRUE(cpu.engine.set_group(0, cpu.options).ok());
    EXPECT_TRUE(cpu.add(cpu.all()).ok());
    cpu.device.norm = &cpu.norm;
    cpu.device.report = &cpu.report;
    EXPECT_TRUE(engine.set_group(0, cpu.options).ok());
    std::vector<octavo::engine::EngineTensor> tensors;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      TensorBuffers& t = states_.tensors()[i];
      params_.push_back(std::make_unique<Bytes>(t.param.size()));
      params_.back()->set(t.param.data(), stream);
      grads_.push_back(std::make_unique<Bytes>(t.grad.size()));
      device_counts_.push_back(std::make_unique<OnDevice<std::int64_t>>(0, stream));
      octavo::engine::EngineTensor& one = tensors.emplace_back();
      one.tensor = t.args();
      one.tensor.param = params_.back()->get();
      one.residence = way.residences[i];
      one.param_device = kGpu;
      if (one.residence == Residence::device) {
        one.state_device = kGpu;
        place(one.tensor, t);
      }
      one.step_on_device = guard && one.residence != Residence::host;
      one.step = one.step_on_device ? device_counts_.back()->get() : &counts_[i];
      one.known_steps = 0;
    }
    const octavo::Status set = engine.set(cpu.all(), tensors);
    EXPECT_TRUE(set.ok()) << set.message();
    device_.device = kGpu;
    device_.stream = stream;
    device_.norm = norm_.get();
    device_.report = report_.get();
  }

  void step(const Handles& active, std::uint64_t seed) {
    for (int pass = 0; pass < way_.passes; ++pass) {
      TensorSet fresh = cpu.set;
      fresh.fill_grads(100 * seed + static_cast<std::uint64_t>(pass));
      if (pass == 0) {
        Offloads::copy_grads(fresh, cpu.set);
      } else {
        add_grads(cpu.set, fresh);
      }
      if (guard_ && seed % 5 == 0 && pass + 1 == way_.passes) {
        spoil(cpu.set);
        spoil(fresh);
      }
      if (!way_.take) continue;
      for (const std::uint32_t handle : active) {
        if (!takes(handle)) continue;
        const TensorBuffers& t = fresh.tensors()[handle];
        grads_[handle]->set(t.grad.data(), stream_);
        const void* grad = grads_[handle]->get();
        const octavo::Status taken =
            engine.take(Handles{handle}, {&grad, 1}, {&t.spec.grad_dtype, 1}, kGpu, stream_);
        ASSERT_TRUE(taken.ok()) << taken.message();
        ASSERT_TRUE(engine.wait(Handles{handle}, EngineWait::gradients, kGpu, stream_).ok());
        grads_[handle]->spoil(stream_);
      }
    }
    std::vector<const void*> grads;
    std::vector<DType> types;
    for (const std::uint32_t handle : active) {
      const TensorBuffers& t = cpu.set.tensors()[handle];
      if (!takes(handle)) grads_[handle]->set(t.grad.data(), stream_);
      grads.push_back(takes(handle) ? nullptr : grads_[handle]->get());
      types.push_back(t.spec.grad_dtype);
    }
    const bool with_norm = guard_ || way_.clip_grad_norm > 0.0;
    const auto plan = engine.begin(active, grads, types, with_norm);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    make_room();
    ASSERT_TRUE(cpu.begin(active, with_norm).ok());
    octavo::engine::EngineArgs args;
    args.skip_nonfinite = guard_;
    args.devices = {&device_, 1};
    args.defer = way_.defer;
    if (with_norm) {
      const EngineNormPart part{kGpu, 0, norm_.get()}, own{{}, 0, &cpu.norm};
      const octavo::Status done = engine.norm(args, {&part, 1});
      ASSERT_TRUE(done.ok()) << done.message();
      ASSERT_TRUE(cpu.engine.norm(cpu.args(guard_), {&own, 1}).ok());
      const GradNorm got = norm_.value(stream_);
      EXPECT_TRUE(got.l2 == cpu.norm.l2 || (std::isnan(got.l2) && std::isnan(cpu.norm.l2)))
          << got.l2 << " " << cpu.norm.l2;
      EXPECT_EQ(got.nonfinite, cpu.norm.nonfinite);
    }
    const auto report = engine.step(args);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(report->pending, guard_);
    ASSERT_TRUE(cpu.engine.step(cpu.args(guard_)).ok());
    // The caller overwrites what it may.
    OCTAVO_CUDA(cudaMemsetAsync(norm_.get(), 0xFF, sizeof(GradNorm), stream_));
    if (way_.defer) {
      ASSERT_TRUE(engine.wait({}, EngineWait::gradients, kGpu, stream_).ok());
    }
    for (const auto& grad : grads_) grad->spoil(stream_);
    EXPECT_EQ(report_.value(stream_).skipped, cpu.report.skipped);
  }

  std::string difference() {
    if (way_.defer) {
      EXPECT_TRUE(engine.wait({}, EngineWait::weights, kGpu, stream_).ok());
    }
    for (std::size_t i = 0; i < params_.size(); ++i)
      params_[i]->get(states_.tensors()[i].param.data(), stream_);
    OCTAVO_CUDA(cudaStreamSynchronize(stream_));
    const octavo::Status idle = engine.synchronize();
    if (!idle.ok()) return idle.message();
    for (auto& [to, from] : device_states_) from->get(to, stream_);
    OCTAVO_CUDA(cudaStreamSynchronize(stream_));
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      const bool there = guard_ && way_.residences[i] != Residence::host;
      if ((there ? device_counts_[i]->value(stream_) : counts_[i]) != cpu.counts[i])
        return "count of tensor " + std::to_string(i);
    }
    Offloads::copy_grads(cpu.set, states_);
    return states_.difference(cpu.set);
  }

  EngineSet cpu;

 private:
  [[nodiscard]] bool takes(std::uint32_t handle) const {
    return way_.take && way_.residences[handle] != Residence::device;
  }
  static void spoil(TensorSet& set) {
    set.tensors()[0].grad.as<float>()[17] = std::numeric_limits<float>::quiet_NaN();
  }
  std::byte* on_device(const Buffer& from) {
    if (from.size() == 0) return nullptr;
    device_states_.emplace_back(from.data(), std::make_unique<Bytes>(from.size()));
    device_states_.back().second->set(from.data(), stream_);
    return device_states_.back().second->get();
  }
  void place(octavo::TensorArgs& args, const TensorBuffers& t) {
    args.residual = on_device(t.residual);
    for (std::size_t s = 0; s < t.codes.size(); ++s)
      args.state[s] = {on_device(t.codes[s]), reinterpret_cast<float*>(on_device(t.scales[s]))};
  }
  void make_room() {
    if (engine.workspace_bytes(kGpu) > static_cast<std::int64_t>(device_.workspace.size())) {
      workspace_ = std::make_unique<Bytes>(engine.workspace_bytes(kGpu));
      device_.workspace = workspace_->span();
    }
    if (engine.staging_bytes(kGpu) > static_cast<std::int64_t>(device_.staging.size())) {
      ASSERT_TRUE(engine.synchronize().ok());
      staging_ = std::make_unique<Bytes>(engine.staging_bytes(kGpu));
      device_.staging = staging_->span();
    }
  }

  TensorSet states_;  // of offloaded tensors; for the others, the downloaded states
  Way way_;
  bool guard_;
  std::vector<std::int64_t> counts_;
  std::vector<std::unique_ptr<Bytes>> params_, grads_;
  std::vector<std::pair<std::byte*, std::unique_ptr<Bytes>>> device_states_;
  std::vector<std::unique_ptr<OnDevice<std::int64_t>>> device_counts_;
  OnDevice<GradNorm> norm_;
  OnDevice<StepReport> report_;
  std::unique_ptr<Bytes> workspace_, staging_;
  octavo::engine::EngineDevice device_;

 public:
  octavo::engine::Engine engine;  // destroyed before the memory that it uses

 private:
  cudaStream_t stream_;
};

const std::vector<std::vector<Residence>>& residences() {
  constexpr Residence kDevice = Residence::device, kHost = Residence::host, kStream = Residence::stream;
  static const std::vector<std::vector<Residence>> all = {{kHost, kHost, kHost, kHost, kHost},
                                                          {kStream, kStream, kStream, kStream, kStream},
                                                          {kStream, kHost, kHost, kDevice, kStream}};
  return all;
}

void run(const OptimizerCase& optimizer, StateFormat format, const Way& way, bool guard, int steps) {
  SCOPED_TRACE(std::string(optimizer.name) + " " + std::string(octavo::name(format)) + " " + way.name() +
               (guard ? " guard" : ""));
  const Stream stream;
  Twin twin(optimizer, mixed_specs(format), way, guard, stream);
  for (int step = 1; step <= steps; ++step) {
    twin.step(step % 4 == 3 ? Handles{4, 1, 0} : twin.cpu.all(), static_cast<std::uint64_t>(step));
    if (testing::Test::HasFatalFailure()) return;
    if (step % 4 == 1) {
      ASSERT_EQ(twin.difference(), "") << "after step " << step;
    }
  }
  ASSERT_EQ(twin.difference(), "");
}

TEST_F(EngineOffloadCuda, EqualsStatesOnTheDevice) {
  const OptimizerCase optimizer = optimizers(false)[0];
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const auto& where : residences()) {
      for (const int passes : {1, 4}) {
        for (const double clip_grad_norm : {0.0, 0.05}) {
          for (const bool take : {false, true}) {
            const bool defer = (passes == 4) != take;
            run(optimizer, format, {where, passes, clip_grad_norm, take, false, defer},
                clip_grad_norm > 0.0 && defer, 20);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(EngineOffloadCuda, EveryOptimizer) {
  for (const OptimizerCase& optimizer : optimizers(true)) {
    for (const auto& where : residences()) {
      run(optimizer, StateFormat::int8, {where, 1, 0.05, true, false, true}, true, 6);
      run(optimizer, StateFormat::int4_rank1, {where, 1, 0.0, false, false, false}, false, 3);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(EngineOffloadCuda, AnyOrderOfEvents) {
  for (int seed = 1; seed <= 6; ++seed) {
    const Delays delays(1000, seed);
    run(optimizers(false)[0], StateFormat::int8, {residences()[2], 2, 0.05, seed % 2 == 0, false, true},
        seed > 3, 5);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace test
