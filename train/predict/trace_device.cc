// SPDX-License-Identifier: MIT
#include "train/predict/trace_device.h"

#include "train/predict/operators.h"

#include <ATen/autocast_mode.h>
#include <c10/core/Allocator.h>
#include <octavo/torch/fp8_layer.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>

namespace octavo_train {
namespace {

using octavo::plan::Event;
using octavo::plan::Kernel;
using octavo::plan::Owner;
using octavo::plan::Work;

using torch::Tensor;

constexpr auto kWatched = c10::DispatchKey::Fake;
// The dispatch key of autocast_type(Meta).
constexpr auto kFakeAutocast = c10::DispatchKey::AutocastPrivateUse1;
// The average share of a copy's speed that Octavo's kernels reach; they also compute.
constexpr double kOwnShare = 0.62;
constexpr std::uintptr_t kFirstAddress = 1 << 20, kBetween = 512;

// The recorded events and kernels. Allocations refer to it weakly, because tensors may outlive the
// TraceDevice. Their deallocation is then not recorded.
struct Record {
  std::vector<Event> events;
  std::vector<FakeKernel> kernels;
  std::unordered_map<std::int64_t, std::size_t> live;  // id of allocated memory -> its event
  Owner owner = Owner::activations;
  bool redirects_cpu = false;
  std::optional<octavo::plan::Gpu> gpu;
  std::uintptr_t next = kFirstAddress;

  std::uintptr_t add(std::size_t bytes, Owner whose) {
    const std::uintptr_t at = next;
    next += (bytes + kBetween - 1) / kBetween * kBetween + kBetween;
    live[static_cast<std::int64_t>(at)] = events.size();
    events.push_back({static_cast<std::int64_t>(at), static_cast<std::int64_t>(bytes), whose});
    return at;
  }
  void free(std::int64_t id) {
    if (live.erase(id) != 0) events.push_back({id, -1, Owner::activations});
  }
};
std::shared_ptr<Record>& current() {
  static std::shared_ptr<Record> record;
  return record;
}

std::int64_t id_of(const Tensor& tensor) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.storage().data()));
}

// Returns addresses without memory. No code reads or writes at them, but their alignment can be queried.
class FakeAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::DeviceType::Meta);
    const std::shared_ptr<Record>& record = current();
    if (record == nullptr || bytes == 0) return {nullptr, device};
    const std::uintptr_t at = record->add(bytes, record->owner);
    auto* const held = new Held{record, static_cast<std::int64_t>(at)};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it is an address of nothing
    return {reinterpret_cast<void*>(at), held, &release, device};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {}

 private:
  struct Held {
    std::weak_ptr<Record> record;
    std::int64_t id;
  };
  static void release(void* held) {
    const std::unique_ptr<Held> mine(static_cast<Held*>(held));
    if (const auto record = mine->record.lock()) record->free(mine->id);
  }
};
FakeAllocator& allocator() {
  static FakeAllocator one;
  return one;
}

// Returns true if a value from `first` on is a fake tensor. Operators with CPU tensors alone are not
// recorded, but those that move a tensor to the fake device are.
bool touches_fake(const torch::jit::Stack& stack, std::size_t first) {
  for (std::size_t i = first; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_meta()) return true;
    if (value.isTensorList())
      for (const Tensor& each : value.toTensorVector())
        if (each.defined() && each.is_meta()) return true;
  }
  return false;
}

void call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
          std::size_t arguments) {
  const std::string& name = op.schema().name();
  if (touches_fake(*stack, stack->size() - arguments)) {
    // Shape rules come first, because the operators that torch composes without a rule are not what a GPU
    // runs.
    if (apply_shape_rule(name, *stack, arguments)) return;
    using Key = c10::DispatchKey;
    const bool known = std::ranges::any_of(
        std::array{Key::Meta, Key::CompositeExplicitAutograd, Key::CompositeExplicitAutogradNonFunctional,
                   Key::CompositeImplicitAutograd},
        [&](Key key) { return op.hasKernelForDispatchKey(key); });
    TORCH_CHECK(known, "a plan cannot run the operator ", name,
                ": LibTorch has no rule for its sizes on tensors without memory, and neither have we");
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kWatched), stack);
}

// Records the temporary memory of sums over all dimensions but the last, which is contiguous: gradients of
// biases.
void record_partial_sums(const std::string& name, const std::vector<c10::IValue>& inputs) {
  const std::shared_ptr<Record>& record = current();
  if (record == nullptr || !record->gpu || name != "aten::sum" || inputs.size() < 2 || !inputs[1].isIntList())
    return;
  const Tensor& x = inputs[0].toTensor();
  if (!x.is_meta() || !x.is_floating_point() || x.scalar_type() == torch::kDouble) return;
  const auto dims = inputs[1].toIntVector();
  if (!x.is_contiguous() || x.dim() < 2 || static_cast<std::int64_t>(dims.size()) != x.dim() - 1) return;
  for (const std::int64_t dim : dims)
    if (at::maybe_wrap_dim(dim, x.dim()) == x.dim() - 1) return;
  const std::int64_t columns = x.size(-1);
  const std::int64_t bytes =
      row_sum_bytes(*record->gpu, x.numel() / std::max<std::int64_t>(columns, 1), columns);
  if (bytes == 0) return;
  const auto at = record->add(static_cast<std::size_t>(bytes), Owner::workspace);
  record->free(static_cast<std::int64_t>(at));
}

// The nesting depth of operators. Operators that are called by another operator are part of it.
int& depth() {
  thread_local int levels = 0;
  return levels;
}
struct Level {
  Level() { ++depth(); }
  ~Level() { --depth(); }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
};

// Records each operator that a backend would run, once. It is called below autograd.
void watch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const std::size_t arguments = op.schema().arguments().size();
  if (depth() > 0) return call(op, keys, stack, arguments);
  const Level level;
  const std::vector<c10::IValue> inputs(stack->end() - static_cast<std::ptrdiff_t>(arguments), stack->end());
  call(op, keys, stack, arguments);
  record_partial_sums(op.schema().name(), inputs);
  const std::shared_ptr<Record>& record = current();
  const std::size_t first = stack->size() - op.schema().returns().size();
  if (record == nullptr || !touches_fake(*stack, first)) return;
  const std::string& name = op.schema().name();
  if (auto kernel = cost_of(name, inputs, {stack->data() + first, stack->size() - first}))
    record->kernels.push_back({*kernel, name});
}

// Redirects allocations of a model that is being built: with device CPU, or without a device, they are made
// on the fake device.
void allocate_here(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kFakeAutocast);
  const auto& arguments = op.schema().arguments();
  const std::size_t first = stack->size() - arguments.size();
  for (std::size_t i = 0; current() != nullptr && current()->redirects_cpu && i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (arguments[i].name() == "device" && (value.isNone() || value.toDevice().is_cpu()))
      value = TraceDevice::device();
  }
  op.callBoxed(stack);
}

// --- autocast: torch's lists of operators, and its cache of cast weights ---

std::map<const c10::TensorImpl*, Tensor>& casts() {
  static std::map<const c10::TensorImpl*, Tensor> kept;
  return kept;
}

bool is_cast(const Tensor& x) {
  return x.defined() && x.is_meta() && x.is_floating_point() && x.scalar_type() != torch::kDouble;
}

// Casts x to `type`. All uses of a weight in a forward pass share one low-precision copy.
Tensor cast_to(const Tensor& x, torch::ScalarType type) {
  if (!is_cast(x) || x.scalar_type() == type) return x;
  const bool kept = x.scalar_type() == torch::kFloat32 && x.is_leaf() && x.requires_grad() && !x.is_view() &&
                    type != torch::kFloat32;
  if (!kept) return x.to(type);
  Tensor& found = casts()[x.unsafeGetTensorImpl()];
  if (!found.defined()) found = x.to(type);
  return found;
}

template <class F>
void each_tensor(torch::jit::Stack& stack, std::size_t first, const F& f) {
  for (std::size_t i = first; i < stack.size(); ++i) {
    if (stack[i].isTensor()) stack[i] = f(stack[i].toTensor());
    if (stack[i].isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : stack[i].toTensorVector()) list.push_back(f(each));
      stack[i] = list;
    }
  }
}

void call_with(const c10::OperatorHandle& op, torch::jit::Stack* stack, torch::ScalarType type) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  each_tensor(*stack, stack->size() - op.schema().arguments().size(),
              [&](const Tensor& x) { return cast_to(x, type); });
  op.callBoxed(stack);
}

void narrow(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  call_with(op, stack, at::autocast::get_autocast_dtype(octavo::autocast_type(c10::DeviceType::Meta)));
}
void wide(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  call_with(op, stack, torch::kFloat32);
}

// Handles the operators of the list that have an argument `dtype`: the result is fp32 if none is given.
void wide_result(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto& arguments = op.schema().arguments();
  const std::size_t first = stack->size() - arguments.size();
  const bool casts = (*stack)[first].isTensor() && is_cast((*stack)[first].toTensor());
  for (std::size_t i = 0; casts && i < arguments.size(); ++i)
    if (arguments[i].name() == "dtype" && (*stack)[first + i].isNone())
      (*stack)[first + i] = static_cast<std::int64_t>(torch::kFloat32);
  op.callBoxed(stack);
}

void widest(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  bool fp32 = false;
  const std::size_t first = stack->size() - op.schema().arguments().size();
  for (std::size_t i = first; i < stack->size(); ++i)
    fp32 = fp32 || ((*stack)[i].isTensor() && is_cast((*stack)[i].toTensor()) &&
                    (*stack)[i].toTensor().scalar_type() == torch::kFloat32);
  fp32 ? wide(op, keys, stack) : narrow(op, keys, stack);
}

std::string named(const char* op) { return op; }
std::string named(const char* op, const char* overload) { return std::string(op) + "." + overload; }

// The lists of operators are LibTorch's macros, which need macros as arguments.
#define OCTAVO_NAMED(op, ...) named(#op __VA_OPT__(, #__VA_ARGS__))
#define OCTAVO_NARROW(...) \
  library.impl(OCTAVO_NAMED(__VA_ARGS__).c_str(), torch::CppFunction::makeFromBoxedFunction<&narrow>());
#define OCTAVO_WIDE(...) \
  library.impl(OCTAVO_NAMED(__VA_ARGS__).c_str(), torch::CppFunction::makeFromBoxedFunction<&wide>());
#define OCTAVO_WIDE_RESULT(...) \
  library.impl(OCTAVO_NAMED(__VA_ARGS__).c_str(), torch::CppFunction::makeFromBoxedFunction<&wide_result>());
#define OCTAVO_WIDEST(...) \
  library.impl(OCTAVO_NAMED(__VA_ARGS__).c_str(), torch::CppFunction::makeFromBoxedFunction<&widest>());

void implement_autocast(torch::Library& library) {
  AT_FORALL_LOWER_PRECISION_FP(OCTAVO_NARROW)
  AT_FORALL_FP32(OCTAVO_WIDE)
  AT_FORALL_FP32_SET_OPT_DTYPE(OCTAVO_WIDE_RESULT)
  AT_FORALL_PROMOTE(OCTAVO_WIDEST)
}

#undef OCTAVO_WIDEST
#undef OCTAVO_WIDE_RESULT
#undef OCTAVO_WIDE
#undef OCTAVO_NARROW
#undef OCTAVO_NAMED

}  // namespace

struct TraceDevice::Parts {
  std::shared_ptr<Record> record = std::make_shared<Record>();
  c10::Allocator* allocator_before = nullptr;
  const FakeRecorder* recorder_before = nullptr;
  const octavo::torch::fp8::Planned* planned_before = nullptr;
  FakeRecorder recorder;
  octavo::torch::fp8::Planned planned;
  std::optional<c10::RegistrationHandleRAII> watching;
  std::unique_ptr<torch::Library> casting, passing;
  std::optional<c10::impl::IncludeDispatchKeyGuard> watched, cast;
};

TraceDevice::TraceDevice(Of what) : parts_(std::make_unique<Parts>()) {
  TORCH_CHECK(current() == nullptr, "a plan is under way in this process: one at a time");
  Record* const record = parts_->record.get();
  parts_->watching.emplace(c10::Dispatcher::singleton().registerFallback(
      kWatched, c10::KernelFunction::makeFromBoxedFunction<&watch>(), "octavo"));
  parts_->passing =
      std::make_unique<torch::Library>(torch::Library::IMPL, "_", kFakeAutocast, __FILE__, __LINE__);
  parts_->passing->fallback(torch::CppFunction::makeFallthrough());
  parts_->casting =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", kFakeAutocast, __FILE__, __LINE__);
  for (const char* made_by : {"empty.memory_format", "scalar_tensor"})
    parts_->casting->impl(made_by, torch::CppFunction::makeFromBoxedFunction<&allocate_here>());
  implement_autocast(*parts_->casting);
  current() = parts_->record;
  parts_->allocator_before = c10::GetAllocator(c10::DeviceType::Meta);
  c10::SetAllocator(c10::DeviceType::Meta, &allocator(), 255);
  const auto push = [record](const char* name, const Kernel& kernel) {
    record->kernels.push_back({kernel, name});
  };
  parts_->recorder.kernel = [push](const char* name, double bytes, std::int64_t launches) {
    Kernel kernel;
    kernel.bytes = bytes;
    kernel.launches = launches;
    kernel.bandwidth = kOwnShare;
    push(name, kernel);
  };
  parts_->recorder.of_cpu = what == Of::cpu;
  parts_->recorder.product = [push](const char* name, const FakeMatmul& product, torch::ScalarType type) {
    Kernel kernel;
    kernel.work = Work::product;
    kernel.precision = product.fp8 ? octavo::plan::Precision::fp8 : precision_of(type);
    kernel.batch = product.batch, kernel.rows = product.rows;
    kernel.columns = product.columns, kernel.inner = product.inner;
    push(name, kernel);
  };
  parts_->planned.cast = [push](double bytes) {
    Kernel kernel;
    kernel.bytes = bytes;
    push("fp8 cast", kernel);
  };
  parts_->planned.matmul = [push](std::uint32_t pass, const octavo::torch::fp8::Shape& shape) {
    namespace fp8 = octavo::torch::fp8;
    Kernel kernel;
    kernel.work = Work::product;
    kernel.precision = octavo::plan::Precision::fp8;
    kernel.batch = kernel.launches = shape.groups;
    kernel.rows = pass == fp8::kWgrad ? shape.outputs : shape.tokens;
    kernel.columns = pass == fp8::kForward ? shape.outputs : shape.inputs;
    kernel.inner = pass == fp8::kForward ? shape.inputs : pass == fp8::kDgrad ? shape.outputs : shape.tokens;
    push("fp8 product", kernel);
  };
  set_fp8_choice([](const octavo::fp8::Layer&) { return octavo::fp8::Choice(); });
  parts_->recorder_before = std::exchange(fake_recorder(), &parts_->recorder);
  parts_->planned_before = std::exchange(octavo::torch::fp8::planned(), &parts_->planned);
  parts_->watched.emplace(kWatched);
  parts_->cast.emplace(kFakeAutocast);
}

TraceDevice::~TraceDevice() {
  forget_casts();
  c10::impl::tls_set_dispatch_key_excluded(kFakeAutocast, true);
  parts_->cast.reset();
  parts_->watched.reset();
  octavo::torch::fp8::planned() = parts_->planned_before;
  fake_recorder() = parts_->recorder_before;
  c10::SetAllocator(c10::DeviceType::Meta, parts_->allocator_before, 255);
  current().reset();
}

void TraceDevice::set_gpu(const octavo::plan::Gpu& gpu) { parts_->record->gpu = gpu; }

void TraceDevice::set_owner(Owner owner) { parts_->record->owner = owner; }

void TraceDevice::set_owner_of(const Tensor& tensor, Owner owner) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  Record& record = *parts_->record;
  const auto found =
      record.live.find(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.storage().data())));
  if (found != record.live.end()) record.events[found->second].owner = owner;
}

void TraceDevice::add_allocation(std::int64_t bytes, Owner owner) {
  if (bytes > 0) parts_->record->add(static_cast<std::size_t>(bytes), owner);
}

void TraceDevice::forget_all_but(at::TensorList kept) {
  Record& record = *parts_->record;
  std::vector<Event> left;
  std::unordered_map<std::int64_t, std::size_t> live;
  for (const Tensor& tensor : kept) {
    const auto found = record.live.find(id_of(tensor));
    if (found == record.live.end() || !live.emplace(found->first, left.size()).second) continue;
    left.push_back(record.events[found->second]);
  }
  record.events = std::move(left);
  record.live = std::move(live);
}

void TraceDevice::add_kernel(const char* name, double bytes, std::int64_t launches) {
  parts_->recorder.kernel(name, bytes, launches);
}

void TraceDevice::repeat_kernels(std::size_t first, std::int64_t times) {
  std::vector<FakeKernel>& all = parts_->record->kernels;
  for (std::size_t i = first; i < all.size(); ++i) all[i].kernel.times = times;
}

// allocate_here() is registered under the autocast key, which torch excludes while autocast is off.
void TraceDevice::redirect_cpu_allocations(bool on) {
  parts_->record->redirects_cpu = on;
  c10::impl::tls_set_dispatch_key_excluded(kFakeAutocast, !on);
}

const std::vector<Event>& TraceDevice::events() const { return parts_->record->events; }
const std::vector<FakeKernel>& TraceDevice::kernels() const { return parts_->record->kernels; }
void TraceDevice::forget_kernels() { parts_->record->kernels.clear(); }

void TraceDevice::forget_casts() { casts().clear(); }

void TraceDevice::set_fp8_choice(std::function<octavo::fp8::Choice(const octavo::fp8::Layer&)> choose) {
  parts_->planned.choose = [choose = std::move(choose)](const octavo::torch::fp8::Shape& shape) {
    const octavo::fp8::Choice choice =
        choose({shape.groups, shape.tokens, shape.inputs, shape.outputs, shape.shared.one_input,
                shape.shared.one_output, shape.transposed_weight});
    std::uint32_t passes = 0;
    for (std::size_t i = 0; i < choice.fp8.size(); ++i) passes |= (choice.fp8[i] ? 1U : 0U) << i;
    return passes;
  };
}

}  // namespace octavo_train
