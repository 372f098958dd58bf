// Bytes that must not change from version to version: the encoding of fixed values in every format, and three
// steps of every optimizer in every format and every weight store. The files are written by the reference in
// tests/reference, so that the library and the reference are each held to them.
// SPDX-License-Identifier: MIT
#include "tests/support/golden.h"
#include "tests/reference/step.h"
#include "tests/support/buffers.h"
#include "tests/support/cases.h"
#include "tests/support/moment.h"
#include "tests/support/random.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace test {
namespace {

using octavo::DType;
using octavo::Moment;
using octavo::MomentSpec;
using octavo::StateFormat;
using octavo::TensorSpec;

constexpr std::int64_t kBlock = 32;

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

// Five blocks: ordinary, zero, denormal, not finite, and a short one with a negative maximum.
std::vector<float> encode_input(Moment moment) {
  std::vector<float> values = spread_values(4 * kBlock + 13, 2024, 24);
  for (std::size_t i = 32; i < 64; ++i) values[i] = 0.0f;
  for (std::size_t i = 64; i < 96; ++i) values[i] *= 0x1p-130f;
  values[100] = INFINITY;
  values[104] = reference::from_bits(0xFFA12345u);  // a NaN that is not the canonical one
  values[130] = -9.0f;
  if (moment == Moment::second) make_second_moment(values);
  return values;
}

std::string file_of(StateFormat format) {
  std::string name(octavo::name(format));
  std::replace(name.begin(), name.end(), '/', '-');
  return name;
}

void check_encode(Golden& golden, const MomentSpec& spec, const std::vector<float>& values,
                  const std::string& key) {
  const reference::Encoded expected = reference::encode(spec, values);
  golden.record(key + " codes", bytes_of(expected.codes));
  golden.record(key + " scales", bytes_of(expected.scales));
  if (Golden::updating()) return;
  EXPECT_EQ(golden.compare(key + " codes", bytes_of(expected.codes)), "") << "reference";
  EXPECT_EQ(golden.compare(key + " scales", bytes_of(expected.scales)), "") << "reference";
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    const EncodedBuffers got = encode(spec, values);
    EXPECT_EQ(golden.compare(key + " codes", got.codes.bytes()), "") << implementation;
    EXPECT_EQ(golden.compare(key + " scales", got.scales.bytes()), "") << implementation;
  }
}

TensorSet start(const OptimizerCase& optimizer, StateFormat format, const StoreCase& store) {
  TensorSpec spec =
      tensor_spec(70, store.dtype, DType::f32, store.store, format, has_blocks(format) ? kBlock : 0);
  spec.shape = {7, 1, 10};
  spec.ndim = 3;
  return {optimizer.config, {&spec, 1}, 4242};
}

// Calls visit(name, buffer) for what a step leaves behind.
template <class Visit>
void visit_results(const TensorSet& set, Visit visit) {
  const TensorBuffers& t = set.tensors()[0];
  visit("param", t.param);
  if (t.residual.size() > 0) visit("residual", t.residual);
  static constexpr std::array<const char*, 3> kCodes = {"codes 0", "codes 1", "codes 2"};
  static constexpr std::array<const char*, 3> kScales = {"scales 0", "scales 1", "scales 2"};
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(t.layout.slots); ++slot) {
    visit(kCodes[slot], t.codes[slot]);
    if (t.scales[slot].size() > 0) visit(kScales[slot], t.scales[slot]);
  }
}

void check_steps(Golden& golden, const OptimizerCase& optimizer, StateFormat format, const StoreCase& store,
                 const std::string& key) {
  const auto run = [&](auto one_step) {
    TensorSet set = start(optimizer, format, store);
    for (int i = 1; i <= 3; ++i) {
      set.fill_grads(900 + static_cast<std::uint64_t>(i));
      one_step(set, step_args(optimizer, i));
    }
    return set;
  };
  const TensorSet expected = run(
      [](TensorSet& set, const octavo::StepArgs& args) { reference::step(set.config(), set.args(), args); });
  visit_results(expected, [&](const std::string& what, const Buffer& buffer) {
    golden.record(key + " " + what, buffer.bytes());
    if (!Golden::updating()) {
      EXPECT_EQ(golden.compare(key + " " + what, buffer.bytes()), "") << "reference";
    }
  });
  if (Golden::updating()) return;
  for (const std::string& implementation : supported_implementations()) {
    const ForcedImplementation forced(implementation);
    const TensorSet got =
        run([](TensorSet& set, const octavo::StepArgs& args) { ASSERT_TRUE(set.step(args).ok()); });
    visit_results(got, [&](const std::string& what, const Buffer& buffer) {
      EXPECT_EQ(golden.compare(key + " " + what, buffer.bytes()), "") << implementation;
    });
  }
}

void finish(const Golden& golden, const std::string& comment) {
  if (Golden::updating()) {
    golden.save(comment);
  } else {
    EXPECT_EQ(golden.missing(), "");
  }
}

TEST(Golden, Formats) {
  for (const StateFormat format : octavo::all_state_formats()) {
    Golden golden(file_of(format));
    for (const Moment moment : {Moment::first, Moment::second}) {
      const std::vector<float> values = encode_input(moment);
      const MomentSpec spec{
          moment, format, has_blocks(format) ? kBlock : 0, static_cast<std::int64_t>(values.size()), {}, 0};
      check_encode(golden, spec, values, moment == Moment::first ? "encode first" : "encode second");
    }
    for (const OptimizerCase& optimizer : optimizers(false)) {
      check_steps(golden, optimizer, format, stores()[0], optimizer.name);
    }
    finish(golden, "The state format " + std::string(octavo::name(format)) +
                       ": an encoding, and three steps of each optimizer.");
  }
}

TEST(Golden, WeightStores) {
  Golden golden("stores");
  for (const StoreCase& store : stores()) {
    check_steps(golden, optimizers(false)[1], StateFormat::fp32, store, store.name);
  }
  finish(golden, "Every weight store: three steps of AdamW with fp32 states.");
}

// This file comes from make_rank1.py, which follows the paper's definition with numpy; nothing here can write
// it.
TEST(Golden, Rank1ByThePapersDefinition) {
  if (Golden::updating()) GTEST_SKIP() << "rank1.txt is written by tests/golden/make_rank1.py";
  Golden golden("rank1");
  const std::vector<std::vector<std::int64_t>> shapes = {{1024, 1, 9}, {8, 3, 5, 7}};
  for (const auto& shape : shapes) {
    MomentSpec spec{Moment::second, StateFormat::int4_rank1, 0, 1, {}, static_cast<int>(shape.size())};
    std::string key = "shape";
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      spec.shape[axis] = shape[axis];
      spec.numel *= shape[axis];
      key.append(" ").append(std::to_string(shape[axis]));
    }
    std::vector<float> values = spread_values(spec.numel, 77, 9);
    make_second_moment(values);
    check_encode(golden, spec, values, key);
  }
  EXPECT_EQ(golden.missing(), "");
}

}  // namespace
}  // namespace test
