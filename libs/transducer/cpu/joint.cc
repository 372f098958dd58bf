// The transducer loss with its joint network on the CPU. Logits are computed one tile at a time, and again
// for the gradient. A tile's values are floats rounded to `dtype`. Every sum over cells is in the order of
// the cells, so neither threads nor the size of tiles change a bit.
// SPDX-License-Identifier: MIT
#include "cpu/implementations.h"
#include "cpu/product.h"
#include "cpu/threads.h"
#include "formula/dropout.h"
#include "transducer/backend.h"
#include "transducer/cpu/rows.h"
#include "transducer/tiles.h"

#include <algorithm>

namespace octavo::transducer {
namespace {

constexpr std::int64_t kTileCells = 256;
constexpr std::int64_t kSlice = 64;  // elements of a row per thread when rows are summed

std::int64_t wanted_cells(const TransducerJoint& joint) {
  return joint.tile_cells > 0 ? joint.tile_cells : kTileCells;
}

// The outputs of cells that walks need: blank, the next label, the durations. They are stored after the
// cells.
class Kept {
 public:
  explicit Kept(const TransducerArgs& args)
      : cells_(args),
        data_(reinterpret_cast<float*>(Workspace(args.workspace, args.batch).cells + all_cells(args))),
        width_(width(args)) {}

  static std::int64_t width(const TransducerArgs& args) {
    return 2 + static_cast<std::int64_t>(args.durations.size());
  }
  [[nodiscard]] float* row(const Place& at) const { return data_ + cells_.number(at) * width_; }
  [[nodiscard]] double blank(const Place& at) const { return static_cast<double>(row(at)[0]); }
  [[nodiscard]] double label(const Place& at) const { return static_cast<double>(row(at)[1]); }
  [[nodiscard]] double duration(const Place& at, std::int64_t i) const {
    return static_cast<double>(row(at)[2 + i]);
  }

 private:
  Cells cells_;
  float* data_;
  std::int64_t width_;
};

// The scratch memory, as floats.
struct Buffers {
  Buffers(const TransducerArgs& args, const TransducerJoint& joint) : data_(joint.scratch.data()) {
    const std::int64_t outputs = args.tokens + static_cast<std::int64_t>(args.durations.size());
    const std::int64_t rows = tile_capacity(args, wanted_cells(joint));
    weight = allocate(outputs * joint.hidden);
    transposed = allocate(outputs * joint.hidden);
    bias = allocate(outputs);
    hidden = allocate(rows * joint.hidden);
    hidden_grad = allocate(rows * joint.hidden);
    logits = allocate(rows * outputs);
  }

  float *weight, *transposed, *bias;
  float *hidden, *hidden_grad, *logits;
  std::int64_t bytes = 0;

 private:
  float* allocate(std::int64_t count) {
    const auto at = static_cast<std::size_t>(bytes);
    bytes += (4 * count + 63) / 64 * 64;
    return data_ != nullptr ? reinterpret_cast<float*>(data_ + at) : nullptr;
  }
  std::byte* data_;
};

template <class E>
class Network {
 public:
  using Stored = typename E::Stored;
  using Value = Rounded<E>;

  Network(const TransducerArgs& args, const TransducerJoint& joint, const cpu::Kernels& kernels)
      : args_(args),
        joint_(joint),
        kernels_(kernels),
        at_(args, joint),
        outputs_(args),
        kept_(args),
        walk_(args, kept_),
        width_(outputs_.tokens + outputs_.durations),
        how_(formula::make_dropout(joint.dropout)),
        base_(formula::dropout_base(args.seed, args.step)) {
    auto line = [&](std::int64_t o, cpu::Scratch&) {
      for (std::int64_t k = 0; k < joint_.hidden; ++k) {
        const auto x =
            static_cast<float>(E::load(static_cast<const Stored*>(joint_.weight)[o * joint_.hidden + k]));
        at_.weight[o * joint_.hidden + k] = at_.transposed[k * width_ + o] = x;
      }
      at_.bias[o] = bias(o);
    };
    each(width_, line);
  }

  void loss(float* losses) const {
    walk_.pack();
    for_tiles(args_, wanted_cells(joint_), [&](const Tile& tile) {
      make_logits(tile);
      auto keep = [&](std::int64_t row, cpu::Scratch&) {
        const Place at = place(tile.first + row);
        const float* const token = at_.logits + row * width_;
        set_norms<Value>(walk_.cell(at), outputs_, token, token + outputs_.tokens);
        float* const kept = kept_.row(at);
        kept[0] = token[outputs_.blank];
        kept[1] = token[walk_.target(at)];
        std::copy_n(token + outputs_.tokens, outputs_.durations, kept + 2);
      };
      each(tile.cells, keep);
    });
    walk_all(args_, walk_);
    write_losses(args_, losses);
  }

  void gradient(const float* grad_losses, const TransducerJointGrads& grads) const {
    clear(grads.encoder, args_.batch * args_.frames * joint_.hidden);
    clear(grads.predictor, args_.batch * args_.positions * joint_.hidden);
    clear(grads.weight, width_ * joint_.hidden);
    clear(grads.bias, width_);
    const std::int64_t labels = all_labels(args_);
    for_tiles(args_, wanted_cells(joint_), [&](const Tile& tile) {
      make_logits(tile);
      auto replace = [&](std::int64_t row, cpu::Scratch&) {
        const Place at = place(tile.first + row);
        float* const token = at_.logits + row * width_;
        float* const duration = token + outputs_.tokens;
        row_gradient<Value>(walk_.cell(at), outputs_, walk_.taken(at), walk_.target(at),
                            factor_of(args_, grad_losses, at.clip, labels), token, duration, token, duration);
      };
      each(tile.cells, replace);
      if (grads.weight != nullptr) {
        cpu::add_product(width_, joint_.hidden, tile.cells, {at_.logits, 1, width_}, at_.hidden,
                         joint_.hidden, grads.weight, joint_.hidden, args_.threads);
      }
      if (grads.bias != nullptr) add_bias(tile, grads.bias);
      if (grads.encoder != nullptr || grads.predictor != nullptr) add_hidden(tile, grads);
    });
  }

 private:
  template <class Body>
  void each(std::int64_t count, Body& body) const {
    cpu::parallel_for(count, args_.threads, body);
  }
  // Calls body(begin, end) for parts of a row, each on one thread.
  template <class Body>
  void slices(std::int64_t width, Body&& body) const {
    auto slice = [&](std::int64_t i, cpu::Scratch&) { body(i * kSlice, std::min(width, (i + 1) * kSlice)); };
    each((width + kSlice - 1) / kSlice, slice);
  }

  [[nodiscard]] float bias(std::int64_t o) const {
    if (joint_.bias == nullptr) return 0.0F;
    if (joint_.bias_dtype == DType::f32) return static_cast<const float*>(joint_.bias)[o];
    return static_cast<float>(E::load(static_cast<const Stored*>(joint_.bias)[o]));
  }

  [[nodiscard]] Place place(std::int64_t cell) const {
    std::int64_t low = 0, high = args_.batch;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (walk_.state(middle).first <= cell ? low : high) = middle;
    }
    const std::int64_t inside = cell - walk_.state(low).first, row = walk_.labels(low) + 1;
    return {low, inside / row, inside % row};
  }

  void make_hidden(const Place& at, float* to, cpu::Scratch& scratch) const {
    const auto* f =
        static_cast<const Stored*>(joint_.encoder) + (at.clip * args_.frames + at.t) * joint_.hidden;
    const auto* g =
        static_cast<const Stored*>(joint_.predictor) + (at.clip * args_.positions + at.u) * joint_.hidden;
    for (std::int64_t k = 0; k < joint_.hidden; ++k) {
      const float sum = static_cast<float>(E::load(f[k])) + static_cast<float>(E::load(g[k]));
      to[k] = sum < 0.0F ? 0.0F : sum;  // NaN stays NaN
    }
    if (joint_.dropout > 0) {
      const std::int64_t inside = at.t * (walk_.labels(at.clip) + 1) + at.u;
      kernels_.drop({to, to, DType::f32, 0, joint_.hidden, static_cast<std::uint64_t>(inside * joint_.hidden),
                     formula::dropout_key(base_, joint_.samples[at.clip], joint_.layer), how_, &scratch});
    }
    std::transform(to, to + joint_.hidden, to, [](float x) { return Value::store(static_cast<double>(x)); });
  }

  void make_logits(const Tile& tile) const {
    auto hidden = [&](std::int64_t row, cpu::Scratch& scratch) {
      make_hidden(place(tile.first + row), at_.hidden + row * joint_.hidden, scratch);
      std::copy_n(at_.bias, width_, at_.logits + row * width_);
    };
    each(tile.cells, hidden);
    cpu::add_product(tile.cells, width_, joint_.hidden, {at_.hidden, joint_.hidden, 1}, at_.transposed,
                     width_, at_.logits, width_, args_.threads);
    auto round = [&](std::int64_t row, cpu::Scratch&) {
      float* const x = at_.logits + row * width_;
      std::transform(x, x + width_, x, [](float y) { return Value::store(static_cast<double>(y)); });
    };
    each(tile.cells, round);
  }

  void clear(float* to, std::int64_t count) const {
    if (to != nullptr) std::fill_n(to, count, 0.0F);
  }

  void add_bias(const Tile& tile, float* to) const {
    slices(width_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = 0; row < tile.cells; ++row) {
        for (std::int64_t o = begin; o < end; ++o) to[o] += at_.logits[row * width_ + o];
      }
    });
  }

  // Adds the gradient of the hidden units to the frames and positions that they were computed from.
  void add_hidden(const Tile& tile, const TransducerJointGrads& grads) const {
    const std::int64_t units = joint_.hidden;
    std::fill_n(at_.hidden_grad, tile.cells * units, 0.0F);
    cpu::add_product(tile.cells, units, width_, {at_.logits, width_, 1}, at_.weight, units, at_.hidden_grad,
                     units, args_.threads);
    slices(units, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = 0; row < tile.cells; ++row) {
        const Place at = place(tile.first + row);
        const std::int64_t f = (at.clip * args_.frames + at.t) * units;
        const std::int64_t g = (at.clip * args_.positions + at.u) * units;
        for (std::int64_t k = begin; k < end; ++k) {
          if (at_.hidden[row * units + k] == 0.0F) continue;
          const float x = at_.hidden_grad[row * units + k] * how_.scale;
          if (grads.encoder != nullptr) grads.encoder[f + k] += x;
          if (grads.predictor != nullptr) grads.predictor[g + k] += x;
        }
      }
    });
  }

  const TransducerArgs& args_;
  const TransducerJoint& joint_;
  const cpu::Kernels& kernels_;
  Buffers at_;
  Outputs outputs_;
  Kept kept_;
  Walk<Kept> walk_;
  std::int64_t width_;  // outputs per cell
  formula::Dropout how_;
  std::uint64_t base_;
};

template <class Fn>
Status with_network(const TransducerArgs& args, const TransducerJoint& joint, Fn&& f) {
  const auto kernels = cpu::kernels();
  if (!kernels.ok()) return kernels.status();
  cpu::reserve_scratch();  // a lack of memory is reported before anything is written
  by_element(args.dtype, [&](auto element) { f(Network<decltype(element)>(args, joint, **kernels)); });
  return {};
}

}  // namespace

TransducerJointBytes joint_bytes_cpu(const TransducerArgs& args, const TransducerJoint& joint) {
  TransducerJoint empty = joint;
  empty.scratch = {};
  const std::int64_t cells = all_cells(args);
  return {workspace_bytes(args.batch, cells) + 4 * Kept::width(args) * cells, Buffers(args, empty).bytes};
}

Status joint_loss_cpu(const TransducerArgs& args, const TransducerJoint& joint, float* losses) {
  return with_network(args, joint, [&](const auto& network) { network.loss(losses); });
}

Status joint_gradient_cpu(const TransducerArgs& args, const TransducerJoint& joint, const float* grad_losses,
                          const TransducerJointGrads& grads) {
  return with_network(args, joint, [&](const auto& network) { network.gradient(grad_losses, grads); });
}

}  // namespace octavo::transducer
