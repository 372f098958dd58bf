// Tests the keys of FP8 matmuls: spellings, defaults, limits, and combinations with other keys.
// SPDX-License-Identifier: MIT
#include "tests/train/config_support.h"
#include "train/config/config.h"

namespace octavo_train {
namespace {

Fp8Settings fp8_of(std::string_view text, const Words& words = {}) {
  return parsed(text, words).settings.training.fp8;
}

TEST(Fp8Config, IsOffAndHasTheDefaultsOfTheCore) {
  const Fp8Settings fp8 = fp8_of("");
  EXPECT_FALSE(fp8.enabled);
  EXPECT_EQ(octavo::fp8::text(fp8.recipe), octavo::fp8::text(octavo::fp8::Settings{}));
  EXPECT_EQ(fp8.select, Fp8Select::measure);
  EXPECT_EQ(fp8.fallback, Fp8Fallback::error);
}

TEST(Fp8Config, AMappingDottedWordsAndFlatOnesAreTheSame) {
  const Fp8Settings all[] = {
      fp8_of("training:\n  fp8: {enabled: true, format: e4m3, recipe: current, amax_history_len: 16,\n"
             "        amax_compute_algo: most_recent, margin: 2, select: always, fallback: bf16}"),
      fp8_of("training: {fp8.enabled: true, fp8.format: e4m3, fp8.recipe: current,\n"
             "  fp8.amax_history_len: 16, fp8.amax_compute_algo: most_recent, fp8.margin: 2,\n"
             "  fp8.select: always, fp8.fallback: bf16}"),
      fp8_of("use_fp8: true\nfp8_format: e4m3\nfp8_amax_history_len: 16\nFP8_AMAX_COMPUTE_ALGO: most_recent",
             {"fp8.recipe=current", "fp8.margin=2", "training.fp8.select=always", "fp8.fallback=bf16"}),
  };
  for (const Fp8Settings& fp8 : all) {
    EXPECT_TRUE(fp8.enabled);
    EXPECT_EQ(fp8.recipe.format, octavo::fp8::Format::e4m3);
    EXPECT_EQ(fp8.recipe.recipe, octavo::fp8::Recipe::current);
    EXPECT_EQ(fp8.recipe.amax_history_len, 16);
    EXPECT_EQ(fp8.recipe.amax_compute_algo, octavo::fp8::AmaxAlgo::most_recent);
    EXPECT_EQ(fp8.recipe.margin, 2);
    EXPECT_EQ(fp8.select, Fp8Select::always);
    EXPECT_EQ(fp8.fallback, Fp8Fallback::bf16);
  }
}

TEST(Fp8Config, AWrongValueIsToldWhatIsAllowed) {
  EXPECT_EQ(error_of("training:\n  fp8:\n    format: e3m4"),
            "run.yaml:3:13: training.fp8.format: got e3m4, expected hybrid, e4m3 or e5m2");
  EXPECT_EQ(error_of("training: {fp8: {recipe: mxfp8}}"),
            "run.yaml:1:26: training.fp8.recipe: got mxfp8, expected delayed, current, rowwise or block");
  EXPECT_EQ(
      error_of("FP8_AMAX_COMPUTE_ALGO = \"mean\""),
      "run.yaml:1:25: training.fp8.amax_compute_algo: got the text \"mean\", expected max or most_recent");
  EXPECT_EQ(error_of("fp8_amax_history_len: 0"),
            "run.yaml:1:23: training.fp8.amax_history_len: got 0, expected an integer from 1 to 65536");
  EXPECT_THAT(error_of("training: {fp8: {margin: 17}}"),
              HasSubstr("got 17, expected an integer from 0 to 16"));
  EXPECT_THAT(error_of("training: {fp8: {select: never}}"), HasSubstr("expected measure or always"));
  EXPECT_THAT(error_of("training: {fp8: {fallback: fp16}}"), HasSubstr("expected error or bf16"));
  EXPECT_THAT(error_of("training: {fp8: true}"), HasSubstr("fp8: got true, expected a mapping"));
  EXPECT_THAT(error_of("training: {fp8: {formt: e4m3}}"), HasSubstr("did you mean training.fp8.format?"));
  EXPECT_THAT(error_of("use_fp8: true\ntraining: {fp8: {enabled: true}}"), HasSubstr("given twice"));
}

TEST(Fp8Config, WhatOnlyFp8UsesIsSaidToHaveNoEffect) {
  EXPECT_THAT(parsed("training: {fp8: {format: e4m3}}").notes,
              ElementsAre("run.yaml:1:18: training.fp8.format: without effect: FP8 is off "
                          "(training.fp8.enabled: true, or use_fp8: true)"));
  EXPECT_THAT(parsed("training: {fp8: {enabled: false, format: e4m3}}").notes, IsEmpty());
  EXPECT_THAT(parsed("training: {fp8: {enabled: true, format: e4m3}}").notes, IsEmpty());
  // A saved config has every key.
  EXPECT_THAT(parsed(to_yaml(parsed("").settings)).notes, IsEmpty());
}

TEST(Fp8Config, GoesWithEveryOptimizerPrecisionAndPlaceOfStates) {
  for (const octavo::Algorithm algorithm : octavo::all_algorithms()) {
    for (const octavo::StateFormat state : octavo::all_state_formats()) {
      for (const char* type : {"float32", "bfloat16", "float16"}) {
        const std::string optimizer =
            std::string(name(algorithm)) +
            (state == octavo::StateFormat::fp32 ? "" : "_" + std::string(name(state)));
        const Words words = {"use_fp8=true",   "optimizer=" + optimizer,
                             "offload=host",   std::string("compute_dtype=") + type,
                             "parallel=zero2", "gradient_checkpointing=true"};
        const auto config = parse("", "run.yaml", words);
        EXPECT_TRUE(config.ok()) << optimizer << ' ' << type << ": " << config.status().message();
      }
    }
  }
}

TEST(Fp8Config, ARunGoesOnWithTheSameOneAndReadsItsOwnYaml) {
  const Settings on = parsed("use_fp8: true\nfp8_format: e5m2\nfp8_amax_history_len: 7").settings;
  const Fp8Settings again = fp8_of(to_yaml(on));
  EXPECT_TRUE(again.enabled);
  EXPECT_EQ(octavo::fp8::text(again.recipe), octavo::fp8::text(on.training.fp8.recipe));
  EXPECT_THAT(experiment_differences(parsed("").settings, parsed("use_fp8: true").settings, 1, 1),
              ElementsAre("training.fp8.enabled: false -> true"));
  EXPECT_THAT(experiment_differences(on, parsed(to_yaml(on), {"fp8.fallback=bf16"}).settings, 1, 1),
              IsEmpty());
}

TEST(Fp8Config, TheExamplesDifferInPrecisionAlone) {
  const auto example = [](const std::string& name) {
    const auto config = load(OCTAVO_TEST_DOCS_DIR "/../examples/train/bdh_" + name + ".yaml");
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? config->settings : Settings();
  };
  const auto changes = [&](const std::string& name) {
    return experiment_differences(example("fp32"), example(name), 1, 1);
  };
  const std::string bf16 = "training.compute_dtype: float32 -> bfloat16";
  const std::string fp8 = "training.fp8.enabled: false -> true";
  const auto states = [](const std::string& name) { return "training.optimizer: adamw -> " + name; };
  EXPECT_THAT(changes("bf16"), ElementsAre(bf16));
  EXPECT_THAT(changes("bf16_8bit"), ElementsAre(states("adamw_8bit"), bf16));
  EXPECT_THAT(changes("fp8"), ElementsAre(bf16, fp8));
  EXPECT_THAT(changes("fp8_4bit"), ElementsAre(states("adamw_4bit"), bf16, fp8));
}

}  // namespace
}  // namespace octavo_train
