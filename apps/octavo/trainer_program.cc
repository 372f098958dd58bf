// Looks for octavo-trainer and its LibTorch; see trainer_program.h. It only checks files, because loading
// LibTorch takes a second, and after the trainer has started only the dynamic loader's message could explain
// a missing library.
// SPDX-License-Identifier: MIT
#include "apps/octavo/trainer_program.h"

#include "build_facts.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace octavo::cli {
namespace {

constexpr const char* kProgram = "octavo-trainer";
constexpr const char* kHowToBuild = "; `make` in octavo's source code builds the trainer";
constexpr const char* kOverride = "OCTAVO_LIBTORCH";

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string library_in(const std::string& libtorch) { return libtorch + "/lib/libtorch.so"; }

bool exists(const std::string& path) {
  std::error_code bad;
  return std::filesystem::exists(path, bad);
}

// Returns whether the dynamic loader would find LibTorch in a folder of LD_LIBRARY_PATH.
bool on_library_path() {
  std::istringstream folders(variable("LD_LIBRARY_PATH"));
  for (std::string folder; std::getline(folders, folder, ':');)
    if (!folder.empty() && exists(folder + "/libtorch.so")) return true;
  return false;
}

std::string problem_of(const TrainerProgram& trainer) {
  if (trainer.libtorch_version.empty())
    return std::string("this octavo was built without the trainer: ") + kNoTrainerReason + kHowToBuild;
  if (access(trainer.path.c_str(), X_OK) != 0)
    return trainer.path + " is not there or cannot be run: install it again, beside octavo" + kHowToBuild;
  if (exists(library_in(trainer.libtorch_folder))) return {};
  if (!variable(kOverride).empty())
    return std::string(kOverride) + "=" + trainer.libtorch_folder +
           ": no lib/libtorch.so in it; expected a LibTorch or torch folder of version " +
           trainer.libtorch_version;
  if (on_library_path()) return {};
  return "the LibTorch that it was built with, " + trainer.libtorch_version + ", is no longer at " +
         trainer.libtorch_folder + ": set " + kOverride +
         " to the folder of another one of that version (python -c \"import torch; "
         "print(torch.__path__[0])\")";
}

}  // namespace

TrainerProgram find_trainer() {
  std::error_code bad;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", bad);
  TrainerProgram out;
  out.path = (self.parent_path() / kProgram).string();
  out.libtorch_version = kLibtorchVersion;
  out.libtorch_folder = variable(kOverride).empty() ? kLibtorchFolder : variable(kOverride);
  out.libtorch_cuda = exists(out.libtorch_folder + "/lib/libtorch_cuda.so");
  out.problem = problem_of(out);
  return out;
}

void prefer_given_libtorch() {
  const std::string given = variable(kOverride);
  if (given.empty()) return;
  const std::string rest = variable("LD_LIBRARY_PATH");
  const std::string all = given + "/lib" + (rest.empty() ? "" : ":" + rest);
  setenv("LD_LIBRARY_PATH", all.c_str(), 1);
}

}  // namespace octavo::cli
