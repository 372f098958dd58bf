// Tests the task `curve`, whose one file docs/guides/add_a_task.md shows, with complete runs.
// SPDX-License-Identifier: MIT
#include "tests/train/run_support.h"
#include "train/config/task_config.h"

namespace octavo_train {
namespace {

constexpr const char* kCurve = R"(model: {name: mlp}
data: {dataloader_num_workers: 0}
training:
  optimizer: adamw
  learning_rate: 1.0e-2
  lr_scheduler: constant
  compute_dtype: float32
  per_device_train_batch_size: 64
  per_device_eval_batch_size: 16
  max_steps: 300
  eval_steps: 100
  save_steps: 100
  device: cpu
)";

class CurveRun : public TinyRun {
 public:
  CurveRun(const TempFolder& folder, const std::string& name) : TinyRun(folder.path(), name) {
    yaml = kCurve + ("output_dir: \"" + out + "\"\n");
  }
};

TEST(Curve, OneFileIsATaskThatLearnsAndResumes) {
  const TempFolder folder;
  CurveRun whole(folder, "whole"), resumed(folder, "resumed");
  whole.finish();
  const auto evaluations = whole.records("eval");
  ASSERT_EQ(evaluations.size(), 3U);
  EXPECT_LT(evaluations.back().at("loss").get<double>(), 0.05) << "the mean square of a sine is 0.5";
  resumed.finish({"max_steps=100"});
  resumed.finish();
  EXPECT_EQ(resumed.bits(300), whole.bits(300));
}

TEST(Curve, ItsRuleNamesBothKeys) {
  const auto config = parse(kCurve, "run.yaml", Words{"held_out=9", "points=8"});
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(), testing::HasSubstr("held_out must be at most points"));
}

}  // namespace
}  // namespace octavo_train
