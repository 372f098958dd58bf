// The C ABI of the engine: reads structs, and calls the C++ engine.
// SPDX-License-Identifier: MIT
#include "abi/c_common.h"
#include "engine/engine.h"

#include <octavo/octavo.h>

#include <algorithm>
#include <vector>

struct octavo_engine {
  octavo::engine::Engine engine;
  std::vector<octavo::DType> dtypes;  // a buffer of dtype_span
};

namespace {

using namespace octavo::c;  // NOLINT(google-build-using-namespace)
using octavo::Device;
using octavo::Status;

octavo::engine::EngineTensor convert(const octavo_engine_tensor& c) {
  octavo::engine::EngineTensor out;
  octavo::TensorArgs& t = out.tensor;
  t.spec.numel = c.numel;
  std::copy(std::begin(c.shape), std::end(c.shape), t.spec.shape.begin());
  t.spec.ndim = c.ndim;
  t.spec.param_dtype = static_cast<octavo::DType>(c.param_dtype);
  t.spec.store = static_cast<octavo::WeightStore>(c.store);
  t.spec.format = static_cast<octavo::StateFormat>(c.format);
  t.spec.block_size = c.block_size;
  t.param = c.param;
  t.residual = c.residual;
  for (std::size_t s = 0; s < t.state.size(); ++s) t.state[s] = {c.codes[s], c.scales[s]};
  t.id = c.id;
  t.offset = c.offset;
  out.param_device = device(c.param_device_kind, c.param_device_index);
  out.state_device = device(c.state_device_kind, c.state_device_index);
  out.group = c.group;
  out.part = c.norm_part;
  out.whole_numel = c.whole_numel;
  out.step = c.step;
  out.step_on_device = c.step_on_device != 0;
  out.known_steps = c.known_steps;
  out.residence = static_cast<octavo::Residence>(c.residence);
  out.held_in_fp32 = c.held_in_fp32 != 0;
  return out;
}

octavo::engine::EngineDevice convert(const octavo_engine_device& c) {
  octavo::engine::EngineDevice out;
  out.device = device(c.device_kind, c.device_index);
  out.stream = c.stream;
  out.workspace = workspace_span(c.workspace, c.workspace_bytes);
  out.loss_scale = c.loss_scale;
  out.found_inf = c.found_inf;
  out.norm = reinterpret_cast<octavo::GradNorm*>(c.norm);
  out.report = reinterpret_cast<octavo::StepReport*>(c.report);
  out.staging = workspace_span(c.staging, c.staging_bytes);
  return out;
}

std::vector<octavo::engine::EngineNormPart> convert(const octavo_engine_norm_part* parts,
                                                    std::int64_t count) {
  return convert_all<octavo::engine::EngineNormPart>(
      "parts", parts, count, [](const octavo_engine_norm_part& c) {
        return octavo::engine::EngineNormPart{device(c.device_kind, c.device_index), c.part,
                                              reinterpret_cast<octavo::GradNorm*>(c.out)};
      });
}

// Holds EngineArgs and the devices that they point to.
struct Args {
  explicit Args(const octavo_engine_args* from) {
    const octavo_engine_args& c = read_struct("args", from);
    devices = convert_all<octavo::engine::EngineDevice>(
        "devices", c.devices, c.device_count, [](const octavo_engine_device& d) { return convert(d); });
    args.skip_nonfinite = c.skip_nonfinite != 0;
    args.threads = c.threads;
    args.grad_factor = c.grad_factor == 0.0 ? 1.0 : c.grad_factor;
    args.devices = devices;
    args.defer = c.defer != 0;
    add = c.add_sums;
    user = c.sums_user;
    if (add != nullptr) args.sums = {&Args::add_sums, this};
  }
  ~Args() = default;
  Args(const Args&) = delete;  // `args` points into it
  Args& operator=(const Args&) = delete;

  static std::int32_t add_sums(void* self, Device device, std::uint32_t part, double* sums,
                               std::int64_t count) {
    const auto* own = static_cast<const Args*>(self);
    return own->add(own->user, static_cast<std::uint32_t>(device.kind), device.index, part, sums, count);
  }

  std::vector<octavo::engine::EngineDevice> devices;
  octavo::engine::EngineArgs args;
  octavo_engine_add_sums add = nullptr;
  void* user = nullptr;
};

// Converts the dtypes of begin and take, in memory that later calls reuse.
std::span<const octavo::DType> dtype_span(octavo_engine* engine, const uint8_t* dtypes, std::int64_t count) {
  check_array("dtypes", dtypes, count);
  engine->dtypes.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < engine->dtypes.size(); ++i)
    engine->dtypes[i] = static_cast<octavo::DType>(dtypes[i]);
  return engine->dtypes;
}

std::span<const std::uint32_t> handle_span(const std::uint32_t* handles, std::int64_t count) {
  check_array("handles", handles, count);
  return {handles, static_cast<std::size_t>(count)};
}

// Runs a step after a check of the report: a bad one must not fail a step that was applied.
template <class Fn>
Status with_report(octavo_step_report* out, Fn&& step) {
  if (out != nullptr) (void)read_struct("report", out);
  const octavo::Result<octavo::StepReport> done = step();
  if (!done.ok() || out == nullptr) return done.status();
  octavo_step_report result{};
  result.skipped = done->skipped ? 1 : 0;
  result.pending = done->pending ? 1 : 0;
  result.nonfinite = done->nonfinite;
  return write_struct("report", result, out);
}

}  // namespace

extern "C" {

octavo_status octavo_format_for(uint32_t wanted, int64_t whole_numel, int64_t min_quantized_size,
                                uint32_t sharded, uint32_t* format) {
  return guarded([&]() -> Status {
    check_given("format", format);
    const auto found = octavo::format_for(static_cast<octavo::StateFormat>(wanted), whole_numel,
                                          min_quantized_size, sharded != 0);
    if (found.ok()) *format = static_cast<uint32_t>(*found);
    return found.status();
  });
}

octavo_status octavo_engine_create(uint32_t algorithm, octavo_engine** out) {
  return guarded([&]() -> Status {
    check_given("out", out);
    auto engine = octavo::engine::Engine::create(static_cast<octavo::Algorithm>(algorithm)).value();
    *out = new octavo_engine{std::move(engine), {}};
    return {};
  });
}
void octavo_engine_destroy(octavo_engine* engine) { delete engine; }

octavo_status octavo_step_args_init(octavo_step_args* args) {
  return guarded([&]() -> Status {
    const octavo::HyperParams defaults;
    octavo_step_args result{};
    result.lr = defaults.lr;
    result.beta1 = defaults.beta1;
    result.beta2 = defaults.beta2;
    result.eps = defaults.eps;
    return write_struct("args", result, args);
  });
}

octavo_status octavo_engine_set_group(octavo_engine* engine, uint32_t group, uint32_t switches,
                                      const octavo_step_args* options, uint32_t lr_device_kind,
                                      int32_t lr_device_index) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    const octavo_step_args& c = read_struct("options", options);
    octavo::engine::EngineGroup own;
    own.hyper = {
        c.lr,       c.beta1,     c.beta2,         c.eps,           c.weight_decay,
        c.momentum, c.dampening, c.nesterov != 0, c.maximize != 0, static_cast<octavo::Decay>(c.decay)};
    std::copy(std::begin(c.own), std::end(c.own), own.hyper.own);
    own.seed = c.seed;
    own.clip_grad_norm = c.clip_grad_norm;
    own.switches = switches;
    own.lr = c.scalar_lr;
    if (own.lr != nullptr) own.lr_device = device(lr_device_kind, lr_device_index);
    return engine->engine.set_group(group, own);
  });
}

octavo_status octavo_engine_set(octavo_engine* engine, const uint32_t* handles,
                                const octavo_engine_tensor* tensors, int64_t count) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    const auto list = convert_all<octavo::engine::EngineTensor>(
        "tensors", tensors, count, [](const octavo_engine_tensor& c) { return convert(c); });
    return engine->engine.set(handle_span(handles, count), list);
  });
}

octavo_status octavo_engine_remove(octavo_engine* engine, const uint32_t* handles, int64_t count) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    engine->engine.remove(handle_span(handles, count));
    return {};
  });
}

int64_t octavo_engine_failed_tensor(const octavo_engine* engine) {
  return value_or<int64_t>(-1, [&] { return engine == nullptr ? -1 : engine->engine.failed_tensor(); });
}

octavo_status octavo_engine_begin(octavo_engine* engine, const uint32_t* handles, const void* const* grads,
                                  const uint8_t* dtypes, int64_t count, uint32_t with_norm,
                                  octavo_engine_plan* out) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    check_array("grads", grads, count);
    if (out != nullptr) (void)read_struct("out", out);
    const auto given = handle_span(handles, count);
    const auto types = dtype_span(engine, dtypes, count);
    const auto plan = engine->engine.begin(given, {grads, given.size()}, types, with_norm != 0).value();
    if (out == nullptr) return {};
    octavo_engine_plan result{};
    result.fresh = plan.fresh ? 1 : 0;
    result.number = plan.number;
    result.cohorts = plan.cohorts;
    return write_struct("out", result, out);
  });
}

int64_t octavo_engine_workspace_bytes(const octavo_engine* engine, uint32_t device_kind,
                                      int32_t device_index) {
  return value_or<int64_t>(-1, [&] {
    return engine == nullptr ? 0 : engine->engine.workspace_bytes(device(device_kind, device_index));
  });
}

octavo_status octavo_engine_norm(octavo_engine* engine, const octavo_engine_args* args,
                                 const octavo_engine_norm_part* parts, int64_t part_count,
                                 octavo_engine_combine combine, void* user) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    const Args given(args);
    return engine->engine.norm(given.args, convert(parts, part_count), {combine, user});
  });
}

octavo_status octavo_engine_step(octavo_engine* engine, const octavo_engine_args* args,
                                 octavo_step_report* report) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    const Args given(args);
    return with_report(report, [&] { return engine->engine.step(given.args); });
  });
}

octavo_status octavo_engine_ready(octavo_engine* engine, const octavo_engine_args* args,
                                  octavo_device_norm* own, octavo_engine_combine combine, void* user,
                                  octavo_step_report* report) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    const Args given(args);
    auto* norms = reinterpret_cast<octavo::GradNorm*>(own);
    return with_report(report, [&] { return engine->engine.ready(given.args, norms, {combine, user}); });
  });
}

octavo_status octavo_engine_finish(octavo_engine* engine, const octavo_engine_args* args,
                                   const octavo_engine_norm_part* parts, int64_t part_count,
                                   octavo_engine_combine combine, void* user) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    const Args given(args);
    return engine->engine.finish(given.args, convert(parts, part_count), {combine, user});
  });
}

void octavo_engine_forget_ready(octavo_engine* engine) {
  (void)guarded([&]() -> Status {
    if (engine != nullptr) engine->engine.forget_ready();
    return {};
  });
}

octavo_status octavo_engine_take(octavo_engine* engine, const uint32_t* handles, const void* const* grads,
                                 const uint8_t* dtypes, int64_t count, uint32_t device_kind,
                                 int32_t device_index, void* stream) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    check_array("grads", grads, count);
    const auto given = handle_span(handles, count);
    return engine->engine.take(given, {grads, given.size()}, dtype_span(engine, dtypes, count),
                               device(device_kind, device_index), stream);
  });
}

uint32_t octavo_engine_holds(const octavo_engine* engine, uint32_t handle) {
  return value_or(0U, [&] { return engine != nullptr && engine->engine.holds(handle) ? 1U : 0U; });
}

octavo_status octavo_engine_drop(octavo_engine* engine, const uint32_t* handles, int64_t count) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    return engine->engine.drop(handle_span(handles, count));
  });
}

octavo_status octavo_engine_wait(octavo_engine* engine, const uint32_t* handles, int64_t count, uint32_t what,
                                 uint32_t device_kind, int32_t device_index, void* stream) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    return engine->engine.wait(handle_span(handles, count), static_cast<octavo::engine::EngineWait>(what),
                               device(device_kind, device_index), stream);
  });
}

octavo_status octavo_engine_refresh(octavo_engine* engine, const uint32_t* handles, int64_t count,
                                    uint32_t way, uint32_t device_kind, int32_t device_index, void* stream) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    return engine->engine.refresh(handle_span(handles, count), static_cast<octavo::engine::EngineCopy>(way),
                                  device(device_kind, device_index), stream);
  });
}

octavo_status octavo_engine_synchronize(octavo_engine* engine) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    return engine->engine.synchronize();
  });
}

octavo_status octavo_engine_set_order(octavo_engine* engine, const uint32_t* handles, int64_t count) {
  return guarded([&]() -> Status {
    check_given("engine", engine);
    return engine->engine.set_order(handle_span(handles, count));
  });
}

int64_t octavo_engine_staging_bytes(const octavo_engine* engine, uint32_t device_kind, int32_t device_index) {
  return value_or<int64_t>(-1, [&] {
    return engine == nullptr ? 0 : engine->engine.staging_bytes(device(device_kind, device_index));
  });
}

int64_t octavo_engine_host_bytes(const octavo_engine* engine) {
  return value_or<int64_t>(-1, [&] { return engine == nullptr ? 0 : engine->engine.host_bytes(); });
}

}  // extern "C"
