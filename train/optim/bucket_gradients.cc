// SPDX-License-Identifier: MIT
#include "train/optim/bucket_gradients.h"

#include "train/nn/recompute.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace octavo_train {
namespace {

torch::ScalarType own_type(const Bucket& bucket) { return static_cast<torch::ScalarType>(bucket.type); }

std::int64_t flat_bytes(const Bucket& bucket, torch::ScalarType type) {
  return bucket.elements * static_cast<std::int64_t>(c10::elementSize(type));
}

}  // namespace

BucketTensors::BucketTensors(BucketLayout layout, int rank, const NamedTensors& parameters,
                             const GradientOptions& options)
    : layout_(std::move(layout)), rank_(rank), options_(options) {
  for (const auto& [name, param] : parameters) {
    TORCH_CHECK(param.is_non_overlapping_and_dense(), name, ": its elements do not lie one after the other");
    shapes_.push_back({param.sizes().vec(), param.strides().vec()});
  }
  if (parameters.empty()) return;
  const torch::Device device = parameters[0].second.device();
  std::int64_t largest = 0;
  for (std::size_t b = 0; b < layout_.buckets().size(); ++b) {
    const auto kind = torch::TensorOptions(sum_type(bucket(b))).device(device);
    if (options_.each_micro_batch) {
      largest = std::max(largest, flat_bytes(bucket(b), reduce_type(bucket(b))));
      mine_.push_back(torch::zeros({layout_.chunk(b, rank_).elements()}, kind));
      bytes_ += static_cast<std::int64_t>(mine_.back().nbytes());
    } else {
      whole_.push_back(torch::zeros({bucket(b).elements}, kind));
      mine_.push_back(part(b, whole_.back()));
      bytes_ += static_cast<std::int64_t>(whole_.back().nbytes());
    }
  }
  if (!options_.each_micro_batch) return;
  slots_.resize(mine_.size() > 1 || options_.micro_batches > 1 ? 2 : 1);
  for (torch::Tensor& slot : slots_) {
    slot = torch::zeros({largest}, torch::TensorOptions(torch::kUInt8).device(device));
    slot_bytes_ += largest;
  }
}

torch::ScalarType BucketTensors::sum_type(const Bucket& bucket) const {
  const torch::ScalarType own = own_type(bucket);
  const bool half = own == torch::kBFloat16 || own == torch::kFloat16;
  return half && (options_.micro_batches > 1 || options_.reduce_in_fp32) ? torch::kFloat32 : own;
}

torch::ScalarType BucketTensors::reduce_type(const Bucket& bucket) const {
  return options_.each_micro_batch && !options_.reduce_in_fp32 ? own_type(bucket) : sum_type(bucket);
}

torch::Tensor BucketTensors::whole(std::size_t number, std::size_t slot) const {
  if (!options_.each_micro_batch) return whole_[number];
  const torch::ScalarType type = reduce_type(bucket(number));
  return slots_[slot].narrow(0, 0, flat_bytes(bucket(number), type)).view(type);
}

BucketTensors::Tensors BucketTensors::views(std::size_t number, const torch::Tensor& whole) const {
  Tensors out;
  for (std::size_t k = 0; k < bucket(number).parameters.size(); ++k) {
    const Shape& shape = shapes_[bucket(number).parameters[k]];
    out.push_back(whole.as_strided(shape.sizes, shape.strides, bucket(number).begins[k]));
  }
  return out;
}

torch::Tensor BucketTensors::part(std::size_t bucket, const torch::Tensor& whole) const {
  const Piece chunk = layout_.chunk(bucket, rank_);
  return whole.narrow(0, chunk.begin, chunk.elements());
}

torch::Tensor BucketTensors::gradient(std::size_t parameter, const torch::Tensor& stepped) const {
  const std::size_t bucket = layout_.bucket_of(parameter);
  const Piece piece = layout_.piece(parameter, rank_);
  const torch::Tensor& sums = mine_[bucket];
  TORCH_CHECK(stepped.numel() == piece.elements(), "the optimizer steps ", stepped.numel(),
              " elements of parameter ", parameter, ", expected ", piece.elements());
  if (piece.elements() == 0) return torch::empty(stepped.sizes(), sums.options());
  const std::int64_t begin = layout_.begin_of(parameter) + piece.begin - layout_.chunk(bucket, rank_).begin;
  return sums.as_strided(stepped.sizes(), stepped.strides(), sums.storage_offset() + begin);
}

struct BucketGradients::Hook final : torch::autograd::PostAccumulateGradHook {
  Hook(BucketGradients& gradients, std::size_t number) : all(gradients), parameter(number) {}
  void operator()(const torch::autograd::Variable& /*tensor*/) override { all.came(parameter); }
  BucketGradients& all;
  std::size_t parameter;
};

void BucketGradients::Queued::done() {
  pending.wait();
  if (part.defined() && first) into.copy_(part);
  if (part.defined() && !first) into.add_(part);
  *this = Queued();
}

BucketGradients::BucketGradients(ProcessGroup& process_group, BucketLayout layout, NamedTensors parameters,
                                 std::vector<torch::Tensor> stepped, const GradientOptions& options)
    : process_group_(process_group),
      options_(options),
      parameters_(std::move(parameters)),
      tensors_(std::move(layout), process_group.rank(), parameters_, options),
      stepped_(std::move(stepped)),
      queued_(options.each_micro_batch ? tensors_.slots() : tensors_.count()),
      filled_(parameters_.size(), false),
      had_(parameters_.size(), false) {
  for (std::size_t b = 0; b < tensors_.count() && !options_.each_micro_batch; ++b)
    views_.push_back(tensors_.views(b, tensors_.whole(b)));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    given_.push_back(tensors_.gradient(i, stepped_[i]));
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i].second, std::make_unique<Hook>(*this, i));
  }
  arm();
}

BucketGradients::~BucketGradients() {
  for (const auto& [name, param] : parameters_)
    torch::autograd::impl::set_post_acc_grad_hooks(param, nullptr);
}

void BucketGradients::clear() {
  micro_batches_ = most_ = done_ = started_ = 0;
  next_ = 0;
  filled_.assign(parameters_.size(), false);
  had_.assign(parameters_.size(), false);
  for (Queued& each : queued_) each = Queued();  // may be left over from a step that failed
  for (auto& [name, param] : parameters_) param.mutable_grad().reset();
  for (torch::Tensor& tensor : stepped_) tensor.mutable_grad().reset();
  arm();
}

void BucketGradients::expect(std::int64_t micro_batches, std::int64_t most) {
  micro_batches_ = micro_batches;
  most_ = most;
}

// Prepares for the next micro-batch: no parameter is ready.
void BucketGradients::arm() {
  came_.assign(parameters_.size(), false);
  waiting_.clear();
  for (std::size_t b = 0; b < tensors_.count(); ++b) waiting_.push_back(tensors_.bucket(b).parameters.size());
}

void BucketGradients::came(std::size_t parameter) {
  if (done_ >= micro_batches_ || came_[parameter] || gradients_come_again()) return;
  came_[parameter] = true;
  const std::size_t bucket = tensors_.layout().bucket_of(parameter);
  if (--waiting_[bucket] > 0) return;
  const torch::NoGradGuard no_grad;
  // Moving the gradients frees their memory, even if the reduction cannot start yet.
  if (!options_.each_micro_batch) move(bucket, views_[bucket]);
  if (!starts_now()) return;
  while (next_ < tensors_.count() && waiting_[next_] == 0) start(next_++);
}

// Returns true if torch should add the next micro-batch to the parameter's gradient. This is so for gradients
// that come in parts, so that the parts are added in the same order as in one process.
bool BucketGradients::adds_up(std::size_t parameter) const {
  const std::size_t bucket = tensors_.layout().bucket_of(parameter);
  const bool more = done_ + 1 < micro_batches_;
  return more && !came_[parameter] &&
         parameters_[parameter].second.scalar_type() == tensors_.mine(bucket).scalar_type();
}

// Adds the gradients of a bucket's parameters to its flat tensor and frees them.
void BucketGradients::move(std::size_t bucket, const Tensors& into) {
  Tensors first, first_grads, more, more_grads;
  for (std::size_t k = 0; k < into.size(); ++k) {
    const std::size_t i = tensors_.bucket(bucket).parameters[k];
    torch::Tensor& grad = parameters_[i].second.mutable_grad();
    if (!grad.defined() || adds_up(i)) continue;
    TORCH_CHECK(grad.layout() == torch::kStrided, parameters_[i].first, ": its gradient is ", grad.layout(),
                ", expected a dense one; ranks do not sum others");
    (filled_[i] ? more : first).push_back(into[k]);
    (filled_[i] ? more_grads : first_grads).push_back(grad);
    grad.reset();
    filled_[i] = had_[i] = true;
  }
  if (!first.empty()) at::_foreach_copy_(first, first_grads);
  if (!more.empty()) at::_foreach_add_(more, more_grads);
}

Pending BucketGradients::reduce(std::size_t bucket, const torch::Tensor& part, const torch::Tensor& whole) {
  if (whole.numel() == 0) return {};
  const int owner = tensors_.bucket(bucket).owner;
  if (!tensors_.layout().divided()) return process_group_.all_reduce(whole);
  return owner < 0 ? process_group_.reduce_scatter(part, whole) : process_group_.reduce(whole, owner);
}

void BucketGradients::start(std::size_t bucket) {
  const std::size_t slot = static_cast<std::size_t>(started_++) % queued_.size();
  Queued& queued = queued_[options_.each_micro_batch ? slot : bucket];
  queued.done();
  const torch::Tensor whole = tensors_.whole(bucket, slot);
  const std::vector<std::size_t>& members = tensors_.bucket(bucket).parameters;
  if (options_.each_micro_batch) {
    for (const std::size_t i : members) filled_[i] = false;
  }
  const Tensors views = options_.each_micro_batch ? tensors_.views(bucket, whole) : views_[bucket];
  move(bucket, views);
  Tensors empty;
  for (std::size_t k = 0; k < members.size(); ++k) {
    if (!filled_[members[k]]) empty.push_back(views[k]);
  }
  if (!empty.empty()) at::_foreach_zero_(empty);

  const torch::Tensor& mine = tensors_.mine(bucket);
  // The first micro-batch of a step may be reduced directly into the sums.
  const bool there = !options_.each_micro_batch || (done_ == 0 && tensors_.bucket(bucket).owner < 0 &&
                                                    mine.scalar_type() == whole.scalar_type());
  const torch::Tensor part = there ? mine : tensors_.part(bucket, whole);
  queued.pending = reduce(bucket, part, whole);
  if (there) return;
  queued.part = part;
  queued.into = mine;
  queued.first = done_ == 0;
}

void BucketGradients::start_all() {
  while (next_ < tensors_.count()) start(next_++);
}

void BucketGradients::micro_batch_done() {
  const torch::NoGradGuard no_grad;
  if (starts_now()) {
    start_all();
  } else {
    for (std::size_t b = 0; b < tensors_.count(); ++b) move(b, views_[b]);
  }
  ++done_;
  if (options_.each_micro_batch) next_ = 0;
  arm();
}

// Combines had_ and `late` over ranks: had_ marks parameters that have a gradient on any rank, `late` marks
// buckets that have a late gradient on any rank.
void BucketGradients::agree_on_gradients(std::vector<bool>& late) {
  std::vector<bool> bits = had_;
  bits.insert(bits.end(), late.begin(), late.end());
  std::string mine((bits.size() + 7) / 8, '\0');
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) mine[i / 8] = static_cast<char>(mine[i / 8] | (1 << (i % 8)));
  }
  for (const std::string& each : process_group_.gather(mine)) {
    for (std::size_t i = 0; i < bits.size(); ++i) {
      if ((each[i / 8] >> (i % 8) & 1) != 0) bits[i] = true;
    }
  }
  const auto end = bits.begin() + static_cast<std::ptrdiff_t>(had_.size());
  had_.assign(bits.begin(), end);
  late.assign(end, bits.end());
}

void BucketGradients::reduce_late(std::size_t bucket) {
  torch::Tensor mine = tensors_.mine(bucket);
  const torch::Tensor whole = torch::zeros({tensors_.bucket(bucket).elements}, mine.options());
  for (const std::size_t i : tensors_.bucket(bucket).parameters) filled_[i] = false;
  move(bucket, tensors_.views(bucket, whole));
  const torch::Tensor part = tensors_.part(bucket, whole);
  reduce(bucket, part, whole).wait();
  mine.add_(part);
}

void BucketGradients::finish() {
  const torch::NoGradGuard no_grad;
  if (!options_.each_micro_batch) start_all();
  for (; options_.each_micro_batch && done_ < most_; ++done_) {
    start_all();
    next_ = 0;
  }
  std::vector<bool> late(tensors_.count(), false);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].second.grad().defined()) late[tensors_.layout().bucket_of(i)] = true;
  }
  if (process_group_.ranks() > 1) agree_on_gradients(late);
  // Waits in the order in which the reductions were queued.
  for (std::size_t k = 0; k < queued_.size(); ++k)
    queued_[(static_cast<std::size_t>(started_) + k) % queued_.size()].done();
  for (std::size_t b = 0; b < tensors_.count(); ++b) {
    if (late[b]) reduce_late(b);
  }
  for (std::size_t i = 0; i < stepped_.size(); ++i) {
    if (had_[i]) stepped_[i].mutable_grad() = given_[i];
  }
}

}  // namespace octavo_train
