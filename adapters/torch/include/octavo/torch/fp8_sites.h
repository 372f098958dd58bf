// Sites: each weight of FP8 matmuls has one. It has the states of delayed scaling of x, w and dy, which all
// matmuls with this weight share, and the codes of the weight's current values.
//
// A site is found by the weight's memory, so a view of a parameter (t(), squeeze, view) has the parameter's
// site.
// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/StorageImpl.h>
#include <octavo/torch/fp8_layer.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace octavo::torch::fp8 {

// The states of all sites of a device in one tensor: [sites, 3, 2 scales + history].
class States {
 public:
  States(const ::torch::Device& device, std::int64_t history) : device_(device), history_(history) {}

  const ::torch::Device& device() const { return device_; }
  std::int64_t sites() const { return used_; }

  std::int64_t add() {
    if (!all_.defined() || used_ == all_.size(0)) {
      const Tensor more = fresh(all_.defined() ? 2 * used_ : 16);
      if (all_.defined()) more.narrow(0, 0, used_).copy_(all_);
      all_ = more;
    }
    return used_++;
  }
  void reset(std::int64_t site) const { of(site).copy_(fresh(1)[0]); }
  Tensor of(std::int64_t site) const { return all_[site]; }
  Tensor all() const { return all_.narrow(0, 0, used_); }
  // Returns the maxima of the current step as a view: [sites, 3].
  Tensor amaxes() const { return all().select(2, kScales); }

  Delayed at(std::int64_t site, bool gather = true) const {
    return {all_.data_ptr<float>() + 3 * site * (kScales + history_), gather};
  }

  void update(const Numbers& numbers) const {
    octavo_fp8_scale_args args = native::sized<octavo_fp8_scale_args>();
    args.device_kind = native::device_kind(device_);
    args.device_index = native::device_index(device_);
    args.algo = numbers.algo, args.margin = numbers.margin;
    args.states = all_.data_ptr<float>();
    args.tensors = 3 * used_, args.length = history_;
    args.stream = native::handle_of(native::current_stream(device_));
    native::check(octavo_fp8_update_scales(&args), "octavo::torch::fp8: ");
  }

 private:
  static constexpr std::int64_t kScales = 2;

  Tensor fresh(std::int64_t sites) const {
    const c10::InferenceMode lasting(false);  // training changes states that an evaluation may have created
    const Tensor states = ::torch::zeros({sites, 3, kScales + history_},
                                         ::torch::TensorOptions().dtype(::torch::kFloat32).device(device_));
    states.narrow(2, 0, kScales).fill_(1.0F);
    return states;
  }

  ::torch::Device device_;
  std::int64_t history_, used_ = 0;
  Tensor all_;
};

// The codes of a weight in one shape, for one stream: work on another stream would not wait for the cast.
struct CastWeight {
  // Groups, inputs, outputs, transposed_weight, and the stream.
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, native::MaybeStream>;

  Key key;
  std::uint32_t passes = 0;  // the passes that the codes are valid for
  std::int64_t version = 0;
  // The memory that was cast. A parameter keeps its version when its memory is replaced.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
  const void* data = nullptr;
  Codes codes;

  bool has_values_of(const Tensor& w, std::int64_t now) const {
    return version == now && data == w.const_data_ptr() && storage && !storage->expired() &&
           storage->_unsafe_get_target() == w.storage().unsafeGetStorageImpl();
  }
};

// The address of a weight, and its number of elements.
using Memory = std::pair<const void*, std::int64_t>;

struct Site {
  std::string name;
  Tensor weight;  // of an added site; other sites have the storage only
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
  Memory memory;  // of a site that was not added
  ::torch::Device device{::torch::kCPU};
  std::int64_t number = 0;  // index in the states of its device
  std::vector<CastWeight> casts;
  // Calls with a pending backward pass hold a copy, so that another weight does not get the states.
  std::shared_ptr<const char> in_use = std::make_shared<const char>();

  bool added() const { return weight.defined(); }
  bool is_gone() const { return storage && storage->expired(); }
  bool is_free() const { return is_gone() && in_use.use_count() == 1; }
};

class Sites {
 public:
  explicit Sites(const Numbers& numbers) : numbers_(numbers) {}

  // States are in the order of these calls.
  void add(std::string name, const Tensor& weight) {
    TORCH_CHECK(weight.defined(), "octavo::torch::fp8: weight \"", name, "\" is undefined");
    for (const Site& site : sites_)
      TORCH_CHECK(site.name != name, "octavo::torch::fp8: there are two weights with the name \"", name,
                  "\"");
    Site& site = make(std::move(name), weight);
    site.weight = weight;
    only_added_ = true;
    by_memory_.emplace(memory_of(weight), &site);
  }

  // Returns null if weights were added, and this is not one of them.
  Site* find(const Tensor& weight) {
    const auto found = by_memory_.find(memory_of(weight));
    if (found != by_memory_.end() && is_alive(*found->second, weight)) return checked(*found->second, weight);
    return only_added_ ? find_moved(weight) : make_anonymous(weight);
  }

  // Returns the codes of a weight for these passes. Casts it if its values have changed. `w` is dense.
  Codes codes(Site& site, const Layer& layer, const Tensor& w, std::uint32_t passes) {
    const std::int64_t version = w.is_inference() ? 0 : w._version();
    const native::MaybeStream stream = native::current_stream(layer.device());
    // A graph replays its own cast, with the weight's values at that time. Its replays may write weights
    // without notice, so no codes are reused from then on.
    captured_ = captured_ || native::capturing(stream);
    if (captured_) {
      Codes made;
      layer.cast(kW, w, passes, delayed(site), made);
      ++casts_;
      return made;
    }
    CastWeight& cast = cast_of(site, layer.shape(), stream);
    if (!cast.has_values_of(w, version)) cast.passes = 0;
    if ((passes & ~cast.passes) == 0) return cast.codes;
    passes |= cast.passes;
    // Codes that a graph still needs are not overwritten.
    for (Tensor* codes : {&cast.codes.by_rows, &cast.codes.transposed})
      if (codes->defined() && (codes->use_count() > 1 || codes->storage().use_count() > 1)) *codes = Tensor();
    layer.cast(kW, w, passes, delayed(site), cast.codes);
    cast.passes = passes, cast.version = version;
    cast.storage = w.storage().getWeakStorageImpl(), cast.data = w.const_data_ptr();
    ++casts_;
    return cast.codes;
  }

  Delayed delayed(const Site& site, bool gather = true) const {
    return numbers_.delayed() ? states_of(site.device).at(site.number, gather) : Delayed();
  }

  void forget_codes() {
    for (Site& site : sites_)
      for (CastWeight& cast : site.casts) cast.passes = 0;
  }

  const std::deque<Site>& all() const { return sites_; }
  const std::deque<States>& states() const { return states_; }
  const States& states_of(const ::torch::Device& device) const {
    for (const States& states : states_)
      if (states.device() == device) return states;
    TORCH_INTERNAL_ASSERT(false);
  }
  std::int64_t casts() const { return casts_; }

 private:
  static Memory memory_of(const Tensor& weight) { return {weight.const_data_ptr(), weight.numel()}; }

  // Another tensor may have been allocated at the same address.
  static bool is_alive(const Site& site, const Tensor& weight) {
    if (site.added()) return memory_of(site.weight) == memory_of(weight);
    return !site.is_gone() && site.storage->_unsafe_get_target() == weight.storage().unsafeGetStorageImpl();
  }
  static Site* checked(Site& site, const Tensor& weight) {
    TORCH_CHECK(site.device == weight.device(), "octavo::torch::fp8: weight \"", site.name,
                "\" was added on ", site.device, " and is now on ", weight.device(),
                "; add weights after they are moved");
    return &site;
  }

  // Finds a parameter whose memory was replaced after it was added.
  Site* find_moved(const Tensor& weight) {
    for (Site& site : sites_) {
      if (!site.added() || memory_of(site.weight) != memory_of(weight)) continue;
      by_memory_[memory_of(weight)] = &site;
      return checked(site, weight);
    }
    return nullptr;
  }

  // Returns a site for a weight that was not added: a free one whose weight was destroyed, or a new one.
  Site* make_anonymous(const Tensor& weight) {
    Site* site = nullptr;
    for (Site& gone : sites_) {
      if (!gone.is_free() || gone.device != weight.device()) continue;
      if (numbers_.delayed()) states_of(gone.device).reset(gone.number);
      gone.casts.clear();
      site = &gone;
      break;
    }
    // Another weight may use its memory by now.
    if (site != nullptr) {
      const auto old = by_memory_.find(site->memory);
      if (old != by_memory_.end() && old->second == site) by_memory_.erase(old);
    }
    if (site == nullptr) site = &make("weight " + std::to_string(sites_.size()), weight);
    site->storage = weight.storage().getWeakStorageImpl();
    site->memory = memory_of(weight);
    by_memory_[site->memory] = site;
    return site;
  }

  Site& make(std::string name, const Tensor& weight) {
    Site& site = sites_.emplace_back();
    site.name = std::move(name);
    site.device = weight.device();
    if (!numbers_.delayed()) return site;
    States* own = nullptr;
    for (States& states : states_)
      if (states.device() == site.device) own = &states;
    if (own == nullptr) own = &states_.emplace_back(site.device, numbers_.history);
    site.number = own->add();
    return site;
  }

  static CastWeight& cast_of(Site& site, const Shape& shape, const native::MaybeStream& stream) {
    const CastWeight::Key key(shape.groups, shape.inputs, shape.outputs, shape.transposed_weight, stream);
    for (CastWeight& cast : site.casts)
      if (cast.key == key) return cast;
    CastWeight& cast = site.casts.emplace_back();
    cast.key = key;
    return cast;
  }

  const Numbers numbers_;
  std::deque<Site> sites_;  // a deque: pointers to sites stay valid
  std::deque<States> states_;
  std::map<Memory, Site*> by_memory_;
  bool only_added_ = false;
  bool captured_ = false;  // a CUDA graph contains a matmul
  std::int64_t casts_ = 0;
};

}  // namespace octavo::torch::fp8
