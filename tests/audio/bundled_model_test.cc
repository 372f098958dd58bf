// Tests that the model description in a checkpoint is read back unchanged.
// SPDX-License-Identifier: MIT
#include "train/tasks/speech/archive/run_model.h"

#include "tests/train/text_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns a model whose every setting differs from the default.
BundledModel other_model() {
  BundledModel out;
  SpeechModelSettings& m = out.model;
  for (std::int64_t* size :
       {&m.mel_bands, &m.subsampling_channels, &m.encoder_layers, &m.width, &m.heads, &m.feed_forward,
        &m.kernel, &m.vocabulary, &m.predictor_width, &m.predictor_layers, &m.joint_width})
    *size += 3;
  m.freeze_batch_norm = true;
  m.head = SpeechHead::rnnt;
  m.durations = {0, 2};
  m.reduction = "mean";
  double share = 0.3;
  for (double* each : {&m.sigma, &m.omega, &m.dropout, &m.attention_dropout, &m.input_dropout,
                       &m.predictor_dropout, &m.joint_dropout})
    *each = share /= 1.1;
  out.features = {8000, 0.03, 0.02, 256, 20, 10, 3000, 0.9, 0.1, 1e-9};
  return out;
}

TEST(BundledModel, ComesBack) {
  for (const BundledModel& model : {BundledModel{}, other_model()}) {
    const TextFiles folder;
    for (const auto& [name, bytes] : checkpoint_extra_files(model, "pieces")) folder.write(name, bytes);
    const auto read = read_bundled_model(folder.path(""));
    ASSERT_TRUE(read.ok() && read->has_value()) << read.status().message();
    EXPECT_EQ(**read, model);
    EXPECT_EQ(checkpoint_extra_files(**read, ""), checkpoint_extra_files(model, ""));
  }
  EXPECT_NE(checkpoint_extra_files({}, ""), checkpoint_extra_files(other_model(), ""));
  const TextFiles empty;
  const auto none = read_bundled_model(empty.path(""));
  EXPECT_TRUE(none.ok() && !none->has_value());
}

TEST(BundledModel, WhatIsDamagedIsNamed) {
  const TextFiles folder;
  for (const char* text : {"", "{", "[]", "{\"model\": {\"head\": \"tdt\"}}",
                           "{\"model\": {\"head\": 3, \"mel_bands\": \"x\"}}"}) {
    folder.write(kKeptModel, text);
    EXPECT_THAT(read_bundled_model(folder.path("")).status().message(),
                AllOf(HasSubstr("model.json"), HasSubstr("damaged")))
        << text;
  }
}

}  // namespace
}  // namespace octavo_train
