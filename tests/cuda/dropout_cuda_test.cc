// Tests dropout on the GPU: the CPU's bytes for every type, shape and alignment, with both of its kernels.
// SPDX-License-Identifier: MIT
#include "tests/cuda/device.h"
#include "tests/cuda/graph.h"
#include "tests/reference/elements.h"
#include "tests/support/random.h"

#include <octavo/dropout.h>

#include <gmock/gmock.h>

#include <cstring>
#include <limits>

namespace test {
namespace {

using octavo::DropoutArgs;
using octavo::DType;
using octavo::Status;
using ::testing::HasSubstr;

constexpr octavo::Device kGpu{octavo::DeviceKind::cuda, 0};

class DropoutCuda : public GpuTest {};

struct Case {
  DType dtype;
  std::int64_t outer, batch, inner;
  std::int64_t from_phase = 0, to_phase = 0;  // elements after a multiple of 64 bytes
  double probability = 0.1;
  bool special = true;  // the values include NaN, infinities and both zeros
  std::int64_t row = 0, pitch = 0;

  [[nodiscard]] std::int64_t numel() const { return outer * batch * inner; }
  [[nodiscard]] std::int64_t bytes() const { return numel() * octavo::dtype_bytes(dtype); }
  [[nodiscard]] std::string text() const {
    return std::string(octavo::name(dtype)) + " " + std::to_string(outer) + "x" + std::to_string(batch) +
           "x" + std::to_string(inner) + " from " + std::to_string(from_phase) + " to " +
           std::to_string(to_phase) + " p " + std::to_string(probability) + " rows " + std::to_string(row) +
           " of " + std::to_string(pitch);
  }
};

std::vector<std::int64_t> sample_numbers(std::int64_t batch) {
  std::vector<std::int64_t> out;
  for (std::int64_t b = 0; b < batch; ++b) out.push_back(b % 3 == 2 ? -b : (b << 33) + 1000 - 7 * b);
  return out;
}

void fill(const Case& c, std::byte* data) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float special[] = {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf, -0.0f, 0.0f};
  const std::vector<float> values = any_finite_values(c.numel(), 19);
  for (std::int64_t i = 0; i < c.numel(); ++i) {
    const bool odd = c.special && i % 37 == 11;
    reference::store_nearest(c.dtype, data, i, odd ? special[usize(i / 37) % 5] : values[usize(i)]);
  }
}

DropoutArgs args_of(const Case& c) {
  DropoutArgs args;
  args.dtype = c.dtype;
  args.outer = c.outer;
  args.batch = c.batch;
  args.inner = c.inner;
  args.probability = c.probability;
  args.seed = 21;
  args.step = 22;
  args.layer = 23;
  args.row = c.row;
  args.pitch = c.pitch;
  return args;
}

// Returns "" if the GPU's bytes equal the CPU's, from buffer to buffer and in place.
std::string compare(const Case& c, cudaStream_t stream) {
  const std::int64_t element = octavo::dtype_bytes(c.dtype);
  DeviceMemory memory(Memory::together);
  const std::size_t from = memory.add(c.bytes(), c.from_phase * element);
  const std::size_t to = memory.add(c.bytes(), c.to_phase * element);
  const std::size_t numbers = memory.add(8 * c.batch, 0);
  const std::vector<std::int64_t> samples = sample_numbers(c.batch);
  fill(c, memory.host(from));
  std::memcpy(memory.host(numbers), samples.data(), usize(8 * c.batch));

  std::vector<std::byte> expected(usize(c.bytes()) + 16);
  const std::size_t shift = (16 - reinterpret_cast<std::uintptr_t>(expected.data()) % 16) % 16;
  DropoutArgs args = args_of(c);
  args.from = memory.host(from);
  args.to = expected.data() + shift;
  args.samples = samples.data();
  if (const Status bad = octavo::dropout(args); !bad.ok()) return bad.message();

  for (const bool in_place : {false, true}) {
    memory.upload(stream);
    args.device = kGpu;
    args.stream = stream;
    args.from = memory.device(from);
    args.to = memory.device(in_place ? from : to);
    args.samples = reinterpret_cast<const std::int64_t*>(memory.device(numbers));
    if (const Status bad = octavo::dropout(args); !bad.ok()) return bad.message();
    memory.download(stream);
    if (memory.damaged()) return "bytes around a buffer changed";
    const std::byte* got = memory.host(in_place ? from : to);
    for (std::int64_t i = 0; i < c.bytes(); ++i) {
      if (got[i] != expected[shift + usize(i)])
        return (in_place ? "in place, element " : "element ") + std::to_string(i / element);
    }
  }
  return "";
}

// Rows of complete blocks of 512 elements: one, a few, and more than a warp processes at a time.
TEST_F(DropoutCuda, WholeBlocksEqualTheCpu) {
  const Stream stream;
  Tally tally;
  for (const DType dtype : octavo::all_dtypes()) {
    for (const std::int64_t blocks : {1, 2, 7, 8, 9, 33}) {
      for (const bool special : {false, true}) {
        for (const double probability : {0.0, 0.1, 0.9}) {
          const Case c{dtype, 3, 5, 512 * blocks, 0, 0, probability, special};
          tally.add(c.text(), compare(c, stream));
        }
      }
    }
  }
}

// All other shapes: rows of any length, from one element on, and addresses that do not allow vectors.
TEST_F(DropoutCuda, AnyShapeEqualsTheCpu) {
  const Stream stream;
  Tally tally;
  std::int64_t turn = 0;
  for (const DType dtype : octavo::all_dtypes()) {
    for (const std::int64_t inner : {1, 2, 3, 7, 8, 9, 16, 255, 256, 257, 504, 511, 513, 1000, 4104}) {
      for (const bool aligned : {true, false}) {
        ++turn;
        const std::int64_t phase = aligned ? 0 : 1 + turn % 7;
        const Case c{dtype, 1 + turn % 3, 1 + turn % 6, inner, phase, aligned ? 0 : turn % 5};
        tally.add(c.text(), compare(c, stream));
      }
    }
    // Complete blocks at addresses that are not multiples of sixteen bytes.
    const Case c{dtype, 2, 3, 1024, 1, 0};
    tally.add(c.text(), compare(c, stream));
  }
}

TEST_F(DropoutCuda, RowsEqualTheCpu) {
  const Stream stream;
  Tally tally;
  for (const DType dtype : octavo::all_dtypes()) {
    for (const std::int64_t row : {1, 3, 8, 250, 255, 256, 512, 600}) {
      for (const std::int64_t pitch : {row, row + 1, std::int64_t{65536}, std::int64_t{1} << 31}) {
        const Case c{dtype, 2, 3, 7 * row, 0, 0, 0.1, true, row, pitch};
        tally.add(c.text(), compare(c, stream));
      }
    }
  }
}

// More blocks than one launch has warps at a time, and rows of a sample that are far apart.
TEST_F(DropoutCuda, LargeTensorsEqualTheCpu) {
  const Stream stream;
  Tally tally;
  for (const Case& c : {Case{DType::bf16, 4, 16, 512 * 300}, Case{DType::f32, 2, 3, 512 * 1000},
                        Case{DType::f16, 4, 3, 1000003}}) {
    tally.add(c.text(), compare(c, stream));
  }
}

TEST_F(DropoutCuda, ReplaysInAGraph) {
  const Stream stream;
  const Case c{DType::bf16, 2, 3, 1536};
  DeviceMemory memory(Memory::together);
  const std::size_t data = memory.add(c.bytes(), 0), numbers = memory.add(8 * c.batch, 0);
  fill(c, memory.host(data));
  const std::vector<std::int64_t> samples = sample_numbers(c.batch);
  std::memcpy(memory.host(numbers), samples.data(), usize(8 * c.batch));
  memory.upload(stream);
  DropoutArgs args = args_of(c);
  args.device = kGpu;
  args.stream = stream;
  args.from = args.to = memory.device(data);
  args.samples = reinterpret_cast<const std::int64_t*>(memory.device(numbers));
  ASSERT_TRUE(octavo::dropout(args).ok());  // loads the kernel
  const Graph graph(stream, [&] { return octavo::dropout(args); });
  memory.upload(stream);
  graph.launch(stream);
  DropoutArgs plain = args_of(c);
  std::vector<std::uint16_t> expected(usize(c.numel()));
  std::memcpy(expected.data(), memory.host(data), usize(c.bytes()));
  plain.from = plain.to = expected.data();
  plain.samples = samples.data();
  ASSERT_TRUE(octavo::dropout(plain).ok());
  memory.download(stream);
  EXPECT_EQ(std::memcmp(memory.host(data), expected.data(), usize(c.bytes())), 0);
}

TEST_F(DropoutCuda, RefusesHostMemory) {
  const OnDevice<float> value;
  const OnDevice<std::int64_t> sample;
  float host = 0.0f;
  std::int64_t number = 0;
  DropoutArgs args;
  args.device = kGpu;
  args.batch = args.inner = 1;
  args.from = args.to = value.get();
  args.samples = &number;
  EXPECT_THAT(octavo::dropout(args).message(), HasSubstr("[dropout] samples: got a host pointer"));
  args.samples = sample.get();
  args.from = &host;
  EXPECT_THAT(octavo::dropout(args).message(), HasSubstr("[dropout] from: got a host pointer"));
  args.device.index = 99;
  EXPECT_THAT(octavo::dropout(args).message(), HasSubstr("[dropout] device: got cuda:99"));
}

}  // namespace
}  // namespace test
