// Batches of a sampler's windows, prepared ahead by threads. What next() gives depends on the draws alone:
// the bytes are the same for any number of workers. The queue is bounded (two batches per worker). Batches
// never end: the caller knows when the run is over.
//
//   auto loader = octavo::train::BatchLoader::start(sampler, 8, first_draw, 2);
//   if (!loader.ok()) show(loader.status().message());
//   octavo::train::BatchLoader::Batch batch = loader->next();  // draws first_draw … first_draw + 7
//
// One thread at a time may call it. Moved-from loaders may only be destroyed or assigned to.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/sampler.h"

#include <octavo/status.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace octavo::train {

class BatchLoader {
 public:
  struct Batch {
    std::uint64_t first_draw = 0;
    std::vector<std::uint8_t> bytes;  // rows x (block_size + 1)
  };

  // `workers` threads; 0: next() does the work. An error if memory or threads cannot be allocated.
  // REQUIRES: rows >= 1, first_draw >= sampler.start(), workers >= 0.
  static Result<BatchLoader> start(Sampler sampler, std::int64_t rows, std::uint64_t first_draw, int workers);

  BatchLoader(BatchLoader&& other) noexcept;
  BatchLoader& operator=(BatchLoader&& other) noexcept;
  ~BatchLoader();  // waits for the batches that are being filled

  Batch next();

  // From now on next() gives the draws of this sampler from first_draw on. Batches that were prepared are
  // dropped. REQUIRES: first_draw >= sampler.start(), the same block_size as before.
  void reset(Sampler sampler, std::uint64_t first_draw);

 private:
  class Work;
  explicit BatchLoader(std::unique_ptr<Work> work);
  std::unique_ptr<Work> work_;
};

}  // namespace octavo::train
