"""Writes the expected results of speech_test: transformers' ParakeetForTDT with random weights, in
training mode without dropout, on a padded batch. The file has weights, inputs, results, gradients and
BatchNorm's statistics.

python tests/speech/make_golden.py --size tiny --out golden.safetensors
OCTAVO_TEST_SPEECH_GOLDEN=golden.safetensors build/tests/speech_test --gtest_filter='*AFileGivenByHand*'

`--size v3` is the model of 0.6B parameters; its file has 5 GB. parakeet_tiny.safetensors is such a file
for `tiny`, written with transformers 5.17.0 and torch 2.13.0 on a CPU.
"""

from __future__ import annotations

import argparse

import torch
import transformers
from safetensors.torch import save_file

ENCODERS = {
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "subsampling_conv_channels": 16,
        "num_mel_bins": 32,
    },
    "v3": {"num_mel_bins": 128},
}
HEADS = {"tiny": {"vocab_size": 33, "decoder_hidden_size": 48, "blank_token_id": 32}, "v3": {}}
# The numbers of frames and of labels of the clips.
CLIPS = {"tiny": ((80, 64, 48), (5, 4, 3)), "v3": ((200, 160, 73), (8, 5, 3))}
# Options that are on by default in transformers and that the model does not have.
OFF = {
    "attention_bias": False,
    "convolution_bias": False,
    "scale_input": False,
    "dropout": 0.0,
    "dropout_positions": 0.0,
    "layerdrop": 0.0,
    "activation_dropout": 0.0,
    "attention_dropout": 0.0,
}
PAD = 2


def build(size: str) -> transformers.ParakeetForTDT:
    encoder = transformers.ParakeetEncoderConfig(**ENCODERS[size], **OFF)
    config = transformers.ParakeetTDTConfig(encoder_config=encoder.to_dict(), **HEADS[size])
    return transformers.ParakeetForTDT(config)


def named(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{name}": value.detach().cpu().clone() for name, value in tensors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--size", choices=list(CLIPS), default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = build(args.size).to(args.device).train()
    with torch.no_grad():  # makes norms differ between channels
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    frames, labels = (torch.tensor(lengths) for lengths in CLIPS[args.size])
    config = model.config
    features = torch.randn(len(frames), int(frames.max()), config.encoder_config.num_mel_bins)
    # Zeros like real features: transformers' first convolution reads beyond a clip's end, NeMo's and ours do
    # not.
    features[torch.arange(features.shape[1]) >= frames[:, None]] = 0
    targets = torch.randint(PAD + 1, config.blank_token_id, (len(labels), int(labels.max())))
    targets[torch.arange(targets.shape[1]) >= labels[:, None]] = PAD
    start = torch.full((len(labels), 1), config.blank_token_id)
    before = named("w", model.state_dict())
    out = model(
        input_features=features.to(args.device),
        attention_mask=(torch.arange(features.shape[1]) < frames[:, None]).to(args.device),
        decoder_input_ids=torch.cat([start, targets], 1).to(args.device),
        labels=targets.to(args.device),
        sigma=0.02,
        reduction="mean_volume",
    )
    out.loss.backward()
    results = {
        "encoder": out.last_hidden_state,
        "logits": out.logits,
        "loss": out.loss.view(1),
        "enc_lengths": (frames + 7) // 8,
    }
    inputs = {"features": features, "lengths": frames, "labels": targets, "label_lengths": labels}
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    after = dict(model.named_buffers())
    everything = (
        before | named("in", inputs) | named("out", results) | named("g", grads) | named("after", after)
    )
    everything = {name: value.contiguous() for name, value in everything.items() if "inv_freq" not in name}
    save_file(everything, args.out, {"config": f"{args.size}; transformers {transformers.__version__}"})


if __name__ == "__main__":
    main()
