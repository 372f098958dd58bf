// Tests FP8 on the GPU: casts, sums and scales have the CPU's bytes; matmuls equal the CPU's except for the
// order of sums.
// SPDX-License-Identifier: MIT
#include "tests/cuda/device.h"
#include "tests/cuda/graph.h"
#include "tests/fp8/matrices.h"

#include <octavo/fp8_layer.h>

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace test {
namespace {

using fp8::Activation;
using fp8::Element;
using fp8::Operand;
using fp8::Recipe;
using fp8::Tiling;
using octavo::DType;
using octavo::Status;
using ::testing::HasSubstr;

class Fp8Cuda : public GpuTest {};

constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

struct Case {
  DType dtype = DType::bf16;
  std::int64_t groups = 1, rows = 0, columns = 0;
  Recipe recipe = Recipe::delayed;
  Operand operand = Operand::x;
  Activation activation = Activation::none;
  bool by_rows = true, transposed = true;
  Element rows_as = Element::e4m3, transposed_as = Element::e4m3;
  bool special = false;    // the values include NaN, infinities and zeros of both signs
  std::int64_t phase = 0;  // elements after a multiple of 64 bytes
  bool bias = false;

  [[nodiscard]] std::string text() const {
    return std::string(octavo::name(dtype)) + " " + std::to_string(groups) + "x" + std::to_string(rows) +
           "x" + std::to_string(columns) + " " + std::string(fp8::name(recipe)) + " of " +
           std::string(fp8::name(operand)) + " " + std::string(fp8::name(activation)) +
           (by_rows ? " rows " + std::string(fp8::name(rows_as)) : "") +
           (transposed ? " transposed " + std::string(fp8::name(transposed_as)) : "") +
           (special ? " special" : "") + " phase " + std::to_string(phase) + (bias ? " bias" : "");
  }
};

void fill(const Case& c, std::byte* data) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float special[] = {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf, -0.0f, 0.0f, 1e-40f, 3e38f};
  Random random(7);
  for (std::int64_t i = 0; i < c.groups * c.rows * c.columns; ++i) {
    float x = random.gaussian() * std::ldexp(1.0f, static_cast<int>(random.below(12)) - 8);
    if (c.special && random.chance(997)) x = special[random.below(7)];
    reference::store_nearest(c.dtype, data, i, x);
  }
}

// One call of cast() and its outputs.
class Call {
 public:
  explicit Call(const Case& c) : case_(c) {
    args_.dtype = c.dtype;
    args_.groups = c.groups;
    args_.rows = c.rows;
    args_.columns = c.columns;
    args_.recipe = c.recipe;
    args_.operand = c.operand;
    args_.activation = c.activation;
    args_.by_rows.element = c.rows_as;
    args_.transposed.element = c.transposed_as;
  }
  [[nodiscard]] std::int64_t from_bytes() const {
    return case_.groups * case_.rows * case_.columns * octavo::dtype_bytes(case_.dtype);
  }
  [[nodiscard]] std::int64_t codes_bytes() const {
    return case_.groups * fp8::padded(case_.rows) * fp8::padded(case_.columns);
  }
  [[nodiscard]] std::int64_t scale_bytes(bool transposed) const {
    const Tiling tiling = fp8::tiling(case_.recipe, case_.operand);
    const std::int64_t one = fp8::scale_count(tiling, fp8::padded(transposed ? case_.columns : case_.rows),
                                              fp8::padded(transposed ? case_.rows : case_.columns));
    return 4 * (tiling == Tiling::tensor ? one : one * case_.groups);
  }

  // Returns "" if the GPU's bytes equal the CPU's.
  std::string compare(cudaStream_t stream) {
    DeviceMemory memory(Memory::together);
    struct Field {
      const char* name;
      std::int64_t bytes, phase;
    };
    const std::int64_t sums = case_.bias ? 4 * case_.columns : 0;
    const std::int64_t workspace =
        case_.bias ? fp8::cast_workspace_bytes(kGpu, case_.rows, case_.columns) : 0;
    const Field fields[] = {{"from", from_bytes(), case_.phase * octavo::dtype_bytes(case_.dtype)},
                            {"scales", 8, 0},
                            {"codes", case_.by_rows ? codes_bytes() : 0, 0},
                            {"inverse", case_.by_rows ? scale_bytes(false) : 0, 4},
                            {"transposed", case_.transposed ? codes_bytes() : 0, 0},
                            {"transposed inverse", case_.transposed ? scale_bytes(true) : 0, 4},
                            {"amax", 4, 8},
                            {"bias_grad", sums, 4},
                            {"workspace", workspace, 4}};
    std::vector<std::size_t> slots;
    std::vector<std::vector<std::byte>> cpu;
    for (const Field& field : fields) {
      slots.push_back(memory.add(field.bytes, field.phase));
      cpu.emplace_back(usize(field.bytes) + 16, std::byte{0x5A});
    }
    fill(case_, cpu[0].data());
    const float scales[] = {37.5f, 1234.0f}, amax = 0.125f;
    std::memcpy(cpu[1].data(), scales, sizeof scales);
    std::memcpy(cpu[6].data(), &amax, sizeof amax);
    for (std::size_t i = 0; i < std::size(fields); ++i)
      std::memcpy(memory.host(slots[i]), cpu[i].data(), usize(fields[i].bytes));
    memory.upload(stream);

    const auto point = [&](auto&& at) {
      args_.from = at(0);
      const auto codes = [&](fp8::Codes& out, std::size_t first) {
        out.data = reinterpret_cast<std::uint8_t*>(at(first));
        out.inverse = reinterpret_cast<float*>(at(first + 1));
        out.scale = reinterpret_cast<const float*>(at(1)) + static_cast<std::size_t>(out.element);
      };
      if (case_.by_rows) codes(args_.by_rows, 2);
      if (case_.transposed) codes(args_.transposed, 4);
      args_.amax = reinterpret_cast<float*>(at(6));
      args_.bias_grad = case_.bias ? reinterpret_cast<float*>(at(7)) : nullptr;
      args_.workspace = case_.bias ? at(8) : nullptr;
      args_.workspace_bytes = workspace;
    };
    args_.device = {};
    args_.stream = nullptr;
    point([&](std::size_t i) { return cpu[i].data(); });
    if (const Status bad = fp8::cast(args_); !bad.ok()) return "cpu: " + bad.message();
    args_.device = kGpu;
    args_.stream = stream;
    point([&](std::size_t i) { return memory.device(slots[i]); });
    if (const Status bad = fp8::cast(args_); !bad.ok()) return "gpu: " + bad.message();
    memory.download(stream);
    if (const auto number = memory.damaged(); number) return "wrote beside buffer " + std::to_string(*number);
    for (std::size_t i = 0; i + 1 < std::size(fields);
         ++i) {  // only the GPU has the last buffer, the workspace
      const std::byte* const gpu = memory.host(slots[i]);
      for (std::int64_t b = 0; b < fields[i].bytes; ++b) {
        if (gpu[b] == cpu[i][usize(b)]) continue;
        return std::string(fields[i].name) + " differs at byte " + std::to_string(b) + ": gpu " +
               std::to_string(std::to_integer<int>(gpu[b])) + ", cpu " +
               std::to_string(std::to_integer<int>(cpu[i][usize(b)]));
      }
    }
    return "";
  }

 private:
  Case case_;
  fp8::CastArgs args_;
};

std::vector<Case> orientations(Case c) {
  std::vector<Case> out;
  for (const int which : {1, 2, 3}) {
    c.by_rows = (which & 1) != 0;
    c.transposed = (which & 2) != 0;
    out.push_back(c);
  }
  return out;
}

TEST_F(Fp8Cuda, CastsHaveTheCpusBytes) {
  const Stream stream;
  Tally tally;
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 1},     {16, 16},  {17, 40},  {128, 128},
                                                          {130, 264}, {5, 1000}, {257, 31}, {384, 640}};
  for (const Recipe recipe : kRecipes) {
    for (const Operand operand : {Operand::x, Operand::w}) {
      for (const DType dtype : kTypes) {
        for (const auto& [rows, columns] : shapes) {
          for (const bool special : {false, true}) {
            Case c;
            c.dtype = dtype;
            c.rows = rows;
            c.columns = columns;
            c.recipe = recipe;
            c.operand = operand;
            c.special = special;
            for (const Case& one : orientations(c)) tally.add(one.text(), Call(one).compare(stream));
          }
        }
      }
    }
  }
}

TEST_F(Fp8Cuda, CastsOfBothElementsAndActivations) {
  const Stream stream;
  Tally tally;
  for (const Recipe recipe : kRecipes) {
    for (const Element rows_as : kElements) {
      for (const Element transposed_as : kElements) {
        for (const Activation activation :
             {Activation::none, Activation::relu, Activation::gelu, Activation::silu}) {
          for (const bool whole : {false, true}) {  // tiles of 128 x 128
            Case c;
            c.dtype = whole ? DType::bf16 : DType::f32;
            c.rows = whole ? 256 : 200;
            c.columns = whole ? 384 : 136;
            c.recipe = recipe;
            c.rows_as = rows_as;
            c.transposed_as = transposed_as;
            c.activation = activation;
            c.special = true;
            tally.add(c.text(), Call(c).compare(stream));
          }
        }
      }
    }
  }
}

TEST_F(Fp8Cuda, CastsOfGroupsAndOfAnyAlignment) {
  const Stream stream;
  Tally tally;
  for (const Recipe recipe : kRecipes) {
    for (const Operand operand : {Operand::x, Operand::w}) {
      for (const DType dtype : kTypes) {
        for (const auto& [phase, rows, columns] :
             {std::tuple(0, 144, 272), std::tuple(1, 144, 272), std::tuple(3, 144, 272),
              std::tuple(0, 256, 128), std::tuple(1, 256, 128)}) {
          Case c;
          c.dtype = dtype;
          c.groups = 3;
          c.rows = rows;
          c.columns = columns;
          c.recipe = recipe;
          c.operand = operand;
          c.phase = phase;
          tally.add(c.text(), Call(c).compare(stream));
        }
      }
    }
  }
}

TEST_F(Fp8Cuda, BiasGradients) {
  const Stream stream;
  Tally tally;
  for (const DType dtype : kTypes) {
    for (const std::int64_t rows : {1, 2, 31, 32, 33, 64, 1000, 1024, 1025, 40000}) {
      Case c;
      c.dtype = dtype;
      c.rows = rows;
      c.columns = rows > 2000 ? 24 : 300;
      c.operand = Operand::dy;
      c.bias = true;
      tally.add(c.text(), Call(c).compare(stream));
    }
  }
}

TEST_F(Fp8Cuda, ScalesAreTheCpus) {
  const Stream stream;
  for (const std::int64_t length : {1, 2, 3, 255, 256, 257, 1024, 5000}) {
    for (const fp8::AmaxAlgo algo : {fp8::AmaxAlgo::max, fp8::AmaxAlgo::most_recent}) {
      constexpr std::int64_t kTensors = 5;
      DeviceMemory memory(Memory::together);
      const std::int64_t bytes = 4 * kTensors * fp8::state_floats(length);
      const std::size_t slot = memory.add(bytes, 4);
      std::vector<float> cpu(usize(kTensors * fp8::state_floats(length)), 0.0f);
      Random random(static_cast<std::uint64_t>(length));
      for (int step = 0; step < 12; ++step) {
        for (std::int64_t i = 0; i < kTensors; ++i) {
          const auto tensor = fp8::DelayedTensor::at(cpu.data(), length, i);
          if (step == 0) tensor.scales[0] = tensor.scales[1] = 1.0f;
          float amax = std::ldexp(std::fabs(random.gaussian()), static_cast<int>(random.below(40)) - 20);
          if (random.chance(5)) amax = 0.0f;
          if (random.chance(7)) amax = std::numeric_limits<float>::infinity();
          if (random.chance(7)) amax = 0x1p-140f;
          tensor.history[0] = amax;
        }
        std::memcpy(memory.host(slot), cpu.data(), usize(bytes));
        memory.upload(stream);
        fp8::ScaleUpdate update;
        update.states = cpu.data();
        update.tensors = kTensors;
        update.length = length;
        update.algo = algo;
        update.margin = step % 3;
        ASSERT_TRUE(fp8::update_scales(update).ok());
        update.device = kGpu;
        update.states = reinterpret_cast<float*>(memory.device(slot));
        update.stream = stream;
        const Status status = fp8::update_scales(update);
        ASSERT_TRUE(status.ok()) << status.message();
        memory.download(stream);
        ASSERT_FALSE(memory.damaged());
        ASSERT_EQ(std::memcmp(memory.host(slot), cpu.data(), usize(bytes)), 0)
            << "length " << length << " step " << step;
      }
    }
  }
}

// A layer on the CPU and on the GPU, with the same numbers.
class LayerRace {
 public:
  LayerRace(const fp8::Layer& layer, const fp8::Settings& settings, DType dtype, cudaStream_t stream)
      : layer_(layer), settings_(settings), dtype_(dtype), stream_(stream) {}

  // Returns the largest difference between the GPU's and the CPU's result, divided by the largest magnitude
  // of a row's sums.
  double difference(fp8::Pass pass, bool add) {
    const fp8::Uses both = fp8::uses(settings_.format, pass);
    const fp8::LayerResult to = fp8::result(layer_, pass);
    const std::int64_t numel = to.groups * to.rows * to.columns;
    const std::int64_t bytes = numel * octavo::dtype_bytes(dtype_);
    std::vector<std::byte> cpu(usize(bytes), std::byte{0});
    Random random(3);
    for (std::int64_t i = 0; i < numel; ++i)
      reference::store_nearest(dtype_, cpu.data(), i, random.gaussian());

    std::vector<std::vector<std::byte>> codes;
    for (const fp8::Use& use : {both.a, both.b}) codes.push_back(cast(use));
    DeviceMemory memory(Memory::together);
    const std::size_t a = memory.add(std::ssize(codes[0]), 0), b = memory.add(std::ssize(codes[1]), 0),
                      d = memory.add(bytes, 0);
    std::memcpy(memory.host(a), codes[0].data(), codes[0].size());
    std::memcpy(memory.host(b), codes[1].data(), codes[1].size());
    std::memcpy(memory.host(d), cpu.data(), cpu.size());
    memory.upload(stream_);
    const DeviceWorkspace workspace(fp8::workspace_bytes(kGpu));

    fp8::LayerMatmul args;
    args.layer = layer_;
    args.settings = settings_;
    args.pass = pass;
    args.dtype = dtype_;
    args.add = add;
    args.a = codes[0].data();
    args.b = codes[1].data();
    args.to = cpu.data();
    Status status = fp8::matmul(args);
    EXPECT_TRUE(status.ok()) << status.message();
    args.device = kGpu;
    args.stream = stream_;
    args.workspace = workspace.span().data();
    args.a = memory.device(a);
    args.b = memory.device(b);
    args.to = memory.device(d);
    status = fp8::matmul(args);
    EXPECT_TRUE(status.ok()) << status.message();
    memory.download(stream_);
    EXPECT_FALSE(memory.damaged());
    double most = 0.0, size = 0.0;
    for (std::int64_t i = 0; i < numel; ++i) {
      const double x = reference::load(dtype_, memory.host(d), i), y = reference::load(dtype_, cpu.data(), i);
      most = std::max(most, std::isfinite(x) ? std::fabs(x - y) : 1e30);
      size = std::max(size, std::fabs(y));
    }
    return most / size;
  }

 private:
  std::vector<std::byte> cast(const fp8::Use& use) {
    const bool weight = use.operand == Operand::w;
    const std::int64_t one = (weight ? layer_.outputs : layer_.tokens) *
                             (use.operand == Operand::dy ? layer_.outputs : layer_.inputs);
    std::vector<float> values(usize(layer_.groups * one));
    Random random(static_cast<std::uint64_t>(use.operand) + 11);
    for (float& x : values) x = random.gaussian();
    fp8::LayerCast args;
    args.layer = layer_;
    args.settings = settings_;
    args.operand = use.operand;
    args.dtype = DType::f32;
    args.from = values.data();
    float scales[2] = {64.0f, 4096.0f}, history[1] = {};
    args.delayed = {scales, history};
    std::vector<std::byte> out[2];
    for (const bool transposed : {false, true}) {
      const std::int64_t bytes =
          fp8::codes_bytes(layer_, settings_, {}, use.operand, transposed) + fp8::kCodesAlignment;
      out[transposed ? 1 : 0].resize(usize(bytes));
    }
    args.codes = out[0].data();
    args.transposed = out[1].data();
    const Status status = fp8::cast(args);
    EXPECT_TRUE(status.ok()) << status.message();
    return out[use.transposed ? 1 : 0];
  }

  fp8::Layer layer_;
  fp8::Settings settings_;
  DType dtype_;
  cudaStream_t stream_;
};

// Sums of 512 terms: the matrix units keep at least 13 bits of an intermediate sum, so the error of a sum is
// at most about 512 * 2^-13 of its largest part; in practice it is much smaller. bf16 and fp16 add their own
// rounding: two sums on both sides of a tie are 2^-7 and 2^-10 apart.
TEST_F(Fp8Cuda, MatmulsAreTheCpus) {
  const Stream stream;
  for (const Recipe recipe : kRecipes) {
    for (const fp8::Format format : kFormats) {
      for (const DType dtype : kTypes) {
        for (const bool transposed_weight : {false, true}) {
          fp8::Layer layer;
          layer.tokens = 272;
          layer.inputs = 512;
          layer.outputs = 384;
          layer.transposed_weight = transposed_weight;
          fp8::Settings settings;
          settings.recipe = recipe;
          settings.format = format;
          LayerRace race(layer, settings, dtype, stream);
          for (const fp8::Pass pass : kPasses) {
            const double found = race.difference(pass, pass == fp8::Pass::wgrad);
            EXPECT_LT(found, dtype == DType::bf16 ? 0x1p-7 : 0x1p-9)
                << fp8::name(recipe) << " " << fp8::name(format) << " " << octavo::name(dtype) << " "
                << fp8::name(pass) << " transposed_weight " << transposed_weight;
          }
        }
      }
    }
  }
}

TEST_F(Fp8Cuda, MatmulsOfGroups) {
  const Stream stream;
  for (const Recipe recipe : kRecipes) {
    for (const int shared : {0, 1, 2}) {
      fp8::Layer layer;
      layer.groups = 3;
      layer.tokens = 128;
      layer.inputs = 256;
      layer.outputs = 144;
      layer.one_input = shared == 1;
      layer.one_output = shared == 2;
      layer.transposed_weight = true;
      fp8::Settings settings;
      settings.recipe = recipe;
      LayerRace race(layer, settings, DType::f32, stream);
      for (const fp8::Pass pass : kPasses)
        EXPECT_LT(race.difference(pass, false), 0x1p-9) << fp8::name(recipe) << " " << fp8::name(pass);
    }
  }
}

TEST_F(Fp8Cuda, RefusesWhatAGpuCannotUse) {
  const DeviceWorkspace memory(4096);
  fp8::CastArgs args;
  args.device = kGpu;
  args.rows = args.columns = 16;
  args.recipe = Recipe::current;
  args.from = memory.span().data();
  args.by_rows.data = reinterpret_cast<std::uint8_t*>(memory.span().data()) + 2048 + 8;
  args.by_rows.inverse = reinterpret_cast<float*>(memory.span().data() + 3072);
  EXPECT_THAT(fp8::cast(args).message(), HasSubstr("by_rows.data: got an address that is no multiple of 16"));
  const std::vector<float> host(256);
  args.from = host.data();
  args.by_rows.data -= 8;
  EXPECT_THAT(fp8::cast(args).message(), HasSubstr("[fp8] from"));
  fp8::MatmulArgs matmul;
  matmul.device = kGpu;
  matmul.a = matmul.b = {Element::e4m3, Tiling::tensor, 16, 16, args.by_rows.data, args.by_rows.inverse};
  matmul.to = memory.span().data();
  EXPECT_THAT(fp8::matmul(matmul).message(), HasSubstr("workspace: got null, expected a buffer of 33554432"));
  EXPECT_TRUE(fp8::supported(kGpu).ok());
}

}  // namespace
}  // namespace test
