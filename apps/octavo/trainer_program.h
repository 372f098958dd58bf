// The program octavo-trainer: where it is, which LibTorch it was built with, and which one it will load.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace octavo::cli {

struct TrainerProgram {
  std::string path;              // beside this program
  std::string libtorch_version;  // at build time; empty in a build without it
  std::string libtorch_folder;   // what OCTAVO_LIBTORCH names, else that of build time
  bool libtorch_cuda = false;    // whether that is a CUDA build
  std::string problem;           // why it cannot run, and what to do; empty where it can
};

TrainerProgram find_trainer();

// Makes the loader of a program that this process becomes look into OCTAVO_LIBTORCH first, where that is set.
void prefer_given_libtorch();

}  // namespace octavo::cli
