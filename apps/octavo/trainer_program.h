// Locates the program octavo-trainer, the LibTorch it was built with, and the one it will load.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace octavo::cli {

struct TrainerProgram {
  std::string path;              // in the folder of this program
  std::string libtorch_version;  // at build time; empty in a build without the trainer
  std::string libtorch_folder;   // the value of OCTAVO_LIBTORCH, or else the folder at build time
  bool libtorch_cuda = false;    // libtorch_folder has a CUDA build
  std::string problem;           // why it cannot run and how to fix it; empty if it can run
};

TrainerProgram find_trainer();

// Makes the dynamic loader search OCTAVO_LIBTORCH first, if it is set, in the program that this process
// execs.
void prefer_given_libtorch();

}  // namespace octavo::cli
