// What an engine refuses: with a message that names it, and with nothing changed.
// SPDX-License-Identifier: MIT
#include "tests/engine/engine_set.h"

#include <limits>

namespace test {
namespace {

using octavo::StateFormat;
using octavo::engine::EngineTensor;

class BadInput : public testing::Test {
 protected:
  BadInput()
      : optimizer_(optimizers(false)[0]),
        own_(optimizer_, {optimizer_.config, mixed_specs(StateFormat::int8), 7}),
        tag_(std::string("[").append(octavo::name(optimizer_.config.algorithm)).append("] ")) {
    EXPECT_TRUE(own_.add({0, 1, 2, 3}).ok());
  }

  void refused(const octavo::Status& status, const std::string& message, std::int64_t tensor = -1) {
    EXPECT_EQ(status.message().substr(0, tag_.size() + message.size()), tag_ + message);
    EXPECT_EQ(own_.engine.failed_tensor(), tensor);
  }
  void refuse_tensor(std::size_t i, const EngineTensor& tensor, const std::string& message) {
    const auto handle = static_cast<std::uint32_t>(i);
    refused(own_.engine.set(Handles{handle}, std::vector{tensor}), message, handle);
  }
  // Steps as if nothing had happened.
  void expect_usable() {
    TensorSet expected = own_.set;
    const std::int64_t before = own_.counts[0];
    ASSERT_TRUE(own_.step({0, 3}).ok());
    step_alone(expected, 0, own_.options, before + 1);
    step_alone(expected, 3, own_.options, before + 1);
    EXPECT_EQ(own_.set.difference(expected), "");
  }

  OptimizerCase optimizer_;
  EngineSet own_;
  std::string tag_;
};

TEST_F(BadInput, Tensors) {
  EngineTensor bad = own_.tensor(4);
  bad.group = 3;
  refuse_tensor(4, bad, "tensor 4.group: got 3, expected one that was set (set_group)");
  bad = own_.tensor(4);
  bad.state_device = {octavo::DeviceKind::cuda, 1};
  refuse_tensor(4, bad, "tensor 4: its state is on cuda:1, expected cpu, with its parameter");
  bad = own_.tensor(4);
  bad.tensor.spec.block_size = 100;
  refuse_tensor(4, bad, "tensor 4.block_size: got 100, expected 0 (bf16 has no blocks)");
  bad = own_.tensor(4);
  bad.tensor.state[1].codes = nullptr;
  refuse_tensor(4, bad, "tensor 4.state[1].codes: got null, expected a buffer of 2050 bytes");
  bad = own_.tensor(4);
  bad.step = nullptr;
  refuse_tensor(4, bad, "tensor 4.step: got null");
  bad = own_.tensor(4);
  bad.tensor.offset = 10;
  refuse_tensor(4, bad, "tensor 4.whole_numel: got 1025, expected at least 10 + 1025");
  bad = own_.tensor(4);
  bad.step = &own_.counts[0];
  refuse_tensor(4, bad, "tensor 4.step: overlaps tensor 0.step; buffers that are written must not share");
  bad = own_.tensor(4);
  bad.tensor.state[0].codes = own_.set.tensors()[0].param.data();
  const octavo::Status overlap = own_.engine.set(Handles{4}, std::vector{bad});
  EXPECT_NE(overlap.message().find("tensor 0.param"), std::string::npos);
  EXPECT_NE(overlap.message().find("tensor 4.state[0].codes"), std::string::npos);
  refused(own_.engine.set(Handles{4, 4}, std::vector{own_.tensor(4), own_.tensor(4)}),
          "tensor 4: is given twice", 4);
  refused(own_.engine.set(Handles{4}, {}), "tensors: got 0, expected 1, one per handle");
  refused(own_.engine.set(Handles{1U << 24}, std::vector{own_.tensor(4)}),
          "tensor 16777216: handles are below 2^24", 1 << 24);
  // One bad tensor, and none of them is taken.
  bad = own_.tensor(0);
  bad.group = 3;
  refused(own_.engine.set(Handles{4, 0}, std::vector{own_.tensor(4), bad}), "tensor 0.group", 0);
  EXPECT_FALSE(own_.begin({4}).ok());
  expect_usable();
}

TEST_F(BadInput, WithoutCuda) {
  EngineTensor bad = own_.tensor(4);
  bad.param_device = bad.state_device = {octavo::DeviceKind::cuda, 99};
  EXPECT_FALSE(own_.engine.set(Handles{4}, std::vector{bad}).ok());
  bad.param_device = bad.state_device = {octavo::DeviceKind::cpu, 1};
  refuse_tensor(4, bad, "tensor 4 device.index: got 1 for the CPU, expected 0");
  expect_usable();
}

TEST_F(BadInput, Groups) {
  octavo::engine::EngineGroup bad = own_.options;
  bad.hyper.lr = -1.0;
  refused(own_.engine.set_group(0, bad), "lr: got -1, expected a finite number of at least 0");
  bad = own_.options;
  bad.clip_grad_norm = std::numeric_limits<double>::infinity();
  refused(own_.engine.set_group(0, bad), "clip_grad_norm: got inf");
  bad = own_.options;
  bad.switches = 1U << 20;
  EXPECT_FALSE(own_.engine.set_group(0, bad).ok());
  refused(own_.engine.set_group(1U << 20, own_.options), "group: got 1048576, expected below 2^20");
  EXPECT_FALSE(octavo::engine::Engine::create(static_cast<octavo::Algorithm>(77)).ok());
  expect_usable();
}

TEST_F(BadInput, Gradients) {
  const auto begin = [&](Handles handles, std::vector<const void*> grads, std::vector<octavo::DType> dtypes) {
    return own_.engine.begin(handles, grads, dtypes).status();
  };
  const void* grad = own_.set.tensors()[0].grad.data();
  const octavo::DType f32 = octavo::DType::f32;
  refused(begin({9}, {grad}, {f32}), "tensor 9: is not known; give it to set first", 9);
  refused(begin({0, 0}, {grad, grad}, {f32, f32}), "tensor 0: is given twice", 0);
  refused(begin({0}, {nullptr}, {f32}), "tensor 0.grad: got null, expected a buffer of 7680 bytes", 0);
  refused(begin({0}, {static_cast<const std::byte*>(grad) + 1}, {f32}), "tensor 0.grad: got an address", 0);
  refused(begin({0}, {grad}, {static_cast<octavo::DType>(3)}), "tensor 0.grad: its dtype is 3", 0);
  refused(begin({0}, {own_.set.tensors()[0].param.data()}, {f32}), "tensor 0.grad: overlaps tensor 0.param",
          0);
  refused(begin({0}, {}, {f32}), "grads: got 0 and 1 dtypes, expected 1, one per tensor");
  EXPECT_TRUE(begin({2}, {nullptr}, {f32}).ok());  // no elements
  // Of a plan that is known, too.
  ASSERT_TRUE(begin({0}, {grad}, {f32}).ok());
  refused(begin({0}, {nullptr}, {f32}), "tensor 0.grad: got null", 0);
  expect_usable();
}

TEST_F(BadInput, Steps) {
  EngineSet fresh(optimizer_, own_.set);
  EXPECT_NE(fresh.engine.step(fresh.args()).status().message().find("call begin first"), std::string::npos);

  const TensorSet before = own_.set;
  ASSERT_TRUE(own_.begin({0, 1, 3}).ok());
  octavo::engine::EngineArgs args = own_.args();
  args.devices = {};
  refused(own_.engine.step(args).status(), "devices: cpu is missing");
  args = own_.args();
  args.grad_factor = std::numeric_limits<double>::quiet_NaN();
  refused(own_.engine.step(args).status(), "grad_factor: got nan, expected a finite number");
  args = own_.args();
  args.threads = -1;
  refused(own_.engine.step(args).status(), "threads: got -1");
  refused(own_.engine.step(own_.args(true)).status(),
          "cpu norm: got null, expected the norm of the gradients, because skip_nonfinite is on");
  own_.device.stream = &args;
  refused(own_.engine.step(own_.args()).status(), "cpu stream: got a stream");
  own_.device.stream = nullptr;
  own_.device.norm = reinterpret_cast<octavo::GradNorm*>(reinterpret_cast<std::byte*>(&own_.norm) + 1);
  refused(own_.engine.step(own_.args()).status(), "cpu norm: got an address that is not a multiple of 8");
  own_.device.norm = nullptr;
  refused(own_.engine.norm(own_.args(), {}), "begin: was called without with_norm");
  own_.counts[3] = -2;
  ASSERT_TRUE(own_.begin({0, 1, 3}).ok());
  refused(own_.engine.step(own_.args()).status(), "tensor 3.step: holds -2, expected 0 to 2^62", 3);
  own_.counts[3] = std::numeric_limits<std::int64_t>::max();
  ASSERT_TRUE(own_.begin({0, 1, 3}).ok());
  refused(own_.engine.step(own_.args()).status(), "tensor 3.step: holds 9223372036854775807", 3);
  own_.counts[3] = 0;
  ASSERT_TRUE(own_.begin({0, 1, 3}).ok());
  own_.options.clip_grad_norm = 1.0;
  ASSERT_TRUE(own_.engine.set_group(0, own_.options).ok());
  refused(own_.engine.step(own_.args()).status(),
          "cpu norm: got null, expected the norm of the gradients, because group 0 has a clip_grad_norm");
  own_.options.clip_grad_norm = 0.0;
  ASSERT_TRUE(own_.engine.set_group(0, own_.options).ok());
  EXPECT_EQ(own_.set.difference(before), "");
  EXPECT_EQ(own_.counts, std::vector<std::int64_t>(own_.counts.size()));
  expect_usable();
}

TEST_F(BadInput, Workspaces) {
  ASSERT_TRUE(own_.begin({0, 1, 3}, true).ok());
  const std::int64_t needed = own_.engine.workspace_bytes({});
  ASSERT_GT(needed, 0);
  own_.device.workspace = own_.device.workspace.first(static_cast<std::size_t>(needed) - 1);
  refused(own_.engine.step(own_.args()).status(),
          "cpu workspace: got " + std::to_string(needed - 1) + " bytes");
  const TensorBuffers& other = own_.set.tensors()[0];
  own_.device.workspace = {other.param.data(), static_cast<std::size_t>(other.param.size())};
  refused(own_.engine.step(own_.args()).status(), "cpu workspace: overlaps tensor 0.param");
  own_.make_room();
  expect_usable();
}

}  // namespace
}  // namespace test
