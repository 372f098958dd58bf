// Many clips through a Listener: threads read them ahead, batches are of similar lengths, and the device does
// not wait for files. Batches depend on the lengths alone and not on the threads, so two calls hear the same.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/heard.h"

#include <octavo/status.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace octavo::train {

class Listener;

// A clip that is read when its turn comes, by any thread.
struct ClipToHear {
  double seconds = 0;                                // about: batches are planned by it
  std::function<Result<std::vector<float>>()> read;  // mono samples at the listener's rate
};

struct ListeningOptions {
  double batch_seconds = 1200;  // of a batch with its padding; a longer clip is a batch alone
  int threads = 0;              // that read; 0: as many as the machine has, up to 16
};

// Calls done(number of the clip, what was heard or why it could not be read) for each clip, from the calling
// thread, in the order of the batches. Throws what the listener throws; a batch that does not fit into memory
// is tried again in halves.
using HeardClip = std::function<void(std::size_t, Result<Heard>)>;
void hear_all(Listener& listener, std::span<const ClipToHear> clips, const ListeningOptions& options,
              const HeardClip& done);

}  // namespace octavo::train
