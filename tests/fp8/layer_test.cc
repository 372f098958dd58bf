// A layer's three matmuls: in bits what plain casts and matmuls of each group give, however its weight lies
// and whatever its groups share; near to double; what is refused; and which passes are chosen.
// SPDX-License-Identifier: MIT
#include "tests/fp8/layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace test {
namespace {

using fp8::Choice;
using fp8::Operand;
using fp8::Pass;
using fp8::Recipe;
using octavo::DType;
using ::testing::HasSubstr;

constexpr Operand kOperands[] = {Operand::x, Operand::w, Operand::dy};

// All that a layer's calls need, for one choice of passes.
struct LayerRun {
  const LayerTensors& tensors;
  fp8::Settings settings;
  Choice choice;
  std::array<Buffer, 3> from, codes, transposed;
  std::array<std::array<float, 3>, 3> states{};  // two scales and one slot, by operand

  LayerRun(const LayerTensors& of, const fp8::Settings& with, const Choice& chosen)
      : tensors(of), settings(with), choice(chosen) {
    for (const Operand operand : kOperands) {
      const auto i = static_cast<std::size_t>(operand);
      from[i] = of.memory(operand);
      codes[i] = Buffer(fp8::codes_bytes(of.layer, with, chosen, operand, false));
      transposed[i] = Buffer(fp8::codes_bytes(of.layer, with, chosen, operand, true));
      states[i] = {scales_of_most()[0], scales_of_most()[1], 0.0f};
    }
  }
  [[nodiscard]] fp8::LayerCast cast(Operand operand) {
    const auto i = static_cast<std::size_t>(operand);
    fp8::LayerCast args;
    args.layer = tensors.layer;
    args.settings = settings;
    args.choice = choice;
    args.operand = operand;
    args.from = from[i].data();
    args.codes = codes[i].size() > 0 ? codes[i].data() : nullptr;
    args.transposed = transposed[i].size() > 0 ? transposed[i].data() : nullptr;
    if (settings.recipe == Recipe::delayed) args.delayed = {states[i].data(), states[i].data() + 2};
    return args;
  }
  [[nodiscard]] fp8::LayerMatmul matmul(Pass pass, const Buffer& to, DType dtype) {
    const fp8::Uses uses = fp8::uses(settings.format, pass);
    const auto buffer = [&](const fp8::Use& use) {
      return (use.transposed ? transposed : codes)[static_cast<std::size_t>(use.operand)].data();
    };
    fp8::LayerMatmul args;
    args.layer = tensors.layer;
    args.settings = settings;
    args.pass = pass;
    args.a = buffer(uses.a);
    args.b = buffer(uses.b);
    args.to = to.data();
    args.dtype = dtype;
    return args;
  }
  [[nodiscard]] bool intact() const {
    const auto whole = [](const Buffer& buffer) { return buffer.surroundings_intact(); };
    return std::ranges::all_of(codes, whole) && std::ranges::all_of(transposed, whole);
  }
};

Buffer result_buffer(const fp8::Layer& layer, Pass pass, DType dtype) {
  const fp8::LayerResult sizes = fp8::result(layer, pass);
  return Buffer(sizes.groups * sizes.rows * sizes.columns * octavo::dtype_bytes(dtype));
}

// An element of what a pass wrote, in the order of plain_pass().
float element(const fp8::Layer& layer, Pass pass, DType dtype, const Buffer& from, std::size_t group,
              std::int64_t i, std::int64_t j) {
  const fp8::LayerResult sizes = fp8::result(layer, pass);
  const bool transposed = pass == Pass::wgrad && layer.transposed_weight;
  const std::int64_t row = transposed ? j : i, column = transposed ? i : j;
  return reference::load(dtype, from.data(),
                         (static_cast<std::int64_t>(group) * sizes.rows + row) * sizes.columns + column);
}

std::vector<fp8::Layer> layers() {
  std::vector<fp8::Layer> out = {{1, 37, 48, 32}, {1, 144, 160, 272}, {3, 32, 48, 64}, {1, 16, 16, 16}};
  for (const bool transposed_weight : {false, true}) {
    out.push_back({3, 32, 48, 64, true, false, transposed_weight});
    out.push_back({3, 32, 48, 64, false, true, transposed_weight});
    out.push_back({2, 144, 160, 144, false, false, transposed_weight});
  }
  out.push_back({1, 37, 48, 32, false, false, true});
  return out;
}

TEST(Fp8Layer, EqualsPlainCastsAndMatmuls) {
  for (const fp8::Layer& layer : layers()) {
    const LayerTensors tensors(layer);
    for (const Recipe recipe : kRecipes) {
      for (const fp8::Format format : kFormats) {
        const fp8::Settings settings{format, recipe};
        for (unsigned set = 1; set < 8; set = set * 2 + 1) {  // forward; and dgrad; all
          const Choice choice{{(set & 1U) != 0, (set & 2U) != 0, (set & 4U) != 0}};
          LayerRun run(tensors, settings, choice);
          for (const Operand operand : kOperands) {
            const octavo::Status status = fp8::cast(run.cast(operand));
            ASSERT_TRUE(status.ok()) << text(layer) << ": " << status.message();
          }
          for (const Pass pass : kPasses) {
            if (!choice[pass]) continue;
            for (const DType dtype : {DType::f32, DType::bf16}) {
              const Buffer to = result_buffer(layer, pass, dtype);
              const octavo::Status status = fp8::matmul(run.matmul(pass, to, dtype));
              ASSERT_TRUE(status.ok()) << text(layer) << ": " << status.message();
              EXPECT_TRUE(to.surroundings_intact() && run.intact());
              const std::vector<Dense> expected = plain_pass(tensors, settings, pass, dtype);
              ASSERT_EQ(std::ssize(expected), fp8::result(layer, pass).groups);
              for (std::size_t g = 0; g < expected.size(); ++g) {
                for (std::int64_t i = 0; i < expected[g].rows; ++i) {
                  for (std::int64_t j = 0; j < expected[g].columns; ++j) {
                    ASSERT_EQ(element(layer, pass, dtype, to, g, i, j), expected[g].at(i, j))
                        << text(layer) << ' ' << name(recipe) << ' ' << name(format) << ' ' << name(pass)
                        << ' ' << g << ' ' << i << ' ' << j;
                  }
                }
              }
            }
          }
          if (recipe != Recipe::delayed) continue;
          for (const Operand operand : kOperands) {
            const bool used = operand == Operand::x || operand == Operand::w || set > 1;
            EXPECT_EQ(run.states[static_cast<std::size_t>(operand)][2], used ? kMost : 0.0f);
          }
        }
      }
    }
  }
}

// The pass in double from what was cast, as y = x . w^T and its derivatives say, with what groups share.
double exact(const LayerTensors& tensors, Pass pass, std::size_t group, std::int64_t i, std::int64_t j) {
  const fp8::Layer& layer = tensors.layer;
  const auto at = [&](Operand operand, std::int64_t g, std::int64_t row, std::int64_t column) {
    return static_cast<double>(tensors.of(operand, g).at(row, column));
  };
  const bool summed = (pass == Pass::forward && layer.one_output) || (pass == Pass::dgrad && layer.one_input);
  double sum = 0.0;
  for (std::int64_t g = 0; g < layer.groups; ++g) {
    if (!summed && g != static_cast<std::int64_t>(group)) continue;
    if (pass == Pass::forward) {
      for (std::int64_t k = 0; k < layer.inputs; ++k)
        sum += at(Operand::x, g, i, k) * at(Operand::w, g, j, k);
    } else if (pass == Pass::dgrad) {
      for (std::int64_t k = 0; k < layer.outputs; ++k)
        sum += at(Operand::dy, g, i, k) * at(Operand::w, g, k, j);
    } else {
      for (std::int64_t k = 0; k < layer.tokens; ++k)
        sum += at(Operand::dy, g, k, i) * at(Operand::x, g, k, j);
    }
  }
  return sum;
}

// An E5M2 operand moves by at most 2^-3 of itself, evenly spread, an E4M3 one by 2^-4: powers of errors add
// to at most 2^-6 / 3 + 2^-8 / 3 of the signal, 21.9 dB. One dB is left for what is not even.
TEST(Fp8Layer, IsNearToDouble) {
  for (const fp8::Layer& layer : layers()) {
    if (layer.tokens > 100) continue;  // product_test.cc has larger ones
    const LayerTensors tensors(layer);
    for (const Recipe recipe : kRecipes) {
      const fp8::Settings settings{fp8::Format::hybrid, recipe};
      LayerRun run(tensors, settings, {});
      for (const Operand operand : kOperands) ASSERT_TRUE(fp8::cast(run.cast(operand)).ok());
      for (const Pass pass : kPasses) {
        const Buffer to = result_buffer(layer, pass, DType::bf16);
        ASSERT_TRUE(fp8::matmul(run.matmul(pass, to, DType::bf16)).ok());
        const fp8::LayerResult sizes = fp8::result(layer, pass);
        const bool by_tokens = pass != Pass::wgrad;
        const std::int64_t rows = by_tokens ? layer.tokens : layer.outputs;
        const std::int64_t columns = pass == Pass::forward ? layer.outputs : layer.inputs;
        double signal = 0.0, noise = 0.0;
        for (std::size_t g = 0; g < static_cast<std::size_t>(sizes.groups); ++g) {
          for (std::int64_t i = 0; i < rows; ++i) {
            for (std::int64_t j = 0; j < columns; ++j) {
              const double want = exact(tensors, pass, g, i, j);
              const double off = static_cast<double>(element(layer, pass, DType::bf16, to, g, i, j)) - want;
              signal += want * want;
              noise += off * off;
            }
          }
        }
        EXPECT_GE(10.0 * std::log10(signal / noise), 20.9)
            << text(layer) << ' ' << name(recipe) << ' ' << name(pass);
      }
    }
  }
}

TEST(Fp8Layer, AddsAndSumsOverTokens) {
  const LayerTensors tensors({1, 37, 48, 32});
  const fp8::Settings settings{fp8::Format::hybrid, Recipe::current};
  LayerRun run(tensors, settings, {});
  std::vector<float> sums(32, 7.0f);
  fp8::LayerCast dy = run.cast(Operand::dy);
  dy.bias_grad = sums.data();
  ASSERT_TRUE(fp8::cast(dy).ok());
  ASSERT_TRUE(fp8::cast(run.cast(Operand::x)).ok());
  for (std::int64_t j = 0; j < 32; ++j) {
    double sum = 0.0, absolute = 0.0;
    for (std::int64_t i = 0; i < 37; ++i) {
      sum += static_cast<double>(tensors.dy[0].at(i, j));
      absolute += std::fabs(static_cast<double>(tensors.dy[0].at(i, j)));
    }
    EXPECT_NEAR(static_cast<double>(sums[static_cast<std::size_t>(j)]), sum, absolute * 37 * 0x1p-24);
  }
  const Buffer once = result_buffer(tensors.layer, Pass::wgrad, DType::f32);
  const Buffer twice = result_buffer(tensors.layer, Pass::wgrad, DType::f32);
  ASSERT_TRUE(fp8::matmul(run.matmul(Pass::wgrad, once, DType::f32)).ok());
  ASSERT_TRUE(fp8::matmul(run.matmul(Pass::wgrad, twice, DType::f32)).ok());
  fp8::LayerMatmul more = run.matmul(Pass::wgrad, twice, DType::f32);
  more.add = true;
  ASSERT_TRUE(fp8::matmul(more).ok());
  for (std::int64_t i = 0; i < 32 * 48; ++i) ASSERT_EQ(twice.as<float>()[i], 2.0f * once.as<float>()[i]);
}

TEST(Fp8Layer, SizesOfCodes) {
  const fp8::Layer layer{1, 37, 48, 32};
  const fp8::Settings tensor{}, rows{fp8::Format::hybrid, Recipe::rowwise};
  const Choice all{}, forward{{true, false, false}}, wgrad{{false, false, true}};
  // 48 rows of 48 codes are 2,304 bytes, nine times 256; then one scale, or one for each row.
  EXPECT_EQ(fp8::codes_bytes(layer, tensor, all, Operand::x, false), 2304 + 256);
  EXPECT_EQ(fp8::codes_bytes(layer, rows, all, Operand::x, true), 2304 + 256);
  EXPECT_EQ(fp8::codes_bytes({2, 80, 48, 32}, rows, all, Operand::x, false), 2 * 80 * 48 + 768);
  EXPECT_EQ(fp8::codes_bytes({2, 80, 48, 32, true}, rows, all, Operand::x, false), 80 * 48 + 512);
  EXPECT_EQ(fp8::codes_bytes(layer, tensor, forward, Operand::x, true), 0);
  EXPECT_EQ(fp8::codes_bytes(layer, tensor, forward, Operand::dy, false), 0);
  EXPECT_EQ(fp8::codes_bytes(layer, tensor, wgrad, Operand::w, false), 0);
  EXPECT_GT(fp8::codes_bytes(layer, tensor, wgrad, Operand::dy, true), 0);
}

TEST(Fp8Layer, SaysWhyNot) {
  EXPECT_EQ(fp8::why_not({1, 37, 48, 32}), "");
  EXPECT_EQ(fp8::why_not({3, 32, 48, 32}), "");
  EXPECT_EQ(fp8::why_not({1, 37, 47, 32}), "inputs: got 47, expected a multiple of 16");
  EXPECT_EQ(fp8::why_not({1, 37, 48, 40}), "outputs: got 40, expected a multiple of 16");
  EXPECT_EQ(fp8::why_not({3, 37, 48, 32}), "tokens: got 37 in each of 3 groups, expected a multiple of 16");
  EXPECT_EQ(fp8::why_not({-1, 37, 48, 32}), "groups: got -1, expected 0 to 65535");
  EXPECT_EQ(fp8::why_not({1, INT64_MAX, 48, 32}), "tokens: got 9223372036854775807, expected 0 to 16777216");
  EXPECT_EQ(fp8::why_not({65535, 16777216, 16777216, 16}),
            "groups: got 65535, expected 0 to 1 at these sizes");
}

TEST(Fp8Layer, Refuses) {
  const LayerTensors tensors({1, 16, 32, 16});
  const fp8::Settings settings{};
  const auto refused = [&](const octavo::Status& status, const std::string& message) {
    EXPECT_EQ(status.code(), octavo::StatusCode::invalid_argument) << message;
    EXPECT_THAT(status.message(), HasSubstr("[fp8] " + message));
  };
  const auto cast = [&](Operand operand, const std::string& message, auto change) {
    LayerRun run(tensors, settings, {});
    fp8::LayerCast args = run.cast(operand);
    change(args);
    refused(fp8::cast(args), message);
    EXPECT_EQ(run.states[static_cast<std::size_t>(operand)][2], 0.0f);
  };
  using C = fp8::LayerCast;
  cast(Operand::x, "codes: got null, expected a buffer of 768 bytes", [](C& a) { a.codes = nullptr; });
  cast(Operand::x, "transposed: got null", [](C& a) { a.transposed = nullptr; });
  cast(Operand::x, "transposed: got a buffer, expected null: no pass of the choice uses x transposed",
       [](C& a) {
         a.choice = {{true, true, false}};
       });
  cast(Operand::x, "delayed.scales: got null", [](C& a) { a.delayed = {}; });
  cast(Operand::x, "inputs: got 31", [](C& a) { a.layer.inputs = 31; });
  cast(Operand::x, "operand: got 3", [](C& a) { a.operand = static_cast<Operand>(3); });
  cast(Operand::x, "recipe: got 4", [](C& a) { a.settings.recipe = static_cast<Recipe>(4); });
  std::array<float, 32> sums{};
  cast(Operand::w, "bias_grad: got a buffer, expected null: it belongs to dy, and this casts w",
       [&](C& a) { a.bias_grad = sums.data(); });
  cast(Operand::dy, "bias_grad: got a buffer, expected null: no pass of the choice uses dy", [&](C& a) {
    a.choice = {{true, false, false}};
    a.codes = a.transposed = nullptr;
    a.bias_grad = sums.data();
  });
  LayerRun run(tensors, settings, {});
  const Buffer to = result_buffer(tensors.layer, Pass::forward, DType::bf16);
  const auto matmul = [&](const std::string& message, auto change) {
    fp8::LayerMatmul args = run.matmul(Pass::forward, to, DType::bf16);
    change(args);
    refused(fp8::matmul(args), message);
  };
  using P = fp8::LayerMatmul;
  matmul("a.data: got null", [](P& a) { a.a = nullptr; });
  matmul("b.data: got null", [](P& a) { a.b = nullptr; });
  matmul("to: got null", [](P& a) { a.to = nullptr; });
  matmul("pass: got 3", [](P& a) { a.pass = static_cast<Pass>(3); });
  matmul("dtype: got 7", [](P& a) { a.dtype = static_cast<DType>(7); });
}

TEST(Fp8Layer, NoTokensAreZeroGradients) {
  const LayerTensors tensors({1, 0, 32, 16});
  LayerRun run(tensors, {fp8::Format::hybrid, Recipe::current}, {});
  for (const Operand operand : kOperands) ASSERT_TRUE(fp8::cast(run.cast(operand)).ok());
  const Buffer to = result_buffer(tensors.layer, Pass::wgrad, DType::f32);
  std::fill_n(to.as<float>(), 32 * 16, 3.0f);
  ASSERT_TRUE(fp8::matmul(run.matmul(Pass::wgrad, to, DType::f32)).ok());
  EXPECT_TRUE(std::all_of(to.as<float>(), to.as<float>() + 32 * 16, [](float v) { return v == 0.0f; }));
}

// --- the faster of two ---

Choice chosen(bool forward, bool dgrad, bool wgrad) { return {{forward, dgrad, wgrad}}; }

TEST(Fp8Layer, TheFastestChoiceCountsCasts) {
  fp8::LayerTimes times;
  EXPECT_EQ(fp8::fastest(times), chosen(false, false, false));
  times.plain = {100, 100, 100};
  times.fp8 = {50, 50, 50};
  times.cast = {10, 10, 10};
  times.cast_two = {15, 15, 15};
  EXPECT_EQ(fp8::fastest(times), chosen(true, true, true));
  times.fp8 = {50, 50, 0};  // not measured
  EXPECT_EQ(fp8::fastest(times), chosen(true, true, false));
  times.fp8 = {50, 50, 120};
  EXPECT_EQ(fp8::fastest(times), chosen(true, true, false));
  // Each alone loses to its casts; together they share them.
  times.fp8 = {82, 82, 82};
  EXPECT_EQ(fp8::fastest(times), chosen(true, true, true));
  times.cast_two = {20, 20, 20};
  EXPECT_EQ(fp8::fastest(times), chosen(false, false, false));
  times.casts_of_weight = 0.0;  // kept over many micro-batches
  EXPECT_EQ(fp8::fastest(times), chosen(true, true, false));
}

}  // namespace
}  // namespace test
