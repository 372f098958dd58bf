// Tests complete runs of a tiny model in this process: what a second start resumes, what it rejects, and what
// is logged. tests/apps starts the command itself.
// SPDX-License-Identifier: MIT
#include "train/console/signals.h"
#include "train/trainer.h"

#include "tests/train/run_support.h"
#include "tests/train/text_files.h"
#include "train/checkpoint/folder/checkpoint_folder.h"
#include "train/checkpoint/folder/folder_lock.h"
#include "train/io/checksums.h"
#include "train/tasks/text/text_files.h"

#include <csignal>
#include <fstream>

namespace octavo_train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class RunAgain : public testing::Test {
 protected:
  // Starts the run in out(). `words` override the settings of the tiny run.
  Result<Outcome> start(const Words& words = {}, const std::string& at = "") {
    Words all = {"n_layer=1",
                 "n_embd=16",
                 "n_head=2",
                 "mlp_internal_dim_multiplier=4",
                 "data.train=" + text_,
                 "block_size=16",
                 "dataloader_num_workers=0",
                 "max_eval_samples=2",
                 "learning_rate=3e-3",
                 "compute_dtype=float32",
                 "batch_size=2",
                 "max_steps=4",
                 "eval_steps=2",
                 "save_steps=2",
                 "logging_steps=1",
                 "device=cpu",
                 "sample_tokens=0",
                 "lr_scheduler=constant",
                 "output_dir=" + out(at)};
    all.insert(all.end(), words.begin(), words.end());
    const auto config = parse("", "test", all);
    if (!config.ok()) return config.status();
    console_.said.clear();
    return train(*config, console_);
  }

  void finishes(const Words& words = {}, const std::string& at = "") {
    const auto outcome = start(words, at);
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
    ASSERT_EQ(outcome->signal, 0);
  }

  std::string refuses(const Words& words = {}) {
    const auto outcome = start(words);
    EXPECT_FALSE(outcome.ok()) << console_.said;
    return outcome.status().message();
  }

  [[nodiscard]] TinyRun run(const std::string& at) const {
    return {files_.path("runs"), at.empty() ? "run" : at};
  }
  [[nodiscard]] std::string out(const std::string& at = "") const { return run(at).out; }

  [[nodiscard]] std::string bits(int step, const std::string& at = "") const {
    return run(at).bits(step).first;
  }

  // Removes a member from state.json, and updates the list of checksums.
  static void drop_from_state(const std::string& checkpoint, const std::string& member) {
    nlohmann::ordered_json state = nlohmann::ordered_json::parse(read_bytes(checkpoint + "/state.json"));
    ASSERT_EQ(state.erase(member), 1u);
    const std::string text = state.dump(2) + '\n', list = checkpoint + "/checksums.txt";
    std::ofstream(checkpoint + "/state.json") << text;
    auto files = parse_checksums(read_bytes(list), list);
    ASSERT_TRUE(files.ok());
    for (FileChecksum& file : *files) {
      if (file.name != "state.json") continue;
      Hasher hasher;
      hasher.add(std::as_bytes(std::span(text)));
      file.hash = hasher.hex(), file.size = text.size();
    }
    std::ofstream(list) << format_checksums(*files);
  }

  [[nodiscard]] std::vector<Json> records(const std::string& kind, const std::string& at = "") const {
    return run(at).records(kind);
  }

  [[nodiscard]] std::vector<std::string> messages(const std::string& kind) const {
    std::vector<std::string> out;
    for (const Json& record : records(kind)) out.push_back(record["message"]);
    return out;
  }

  TextFiles files_;
  std::string text_ = files_.write("text", numbered(4000));
  Recorder console_;
};

TEST_F(RunAgain, TheSameStartAgainSaysWhatToDo) {
  finishes();
  finishes();
  EXPECT_THAT(console_.said,
              AllOf(HasSubstr("nothing to do: the run is complete, " + out() +
                              "/checkpoint-4 is at step 4 of 4. To train it further: max_steps=8. "),
                    HasSubstr("output_dir=" + out() + "-2"), HasSubstr("octavo report " + out())));
  std::filesystem::create_directory(out() + "-2");
  finishes();
  EXPECT_THAT(console_.said, HasSubstr("output_dir=" + out() + "-3")) << "one that is free";
}

// The config is next to its text; the run is in the working directory of its first start.
TEST_F(RunAgain, GoesOnFromAnotherWorkingDirectory) {
  const std::filesystem::path before = std::filesystem::current_path();
  for (const char* each : {"conf", "first", "second"}) std::filesystem::create_directory(files_.path(each));
  files_.write("conf/near", numbered(4000));
  files_.write(
      "conf/run.yaml",
      "{n_layer: 1, n_embd: 16, n_head: 2, mlp_internal_dim_multiplier: 4, data.train: near, block_size: "
      "16, max_eval_samples: 2, dataloader_num_workers: 0, compute_dtype: float32, batch_size: 2, device: "
      "cpu, sample_tokens: 0, lr_scheduler: constant, save_steps: 2, output_dir: out}");
  const auto start_in = [&](const std::string& folder, const std::string& config, const Words& words) {
    std::filesystem::current_path(files_.path(folder));
    const auto loaded = load(config, words);
    console_.said.clear();
    const auto outcome = loaded.ok() ? train(*loaded, console_) : Result<Outcome>(loaded.status());
    std::filesystem::current_path(before);
    return outcome.ok() ? outcome->checkpoint : outcome.status().message();
  };
  EXPECT_EQ(start_in("first", "../conf/run.yaml", {"max_steps=2"}), "out/checkpoint-2") << console_.said;
  const std::string saved = files_.path("first/out");
  EXPECT_THAT(read_bytes(saved + "/config.yaml"), HasSubstr("output_dir: " + saved + "\n"));
  EXPECT_EQ(start_in("second", "../first/out/config.yaml", {"max_steps=4"}), saved + "/checkpoint-4")
      << console_.said;
  EXPECT_THAT(console_.said,
              AllOf(HasSubstr("resuming from " + saved + "/checkpoint-2"), HasSubstr("max_steps: 2 -> 4"),
                    Not(HasSubstr("data.train: ")), Not(HasSubstr("output_dir: "))));
  EXPECT_TRUE(std::filesystem::is_empty(files_.path("second")));
  // Paths that lead to the same place are not a change, and the bits equal those of a run that was not moved.
  EXPECT_EQ(start_in("first", "../conf/run.yaml", {"max_steps=6"}), "out/checkpoint-6") << console_.said;
  EXPECT_THAT(console_.said, AllOf(Not(HasSubstr("data.train: ")), Not(HasSubstr("output_dir: "))));
  EXPECT_EQ(start_in("second", "../conf/run.yaml", {"max_steps=6"}), "out/checkpoint-6") << console_.said;
  EXPECT_EQ(read_bytes(saved + "/checkpoint-6/model.safetensors"),
            read_bytes(files_.path("second/out/checkpoint-6/model.safetensors")));
  // The file is in neither place.
  std::filesystem::remove(files_.path("conf/near"));
  EXPECT_THAT(
      start_in("first", "../conf/run.yaml", {"max_steps=8"}),
      AllOf(HasSubstr("data.train: near: cannot open"), HasSubstr("/conf/near (beside the config) and "),
            HasSubstr(files_.path("first/near") + " (from the working directory)")));
}

TEST_F(RunAgain, AnotherExperimentIsRefusedAndLongerOnesGoOn) {
  finishes();
  const std::string before = bits(4);
  EXPECT_THAT(refuses({"learning_rate=1e-2", "max_steps=6"}),
              AllOf(HasSubstr("output_dir: " + out() + " has a run with other settings"),
                    HasSubstr("training.learning_rate: 0.003 -> 0.01"), Not(HasSubstr("max_steps: 4")),
                    HasSubstr("output_dir=" + out() + "-2"), HasSubstr("--resume")));
  EXPECT_THAT(refuses({"data.seed=5"}), HasSubstr("data.seed: 1337 -> 5"));
  EXPECT_EQ(bits(4), before);
  EXPECT_THAT(messages("change"), IsEmpty());

  finishes({"max_steps=6", "batch_size=1", "gradient_accumulation_steps=2", "logging_steps=2"});
  EXPECT_THAT(messages("change"), testing::Contains("training.max_steps: 4 -> 6"));
  finishes({"learning_rate=1e-2", "max_steps=8", "resume_from_checkpoint=changed"});
  EXPECT_THAT(console_.said,
              AllOf(HasSubstr("changed since the checkpoint: training.learning_rate: 0.003 -> 0.01"),
                    Not(HasSubstr("changed since the checkpoint: training.resume_from_checkpoint"))));
  EXPECT_THAT(messages("change"), testing::Contains("training.learning_rate: 0.003 -> 0.01"));
  EXPECT_THAT(read_bytes(out() + "/report.html"), HasSubstr("Changed when the run went on"));
  EXPECT_THAT(read_bytes(out() + "/config.yaml"), HasSubstr("resume_from_checkpoint: true"))
      << "the wish is not kept";
  finishes({"learning_rate=1e-2", "max_steps=9"});
}

TEST_F(RunAgain, ACheckpointThatIsNamedMayHaveOtherSettings) {
  finishes();
  finishes({"learning_rate=1e-2", "resume_from_checkpoint=" + out() + "/checkpoint-2"}, "second");
  EXPECT_THAT(console_.said, HasSubstr("changed since the checkpoint: training.learning_rate"));
  EXPECT_THAT(refuses({"resume_from_checkpoint=changed", "output_dir=" + out("third")}),
              HasSubstr("there is no checkpoint in " + out("third")));
  EXPECT_FALSE(std::filesystem::exists(out("third")));
}

TEST_F(RunAgain, ALargerBlockMustFitTheHeldOutText) {
  finishes();
  EXPECT_THAT(
      refuses({"block_size=400", "resume_from_checkpoint=changed"}),
      AllOf(HasSubstr("data.block_size: got 400"), HasSubstr("400 to evaluate on; use less than 400")));
  finishes({"block_size=399", "max_steps=5", "resume_from_checkpoint=changed"});
}

TEST_F(RunAgain, AnotherTextIsRefused) {
  finishes();
  const Json data = Json::parse(read_bytes(out() + "/checkpoint-4/state.json"))["data"];
  EXPECT_EQ(data["train"][0]["path"], text_);
  EXPECT_EQ(data["train"][0]["size"], 4000);
  EXPECT_EQ(data["train"][0]["held_out"], 400);
  EXPECT_EQ(data["train"][0]["hash"], fingerprint(text_, 4000).value());

  std::string other = numbered(4000);
  other[100] = static_cast<char>(other[100] ^ 1);
  files_.write("text", other);
  EXPECT_THAT(refuses({"max_steps=6"}), AllOf(HasSubstr("has a run with other data"),
                                              HasSubstr(text_ + " had 4000 bytes"), HasSubstr("--resume")));
  finishes({"max_steps=6", "resume_from_checkpoint=changed"});
  EXPECT_THAT(messages("change"), testing::Contains(HasSubstr(text_ + " had 4000 bytes")));
  finishes({"max_steps=8"});  // the run now uses the changed text

  // The same text in another file is not a change.
  finishes({"max_steps=9", "data.train=" + files_.write("moved", other)});
}

TEST_F(RunAgain, AGrownTextChangesNoBit) {
  finishes();
  std::filesystem::copy(out(), out("grown"), std::filesystem::copy_options::recursive);
  finishes({"max_steps=8"});
  files_.write("text", numbered(4000) + std::string(30000, 'x'));
  finishes({"max_steps=8"}, "grown");
  EXPECT_THAT(console_.said,
              HasSubstr("has grown from 4000 to 34000 bytes; this run still uses the first 4000"));
  EXPECT_EQ(bits(8, "grown"), bits(8));
  EXPECT_EQ(records("eval", "grown").back()["loss"], records("eval").back()["loss"]);
}

// A checkpoint of version 0.1 does not record its text. That version held out the end of all files together.
TEST_F(RunAgain, CheckpointsWithoutARecordOfTheTextGoOn) {
  const std::string second = files_.write("second", std::string(2000, 'y'));
  const Words two = {"data.train=[" + text_ + ", " + second + "]"};
  finishes(two);
  drop_from_state(out() + "/checkpoint-4", "data");
  Words longer = two;
  longer.push_back("max_steps=6");
  finishes(longer);
  const Json data = Json::parse(read_bytes(out() + "/checkpoint-6/state.json"))["data"];
  EXPECT_EQ(data["train"][0]["held_out"], 0);
  EXPECT_EQ(data["train"][1]["held_out"], 600);
}

TEST_F(RunAgain, AStageThatBeginsAtACheckpointIsRecorded) {
  const Words stages = {"data.stages=[10, 40, -1]", "max_steps=6", "save_steps=1"};
  finishes(stages, "whole");
  Words words = stages;
  words.push_back("resume_from_checkpoint=" + out("whole") + "/checkpoint-2");
  finishes(words);
  const auto of = [&](const std::string& at) {
    std::vector<std::vector<int>> stage;
    for (const Json& record : records("stage", at))
      stage.push_back({record["step"], record["stage"], record["samples"]});
    return stage;
  };
  EXPECT_EQ(of(""), of("whole"));
  EXPECT_THAT(of(""), ElementsAre(ElementsAre(2, 1, 40), ElementsAre(4, 2, 224)));
  EXPECT_EQ(bits(6), bits(6, "whole"));
}

TEST_F(RunAgain, ASignalSavesAndASecondOneToo) {
  for (const int signals : {1, 2}) {
    const std::string at = "signals" + std::to_string(signals);
    bool sent = false;
    console_.each = [&](const std::string& line) {
      if (sent || !line.starts_with("step 3/")) return;
      sent = true;
      for (int i = 0; i < signals; ++i) std::raise(SIGINT);
    };
    const auto outcome = start({"max_steps=100", "save_steps=null", "eval_steps=null"}, at);
    ASSERT_TRUE(outcome.ok()) << outcome.status().message();
    EXPECT_EQ(outcome->signal, SIGINT);
    EXPECT_EQ(outcome->checkpoint, out(at) + "/checkpoint-3");
    EXPECT_EQ(outcome->not_saved, "");
    EXPECT_TRUE(verify_checkpoint(outcome->checkpoint).ok());
    EXPECT_EQ(std::filesystem::exists(out(at) + "/report.html"), signals == 1) << "only the checkpoint, then";
  }
  console_.each = {};
}

TEST_F(RunAgain, ASignalSavesNoWeightsThatMayBeRuined) {
  finishes({"max_steps=2"});
  console_.each = [](const std::string& line) {
    if (line.starts_with("warning: step") && line.find("was skipped") != std::string::npos)
      std::raise(SIGTERM);
  };
  const auto outcome = start({"max_steps=100", "learning_rate=1e38", "max_grad_norm=0", "save_steps=null",
                              "eval_steps=null", "resume_from_checkpoint=changed"});
  console_.each = {};
  ASSERT_TRUE(outcome.ok()) << outcome.status().message();
  EXPECT_EQ(outcome->signal, SIGTERM);
  EXPECT_THAT(outcome->not_saved, HasSubstr("the weights may be ruined"));
  EXPECT_EQ(outcome->checkpoint, out() + "/checkpoint-2");
  EXPECT_EQ(list_checkpoints(out()).size(), 1u);
}

TEST_F(RunAgain, ARunWhoseLastStepsWereSkippedFailsAndSavesNothing) {
  finishes({"max_steps=2"});
  const auto outcome = start({"max_steps=8", "learning_rate=1e38", "max_grad_norm=0", "save_steps=null",
                              "eval_steps=null", "resume_from_checkpoint=changed"});
  ASSERT_FALSE(outcome.ok());
  EXPECT_THAT(
      outcome.status().message(),
      AllOf(HasSubstr("nothing is saved, because the gradients of the last "),
            HasSubstr(" steps were not finite and the weights may be ruined; to finish with these "
                      "weights, train one step further: max_steps=9. Otherwise try, the most likely "
                      "first: learning_rate=0.001 (it is 1e+38), max_grad_norm=1.0 (gradients are not "
                      "clipped), warmup_steps=10 (it is 0)"),
            HasSubstr("the last good checkpoint is " + out() + "/checkpoint-2")));
  EXPECT_EQ(outcome.status().code(), StatusCode::failed);  // exit code 1
  EXPECT_EQ(list_checkpoints(out()).size(), 1u);
  EXPECT_EQ(records("end").back()["reason"], "failed");
  EXPECT_FALSE(records("warning").empty());
}

// The advised number counts from the same step as the next start, also if a checkpoint is before the stage.
TEST_F(RunAgain, OneStepFurtherThanSkippedStepsIsOneStepFurther) {
  const Words bad = {"max_steps=2",
                     "max_samples=40",
                     "learning_rate=1e38",
                     "max_grad_norm=0",
                     "save_steps=null",
                     "eval_steps=null",
                     "resume_from_checkpoint=changed"};
  const auto advised = [&] {
    const auto outcome = start(bad);
    EXPECT_FALSE(outcome.ok());
    const std::string text = outcome.status().message(), begin = "train one step further: ";
    return text.substr(text.find(begin) + begin.size(), std::string("max_steps=N").size());
  };
  finishes({"max_samples=10", "max_steps=2"});
  EXPECT_EQ(advised(), "max_steps=5") << "the checkpoint of step 2 counts from step 0";
  finishes({"max_samples=40", "max_steps=5"});
  EXPECT_TRUE(std::filesystem::exists(out() + "/checkpoint-5"));

  finishes({"max_samples=60", "max_steps=2"});  // steps 6 and 7
  finishes({"max_samples=60", "max_steps=4"});  // 8 and 9: they count from step 5
  Words later = bad;
  later[0] = "max_steps=8", later[1] = "max_samples=60";  // to step 13
  const auto outcome = start(later);
  ASSERT_FALSE(outcome.ok());
  EXPECT_THAT(outcome.status().message(), HasSubstr("train one step further: max_steps=9"));
  finishes({"max_samples=60", "max_steps=9"});
  EXPECT_TRUE(std::filesystem::exists(out() + "/checkpoint-14"));
}

TEST_F(RunAgain, MoreSamplesTrainMaxStepsMore) {
  const auto first_step = [&](int step) {
    const Json state = Json::parse(read_bytes(out() + "/checkpoint-" + std::to_string(step) + "/state.json"));
    return state.value("first_step", 0);
  };
  finishes({"max_samples=10"});
  EXPECT_EQ(first_step(4), 0);
  finishes({"max_samples=40"});
  EXPECT_THAT(console_.said, AllOf(HasSubstr("resuming from " + out() +
                                             "/checkpoint-4, step 4 of 8; max_steps counts from step "
                                             "4, where max_samples was raised"),
                                   HasSubstr("stage 1 of 1: 40 samples, to step 8")));
  EXPECT_EQ(first_step(6), 4);
  EXPECT_EQ(first_step(8), 4);
  const std::string before = bits(8);

  // An unchanged start trains nothing, and prints how to train further.
  finishes({"max_samples=40"});
  EXPECT_THAT(console_.said,
              HasSubstr("nothing to do: the run is complete, " + out() +
                        "/checkpoint-8 is at step 8 of 8. To train it further: max_steps=8 (counted from "
                        "step 4), or a larger data.max_samples. "));
  EXPECT_THAT(refuses({"max_samples=10"}),
              testing::EndsWith(
                  "/checkpoint-8 is at step 8. To train it further: max_steps=8 (counted from step 4)"));
  EXPECT_EQ(bits(8), before);
  EXPECT_FALSE(std::filesystem::exists(out() + "/checkpoint-9"));
  finishes({"max_samples=40", "max_steps=8"});
  EXPECT_TRUE(std::filesystem::exists(out() + "/checkpoint-12"));
  finishes({"max_samples=-1"});
  EXPECT_EQ(first_step(16), 12);

  // The bits equal those of a run whose max_steps was raised by hand, because the rate is constant.
  finishes({"max_samples=10"}, "by_hand");
  finishes({"max_samples=40", "max_steps=8"}, "by_hand");
  EXPECT_EQ(bits(8, "by_hand"), before);
}

TEST_F(RunAgain, AStageOfMoreSamplesSurvivesAStop) {
  for (const int at : {4, 5, 7}) {
    const std::string name = "stopped" + std::to_string(at);
    finishes({"max_samples=10"}, name);
    console_.each = [&](const std::string& line) {
      const bool begins = at == 4 && line.starts_with("resuming from ");
      if (begins || line.starts_with("step " + std::to_string(at) + "/8")) std::raise(SIGTERM);
    };
    const auto stopped = start({"max_samples=40", "save_steps=null"}, name);
    console_.each = {};
    ASSERT_TRUE(stopped.ok()) << stopped.status().message();
    EXPECT_EQ(stopped->signal, SIGTERM);
    EXPECT_EQ(stopped->step, at);
    finishes({"max_samples=40"}, name);
    finishes({"max_samples=40"}, name);
    EXPECT_TRUE(std::filesystem::exists(out(name) + "/checkpoint-8"));
    EXPECT_THAT(console_.said, HasSubstr("/checkpoint-8 is at step 8 of 8"));
  }
  EXPECT_EQ(bits(8, "stopped5"), bits(8, "stopped7"));
}

TEST_F(RunAgain, ADataChangeThatLeavesNoStepIsAnError) {
  const Words epochs = {"max_steps=null", "num_train_epochs=1"};
  const auto with = [](Words words, const std::string& more) {
    words.push_back(more);
    return words;
  };
  finishes({"max_samples=40"});
  const std::string end = ". The run is complete, and no step is left: " + out() +
                          "/checkpoint-4 is at step 4. To train it further: ";
  EXPECT_EQ(refuses({"max_samples=10"}),
            "data.max_samples: got 10, but the run has trained on 40 samples" + end + "max_steps=8");
  EXPECT_EQ(refuses({"max_samples=40", "max_steps=3"}),
            "training.max_steps: got 3, which ends at step 3" + end + "max_steps=8");
  EXPECT_EQ(refuses({"data.stages=[40, -1]", "max_samples=-1"}),
            "data.stages: got -1 (224 samples) after 40 samples, but all steps end at step 4" + end +
                "max_steps=8");
  finishes({"max_samples=10", "max_steps=8"});  // as the message proposes

  finishes(with(epochs, "max_samples=-1"), "all");
  EXPECT_EQ(
      refuses({"max_steps=null", "num_train_epochs=1", "max_samples=500", "output_dir=" + out("all")}),
      "data.max_samples: got 500 (224 samples), but this adds no samples: the run has trained on all of "
      "them. The run is complete, and no step is left: " +
          out("all") + "/checkpoint-112 is at step 112. To train it further: num_train_epochs=2");
  EXPECT_THAT(refuses({"max_steps=null", "num_train_epochs=1", "max_samples=56", "output_dir=" + out("all")}),
              testing::EndsWith("To train it further: num_train_epochs=8"));
  finishes({"max_steps=null", "num_train_epochs=8", "max_samples=56"}, "all");
}

TEST(StopSignals, TheThirdCtrlCEndsTheProcess) {
  const auto interrupt = [](int times) {
    const StopSignals signals;
    for (int i = 0; i < times; ++i) std::raise(SIGINT);
    std::_Exit(StopSignals::received() == SIGINT && StopSignals::received_again() == (times > 1) ? 0 : 1);
  };
  EXPECT_EXIT(interrupt(1), testing::ExitedWithCode(0), "stopping after this step, with a checkpoint");
  EXPECT_EXIT(interrupt(2), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(interrupt(3), testing::KilledBySignal(SIGINT), "");
}

TEST_F(RunAgain, WhereTheTimeWentIsSaidAndRecorded) {
  finishes();
  const Json end = records("end").back();
  EXPECT_GT(end["evaluation_seconds"].get<double>(), 0);
  EXPECT_GT(end["checkpoint_seconds"].get<double>(), 0);
  EXPECT_LE(end["evaluation_seconds"].get<double>() + end["checkpoint_seconds"].get<double>(),
            end["seconds"].get<double>());
  EXPECT_THAT(console_.said, testing::ContainsRegex("time: .*, of which evaluations .*%, checkpoints .*%"));
  EXPECT_THAT(read_bytes(out() + "/report.html"),
              AllOf(HasSubstr("\"evaluation_seconds\":"), HasSubstr("\"checkpoint_seconds\":")));
}

TEST_F(RunAgain, TheLastSampleIsAsLongAsAskedFor) {
  finishes();
  EXPECT_THAT(records("sample"), IsEmpty());
  EXPECT_THAT(console_.said, Not(HasSubstr("a sample:")));
  finishes({"sample_tokens=7"}, "sample");
  EXPECT_THAT(console_.said, HasSubstr("a sample:"));
  EXPECT_EQ(records("sample", "sample").size(), 1u);
}

TEST_F(RunAgain, TheLockIsTakenBeforeTheCheckpointIsChosen) {
  finishes({"max_steps=2"});
  FolderLock other;
  ASSERT_TRUE(other.take(out()).ok());
  // A torn checkpoint would be reported if it were read.
  std::ofstream(out() + "/checkpoint-2/model.safetensors") << "torn";
  EXPECT_THAT(refuses(), HasSubstr("another octavo train is using " + out()));
  EXPECT_THAT(console_.said, Not(HasSubstr("not resumed from")));
}

TEST_F(RunAgain, FoldersAndPatterns) {
  std::filesystem::create_directory(files_.path("d"));
  files_.write("d/1.txt", numbered(3000)), files_.write("d/2.txt", std::string(1000, 'z'));
  finishes({"data.train=" + files_.path("d")}, "folder");
  finishes({"data.train=" + files_.path("d/*.txt")}, "pattern");
  finishes({"data.train=[" + files_.path("d/1.txt") + ", " + files_.path("d/2.txt") + "]"}, "list");
  EXPECT_EQ(bits(4, "pattern"), bits(4, "folder"));
  EXPECT_EQ(bits(4, "list"), bits(4, "folder"));
  EXPECT_THAT(refuses({"data.train=" + files_.path("nothing")}),
              HasSubstr("data.train: " + files_.path("nothing")));
  EXPECT_FALSE(std::filesystem::exists(out()));
}

}  // namespace
}  // namespace octavo_train
