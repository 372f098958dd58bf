// The context of a model's FP8 matmuls: options, the sites of weights, the choice of passes by shape, and
// workspaces. The matmuls are in fp8_function.h.
// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/autocast_mode.h>
#include <octavo/torch/fp8_choice.h>
#include <octavo/torch/fp8_sites.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace octavo::torch::fp8 {

// The state that a run saves to resume with the same bits.
struct State {
  std::vector<std::pair<std::string, Tensor>> tensors;  // by weight: [3, 2 scales + history] of x, w and dy
  std::vector<std::string> decisions;                   // Decision::saved()
};

// A call of matmul, until its backward pass is done.
struct Call;

// Thread-safe, because a backward pass may run in another thread than the forward pass.
class Context : public std::enable_shared_from_this<Context> {
 public:
  // Graphs share the ownership of their context.
  static std::shared_ptr<Context> make(const Options& options = {}) {
    return std::shared_ptr<Context>(new Context(options));
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Options& options() const { return options_; }

  // Adds a parameter as a site; states are in the order of these calls. Without such calls, matmuls with
  // every weight are in FP8; with them, matmuls with other weights stay plain. Checkpoints and messages use
  // the name.
  void add(std::string name, const Tensor& weight) {
    const Lock lock(mutex_);
    sites_.add(std::move(name), weight);
  }

  // Returns true if the device supports FP8. If not, it is an error, or with the fallback bf16 a warning,
  // logged once. matmul() checks this automatically.
  bool is_available(const ::torch::Device& device) {
    const Lock lock(mutex_);
    return has_fp8(device);
  }

  // x [.., in] with w [in, out]: [.., out]. w is dense, or the t() of a dense [out, in]. The result has x's
  // dtype, or autocast's.
  Tensor matmul(const Tensor& x, const Tensor& w);
  // A matmul for each group: w is [groups, in, out], x is [groups, tokens, in], or [tokens, in] for
  // one_input; the result is [groups, tokens, out], or [tokens, out] for one_output.
  Tensor matmul_batched(const Tensor& x, const Tensor& w, Shared shared = {});

  // Ends a step. Call it after the optimizer's step. Updates scales from the maxima of the step, and casts
  // weights again at their next use. After a skipped step scales stay, and its maxima are dropped.
  void step_done(bool skipped = false) {
    end_step([&](const Tensor& maxima) {
      if (skipped) maxima.zero_();
    });
  }
  // `skipped` is one number on any device, which is not 0 after a skipped step. The host does not wait for
  // it.
  void step_done(const Tensor& skipped) {
    TORCH_CHECK(skipped.numel() == 1, "octavo::torch::fp8: step_done got ", skipped.sizes(),
                ", expected one number that is not 0 after a skipped step");
    end_step([&](const Tensor& maxima) {
      maxima.masked_fill_(skipped.to(maxima.device()).ne(0).view({1, 1}), 0.0);
    });
  }

  // Returns the maxima of the current step of all sites; empty for recipes without states. For several ranks,
  // pass their maximum over ranks to set_amaxes() before step_done().
  Tensor amaxes() const {
    const Lock lock(mutex_);
    std::vector<Tensor> parts;
    for (const States& states : sites_.states())
      parts.push_back(states.amaxes().reshape({-1}).to(sites_.states().front().device()));
    return parts.empty() ? ::torch::empty({0}) : ::torch::cat(parts);
  }
  void set_amaxes(const Tensor& amaxes) const {
    const Lock lock(mutex_);
    const ::torch::NoGradGuard no_grad;
    std::int64_t first = 0, all = 0;
    for (const States& states : sites_.states()) all += 3 * states.sites();
    TORCH_CHECK(amaxes.dim() == 1 && amaxes.numel() == all, "octavo::torch::fp8: set_amaxes got ",
                amaxes.sizes(), ", expected [", all, "]: three for each of ", all / 3, " weights");
    for (const States& states : sites_.states()) {
      states.amaxes().copy_(amaxes.narrow(0, first, 3 * states.sites()).view({-1, 3}));
      first += 3 * states.sites();
    }
  }

  // state() returns copies. check() throws if load() would, and changes nothing.
  State state() const {
    const Lock lock(mutex_);
    State out;
    if (numbers_.delayed())
      for (const Site& site : sites_.all())
        out.tensors.emplace_back(site.name, sites_.states_of(site.device).of(site.number).clone());
    for (const auto& [shape, decision] : decisions_) out.decisions.push_back(decision.saved());
    return out;
  }
  void check(const State& state) const {
    const Lock lock(mutex_);
    check_locked(state);
  }
  void load(const State& state) {
    const Lock lock(mutex_);
    const ::torch::NoGradGuard no_grad;
    check_locked(state);
    for (const auto& [name, tensor] : state.tensors) {
      const Site& site = *named(name);
      sites_.states_of(site.device).of(site.number).copy_(tensor);
    }
    sites_.forget_codes();
    decisions_.clear();
    for (const std::string& saved : state.decisions) {
      const Decision decision = Decision::from(saved);
      decisions_[decision.shape] = decision;
    }
  }

  // Returns the measured decisions, by shape.
  std::vector<Decision> decisions() const {
    const Lock lock(mutex_);
    std::vector<Decision> out;
    for (const auto& [shape, decision] : decisions_) out.push_back(decision);
    return out;
  }
  // Replaces decisions by those of another process. Call it between steps, because a recomputed forward pass
  // must use the decisions of the first one.
  void adopt(const std::vector<std::string>& saved) {
    std::vector<Decision> all;
    for (const std::string& one : saved) all.push_back(Decision::from(one));
    const Lock lock(mutex_);
    for (const Decision& decision : all) decisions_[decision.shape] = decision;
  }
  // If false, shapes without a decision are in FP8 until adopt() is called. Set it on all ranks but the
  // first.
  void set_measuring(bool measuring) {
    const Lock lock(mutex_);
    measuring_ = measuring;
  }

  // Sets the function that logs decisions and matmuls that stay plain; the default is a warning of torch. It
  // is called once per text, also from the threads of a backward pass, and must not call the context.
  using Log = std::function<void(const std::string&)>;
  void set_log(Log log) {
    const Lock lock(mutex_);
    log_ = std::move(log);
  }

  // Returns the bytes of weights' codes, scales and histories.
  std::int64_t bytes() const {
    const Lock lock(mutex_);
    std::int64_t out = 0;
    for (const Site& site : sites_.all())
      for (const CastWeight& cast : site.casts)
        for (const Tensor* codes : {&cast.codes.by_rows, &cast.codes.transposed})
          out += codes->defined() ? static_cast<std::int64_t>(codes->nbytes()) : 0;
    for (const States& states : sites_.states()) out += static_cast<std::int64_t>(states.all().nbytes());
    return out;
  }

  // Returns the number of casts of weights so far.
  std::int64_t weight_casts() const {
    const Lock lock(mutex_);
    return sites_.casts();
  }

 private:
  friend struct Multiply;
  using Lock = std::lock_guard<std::mutex>;

  explicit Context(const Options& options) : options_(options), numbers_(options), sites_(numbers_) {}

  Tensor multiply(const Tensor& x, const Tensor& w, Shape shape);
  static Tensor plainly(const Tensor& x, const Tensor& w, const Shape& shape);

  // Returns why a matmul stays plain; empty: it does not.
  std::string why_plain(const Shape& shape, const Layer& layer, const Tensor& w) {
    for (const ::torch::ScalarType type : {shape.x, shape.w, shape.y})
      if (native::dtype_number(type) < 0) return std::string(c10::toString(type)) + " has no FP8";
    if (!(shape.transposed_weight ? w : w.mT()).is_contiguous()) return "the weight is not dense in memory";
    return layer.why_not();
  }

  // See is_available().
  bool has_fp8(const ::torch::Device& device) {
    const auto found = devices_.find({device.type(), device.index()});
    if (found != devices_.end()) return found->second;
    const std::string why = why_unsupported(device, numbers_.recipe);
    TORCH_CHECK(why.empty() || numbers_.may_fall_back, why,
                why.find("fallback") == std::string::npos ? "; set fallback to bf16 for plain matmuls" : "");
    if (!why.empty()) log_once(why + "; matmuls stay plain");
    devices_[{device.type(), device.index()}] = why.empty();
    return why.empty();
  }

  // Returns the passes in FP8. x and w are [groups, rows, columns], as in memory.
  std::uint32_t choose(const Layer& layer, const Tensor& x, const Tensor& w) {
    if (!numbers_.measure) return kAllPasses;
    const ShapeKey key(layer.shape());
    const auto found = decisions_.find(key);
    if (found != decisions_.end()) return found->second.passes;
    if (layer.device().is_meta() && planned() != nullptr) return planned()->choose(layer.shape());
    const native::MaybeStream stream = native::current_stream(layer.device());
    if (!measuring_ || !stream || native::capturing(stream)) return kAllPasses;  // no stream: the CPU
    const Decision decision = measured_or_plain(layer, x, w);
    decisions_[key] = decision;
    return decision.passes;
  }

  // Measuring may need more memory than training. The shape stays plain if it is not available.
  Decision measured_or_plain(const Layer& layer, const Tensor& x, const Tensor& w) {
    try {
      Decision out = measured(layer, numbers_, x, w, options_.casts_of_weight, workspace(layer));
      log_once(out.text());
      return out;
    } catch (const c10::OutOfMemoryError&) {
      Decision out;
      out.shape = ShapeKey(layer.shape());
      out.times = native::sized<octavo_fp8_times>();
      log_once(out.words() +
               " plain: there is no memory to time both ways in; select \"always\" takes FP8 untimed");
      return out;
    }
  }

  // Returns the workspace of this thread's stream, which its matmuls share, because they run in order.
  void* workspace(const Layer& layer) {
    const ::torch::Device& device = layer.device();
    const native::MaybeStream stream = native::current_stream(device);
    if (!stream && !device.is_meta()) return nullptr;
    Tensor& buffer = workspaces_[{device.index(), stream ? stream->id() : 0}];
    if (!buffer.defined()) buffer = native::bytes(layer.workspace_bytes(), device);
    return buffer.data_ptr();
  }

  // Logs a line once.
  void log_once(const std::string& line) {
    if (!said_.insert(line).second) return;
    if (log_)
      log_(line);
    else
      TORCH_WARN("octavo::torch::fp8: ", line);
  }

  // `prepare` changes the maxima before the update.
  template <class F>
  void end_step(F&& prepare) {
    const Lock lock(mutex_);
    const ::torch::NoGradGuard no_grad;
    for (const States& states : sites_.states()) {
      prepare(states.amaxes());
      states.update(numbers_);
    }
    sites_.forget_codes();
  }

  const Site* named(const std::string& name) const {
    for (const Site& site : sites_.all())
      if (site.name == name) return &site;
    return nullptr;
  }
  void check_locked(const State& state) const {
    std::set<std::string> given;
    for (const auto& [name, tensor] : state.tensors) {
      const Site* const site = named(name);
      TORCH_CHECK(numbers_.delayed() && site != nullptr, "octavo::torch::fp8: the state has \"", name,
                  "\", which is none of the weights",
                  numbers_.delayed() ? "" : ": only the recipe delayed has states");
      const Tensor own = sites_.states_of(site->device).of(site->number);
      TORCH_CHECK(tensor.sizes() == own.sizes() && tensor.scalar_type() == own.scalar_type(),
                  "octavo::torch::fp8: the state of \"", name, "\" is ", tensor.sizes(), " of ",
                  c10::toString(tensor.scalar_type()), ", expected ", own.sizes(),
                  " of Float: keep amax_history_len");
      TORCH_CHECK(
          tensor.narrow(1, 0, 2).gt(0).logical_and(tensor.isfinite().narrow(1, 0, 2)).all().item<bool>() &&
              tensor.narrow(1, 2, tensor.size(1) - 2).ge(0).all().item<bool>(),
          "octavo::torch::fp8: the state of \"", name,
          "\" is damaged, expected finite scales above 0 and maxima of 0 or more");
      given.insert(name);
    }
    if (numbers_.delayed())
      for (const Site& site : sites_.all())
        TORCH_CHECK(given.count(site.name) != 0, "octavo::torch::fp8: the state has nothing of \"", site.name,
                    "\"");
    for (const std::string& saved : state.decisions) Decision::from(saved);
  }

  const Options options_;
  const Numbers numbers_;
  mutable std::mutex mutex_;
  Sites sites_;
  std::map<ShapeKey, Decision> decisions_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, bool> devices_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Tensor> workspaces_;
  std::set<std::string> said_;
  Log log_;
  bool measuring_ = true;
};

// --- scopes ---

inline std::shared_ptr<Context>& current_slot() {
  thread_local std::shared_ptr<Context> slot;
  return slot;
}
// Returns the context of the innermost scope of this thread; null: none.
inline const std::shared_ptr<Context>& current() { return current_slot(); }

// Makes a context the current one of this thread; null: no context.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Context> context) : before_(std::move(context)) {
    before_.swap(current_slot());
  }
  ~Scope() { before_.swap(current_slot()); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::shared_ptr<Context> before_;
};

}  // namespace octavo::torch::fp8
