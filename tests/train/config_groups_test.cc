// Tests how parameter groups are read from YAML: values, errors with their place, and texts that read back.
// SPDX-License-Identifier: MIT
#include "tests/train/config_support.h"
#include "train/config/codec.h"
#include "train/config/config.h"

namespace octavo_train {
namespace {

YamlNode yaml(std::string_view text) { return read_yaml(text, {"run.yaml", true}).value(); }

std::vector<GroupSettings> groups(std::string_view text) {
  return parameter_groups().read(yaml(text)).value();
}

// Returns the problem as "line:column: part: message".
std::string problem(std::string_view text) {
  const YamlNode node = yaml(text);
  EXPECT_FALSE(parameter_groups().read(node).has_value()) << text;
  const Problem found = parameter_groups().problem(node);
  return std::to_string(found.place.line) + ":" + std::to_string(found.place.column) + ": " + found.part +
         ": " + found.message;
}

TEST(ConfigGroups, Values) {
  const auto read = groups(
      "- params: [\"encoder.*\", head]\n"
      "  weight_decay: 0\n"
      "  learning_rate: 1e-4\n"
      "  state: 4bit-rank1\n"
      "- {params: \"*.bias\", freeze: true}\n"
      "- {params: scale, freeze: false}\n");
  ASSERT_EQ(read.size(), 3U);
  EXPECT_THAT(read[0].params, ElementsAre("encoder.*", "head"));
  EXPECT_EQ(read[0].weight_decay, 0.0);
  EXPECT_EQ(read[0].learning_rate, 1e-4);
  EXPECT_EQ(read[0].state, octavo::StateFormat::int4_rank1);
  EXPECT_EQ(read[0].freeze, std::nullopt);
  EXPECT_THAT(read[1].params, ElementsAre("*.bias"));
  EXPECT_EQ(read[1].freeze, true);
  EXPECT_EQ(read[2].freeze, false);
  EXPECT_THAT(groups("[]"), IsEmpty());
  EXPECT_THAT(groups("null"), IsEmpty());
  for (const octavo::StateFormat format : octavo::all_state_formats())
    EXPECT_EQ(groups("[{params: a, state: " + std::string(name(format)) + "}]")[0].state, format);
}

TEST(ConfigGroups, WhatIsWrittenReadsBack) {
  for (const char* text :
       {"[]", "[{params: [\"a*\", \"b, c\"], weight_decay: 0.25, learning_rate: 1e-7, state: 8bit}]",
        "[{params: \"null\", freeze: false}, {params: \"[ab]?.x\", freeze: true}]",
        "[{params: \"say \\\"it\\\"\", state: 4bit/8bit}]"}) {
    const auto read = groups(text);
    EXPECT_TRUE(groups(parameter_groups().write(read)) == read) << parameter_groups().write(read);
  }
  EXPECT_EQ(parameter_groups().write(groups("[{params: \"a*\", learning_rate: 1e-4, state: 8bit}]")),
            "[{params: \"a*\", learning_rate: 1.0e-04, state: \"8bit\"}]");
}

TEST(ConfigGroups, Problems) {
  EXPECT_THAT(problem("3"), HasSubstr("1:1: : got 3, expected a list of mappings such as"));
  EXPECT_THAT(problem("{params: a}"), HasSubstr("got a mapping, expected a list"));
  EXPECT_THAT(problem("- a"), HasSubstr("1:3: [0]: got a, expected a mapping with params, weight_decay,"));
  EXPECT_THAT(problem("- {params: a, freeze: true}\n- params: b\n  weight_decay: -1"),
              HasSubstr("3:17: [1].weight_decay: got -1, expected a number ≥ 0"));
  EXPECT_THAT(problem("- params: b\n  learning_rate: 0"),
              HasSubstr("2:18: [0].learning_rate: got 0, expected a number above 0"));
  EXPECT_THAT(problem("- {params: b, state: 9bit}"),
              HasSubstr("[0].state: got 9bit, expected one of fp32, bf16, 8bit, 4bit"));
  EXPECT_THAT(problem("- {params: b, state: \"\"}"), HasSubstr("[0].state: got the text \"\""));
  EXPECT_THAT(problem("- {params: b, freeze: maybe}"),
              HasSubstr("[0].freeze: got maybe, expected true or false"));
  EXPECT_THAT(problem("- {params: b, weigth_decay: 0}"),
              HasSubstr("1:15: [0].weigth_decay: unknown key; did you mean weight_decay?"));
  EXPECT_THAT(
      problem("- {params: b, momentum: 0}"),
      HasSubstr("unknown key; the keys of a group are params, weight_decay, learning_rate, state, freeze"));
  EXPECT_THAT(problem("- {params: [], freeze: true}"),
              HasSubstr("[0].params: got a list, expected a pattern"));
  EXPECT_THAT(problem("- {params: [a, {b: c}], freeze: true}"), HasSubstr("[0].params: got a list"));
  EXPECT_THAT(problem("- {freeze: true}"), HasSubstr("[0]: the group has no params; name its parameters"));
  EXPECT_THAT(problem("- {params: a}"), HasSubstr("[0]: the group has no effect; give one of"));
  EXPECT_THAT(problem("- {params: a, freeze: true, state: 8bit}"),
              HasSubstr("[0]: freeze is true, so the parameters are not trained"));
}

TEST(ConfigGroups, NoDecay) {
  const auto read = [](std::string_view text) { return no_decay_choice().read(yaml(text)); };
  EXPECT_TRUE(read("auto") == (NoDecay{NoDecay::Kind::automatic, {}}));
  EXPECT_TRUE(read("none") == NoDecay{});
  EXPECT_TRUE(read("null") == NoDecay{});
  EXPECT_TRUE(read("\"*.bias\"") == (NoDecay{NoDecay::Kind::patterns, {"*.bias"}}));
  EXPECT_TRUE(read("[\"auto\", b]") == (NoDecay{NoDecay::Kind::patterns, {"auto", "b"}}));
  EXPECT_TRUE(read("\"auto\"") == (NoDecay{NoDecay::Kind::patterns, {"auto"}}));
  EXPECT_FALSE(read("{a: b}").has_value());
  EXPECT_FALSE(read("[]").has_value());
  for (const char* text : {"auto", "none", "\"*.bias\"", "\"auto\"", "[a, \"b*\"]", "\"none\""})
    EXPECT_TRUE(read(no_decay_choice().write(*read(text))) == *read(text)) << text;
}

TEST(ConfigGroups, ErrorsOfAConfigNameThePart) {
  const std::string start = "training:\n  optimizer: adamw_8bit\n  groups:\n";
  EXPECT_THAT(error_of(start + "    - {params: a, freeze: true}\n    - {params: b, state: 9bit}\n"),
              HasSubstr("run.yaml:5:26: training.groups[1].state: got 9bit, expected one of fp32, bf16,"));
  EXPECT_THAT(error_of("", {"groups=[{params: a, freze: true}]"}),
              HasSubstr("command line: training.groups[0].freze: unknown key; did you mean freeze?"));
  EXPECT_THAT(error_of("", {"groups=3"}), HasSubstr("command line: training.groups: got 3, expected a list"));
  EXPECT_THAT(error_of("no_decay: {a: b}\n"),
              HasSubstr("run.yaml:1:11: training.no_decay: got a mapping, expected auto"));
}

TEST(ConfigGroups, OfAConfig) {
  const std::string text =
      "training:\n  no_decay: [\"*.bias\"]\n  groups:\n    - {params: \"a*\", state: 4bit}\n";
  const auto config = parse(text, "run.yaml").value();
  ASSERT_EQ(config.settings.training.groups.size(), 1U);
  EXPECT_EQ(config.settings.training.groups[0].state, octavo::StateFormat::int4);
  EXPECT_THAT(config.settings.training.no_decay.patterns, ElementsAre("*.bias"));
  const auto again = parse(to_yaml(config.settings), "saved.yaml").value();
  EXPECT_TRUE(again.settings.training.groups == config.settings.training.groups);
  EXPECT_TRUE(again.settings.training.no_decay == config.settings.training.no_decay);
  const auto plain = parse("", "run.yaml").value();
  EXPECT_THAT(plain.settings.training.groups, IsEmpty());
  EXPECT_EQ(plain.settings.training.no_decay.kind, NoDecay::Kind::automatic);
  // Groups make another experiment; converting states does not.
  EXPECT_THAT(experiment_differences(plain.settings, config.settings), testing::SizeIs(2));
  EXPECT_THAT(
      experiment_differences(
          plain.settings, parse("", "run.yaml", std::vector<std::string>{"convert_states=true"})->settings),
      IsEmpty());
}

}  // namespace
}  // namespace octavo_train
