// What casts, scale updates and products refuse, by name, value and limit; nothing is written then.
// SPDX-License-Identifier: MIT
#include "fp8/matrices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>

namespace test {
namespace {

using octavo::Status;
using octavo::StatusCode;
using ::testing::HasSubstr;

void expect_refused(const Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << message;
  EXPECT_THAT(status.message(), HasSubstr("[fp8] " + message));
}

TEST(Fp8BadInput, AGpuIsNotThereYet) {
  fp8::ScaleUpdate update;
  update.device.kind = octavo::DeviceKind::cuda;
  for (const Status& status : {fp8::update_scales(update)}) {
    EXPECT_EQ(status.code(), StatusCode::unsupported);
    EXPECT_THAT(status.message(), HasSubstr("[fp8] device: got cuda, expected cpu"));
  }
}

TEST(Fp8BadInput, ScaleUpdates) {
  fp8::DelayedState first{1.0f, {2.0f, 3.0f}}, second = first;
  const auto refused = [&](const std::string& message, auto&& change) {
    std::array<fp8::DelayedTensor, 2> tensors = {first.view(fp8::Element::e4m3),
                                                 second.view(fp8::Element::e5m2)};
    fp8::ScaleUpdate update;
    update.tensors = tensors;
    update.length = 2;
    change(update, tensors[1]);
    expect_refused(fp8::update_scales(update), message);
    EXPECT_EQ(first, (fp8::DelayedState{1.0f, {2.0f, 3.0f}}));
  };
  refused("amax_history_len: got 0, expected 1 to 65536",
          [](fp8::ScaleUpdate& u, fp8::DelayedTensor&) { u.length = 0; });
  refused("margin: got 17", [](fp8::ScaleUpdate& u, fp8::DelayedTensor&) { u.margin = 17; });
  refused("amax_compute_algo: got 5",
          [](fp8::ScaleUpdate& u, fp8::DelayedTensor&) { u.algo = static_cast<fp8::AmaxAlgo>(5); });
  refused("tensors[1].history: got null, expected a buffer of 8 bytes",
          [](fp8::ScaleUpdate&, fp8::DelayedTensor& t) { t.history = nullptr; });
  refused("tensors[1].scale: got null", [](fp8::ScaleUpdate&, fp8::DelayedTensor& t) { t.scale = nullptr; });
  refused("tensors[1].element: got 2",
          [](fp8::ScaleUpdate&, fp8::DelayedTensor& t) { t.element = static_cast<fp8::Element>(2); });
}

}  // namespace
}  // namespace test
