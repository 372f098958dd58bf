// Tests the kernels of relative attention, for every length that distributes a row over threads differently,
// against the plain composition in double precision with the same masks. Outputs are zero beyond a clip's
// end, and repeated runs give the same bits. The kernels between matmuls are also tested separately, element
// by element.
// SPDX-License-Identifier: MIT
#include "tests/nn/gpu.h"
#include "train/nn/attention.h"
#include "train/nn/cuda/attention.h"

#include <cmath>

namespace octavo_train {
namespace {

using torch::Tensor;

class AttentionCuda : public NnGpuTest {};

const char* const kNames[] = {"q", "k", "v", "positions", "bias_u", "bias_v"};

struct Case {
  std::int64_t batch, frames, heads, size;
  std::vector<std::int64_t> lengths;
  double drop = 0.0;
};

// Returns inputs on the CPU, in fp32, with values that `type` represents exactly.
std::vector<Tensor> inputs_of(const Case& c, torch::ScalarType type) {
  const std::vector<std::int64_t> activations{c.batch, c.frames, c.heads, c.size};
  std::vector<Tensor> out{torch::randn(activations),       torch::randn(activations),
                          torch::randn(activations),       torch::randn({2 * c.frames - 1, c.heads, c.size}),
                          torch::randn({c.heads, c.size}), torch::randn({c.heads, c.size})};
  for (Tensor& each : out) each = each.to(type).to(torch::kFloat32);
  return out;
}

// The dropout settings of a case.
constexpr std::uint32_t kLayer = 7;
DropoutKey pass_of(const Case& c, torch::Device device) {
  return {5, 6, torch::arange(c.batch, torch::kInt64).mul(3).add(40).to(device)};
}
// Applies attention's dropout of probabilities to `x` [batch, heads, T, keys].
Tensor dropped_as_probabilities(const Case& c, const Tensor& x) {
  const DropoutKey pass = pass_of(c, x.device());
  const Tensor head = torch::arange(c.heads, pass.samples.options());
  const DropoutKey of_heads{pass.seed, pass.step, (pass.samples.unsqueeze(1) * c.heads + head).reshape({-1})};
  return dropout(x.flatten(0, 1), c.drop, true, of_heads, kLayer, 0, cuda::kKeyPitch).view_as(x);
}
// Returns a factor per query and key, in double: -1 beyond the clip's end, 0 if dropped, else the dropout
// scale.
Tensor kept_of(const Case& c) {
  const Tensor real = torch::arange(c.frames).unsqueeze(0) < torch::tensor(c.lengths).unsqueeze(1);
  const Tensor seen = (real.unsqueeze(2) & real.unsqueeze(1)).unsqueeze(1);
  const Tensor ones = torch::ones({c.batch, c.heads, c.frames, c.frames});
  return dropped_as_probabilities(c, ones).to(torch::kFloat64).masked_fill(~seen, -1.0);
}

struct Results {
  Tensor out;
  std::vector<Tensor> grads;
};
Results run(const Case& c, const std::vector<Tensor>& leaves, const Tensor& weight) {
  const torch::Device device = leaves[0].device();
  const DropoutKey pass = pass_of(c, device);
  const Tensor lengths = torch::tensor(c.lengths, torch::kInt64).to(device);
  Results out{relative_attention(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], leaves[5], lengths,
                                 {c.drop, true, pass, kLayer}),
              {}};
  (out.out * weight.to(out.out.options())).sum().backward();
  for (const Tensor& leaf : leaves) out.grads.push_back(leaf.grad());
  return out;
}

// Returns the error bound for each term of a result. bf16 has an error of at most 2^-8 in each probability,
// in the gradients before and after the softmax, and in the result; scores of size 2 have such an error, too.
// In fp32 the results are sums of a few thousand terms.
double bound(torch::ScalarType type) { return type == torch::kBFloat16 ? 4 * 0x1p-8 : 2e-5; }

// The root sum squares of the terms that the output and the gradients are sums of, before cancellation.
// Rounding errors of the terms are independent, so they add up like these terms, while the results themselves
// may be arbitrarily small. With two keys the gradients of a row's scores are g and -g.
struct Terms {
  double out, grads[6];

  Terms(const Case& c, const std::vector<Tensor>& values, const Tensor& weight) {
    const auto heads_first = [](const Tensor& x) { return x.to(torch::kFloat64).transpose(1, 2); };
    const Tensor q = heads_first(values[0]), k = heads_first(values[1]), v = heads_first(values[2]);
    const Tensor positions = values[3].to(torch::kFloat64).transpose(0, 1);
    const Tensor content = q + values[4].to(torch::kFloat64).unsqueeze(1);
    const Tensor place = q + values[5].to(torch::kFloat64).unsqueeze(1);
    const Tensor dout = heads_first(weight.view({c.batch, c.frames, c.heads, c.size}));
    const double scale = 1.0 / std::sqrt(static_cast<double>(c.size));
    const Tensor frame = torch::arange(c.frames);
    const Tensor column = c.frames - 1 - frame.unsqueeze(1) + frame;  // distance index of query and key
    const Tensor by_distance = place.matmul(positions.mT());
    const Tensor scores =
        (content.matmul(k.mT()) + by_distance.gather(3, column.expand({c.batch, c.heads, -1, -1}))) * scale;
    const Tensor kept = kept_of(c);
    const Tensor p = scores.masked_fill(kept.lt(0), -1e30).softmax(3).masked_fill(kept.lt(0), 0.0);
    const Tensor dropped = (p * kept.clamp_min(0)).square();
    const Tensor g = dout.matmul(v.mT()) * kept.clamp_min(0);
    const Tensor dscores = (p * scale).square() * (g.square() + (p * g).square().sum(3, true));
    const auto norm = [](const Tensor& squares) { return std::sqrt(squares.sum().item<double>()); };
    const auto rows = [](const Tensor& x) { return x.square().sum(-1); };
    const Tensor by_key = dscores * rows(k).unsqueeze(2);
    const Tensor by_place = dscores * rows(positions).index({torch::indexing::Slice(), column});
    out = norm(dropped * rows(v).unsqueeze(2));
    grads[0] = norm(by_key + by_place);
    grads[1] = norm(dscores * rows(content).unsqueeze(3));
    grads[2] = norm(dropped * rows(dout).unsqueeze(3));
    grads[3] = norm(dscores * rows(place).unsqueeze(3));
    grads[4] = norm(by_key);
    grads[5] = norm(by_place);
  }
};

void expect_within(const Tensor& got, const Tensor& expected, double terms, torch::ScalarType type,
                   const char* name) {
  EXPECT_LE((got.to(torch::kCPU, torch::kFloat64) - expected).norm().item<double>(), bound(type) * terms)
      << name;
}

void expect_equals_plain(const Case& c, torch::ScalarType type) {
  SCOPED_TRACE(::testing::Message() << type << " T " << c.frames << " size " << c.size << " drop " << c.drop);
  const std::vector<Tensor> values = inputs_of(c, type);
  const Tensor weight = torch::randn({c.batch, c.frames, c.heads * c.size}).to(type).to(torch::kFloat32);
  const Results expected = run(c, leaves(values, torch::kCPU, torch::kFloat64), weight);
  const Results got = run(c, leaves(values, torch::kCUDA, type), weight);
  const Terms terms(c, values, weight);
  EXPECT_EQ(got.out.scalar_type(), type);
  expect_within(got.out, expected.out, terms.out, type, "output");
  for (std::size_t i = 0; i < expected.grads.size(); ++i)
    expect_within(got.grads[i], expected.grads[i], terms.grads[i], type, kNames[i]);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const std::int64_t length = c.lengths[static_cast<std::size_t>(b)];
    if (length == c.frames) continue;
    EXPECT_EQ(got.out[b].slice(0, length).abs().max().item<double>(), 0.0);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_EQ(got.grads[i][b].slice(0, length).abs().max().item<double>(), 0.0) << kNames[i];
  }
}

TEST_F(AttentionCuda, EqualsThePlainComposition) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const double drop : {0.0, 0.3}) {
      for (const std::int64_t frames : {1, 2, 7, 8, 9, 31, 64, 250, 255, 256, 257, 511, 513, 700, 1025, 1300})
        expect_equals_plain({2, frames, 2, 16, {frames, (frames + 1) / 2}, drop}, type);
      expect_equals_plain({1, 2100, 1, 8, {2050}, drop}, type);
      expect_equals_plain({3, 250, 8, 128, {250, 0, 17}, drop}, type);
    }
  }
}

TEST_F(AttentionCuda, SmallOnesEqualThePlainComposition) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const std::int64_t frames : {1, 9, 33})
      expect_equals_plain({2, frames, 2, 8, {frames, frames / 2}, 0.3}, type);
  }
}

// Runs the kernels between matmuls separately and checks them element by element.
class ProbabilityKernels {
 public:
  ProbabilityKernels(const Case& c, torch::ScalarType type)
      : case_(c),
        type_(type),
        shape_{type == torch::kBFloat16, c.batch, c.frames, c.heads, c.size},
        kept_(kept_of(c)),
        lengths_(torch::tensor(c.lengths).cuda()),
        samples_(pass_of(c, torch::kCUDA).samples) {}

  // Scores beyond the clip's end and the padding of rows are NaN, so that any use of them shows.
  void expect_right() {
    const Tensor scores = input(), by_distance = input();
    Tensor p = padded(scores), places = no_numbers(by_distance_sizes());
    by_key(places).copy_(by_distance.transpose(0, 1));
    Tensor dropped = case_.drop > 0.0 ? torch::full_like(p, NAN) : Tensor();
    ASSERT_EQ(cuda::probabilities(shape_, work(), p.data_ptr(), places.data_ptr(), pointer(dropped), nullptr),
              nullptr);
    const Tensor want =
        ((scores + by_distance) * work().scale).masked_fill(kept_.lt(0), -1e30).softmax(3) * kept_.ge(0);
    expect_near("probabilities", real(p), want, torch::zeros_like(want));
    const Tensor as_dropout = case_.drop > 0.0 ? dropped_as_probabilities(case_, p) : Tensor();
    EXPECT_TRUE(same(dropped, as_dropout));
    expect_right_gradients(p, dropped);
  }

 private:
  void expect_right_gradients(const Tensor& p, const Tensor& dropped) {
    const Tensor grads = input();
    Tensor ds = padded(grads), dplaces = no_numbers(by_distance_sizes());
    Tensor again = dropped.defined() ? torch::full_like(p, NAN) : Tensor();
    ASSERT_EQ(cuda::probabilities_backward(shape_, work(), p.data_ptr(), ds.data_ptr(), dplaces.data_ptr(),
                                           pointer(again), nullptr),
              nullptr);
    EXPECT_TRUE(same(again, dropped));
    const Tensor pr = real(p), g = grads.masked_fill(kept_.lt(0), 0.0) * kept_.clamp_min(0);
    const Tensor factor = pr * work().scale;
    expect_near("gradients of scores", real(ds), factor * (g - (pr * g).sum(3, true)),
                factor * (g.abs() + (pr * g).abs().sum(3, true)));
    // By distance the gradients have the same values in other places, with zeros around them.
    Tensor moved = torch::zeros_like(dplaces);
    by_key(moved).copy_(ds.slice(3, 0, case_.frames).transpose(0, 1));
    EXPECT_TRUE(torch::equal(dplaces, moved));
    EXPECT_EQ(ds.slice(3, case_.frames).count_nonzero().item<std::int64_t>(), 0);
    EXPECT_EQ(p.slice(3, case_.frames).count_nonzero().item<std::int64_t>(), 0);
  }

  // Allows one rounding of the result, fp32 errors of exp and of the sums, and values too small for fp32.
  void expect_near(const char* name, const Tensor& got, const Tensor& want, const Tensor& terms) const {
    const double unit = type_ == torch::kBFloat16 ? 0x1p-8 : 0.0;
    const Tensor off = (got - want).abs() - (want.abs() * (unit + 1e-5) + terms * 4e-6 + 1e-37);
    EXPECT_TRUE(off.le(0).all().item<bool>()) << name << ": " << off.gt(0).sum().item<std::int64_t>()
                                              << " are off, the worst by " << off.max().item<double>();
  }
  [[nodiscard]] cuda::ProbabilityWork work() const {
    cuda::ProbabilityWork out{
        lengths_.const_data_ptr<std::int64_t>(), {}, 1.0 / std::sqrt(static_cast<double>(case_.size))};
    if (case_.drop > 0.0) out.drop = {samples_.const_data_ptr<std::int64_t>(), case_.drop, 5, 6, kLayer};
    return out;
  }
  // Returns scores by query and key on the CPU, in double.
  [[nodiscard]] Tensor input() const {
    const Tensor all = torch::randn({case_.batch, case_.heads, case_.frames, case_.frames}) * 4;
    return all.to(type_).to(torch::kFloat64).masked_fill(kept_.lt(0), NAN);
  }
  [[nodiscard]] Tensor no_numbers(const std::vector<std::int64_t>& sizes) const {
    return torch::full(sizes, NAN, torch::TensorOptions(torch::kCUDA).dtype(type_));
  }
  [[nodiscard]] Tensor padded(const Tensor& x) const {
    Tensor out = no_numbers({case_.batch, case_.heads, case_.frames, shape_.keys()});
    out.slice(3, 0, case_.frames).copy_(x);
    return out;
  }
  [[nodiscard]] Tensor real(const Tensor& x) const {
    return x.slice(3, 0, case_.frames).to(torch::kCPU, torch::kFloat64);
  }
  [[nodiscard]] std::vector<std::int64_t> by_distance_sizes() const {
    return {case_.heads, case_.batch, case_.frames, shape_.distances()};
  }
  // Returns a view [heads, batch, query, key] of scores by distance.
  [[nodiscard]] Tensor by_key(const Tensor& x) const {
    const std::int64_t frames = case_.frames, row = shape_.distances();
    return x.as_strided({case_.heads, case_.batch, frames, frames},
                        {case_.batch * frames * row, frames * row, row - 1, 1}, frames - 1);
  }
  static bool same(const Tensor& a, const Tensor& b) {
    return a.defined() ? torch::equal(a, b) : !b.defined();
  }
  static void* pointer(const Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }

  Case case_;
  torch::ScalarType type_;
  cuda::AttentionShape shape_;
  Tensor kept_, lengths_, samples_;
};

TEST_F(AttentionCuda, SmallKernelsElementByElement) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const double drop : {0.0, 0.3}) {
      for (const std::int64_t frames : {1, 2, 7, 8, 9, 31, 250, 257, 520, 1030, 2050}) {
        SCOPED_TRACE(::testing::Message() << type << " T " << frames << " drop " << drop);
        const std::int64_t batch = frames < 500 ? 3 : 1, heads = frames < 500 ? 2 : 1;
        Case c{batch, frames, heads, 8, {frames, (frames + 1) / 2, 0}, drop};
        c.lengths.resize(static_cast<std::size_t>(batch));
        if (batch == 1) c.lengths[0] = frames - 3;
        ProbabilityKernels(c, type).expect_right();
      }
    }
  }
}

// Frames are not adjacent in memory, as in slices of the result of one matmul.
TEST_F(AttentionCuda, TakesSlicesOfOneTensor) {
  const Case c{2, 70, 4, 32, {70, 50}, 0.1};
  const std::vector<Tensor> values = inputs_of(c, torch::kFloat32);
  const Tensor weight = torch::randn({2, 70, 128});
  const Results expected = run(c, leaves(values, torch::kCUDA, torch::kFloat32), weight);
  const Tensor joined = torch::stack({values[0], values[1], values[2]}, 2).cuda();  // [2, 70, 3, 4, 32]
  std::vector<Tensor> sliced = leaves(values, torch::kCUDA, torch::kFloat32);
  for (std::int64_t i = 0; i < 3; ++i) {
    Tensor view = joined.select(2, i).detach().requires_grad_();
    ASSERT_FALSE(view.is_contiguous());
    sliced[static_cast<std::size_t>(i)] = view;
  }
  const Results got = run(c, sliced, weight);
  EXPECT_TRUE(torch::equal(got.out, expected.out));
  for (std::size_t i = 0; i < expected.grads.size(); ++i)
    EXPECT_TRUE(torch::equal(got.grads[i], expected.grads[i])) << kNames[i];
}

// torch treats the tensor as contiguous for any stride of its single frame.
TEST_F(AttentionCuda, TakesSingleFramesOfAnyStride) {
  const Case c{3, 1, 2, 16, {1, 1, 1}};
  const std::vector<Tensor> values = inputs_of(c, torch::kFloat32);
  const Tensor weight = torch::randn({3, 1, 32});
  const Results expected = run(c, leaves(values, torch::kCUDA, torch::kFloat32), weight);
  std::vector<Tensor> turned = leaves(values, torch::kCUDA, torch::kFloat32);
  for (std::size_t i = 0; i < 3; ++i) {
    turned[i] = values[i].cuda().as_strided({3, 1, 2, 16}, {32, 7, 16, 1}).detach().requires_grad_();
    ASSERT_TRUE(turned[i].is_contiguous());
    ASSERT_NE(turned[i].stride(1), turned[i].stride(0));
  }
  const Results got = run(c, turned, weight);
  EXPECT_TRUE(torch::equal(got.out, expected.out));
  for (std::size_t i = 0; i < expected.grads.size(); ++i)
    EXPECT_TRUE(torch::equal(got.grads[i], expected.grads[i])) << kNames[i];
}

TEST_F(AttentionCuda, GivesTheSameBitsAgain) {
  const Case c{4, 250, 8, 128, {250, 249, 100, 3}, 0.1};
  const std::vector<Tensor> values = inputs_of(c, torch::kBFloat16);
  const Tensor weight = torch::randn({4, 250, 1024});
  const Results first = run(c, leaves(values, torch::kCUDA, torch::kBFloat16), weight);
  const Results second = run(c, leaves(values, torch::kCUDA, torch::kBFloat16), weight);
  EXPECT_TRUE(torch::equal(first.out, second.out));
  for (std::size_t i = 0; i < first.grads.size(); ++i)
    EXPECT_TRUE(torch::equal(first.grads[i], second.grads[i])) << kNames[i];
}

// A head size that is not a multiple of the vector size uses the plain composition.
TEST_F(AttentionCuda, OtherSizesTakeThePlainWay) {
  expect_equals_plain({2, 20, 2, 12, {20, 11}, 0.2}, torch::kFloat32);
  expect_equals_plain({2, 20, 2, 12, {20, 11}, 0.2}, torch::kBFloat16);
}

// Parameters are fp32 and activations are bf16.
TEST_F(AttentionCuda, GradientsHaveTheTypesOfTheirTensors) {
  const Case c{2, 40, 2, 16, {40, 30}};
  const std::vector<Tensor> values = inputs_of(c, torch::kBFloat16);
  std::vector<Tensor> mixed = leaves(values, torch::kCUDA, torch::kBFloat16);
  for (std::size_t i = 4; i < 6; ++i) mixed[i] = values[i].cuda().requires_grad_();
  const Results got = run(c, mixed, torch::ones({2, 40, 32}));
  for (std::size_t i = 0; i < mixed.size(); ++i)
    EXPECT_EQ(got.grads[i].scalar_type(), mixed[i].scalar_type()) << kNames[i];
}

}  // namespace
}  // namespace octavo_train
