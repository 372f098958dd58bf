// Tests how a config's relative paths are resolved: relative to the file, or to the working directory.
// SPDX-License-Identifier: MIT
#include "tests/train/config_support.h"
#include "train/config/paths.h"

#include "tests/train/text_files.h"
#include "train/config/task_config.h"
#include "train/tasks/text/settings.h"

namespace octavo_train {
namespace {

using Paths = std::vector<std::string>;

// Makes two folders: one contains a config, the other is the working directory.
class ConfigPaths : public testing::Test {
 protected:
  ConfigPaths() {
    for (const char* each : {"conf", "conf/books", "here", "here/books"})
      std::filesystem::create_directory(files_.path(each));
    std::filesystem::current_path(files_.path("here"));
  }
  ~ConfigPaths() override { std::filesystem::current_path(before_); }

  [[nodiscard]] Settings loaded(const std::string& text, const Words& words = {},
                                const std::string& by = "../conf/run.yaml") const {
    files_.write("conf/run.yaml", text);
    const auto config = load(by, words);
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? config->settings : Settings();
  }
  [[nodiscard]] Paths train_of(const std::string& text, const Words& words = {},
                               const std::string& by = "../conf/run.yaml") const {
    return loaded(text, words, by).task_settings.get<TextSettings>().train.value_or(Paths());
  }

  std::filesystem::path before_ = std::filesystem::current_path();
  TextFiles files_;
};

TEST_F(ConfigPaths, BesideTheFileComesBeforeTheWorkingDirectory) {
  files_.write("here/a.txt", "there");
  EXPECT_THAT(train_of("train: a.txt"), ElementsAre("a.txt")) << "only in the working directory";
  files_.write("conf/a.txt", "here");
  EXPECT_THAT(train_of("train: a.txt"), ElementsAre("../conf/a.txt")) << "in both";
  std::filesystem::remove(files_.path("here/a.txt"));
  EXPECT_THAT(train_of("train: a.txt"), ElementsAre("../conf/a.txt")) << "only beside the file";
  EXPECT_THAT(train_of("train: ./a.txt"), ElementsAre("../conf/a.txt"));
  EXPECT_THAT(train_of("train: a.txt", {}, files_.path("conf/run.yaml")),
              ElementsAre(files_.path("conf/a.txt")));
  // Each entry of a list is resolved separately; folders and patterns too.
  files_.write("here/b.txt", "b");
  files_.write("here/books/c.md", "c");
  EXPECT_THAT(
      train_of("train: [b.txt, a.txt, books, '*.txt', 'books/*.md', 'books/*.none']"),
      ElementsAre("b.txt", "../conf/a.txt", "../conf/books", "../conf/*.txt", "books/*.md", "books/*.none"));
  EXPECT_THAT(train_of("train: [" + files_.path("here/b.txt") + ", ../here/b.txt]"),
              ElementsAre(files_.path("here/b.txt"), "../conf/../here/b.txt"));
}

TEST_F(ConfigPaths, TheCommandLineMeansTheWorkingDirectory) {
  files_.write("conf/a.txt", "a");
  EXPECT_THAT(train_of("", {"data.train=a.txt"}), ElementsAre("a.txt"));
  const Settings s = loaded("train: a.txt\nvalidation: a.txt", {"validation=a.txt"});
  EXPECT_THAT(*s.task_settings.get<TextSettings>().train, ElementsAre("../conf/a.txt"));
  EXPECT_THAT(*s.task_settings.get<TextSettings>().validation, ElementsAre("a.txt"));
}

TEST_F(ConfigPaths, WhatARunMakesIsMadeInTheWorkingDirectory) {
  std::filesystem::create_directories(files_.path("conf/runs/run"));
  EXPECT_EQ(loaded("output_dir: runs/run").output_dir, "runs/run");
  EXPECT_EQ(loaded("").output_dir, "runs/run");
  std::filesystem::create_directory(files_.path("conf/checkpoint-2"));
  EXPECT_EQ(loaded("resume_from_checkpoint: checkpoint-2").training.resume_from_checkpoint.path,
            "../conf/checkpoint-2")
      << "what it reads is not";
  std::filesystem::create_directory(files_.path("conf/true"));
  EXPECT_EQ(loaded("resume_from_checkpoint: true").training.resume_from_checkpoint, (Resume{true, ""}));
}

TEST_F(ConfigPaths, WhatIsInNeitherPlaceNamesBoth) {
  const std::string here = "/here/a.txt (from the working directory)";
  const auto looked = [&](const std::string& text, const Words& words = {},
                          const std::string& by = "../conf/run.yaml") {
    std::string out = places_looked_at(loaded(text, words, by), "a.txt");
    for (auto at = out.find(files_.path("")); at != std::string::npos; at = out.find(files_.path("")))
      out.erase(at, files_.path("").size() - 1);
    return out;
  };
  const std::string both = "; looked at /conf/a.txt (beside the config) and " + here;
  EXPECT_EQ(looked("train: a.txt", {}, files_.path("conf/run.yaml")), both);
  EXPECT_EQ(looked("train: a.txt"), both);
  EXPECT_EQ(looked("resume_from_checkpoint: a.txt", {}, files_.path("conf/run.yaml")), both);
  EXPECT_EQ(looked("", {"data.train=a.txt"}), "; looked at " + here);
  std::filesystem::current_path(files_.path("conf"));
  for (const std::string& by :
       {std::string("run.yaml"), std::string("./run.yaml"), files_.path("conf/run.yaml")})
    EXPECT_EQ(looked("train: a.txt", {}, by), "; looked at /conf/a.txt (from the working directory)") << by;
  EXPECT_EQ(places_looked_at(Settings(), "/a.txt"), "");
}

TEST_F(ConfigPaths, AbsoluteOnesMeanTheSameEverywhere) {
  files_.write("conf/a.txt", "a");
  files_.write("here/b.txt", "b");
  const Settings saved = with_absolute_paths(
      loaded("train: [a.txt, ./b.txt, none.txt]\noutput_dir: runs/x\nresume_from_checkpoint: c"));
  EXPECT_THAT(
      *saved.task_settings.get<TextSettings>().train,
      ElementsAre(files_.path("conf/a.txt"), files_.path("here/b.txt"), files_.path("here/none.txt")));
  EXPECT_EQ(saved.task_settings.get<TextSettings>().validation, std::nullopt);
  EXPECT_EQ(saved.output_dir, files_.path("here/runs/x"));
  EXPECT_EQ(saved.training.resume_from_checkpoint.path, files_.path("here/c"));
  // Different spellings of a folder give the same name. But the parent of a link's target is not the folder
  // that contains the link.
  std::filesystem::create_directory_symlink(files_.path("conf"), files_.path("here/link"));
  Settings turns;
  turns.output_dir = "../here/./books/../../conf/../runs";
  EXPECT_EQ(with_absolute_paths(turns).output_dir, files_.path("runs"));
  turns.output_dir = "link/../x";
  EXPECT_EQ(with_absolute_paths(turns).output_dir, files_.path("here/link/../x"));
  turns.output_dir = "/../x";
  EXPECT_EQ(with_absolute_paths(turns).output_dir, "/../x");
  std::filesystem::current_path("/");
  const auto again = parse(to_yaml(saved), "saved");
  ASSERT_TRUE(again.ok());
  EXPECT_THAT(differences(saved, with_absolute_paths(again->settings)), ElementsAre());
}

TEST_F(ConfigPaths, AFoldersNameIsNoPattern) {
  std::filesystem::create_directory(files_.path("here/x[1]"));
  std::filesystem::create_directory(files_.path("here/x[1]/books"));
  files_.write("here/x[1]/run.yaml", "train: ['*.txt', a.txt]");
  files_.write("here/x[1]/a.txt", "a");
  const auto config = load("x[1]/run.yaml");
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(*config->settings.task_settings.get<TextSettings>().train,
              ElementsAre("x\\[1]/*.txt", "x[1]/a.txt"));
}

// The path keys of a new task are found by their codec; no list has to be updated.
TEST(ConfigPathKeys, AreThoseOfTheCodecs) {
  Paths reads, makes;
  for (const Key& key : schema_of(declared_tasks().front()).keys()) {
    const Setting* const setting = key.setting();
    if (setting == nullptr || !setting->type.paths) continue;
    (setting->type.makes_paths ? makes : reads).emplace_back(key.path);
  }
  EXPECT_THAT(reads, testing::IsSupersetOf({"data.train", "data.validation",
                                            "training.resume_from_checkpoint", "training.init_from"}));
  EXPECT_THAT(reads, testing::Not(testing::Contains("training.save_best"))) << "a text that is no path";
  EXPECT_THAT(makes, ElementsAre("output_dir"));
}

}  // namespace
}  // namespace octavo_train
