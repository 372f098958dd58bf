// SPDX-License-Identifier: MIT
#include "train/nn/mel.h"

#include "train/data/mix.h"
#include "train/nn/accumulation_type.h"
#include "train/nn/cuda/mel.h"
#include "train/nn/fused.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

namespace octavo_train {
namespace {

constexpr const char* kMel = "mel_features";
constexpr std::uint64_t kDitherUse =
    0x4469746865722121;                   // separates the dither from other noise of the same seed
constexpr double kLeastDeviation = 1e-5;  // added to each standard deviation, so that no division is by zero
// The number of transformed frames is rounded up to a multiple of this. torch caches an FFT plan for each
// number of frames, and batches of recordings rarely have the same number.
constexpr std::int64_t kPlanRows = 4096;

cuda::MelShape mel_shape(const torch::Tensor& audio, std::int64_t frames, const MelTables& tables,
                         const MelOptions& options) {
  return {audio.size(0), audio.size(1), frames, tables.window.size(0), options.hop, tables.filters.size(0)};
}

bool mel_is_fusible(const torch::Tensor& audio, std::int64_t frames, const MelTables& tables,
                    const MelOptions& options) {
  return has_kernel_type(audio) && tables.packed.device() == audio.device() &&
         cuda::mel_fits(mel_shape(audio, frames, tables, options));
}

torch::Tensor mel_features_fused(const torch::Tensor& audio, const torch::Tensor& lengths,
                                 std::int64_t frames, const MelTables& tables, const MelOptions& options,
                                 const DropoutKey& pass) {
  const cuda::MelShape shape = mel_shape(audio, frames, tables, options);
  const KernelScope scope(audio);
  const torch::Tensor from = audio.contiguous(), ends = lengths.contiguous();
  const torch::Tensor draws =
      options.dither == 0 ? torch::Tensor() : pass.samples.to(audio.device()).contiguous();
  const std::int64_t rows = (shape.batch * frames + kPlanRows - 1) / kPlanRows * kPlanRows;
  torch::Tensor windows = torch::empty({rows, shape.size}, audio.options());
  scope.run(kMel, {from, windows}, [&](auto stream) {
    return cuda::mel_frames(
        shape,
        {from.const_data_ptr<float>(), ends.const_data_ptr<std::int64_t>(),
         tables.window.const_data_ptr<float>(), static_cast<float>(options.preemphasis),
         static_cast<float>(options.dither), draws.defined() ? draws.const_data_ptr<std::int64_t>() : nullptr,
         pass.seed, pass.step, kDitherUse},
        windows.data_ptr<float>(), stream);
  });
  const torch::Tensor spectrum = torch::fft_rfft(windows).contiguous();
  windows.reset();
  torch::Tensor out = torch::empty({shape.batch, frames, shape.bands}, audio.options());
  scope.run(kMel, {spectrum, out}, [&](auto stream) {
    return cuda::mel_bands(shape, spectrum.const_data_ptr(),
                           {tables.packed.const_data_ptr<float>(),
                            tables.starts.const_data_ptr<std::int32_t>(), tables.packed.size(0)},
                           static_cast<float>(options.guard), out.data_ptr<float>(), stream);
  });
  scope.run(kMel, {out, out}, [&](auto stream) {
    return cuda::mel_normalize(shape, ends.const_data_ptr<std::int64_t>(),
                               static_cast<float>(kLeastDeviation), out.data_ptr<float>(), stream);
  });
  return out;
}

void check_dither(const torch::Tensor& audio, const MelOptions& options, const DropoutKey& pass) {
  if (options.dither == 0) return;
  TORCH_CHECK(pass.samples.defined() && pass.samples.dim() == 1 && pass.samples.size(0) == audio.size(0) &&
                  pass.samples.scalar_type() == torch::kInt64,
              "mel_features: the dither needs the number of each clip, int64 [", audio.size(0), ']');
}

// Returns the dither noise, [clips, samples] on the CPU.
torch::Tensor dither_noise(const torch::Tensor& audio, const DropoutKey& pass, double deviation) {
  if (audio.is_meta()) return torch::empty_like(audio);  // predictions draw no random numbers
  const torch::Tensor draws = pass.samples.cpu().contiguous();
  const torch::Tensor out = torch::empty(audio.sizes(), torch::kFloat32);
  const std::int64_t samples = audio.size(1);
  at::parallel_for(0, out.numel(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t row = i / samples, stop = std::min(end, (row + 1) * samples);
      const std::uint64_t key =
          noise_key(pass.seed, pass.step,
                    static_cast<std::uint64_t>(draws.const_data_ptr<std::int64_t>()[row]), kDitherUse);
      for (; i < stop; ++i) {
        out.data_ptr<float>()[i] =
            static_cast<float>(deviation) * normal_noise(key, static_cast<std::uint64_t>(i - row * samples));
      }
    }
  });
  return out;
}

// Returns the samples with dither and pre-emphasis, and with zeros after each clip's end.
torch::Tensor emphasized(const torch::Tensor& audio, const torch::Tensor& lengths, const MelOptions& options,
                         const DropoutKey& pass) {
  torch::Tensor x = audio;
  if (options.dither != 0) x = x + dither_noise(audio, pass, options.dither).to(audio.device());
  if (options.preemphasis != 0 && x.size(1) > 1) {
    const std::int64_t rest = x.size(1) - 1;
    x = torch::cat({x.narrow(1, 0, 1), x.narrow(1, 1, rest) - x.narrow(1, 0, rest) * options.preemphasis}, 1);
  }
  return x.masked_fill(length_mask(lengths, x.size(1)).logical_not(), 0.0);
}

// Returns the power spectrum, [clips, frames, bins].
torch::Tensor power_spectrum(const torch::Tensor& x, std::int64_t frames, const MelTables& tables,
                             std::int64_t hop) {
  const std::int64_t size = tables.window.size(0), half = size / 2;
  // A frame is centered on its sample: half of the first frame is before the clip.
  const torch::Tensor padded = torch::constant_pad_nd(x, {half, half});
  const torch::Tensor spectrum =
      torch::fft_rfft(padded.unfold(1, size, hop).narrow(1, 0, frames) * tables.window);
  const torch::Tensor real = torch::real(spectrum), imaginary = torch::imag(spectrum);
  return (real * real).addcmul_(imaginary, imaginary);
}

torch::Tensor normalized(const torch::Tensor& x, const torch::Tensor& lengths) {
  const torch::Tensor outside = length_mask(lengths, x.size(1)).logical_not().unsqueeze(2);
  const torch::Tensor count = lengths.unsqueeze(1).to(torch::kFloat64);
  const auto mean = [&](const torch::Tensor& each, const torch::Tensor& number) {
    return (each.masked_fill(outside, 0.0).sum(1, false, torch::kFloat64) / number).unsqueeze(1);
  };
  const torch::Tensor centred = x - mean(x, count).to(torch::kFloat32);
  // The divisor is at least 1, because a clip of one frame has no standard deviation.
  const torch::Tensor deviation = mean(centred * centred, (count - 1).clamp_min(1)).sqrt();
  return (centred / (deviation + kLeastDeviation).to(torch::kFloat32)).masked_fill_(outside, 0.0);
}

}  // namespace

MelTables make_mel_tables(const torch::Tensor& window, const torch::Tensor& filters,
                          const torch::Device& device) {
  const torch::Tensor rows = filters.contiguous();
  const std::int64_t bands = rows.size(0), bins = rows.size(1);
  const auto* at = rows.const_data_ptr<float>();
  std::vector<std::int64_t> first(static_cast<std::size_t>(bands)), end(first.size());
  std::int64_t width = 1;
  for (std::int64_t band = 0; band < bands; ++band) {
    const float *begin = at + band * bins, *stop = begin + bins;
    const auto filled = [](float x) { return x != 0.0F; };
    const auto row = static_cast<std::size_t>(band);
    first[row] = std::find_if(begin, stop, filled) - begin;
    end[row] = bins;
    while (end[row] > first[row] && !filled(begin[end[row] - 1])) --end[row];
    width = std::max(width, end[row] - first[row]);
  }
  const torch::Tensor packed = torch::zeros({width, bands}), starts = torch::empty({bands}, torch::kInt32);
  for (std::int64_t band = 0; band < bands; ++band) {
    // A band near the last bin starts earlier, so that each of its `width` weights has a bin.
    const std::int64_t start = std::min(first[static_cast<std::size_t>(band)], bins - width);
    starts.data_ptr<std::int32_t>()[band] = static_cast<std::int32_t>(start);
    for (std::int64_t k = 0; k < width; ++k)
      packed.data_ptr<float>()[k * bands + band] = at[band * bins + start + k];
  }
  return {window.to(device), rows.to(device), packed.to(device), starts.to(device)};
}

torch::Tensor mel_features(const torch::Tensor& audio, const torch::Tensor& lengths, std::int64_t frames,
                           const MelTables& tables, const MelOptions& options, const DropoutKey& pass) {
  TORCH_CHECK(audio.dim() == 2 && audio.scalar_type() == torch::kFloat32, "mel_features: the audio is ",
              audio.scalar_type(), ' ', audio.sizes(), ", expected Float [batch, samples]");
  check_lengths(kMel, lengths, audio);
  TORCH_CHECK(frames >= 1 && frames <= audio.size(1) / options.hop, "mel_features: ", frames,
              " frames are asked for, expected 1 to ", audio.size(1) / options.hop, ", which the audio has");
  const torch::NoGradGuard no_grad;
  const NoAutocast no_autocast;
  check_dither(audio, options, pass);
  if (mel_is_fusible(audio, frames, tables, options))
    return mel_features_fused(audio, lengths, frames, tables, options, pass);
  const torch::Tensor x = emphasized(audio, lengths, options, pass);
  const torch::Tensor bands =
      torch::matmul(power_spectrum(x, frames, tables, options.hop), tables.filters.t());
  return normalized((bands + options.guard).log_(), lengths.div(options.hop, "floor"));
}

}  // namespace octavo_train
