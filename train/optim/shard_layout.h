// Where every trained parameter lies in the buckets that ranks communicate, and which rank has which of its
// elements. Arithmetic alone: the same on all ranks, from sizes and types.
//
// A bucket is a flat tensor of parameters of one type, in the reverse of the model's order, because the last
// ones get their gradients first. Each parameter begins at a multiple of `alignment` elements, and so do the
// ranks' chunks: a piece of a parameter begins at a multiple of `alignment` of the parameter itself. That is
// a multiple of every block of quantized states, so the pieces of a state, one after the other, are the state
// of the whole parameter in bits.
//
// Rank r has the r-th of `ranks` equal chunks of a bucket, so at most one piece of each parameter. Parameters
// whose states cannot be divided are in buckets that one rank has alone.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace octavo::train {

// Bytes of a bucket's elements at which it is full. A larger parameter has one of its own.
inline constexpr std::int64_t kBucketBytes = std::int64_t{25} << 20;

// What is known of a parameter before anything is allocated.
struct LaidParameter {
  std::int64_t elements = 0;
  int type = 0;  // parameters of one bucket have the same; torch's ScalarType
  std::int64_t element_bytes = 4;
  bool whole = false;  // its state cannot be divided
};

// A piece of a parameter: elements in the order in which it lies in memory.
struct Piece {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t elements() const { return end - begin; }
  friend bool operator==(const Piece&, const Piece&) = default;
};

struct Bucket {
  int type = 0;
  std::vector<std::size_t> parameters;  // numbers in the model's order
  std::vector<std::int64_t> begins;     // of each in the bucket
  std::int64_t elements = 0;            // with padding: a multiple of ranks * alignment where it is divided
  int owner = -1;                       // the rank that has it alone; -1: it is divided
};

class ParallelLayout {
 public:
  // `divided`: ranks have chunks (ZeRO); else every rank has everything (DDP) and there is no padding at the
  // end. REQUIRES: ranks >= 1; alignment a power of two, a multiple of every block.
  static ParallelLayout make(std::span<const LaidParameter> parameters, int ranks, std::int64_t alignment,
                             bool divided, std::int64_t bucket_bytes = kBucketBytes);

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] bool divided() const { return divided_; }
  // Where a parameter lies.
  [[nodiscard]] std::size_t bucket_of(std::size_t parameter) const { return places_[parameter].bucket; }
  [[nodiscard]] std::int64_t begin_of(std::size_t parameter) const { return places_[parameter].begin; }
  // What a rank has of a parameter; it may be empty. All of it where nothing is divided.
  [[nodiscard]] Piece piece(std::size_t parameter, int rank) const;
  // What a rank has of a bucket.
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

}  // namespace octavo::train
