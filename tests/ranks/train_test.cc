// Compares complete trainings on ranks with one process that has the same batches in a step, over 20 steps.
//
// Where sums are exact (exact_task.h) or have two terms, weights and saved states must be bit-identical.
// Elsewhere they must be near: the bound is measured as the distance between two trainings in one process
// that differ only in the order of their sums. Weights are always bit-identical among ranks.
// SPDX-License-Identifier: MIT
#include "tests/ranks/exact_task.h"
#include "tests/ranks/whole_run.h"
#include "tests/support/delays.h"
#include "train/optim/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace octavo_train::ranks {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Words passes(std::int64_t count) { return {"gradient_accumulation_steps=" + std::to_string(count)}; }

struct Variant {
  std::string name;
  std::int64_t passes;
  Words words;
};

// Returns variants with every state format and weight store, and with several numbers of micro-batches.
std::vector<Variant> adamw() {
  const auto bf16 = [](const std::string& master) {
    return Words{"compute_dtype=bfloat16", "master_weights=" + master};
  };
  const Words free = {"max_grad_norm=0"};
  return {{"adamw", 1, free},
          {"adamw_bf16", 4, {}},
          {"adamw_8bit", 1, {}},
          {"adamw_4bit", 4, bf16("24") + free},
          {"adamw_4bit_rank1", 1, bf16("stochastic")},
          {"adamw_fp8", 1, bf16("32")},
          {"adamw_fp8_e5m2", 4, bf16("none")},
          {"adamw_4bit_8bit", 4, bf16("stochastic")},
          {"adamw", 1, bf16("stochastic")},
          {"adamw_8bit", 1, bf16("24") + Words{"reduce_dtype=float32", "amsgrad=true"}},
          {"adamw_8bit", 4, {"compute_dtype=float16"}}};
}

// The other optimizer families with elementwise updates.
std::vector<Variant> families() {
  return {{"adam_8bit", 1, {}},
          {"sgd_8bit", 4, {"nesterov=true"}},
          {"lion_4bit", 1, {"compute_dtype=bfloat16", "master_weights=24"}},
          {"rmsprop", 1, {"centered=true", "momentum=0.9"}},
          {"adagrad_8bit", 1, {}},
          {"ademamix_4bit_8bit", 4, {}}};
}

std::string text_of(const Variant& variant) {
  std::string out = variant.name + " passes=" + std::to_string(variant.passes);
  for (const std::string& word : variant.words) out += ' ' + word;
  return out;
}

Words words_of(const Variant& variant, int ranks) {
  return Words{"optimizer=" + variant.name,
               "per_device_train_batch_size=" + std::to_string(ExactTask::rows(ranks))} +
         passes(variant.passes) + variant.words;
}

// Returns a training in one process. Groups run one after the other; the first one that needs this training
// runs it.
WholeRun alone(const Variant& variant) {
  WholeRun run("alone-" + std::to_string(std::hash<std::string>()(text_of(variant))));
  if (!run.has(kSteps)) {
    EXPECT_EQ(run.go(nullptr, std::make_unique<ExactTask>(1), words_of(variant, 1)), "") << text_of(variant);
  }
  return run;
}

void expect_bits(ProcessGroup& process_group, const Variant& variant, const std::string& parallel) {
  const std::string what = text_of(variant) + ' ' + parallel;
  static int number = 0;
  WholeRun run(std::to_string(process_group.ranks()) + "-exact" + std::to_string(number++));
  EXPECT_EQ(run.go(&process_group, std::make_unique<ExactTask>(process_group.ranks()),
                   words_of(variant, process_group.ranks()) + Words{"parallel=" + parallel}),
            "")
      << what;
  EXPECT_TRUE(same_on_ranks(process_group, bytes_of(run.parameters))) << what;
  if (!process_group.leads()) return;
  const WholeRun one = alone(variant);
  EXPECT_TRUE(run.bits(kSteps).first == one.bits(kSteps).first) << "weights: " << what;
  EXPECT_TRUE(run.bits(kSteps).second == one.bits(kSteps).second) << "states: " << what;
  const auto got = run.state(kSteps), expected = one.state(kSteps);
  for (const char* key : {"units", "sampler", "skipped"}) EXPECT_EQ(got[key], expected[key]) << what;
  const auto evaluation = run.records("eval").at(0), of_one = one.records("eval").at(0);
  EXPECT_EQ(evaluation["loss"], of_one["loss"]) << what;
  EXPECT_EQ(evaluation["images"], of_one["images"]) << what;
}

const char* const kModes[] = {"ddp", "zero1", "zero2"};

RANKS_TEST(adamw_has_the_bits_of_one_process, 2, 3, 4) {
  // Two ranks cover every combination. Three and four ranks cover each format in one mode, and those two
  // modes differ.
  const std::vector<Variant> all = adamw();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t mode = 0; mode < 3; ++mode)
      if (process_group.ranks() == 2 || (i + static_cast<std::size_t>(process_group.ranks())) % 3 == mode)
        expect_bits(process_group, all[i], kModes[mode]);
  }
}

RANKS_TEST(other_families_have_the_bits_of_one_process, 3) {
  const std::vector<Variant> all = families();
  for (std::size_t i = 0; i < all.size(); ++i) expect_bits(process_group, all[i], kModes[(i + 1) % 3]);
}

// The largest difference between weights, and the largest weight.
struct Distance {
  double most = 0, largest = 0;
};
Distance distance(const NamedTensors& a, const NamedTensors& b) {
  Distance out;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const torch::Tensor one = a[i].second.to(torch::kFloat64), other = b[i].second.to(torch::kFloat64);
    out.most = std::max(out.most, (one - other).abs().max().item<double>());
    out.largest = std::max(out.largest, other.abs().max().item<double>());
  }
  return out;
}

// Norms of weights and updates are sums in double, and shards add them in another order, so the trust ratio
// as a float may differ by one rounding. A step then differs by 2^-23 of its update, which is no larger than
// the largest weight, and by one rounding of the weight. Each of the 20 steps adds this difference.
RANKS_TEST(lamb_and_lars_have_the_norms_of_whole_tensors, 2, 4) {
  for (const Variant& variant : {Variant{"lamb", 1, {"trust_ratio=true"}}, Variant{"lars", 4, {}}}) {
    for (const char* parallel : {"zero1", "zero2"}) {
      const std::string what = text_of(variant) + ' ' + parallel;
      WholeRun run(std::to_string(process_group.ranks()) + "-norms-" + variant.name + parallel);
      EXPECT_EQ(run.go(&process_group, std::make_unique<ExactTask>(process_group.ranks()),
                       words_of(variant, process_group.ranks()) + Words{std::string("parallel=") + parallel}),
                "");
      EXPECT_TRUE(same_on_ranks(process_group, bytes_of(run.parameters))) << what;
      if (!process_group.leads()) continue;
      WholeRun one(std::to_string(process_group.ranks()) + "-norms-alone-" + variant.name + parallel);
      EXPECT_EQ(one.go(nullptr, std::make_unique<ExactTask>(1), words_of(variant, 1)), "");
      const Distance found = distance(run.parameters, one.parameters);
      EXPECT_LE(found.most, kSteps * 2 * 0x1p-23 * found.largest) << what;
    }
  }
}

Words text_words(ProcessGroup& process_group, const std::string& optimizer) {
  return {"data.train=" + process_group.broadcast_text(octavo_train::text_file()), "optimizer=" + optimizer,
          "max_steps=20", "eval_steps=null", "save_steps=null"};
}

WholeRun text_run(const std::string& name) {
  WholeRun run(name);
  run.yaml = run.text_yaml;
  return run;
}

double evaluated(const WholeRun& run) { return run.records("eval").at(0)["loss"].get<double>(); }

// Sums of two terms have only one result. The language model has dropout: masks depend on the sample, not on
// the rank.
RANKS_TEST(two_ranks_train_text_to_the_bits_of_one_process, 2) {
  const Words all = text_words(process_group, "adamw_8bit");
  int number = 0;
  for (const char* clip : {"max_grad_norm=1", "max_grad_norm=0"}) {
    for (const char* parallel : {"ddp", "zero1", "zero2"}) {
      // Shards add the clipped norm in another order.
      if (std::string(clip) == "max_grad_norm=1" && std::string(parallel) != "ddp") continue;
      WholeRun run = text_run("text-" + std::to_string(number++));
      EXPECT_EQ(run.go(&process_group, nullptr, all + Words{clip, std::string("parallel=") + parallel}), "");
      EXPECT_TRUE(same_on_ranks(process_group, bytes_of(run.parameters)));
      if (!process_group.leads()) continue;
      WholeRun one = text_run("text-alone-" + std::to_string(number));
      EXPECT_EQ(one.go(nullptr, nullptr, all + Words{clip} + passes(2)), "");
      EXPECT_TRUE(run.bits(kSteps) == one.bits(kSteps)) << parallel << ' ' << clip;
      // The shares of two ranks are added in double.
      EXPECT_NEAR(evaluated(run), evaluated(one), 8 * 0x1p-53 * evaluated(one));
    }
  }
}

// Three gradients are added in another order. The bound is the difference within one process between taking
// the same samples in one micro-batch and in three. A wrong batch, weight or mask differs a thousand times
// more.
RANKS_TEST(three_ranks_train_text_within_the_tolerance_of_sums, 3) {
  const Words all = text_words(process_group, "adamw");
  WholeRun run = text_run("near");
  EXPECT_EQ(run.go(&process_group, nullptr, all + Words{"parallel=zero2"}), "");
  EXPECT_TRUE(same_on_ranks(process_group, bytes_of(run.parameters)));
  if (!process_group.leads()) return;
  WholeRun three = text_run("near-passes"), once = text_run("near-once");
  EXPECT_EQ(three.go(nullptr, nullptr, all + passes(3)), "");
  EXPECT_EQ(once.go(nullptr, nullptr, all + Words{"per_device_train_batch_size=6"}), "");
  const double order = distance(once.parameters, three.parameters).most;
  EXPECT_GT(order, 0);
  EXPECT_LT(order, 1e-3) << "so it would say nothing";
  EXPECT_LE(distance(run.parameters, three.parameters).most, 8 * order);
  EXPECT_NEAR(evaluated(run), evaluated(three), 8 * std::abs(evaluated(once) - evaluated(three)) + 1e-6);
}

// With BatchNorm, a micro-batch uses the statistics of its own rows, on a rank as in one process. The running
// statistics are the mean over ranks, so they differ; weights do not.
RANKS_TEST(batch_norm_has_the_same_statistics_on_all_ranks, 2, 4) {
  for (const char* parallel : {"ddp", "zero2"}) {
    const std::string name = std::to_string(process_group.ranks()) + "-norm-" + parallel;
    WholeRun run(name);
    const Words all = {"optimizer=adamw_8bit", "max_grad_norm=0"};
    EXPECT_EQ(run.go(&process_group, nullptr, all + Words{std::string("parallel=") + parallel}), "");
    EXPECT_TRUE(same_on_ranks(process_group, bytes_of(run.parameters)));
    EXPECT_TRUE(same_on_ranks(process_group, bytes_of(run.buffers)));
    ASSERT_FALSE(run.buffers.empty());
    for (const auto& [buffer, tensor] : run.buffers)
      if (!tensor.is_floating_point()) {
        EXPECT_EQ(tensor.item<std::int64_t>(), kSteps) << buffer;
      }
    if (!process_group.leads() || process_group.ranks() != 2) continue;
    WholeRun one(name + "-alone");
    EXPECT_EQ(one.go(nullptr, nullptr, all + passes(2)), "");
    EXPECT_TRUE(bytes_of(run.parameters) == bytes_of(one.parameters)) << parallel;
  }
}

// From the fourth step on, the second of two ranks can read nothing in every other step.
class OftenNothing : public ExactTask {
 public:
  OftenNothing() : ExactTask(2) {}
  [[nodiscard]] octavo_train::Batch read(const octavo_train::Order& order, std::uint64_t first,
                                         std::int64_t rows) const override {
    const bool nothing = first >= 12 && first % 8 == 6;
    return ExactTask::read(order, first, nothing ? 0 : rows);
  }
};

// A rank without a micro-batch in a step sums gradients immediately, so it must first wait for its last
// update, which may still read them.
RANKS_TEST(a_rank_without_a_pass_waits_for_its_last_update, 2) {
  const auto trained = [&](const std::string& offload) {
    const test::Delays delays(offload == "none" ? 0 : 20000);
    WholeRun run("nothing-" + offload);
    EXPECT_EQ(
        run.go(&process_group, std::make_unique<OftenNothing>(),
               words_of({"adamw", 1, {}}, 2) + Words{"parallel=ddp", "max_steps=8", "offload=" + offload}),
        "");
    EXPECT_TRUE(same_on_ranks(process_group, bytes_of(run.parameters))) << offload;
    if (process_group.leads()) {
      EXPECT_EQ(run.state(8)["left_out"]["passes"], 3);
    }
    return bytes_of(run.parameters);
  };
  const std::string expected = trained("none");
  for (const char* offload : {"host", "stream"}) EXPECT_TRUE(trained(offload) == expected) << offload;
}

// Joins ranks 0 and 1 of the group to a separate process group.
std::unique_ptr<ProcessGroup> first_two(const ProcessGroup& process_group) {
  RankInfo rank_info = process_group.rank_info();
  rank_info.ranks = rank_info.local_ranks = 2;
  return ProcessGroup::join(rank_info, torch::kCPU, {.timeout = kPatience}).value();
}

RANKS_TEST(goes_on_with_other_numbers_of_ranks, 3) {
  const Variant variant{"adamw_4bit_8bit", 2, {"compute_dtype=bfloat16", "master_weights=stochastic"}};
  const Words all = words_of(variant, 3);
  const auto task = [] { return std::make_unique<ExactTask>(3); };
  WholeRun whole("resume-whole");
  EXPECT_EQ(whole.go(&process_group, task(), all + Words{"parallel=zero2", "save_steps=10"}), "");
  const Words from = {"resume_from_checkpoint=" + whole.checkpoint(10)};
  // The number of ranks stays the same, but the mode is another one.
  WholeRun same("resume-3");
  EXPECT_EQ(same.go(&process_group, task(), all + from + Words{"parallel=ddp"}), "");
  if (process_group.leads()) {
    EXPECT_TRUE(whole.bits(kSteps) == alone(variant).bits(kSteps));
    EXPECT_TRUE(same.bits(kSteps) == whole.bits(kSteps));
    // One process has six micro-batches in a step instead of two.
    WholeRun one("resume-1");
    EXPECT_EQ(one.go(nullptr, task(), all + from), "");
    EXPECT_TRUE(one.bits(kSteps) == whole.bits(kSteps));
  }
  if (process_group.rank() < 2) {
    const std::unique_ptr<ProcessGroup> two = first_two(process_group);
    WholeRun fewer("resume-2");
    EXPECT_EQ(fewer.go(two.get(), task(), all + from + Words{"parallel=zero1"}), "");
    EXPECT_TRUE(same_on_ranks(*two, bytes_of(fewer.parameters)));
    if (two->leads()) {
      EXPECT_TRUE(fewer.bits(kSteps) == whole.bits(kSteps));
    }
  }
  // Three batches in a step cannot be divided by two ranks.
  WholeRun odd("resume-odd");
  const Words odd_words = words_of({"adamw", 1, {}}, 3);
  EXPECT_EQ(odd.go(&process_group, task(), odd_words + Words{"max_steps=2"}), "");
  if (process_group.rank() < 2) {
    const std::unique_ptr<ProcessGroup> two = first_two(process_group);
    WholeRun refused("resume-refused");
    EXPECT_THAT(refused.go(two.get(), task(),
                           odd_words + Words{"max_steps=4", "resume_from_checkpoint=" + odd.checkpoint(2)}),
                AllOf(HasSubstr("its steps have 3 batches"), HasSubstr("use 1 or 3 ranks")));
  }
}

// fp32 states take 8 bytes per element once it has had a gradient; fp32 gradients take 4.
RANKS_TEST(states_and_gradients_have_the_bytes_of_the_layout, 2, 3, 4) {
  for (const std::string parallel : kModes) {
    WholeRun run(std::to_string(process_group.ranks()) + "-bytes-" + parallel);
    run.look = [&](const octavo_train::TrainingState& state) {
      const octavo_train::BucketLayout layout =
          make_bucket_layout(state.groups, process_group.ranks(), parallel != "ddp");
      std::int64_t own = 0, chunks = 0, buckets = 0, largest = 0;
      for (std::size_t i = 0; i < state.groups.parameters.size(); ++i)
        own += i == ExactModel::kUnused ? 0 : layout.piece(i, process_group.rank()).elements();
      for (std::size_t i = 0; i < layout.buckets().size(); ++i) {
        chunks += layout.chunk(i, process_group.rank()).elements();
        buckets += layout.buckets()[i].elements;
        largest = std::max(largest, layout.buckets()[i].elements);
      }
      EXPECT_EQ(state.optimizer->bytes().states, 8 * own) << parallel;
      EXPECT_EQ(state.gradients->bytes(), 4 * (parallel == "zero2" ? chunks : buckets)) << parallel;
      EXPECT_LE(state.gradients->communication_bytes(), parallel == "zero2" ? 2 * 4 * largest : 0);
      if (parallel != "ddp") {
        EXPECT_LE(own, (buckets + process_group.ranks() - 1) / process_group.ranks());
      }
    };
    EXPECT_EQ(run.go(&process_group, std::make_unique<ExactTask>(process_group.ranks()),
                     words_of({"adamw", 1, {}}, process_group.ranks()) + Words{"parallel=" + parallel}),
              "");
  }
}

}  // namespace
}  // namespace octavo_train::ranks
