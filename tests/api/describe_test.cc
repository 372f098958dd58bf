// What the algorithms say of themselves, in C++ and through the C ABI.
// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <octavo/describe.h>
#include <octavo/layout.h>
#include <octavo/octavo.h>

#include <cstring>
#include <set>
#include <string>

namespace {

using octavo::Algorithm;
using octavo::Option;
using octavo::Range;
using ::testing::HasSubstr;

TEST(Describe, EveryAlgorithmIsWhole) {
  std::set<std::string_view> names;
  for (const octavo::AlgorithmInfo& info : octavo::algorithms()) {
    SCOPED_TRACE(info.name);
    EXPECT_TRUE(names.insert(info.name).second);
    EXPECT_EQ(octavo::parse_algorithm(info.name).value(), info.number);
    EXPECT_EQ(octavo::describe(info.number)->title, info.title);
    EXPECT_NE(info.decay, octavo::Decay::by_name);
    std::set<std::string_view> options;
    int switches = 0;
    for (const Option& option : info.options) {
      SCOPED_TRACE(option.name);
      EXPECT_TRUE(options.insert(option.name).second);
      EXPECT_TRUE(option.at >= 0 || option.switches);
      switches += option.switches ? 1 : 0;
      if (option.switches) {
        EXPECT_EQ(octavo::switch_bit(info.number, option.name), switches - 1);
      }
      octavo::HyperParams hyper = octavo::defaults(info.number);
      if (option.at < 0) continue;
      EXPECT_EQ(octavo::get(hyper, option), option.value);
      octavo::set(hyper, option, 1.0);
      EXPECT_EQ(octavo::get(hyper, option), 1.0);
    }
    EXPECT_TRUE(options.contains("lr") && options.contains("weight_decay"));
    // Every combination of switches, or none beyond those without switches.
    for (std::uint32_t bits = 0; bits < (1U << switches); ++bits) {
      EXPECT_GT(octavo::passes(info.number, bits), 0);
      for (const octavo::Slot& slot : octavo::slots(info.number, bits)) EXPECT_FALSE(slot.name.empty());
    }
    EXPECT_EQ(octavo::passes(info.number, 1U << switches), 0);
  }
}

TEST(Describe, AdamW) {
  const octavo::AlgorithmInfo& info = *octavo::describe(Algorithm::adamw);
  EXPECT_EQ(info.title, "AdamW");
  EXPECT_EQ(info.decay, octavo::Decay::decoupled);
  EXPECT_EQ(octavo::family_of(Algorithm::adam), octavo::family_of(Algorithm::adamw));
  EXPECT_NE(octavo::family_of(Algorithm::adam), octavo::family_of(Algorithm::lion));
  const auto three = octavo::slots(Algorithm::adamw, 1);
  ASSERT_EQ(three.size(), 3U);
  EXPECT_EQ(three[2].name, "max_exp_avg_sq");
  EXPECT_EQ(octavo::slots(Algorithm::adamw, 0).size(), 2U);
  EXPECT_EQ(octavo::slots(Algorithm::sgd, 0).size(), 0U);
  EXPECT_EQ(octavo::describe(static_cast<Algorithm>(999)), nullptr);
}

TEST(Describe, SwitchesThatAnAlgorithmDoesNotHaveAreRefused) {
  octavo::GroupConfig config;
  config.switches = 2;
  const auto bad = octavo::layout(config, {});
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.status().message(), HasSubstr("[adamw] switches: got 2"));
  config.switches = 1;
  EXPECT_EQ(octavo::layout(config, {}).value().slots, 3);  // amsgrad
}

TEST(Describe, TheAbiSaysTheSame) {
  ASSERT_EQ(octavo_algorithm_count(), static_cast<int32_t>(octavo::algorithms().size()));
  for (int32_t i = 0; i < octavo_algorithm_count(); ++i) {
    const octavo::AlgorithmInfo& info = octavo::algorithms()[static_cast<std::size_t>(i)];
    SCOPED_TRACE(info.name);
    octavo_algorithm_info c{};
    c.struct_size = sizeof c;
    ASSERT_EQ(octavo_algorithm(i, &c), 0U);
    EXPECT_EQ(c.name, info.name);
    EXPECT_EQ(c.title, info.title);
    EXPECT_EQ(c.number, static_cast<uint32_t>(info.number));
    EXPECT_EQ(c.decay, static_cast<uint32_t>(info.decay));
    ASSERT_EQ(c.options, static_cast<int32_t>(info.options.size()));
    for (int32_t k = 0; k < c.options; ++k) {
      const Option& option = info.options[static_cast<std::size_t>(k)];
      octavo_option_info o{};
      o.struct_size = sizeof o;
      ASSERT_EQ(octavo_algorithm_option(i, k, &o), 0U);
      EXPECT_EQ(o.name, option.name);
      EXPECT_EQ(std::string_view(o.tuple), option.tuple);
      EXPECT_EQ(o.value, option.value);
      EXPECT_EQ(o.offset >= 0, option.at >= 0);
      EXPECT_EQ(o.switch_bit >= 0, option.switches);
    }
    EXPECT_EQ(octavo_algorithm_slots(i, 0), static_cast<int32_t>(octavo::slots(info.number, 0).size()));
    EXPECT_EQ(octavo_algorithm_slots(i, 1U << 30), -1);
  }
  octavo_algorithm_info c{};
  c.struct_size = sizeof c;
  EXPECT_NE(octavo_algorithm(-1, &c), 0U);
  EXPECT_THAT(octavo_last_error(), HasSubstr("index: got -1, expected 0 to"));
  octavo_slot_info slot{};
  slot.struct_size = sizeof slot;
  EXPECT_NE(octavo_algorithm_slot(0, 0, 2, &slot), 0U);
  EXPECT_THAT(octavo_last_error(), HasSubstr("slot: got 2, expected 0 to 1"));
}

// A wrong number, written through the offset of an option, is refused under the option's name.
TEST(Describe, OffsetsReachTheEngine) {
  for (int32_t i = 0; i < octavo_algorithm_count(); ++i) {
    octavo_algorithm_info c{};
    c.struct_size = sizeof c;
    ASSERT_EQ(octavo_algorithm(i, &c), 0U);
    octavo_engine* engine = nullptr;
    ASSERT_EQ(octavo_engine_create(c.number, &engine), 0U) << octavo_last_error();
    for (int32_t k = 0; k < c.options; ++k) {
      octavo_option_info o{};
      o.struct_size = sizeof o;
      ASSERT_EQ(octavo_algorithm_option(i, k, &o), 0U);
      if (o.offset < 0 || o.range == static_cast<uint32_t>(Range::flag)) continue;
      octavo_step_args args{};
      args.struct_size = sizeof args;
      ASSERT_EQ(octavo_step_args_init(&args), 0U);
      const double wrong = o.range == static_cast<uint32_t>(Range::any) ? HUGE_VAL : -1.0;
      std::memcpy(reinterpret_cast<char*>(&args) + o.offset, &wrong, sizeof wrong);
      EXPECT_NE(octavo_engine_set_group(engine, 0, 0, &args, 0, 0), 0U) << c.name << " " << o.name;
      EXPECT_THAT(octavo_last_error(), HasSubstr(std::string(o.name) + ": got")) << c.name;
    }
    octavo_engine_destroy(engine);
  }
}

}  // namespace
