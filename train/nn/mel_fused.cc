// SPDX-License-Identifier: MIT
#include "train/nn/mel_fused.h"

#include "train/nn/cuda/mel.h"
#include "train/nn/fused.h"

#include <torch/torch.h>

namespace octavo_train {
namespace {

constexpr const char* kName = "mel_features";
// The number of transformed frames is rounded up to a multiple of this. torch caches an FFT plan for each
// number of frames, and batches of recordings rarely have the same number.
constexpr std::int64_t kPlanRows = 4096;

cuda::MelShape mel_shape(const torch::Tensor& audio, std::int64_t frames, const MelTables& tables,
                         const MelOptions& options) {
  return {audio.size(0), audio.size(1), frames, tables.window.size(0), options.hop, tables.filters.size(0)};
}

}  // namespace

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
  scope.run(kName, {from, windows}, [&](auto stream) {
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
  scope.run(kName, {spectrum, out}, [&](auto stream) {
    return cuda::mel_bands(shape, spectrum.const_data_ptr(),
                           {tables.packed.const_data_ptr<float>(),
                            tables.starts.const_data_ptr<std::int32_t>(), tables.packed.size(0)},
                           static_cast<float>(options.guard), out.data_ptr<float>(), stream);
  });
  scope.run(kName, {out, out}, [&](auto stream) {
    return cuda::mel_normalize(shape, ends.const_data_ptr<std::int64_t>(),
                               static_cast<float>(kLeastDeviation), out.data_ptr<float>(), stream);
  });
  return out;
}

}  // namespace octavo_train
