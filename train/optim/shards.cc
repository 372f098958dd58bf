// SPDX-License-Identifier: MIT
#include "train/optim/shards.h"

#include <octavo/layout.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <utility>

namespace octavo_train {
namespace {

using octavo::torch::Kind;
using octavo::torch::kSlots;
using octavo::torch::ParamState;
using torch::Tensor;

// The smallest alignment of pieces, in elements: a multiple of every block size, cache line and vector.
constexpr std::int64_t kLeastAlignment = 256;

std::int64_t alignment_of(const ParameterGroups& groups) {
  std::int64_t out = kLeastAlignment;
  for (const GroupOptions& each : groups.options) out = std::max(out, octavo::default_block_size(each.state));
  return out;
}

// The number of tensors of a state, in the order of ParamState::each().
constexpr std::size_t kTensors = 2 * kSlots + 1;

// Returns the bytes in each tensor of a state that belong to the first `elements` of a parameter.
std::array<std::int64_t, kTensors> bytes_of_first(const Kind& kind, std::int64_t elements) {
  const octavo_tensor_layout laid = octavo::torch::layout_of_first(kind, elements);
  std::array<std::int64_t, kTensors> out{};
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(laid.slots); ++slot) {
    out[2 * slot] = laid.codes_bytes[slot];
    out[2 * slot + 1] = 4 * laid.scales[slot];
  }
  out.back() = laid.residual_bytes;
  return out;
}

std::array<Tensor*, kTensors> state_tensors(ParamState& state) {
  std::array<Tensor*, kTensors> out{};
  std::size_t i = 0;
  ParamState::each(state, [&](const std::string&, Tensor& tensor) { out[i++] = &tensor; });
  return out;
}

// Returns a state with the tensors that a first step would create, uninitialized and in host memory.
ParamState empty_state(const Kind& kind) {
  ParamState out;
  const auto make = [](std::int64_t bytes, torch::ScalarType type) {
    return torch::empty({bytes / static_cast<std::int64_t>(c10::elementSize(type))}, type);
  };
  const std::int64_t numel = kind.spec.numel;
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(kind.layout.slots); ++slot) {
    const std::int64_t codes = kind.layout.codes_bytes[slot], scales = kind.layout.scales[slot];
    out.codes[slot] = make(codes, octavo::torch::codes_type(codes, numel));
    if (scales > 0) out.scales[slot] = make(4 * scales, torch::kFloat32);
  }
  if (const std::int64_t master = kind.layout.residual_bytes; master > 0)
    out.master = make(master, octavo::torch::master_type(master, numel));
  return out;
}

Tensor as_bytes(const Tensor& tensor) { return tensor.view({-1}).view(torch::kUInt8); }

// A segment of a rank's stream. `place` is the source of the bytes on the sending rank, their destination on
// rank 0, and undefined on other ranks.
struct Segment {
  Tensor place;
  std::int64_t bytes = 0;
};

// Allocates the complete states on rank 0 and fills them from the streams of all ranks.
class Streams {
 public:
  Streams(const ShardedWeights& shards, std::span<const StateShard> pieces)
      : shards_(shards), process_group_(shards.process_group()), pieces_(pieces), wholes_(pieces.size()) {
    for (std::size_t i = 0; i < pieces.size() && process_group_.leads(); ++i)
      wholes_[i] = empty_state(pieces[i].kind);
  }

  // Sends all pieces of rank `from` to rank 0. Collective.
  void run(int from) {
    const std::vector<Segment> given =
        process_group_.rank() == from ? segments(from, true) : std::vector<Segment>();
    const std::vector<Segment> all = segments(from, false);
    if (from == 0) {  // rank 0 copies its own pieces locally
      for (std::size_t i = 0; i < given.size(); ++i) all[i].place.copy_(given[i].place);
      return;
    }
    std::int64_t total = 0;
    for (const Segment& each : all) total += each.bytes;
    const auto options = torch::TensorOptions(torch::kUInt8).device(shards_.pieces()[0].device());
    for (std::int64_t at = 0; at < total; at += shards_.slice_bytes()) {
      const Tensor slice = torch::empty({std::min(shards_.slice_bytes(), total - at)}, options);
      over(given, at, slice, [](const Tensor& part, const Tensor& place) { part.copy_(place); });
      process_group_.broadcast(slice, from).wait();
      if (process_group_.leads())
        over(all, at, slice, [](const Tensor& part, const Tensor& place) { place.copy_(part); });
    }
  }
  std::vector<ParamState> take() { return std::move(wholes_); }

 private:
  [[nodiscard]] std::vector<Segment> segments(int rank, bool gives) {
    std::vector<Segment> out;
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const Piece piece = shards_.layout().piece(pieces_[p].parameter, rank);
      if (piece.elements() == 0) continue;
      const auto begin = bytes_of_first(pieces_[p].kind, piece.begin);
      const auto end = bytes_of_first(pieces_[p].kind, piece.end);
      ParamState own = gives ? *pieces_[p].mine : ParamState();
      const auto tensors = state_tensors(gives ? own : wholes_[p]);
      for (std::size_t i = 0; i < kTensors; ++i) {
        const std::int64_t bytes = end[i] - begin[i];
        if (bytes == 0) continue;
        out.push_back({{}, bytes});
        if (gives) out.back().place = as_bytes(*tensors[i]);
        if (!gives && process_group_.leads())
          out.back().place = as_bytes(*tensors[i]).narrow(0, begin[i], bytes);
      }
    }
    return out;
  }

  // Calls f(range of the slice, range of the segment's place) for each segment that overlaps the slice, which
  // begins at byte `at` of the stream.
  template <class Fn>
  static void over(const std::vector<Segment>& segments, std::int64_t at, const Tensor& slice, Fn&& f) {
    std::int64_t begin = 0;
    for (const Segment& each : segments) {
      const std::int64_t from = std::max(begin, at), to = std::min(begin + each.bytes, at + slice.numel());
      if (from < to) f(slice.narrow(0, from - at, to - from), each.place.narrow(0, from - begin, to - from));
      begin += each.bytes;
    }
  }

  const ShardedWeights& shards_;
  ProcessGroup& process_group_;
  std::span<const StateShard> pieces_;
  std::vector<ParamState> wholes_;
};

}  // namespace

BucketLayout make_bucket_layout(const ParameterGroups& groups, int ranks, bool divided,
                                std::int64_t bucket_bytes) {
  std::vector<LaidParameter> laid;
  for (std::size_t i = 0; i < groups.parameters.size(); ++i) {
    const torch::Tensor& param = groups.parameters[i].second;
    const octavo::StateFormat state = groups.options[groups.group[i]].state;
    laid.push_back(
        {param.numel(), static_cast<int>(param.scalar_type()), param.element_size(),
         !octavo::format_for(state, param.numel(), octavo::kMinQuantizedSize, /*sharded=*/true).ok()});
  }
  return BucketLayout::make(laid, ranks, alignment_of(groups), divided, bucket_bytes);
}

ShardedWeights::ShardedWeights(ProcessGroup& process_group, const ParameterGroups& groups,
                               BucketLayout layout, std::int64_t slice_bytes)
    : process_group_(process_group),
      layout_(std::move(layout)),
      slice_bytes_(slice_bytes),
      pieces_(groups.parameters.size()) {
  const torch::NoGradGuard no_grad;
  for (std::size_t b = 0; b < layout_.buckets().size(); ++b) {
    const Bucket& bucket = layout_.buckets()[b];
    const auto options = groups.parameters[bucket.parameters.front()].second.options().requires_grad(false);
    const torch::Tensor flat = torch::zeros({bucket.elements}, options);
    const Piece mine = layout_.chunk(b, process_group_.rank());
    flats_.push_back(flat);
    chunks_.push_back(flat.narrow(0, mine.begin, mine.elements()));
    padding_bytes_ += static_cast<std::int64_t>(flat.nbytes());
    for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
      const std::size_t number = bucket.parameters[k];
      torch::Tensor param = groups.parameters[number].second;
      padding_bytes_ -= static_cast<std::int64_t>(param.nbytes());
      const torch::Tensor place = flat.as_strided(param.sizes(), param.strides(), bucket.begins[k]);
      place.copy_(param);
      param.set_data(place);
      const Piece part = piece(number);
      const bool all = undivided(number) && part.elements() == param.numel();
      pieces_[number] = all ? place.detach() : flat.narrow(0, bucket.begins[k] + part.begin, part.elements());
    }
  }
}

bool ShardedWeights::undivided(std::size_t parameter) const {
  return layout_.buckets()[layout_.bucket_of(parameter)].owner >= 0;
}

void ShardedWeights::gather() {
  std::vector<Pending> queued;
  for (std::size_t b = 0; b < flats_.size(); ++b) {
    if (flats_[b].numel() == 0) continue;
    const int owner = layout_.buckets()[b].owner;
    queued.push_back(owner >= 0 ? process_group_.broadcast(flats_[b], owner)
                                : process_group_.all_gather(flats_[b], chunks_[b]));
  }
  for (Pending& each : queued) each.wait();
}

std::unique_ptr<ParamState> cut_state(const ShardedWeights& shards, std::size_t parameter, const Kind& kind,
                                      const ParamState& whole) {
  auto out = std::make_unique<ParamState>(whole);
  const Piece piece = shards.piece(parameter);
  const auto begin = bytes_of_first(kind, piece.begin), end = bytes_of_first(kind, piece.end);
  const auto tensors = state_tensors(*out);
  for (std::size_t i = 0; i < kTensors; ++i) {
    Tensor& each = *tensors[i];
    if (!each.defined()) continue;
    const std::int64_t size = each.element_size();
    each = each.view({-1}).narrow(0, begin[i] / size, (end[i] - begin[i]) / size).clone();
  }
  return out;
}

std::vector<ParamState> gather_states(const ShardedWeights& shards, std::span<const StateShard> pieces) {
  Streams streams(shards, pieces);
  for (int rank = 0; rank < shards.process_group().ranks(); ++rank) streams.run(rank);
  return streams.take();
}

}  // namespace octavo_train
