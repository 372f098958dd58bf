// Many clips through a listener: threads read them ahead, batches are of similar lengths, and the device does
// not wait for files. Batches depend on the lengths alone and not on the threads, so two calls hear the same.
// No LibTorch: what hears is a function, such as one that calls Listener::hear().
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/heard.h"

#include <octavo/status.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace octavo::train {

// A clip that is read when its turn comes, by any thread.
struct ClipToHear {
  double seconds = 0;                                // about: batches are planned by it
  std::function<Result<std::vector<float>>()> read;  // mono samples at the listener's rate
};

struct ListeningOptions {
  double batch_seconds = 1200;     // of a batch with its padding; a longer clip is a batch alone
  std::size_t batch_clips = 1024;  // and at most so many
  int threads = 0;                 // that read; 0: see reading_threads()
};

// `asked`, or as many as the machine has, up to 16.
unsigned reading_threads(int asked);

// What is heard in the clips of a batch, in their order.
using HearBatch = std::function<std::vector<Heard>(std::span<const std::span<const float>>)>;

// What a model takes and gives.
struct Hearing {
  HearBatch hear;
  const Tokenizer* tokenizer = nullptr;
  int rate = 16000;             // samples in a second
  double frame_seconds = 0.08;  // of the encoder's frames
};

// The clip's number, and what was heard or why it could not be read.
using HeardClip = std::function<void(std::size_t, Result<Heard>)>;

// Batches of similar lengths, the longest clips first: the numbers of the clips of each.
std::vector<std::vector<std::size_t>> plan_batches(std::span<const double> seconds,
                                                   const ListeningOptions& options);

// Calls done() for each clip, from the calling thread, in the order of the batches. A clip that cannot be
// read is left out of its batch. Throws what `hear` and `done` throw.
void hear_all(const HearBatch& hear, std::span<const ClipToHear> clips, const ListeningOptions& options,
              const HeardClip& done);

}  // namespace octavo::train
