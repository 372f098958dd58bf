// Operands of products in FP8, and the error that the formats imply: for the tests on the CPU and on a GPU.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/torch/support.h"

#include <octavo/torch/fp8.h>

#include <cstdlib>
#include <string>

namespace test {

namespace fp8 = octavo::torch::fp8;

// The CPU's reference is on while it lives.
struct Reference {
  Reference() { setenv("OCTAVO_FP8_REFERENCE", "1", 1); }
  ~Reference() { unsetenv("OCTAVO_FP8_REFERENCE"); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
};

inline fp8::Options always(const std::string& recipe = "delayed", const std::string& format = "hybrid") {
  fp8::Options options;
  options.recipe = recipe, options.format = format, options.select = "always";
  options.amax_history_len = 16;
  return options;
}

// |error| of an operand's codes: half a unit of the last place, 2^-4 or 2^-3 of an element; below the
// smallest normal number half of its unit, times the largest scale that elements of 1e-3 and more can have.
// `block` and `rowwise` round scales down to a power of two, which moves that by a factor of two.
struct Rounding {
  double relative, absolute;
};
inline Rounding rounding(const std::string& format, char operand, bool wgrad, double amax) {
  const bool e5m2 = (format == "hybrid" && operand == 'd') ||
                    (format == "e5m2" && (operand == 'd' || (operand == 'x' && !wgrad)));
  return e5m2 ? Rounding{0x1p-3, 2 * 0x1p-17 * amax / 57344.0} : Rounding{0x1p-4, 2 * 0x1p-10 * amax / 448.0};
}

struct Operands {
  torch::Tensor x, w, y, dy;

  Operands(at::IntArrayRef x_sizes, at::IntArrayRef w_sizes, torch::ScalarType type,
           torch::Device device = torch::kCPU) {
    torch::manual_seed(11);
    x = torch::randn(x_sizes).to(type).to(device).requires_grad_();
    w = torch::randn(w_sizes).to(type).to(device).requires_grad_();
  }

  template <class F>
  void run(F&& product) {
    x.mutable_grad().reset(), w.mutable_grad().reset();
    y = product(x, w);
    if (!dy.defined()) {
      torch::manual_seed(12);
      dy = torch::randn(y.sizes()).to(y.options().requires_grad(false));
    }
    y.backward(dy);
  }

  // Against float64. `kind`: "t" for a weight [out, in], "sum" for a sum over groups.
  void expect_within_bound(const std::string& format, const std::string& kind,
                           const std::string& what) const {
    const torch::NoGradGuard no_grad;
    const auto wide = [](const torch::Tensor& t) { return t.detach().cpu().to(torch::kFloat64); };
    torch::Tensor a = wide(x), b = wide(w), d = wide(dy);
    if (kind == "t") b = b.t();
    if (a.dim() == 1) a = a.unsqueeze(0), d = d.unsqueeze(0);
    const bool batched = b.dim() == 3;
    if (!batched) a = a.reshape({-1, a.size(-1)}), d = d.reshape({-1, d.size(-1)});
    const auto all = [&](const torch::Tensor& t) {
      return batched && t.dim() == 2 ? t.unsqueeze(0).expand({b.size(0), t.size(0), t.size(1)}) : t;
    };
    const auto fit = [](const torch::Tensor& t, const torch::Tensor& like) {
      return (t.dim() > like.dim() ? t.sum(0) : t).reshape(like.sizes());
    };
    const auto check = [&](const char* pass, const torch::Tensor& p, char of_p, const torch::Tensor& q,
                           char of_q, const torch::Tensor& got, torch::ScalarType type) {
      const bool wgrad = std::string(pass) == "dw";
      const auto error = [&](const torch::Tensor& t, char operand) {
        const Rounding r = rounding(format, operand, wgrad, t.abs().max().item<double>());
        return t.abs() * r.relative + r.absolute;
      };
      const torch::Tensor ep = error(p, of_p), eq = error(q, of_q);
      const torch::Tensor flat = got.dim() == 1 ? got.unsqueeze(0) : got;
      const bool two = !batched;
      const torch::Tensor like = two ? flat.reshape({-1, flat.size(-1)}) : flat;
      const torch::Tensor exact = fit(p.matmul(q), like);
      torch::Tensor bound = fit(ep.matmul(q.abs()) + (p.abs() + ep).matmul(eq), like);
      // Sums in fp32, and the result's rounding, once for each group.
      const double last = type == torch::kBFloat16 ? 0x1p-8 : 0x1p-24;
      const double groups = batched ? static_cast<double>(b.size(0)) : 1.0;
      // The matrix units of a GPU keep about 14 bits of a sum.
      const double sums = got.is_cuda() ? 0x1p-13 : 0x1p-24;
      bound += fit(p.abs().matmul(q.abs()), like) * (groups * last + sums * static_cast<double>(p.size(-1)));
      const torch::Tensor off = (wide(like) - exact).abs();
      EXPECT_LE((off / bound).max().item<double>(), 1.0) << what << ": " << pass;
      // Codes were used: their error is there.
      EXPECT_GT((off / bound).max().item<double>(), 0.02) << what << ": " << pass;
    };
    const torch::Tensor one = all(a), dd = all(d);
    check("y", one, 'x', b, 'w', y, y.scalar_type());
    check("dx", dd, 'd', b.mT(), 'w', x.grad(), x.scalar_type());
    const torch::Tensor dw = kind == "t" ? w.grad().t() : w.grad();
    check("dw", one.mT(), 'x', dd, 'd', dw, w.scalar_type());
  }
};

}  // namespace test
