// What the engine does for GPUs, without one: this file defines the CUDA backend that the test links. Its
// device is memory of the host, and its outcome is known to nobody but the counts and the report; its tables
// notice when somebody else has written into the workspace.
// SPDX-License-Identifier: MIT
#include "engine/engine.h"
#include "offload/pin.h"
#include "offload/queue.h"
#include "optimizers/backend.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

namespace octavo {
namespace {

constexpr std::int64_t kTable = 64;  // bytes before the CPU's own workspace
constexpr Device kGpu{DeviceKind::cuda, 0};
std::atomic<int> tables_written{0};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
std::set<const void*> graph_memory;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

// A table in a workspace: the address of its owner.
class Table {
 public:
  void use(std::span<std::byte> workspace) {
    const void* self = this;
    if (at_ != workspace.data()) {
      std::memcpy(workspace.data(), &self, sizeof self);
      ++tables_written;
    }
    at_ = workspace.data();
    const void* found = nullptr;
    std::memcpy(&found, at_, sizeof found);
    EXPECT_EQ(found, self) << "another one has overwritten the table";
  }
  void forget() { at_ = nullptr; }

 private:
  const std::byte* at_ = nullptr;
};

class FakeStep final : public StepBackend {
 public:
  FakeStep(std::unique_ptr<StepBackend> cpu, std::span<std::int64_t* const> counts)
      : cpu_(std::move(cpu)), counts_(counts.begin(), counts.end()) {}
  Status bind_grads(std::span<const void* const> grads) override { return cpu_->bind_grads(grads); }
  Result<StepReport> step(const StepArgs& args) override {
    table_.use(args.workspace);
    StepArgs own = args;
    own.stream = nullptr;
    own.workspace = args.workspace.subspan(kTable);
    const auto report = cpu_->step(own);
    if (!report.ok()) return report;
    EXPECT_TRUE(counts_.empty() || args.scalars.step != nullptr);
    for (std::int64_t* count : counts_) *count += report->skipped ? 0 : 1;
    return StepReport{false, args.skip_nonfinite || args.scalars.found_inf != nullptr, 0};
  }
  [[nodiscard]] std::int64_t workspace_bytes() const override { return kTable + cpu_->workspace_bytes(); }
  void forget_workspace() override { table_.forget(); }

 private:
  std::unique_ptr<StepBackend> cpu_;
  std::vector<std::int64_t*> counts_;
  Table table_;
};

class FakeNorm final : public NormBackend {
 public:
  explicit FakeNorm(std::unique_ptr<NormBackend> cpu) : cpu_(std::move(cpu)) {}
  Status bind_grads(std::span<const void* const> grads) override { return cpu_->bind_grads(grads); }
  Status run(std::span<std::byte> workspace, GradNorm* out, void* /*stream*/, int threads) override {
    table_.use(workspace);
    return cpu_->run(workspace.subspan(kTable), out, nullptr, threads);
  }
  Result<std::span<const double>> run_chunks(std::span<std::byte> workspace, GradNorm* out, void* /*stream*/,
                                             int threads) override {
    table_.use(workspace);
    return cpu_->run_chunks(workspace.subspan(kTable), out, nullptr, threads);
  }
  [[nodiscard]] std::int64_t workspace_bytes() const override { return kTable + cpu_->workspace_bytes(); }
  void forget_workspace() override { table_.forget(); }

 private:
  std::unique_ptr<NormBackend> cpu_;
  Table table_;
};

class FakeWork final : public NormOps {
 public:
  Status check_pointer(const std::string& /*where*/, const void* /*data*/) override { return {}; }
  Status check_stream(const std::string& /*where*/, void* /*stream*/) override { return {}; }
  bool capturing(void* stream) override { return stream == &graph_memory; }
  bool in_graph(const void* workspace, void* /*stream*/) override { return graph_memory.contains(workspace); }
  Status clear(GradNorm* out, void* /*s*/) override { return cpu_->clear(out, nullptr); }
  Status copy_previous(const GradNorm* previous, const GradNorm* own, GradNorm* out, void* /*s*/) override {
    return cpu_->copy_previous(previous, own, out, nullptr);
  }
  Status join(std::span<const GradNorm* const> parts, std::span<std::byte> workspace, GradNorm* out,
              void* /*s*/) override {
    std::memset(workspace.data(), 7, static_cast<std::size_t>(join_bytes(parts.size())));
    return cpu_->join(parts, {}, out, nullptr);
  }
  [[nodiscard]] std::int64_t join_bytes(std::size_t parts) const override {
    return static_cast<std::int64_t>(100 * parts);
  }
  Status store_previous(const GradNorm* total, GradNorm* previous, void* /*s*/) override {
    return cpu_->store_previous(total, previous, nullptr);
  }
  Status write_report(const GradNorm* norm, const float* found_inf, StepReport* report,
                      void* /*s*/) override {
    return cpu_->write_report(norm, found_inf, report, nullptr);
  }

 private:
  std::unique_ptr<NormOps> cpu_ = make_cpu_norm_ops();
};

}  // namespace

Result<std::unique_ptr<StepBackend>> make_cuda_step(const GroupConfig& config,
                                                    std::span<const TensorArgs> tensors,
                                                    std::span<std::int64_t* const> counts) {
  GroupConfig own = config;
  own.device = {};
  auto cpu = make_cpu_step(own, tensors);
  if (!cpu.ok()) return cpu.status();
  return std::unique_ptr<StepBackend>(std::make_unique<FakeStep>(std::move(*cpu), counts));
}

Result<std::unique_ptr<NormBackend>> make_cuda_norm(int /*device*/, std::span<const GradView> grads) {
  auto cpu = make_cpu_norm(grads);
  if (!cpu.ok()) return cpu.status();
  return std::unique_ptr<NormBackend>(std::make_unique<FakeNorm>(std::move(*cpu)));
}

Result<std::unique_ptr<NormOps>> make_cuda_norm_ops(const std::string& /*where*/, int /*device*/) {
  return std::unique_ptr<NormOps>(std::make_unique<FakeWork>());
}

// Its queues are threads.
Result<std::unique_ptr<offload::DeviceQueues>> offload::make_cuda_queues(const std::string& /*where*/,
                                                                         int /*device*/) {
  return make_cpu_queues();
}
Status offload::pin_pages(void* /*data*/, std::int64_t /*bytes*/) { return Status::unsupported("no GPU"); }
void offload::unpin_pages(void* /*data*/) {}

namespace {

using engine::Engine;
using engine::EngineArgs;
using engine::EngineCombine;
using engine::EngineDevice;
using engine::EngineNormPart;
using engine::EnginePlan;
using engine::EngineTensor;
using engine::kStepsUnchanged;

using Handles = std::vector<std::uint32_t>;
constexpr std::size_t kTensors = 6;
constexpr std::size_t kNumel = 8;

class FakeGpu : public testing::Test {
 protected:
  FakeGpu() : engine_(Engine::create(Algorithm::adamw).value()) {
    EXPECT_TRUE(engine_.set_group(0, {}).ok());
    for (std::size_t i = 0; i < kTensors; ++i) {
      grad_[i].fill(0.5F);
      add(i, 0);
    }
    device_.device = kGpu;
    device_.workspace = workspace_;
    device_.staging = staging_;
    device_.norm = &norm_;
    device_.report = &report_;
    args_.skip_nonfinite = true;
    args_.devices = {&device_, 1};
  }
  void add(std::size_t i, std::int64_t known, bool on_device = true,
           Residence residence = Residence::device) {
    const Status set = try_add(i, known, on_device, residence);
    EXPECT_TRUE(set.ok()) << set.message();
  }
  Status try_add(std::size_t i, std::int64_t known, bool on_device, Residence residence) {
    EngineTensor t;
    t.tensor.spec.numel = kNumel;
    t.tensor.param = param_[i].data();
    t.tensor.state[0].codes = first_[i].data();
    t.tensor.state[1].codes = second_[i].data();
    t.param_device = t.state_device = kGpu;
    t.step = &counts_[i];
    t.step_on_device = on_device;
    t.known_steps = known;
    t.residence = residence;
    if (residence != Residence::device) t.state_device = {};
    return engine_.set(std::array{static_cast<std::uint32_t>(i)}, std::array{t});
  }
  EnginePlan begin(const Handles& active) {
    std::vector<const void*> grads;
    for (const std::uint32_t handle : active) grads.push_back(grad_[handle].data());
    const auto plan = engine_.begin(active, grads, std::vector(active.size(), DType::f32), true);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_LE(engine_.workspace_bytes(kGpu), static_cast<std::int64_t>(workspace_.size()));
    EXPECT_LE(engine_.staging_bytes(kGpu), static_cast<std::int64_t>(staging_.size()));
    return *plan;
  }
  // Returns the number of cohorts.
  std::int64_t step(const Handles& active) {
    const EnginePlan plan = begin(active);
    const std::vector<EngineNormPart> parts = {{kGpu, 0, &norm_}};
    EXPECT_TRUE(engine_.norm(args_, parts).ok());
    const auto report = engine_.step(args_);
    EXPECT_TRUE(report.ok()) << report.status().message();
    EXPECT_TRUE(report->pending && !report->skipped);
    return plan.cohorts;
  }

  std::array<std::array<float, kNumel>, kTensors> param_{}, grad_{}, first_{}, second_{};
  std::array<std::int64_t, kTensors> counts_{};
  alignas(16) std::array<std::byte, 1 << 14> workspace_{};
  alignas(256) std::array<std::byte, 1 << 15> staging_{};
  GradNorm norm_;
  StepReport report_;
  Engine engine_;
  EngineDevice device_;
  EngineArgs args_;
};

using Six = std::array<std::int64_t, kTensors>;

TEST_F(FakeGpu, CountsOfTensorsThatStepTogetherAndApart) {
  EXPECT_EQ(step({0, 1, 2, 3}), 1);
  EXPECT_EQ(step({0, 1}), 1);
  EXPECT_EQ(counts_, (Six{2, 2, 1, 1, 0, 0}));
  EXPECT_EQ(step({0, 1, 2, 3}), 2);
  EXPECT_EQ(step({3, 0, 4, 5}), 3);
  EXPECT_EQ(counts_, (Six{4, 3, 2, 3, 1, 1}));
  // Skipped: nobody counts, and what was equal stays so.
  grad_[4][3] = std::numeric_limits<float>::infinity();
  const auto before = param_;
  EXPECT_EQ(step({4, 5, 0}), 2);
  EXPECT_TRUE(report_.skipped);
  EXPECT_EQ(counts_, (Six{4, 3, 2, 3, 1, 1}));
  EXPECT_EQ(param_, before);
  grad_[4][3] = 0.5F;
  EXPECT_EQ(step({4, 5, 0}), 2);
  EXPECT_EQ(counts_, (Six{5, 3, 2, 3, 2, 2}));
  EXPECT_NE(param_[5], before[5]);
  EXPECT_EQ(param_[4], param_[5]);
  // 2 and 4 have the same count, which nobody has told.
  EXPECT_EQ(begin({2, 4}).cohorts, 2);
  ASSERT_TRUE(engine_.set_counts(Handles{2, 4}, std::array<std::int64_t, 2>{2, 2}).ok());
  EXPECT_EQ(begin({2, 4}).cohorts, 1);
  EXPECT_EQ(begin({2, 4, 5}).cohorts, 2);
  add(5, kStepsUnchanged);
  EXPECT_EQ(begin({2, 4, 5}).cohorts, 2);
  add(5, 2);
  EXPECT_EQ(begin({2, 4, 5}).cohorts, 1);
  counts_.fill(9);  // somebody writes, and says nothing of values
  ASSERT_TRUE(engine_.set_counts(Handles{0, 1, 2, 3, 4, 5}, {}).ok());
  EXPECT_EQ(begin({0, 1}).cohorts, 2);
}

TEST_F(FakeGpu, GuardNeedsCountsOnTheDevice) {
  add(1, 0, false);
  begin({0, 1});
  const auto refused = engine_.step(args_);
  EXPECT_NE(refused.status().message().find("the step count of tensor 1 is in host memory"),
            std::string::npos);
  EXPECT_EQ(engine_.failed_tensor(), 1);
  EXPECT_EQ(counts_, Six{});
  args_.skip_nonfinite = false;
  device_.stream = &graph_memory;
  const auto captured = engine_.step(args_);
  EXPECT_NE(captured.status().message().find("because a graph is captured"), std::string::npos);
  EXPECT_EQ(counts_, Six{});
  device_.stream = nullptr;
  ASSERT_TRUE(engine_.step(args_).ok());
  EXPECT_EQ(counts_, (Six{1, 1, 0, 0, 0, 0}));
}

TEST_F(FakeGpu, TablesAreWrittenAgainWhereOthersWere) {
  tables_written = 0;
  step({0, 1, 2});
  EXPECT_EQ(tables_written, 2);  // of the norm and of the step
  step({0, 1, 2});
  EXPECT_EQ(tables_written, 2);
  step({0, 1});
  EXPECT_EQ(tables_written, 4);
  step({0, 1, 2});  // 2 has another count now
  EXPECT_EQ(tables_written, 7);
  step({0, 1, 2});
  EXPECT_EQ(tables_written, 7);
  graph_memory.insert(workspace_.data());
  step({0, 1, 2});
  EXPECT_GE(tables_written, 10);
  graph_memory.clear();
  step({0, 1, 2});  // the norm's was forgotten when the step came after it
  tables_written = 0;
  step({0, 1, 2});
  EXPECT_EQ(tables_written, 0);
  device_.workspace = device_.workspace.subspan(1 << 10);
  step({0, 1, 2});
  EXPECT_EQ(tables_written, 3);
}

// Residences side by side: who counts, who skips, and who knows of it.
TEST_F(FakeGpu, OffloadedTensors) {
  for (const std::size_t i : {1, 2}) add(i, 0, true, Residence::stream);
  for (const std::size_t i : {3, 4}) add(i, 0, false, Residence::host);
  EXPECT_EQ(step({0, 1, 2, 3, 4}), 3);
  ASSERT_TRUE(engine_.synchronize().ok());
  EXPECT_EQ(counts_, (Six{1, 1, 1, 1, 1, 0}));
  for (const std::size_t i : {1, 2, 3, 4}) EXPECT_EQ(param_[i], param_[0]) << i;
  EXPECT_EQ(step({0, 2, 4}), 3);
  grad_[2][3] = std::numeric_limits<float>::infinity();
  const auto before = param_;
  EXPECT_EQ(step({0, 1, 2, 3, 4}), 5);
  EXPECT_TRUE(report_.skipped);
  EXPECT_EQ(report_.nonfinite, 1);
  ASSERT_TRUE(engine_.synchronize().ok());
  EXPECT_EQ(counts_, (Six{2, 1, 2, 1, 2, 0}));
  EXPECT_EQ(param_, before);
  grad_[2][3] = 0.5F;
  const float found_inf = 1.0F;
  device_.found_inf = &found_inf;
  step({1, 3});
  EXPECT_TRUE(report_.skipped);
  device_.found_inf = nullptr;
  step({1, 3});
  EXPECT_FALSE(report_.skipped);
  ASSERT_TRUE(engine_.synchronize().ok());
  EXPECT_EQ(counts_, (Six{2, 2, 2, 2, 2, 0}));
  for (const std::size_t i : {1, 2, 3, 4}) EXPECT_EQ(param_[i], param_[0]) << i;

  const Status refused = try_add(5, 0, true, Residence::host);
  EXPECT_NE(refused.message().find(".step: is in memory of cuda:0, expected host memory"), std::string::npos);
  args_.skip_nonfinite = false;
  begin({3});
  device_.stream = &graph_memory;
  const auto captured = engine_.step(args_);
  EXPECT_NE(captured.status().message().find("tensor 3: a graph is captured"), std::string::npos);
  const void* grad = grad_[3].data();
  const DType dtype = DType::f32;
  EXPECT_FALSE(engine_.take(Handles{3}, {&grad, 1}, {&dtype, 1}, kGpu, &graph_memory).ok());
  device_.stream = nullptr;
  EXPECT_FALSE(engine_.take(Handles{3}, {&grad, 1}, {&dtype, 1}, {}, nullptr).ok());  // another device
}

// Two devices, each with queues of its own, and gradients in three places.
TEST_F(FakeGpu, OffloadedTensorsOfTwoDevices) {
  add(1, 0, true, Residence::stream);
  add(2, 0, false, Residence::host);
  EngineTensor t;
  t.tensor.spec.numel = kNumel;
  t.tensor.param = param_[5].data();
  t.tensor.state[0].codes = first_[5].data();
  t.tensor.state[1].codes = second_[5].data();
  t.step = &counts_[5];
  t.residence = Residence::host;
  ASSERT_TRUE(engine_.set(std::array{5U}, std::array{t}).ok());
  std::array<EngineDevice, 2> devices = {device_, {}};
  GradNorm norm;
  alignas(256) std::array<std::byte, 1 << 15> staging{};
  alignas(16) std::array<std::byte, 1 << 10> workspace{};
  devices[1].staging = staging;
  devices[1].workspace = workspace;
  devices[1].norm = &norm;
  args_.devices = devices;
  const std::vector<EngineNormPart> parts = {{{}, 0, &norm}, {kGpu, 0, &norm_}};
  std::array<GradNorm*, 2> both = {&norm, &norm_};
  const EngineCombine combine{[](void* user) -> std::int32_t {
                                auto& of = *static_cast<std::array<GradNorm*, 2>*>(user);
                                of[0]->l2 = of[1]->l2 = std::hypot(of[0]->l2, of[1]->l2);
                                of[0]->nonfinite = of[1]->nonfinite = of[0]->nonfinite + of[1]->nonfinite;
                                return 0;
                              },
                              &both};
  const DType f32 = DType::f32;
  for (std::int64_t round = 1; round <= 3; ++round) {
    for (const std::uint32_t handle : {1U, 5U}) {
      const void* grad = grad_[handle].data();
      const Device where = handle == 5 ? Device{} : kGpu;
      ASSERT_TRUE(engine_.take(std::array{handle}, {&grad, 1}, {&f32, 1}, where, nullptr).ok());
    }
    const std::array<const void*, 4> grads = {grad_[0].data(), nullptr, grad_[2].data(), nullptr};
    ASSERT_TRUE(engine_.begin(Handles{0, 1, 2, 5}, grads, std::vector(4, f32), true).ok());
    ASSERT_TRUE(engine_.norm(args_, parts, combine).ok());
    EXPECT_DOUBLE_EQ(norm_.l2 * norm_.l2, 32 * 0.25);
    const auto report = engine_.step(args_);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_TRUE(report->pending);
    ASSERT_TRUE(engine_.synchronize().ok());
    EXPECT_EQ(counts_, (Six{round, round, round, 0, 0, round}));
    for (const std::size_t i : {1, 2, 5}) EXPECT_EQ(param_[i], param_[0]) << i;
  }
}

// Released gradients of offloaded tensors, without a wait between them.
TEST_F(FakeGpu, OffloadedRelease) {
  for (const std::size_t i : {1, 2}) add(i, 0, true, Residence::stream);
  add(3, 0, false, Residence::host);
  norm_ = {};
  args_.defer = true;
  std::array<std::array<GradNorm, 2>, kTensors> owns{};
  GradNorm total;
  for (std::int64_t round = 1; round <= 3; ++round) {
    for (const std::uint32_t handle : {3U, 1U, 0U, 2U}) {
      begin({handle});
      ASSERT_TRUE(engine_.ready(args_, owns[handle].data()).ok());
    }
    args_.defer = round == 2;
    ASSERT_TRUE(engine_.finish(args_, std::array{EngineNormPart{kGpu, 0, &total}}).ok());
    args_.defer = true;
    EXPECT_EQ(norm_.l2, total.l2);
    if (round == 2) continue;
    for (const std::size_t i : {1, 2, 3}) EXPECT_EQ(param_[i], param_[0]) << i;
    ASSERT_TRUE(engine_.synchronize().ok());
    EXPECT_EQ(counts_, (Six{round, round, round, round, 0, 0}));
  }
}

TEST_F(FakeGpu, ReleaseInOneWorkspace) {
  norm_ = {};
  std::array<std::array<GradNorm, 2>, kTensors> owns{};
  GradNorm total;
  for (std::int64_t round = 1; round <= 2; ++round) {
    for (const std::uint32_t handle : {3U, 1U, 2U}) {
      begin({handle});
      ASSERT_TRUE(engine_.ready(args_, owns[handle].data()).ok());
    }
    EXPECT_GE(engine_.workspace_bytes(kGpu), 300);
    ASSERT_TRUE(engine_.finish(args_, std::array{EngineNormPart{kGpu, 0, &total}}).ok());
    EXPECT_EQ(counts_, (Six{0, round, round, round, 0, 0}));
    EXPECT_DOUBLE_EQ(total.l2 * total.l2, 24 * 0.25);
    EXPECT_EQ(norm_.l2, total.l2);
  }
  EXPECT_EQ(step({1, 2}), 2);  // nobody knows that both were taken
}

}  // namespace
}  // namespace octavo
