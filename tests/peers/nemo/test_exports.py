"""Models that `octavo train` trained and `octavo export` wrote: NeMo and transformers load them, and their
transcripts and word error rates are those of `octavo transcribe` and `octavo evaluate`."""

from __future__ import annotations

import json
from pathlib import Path

import nemo_models
import pytest
import tones

MARGIN = 1e-9  # both rates are one division of the same integers


@pytest.fixture(scope="module", params=nemo_models.HEADS)
def trained(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Path]:
    return request.param, tones.trained(folder, request.param)


def test_nemo_transcribes_an_exported_run(trained: tuple[str, Path], folder: Path) -> None:
    from nemo.collections.asr.metrics.wer import word_error_rate
    from nemo.collections.asr.models import ASRModel

    head, run = trained
    archive = folder / f"exported-{head}.nemo"
    tones.octavo("export", run, archive)
    model = ASRModel.restore_from(str(archive), map_location="cpu")
    theirs = nemo_models.transcripts(model, tones.clips(folder))
    ours = [entry["text"] for entry in tones.transcribe(run, tones.clips(folder))]
    assert ours == theirs
    assert [entry["text"] for entry in tones.transcribe(archive, tones.clips(folder))] == theirs
    assert len(set(theirs)) > 4
    assert model.cfg.preprocessor.pad_to == 0
    tones.octavo(
        "evaluate", run, folder / "val.jsonl", "--device", "cpu", "--json", folder / f"wer-{head}.json"
    )
    rate = json.loads((folder / f"wer-{head}.json").read_text())["wer"]
    assert rate == pytest.approx(word_error_rate(theirs, tones.texts()), rel=MARGIN)


def test_transformers_transcribes_an_exported_run(trained: tuple[str, Path], folder: Path) -> None:
    """One by one and in a batch."""
    import transformers

    head, run = trained
    model_folder = folder / f"exported-{head}"
    tones.octavo("export", run, model_folder)
    cls = {"tdt": "ParakeetForTDT", "rnnt": "ParakeetForRNNT", "ctc": "ParakeetForCTC"}[head]
    model = getattr(transformers, cls).from_pretrained(model_folder)
    processor = transformers.AutoProcessor.from_pretrained(model_folder)
    sounds = [nemo_models.sound_of(path).numpy() for path in tones.clips(folder)]
    ours = [entry["text"] for entry in tones.transcribe(model_folder, tones.clips(folder))]
    for size in (1, 8):
        found = []
        for first in range(0, len(sounds), size):
            some = sounds[first : first + size]
            tokens = model.generate(**processor(some, sampling_rate=16000))
            tokens = tokens if head == "ctc" else tokens.sequences
            found += processor.batch_decode(tokens, skip_special_tokens=True)
        assert found == ours


@pytest.mark.parametrize("head", nemo_models.HEADS)
def test_a_run_that_began_with_an_archive_of_nemo(folder: Path, head: str) -> None:
    """Its export has the archive's own config."""
    from nemo.collections.asr.models import ASRModel

    origin = nemo_models.save(nemo_models.make(folder, head), folder / f"origin-{head}.nemo")
    config = folder / f"tuned-{head}.yaml"
    config.write_text(f"""
model: {{name: {origin}}}
data: {{train_manifest: {folder}/train.jsonl, val_manifest: {folder}/val.jsonl, dataloader_num_workers: 0}}
training: {{optimizer: adamw_8bit, learning_rate: 1.0e-3, max_steps: 3, per_device_train_batch_size: 4,
  compute_dtype: float32, eval_steps: null, device: cpu}}
output_dir: {folder}/tuned-{head}
""")
    tones.octavo("train", config)
    archive = folder / f"tuned-{head}.nemo"
    tones.octavo("export", folder / f"tuned-{head}", archive)
    model = ASRModel.restore_from(str(archive), map_location="cpu")
    assert model.cfg.decoding == ASRModel.restore_from(str(origin), return_config=True).decoding
    theirs = nemo_models.transcripts(model, tones.clips(folder, 8))
    ours = [entry["text"] for entry in tones.transcribe(folder / f"tuned-{head}", tones.clips(folder, 8))]
    assert ours == theirs
    untrained = [entry["text"] for entry in tones.transcribe(origin, tones.clips(folder, 8))]
    assert theirs != untrained


def test_a_run_that_began_with_a_hybrid(folder: Path) -> None:
    """Its CTC head is dropped: the export is a plain transducer."""
    from nemo.collections.asr.models import ASRModel

    origin = nemo_models.save(nemo_models.make(folder, "tdt", hybrid=True), folder / "origin-hybrid.nemo")
    config = folder / "tuned-hybrid.yaml"
    config.write_text(f"""
model: {{name: {origin}}}
data: {{train_manifest: {folder}/train.jsonl, val_manifest: {folder}/val.jsonl, dataloader_num_workers: 0}}
training: {{max_steps: 1, per_device_train_batch_size: 4, compute_dtype: float32, eval_steps: null,
  device: cpu}}
output_dir: {folder}/tuned-hybrid
""")
    tones.octavo("train", config)
    archive = folder / "tuned-hybrid.nemo"
    tones.octavo("export", folder / "tuned-hybrid", archive)
    model = ASRModel.restore_from(str(archive), map_location="cpu")
    assert type(model).__name__ == "EncDecRNNTBPEModel"
    theirs = nemo_models.transcripts(model, tones.clips(folder, 8))
    ours = [entry["text"] for entry in tones.transcribe(folder / "tuned-hybrid", tones.clips(folder, 8))]
    assert ours == theirs
