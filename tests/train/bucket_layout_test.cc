// Tests which rank has which part of a model.
// SPDX-License-Identifier: MIT
#include "train/optim/bucket_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace octavo_train {
namespace {

using testing::ElementsAre;

std::vector<LaidParameter> some_parameters(unsigned seed, bool with_whole) {
  std::mt19937 random(seed);
  const std::int64_t sizes[] = {0, 1, 3, 255, 256, 257, 768, 5000, 70'000};
  std::vector<LaidParameter> out(40);
  for (LaidParameter& each : out) {
    each.elements = sizes[random() % std::size(sizes)];
    each.type = random() % 4 == 0 ? 15 : 6;
    each.element_bytes = each.type == 15 ? 2 : 4;
    each.whole = with_whole && random() % 3 == 0;
  }
  return out;
}

TEST(BucketLayout, ASmallOne) {
  // In reverse order: 300 elements at 0, 10 at 512, 600 at 768; padded to 1,536 for two ranks.
  const std::vector<LaidParameter> parameters = {{600}, {10}, {300}};
  const auto layout = BucketLayout::make(parameters, 2, 256, true);
  ASSERT_EQ(layout.buckets().size(), 1U);
  const Bucket& bucket = layout.buckets()[0];
  EXPECT_THAT(bucket.parameters, ElementsAre(2, 1, 0));
  EXPECT_THAT(bucket.begins, ElementsAre(0, 512, 768));
  EXPECT_EQ(bucket.elements, 1536);
  EXPECT_EQ(bucket.owner, -1);
  EXPECT_EQ(layout.chunk(0, 1), (Piece{768, 1536}));
  EXPECT_EQ(layout.piece(2, 0), (Piece{0, 300}));
  EXPECT_EQ(layout.piece(1, 0), (Piece{0, 10}));
  EXPECT_EQ(layout.piece(0, 0), Piece{});
  EXPECT_EQ(layout.piece(0, 1), (Piece{0, 600}));
  // Three ranks have 512 elements each, so the last parameter is cut at 256.
  const auto three = BucketLayout::make(parameters, 3, 256, true);
  EXPECT_EQ(three.buckets()[0].elements, 1536);
  EXPECT_EQ(three.piece(0, 1), (Piece{0, 256}));
  EXPECT_EQ(three.piece(0, 2), (Piece{256, 600}));
  // Without shards nothing is divided, and there is no padding at the end.
  const auto plain = BucketLayout::make(parameters, 3, 256, false);
  EXPECT_EQ(plain.buckets()[0].elements, 768 + 600);
  EXPECT_EQ(plain.piece(0, 2), (Piece{0, 600}));
  EXPECT_TRUE(BucketLayout::make({}, 2, 256, true).buckets().empty());
}

TEST(BucketLayout, EveryElementHasAPlaceAndARank) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const int ranks = 1 + static_cast<int>(seed % 5);
    const std::int64_t alignment = seed % 2 == 0 ? 256 : 1024;
    const std::int64_t limit = seed % 3 == 0 ? 1 : 40'000;
    const bool divided = seed % 4 != 3;
    const std::vector<LaidParameter> parameters = some_parameters(seed, seed % 8 >= 4);
    const auto layout = BucketLayout::make(parameters, ranks, alignment, divided, limit);
    SCOPED_TRACE(seed);
    EXPECT_EQ(layout.ranks(), ranks);
    std::vector<int> met(parameters.size(), 0);
    std::size_t last = parameters.size();
    for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
      const Bucket& bucket = layout.buckets()[b];
      EXPECT_TRUE(std::ranges::is_sorted(bucket.parameters, std::greater<>()));
      EXPECT_LT(bucket.parameters.back(), last) << "it is complete after the one before";
      last = bucket.parameters.back();
      std::int64_t end = 0, bytes = 0;
      for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
        const std::size_t p = bucket.parameters[k];
        ++met[p];
        EXPECT_EQ(layout.bucket_of(p), b);
        EXPECT_EQ(layout.begin_of(p), bucket.begins[k]);
        EXPECT_EQ(parameters[p].type, bucket.type);
        EXPECT_EQ(divided && parameters[p].whole, bucket.owner >= 0);
        EXPECT_EQ(bucket.begins[k] % alignment, 0);
        EXPECT_GE(bucket.begins[k], end);
        EXPECT_LT(bucket.begins[k], end + alignment);
        end = bucket.begins[k] + parameters[p].elements;
        bytes +=
            (parameters[p].elements + alignment - 1) / alignment * alignment * parameters[p].element_bytes;
      }
      EXPECT_TRUE(bytes <= limit || bucket.parameters.size() == 1);
      if (divided && bucket.owner < 0) {
        EXPECT_EQ(bucket.elements % (ranks * alignment), 0);
        EXPECT_LT(bucket.elements, end + ranks * alignment);
      } else {
        EXPECT_EQ(bucket.elements, end);
      }
      std::int64_t covered = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Piece chunk = layout.chunk(b, rank);
        if (bucket.owner < 0 && divided) {
          EXPECT_EQ(chunk.elements(), bucket.elements / ranks);
        }
        if (divided) {
          EXPECT_EQ(chunk.begin, chunk.elements() > 0 ? covered : 0);
        }
        covered += chunk.elements();
      }
      EXPECT_EQ(covered, divided ? bucket.elements : ranks * bucket.elements);
    }
    EXPECT_THAT(met, testing::Each(1));
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Piece piece = layout.piece(p, rank);
        if (!divided) {
          EXPECT_EQ(piece, (Piece{0, parameters[p].elements}));
          continue;
        }
        if (piece.elements() == 0) continue;
        EXPECT_EQ(piece.begin, next);
        EXPECT_EQ(piece.begin % alignment, 0);
        if (parameters[p].whole) {
          EXPECT_EQ(piece.elements(), parameters[p].elements);
        }
        next = piece.end;
      }
      if (divided) {
        EXPECT_EQ(next, parameters[p].elements);
      }
    }
  }
}

TEST(BucketLayout, WholeParametersAreSharedOutEvenly) {
  const std::vector<LaidParameter> parameters(12, LaidParameter{1000, 6, 4, true});
  for (const int ranks : {1, 2, 3, 4}) {
    const auto layout = BucketLayout::make(parameters, ranks, 256, true);
    for (int rank = 0; rank < ranks; ++rank) {
      std::int64_t elements = 0;
      for (std::size_t p = 0; p < parameters.size(); ++p) elements += layout.piece(p, rank).elements();
      EXPECT_EQ(elements, 12'000 / ranks) << rank << " of " << ranks;
    }
  }
}

}  // namespace
}  // namespace octavo_train
