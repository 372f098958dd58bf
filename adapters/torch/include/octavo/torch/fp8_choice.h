// The choice of passes in FP8 by their times on the device. It is measured once per shape, and can be saved
// and sent to other processes.
// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/Event.h>
#include <octavo/torch/fp8_layer.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iomanip>
#include <locale>
#include <sstream>
#include <string>
#include <vector>

namespace octavo::torch::fp8 {

// The shape that a choice is for. Tokens are rounded up to a power of two, because their number changes from
// batch to batch in many models, and the choice rarely changes with it.
struct ShapeKey {
  explicit ShapeKey(const Shape& shape)
      : numbers{shape.groups,
                rounded(shape.tokens),
                shape.inputs,
                shape.outputs,
                shape.shared.one_input ? 1 : 0,
                shape.shared.one_output ? 1 : 0,
                shape.transposed_weight ? 1 : 0,
                static_cast<std::int64_t>(native::dtype_number(shape.x)),
                static_cast<std::int64_t>(native::dtype_number(shape.w)),
                static_cast<std::int64_t>(native::dtype_number(shape.y))} {}
  ShapeKey() = default;

  std::array<std::int64_t, 10> numbers{};

  friend bool operator<(const ShapeKey& a, const ShapeKey& b) { return a.numbers < b.numbers; }

 private:
  static std::int64_t rounded(std::int64_t tokens) {
    std::int64_t power = 1;
    while (power < tokens) power *= 2;
    return power;
  }
};

struct Decision {
  ShapeKey shape;
  std::uint32_t passes = 0;     // in FP8, a bit each
  octavo_fp8_times times = {};  // microseconds; 0 if the shape was not measured

  // Returns the shape as text: "[up to 64 tokens, 16] with [16, 32]:".
  std::string words() const {
    const auto& n = shape.numbers;
    std::ostringstream out = plain_stream();
    if (n[0] > 1) out << n[0] << " x ";
    out << "[up to " << n[1] << " tokens, " << n[2] << "] with [" << n[2] << ", " << n[3] << "]";
    if (n[4] != 0) out << ", one input";
    if (n[5] != 0) out << ", one output";
    out << ":";
    return out.str();
  }

  // Returns a line for a log.
  std::string text() const {
    std::ostringstream out = plain_stream();
    out << words();
    const char* const names[3] = {"forward", "dgrad", "wgrad"};
    out << std::fixed << std::setprecision(1);
    for (std::size_t pass = 0; pass < 3; ++pass) {
      out << (pass == 0 ? " " : ", ") << names[pass] << ((passes >> pass & 1U) != 0 ? " fp8 (" : " plain (")
          << times.fp8[pass] << " us in fp8, " << times.plain[pass] << " plain)";
    }
    out << "; casts of x " << times.cast_two[kX] << ", w " << times.cast_two[kW] << ", dy "
        << times.cast_two[kDy] << " us";
    return out.str();
  }

  // Returns numbers separated by spaces, for a file; from() reads them.
  std::string saved() const {
    std::ostringstream out = plain_stream();
    for (const std::int64_t number : shape.numbers) out << number << ' ';
    out << passes << std::setprecision(6);
    for (const double* list : {times.plain, times.fp8, times.cast, times.cast_two})
      for (std::size_t i = 0; i < 3; ++i) out << ' ' << list[i];
    out << ' ' << times.casts_of_weight;
    return out.str();
  }
  static Decision from(const std::string& saved) {
    Decision out;
    out.times = native::sized<octavo_fp8_times>();
    std::istringstream in(saved);
    in.imbue(std::locale::classic());
    for (std::int64_t& number : out.shape.numbers) in >> number;
    in >> out.passes;
    for (double* list : {out.times.plain, out.times.fp8, out.times.cast, out.times.cast_two})
      for (std::size_t i = 0; i < 3; ++i) in >> list[i];
    in >> out.times.casts_of_weight;
    TORCH_CHECK(!in.fail() && (in >> std::ws).eof() && out.passes <= kAllPasses, "octavo::torch::fp8: \"",
                saved, "\" is no decision that Decision::saved() wrote");
    return out;
  }

 private:
  static std::ostringstream plain_stream() {
    std::ostringstream out;
    out.imbue(std::locale::classic());
    return out;
  }
};

// Measures times with the events of a device.
class Timer {
 public:
  explicit Timer(const ::torch::Device& device) : stream_(*native::current_stream(device)) {}

  // Returns the median of a few calls in microseconds, after warm-up calls.
  template <class F>
  double time(F&& call) const {
    constexpr int kBefore = 2, kCounted = 7;
    for (int i = 0; i < kBefore; ++i) call();
    std::vector<c10::Event> events;
    for (int i = 0; i < 2 * kCounted; ++i)
      events.emplace_back(stream_.device_type(), c10::EventFlag::BACKEND_DEFAULT);
    for (std::size_t i = 0; i < events.size(); i += 2) {
      events[i].record(stream_);
      call();
      events[i + 1].record(stream_);
    }
    events.back().synchronize();
    std::array<double, kCounted> found{};
    for (std::size_t i = 0; i < kCounted; ++i)
      found[i] = 1000.0 * events[2 * i].elapsedTime(events[2 * i + 1]);
    std::nth_element(found.begin(), found.begin() + kCounted / 2, found.end());
    return found[kCounted / 2];
  }

 private:
  c10::Stream stream_;
};

// Times every pass with and without FP8 on the operands of a matmul, and chooses the fastest combination. x
// and w are [groups, rows, columns]; w as in memory. REQUIRES: a GPU whose stream is not being captured.
inline Decision measured(const Layer& layer, const Numbers& numbers, const Tensor& x, const Tensor& w,
                         double casts_of_weight, void* workspace) {
  const Shape& shape = layer.shape();
  Decision out;
  out.shape = ShapeKey(shape);
  out.times = native::sized<octavo_fp8_times>();
  out.times.casts_of_weight = casts_of_weight;
  const Timer timer(layer.device());

  const Tensor px = x.to(shape.y), pw = (shape.transposed_weight ? w : w.mT()).to(shape.y);
  const Tensor dy = plain::forward(px, pw, shape);  // values of the right size
  out.times.plain[kForward] = timer.time([&] { plain::forward(px, pw, shape); });
  out.times.plain[kDgrad] = timer.time([&] { plain::dgrad(dy, pw, shape); });
  out.times.plain[kWgrad] = timer.time([&] { plain::wgrad(dy, px, shape); });

  // Separate scales: measuring does not change those of the weight.
  const Tensor states = ::torch::ones({3, 2 + numbers.history},
                                      ::torch::TensorOptions().dtype(::torch::kFloat32).device(w.device()));
  const Delayed delayed = numbers.delayed() ? Delayed{states.data_ptr<float>()} : Delayed();
  Codes codes[3];
  const Tensor* const sources[] = {&x, &w, &dy};
  for (const std::uint32_t operand : {kX, kW, kDy}) {
    const auto cast_time = [&](std::uint32_t passes) {
      return timer.time([&] { layer.cast(operand, *sources[operand], passes, delayed, codes[operand]); });
    };
    out.times.cast[operand] = cast_time(bit(operand == kDy ? kDgrad : kForward));
    out.times.cast_two[operand] = cast_time(kAllPasses);
  }
  for (const std::uint32_t pass : {kForward, kDgrad, kWgrad}) {
    const Tensor to = layer.result(pass);
    out.times.fp8[pass] =
        timer.time([&] { layer.matmul(pass, codes[kX], codes[kW], codes[kDy], to, workspace); });
  }
  native::check(octavo_fp8_fastest(&out.times, &out.passes), "octavo::torch::fp8: ");
  return out;
}

}  // namespace octavo::torch::fp8
