// Tests init_rename, the mapping of parameter names: accepted values, writing them back, and the names that a
// rule gives.
// SPDX-License-Identifier: MIT
#include "tests/train/config_support.h"
#include "train/config/codec.h"
#include "train/config/config.h"

namespace octavo_train {
namespace {

YamlNode yaml(const std::string& text) { return read_yaml(text, {"test", false}).value(); }

std::string name_by(const std::string& from, const std::string& to, const std::string& name) {
  return renamed({from, to}, name).value_or("-");
}

TEST(InitRename, IsReadInItsOrderAndWrittenBack) {
  const auto rules =
      renames().read(yaml(R"({"z.*": "y.*", head.weight: "lm_head.weight", "a:b \"c\"": 'd,e'})"));
  ASSERT_TRUE(rules);
  EXPECT_THAT(*rules, ElementsAre(Rename{"z.*", "y.*"}, Rename{"head.weight", "lm_head.weight"},
                                  Rename{"a:b \"c\"", "d,e"}));
  EXPECT_EQ(renames().read(yaml(renames().write(*rules))), rules) << renames().write(*rules);
  EXPECT_EQ(renames().write({{"a.*", "b"}}), R"({"a.*": "b"})");
  EXPECT_EQ(renames().read(yaml("{}"))->size(), 0U);
  EXPECT_EQ(renames().read(yaml("null"))->size(), 0U);
  EXPECT_EQ(renames().write({}), "{}");
}

TEST(InitRename, WhatIsWrongIsNamedWithItsPlace) {
  const auto error = [](const std::string& value) {
    return parse("training:\n  init_from: x\n  init_rename: " + value + "\n", "run.yaml").status().message();
  };
  const std::string at = "run.yaml:3:16: training.init_rename: got ";
  const std::string expected = R"(, expected a mapping of patterns such as {"encoder.*": "model.encoder.*"})";
  EXPECT_EQ(error("encoder"), at + "encoder" + expected);
  EXPECT_EQ(error("[a, b]"), at + "a list" + expected);
  EXPECT_EQ(error(R"({"a.*": b.c})"),
            "run.yaml:3:24: training.init_rename.a.*: got b.c with 0 of *, expected 1: each * stands for the "
            "text that the * at the same position of the pattern matches");
  EXPECT_THAT(error(R"({ok: fine, "a.*": "*.*"})"),
              HasSubstr("init_rename.a.*: got *.* with 2 of *, expected 1"));
  EXPECT_THAT(error("{a: [b]}"), HasSubstr("init_rename.a: got a list, expected a name"));
  EXPECT_THAT(error("{a: null}"), HasSubstr("init_rename.a: got null, expected a name"));
  EXPECT_THAT(error("{a: ''}"), HasSubstr("init_rename.a: got nothing, expected a name"));
  EXPECT_THAT(error("{'': a}"), HasSubstr("the pattern is empty"));
}

TEST(InitRename, NeedsSomethingToRename) {
  EXPECT_THAT(
      parse("init_rename: {a: b}\n", "run.yaml").status().message(),
      HasSubstr("run.yaml:1:1: training.init_rename: got {\"a\": \"b\"}, but training.init_from is null"));
}

TEST(SaveBest, TakesTheMetricsOfTheTask) {
  const auto error = [](const std::string& text) { return parse(text, "run.yaml").status().message(); };
  EXPECT_EQ(error("training:\n  save_best: accuracy\n"),
            "run.yaml:2:3: training.save_best: got accuracy, expected loss, a metric of the task text");
  EXPECT_THAT(
      error("save_best_limit: 3\n"),
      HasSubstr("run.yaml:1:1: training.save_best_limit: got 3, but training.save_best is null (default)"));
  EXPECT_TRUE(parse("save_best: loss\nsave_best_limit: 3\n", "run.yaml").ok());
  for (const char* name : {"loss", "val_loss", "eval_loss"}) {
    const auto config = parse(std::string("save_best: ") + name + "\n", "run.yaml");
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->settings.training.save_best, "loss") << name << " is the same metric";
  }
  EXPECT_THAT(error("save_best: val_wer\n"), HasSubstr("got val_wer, expected loss"));
}

TEST(InitRename, MatchesWholeNames) {
  EXPECT_EQ(name_by("encoder.*", "model.encoder.*", "encoder.0.weight"), "model.encoder.0.weight");
  EXPECT_EQ(name_by("encoder.*", "model.encoder.*", "decoder.0.weight"), "-");
  EXPECT_EQ(name_by("encoder.*", "model.encoder.*", "my.encoder.0"), "-");
  EXPECT_EQ(name_by("encoder.", "model.encoder.", "encoder.0"), "-");
  EXPECT_EQ(name_by("*", "model.*", "a.b"), "model.a.b");
  EXPECT_EQ(name_by("model.*", "*", "model.a.b"), "a.b");
  EXPECT_EQ(name_by("*.gamma", "*.weight", "layers.3.norm.gamma"), "layers.3.norm.weight");
  EXPECT_EQ(name_by("*.gamma", "*.weight", "layers.3.norm.gamma_2"), "-");
  EXPECT_EQ(name_by("layers.*.attn.*", "blocks.*.attention.*", "layers.12.attn.q.bias"),
            "blocks.12.attention.q.bias");
  EXPECT_EQ(name_by("a*b*c", "<*|*>", "abbc"), "<|b>") << "each takes as little as it can";
  EXPECT_EQ(name_by("*a*", "*-*", "banana"), "b-nana");
  EXPECT_EQ(name_by("**", "*.*", "ab"), ".ab");
  EXPECT_EQ(name_by("a", "b", "a"), "b");
  EXPECT_EQ(name_by("a", "b", "aa"), "-");
  EXPECT_EQ(name_by("a*", "b*", "a"), "b");
}

}  // namespace
}  // namespace octavo_train
