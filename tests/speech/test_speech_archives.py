"""Speech models written by Python's torch.save, tarfile and transformers are read, exported and read by
them again. OCTAVO_ARCHIVE_COPY is the program of tests/train/archive_copy.cc. Without transformers, its
tests are skipped."""

import importlib
import inspect
import io
import json
import os
import subprocess
import tarfile

import pytest

torch = pytest.importorskip("torch")

SIZES = {
    "mel": 32,
    "channels": 16,
    "layers": 2,
    "d": 64,
    "heads": 4,
    "kernel": 9,
    "predictor": 48,
    "tokens": 32,
}
DURATIONS = [0, 1, 2, 3, 4]


def nemo_state(head="tdt"):
    """Returns the state dict of a NeMo model with these sizes. Its names are an independent second list."""
    torch.manual_seed(0)
    s = SIZES
    c, d, p = s["channels"], s["d"], s["predictor"]
    state = {
        "preprocessor.featurizer.window": torch.rand(400),
        "preprocessor.featurizer.fb": torch.rand(1, s["mel"], 257),
    }

    def add(name, *shape):
        state[name] = torch.randn(*shape) * 0.1

    for i, shape in [
        (0, (c, 1, 3, 3)),
        (2, (c, 1, 3, 3)),
        (3, (c, c, 1, 1)),
        (5, (c, 1, 3, 3)),
        (6, (c, c, 1, 1)),
    ]:
        add(f"encoder.pre_encode.conv.{i}.weight", *shape)
        add(f"encoder.pre_encode.conv.{i}.bias", c)
    add("encoder.pre_encode.out.weight", d, c * s["mel"] // 8)
    add("encoder.pre_encode.out.bias", d)
    for i in range(s["layers"]):
        layer = f"encoder.layers.{i}."
        for norm in ("feed_forward1", "conv", "self_att", "feed_forward2", "out"):
            add(f"{layer}norm_{norm}.weight", d)
            add(f"{layer}norm_{norm}.bias", d)
        for part in ("feed_forward1", "feed_forward2"):
            add(f"{layer}{part}.linear1.weight", 4 * d, d)
            add(f"{layer}{part}.linear2.weight", d, 4 * d)
        add(f"{layer}conv.pointwise_conv1.weight", 2 * d, d, 1)
        add(f"{layer}conv.depthwise_conv.weight", d, 1, s["kernel"])
        norm = torch.nn.BatchNorm1d(d)
        norm.running_mean.normal_()
        norm.num_batches_tracked.fill_(7)
        for name, value in norm.state_dict().items():
            state[f"{layer}conv.batch_norm.{name}"] = value
        add(f"{layer}conv.pointwise_conv2.weight", d, d, 1)
        add(f"{layer}self_attn.pos_bias_u", s["heads"], d // s["heads"])
        add(f"{layer}self_attn.pos_bias_v", s["heads"], d // s["heads"])
        for name in ("q", "k", "v", "out", "pos"):
            add(f"{layer}self_attn.linear_{name}.weight", d, d)
    if head == "ctc":
        add("decoder.decoder_layers.0.weight", s["tokens"] + 1, d, 1)
        add("decoder.decoder_layers.0.bias", s["tokens"] + 1)
        return state
    add("decoder.prediction.embed.weight", s["tokens"] + 1, p)
    state["decoder.prediction.embed.weight"][-1] = 0
    lstm = torch.nn.LSTM(p, p, 2).state_dict()
    state |= {f"decoder.prediction.dec_rnn.lstm.{name}": value for name, value in lstm.items()}
    outputs = s["tokens"] + 1 + (len(DURATIONS) if head == "tdt" else 0)
    for name, rows, columns in [("pred", p, p), ("enc", p, d), ("joint_net.2", outputs, p)]:
        add(f"joint.{name}.weight", rows, columns)
        add(f"joint.{name}.bias", rows)
    return state


def nemo_config(head="tdt"):
    s = SIZES
    modules = "nemo.collections.asr.modules."
    labels = ["<unk>", "a", "<pad>", *(f"▁{i}" for i in range(s["tokens"] - 3))]
    config = {
        "target": "nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel",
        "rnnt_reduction": "mean_volume",
        "tokenizer": {"type": "bpe", "model_path": "nemo:0a_tokenizer.model"},
        "encoder": {
            "_target_": modules + "ConformerEncoder",
            "feat_in": s["mel"],
            "n_layers": s["layers"],
            "d_model": s["d"],
            "use_bias": False,
            "subsampling": "dw_striding",
            "subsampling_factor": 8,
            "subsampling_conv_channels": s["channels"],
            "ff_expansion_factor": 4,
            "n_heads": s["heads"],
            "att_context_size": [-1, -1],
            "xscaling": False,
            "conv_kernel_size": s["kernel"],
            "dropout": 0.1,
            "dropout_pre_encoder": 0.1,
            "dropout_emb": 0.0,
            "dropout_att": 0.1,
        },
        "decoder": {
            "_target_": modules + ("ConvASRDecoder" if head == "ctc" else "RNNTDecoder"),
            "prednet": {"pred_hidden": s["predictor"], "pred_rnn_layers": 2, "dropout": 0.2},
            "vocab_size": s["tokens"],
        },
        "joint": {
            "_target_": modules + "RNNTJoint",
            "jointnet": {"joint_hidden": s["predictor"], "activation": "relu", "dropout": 0.2},
            "num_extra_outputs": len(DURATIONS) if head == "tdt" else 0,
        },
        "loss": {"loss_name": "default"},
        "labels": labels,
    }
    if head == "tdt":
        config["loss"] = {
            "loss_name": "tdt",
            "tdt_kwargs": {"durations": DURATIONS, "sigma": 0.02, "omega": 0.1},
        }
    return config


TOKENIZER = {"./0a_tokenizer.model": bytes(range(256)) * 3, "./0b_vocab.txt": "a\n▁b\n".encode()}


def write_nemo(path, state, config, mode="w"):
    weights = io.BytesIO()
    torch.save(state, weights)
    # JSON is valid YAML.
    files = {"./model_config.yaml": json.dumps(config, indent=1, ensure_ascii=False).encode()} | TOKENIZER
    with tarfile.open(path, mode) as opened:
        for name, data in (files | {"./model_weights.ckpt": weights.getvalue()}).items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            opened.addfile(info, io.BytesIO(data))
    return files


def copy(source, target):
    program = os.environ.get("OCTAVO_ARCHIVE_COPY") or pytest.skip("OCTAVO_ARCHIVE_COPY is not set")
    done = subprocess.run([program, "speech", source, target], capture_output=True, text=True, check=False)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return said, done.stderr


def assert_same(loaded, expected):
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert torch.equal(loaded[name], tensor), name


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("head", ["tdt", "rnnt", "ctc"])
def test_nemo_comes_back(tmp_path, head, mode):
    state = nemo_state(head)
    files = write_nemo(tmp_path / "theirs.nemo", state, nemo_config(head), mode)
    said, error = copy(tmp_path / "theirs.nemo", tmp_path / "ours.nemo")
    assert error == ""
    assert said["head"] == str(["tdt", "rnnt", "ctc"].index(head))
    assert (said["vocabulary"], said["pad"]) == ("32", "2")
    assert "note" not in said
    if head == "tdt":
        assert (said["sigma"], said["omega"], said["durations"]) == ("0.02", "0.1", "0,1,2,3,4")
    with tarfile.open(tmp_path / "ours.nemo") as opened:
        written = {member.name: opened.extractfile(member).read() for member in opened.getmembers()}
    weights = written.pop("./model_weights.ckpt")
    assert written == files
    assert_same(torch.load(io.BytesIO(weights), weights_only=True), state)


def test_sizes(tmp_path):
    write_nemo(tmp_path / "theirs.nemo", nemo_state(), nemo_config())
    said, _ = copy(tmp_path / "theirs.nemo", tmp_path / "ours")
    expected = {
        "mel_bands": 32,
        "subsampling_channels": 16,
        "encoder_layers": 2,
        "width": 64,
        "heads": 4,
        "feed_forward": 256,
        "kernel": 9,
        "predictor_width": 48,
        "predictor_layers": 2,
        "joint_width": 48,
        "reduction": "mean_volume",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "input_dropout": 0.1,
        "predictor_dropout": 0.2,
        "joint_dropout": 0.2,
    }
    assert {name: said[name] for name in expected} == {name: str(value) for name, value in expected.items()}
    # The folder gives the same settings, except that it does not store the loss's settings.
    again, error = copy(tmp_path / "ours", tmp_path / "again")
    assert error == ""
    loss = {"sigma", "omega", "reduction"}
    assert {k: v for k, v in again.items() if k not in loss} == {
        k: v for k, v in said.items() if k not in loss
    }
    files = ("config.json", "preprocessor_config.json", "model.safetensors")
    for name in (*files, "0a_tokenizer.model", "0b_vocab.txt"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "ours" / name).read_bytes()


def test_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    _, error = copy("someone/parakeet", tmp_path / "ours.nemo")
    assert "hf download someone/parakeet" in error
    assert str(tmp_path / "hub") in error
    # hf stores files in this layout, as links to blobs.
    model = tmp_path / "hub" / "models--someone--parakeet"
    for folder in ("blobs", "refs", "snapshots/12ab"):
        (model / folder).mkdir(parents=True)
    write_nemo(model / "blobs" / "99", nemo_state(), nemo_config())
    (model / "refs" / "main").write_text("12ab")
    (model / "snapshots" / "12ab" / "parakeet.nemo").symlink_to("../../blobs/99")
    said, error = copy("someone/parakeet", tmp_path / "ours.nemo")
    assert (said["vocabulary"], error) == ("32", "")


def test_features_as_transformers_names_them(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    if not hasattr(transformers, "ParakeetFeatureExtractor"):
        pytest.skip("this transformers has no ParakeetFeatureExtractor")
    config = nemo_config()
    config["preprocessor"] = {
        "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
        "features": SIZES["mel"],
        "window_size": 0.025,
        "n_fft": 512,
        "sample_rate": 8000,
        "preemph": 0.9,
    }
    write_nemo(tmp_path / "theirs.nemo", nemo_state(), config)
    assert copy(tmp_path / "theirs.nemo", tmp_path / "ours")[1] == ""
    written = json.loads((tmp_path / "ours" / "preprocessor_config.json").read_text())
    assert written.pop("feature_extractor_type") == "ParakeetFeatureExtractor"
    # The signature is read from the class without an instance, because creating one needs librosa.
    module = importlib.import_module("transformers.models.parakeet.feature_extraction_parakeet")
    names = set(inspect.signature(module.ParakeetFeatureExtractor.__init__).parameters)
    assert names - {"self", "kwargs"} <= set(written)
    wanted = {"feature_size": 32, "hop_length": 80, "win_length": 200, "n_fft": 512, "preemphasis": 0.9}
    assert {name: written[name] for name in wanted} == wanted
    assert written["sampling_rate"] == 8000


CLASSES = {"tdt": "ParakeetForTDT", "rnnt": "ParakeetForRNNT", "ctc": "ParakeetForCTC"}


def load_in_transformers(folder, head):
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: torch and tarfile alone"
    )
    if not hasattr(transformers, CLASSES[head]):
        pytest.skip(f"this transformers has no {CLASSES[head]}")
    model, info = getattr(transformers, CLASSES[head]).from_pretrained(folder, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


@pytest.mark.parametrize("head", ["tdt", "rnnt", "ctc"])
def test_transformers_loads_what_we_write(tmp_path, head):
    state = nemo_state(head)
    write_nemo(tmp_path / "theirs.nemo", state, nemo_config(head))
    assert copy(tmp_path / "theirs.nemo", tmp_path / "ours")[1] == ""
    model = load_in_transformers(tmp_path / "ours", head)
    config = model.config
    assert config.vocab_size == 33
    assert config.encoder_config.layerdrop == 0
    assert not config.encoder_config.scale_input
    if head != "ctc":
        assert (config.blank_token_id, config.pad_token_id, config.decoder_hidden_size) == (32, 2, 48)
    if head == "tdt":
        assert list(config.durations) == DURATIONS
        assert torch.equal(model.joint.head.weight, state["joint.joint_net.2.weight"])
        assert torch.equal(model.decoder.decoder_projector.bias, state["joint.pred.bias"])
    ours = model.state_dict()
    assert len(ours) == len(state) - 2
    layer = "encoder.layers.1."
    assert torch.equal(
        ours[layer + "self_attn.relative_k_proj.weight"], state[layer + "self_attn.linear_pos.weight"]
    )
    assert torch.equal(ours[layer + "conv.norm.running_mean"], state[layer + "conv.batch_norm.running_mean"])
    assert ours[layer + "conv.norm.num_batches_tracked"] == 7

    # A folder saved by transformers can be read, and its copy is equal.
    model.save_pretrained(tmp_path / "theirs")
    said, error = copy(tmp_path / "theirs", tmp_path / "again")
    assert error == ""
    assert said["head"] == str(list(CLASSES).index(head))
    assert_same(load_in_transformers(tmp_path / "again", head).state_dict(), ours)


def test_another_model(tmp_path):
    config = nemo_config()
    config["encoder"]["_target_"] = "nemo.collections.asr.modules.ConvASREncoder"
    config["target"] = "nemo.collections.asr.models.ctc_bpe_models.EncDecCTCModelBPE"
    write_nemo(tmp_path / "theirs.nemo", nemo_state(), config)
    _, error = copy(tmp_path / "theirs.nemo", tmp_path / "ours.nemo")
    assert (
        f"{tmp_path}/theirs.nemo: model_config.yaml: it is a nemo.collections.asr.models.ctc_bpe_models"
        in error
    )
    assert not (tmp_path / "ours.nemo").exists()
    # The defaults of transformers describe a different model: 80 bands are supported, biases and scaling are
    # not.
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text('{"model_type": "parakeet_tdt", "encoder_config": {}}')
    _, error = copy(tmp_path / "folder", tmp_path / "ours")
    assert "encoder_config.attention_bias: got true, expected false" in error
