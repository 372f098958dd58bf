// octavo/engine.hpp: every method reaches its C function, errors are exceptions, exceptions pass through
// calls. The steps are those of plain SGD, whose results can be read off.
// SPDX-License-Identifier: MIT
#include <octavo/engine.hpp>

#include <gtest/gtest.h>
#include <array>
#include <cmath>
#include <vector>

namespace {

using octavo::Engine;
using octavo::EngineError;
using octavo::make;

static_assert(!std::is_copy_constructible_v<Engine> && std::is_nothrow_move_constructible_v<Engine>);
static_assert(!std::is_convertible_v<std::vector<double>, octavo::Span<float>>);

using Handles = std::vector<std::uint32_t>;

// Two parameters of ones under plain SGD with a learning rate of 0.5, and what their steps need.
struct Model {
  explicit Model(std::uint32_t residence = 0) {
    options.lr = 0.5;
    options.clip_grad_norm = 0.0;
    engine.set_group(0, 0, options);
    for (std::size_t i = 0; i < 2; ++i) {
      auto tensor = make<octavo_engine_tensor>();
      tensor.numel = kCount;
      tensor.param = params[i].data();
      tensor.step = &counts[i];
      tensor.residence = residence;
      tensors.push_back(tensor);
    }
    engine.set(all, tensors);
  }
  octavo_engine_plan begin(bool with_norm = false) {
    const octavo_engine_plan plan = engine.begin(all, grads, dtypes, with_norm);
    make_room();
    return plan;
  }
  void make_room() {
    workspace.resize(static_cast<std::size_t>(engine.workspace_bytes(0, 0)) / 8 + 1);
    staging.resize(static_cast<std::size_t>(engine.staging_bytes(0, 0)) + 256);
    device.workspace = workspace.data();
    device.workspace_bytes = static_cast<std::int64_t>(8 * workspace.size());
    const auto past = reinterpret_cast<std::uintptr_t>(staging.data()) % 256;
    device.staging = staging.data() + (256 - past) % 256;
    device.staging_bytes = engine.staging_bytes(0, 0);
    args.devices = &device;
    args.device_count = 1;
  }
  octavo_engine_norm_part part(octavo_device_norm* out, std::uint32_t number = 0) const {
    auto made = make<octavo_engine_norm_part>();
    made.part = number;
    made.out = out;
    return made;
  }

  static constexpr std::int64_t kCount = 8192;
  const Handles all = {0, 1};
  std::array<std::vector<float>, 2> params = {std::vector<float>(kCount, 1.0F),
                                              std::vector<float>(kCount, 1.0F)};
  std::vector<float> grad = std::vector<float>(kCount, 0.25F);
  std::array<const void*, 2> grads = {grad.data(), grad.data()};
  const std::vector<std::uint8_t> dtypes = {0, 0};
  std::array<std::int64_t, 2> counts = {0, 0};
  std::vector<double> workspace;
  std::vector<char> staging;
  octavo_engine_device device = make<octavo_engine_device>();
  octavo_engine_args args = make<octavo_engine_args>();
  octavo_step_args options = make<octavo_step_args>();
  std::vector<octavo_engine_tensor> tensors;
  octavo_device_norm norm{};
  Engine engine{"sgd"};
};

template <class Call>
EngineError error_of(Call&& call) {
  try {
    call();
  } catch (const EngineError& error) {
    return error;
  }
  ADD_FAILURE() << "no EngineError";
  return EngineError(0, "");
}

TEST(EngineHpp, StructsHaveTheirSizeAndDefaults) {
  const auto options = make<octavo_step_args>();
  EXPECT_EQ(options.struct_size, sizeof options);
  EXPECT_EQ(options.lr, 1e-3);
  const auto tensor = make<octavo_engine_tensor>();
  EXPECT_EQ(tensor.struct_size, sizeof tensor);
  EXPECT_EQ(tensor.numel, 0);
  EXPECT_EQ(octavo::parse("state", "8bit"), 2U);
  EXPECT_EQ(error_of([] { octavo::parse("state", "9bit"); }).status(), 1U);
}

TEST(EngineHpp, Steps) {
  Model model;
  const octavo_engine_plan first = model.begin();
  EXPECT_EQ(first.fresh, 1U);
  EXPECT_EQ(model.engine.step(model.args).skipped, 0U);
  EXPECT_EQ(model.params[0][0], 0.875F);
  EXPECT_EQ(model.params[1][Model::kCount - 1], 0.875F);
  EXPECT_EQ(model.begin().number, first.number);

  model.options.lr = 0.25;
  model.engine.set_group(0, 0, model.options);
  Engine moved = std::move(model.engine);
  EXPECT_EQ(model.engine.get(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(error_of([&] { model.engine.synchronize(); }).status(), 1U);
  EXPECT_EQ(moved.step(model.args).skipped, 0U);
  EXPECT_EQ(model.params[0][0], 0.8125F);
  EXPECT_EQ(model.counts[1], 2);

  moved.remove(model.all);
  EXPECT_EQ(error_of([&] { moved.begin(model.all, model.grads, model.dtypes); }).tensor(), 0);
}

TEST(EngineHpp, ErrorsNameTheTensor) {
  Model model;
  model.grads[1] = nullptr;
  const EngineError error = error_of([&] { model.begin(); });
  EXPECT_EQ(error.status(), 1U);
  EXPECT_EQ(error.tensor(), 1);
  EXPECT_EQ(model.engine.failed_tensor(), 1);
  EXPECT_NE(std::string(error.what()).find("tensor 1.grad: got null"), std::string::npos) << error.what();

  const std::vector<const void*> one = {model.grad.data()};
  EXPECT_STREQ(error_of([&] { model.engine.begin(model.all, one, model.dtypes); }).what(),
               "grads: got 1, expected 2, one per handle");
  EXPECT_STREQ(error_of([&] { model.engine.set(Handles{3}, model.tensors); }).what(),
               "tensors: got 2, expected 1, one per handle");
  EXPECT_THROW(Engine("sdg"), EngineError);
}

TEST(EngineHpp, NormsAreCombined) {
  Model model;
  model.options.clip_grad_norm = 1.0;
  model.engine.set_group(0, 0, model.options);
  model.tensors[1].norm_part = 5;
  model.engine.set(model.all, model.tensors);
  model.begin(true);
  model.device.norm = &model.norm;
  std::array<octavo_device_norm, 2> norms{};
  const std::vector<octavo_engine_norm_part> parts = {model.part(&norms[0]), model.part(&norms[1], 5)};

  struct Stop {};
  EXPECT_THROW(model.engine.norm(model.args, parts, [] { throw Stop(); }), Stop);
  model.engine.norm(model.args, parts, [&] { model.norm.l2 = std::hypot(norms[0].l2, norms[1].l2); });
  EXPECT_EQ(model.norm.l2, 32.0);  // sqrt(2 * 8192 * 0.25^2)
  model.engine.step(model.args);
  EXPECT_NEAR(model.params[0][0], 1.0 - 0.5 * 0.25 / 32.0, 1e-6);
}

TEST(EngineHpp, GradientsAreReleased) {
  Model model;
  model.begin();
  model.engine.ready(model.args, nullptr);
  EXPECT_EQ(model.params[1][7], 0.875F);
  EXPECT_EQ(error_of([&] { model.engine.ready(model.args, nullptr); }).tensor(), 0);
  model.engine.forget_ready();
  model.engine.ready(model.args, nullptr);
  model.engine.finish(model.args, {});
  EXPECT_EQ(model.params[1][7], 0.75F);

  model.begin(true);
  model.device.norm = &model.norm;
  std::array<octavo_device_norm, 2> own{};
  model.engine.ready(model.args, own.data());
  octavo_device_norm total{};
  const std::vector<octavo_engine_norm_part> parts = {model.part(&total)};
  model.make_room();
  model.engine.finish(model.args, parts);
  EXPECT_EQ(model.norm.l2, 32.0);
}

TEST(EngineHpp, Offloads) {
  Model model(1);
  Engine& engine = model.engine;
  engine.set_order(Handles{1, 0});
  const std::vector<const void*> grads = {model.grad.data()};
  const std::vector<std::uint8_t> dtypes = {0};
  engine.take(Handles{0}, grads, dtypes, 0, 0, nullptr);
  EXPECT_TRUE(engine.holds(0));
  EXPECT_FALSE(engine.holds(1));
  engine.drop();
  EXPECT_FALSE(engine.holds(0));
  engine.take(Handles{0}, grads, dtypes, 0, 0, nullptr);
  engine.wait({}, Engine::Wait::gradients, 0, 0, nullptr);
  model.grads[0] = nullptr;  // the gradient that was taken
  model.begin();
  model.args.defer = 1;
  engine.step(model.args);
  engine.wait(model.all, Engine::Wait::weights, 0, 0, nullptr);
  engine.synchronize();
  EXPECT_EQ(model.params[0][3], 0.875F);
  EXPECT_EQ(model.params[1][3], 0.875F);

  EXPECT_GE(engine.host_bytes(), 4 * Model::kCount);

  model.params[0][3] = 4.0F;
  engine.refresh({}, Engine::Copy::to_device, 0, 0, nullptr);
  EXPECT_EQ(model.params[0][3], 0.875F);
  model.params[0][3] = 4.0F;
  engine.refresh(Handles{0}, Engine::Copy::to_host, 0, 0, nullptr);
  model.grads[0] = model.grad.data();
  model.begin();
  engine.step(model.args);
  engine.wait({}, Engine::Wait::weights, 0, 0, nullptr);
  EXPECT_EQ(model.params[0][3], 3.875F);
}

}  // namespace
