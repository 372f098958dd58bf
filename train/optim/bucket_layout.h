// Computes the position of every trained parameter in the buckets that ranks communicate, and which rank has
// which of its elements. The layout depends only on sizes and types, so it is identical on all ranks.
//
// A bucket is a flat tensor of parameters of one type, in the reverse of the model's order, because the last
// parameters get their gradients first. Each parameter begins at a multiple of `alignment` elements, and so
// do the ranks' chunks. Therefore a piece of a parameter begins at a multiple of `alignment` within the
// parameter. This is a multiple of every block of quantized states, so the concatenated pieces of a state are
// bit-identical to the state of the complete parameter.
//
// Rank r has the r-th of `ranks` equal chunks of a bucket, so it has at most one piece of each parameter.
// Parameters whose states cannot be divided are in buckets that a single rank owns.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace octavo_train {

// The most bytes of a bucket's elements. A larger parameter has its own bucket.
inline constexpr std::int64_t kBucketBytes = std::int64_t{25} << 20;

// The properties of a parameter that the layout needs. They are known before any allocation.
struct LaidParameter {
  std::int64_t elements = 0;
  int type = 0;  // torch's ScalarType; all parameters of a bucket have the same type
  std::int64_t element_bytes = 4;
  bool whole = false;  // its state cannot be divided
};

// A range of a parameter's or a bucket's elements, in memory order.
struct Piece {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t elements() const { return end - begin; }
  friend bool operator==(const Piece&, const Piece&) = default;
};

struct Bucket {
  int type = 0;
  std::vector<std::size_t> parameters;  // numbers in the model's order
  std::vector<std::int64_t> begins;     // first element of each in the bucket
  std::int64_t elements = 0;            // with padding: a multiple of ranks * alignment if it is divided
  int owner = -1;                       // the rank that has the complete bucket; -1: it is divided
};

class BucketLayout {
 public:
  // `divided`: ranks have chunks (ZeRO). Otherwise every rank has all elements (DDP) and buckets have no
  // padding at the end. REQUIRES: ranks >= 1; alignment a power of two, a multiple of every block.
  static BucketLayout make(std::span<const LaidParameter> parameters, int ranks, std::int64_t alignment,
                           bool divided, std::int64_t bucket_bytes = kBucketBytes);

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] bool divided() const { return divided_; }
  // Return a parameter's bucket and its first element in the bucket.
  [[nodiscard]] std::size_t bucket_of(std::size_t parameter) const { return places_[parameter].bucket; }
  [[nodiscard]] std::int64_t begin_of(std::size_t parameter) const { return places_[parameter].begin; }
  // Returns a rank's range of a parameter, which may be empty. It is the complete parameter if nothing is
  // divided.
  [[nodiscard]] Piece piece(std::size_t parameter, int rank) const;
  // Returns a rank's range of a bucket.
  [[nodiscard]] Piece chunk(std::size_t bucket, int rank) const;

 private:
  struct At {
    std::size_t bucket = 0;
    std::int64_t begin = 0, elements = 0;
  };
  std::vector<Bucket> buckets_;
  std::vector<At> places_;  // by parameter
  int ranks_ = 1;
  bool divided_ = false;
};

}  // namespace octavo_train
