// The mapping of names of init_rename: what it takes, how it is written back, and what a rule makes of a
// name.
// SPDX-License-Identifier: MIT
#include "train/config/init_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octavo::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(InitRename, WhatIsWrongIsNamed) {
  const auto advice = [](const std::string& text) {
    EXPECT_FALSE(renames().read(yaml(text))) << text;
    return renames().advice(yaml(text));
  };
  EXPECT_EQ(advice("encoder"), "");
  EXPECT_EQ(advice("[a, b]"), "");
  EXPECT_THAT(advice(R"({"a.*": b.c})"), HasSubstr("a.*: b.c has 0 of *, expected 1"));
  EXPECT_THAT(advice(R"({ok: fine, "a.*": "*.*"})"), HasSubstr("a.*: *.* has 2 of *, expected 1"));
  EXPECT_THAT(advice("{a: [b]}"), HasSubstr("a: got a list, expected a name"));
  EXPECT_THAT(advice("{a: null}"), HasSubstr("a: got null, expected a name"));
  EXPECT_THAT(advice("{a: ''}"), HasSubstr("a: a name is empty"));
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
}  // namespace octavo::train
