// Parses configs for tests, under the name run.yaml.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

// Expects that the config is valid.
inline Config parsed(std::string_view text, const Words& words = {}) {
  auto config = parse(text, "run.yaml", words);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : parse("", "empty").value();
}
inline TrainingSettings training_of(std::string_view text, const Words& words = {}) {
  return parsed(text, words).settings.training;
}

// Expects that the config is not valid, and returns the error.
inline std::string error_of(std::string_view text, const Words& words = {}) {
  const auto config = parse(text, "run.yaml", words);
  EXPECT_FALSE(config.ok()) << text;
  return config.status().message();
}

}  // namespace octavo_train
