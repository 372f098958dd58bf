// The tiles of a joint loss, its memory, and its steps in order. The host plans everything from the clips'
// lengths, so nothing waits for the device.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/runtime/cublaslt.h"
#include "transducer/cuda/call.h"
#include "transducer/cuda/joint.h"
#include "transducer/gpu_sizes.h"

#include <vector>

namespace octavo::cuda {

struct JointTiles {
  std::vector<TransducerClip> clips;
  std::vector<JointTile> tiles;
  std::int64_t cells = 0, labels = 0;
  std::int32_t most_rows = 0, positions = 0;  // of the largest tile, and of the longest clip

  // REQUIRES: checked lengths in host memory; up to 2^31 - 1 frames and positions of all clips.
  JointTiles(const TransducerArgs& args, std::int64_t tile_cells);
};

// Fills in pitches and all memory that is not the caller's, from `kept` and `scratch`. `sizes` are those of
// the tiles. `kept` contains the data that the gradient needs from the loss. Null only counts the bytes.
// Returns the matmuls' workspace.
void* place_joint(JointWork& work, const JointTiles& tiles, const transducer::JointSizes& sizes, Places& kept,
                  Places& scratch);

// The steps of a call.
class JointSteps {
 public:
  JointSteps(const JointWork& work, const JointTiles& tiles, void* product_workspace, cudaStream_t stream)
      : work_(work), tiles_(tiles), workspace_(product_workspace), stream_(stream) {}

  // Runs the complete loss, or the complete gradient.
  Status loss(float* losses) const;
  Status gradient() const;

  // Run their parts.
  Status begin(bool start) const;
  Status activations(const JointTile& tile, bool shares) const;
  Status logits(const JointTile& tile) const;
  Status records(const JointTile& tile) const;
  Status walk(float* losses) const;
  Status gradients(const JointTile& tile) const;
  Status weight_sums(const JointTile& tile) const;
  Status activations_grad(const JointTile& tile) const;
  Status sums(const JointTile& tile) const;
  Status finish() const;

  [[nodiscard]] Product logits_product(const JointTile& tile) const;
  [[nodiscard]] Product weight_product(const JointTile& tile) const;
  [[nodiscard]] Product activations_product(const JointTile& tile) const;

 private:
  [[nodiscard]] bool is_first(const JointTile& tile) const { return tile.first == 0; }
  [[nodiscard]] bool wants_activations() const {
    return work_.grads.encoder != nullptr || work_.grads.predictor != nullptr;
  }

  const JointWork& work_;
  const JointTiles& tiles_;
  void* workspace_;
  cudaStream_t stream_;
};

}  // namespace octavo::cuda
