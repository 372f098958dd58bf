// Tests a complete step that is captured in a CUDA graph: replays give the bytes of steps outside it and of
// the CPU, while scalars and gradients change in between. Groups are rebound or step outside while a graph
// exists. Captures are of the strictest mode: an allocation or a wait in a step would fail them.
// SPDX-License-Identifier: MIT
#include "optimizers/group.h"
#include "optimizers/norm_group.h"
#include "tests/cuda/device.h"
#include "tests/cuda/graph.h"

#include <cmath>

namespace test {
namespace {

using octavo::DType;
using octavo::GradNorm;
using octavo::StateFormat;
using octavo::StepArgs;
using octavo::StepReport;
using octavo::TensorSpec;

class GraphCuda : public GpuTest {};

struct Values {
  float lr = 1e-3f;
  float loss_scale = 1.0f;
  float found_inf = 0.0f;
  std::int64_t step = 0;
  GradNorm norm{};
  StepReport report{};
};

TensorSet all_formats(const OptimizerCase& optimizer, bool small) {
  std::vector<TensorSpec> specs;
  for (const StateFormat format : octavo::all_state_formats()) {
    const StoreCase store = stores()[specs.size() % stores().size()];
    const auto numel = static_cast<std::int64_t>(small ? 600 + specs.size() : 2048 + 37 * specs.size());
    specs.push_back(
        tensor_spec(numel, store.dtype, octavo::all_dtypes()[specs.size() % 3], store.store, format));
    give_shape(specs.back());
  }
  return {optimizer.config, specs, 13};
}

octavo::StepScalars scalars(Values* at) {
  octavo::StepScalars s;
  s.lr = &at->lr;
  s.step = &at->step;
  s.loss_scale = &at->loss_scale;
  s.found_inf = &at->found_inf;
  s.norm = &at->norm;
  s.report = &at->report;
  return s;
}

StepArgs whole_step(const OptimizerCase& optimizer) {
  StepArgs args = step_args(optimizer, 0);
  args.skip_nonfinite = true;
  args.clip_grad_norm = 0.7;
  return args;
}

// Norm and step on one device, with scalars in its memory.
class OnGpu {
 public:
  OnGpu(const TensorSet& from, Placement placement, cudaStream_t stream, Memory memory)
      : set(from, placement, stream, memory),
        norm_(octavo::NormGroup::create(kGpu, set.grads()).value()),
        workspace_(norm_.workspace_bytes(), memory),
        values(Values{}, stream) {
    (void)set.group();
  }
  octavo::Status queue(StepArgs args) {
    octavo::Status status = norm_.run(workspace_.span(), &values.get()->norm, set.stream());
    if (!status.ok()) return status;
    args.scalars = scalars(values.get());
    return set.step(args).status();
  }
  // Sends the scalars that a caller changes between steps, in stream order.
  void send(const Values& v) {
    sent_ = v;
    const auto copy = [&](auto* to, const auto* from) {
      OCTAVO_CUDA(cudaMemcpyAsync(to, from, sizeof *from, cudaMemcpyHostToDevice, set.stream()));
    };
    copy(&values.get()->lr, &sent_.lr);
    copy(&values.get()->loss_scale, &sent_.loss_scale);
    copy(&values.get()->found_inf, &sent_.found_inf);
  }

  DeviceSet set;

 private:
  octavo::NormGroup norm_;
  DeviceWorkspace workspace_;
  Values sent_;

 public:
  OnDevice<Values> values;
};

octavo::Status step_on_cpu(TensorSet& set, Values& values, StepArgs args) {
  std::vector<octavo::GradView> views;
  for (const TensorBuffers& t : set.tensors())
    views.push_back({t.grad.data(), t.spec.grad_dtype, t.spec.numel});
  std::vector<double> workspace(usize(octavo::grad_norm_workspace(views)));
  const auto norm = octavo::grad_norm(views, workspace, 1);
  if (!norm.ok()) return norm.status();
  values.norm = *norm;
  args.scalars = scalars(&values);
  return set.step(args).status();
}

std::string replay(const OptimizerCase& optimizer, Placement placement, Memory memory, bool cold, int replays,
                   bool small) {
  const Stream stream;
  const Stream eager_stream;
  TensorSet cpu = all_formats(optimizer, small);
  OnGpu captured(cpu, placement, stream, memory);
  OnGpu eager(cpu, placement, eager_stream, memory);
  Values host;
  const StepArgs args = whole_step(optimizer);
  const auto outside = [&](OnGpu& gpu) {
    gpu.send(host);
    const octavo::Status status = gpu.queue(args);
    if (!status.ok()) throw std::runtime_error(status.message());
  };
  if (!cold) {
    outside(captured);
    outside(eager);
    if (const octavo::Status status = step_on_cpu(cpu, host, args); !status.ok()) return status.message();
  }
  const Graph graph(stream, [&] { return captured.queue(args); });
  for (int i = 0; i < replays; ++i) {
    host.lr = 1e-3f * static_cast<float>(1 + i % 7);
    host.loss_scale = i % 5 == 4 ? 1024.0f : 1.0f;
    host.found_inf = i % 11 == 3 ? 1.0f : 0.0f;
    if (i % 3 == 0) {  // new gradients in the same memory; one time in nine not finite
      const Grads kind = i % 27 == 24 ? Grads::special : i % 2 == 0 ? Grads::dense : Grads::mixed;
      fill(cpu, kind, static_cast<std::uint64_t>(i));
      captured.set.upload_grads(cpu);
      eager.set.upload_grads(cpu);
    }
    captured.send(host);
    graph.launch(stream);
    outside(eager);
    if (const octavo::Status status = step_on_cpu(cpu, host, args); !status.ok()) return status.message();
    if (i % 10 == 9 || i < 3 || i + 1 == replays) {
      const std::string where = "replay " + std::to_string(i) + "\n";
      if (const std::string d = captured.set.difference(cpu); !d.empty()) return where + "graph:\n" + d;
      if (const std::string d = eager.set.difference(cpu); !d.empty())
        return where + "outside a graph:\n" + d;
      const Values got = captured.values.value(stream);
      if (got.step != host.step || got.report.skipped != host.report.skipped ||
          got.report.nonfinite != host.report.nonfinite)
        return where + "got step " + std::to_string(got.step) + ", skipped " +
               std::to_string(got.report.skipped) + ", nonfinite " + std::to_string(got.report.nonfinite) +
               "; expected " + std::to_string(host.step) + ", " + std::to_string(host.report.skipped) + ", " +
               std::to_string(host.report.nonfinite);
    }
    stream.wait();  // the scalars of the next replay are sent from the same bytes
    eager_stream.wait();
  }
  return "";
}

TEST_F(GraphCuda, AHundredReplays) {
  Tally tally;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const bool cold : {true, false}) {
      tally.add(std::string(optimizer.name) + (cold ? ", first step captured" : ", captured after a step"),
                replay(optimizer, cold ? Placement::aligned : Placement::as_host, Memory::together, cold, 100,
                       false));
    }
  }
}

// When it runs alone in a process, this test captures kernels that were never loaded before.
TEST_F(GraphCuda, TheFirstStepOfAll) {
  EXPECT_EQ(replay(optimizers(false)[1], Placement::aligned, Memory::together, true, 3, true), "");
}

class SmallGraphCuda : public GpuTest {};

TEST_F(SmallGraphCuda, Replays) {
  Tally tally;
  for (const OptimizerCase& optimizer : {optimizers(false)[1], optimizers(false)[5]}) {
    for (const bool cold : {true, false})
      tally.add(optimizer.name, replay(optimizer, Placement::aligned, Memory::apart, cold, 4, true));
  }
}

// A graph uses the tensors it was captured with, and steps outside it use theirs, in any order.
class RebindGraphCuda : public GpuTest {
 protected:
  void expect(DeviceSet& set, const TensorSet& expected, const char* when) {
    const std::string difference = set.difference(expected);
    EXPECT_EQ(difference, "") << when;
  }
};

std::vector<const void*> pointers(const DeviceGrads& grads) { return grads.pointers(); }

void step_cpu(TensorSet& set, const TensorSet& grads, const StepArgs& args) {
  TensorSet with = set;
  for (std::size_t i = 0; i < set.tensors().size(); ++i) with.tensors()[i].grad = grads.tensors()[i].grad;
  ASSERT_TRUE(with.step(args).ok());
  for (std::size_t i = 0; i < set.tensors().size(); ++i) with.tensors()[i].grad = set.tensors()[i].grad;
  set = with;
}

TEST_F(RebindGraphCuda, NewGradientsOutsideTheGraph) {
  const OptimizerCase adamw = optimizers(false)[1];
  for (const bool cold : {true, false}) {
    SCOPED_TRACE(cold ? "first step captured" : "captured after a step");
    const Stream stream;
    TensorSet cpu = all_formats(adamw, true);
    TensorSet other = cpu;
    fill(other, Grads::dense, 5);
    DeviceSet gpu(cpu, Placement::aligned, stream);
    const DeviceGrads new_grads(other, Placement::aligned, stream);
    std::vector<const void*> old_grads;
    for (const auto& view : gpu.grads()) old_grads.push_back(view.data);
    (void)gpu.group();
    StepArgs args = step_args(adamw, 3);
    if (!cold) {
      ASSERT_TRUE(gpu.step(args).ok());
      ASSERT_TRUE(cpu.step(args).ok());
    }
    const Graph graph(stream, [&] { return gpu.step(args).status(); });
    graph.launch(stream);
    ASSERT_TRUE(cpu.step(args).ok());
    expect(gpu, cpu, "the first replay");
    ASSERT_TRUE(gpu.group().rebind_grads(pointers(new_grads)).ok());
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(gpu.step(args).ok());
      step_cpu(cpu, other, args);
      expect(gpu, cpu, "a step outside the graph, with new gradients");
      graph.launch(stream);
      ASSERT_TRUE(cpu.step(args).ok());
      expect(gpu, cpu, "a replay after new gradients outside: it has its own");
    }
    ASSERT_TRUE(gpu.group().rebind_grads(old_grads).ok());
    ASSERT_TRUE(gpu.step(args).ok());
    ASSERT_TRUE(cpu.step(args).ok());
    expect(gpu, cpu, "the old gradients again");
  }
}

TEST_F(RebindGraphCuda, NewTensorsOutsideTheGraph) {
  const OptimizerCase adamw = optimizers(false)[1];
  for (const bool cold : {true, false}) {
    SCOPED_TRACE(cold ? "first step captured" : "captured after a step");
    const Stream stream;
    TensorSet cpu_a = all_formats(adamw, true);
    TensorSet cpu_b = cpu_a;
    cpu_b.fill_params(99);
    fill(cpu_b, Grads::dense, 6);
    DeviceSet a(cpu_a, Placement::aligned, stream);
    DeviceSet b(cpu_b, Placement::aligned, stream);
    octavo::Group& group = a.group();
    const StepArgs args = step_args(adamw, 3);
    if (!cold) {
      ASSERT_TRUE(a.step(args).ok());
      ASSERT_TRUE(cpu_a.step(args).ok());
    }
    const Graph graph(stream, [&] { return a.step(args).status(); });
    graph.launch(stream);
    ASSERT_TRUE(cpu_a.step(args).ok());
    expect(a, cpu_a, "the first replay");
    ASSERT_TRUE(group.rebind(b.args()).ok());
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(a.step(args).ok());  // a's group and workspace, with b's tensors
      ASSERT_TRUE(cpu_b.step(args).ok());
      expect(b, cpu_b, "a step outside the graph, with new tensors");
      expect(a, cpu_a, "the graph's tensors, after it");
      graph.launch(stream);
      ASSERT_TRUE(cpu_a.step(args).ok());
      expect(a, cpu_a, "a replay after rebind: it has its own tensors");
      expect(b, cpu_b, "the group's tensors, after the replay");
    }
  }
}

// A destroyed group leaves its graph, and the next group gets the same workspace.
TEST_F(RebindGraphCuda, AGraphThatOutlivesItsGroup) {
  const OptimizerCase adamw = optimizers(false)[1];
  const Stream stream;
  TensorSet cpu_a = all_formats(adamw, true);
  TensorSet cpu_b = cpu_a;
  cpu_b.fill_params(98);
  DeviceSet a(cpu_a, Placement::aligned, stream);
  DeviceSet b(cpu_b, Placement::aligned, stream);
  auto gone = std::make_unique<octavo::Group>(octavo::Group::create(a.config(), a.args()).value());
  const DeviceWorkspace workspace(gone->workspace_bytes());
  StepArgs args = step_args(adamw, 3);
  args.stream = stream;
  args.workspace = workspace.span();
  const Graph graph(stream, [&] { return gone->step(args).status(); });
  gone.reset();
  auto group = octavo::Group::create(b.config(), b.args()).value();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(group.step(args).ok());
    ASSERT_TRUE(cpu_b.step(step_args(adamw, 3)).ok());
    expect(b, cpu_b, "a step of the new group");
    graph.launch(stream);
    ASSERT_TRUE(cpu_a.step(step_args(adamw, 3)).ok());
    expect(a, cpu_a, "a replay: the graph has its own tensors");
    expect(b, cpu_b, "the new group's tensors, after the replay");
  }
}

TEST_F(RebindGraphCuda, ANormOutsideTheGraph) {
  const Stream stream;
  const OptimizerCase adamw = optimizers(false)[1];
  TensorSet first = all_formats(adamw, true);
  TensorSet second = first;
  fill(second, Grads::dense, 8);
  const auto norm_of = [](const TensorSet& set) {
    std::vector<octavo::GradView> views;
    for (const TensorBuffers& t : set.tensors())
      views.push_back({t.grad.data(), t.spec.grad_dtype, t.spec.numel});
    std::vector<double> workspace(usize(octavo::grad_norm_workspace(views)));
    return octavo::grad_norm(views, workspace, 1).value();
  };
  const DeviceGrads on_first(first, Placement::aligned, stream);
  const DeviceGrads on_second(second, Placement::as_host, stream);
  for (const bool cold : {true, false}) {
    SCOPED_TRACE(cold ? "first run captured" : "captured after a run");
    auto group = octavo::NormGroup::create(kGpu, on_first.views());
    ASSERT_TRUE(group.ok()) << group.status().message();
    const DeviceWorkspace workspace(group->workspace_bytes());
    const OnDevice<GradNorm> out(GradNorm{}, stream);
    if (!cold) {
      ASSERT_TRUE(group->run(workspace.span(), out.get(), stream).ok());
    }
    const Graph graph(stream, [&] { return group->run(workspace.span(), out.get(), stream); });
    graph.launch(stream);
    EXPECT_EQ(out.value(stream).l2, norm_of(first).l2);
    ASSERT_TRUE(group->rebind(on_second.views()).ok());
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(group->run(workspace.span(), out.get(), stream).ok());
      EXPECT_EQ(out.value(stream).l2, norm_of(second).l2) << "outside the graph, " << i;
      graph.launch(stream);
      EXPECT_EQ(out.value(stream).l2, norm_of(first).l2) << "replay, " << i;
    }
  }
}

}  // namespace
}  // namespace test
