// Tests dropout's errors (name, value and limit) and its C function.
// SPDX-License-Identifier: MIT
#include "tests/support/c_structs.h"

#include <octavo/dropout.h>
#include <octavo/octavo.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <string>

namespace test {
namespace {

using octavo::DropoutArgs;
using octavo::Status;
using octavo::StatusCode;
using ::testing::HasSubstr;

struct Call {
  std::array<float, 8> from{1, 2, 3, 4, 5, 6, 7, 8}, to{};
  std::array<std::int64_t, 4> samples{4, 3, 2, 1};

  [[nodiscard]] DropoutArgs args() {
    DropoutArgs args;
    args.from = from.data();
    args.to = to.data();
    args.batch = 4;
    args.inner = 2;
    args.samples = samples.data();
    args.probability = 0.5;
    return args;
  }
};

template <class Change>
void expect_refused(const std::string& message, Change&& change) {
  Call call;
  DropoutArgs args = call.args();
  change(call, args);
  const std::array<float, 8> before = call.to;
  const Status status = octavo::dropout(args);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << message;
  EXPECT_THAT(status.message(), HasSubstr("[dropout] " + message));
  EXPECT_EQ(call.to, before);
}

TEST(DropoutApi, RefusesBadNumbers) {
  for (const double probability : {-0.1, 1.0, 2.0, std::nan("")}) {
    expect_refused("probability: got " + std::to_string(probability) + ", expected at least 0 and below 1",
                   [&](Call&, DropoutArgs& a) { a.probability = probability; });
  }
  expect_refused("dtype: got 9", [](Call&, DropoutArgs& a) { a.dtype = static_cast<octavo::DType>(9); });
  expect_refused("outer: got -1", [](Call&, DropoutArgs& a) { a.outer = -1; });
  expect_refused("inner: got -2", [](Call&, DropoutArgs& a) { a.inner = -2; });
  expect_refused("inner: got 4611686018427387904",
                 [](Call&, DropoutArgs& a) { a.inner = std::int64_t{1} << 62; });
  expect_refused("row: got 3, expected a divisor of inner, 2, or 0 with a pitch of 0",
                 [](Call&, DropoutArgs& a) { a.row = a.pitch = 3; });
  expect_refused("row: got 0", [](Call&, DropoutArgs& a) { a.pitch = 3; });
  expect_refused("row: got -1", [](Call&, DropoutArgs& a) { a.row = -1; });
  expect_refused("pitch: got 1, expected at least row, 2", [](Call&, DropoutArgs& a) {
    a.row = 2;
    a.pitch = 1;
  });
  expect_refused(
      "pitch: got 1152921504606846976, expected at least row, 1, and at most 2^60 for all rows of "
      "a sample, 2",
      [](Call&, DropoutArgs& a) {
        a.row = 1;
        a.pitch = std::int64_t{1} << 60;
      });
  expect_refused("threads: got -1", [](Call&, DropoutArgs& a) { a.threads = -1; });
  expect_refused("stream: got a stream", [](Call& c, DropoutArgs& a) { a.stream = &c; });
  expect_refused("device.index: got 1 for the CPU", [](Call&, DropoutArgs& a) { a.device.index = 1; });
}

TEST(DropoutApi, RefusesBadBuffers) {
  expect_refused("from: got null", [](Call&, DropoutArgs& a) { a.from = nullptr; });
  expect_refused("to: got null", [](Call&, DropoutArgs& a) { a.to = nullptr; });
  expect_refused("samples: got null", [](Call&, DropoutArgs& a) { a.samples = nullptr; });
  expect_refused("to: got an address that is not a multiple of 4",
                 [](Call& c, DropoutArgs& a) { a.to = reinterpret_cast<char*>(c.to.data()) + 1; });
  expect_refused("to: overlaps from", [](Call& c, DropoutArgs& a) {
    a.to = c.from.data() + 1;
    a.batch = 3;
  });
  expect_refused("to: overlaps samples", [](Call& c, DropoutArgs& a) {
    a.to = c.samples.data();
    a.batch = 2;
  });
}

TEST(DropoutApi, NoElementsNeedNoMemory) {
  DropoutArgs args;
  args.batch = 4;
  EXPECT_TRUE(octavo::dropout(args).ok());
  args.inner = 4;
  args.batch = 0;
  EXPECT_TRUE(octavo::dropout(args).ok());
}

TEST(DropoutApi, TheCFunctionDoesTheSame) {
  Call expected, got;
  DropoutArgs plain = expected.args();
  plain.seed = 7;
  plain.step = 8;
  plain.layer = 9;
  ASSERT_TRUE(octavo::dropout(plain).ok());
  auto args = sized<octavo_dropout_args>();
  args.from = got.from.data();
  args.to = got.to.data();
  args.outer = 1;
  args.batch = 4;
  args.inner = 2;
  args.samples = got.samples.data();
  args.probability = 0.5;
  args.seed = 7;
  args.step = 8;
  args.layer = 9;
  ASSERT_EQ(octavo_dropout(&args), 0U) << octavo_last_error();
  EXPECT_EQ(got.to, expected.to);
  EXPECT_NE(got.to, got.from);
  // With rows.
  plain.row = args.row = 1;
  plain.pitch = args.pitch = 65536;
  ASSERT_TRUE(octavo::dropout(plain).ok());
  ASSERT_EQ(octavo_dropout(&args), 0U) << octavo_last_error();
  EXPECT_EQ(got.to, expected.to);
  args.struct_size = offsetof(octavo_dropout_args, row);
  EXPECT_EQ(octavo_dropout(&args), 1U);
  EXPECT_THAT(octavo_last_error(), HasSubstr("args.struct_size"));
  args.struct_size = sizeof args;
  args.probability = 1.5;
  EXPECT_EQ(octavo_dropout(&args), 1U);
  EXPECT_THAT(octavo_last_error(), HasSubstr("[dropout] probability: got 1.5"));
  EXPECT_EQ(octavo_dropout(nullptr), 1U);
}

}  // namespace
}  // namespace test
