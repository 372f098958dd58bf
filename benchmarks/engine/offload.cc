// Measures the rows of `octavo bench offload`; see offload.h.
// SPDX-License-Identifier: MIT
#include "benchmarks/engine/offload.h"

#include "benchmarks/engine/options.h"
#include "benchmarks/engine/shapes.h"
#include "apps/octavo/common/cli.h"
#include "apps/octavo/common/table.h"

#include <octavo/backend.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <functional>

namespace octavo::cli {
namespace {

// The GPU preset is close to ViT-g: 1.1G parameters in 40 layers, a forward pass of 60 ms.
struct Preset {
  std::int64_t layers, numel;
  double work_ms;
};
constexpr Preset kOnCpu{8, 1 << 18, 1.0}, kOnGpu{40, 27 << 20, 1.5};
constexpr int kWarmUp = 2, kTraced = 2;

std::vector<Residence> parse_residences(const std::string& text) {
  std::vector<Residence> out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    out.push_back(parse_residence(std::string_view(text).substr(at, comma - at)));
    at = comma + 1;
  }
  return out;
}

double iteration_ms(int repeat, OffloadModel& model, const std::function<void()>& once) {
  model.finish();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeat; ++i) once();
  model.finish();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / repeat;
}

OffloadRow measure_residence(BenchDevice& device, const OffloadSpec& spec, int repeat,
                             const std::string& trace) {
  OffloadModel model(device, spec);
  OffloadRow row;
  row.residence = spec.residence;
  for (int i = 0; i < kWarmUp; ++i) model.iterate();
  row.ms = iteration_ms(repeat, model, [&] { model.iterate(); });
  row.checksum = model.checksum();
  row.device_bytes = model.device_state_bytes();
  row.host_bytes = model.host_bytes();
  row.note = model.why_not_pinned();
  if (!trace.empty() && spec.residence != Residence::device) {
    trace_offload(true);
    model.trace(kTraced);
    const Status written = write_offload_trace(trace);
    trace_offload(false);
    check(written, "--trace");
  }
  row.model_ms = iteration_ms(repeat, model, [&] { model.pass(); });
  return row;
}

std::string hex16(std::uint64_t value) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4U) out[i] = kDigits[value & 15U];
  return out;
}

}  // namespace

void add_offload_options(CLI::App& command, OffloadFlags& flags) {
  const auto text = [&](const char* flag, std::string& value, const char* type, const std::string& help) {
    command.add_option(flag, value, help)->type_name(type)->capture_default_str();
  };
  text("--device", flags.device, "NAME", "cpu, cuda, or cuda:N for another than the first GPU");
  text("--residence", flags.residences, "LIST", "Where states live: device, stream, host");
  text("--state", flags.state, "NAME", "State format");
  text("--param-dtype", flags.param_dtype, "NAME", "Weights and gradients: fp32, bf16, fp16");
  command.add_option("--layers", flags.layers, "Layers of the model (default 8, on a GPU 40)")
      ->type_name("N")
      ->check(whole_number(1, 100000));
  command.add_option("--numel", flags.numel, "Parameters of a layer (default 2^18, on a GPU 27Mi)")
      ->type_name("N");
  command
      .add_option("--work-ms", flags.work_ms,
                  "Forward pass of a layer in milliseconds, the backward pass takes two of them (default 1, "
                  "on a GPU 1.5)")
      ->type_name("MS")
      ->check(CLI::PositiveNumber);
  command.add_option("--repeat", flags.repeat, "Timed iterations (default 10)")
      ->type_name("N")
      ->check(whole_number(1, 1000000));
  command
      .add_option("--threads", flags.threads, "Threads of the CPU (default: the CPUs this process may use)")
      ->type_name("N")
      ->check(whole_number(1, 1024));
  command.add_flag("--offload-gradients", flags.offload_gradients,
                   "Gradients go to host memory in the backward pass");
  command.add_flag("--clip", flags.clip, "Clip by the norm of all gradients");
  text("--trace", flags.trace, "FILE",
       "Write two iterations as Chrome trace JSON; needs --residence stream or host, or device and one of "
       "them");
  command.add_flag("--json", flags.json, "Print JSON on stdout, nothing else");
}

OffloadResult run_offload(const OffloadFlags& flags) {
  const std::vector<Residence> residences = parse_residences(flags.residences);
  const auto offloaded =
      residences.size() - static_cast<std::size_t>(std::ranges::count(residences, Residence::device));
  if (!flags.trace.empty() && offloaded != 1)
    throw Failure(kExitUsage, "--trace: got --residence " + flags.residences +
                                  ", expected one of stream and host: a trace shows one");
  OffloadResult result;
  result.device = parse_device(flags.device);
  const Preset& preset = result.device.kind == DeviceKind::cuda ? kOnGpu : kOnCpu;
  OffloadSpec spec;
  spec.state = take(parse_state_format(flags.state), "--state");
  spec.dtype = parse_element("--param-dtype", flags.param_dtype);
  spec.layers = result.layers = flags.layers > 0 ? flags.layers : preset.layers;
  spec.numel = result.numel = flags.numel ? parse_numel(*flags.numel) : preset.numel;
  spec.take_gradients = flags.offload_gradients;
  spec.clip = flags.clip;
  spec.threads = flags.threads > 0 ? flags.threads : default_threads();
  const std::unique_ptr<BenchDevice> device = make_device(result.device, spec.threads);
  spec.copies = copies_for(*device, flags.work_ms > 0 ? flags.work_ms : preset.work_ms);
  for (const Residence residence : residences) {
    spec.residence = residence;
    result.rows.push_back(measure_residence(*device, spec, flags.repeat, flags.trace));
  }
  return result;
}

std::string offload_table(const OffloadResult& result) {
  using Align = Table::Align;
  Table table({{"residence"},
               {"ms/iteration", Align::right},
               {"model ms", Align::right},
               {"beyond it", Align::right},
               {"states on the device", Align::right},
               {"host memory", Align::right},
               {"weights"}});
  std::string notes;
  for (const OffloadRow& row : result.rows) {
    const bool same = row.checksum == result.rows.front().checksum;
    table.add({residence_name(row.residence), fixed(row.ms, 2), fixed(row.model_ms, 2),
               fixed(row.ms - row.model_ms, 2), human_bytes(row.device_bytes), human_bytes(row.host_bytes),
               same ? hex16(row.checksum) : "differ"});
    if (!row.note.empty()) notes += residence_name(row.residence) + ": not pinned: " + row.note + "\n";
  }
  return device_name(result.device) + ", " + grouped(result.layers) + " layers of " + grouped(result.numel) +
         " parameters\n" + table.text() + notes;
}

std::string offload_json(const OffloadResult& result) {
  nlohmann::ordered_json out = {{"device", device_name(result.device)},
                                {"layers", result.layers},
                                {"numel", result.numel},
                                {"rows", nlohmann::ordered_json::array()}};
  for (const OffloadRow& row : result.rows)
    out["rows"].push_back({{"residence", residence_name(row.residence)},
                           {"ms", row.ms},
                           {"model_ms", row.model_ms},
                           {"device_state_bytes", row.device_bytes},
                           {"host_bytes", row.host_bytes},
                           {"checksum", hex16(row.checksum)},
                           {"not_pinned", row.note}});
  return out.dump(2) + "\n";
}

std::string offload_errors(const OffloadResult& result) {
  std::string out;
  for (const OffloadRow& row : result.rows)
    if (row.checksum != result.rows.front().checksum)
      out += (out.empty() ? "" : "; ") + residence_name(row.residence) + ": weights differ from those of " +
             residence_name(result.rows.front().residence);
  return out;
}

}  // namespace octavo::cli
