// Tests bucketed gradients against plain sums of all ranks' gradients. Gradients are small integers, so every
// order of additions gives the same bits, in bf16 too.
// SPDX-License-Identifier: MIT
#include "train/optim/gradients.h"

#include "tests/ranks/ranks.h"
#include "tests/train/parts_support.h"
#include "train/nn/recompute.h"
#include "train/optim/bucket_gradients.h"
#include "train/optim/shards.h"
#include "train/tasks/text/bdh.h"
#include "train/tasks/text/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <optional>

namespace octavo_train::ranks {
namespace {

using octavo_train::BucketGradients;
using octavo_train::BucketLayout;
using octavo_train::GradientOptions;
using octavo_train::NamedTensors;
using octavo_train::Piece;
using testing::HasSubstr;

enum class Way { ddp, zero1, zero2 };
constexpr Way kWays[] = {Way::ddp, Way::zero1, Way::zero2};

// Returns a model's parameters, in several shapes and memory orders.
NamedTensors shapes(torch::ScalarType type) {
  const auto zeros = [&](at::IntArrayRef sizes) { return torch::zeros(sizes, type); };
  NamedTensors out = {{"matrix", zeros({40, 30})},
                      {"vector", zeros({7})},
                      {"kernel", zeros({8, 6, 5, 3}).contiguous(at::MemoryFormat::ChannelsLast)},
                      {"transposed", zeros({20, 50}).t()},
                      {"number", zeros({})},
                      {"nothing", zeros({0})},
                      {"long", zeros({3000})},
                      {"last", zeros({300})}};
  for (auto& [name, param] : out) param.requires_grad_();
  return out;
}

// Returns the gradient that a parameter gets on this rank in this micro-batch (`pass`) and step: integers
// from 0 to 12.
torch::Tensor gradient(const torch::Tensor& param, std::int64_t rank, std::int64_t pass, std::int64_t step) {
  const torch::Tensor flat = torch::arange(param.numel(), torch::kInt64);
  return ((flat * 5 + rank * 3 + pass + step) % 13).view(param.sizes()).to(param.scalar_type());
}

// Returns the elements of `tensor` in the memory order of `like`.
torch::Tensor in_memory_order(const torch::Tensor& tensor, const torch::Tensor& like) {
  torch::Tensor out = torch::empty_like(like, tensor.scalar_type()).detach();
  out.copy_(tensor);
  return out.as_strided({out.numel()}, {1}, 0);
}

// A rank's parameters, the tensors that its optimizer steps, and the gradients of both.
struct Rig {
  Rig(ProcessGroup& in, Way chosen, const GradientOptions& wanted, torch::ScalarType type = torch::kFloat32,
      std::int64_t bucket_bytes = 4096)
      : process_group(in), way(chosen), plan(wanted), params(shapes(type)) {
    plan.each_micro_batch = way == Way::zero2;
    std::vector<octavo_train::LaidParameter> laid;
    for (const auto& [name, param] : params) {
      laid.push_back({param.numel(), static_cast<int>(type), param.element_size(),
                      name == "kernel" || name == "vector"});
    }
    layout = BucketLayout::make(laid, process_group.ranks(), 256, way != Way::ddp, bucket_bytes);
    for (std::size_t i = 0; i < params.size(); ++i) {
      const torch::Tensor& param = params[i].second;
      const Piece piece = layout.piece(i, process_group.rank());
      const bool all = piece.elements() == param.numel();
      stepped.push_back(way == Way::ddp ? param
                        : all           ? torch::empty_like(param)
                                        : torch::empty({piece.elements()}, param.options()));
    }
    gradients.emplace(process_group, layout, params, stepped, plan);
  }

  // Runs one backward pass that gives gradients to the parameters for which `used` returns true.
  void pass(std::int64_t number, std::int64_t step, const std::function<bool(std::size_t)>& used) {
    torch::Tensor loss = torch::zeros({}, torch::TensorOptions().requires_grad(true)) * 0;
    for (std::size_t i = 0; i < params.size(); ++i) {
      const torch::Tensor& param = params[i].second;
      if (used(i)) loss = loss + (param * gradient(param, process_group.rank(), number, step)).sum();
    }
    loss.backward();
    gradients->micro_batch_done();
  }

  // Checks that the gradient of each stepped tensor is the sum over the ranks and micro-batches for which
  // `used` returns true.
  using Used = std::function<bool(std::int64_t rank, std::int64_t pass, std::size_t parameter)>;
  void check(std::int64_t passes, std::int64_t step, const Used& used) const {
    for (std::size_t i = 0; i < params.size(); ++i) {
      SCOPED_TRACE(params[i].first);
      const torch::Tensor param = params[i].second.detach();
      torch::Tensor sum = torch::zeros(param.sizes());
      bool any = false;
      for (std::int64_t rank = 0; rank < process_group.ranks(); ++rank) {
        for (std::int64_t number = 0; number < passes; ++number) {
          if (!used(rank, number, i)) continue;
          any = true;
          sum += gradient(param, rank, number, step);
        }
      }
      const torch::Tensor& got = stepped[i].grad();
      ASSERT_EQ(got.defined(), any);
      if (way != Way::ddp) {
        EXPECT_FALSE(params[i].second.grad().defined());
      }
      if (!any) continue;
      const bool wide = plan.micro_batches > 1 || plan.reduce_in_fp32;
      EXPECT_EQ(got.scalar_type(), wide ? torch::kFloat32 : param.scalar_type());
      EXPECT_EQ(got.sizes(), stepped[i].sizes());
      EXPECT_EQ(got.strides(), stepped[i].strides());
      const Piece piece = layout.piece(i, process_group.rank());
      const torch::Tensor mine = in_memory_order(sum, param).slice(0, piece.begin, piece.end);
      EXPECT_TRUE(torch::equal(in_memory_order(got, stepped[i].detach()).to(torch::kFloat32), mine));
    }
  }

  ProcessGroup& process_group;
  Way way;
  GradientOptions plan;
  NamedTensors params;
  BucketLayout layout;
  std::vector<torch::Tensor> stepped;
  std::optional<BucketGradients> gradients;
};

std::string name_of(Way way) { return way == Way::ddp ? "ddp" : way == Way::zero1 ? "zero1" : "zero2"; }

}  // namespace

RANKS_TEST(gradients_are_the_sums_of_all_ranks, 2, 3, 4) {
  for (const Way way : kWays) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      for (const std::int64_t passes : {1, 3}) {
        for (const bool in_fp32 : {false, true}) {
          SCOPED_TRACE(name_of(way) + ", " + c10::toString(type) + ", " + std::to_string(passes) + " passes");
          Rig rig(process_group, way, {passes, in_fp32}, type);
          for (std::int64_t step = 0; step < 2; ++step) {
            rig.gradients->clear();
            rig.gradients->expect(passes, passes);
            for (std::int64_t number = 0; number < passes; ++number) {
              rig.pass(number, step, [](std::size_t) { return true; });
              if (way != Way::zero2 && number + 1 < passes) {
                EXPECT_EQ(rig.gradients->started(), 0);
              }
            }
            rig.gradients->finish();
            rig.check(passes, step, [](auto...) { return true; });
          }
        }
      }
    }
  }
}

// Some ranks or micro-batches do not use a parameter, one parameter is never used, and ranks have fewer
// micro-batches or none. The existing gradients are summed; the unused parameter stays without a gradient.
RANKS_TEST(gradients_that_some_have_not, 2, 3) {
  const auto passes_of = [](std::int64_t rank) { return rank == 1 ? 0 : 3 - rank; };
  for (const Way way : kWays) {
    for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
      SCOPED_TRACE(name_of(way));
      Rig rig(process_group, way, {3}, type);
      for (std::int64_t step = 0; step < 3; ++step) {
        const auto used = [&](std::int64_t rank, std::int64_t number, std::size_t i) {
          if (number >= passes_of(rank) || i == 6) return false;
          if (i == 3) return rank == 0 && number == 0;
          return i != 0 || (number + step) % 2 == 1;
        };
        rig.gradients->clear();
        rig.gradients->expect(passes_of(process_group.rank()), 3);
        for (std::int64_t number = 0; number < passes_of(process_group.rank()); ++number)
          rig.pass(number, step, [&](std::size_t i) { return used(process_group.rank(), number, i); });
        rig.gradients->finish();
        rig.check(3, step, used);
      }
      rig.gradients->clear();
      for (const torch::Tensor& each : rig.stepped) EXPECT_FALSE(each.grad().defined());
    }
  }
}

RANKS_TEST(gradient_bytes_are_the_layouts, 2, 3, 4) {
  for (const Way way : kWays) {
    const Rig rig(process_group, way, {2}, torch::kBFloat16);
    std::int64_t kept = 0, largest = 0;
    EXPECT_GT(rig.layout.buckets().size(), 3U);
    for (std::size_t b = 0; b < rig.layout.buckets().size(); ++b) {
      const std::int64_t all = rig.layout.buckets()[b].elements;
      kept += 4 * (way == Way::zero2 ? rig.layout.chunk(b, process_group.rank()).elements() : all);
      largest = std::max(largest, 2 * all);
    }
    EXPECT_EQ(rig.gradients->bytes(), kept);
    EXPECT_EQ(rig.gradients->communication_bytes(), way == Way::zero2 ? 2 * largest : 0);
    EXPECT_EQ(rig.gradients->sum_bytes(), kept + rig.gradients->communication_bytes());
  }
}

// The first bucket is sent while backward() still runs, and the memory of its gradients is freed.
RANKS_TEST(gradients_go_while_backward_runs, 2) {
  for (const Way way : kWays) {
    Rig rig(process_group, way, {2});
    rig.gradients->clear();
    rig.gradients->expect(2, 2);
    for (int number = 0; number < 2; ++number) {
      torch::Tensor x = torch::ones({}).requires_grad_(), middle;
      for (std::size_t i = 0; i < rig.params.size(); ++i) {
        x = x + (rig.params[i].second * 2).sum();
        if (i == 4) middle = x * 1, x = middle;
      }
      std::int64_t by_then = -1;
      middle.register_hook([&](const torch::Tensor& grad) {
        by_then = rig.gradients->started();
        EXPECT_FALSE(rig.params.back().second.grad().defined());
        return grad;
      });
      x.backward();
      const auto all = static_cast<std::int64_t>(rig.layout.buckets().size());
      if (way == Way::zero2 || number == 1) {
        EXPECT_GE(by_then, way == Way::zero2 ? number * all + 1 : 1) << name_of(way);
        EXPECT_LT(by_then, way == Way::zero2 ? number * all + all : all);
      } else {
        EXPECT_EQ(by_then, 0);
      }
      rig.gradients->micro_batch_done();
    }
    rig.gradients->finish();
    for (std::size_t i = 0; i < rig.params.size(); ++i)
      EXPECT_TRUE((rig.stepped[i].grad() == 4 * process_group.ranks()).all().item<bool>());
  }
}

// Segments of recompute() that share weights produce their gradients in parts. With SegmentWeights::shared
// the bucket waits for the last part. With SegmentWeights::own the late parts are summed too.
RANKS_TEST(gradients_that_come_in_parts, 2, 3) {
  for (const Way way : kWays) {
    for (const auto weights : {octavo_train::SegmentWeights::shared, octavo_train::SegmentWeights::own}) {
      for (const std::int64_t passes : {1, 2}) {
        Rig rig(process_group, way, {passes});
        for (int step = 0; step < 2; ++step) {
          rig.gradients->clear();
          rig.gradients->expect(passes, passes);
          for (std::int64_t number = 0; number < passes; ++number) {
            torch::Tensor x = torch::ones({}).requires_grad_();
            // In the last micro-batch only rank 0's gradients come in parts. The other ranks have no late
            // parts, but take part in the sum.
            const int parts = process_group.rank() == 0 || number + 1 < passes ? 3 : 1;
            for (int part = 0; part < parts; ++part) {
              const auto segment = [&rig, part, parts](const std::vector<torch::Tensor>& in) {
                torch::Tensor out = in[0];
                for (const auto& [name, param] : rig.params)
                  out = out + (param * (parts == 1 ? 7 : 1 << part)).sum();
                return out;
              };
              x = octavo_train::recompute(segment, {x}, {}, weights);
            }
            x.backward();
            rig.gradients->micro_batch_done();
          }
          const auto all = static_cast<std::int64_t>(rig.layout.buckets().size());
          EXPECT_EQ(rig.gradients->started(), way == Way::zero2 ? passes * all : all);
          rig.gradients->finish();
          for (std::size_t i = 0; i < rig.params.size(); ++i) {
            EXPECT_TRUE((rig.stepped[i].grad() == 7 * passes * process_group.ranks()).all().item<bool>())
                << name_of(way) << ", " << rig.params[i].first;
            if (way != Way::ddp) {
              EXPECT_FALSE(rig.params[i].second.grad().defined());
            }
          }
        }
      }
    }
  }
}

// Covers an expanded gradient, a parameter that is used twice, and frozen tensors next to them.
RANKS_TEST(gradients_of_any_kind, 2) {
  for (const Way way : kWays) {
    Rig rig(process_group, way, {1});
    const torch::Tensor frozen = torch::ones({30, 4});
    rig.gradients->clear();
    rig.gradients->expect(1, 1);
    const torch::Tensor matrix = rig.params[0].second;
    (matrix.sum() + (matrix.matmul(frozen) * 2).sum() + rig.params[7].second.expand({2, 300}).sum())
        .backward();
    rig.gradients->micro_batch_done();
    rig.gradients->finish();
    EXPECT_TRUE((rig.stepped[0].grad() == 9 * process_group.ranks()).all().item<bool>());
    EXPECT_TRUE((rig.stepped[7].grad() == 2 * process_group.ranks()).all().item<bool>());
    EXPECT_FALSE(rig.stepped[1].grad().defined());
    EXPECT_FALSE(frozen.grad().defined());
  }
}

// An error in a hook propagates out of backward() and contains the parameter's name. A step can follow.
RANKS_TEST(gradients_that_are_sparse_are_refused, 2) {
  Rig rig(process_group, Way::ddp, {1}, torch::kFloat32, 1);
  const auto backward = [&] {
    const torch::Tensor rows = torch::zeros({1}, torch::kInt64);
    torch::embedding(rig.params[0].second, rows, -1, false, /*sparse=*/true).sum().backward();
  };
  rig.gradients->clear();
  rig.gradients->expect(1, 1);
  try {
    backward();
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("matrix: its gradient is Sparse, expected a dense one"));
  }
  rig.gradients->clear();
  rig.gradients->expect(1, 1);
  rig.pass(0, 0, [](std::size_t) { return true; });
  rig.gradients->finish();
  rig.check(1, 0, [](auto...) { return true; });
}

// Checks the gradients that a run makes from its settings, its ranks and the optimizer's pieces.
RANKS_TEST(gradients_are_made_as_settings_ask, 2, 3) {
  for (const std::string way : {"ddp", "zero1", "zero2"}) {
    for (const std::string type : {"auto", "float32"}) {
      const auto t =
          octavo_train::training({"optimizer=adamw_8bit", "parallel=" + way, "reduce_dtype=" + type});
      const auto groups = octavo_train::one_group(t, octavo_train::make_parameters(torch::kBFloat16));
      std::unique_ptr<octavo_train::ShardedWeights> shards;
      const BucketLayout layout =
          octavo_train::make_bucket_layout(groups, process_group.ranks(), way != "ddp");
      if (way != "ddp")
        shards = std::make_unique<octavo_train::ShardedWeights>(process_group, groups, layout);
      const auto gradients = octavo_train::make_gradients(process_group, groups, t, 1, shards.get());
      gradients->clear();
      gradients->expect(1, 1);
      torch::Tensor loss = torch::zeros({});
      for (const auto& [name, param] : groups.parameters)
        loss = loss + (param * (process_group.rank() + 1)).sum();
      loss.backward();
      gradients->micro_batch_done();
      gradients->finish();
      const std::int64_t size = type == "auto" ? 2 : 4;
      std::int64_t bytes = 0;
      for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
        bytes += size * (way == "zero2" ? layout.chunk(b, process_group.rank()).elements()
                                        : layout.buckets()[b].elements);
      }
      EXPECT_EQ(gradients->bytes(), bytes) << way;
      for (std::size_t i = 0; i < groups.parameters.size(); ++i) {
        const torch::Tensor& stepped = shards ? shards->pieces()[i] : groups.parameters[i].second;
        ASSERT_TRUE(stepped.grad().defined());
        EXPECT_EQ(stepped.grad().element_size(), size);
        EXPECT_TRUE(
            (stepped.grad() == process_group.ranks() * (process_group.ranks() + 1) / 2).all().item<bool>())
            << way;
      }
      const auto alone = ProcessGroup::alone();
      EXPECT_NE(dynamic_cast<octavo_train::GradientSums*>(
                    octavo_train::make_gradients(*alone, groups, t, 1, nullptr).get()),
                nullptr);
    }
  }
}

namespace {

// A small text model and its gradients, for any implementation that sums them.
struct TextRig {
  TextRig(const octavo_train::BdhConfig& config, torch::ScalarType type, const torch::Device& device,
          at::IntArrayRef text)
      : model(config), passes(text[0]) {
    model.to(device, type);
    for (const auto& each : model.named_parameters()) {
      params.emplace_back(each.key(), each.value());
      all.push_back(each.value());
      laid.push_back({each.value().numel(), static_cast<int>(type), each.value().element_size(), false});
    }
    tokens = torch::randint(256, text, torch::kInt64).to(device);
  }

  void step(octavo_train::Gradients& gradients) {
    gradients.clear();
    gradients.expect(passes, passes);
    for (std::int64_t number = 0; number < passes; ++number) {
      const torch::Tensor text = tokens[number];
      octavo_train::text_loss(model, {text.slice(1, 0, -1), text.slice(1, 1)}).backward();
      gradients.micro_batch_done();
    }
    gradients.finish();
  }
  [[nodiscard]] BucketGradients buckets(ProcessGroup& process_group, Way way, std::int64_t bytes) const {
    return {process_group,
            BucketLayout::make(laid, 1, 256, way != Way::ddp, bytes),
            params,
            all,
            {passes, false, way == Way::zero2}};
  }

  octavo_train::BdhImpl model;
  std::int64_t passes;
  NamedTensors params;
  std::vector<torch::Tensor> all;
  std::vector<octavo_train::LaidParameter> laid;
  torch::Tensor tokens;  // [micro-batches, rows, length]
};

// Returns the differences between one rank and a process without a group, for every parallel mode, with and
// without recomputed layers.
std::string differences_of_one_rank(ProcessGroup& process_group, const torch::Device& device) {
  std::string out;
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const std::int64_t passes : {1, 2}) {
      for (const bool again : {false, true}) {
        torch::manual_seed(1);
        octavo_train::BdhConfig config{2, 8, 2, 4, 256, 0.0};
        config.gradient_checkpointing = again;
        TextRig rig(config, type, device, {passes, 1, 13});
        std::vector<torch::Tensor> expected;
        octavo_train::GradientSums plain(rig.params, passes);
        rig.step(plain);
        for (const torch::Tensor& each : rig.all) expected.push_back(each.grad().clone());
        for (const Way way : kWays) {
          BucketGradients buckets = rig.buckets(process_group, way, 1);
          for (int time = 0; time < 2; ++time) {
            rig.step(buckets);
            for (std::size_t i = 0; i < expected.size(); ++i) {
              const torch::Tensor& got = rig.all[i].grad();
              if (got.scalar_type() != expected[i].scalar_type() || !torch::equal(got, expected[i]))
                out += name_of(way) + ", " + c10::toString(type) + ", " + rig.params[i].first + '\n';
            }
          }
        }
      }
    }
  }
  return out;
}

}  // namespace

TEST(BucketGradients, OfOneRankAreThoseOfOneProcess) {
  EXPECT_EQ(differences_of_one_rank(*ProcessGroup::alone(), torch::kCPU), "");
}

// Runs the same comparison over NCCL, and measures the time of a step.
RANKS_PROGRAM(gradients_on_a_gpu) {
  const torch::Device device(torch::kCUDA, 0);
  const std::unique_ptr<ProcessGroup> process_group =
      ProcessGroup::join(place_here(), device, {.timeout = kPatience}).value();
  const std::string different = differences_of_one_rank(*process_group, device);
  std::cout << different;
  octavo_train::BdhConfig config;
  config.dropout = 0;
  TextRig rig(config, torch::kBFloat16, device, {2, 8, 513});
  const auto time = [&](const std::string& name, octavo_train::Gradients& gradients) {
    for (int i = 0; i < 3; ++i) rig.step(gradients);
    torch::cuda::synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) rig.step(gradients);
    torch::cuda::synchronize();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::cout << name << ": " << seconds.count() * 50 << " ms for two passes\n";
  };
  octavo_train::GradientSums plain(rig.params, 2);
  time("no group", plain);
  for (const Way way : kWays) {
    BucketGradients buckets = rig.buckets(*process_group, way, octavo_train::kBucketBytes);
    time(name_of(way), buckets);
  }
  std::cout << (different.empty() ? "ok" : "different") << std::endl;
  return 0;
}

TEST(BucketGradients, OnAGpuAreThoseOfOneProcess) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  const Ended ended = Processes({.program = "gradients_on_a_gpu", .ranks = 1}).wait().at(0);
  EXPECT_EQ(ended.code, 0) << "signal " << ended.signal;
  EXPECT_THAT(ended.output, HasSubstr("ok\n"));
  std::cout << ended.output;
}

}  // namespace octavo_train::ranks
