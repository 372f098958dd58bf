// The transducer loss on logits, on the CPU. Rows of logits are read twice: for the softmax denominators and
// for the gradient; threads process frames there. In between, one thread per clip walks the lattice cell by
// cell. So nothing depends on the number of threads.
// SPDX-License-Identifier: MIT
#include "cpu/threads.h"
#include "transducer/backend.h"
#include "transducer/cpu/rows.h"

#include <algorithm>

namespace octavo::transducer {
namespace {

// The rows of a view.
template <class Stored>
class Rows {
 public:
  template <class Void>
  Rows(const TransducerArgs& args, const TransducerView<Void>& view, std::int64_t outputs)
      : data_(static_cast<Stored*>(view.data)), strides_(strides_of(args, view.strides, outputs)) {}
  Stored* operator()(const Place& at) const {
    return data_ + at.clip * strides_[0] + at.t * strides_[1] + at.u * strides_[2];
  }

 private:
  Stored* data_;
  std::array<std::int64_t, 3> strides_;
};

// The caller's logits, for a walk.
template <class E>
class Given {
 public:
  explicit Given(const TransducerArgs& args)
      : tokens(args, args.token_logits, args.tokens),
        durations(args, args.duration_logits, static_cast<std::int64_t>(args.durations.size())),
        cells_(args),
        blank_(args.blank) {}

  [[nodiscard]] double blank(const Place& at) const { return E::load(tokens(at)[blank_]); }
  [[nodiscard]] double label(const Place& at) const { return E::load(tokens(at)[cells_.target(at)]); }
  [[nodiscard]] double duration(const Place& at, std::int64_t i) const { return E::load(durations(at)[i]); }

  Rows<const typename E::Stored> tokens, durations;

 private:
  Cells cells_;
  std::int64_t blank_;
};

template <class E>
void loss(const TransducerArgs& args, float* losses) {
  const Given<E> logits(args);
  const Walk<Given<E>> walk(args, logits);
  const Outputs outputs(args);
  walk.pack();
  auto norms = [&](std::int64_t i, cpu::Scratch&) {
    const std::int64_t clip = i / args.frames, t = i % args.frames;
    for (std::int64_t u = 0; t < walk.frames(clip) && u <= walk.labels(clip); ++u) {
      const Place at{clip, t, u};
      set_norms<E>(walk.cell(at), outputs, logits.tokens(at), logits.durations(at));
    }
  };
  cpu::parallel_for(args.batch * args.frames, args.threads, norms);
  walk_all(args, walk);
  write_losses(args, losses);
}

template <class E>
void gradient(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
              TransducerView<void> duration_grad) {
  using Stored = typename E::Stored;
  const Given<E> logits(args);
  const Walk<Given<E>> walk(args, logits);
  const Outputs outputs(args);
  const std::int64_t labels = all_labels(args);
  const Rows<Stored> tokens(args, token_grad, outputs.tokens);
  const Rows<Stored> durations(args, duration_grad, outputs.durations);
  auto frame = [&](std::int64_t i, cpu::Scratch&) {
    const std::int64_t clip = i / args.frames, t = i % args.frames;
    const double factor = factor_of(args, grad_losses, clip, labels);
    for (std::int64_t u = 0; u < args.positions; ++u) {
      const Place at{clip, t, u};
      if (t < walk.frames(clip) && u <= walk.labels(clip)) {
        row_gradient<E>(walk.cell(at), outputs, walk.taken(at), walk.target(at), factor, logits.tokens(at),
                        logits.durations(at), tokens(at), durations(at));
      } else {
        std::fill_n(tokens(at), outputs.tokens, Stored{});
        std::fill_n(durations(at), outputs.durations, Stored{});
      }
    }
  };
  cpu::parallel_for(args.batch * args.frames, args.threads, frame);
}

}  // namespace

void loss_cpu(const TransducerArgs& args, float* losses) {
  by_element(args.dtype, [&](auto element) { loss<decltype(element)>(args, losses); });
}

void gradient_cpu(const TransducerArgs& args, const float* grad_losses, TransducerView<void> token_grad,
                  TransducerView<void> duration_grad) {
  by_element(args.dtype, [&](auto element) {
    gradient<decltype(element)>(args, grad_losses, token_grad, duration_grad);
  });
}

}  // namespace octavo::transducer
