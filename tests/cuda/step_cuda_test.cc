// Tests that a step on the GPU writes the CPU's bytes: every optimizer, format, weight store and gradient
// type, block size, alignment and number of elements; special values; extreme hyper-parameters.
// SPDX-License-Identifier: MIT
#include "tests/cuda/device.h"
#include "tests/reference/step.h"
#include "tests/support/random.h"

#include <octavo/formats.h>

#include <cmath>
#include <cstring>

namespace test {
namespace {

using octavo::DType;
using octavo::StateFormat;
using octavo::TensorSpec;

DType grad_for(std::size_t index) { return octavo::all_dtypes()[index % octavo::all_dtypes().size()]; }

std::string label(const OptimizerCase& optimizer, StateFormat format, const StoreCase& store,
                  const std::string& more = "") {
  return std::string(optimizer.name) + ", " + std::string(octavo::name(format)) + ", " + store.name + more;
}

// Some tensors are parts of larger ones, on both sides of an index of 2^32.
void set_offsets(TensorSet& set) {
  for (std::size_t i = 0; i < set.tensors().size(); i += 3)
    set.tensors()[i].offset = (std::int64_t{1} << 32) - 300 + static_cast<std::int64_t>(i);
}

class StepCuda : public GpuTest, public testing::WithParamInterface<OptimizerCase> {};

TEST_P(StepCuda, EqualsTheCpu) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      ++combination;
      std::vector<TensorSpec> specs;
      for (const std::int64_t numel :
           {0, 1, 7, 8, 31, 255, 256, 257, 511, 512, 513, 1024, 4095, 4097, 70001}) {
        specs.push_back(tensor_spec(numel, store.dtype, grad_for(combination), store.store, format));
        if (specs.size() % 3 != 0) give_shape(specs.back());
      }
      TensorSet set(GetParam().config, specs, combination);
      set_offsets(set);
      {
        // Only ordinary values: the fast path, from the first step on.
        Race race(set, stream, Memory::together, {Placement::aligned});
        const Grads kinds[] = {Grads::dense, Grads::dense, Grads::dense};
        tally.add(label(GetParam(), format, store, ", ordinary values"),
                  race.steps(step_args(GetParam(), 1), kinds));
      }
      add_special_params(set);
      Race race(set, stream);
      const Grads kinds[] = {Grads::mixed, Grads::dense, Grads::tiny,   Grads::zero,
                             Grads::dense, Grads::huge,  Grads::special};
      tally.add(label(GetParam(), format, store), race.steps(step_args(GetParam(), 1), kinds));
    }
  }
}

// Weights that other code has set to zero, with residuals from before: every pair with ±0, on both paths.
TEST_P(StepCuda, ZeroWeightsBesideOldResiduals) {
  const Stream stream;
  Tally tally;
  for (const StoreCase& store : stores()) {
    if (store.store != octavo::WeightStore::residual8 && store.store != octavo::WeightStore::residual16)
      continue;
    const TensorSpec spec = tensor_spec(2 * 65536, store.dtype, DType::f32, store.store, StateFormat::fp32);
    TensorSet set(GetParam().config, {&spec, 1}, 4);
    TensorBuffers& t = set.tensors()[0];
    for (std::int64_t i = 0; i < spec.numel; ++i) {
      t.param.as<std::uint16_t>()[i] = static_cast<std::uint16_t>((i & 1) << 15);
      if (store.store == octavo::WeightStore::residual8) {
        t.residual.as<std::int8_t>()[i] = static_cast<std::int8_t>(i / 2);
      } else {
        t.residual.as<std::int16_t>()[i] = static_cast<std::int16_t>(i / 2);
      }
    }
    Race race(set, stream);
    const Grads kinds[] = {Grads::dense, Grads::zero};
    tally.add(label(GetParam(), StateFormat::fp32, store), race.steps(step_args(GetParam(), 1), kinds));
    const auto* weights = race.cpu().tensors()[0].param.as<std::uint16_t>();
    for (std::int64_t i = 0; i < spec.numel; ++i) ASSERT_LT(weights[i] & 0x7FFF, 0x7F80) << i;
  }
}

// Rows that once had a gradient and then none: moments pass through all magnitudes of a float, down to
// denormals and zero, and some of the weights are zero. Also with an eps of zero.
TEST_P(StepCuda, RowsThatStayIdle) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const StoreCase& store : stores()) {
      ++combination;
      std::vector<TensorSpec> specs;
      for (const std::int64_t numel : {1024, 2048, 1536}) {
        specs.push_back(tensor_spec(numel, store.dtype, store.dtype, store.store, format));
        give_shape(specs.back());
      }
      TensorSet set(GetParam().config, specs, combination);
      for (TensorBuffers& t : set.tensors()) {
        std::byte* bytes = t.param.as<std::byte>();
        const std::int64_t size = octavo::dtype_bytes(t.spec.param_dtype);
        for (std::int64_t i = 0; i < t.spec.numel; i += 1 + i % 7)
          std::memset(bytes + i * size, 0, usize(size));
      }
      Race race(set, stream, Memory::together, {Placement::aligned});
      octavo::StepArgs args = step_args(GetParam(), 1);
      args.hyper.beta1 = 0.02;
      args.hyper.beta2 = 0.03;
      if (combination % 4 == 0) args.hyper.eps = 0.0;
      std::vector<Grads> kinds(40, Grads::zero);
      kinds[0] = Grads::mixed;
      kinds[35] = Grads::tiny;
      tally.add(label(GetParam(), format, store), race.steps(args, kinds));
    }
  }
}

TEST_P(StepCuda, AnyFiniteGradient) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  for (const StateFormat format : octavo::all_state_formats()) {
    for (const DType grad : {DType::f32, DType::bf16}) {
      const std::vector<StoreCase> all = stores();
      const StoreCase& store = all[combination++ % all.size()];
      std::vector<TensorSpec> specs(12, tensor_spec(777, store.dtype, grad, store.store, format));
      for (TensorSpec& spec : specs) give_shape(spec);
      const TensorSet set(GetParam().config, specs, combination);
      Race race(set, stream);
      octavo::StepArgs args = step_args(GetParam(), 1);
      args.grad_factor = 0x1p-70;  // most squares are finite
      const Grads kinds[] = {Grads::zero, Grads::wide, Grads::wide, Grads::tiny};
      tally.add(label(GetParam(), format, store), race.steps(args, kinds));
    }
  }
}

// All formats, stores and gradient types in one group, together with small tensors with fp32 states.
TEST_P(StepCuda, AMixedGroup) {
  const Stream stream;
  Tally tally;
  for (const bool large : {false, true}) {
    std::vector<TensorSpec> specs;
    constexpr std::int64_t kSizes[] = {300, 0, 5, 512, 1000, 1537, 4095, 2049};
    for (const StateFormat format : octavo::all_state_formats()) {
      for (const StoreCase& store : stores()) {
        for (const DType grad : octavo::all_dtypes()) {
          const std::int64_t numel = kSizes[specs.size() % 8] + (large ? 4096 : 0);
          specs.push_back(tensor_spec(numel, store.dtype, grad, store.store, format));
          if (specs.size() % 2 == 0) give_shape(specs.back());
        }
      }
    }
    TensorSet set(GetParam().config, specs, 5);
    set_offsets(set);
    Race race(set, stream);
    const Grads kinds[] = {Grads::dense, Grads::mixed, Grads::dense, Grads::special};
    tally.add(std::string(GetParam().name) + (large ? ", large" : ", small"),
              race.steps(step_args(GetParam(), 1), kinds));
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, StepCuda, testing::ValuesIn(optimizers(true)), test_name);

class BlocksCuda : public GpuTest {};

TEST_F(BlocksCuda, EverySizeEqualsTheCpu) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    if (optimizer.config.algorithm == octavo::Algorithm::sgd && !optimizer.config.momentum) continue;
    for (const StateFormat format : octavo::all_state_formats()) {
      if (!has_blocks(format)) continue;
      for (std::int64_t block = octavo::kMinBlockSize; block <= octavo::kMaxBlockSize; block *= 2) {
        const std::vector<StoreCase> all = stores();
        const StoreCase& store = all[combination++ % all.size()];
        std::vector<TensorSpec> specs;
        for (const std::int64_t numel :
             {1, 31, 33, 511, 512, 513, 1023, 4095, 4096, 4097, 8192, 12289, 20000}) {
          specs.push_back(tensor_spec(numel, store.dtype, grad_for(combination), store.store, format, block));
          if (specs.size() % 2 == 0) give_shape(specs.back());
        }
        const TensorSet set(optimizer.config, specs, combination);
        const std::string what = label(optimizer, format, store, ", block " + std::to_string(block));
        Race race(set, stream);
        const Grads kinds[] = {Grads::dense, Grads::dense, Grads::mixed, Grads::special, Grads::dense};
        tally.add(what, race.steps(step_args(optimizer, 1), kinds));
      }
    }
  }
}

// States that no step would write: any code, and any scale that is not negative.
TEST_F(BlocksCuda, AnyStateEqualsTheCpu) {
  const Stream stream;
  Tally tally;
  Random random(8);
  std::size_t combination = 0;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      if (!has_blocks(format)) continue;
      for (const int low : {-20, -140}) {
        const std::vector<StoreCase> all = stores();
        const StoreCase& store = all[combination++ % all.size()];
        std::vector<TensorSpec> specs(
            8, tensor_spec(4097, store.dtype, grad_for(combination), store.store, format));
        for (std::size_t i = 0; i < specs.size(); i += 2) give_shape(specs[i]);
        TensorSet set(optimizer.config, specs, combination);
        for (TensorBuffers& t : set.tensors()) {
          for (std::size_t s = 0; s < usize(t.layout.slots); ++s) {
            const bool variance =
                reference::slot_spec(optimizer.config, t.spec, static_cast<int>(s)).moment ==
                octavo::Moment::second;
            for (std::int64_t i = 0; i < t.codes[s].size(); ++i) {
              auto code = static_cast<std::uint8_t>(random.bits());
              const bool fp8 = format == StateFormat::fp8_e4m3 || format == StateFormat::fp8_e5m2;
              if (fp8 && variance) code &= 0x7F;  // variances have no sign
              // Another test covers NaN and infinity, because one of them ends its block.
              if (fp8 && low == -20 && (code & 0x7F) >= 0x7C) code &= 0x80;
              t.codes[s].as<std::uint8_t>()[i] = code;
            }
            // Unused bits of the last byte are always zero.
            const int bits = octavo::describe(format)->moment[variance ? 1 : 0].bits;
            if (const std::int64_t used = t.spec.numel * bits % 8; bits < 8 && used != 0)
              t.codes[s].as<std::uint8_t>()[t.codes[s].size() - 1] &=
                  static_cast<std::uint8_t>(0xFF << (8 - used));
            for (std::int64_t i = 0; i < t.scales[s].size() / 4; ++i) {
              const auto range = static_cast<std::uint64_t>(variance ? -low : -low / 2) + 5;
              const int exponent = low + static_cast<int>(random.below(range));
              t.scales[s].as<float>()[i] = std::ldexp(1.0f + 0.9f * std::fabs(random.gaussian()), exponent);
            }
          }
        }
        Race race(set, stream);
        const Grads kinds[] = {Grads::dense, Grads::tiny, Grads::mixed};
        tally.add(label(optimizer, format, store, ", scales from 2^" + std::to_string(low)),
                  race.steps(step_args(optimizer, 2), kinds));
      }
    }
  }
}

class HyperCuda : public GpuTest {};

struct Variant {
  const char* name;
  std::function<void(octavo::StepArgs&)> change;
  bool sgd_only = false;
};

std::vector<Variant> variants() {
  return {
      {"eps 0", [](auto& a) { a.hyper.eps = 0.0; }},
      {"eps 1e-30", [](auto& a) { a.hyper.eps = 1e-30; }},
      {"eps 1e-45", [](auto& a) { a.hyper.eps = 1e-45; }},
      {"eps 1e10", [](auto& a) { a.hyper.eps = 1e10; }},
      {"beta1 0", [](auto& a) { a.hyper.beta1 = 0.0; }},
      {"beta2 0", [](auto& a) { a.hyper.beta2 = 0.0; }},
      {"both betas 0", [](auto& a) { a.hyper.beta1 = a.hyper.beta2 = 0.0; }},
      {"beta2 1 - 2^-50",
       [](auto& a) {
         a.hyper.beta2 = 1.0 - 0x1p-50;  // root_scale is large
       }},
      {"lr 0", [](auto& a) { a.hyper.lr = 0.0; }},
      {"lr 1e-40", [](auto& a) { a.hyper.lr = 1e-40; }},
      {"lr 1e30", [](auto& a) { a.hyper.lr = 1e30; }},
      {"no decay", [](auto& a) { a.hyper.weight_decay = 0.0; }},
      {"coupled decay",
       [](auto& a) {
         a.hyper.weight_decay = 0.3;
         a.hyper.decay = octavo::Decay::coupled;
       }},
      {"decoupled decay",
       [](auto& a) {
         a.hyper.weight_decay = 0.3;
         a.hyper.decay = octavo::Decay::decoupled;
       }},
      {"decay above 1 / lr",
       [](auto& a) {
         a.hyper.weight_decay = 1e3;
         a.hyper.decay = octavo::Decay::decoupled;
       }},
      {"maximize", [](auto& a) { a.hyper.maximize = true; }},
      {"nesterov", [](auto& a) { a.hyper.nesterov = true; }, true},
      {"dampening 1", [](auto& a) { a.hyper.dampening = 1.0; }, true},
      {"momentum 0", [](auto& a) { a.hyper.momentum = 0.0; }, true},
      {"step 10^6", [](auto& a) { a.step = 1000000; }},
      {"step 2^40", [](auto& a) { a.step = std::int64_t{1} << 40; }},
      {"factor 0", [](auto& a) { a.grad_factor = 0.0; }},
      {"factor 1e-30", [](auto& a) { a.grad_factor = 1e-30; }},
      {"factor -2e5", [](auto& a) { a.grad_factor = -2e5; }},
      {"factor 1e30", [](auto& a) { a.grad_factor = 1e30; }},
  };
}

TEST_F(HyperCuda, ExtremesEqualTheCpu) {
  const Stream stream;
  Tally tally;
  std::size_t combination = 0;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    for (const StateFormat format : octavo::all_state_formats()) {
      for (const Variant& variant : variants()) {
        const bool momentum = optimizer.config.algorithm == octavo::Algorithm::sgd;
        if (variant.sgd_only && !(momentum && optimizer.config.momentum)) continue;
        const std::vector<StoreCase> all = stores();
        const StoreCase& store = all[combination++ % all.size()];
        std::vector<TensorSpec> specs;
        for (const std::int64_t numel : {2048, 513, 1000, 600}) {
          specs.push_back(tensor_spec(numel, store.dtype, grad_for(combination), store.store, format));
          give_shape(specs.back());
        }
        const TensorSet set(optimizer.config, specs, combination);
        octavo::StepArgs args = step_args(optimizer, 1);
        variant.change(args);
        Race race(set, stream);
        const Grads kinds[] = {Grads::dense, Grads::mixed, Grads::dense};
        tally.add(label(optimizer, format, store, std::string(", ") + variant.name), race.steps(args, kinds));
      }
    }
  }
}

class ManyCuda : public GpuTest {};

TEST_F(ManyCuda, FiveThousandTensors) {
  const Stream stream;
  Tally tally;
  for (const OptimizerCase& optimizer : optimizers(false)) {
    std::vector<TensorSpec> specs;
    for (std::int64_t i = 0; i < 5000; ++i) {
      const StoreCase store = stores()[usize(i / 2500)];
      // Two in three have fp32 states, like small parameters.
      const StateFormat format = i % 3 == 0 ? StateFormat::int8 : StateFormat::fp32;
      specs.push_back(tensor_spec(i * 7 % 131, store.dtype, DType::bf16, store.store, format));
    }
    const TensorSet set(optimizer.config, specs, 3);
    Race race(set, stream);
    octavo::StepArgs args = step_args(optimizer, 1);
    args.skip_nonfinite = true;
    const Grads kinds[] = {Grads::mixed, Grads::dense, Grads::dense};
    tally.add(optimizer.name, race.steps(args, kinds));
  }
}

TEST_F(ManyCuda, NoTensors) {
  const Stream stream;
  const OptimizerCase adamw = optimizers(false)[1];
  const TensorSpec empty =
      tensor_spec(0, DType::f32, DType::f32, octavo::WeightStore::nearest, StateFormat::int8);
  for (const bool one : {false, true}) {
    const TensorSet set(adamw.config, {&empty, one ? 1u : 0u}, 1);
    DeviceSet device(set, Placement::aligned, stream);
    OnDevice<std::int64_t> step(41, stream);
    octavo::StepArgs args = step_args(adamw, 1);
    args.skip_nonfinite = true;
    args.scalars.step = step.get();
    const auto report = device.step(args);
    ASSERT_TRUE(report.ok()) << report.status().message();
    EXPECT_EQ(step.value(stream), 42);
  }
}

}  // namespace
}  // namespace test
