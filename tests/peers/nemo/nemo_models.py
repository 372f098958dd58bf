"""Small models of NeMo's own classes with random weights, and what they compute, with the names that
speech_tensors gives it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import tones
import torch

HEADS = ("tdt", "rnnt", "ctc")
DURATIONS = [0, 1, 2, 3, 4]
MODULES = "nemo.collections.asr.modules."
MODELS = "nemo.collections.asr.models."
DATASET = {"manifest_filepath": None, "sample_rate": 16000, "batch_size": 4, "shuffle": False}
CTC_DECODER = {"_target_": MODULES + "ConvASRDecoder", "feat_in": None, "num_classes": -1, "vocabulary": []}


def config(folder: Path, head: str, hybrid: bool = False) -> dict[str, Any]:
    """A FastConformer as Parakeet's, small. Nothing is random in training: it has no dropout, dither,
    SpecAugment or omega."""
    out = {
        "sample_rate": 16000,
        "preprocessor": {
            "_target_": MODULES + "AudioToMelSpectrogramPreprocessor",
            "sample_rate": 16000,
            "normalize": "per_feature",
            "window_size": 0.025,
            "window_stride": 0.01,
            "window": "hann",
            "features": 40,
            "n_fft": 512,
            "log": True,
            "frame_splicing": 1,
            "dither": 0.0,
            "pad_to": 0,
            "pad_value": 0.0,
        },
        "tokenizer": {"dir": str(folder / "tokenizer"), "type": "bpe"},
        "encoder": {
            "_target_": MODULES + "ConformerEncoder",
            "feat_in": 40,
            "feat_out": -1,
            "n_layers": 3,
            "d_model": 64,
            "use_bias": False,
            "subsampling": "dw_striding",
            "subsampling_factor": 8,
            "subsampling_conv_channels": 16,
            "ff_expansion_factor": 4,
            "self_attention_model": "rel_pos",
            "n_heads": 4,
            "att_context_size": [-1, -1],
            "xscaling": False,
            "conv_kernel_size": 9,
            "conv_norm_type": "batch_norm",
            "dropout": 0.0,
            "dropout_pre_encoder": 0.0,
            "dropout_emb": 0.0,
            "dropout_att": 0.0,
        },
        "train_ds": dict(DATASET),
        "validation_ds": {**DATASET, "use_start_end_token": False},
        "optim": {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.98], "weight_decay": 1e-3},
    }
    if head == "ctc":
        out["decoder"] = {**CTC_DECODER, "feat_in": 64}
        out["decoding"] = {"strategy": "greedy"}
        return out
    durations = DURATIONS if head == "tdt" else []
    out["model_defaults"] = {"enc_hidden": 64, "pred_hidden": 48, "joint_hidden": 48}
    out["decoder"] = {
        "_target_": MODULES + "RNNTDecoder",
        "normalization_mode": None,
        "random_state_sampling": False,
        "blank_as_pad": True,
        "prednet": {"pred_hidden": 48, "pred_rnn_layers": 2, "dropout": 0.0},
    }
    out["joint"] = {
        "_target_": MODULES + "RNNTJoint",
        "log_softmax": None,
        "preserve_memory": False,
        "fuse_loss_wer": True,
        "fused_batch_size": 4,
        "jointnet": {"joint_hidden": 48, "activation": "relu", "dropout": 0.0},
        "num_extra_outputs": len(durations),
    }
    out["decoding"] = {"strategy": "greedy_batch", "greedy": {"max_symbols": 10}}
    out["loss"] = {"loss_name": "default"}
    if head == "tdt":
        out["model_defaults"] |= {"tdt_durations": durations, "num_tdt_durations": len(durations)}
        out["decoding"] |= {"model_type": "tdt", "durations": durations}
        options = {"durations": durations, "sigma": 0.02, "omega": 0.0}
        out["loss"] = {"loss_name": "tdt", "tdt_kwargs": options}
    if hybrid:
        out["aux_ctc"] = {
            "ctc_loss_weight": 0.3,
            "use_cer": False,
            "ctc_reduction": "mean_batch",
            "decoder": dict(CTC_DECODER),
            "decoding": {"strategy": "greedy"},
        }
    return out


def model_class(head: str, hybrid: bool = False) -> type:
    from nemo.collections.asr import models

    if hybrid:
        return models.EncDecHybridRNNTCTCBPEModel
    return models.EncDecCTCModelBPE if head == "ctc" else models.EncDecRNNTBPEModel


def make(folder: Path, head: str, hybrid: bool = False, pad_to: int = 0, varied: bool = True) -> Any:
    """`varied`: a model whose greedy transcripts have many different tokens."""
    from omegaconf import OmegaConf

    torch.manual_seed(HEADS.index(head))
    cls = model_class(head, hybrid)
    settings = config(folder, head, hybrid)
    settings["preprocessor"]["pad_to"] = pad_to
    settings["target"] = f"{cls.__module__}.{cls.__name__}"
    model = cls(cfg=OmegaConf.create(settings)).eval()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith(("running_mean", "pos_bias_u", "pos_bias_v")):
                value.normal_(std=0.3)
            elif name.endswith("running_var"):
                value.uniform_(0.5, 2)
        if varied:
            spread(model, folder)
    return model


def spread(model: Any, folder: Path) -> None:
    """Makes what the head sees differ from frame to frame, and the tokens with it: random encoders give
    nearly the same numbers at all frames. Token 0 (unknown) gets a bias that it never wins with."""
    found = []
    for path in tones.clips(folder, 4):
        batch = batch_of([path], ["low"], model)
        features, lengths = model.preprocessor(input_signal=batch["audio"], length=batch["audio_lengths"])
        found.append(model.encoder(audio_signal=features, length=lengths)[0][0].T)
    frames = torch.cat(found)
    if hasattr(model, "joint"):
        projection = model.joint.enc
        seen = projection(frames)
        scale = 2 / seen.std(0)
        projection.bias[:] = (projection.bias - seen.mean(0)) * scale
        projection.weight *= scale[:, None]
        model.joint.pred.weight *= 3
        head = model.joint.joint_net[-1]
        head.weight.normal_()
        head.bias.zero_()
        head.bias[model.tokenizer.vocab_size] = 6.0
    else:
        head = model.decoder.decoder_layers[0]
        head.weight.normal_().div_(frames.std(0)[None, :, None])
        head.bias[:] = -(head.weight[:, :, 0] @ frames.mean(0))
        head.bias[model.tokenizer.vocab_size] += 3.0
    head.bias[0] = -1e4


def sound_of(path: str) -> torch.Tensor:
    import soundfile

    samples, _ = soundfile.read(path, dtype="int16")
    return torch.from_numpy(samples.astype(np.float32) / 32768)


def batch_of(recordings: list[str], texts: list[str], model: Any, samples: list[int] | None = None) -> dict:
    """What speech_tensors reads: clips, cut or repeated to `samples`, and the tokens of their texts."""
    sounds = [sound_of(path) for path in recordings]
    if samples:
        sounds = [s.repeat(n // len(s) + 1)[:n] for s, n in zip(sounds, samples, strict=True)]
    tokens = [torch.tensor(model.tokenizer.text_to_ids(text)) for text in texts]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "audio": pad(sounds, batch_first=True),
        "audio_lengths": torch.tensor([len(s) for s in sounds]),
        "targets": pad(tokens, batch_first=True),
        "target_lengths": torch.tensor([len(t) for t in tokens]),
    }


def compute(model: Any, batch: dict[str, torch.Tensor], training: bool) -> dict[str, torch.Tensor]:
    """The names of speech_tensors, from NeMo. A model in float64 computes from the features in float32."""
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    model.train(training)
    try:
        with torch.set_grad_enabled(training):
            return _compute(model, batch, training)
    finally:
        model.load_state_dict(saved)
        model.zero_grad(set_to_none=True)
        model.eval()


def _compute(model: Any, batch: dict[str, torch.Tensor], training: bool) -> dict[str, torch.Tensor]:
    dtype = next(model.encoder.parameters()).dtype
    lengths, targets = batch["target_lengths"], batch["targets"]
    features, feature_lengths = model.preprocessor.float()(
        input_signal=batch["audio"].clone(), length=batch["audio_lengths"]
    )
    frames, frame_lengths = model.encoder(audio_signal=features.to(dtype), length=feature_lengths)
    out = {"features": features.mT, "feature_lengths": feature_lengths, "frame_lengths": frame_lengths}
    out["frames"] = frames.detach().mT
    if hasattr(model, "joint"):
        model.joint.set_fuse_loss_wer(False)
        predicted, _, _ = model.decoder(targets=targets, target_length=lengths)
        model.joint.log_softmax = False
        logits = model.joint(encoder_outputs=frames, decoder_outputs=predicted)
        model.joint.log_softmax = None
        loss = _transducer_loss(model, logits, targets, frame_lengths, lengths)
    else:
        logits = model.decoder(encoder_output=frames)
        loss = model.loss(
            log_probs=logits, targets=targets, input_lengths=frame_lengths, target_lengths=lengths
        )
    out["logits"], out["loss"] = logits.detach(), loss.detach().reshape(1)
    if not training:
        out["tokens"], out["token_frames"] = _greedy(model, frames, frame_lengths, logits)
        return out
    loss.backward()
    out |= {f"gradient.{n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    out |= {f"buffer.{n}": b.reshape(-1).clone() for n, b in model.named_buffers() if "batch_norm" in n}
    return out


def exact_features(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """NeMo's features in float64. Its stft() makes the window float32, which torch.stft refuses here."""
    featurizer = model.preprocessor.featurizer.double()

    def stft(x: torch.Tensor) -> torch.Tensor:
        return torch.stft(
            x,
            n_fft=featurizer.n_fft,
            hop_length=featurizer.hop_length,
            win_length=featurizer.win_length,
            window=featurizer.window,
            return_complex=True,
            pad_mode="constant",
        )

    featurizer.stft = stft
    try:
        return featurizer(batch["audio"].double(), batch["audio_lengths"])[0].mT
    finally:
        del featurizer.stft
        featurizer.float()


def _transducer_loss(model: Any, logits: Any, targets: Any, frames: Any, labels: Any) -> torch.Tensor:
    """RNN-T: numba's CPU kernel, which takes log-probabilities. TDT has no kernel for a CPU, and NeMo's
    reference in torch is used."""
    from nemo.collections.asr.losses.rnnt_pytorch import TDTLossPytorch

    if model.joint.num_extra_outputs == 0:
        return model.loss(
            log_probs=logits.log_softmax(-1), targets=targets, input_lengths=frames, target_lengths=labels
        )
    options = model.cfg.loss.tdt_kwargs
    loss = TDTLossPytorch(
        blank=model.decoder.blank_idx,
        durations=list(options.durations),
        reduction="mean_batch",
        sigma=options.sigma,
    )
    return loss(acts=logits, labels=targets, act_lens=frames, label_lens=labels)


def _greedy(model: Any, frames: Any, lengths: Any, logits: Any) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, places = [], []
    if hasattr(model, "joint"):
        found = model.decoding.rnnt_decoder_predictions_tensor(
            encoder_output=frames, encoded_lengths=lengths, return_hypotheses=True
        )
        tokens = [torch.as_tensor(h.y_sequence) for h in found]
        places = [torch.as_tensor(h.timestamp) for h in found]
    else:
        for row, length in zip(logits.argmax(-1), lengths, strict=True):
            row = row[:length]
            first = torch.cat([torch.tensor([True]), row[1:] != row[:-1]])
            places.append((first & (row != model.tokenizer.vocab_size)).nonzero()[:, 0])
            tokens.append(row[places[-1]])
    pad = torch.nn.utils.rnn.pad_sequence
    return (
        pad([t.long() for t in tokens], batch_first=True, padding_value=-1),
        pad([p.long() for p in places], batch_first=True, padding_value=-1),
    )


def save(model: Any, path: Path) -> Path:
    model.save_to(str(path))
    return path


def with_config(archive: Path, out: Path, change: Any) -> Path:
    """The archive with another config: `change` gets it as a dict."""
    import yaml

    with tarfile.open(archive) as old, tarfile.open(out, "w") as new:
        for member in old.getmembers():
            if not member.isfile():
                continue
            data = old.extractfile(member).read()
            if member.name.endswith(".yaml"):
                settings = yaml.safe_load(data)
                change(settings)
                data = yaml.safe_dump(settings, allow_unicode=True).encode()
            info = tarfile.TarInfo(member.name)
            info.size = len(data)
            new.addfile(info, io.BytesIO(data))
    return out


def transcripts(model: Any, recordings: list[str], batch_size: int = 4) -> list[str]:
    """NeMo's transcribe(). `octavo` writes a text without blanks at its ends, which NeMo leaves there."""
    found = model.transcribe(recordings, batch_size=batch_size, verbose=False)
    return [h.text.strip() for h in found]
