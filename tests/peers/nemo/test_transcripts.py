"""NeMo's transcribe() and `octavo transcribe` with archives that NeMo saved: every head, hybrids, and keys of
the config that change features or decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo_models
import pytest
import tones

CLIPS = 8


def equal(archive: Path, folder: Path, different: int = 4) -> list[str]:
    """Both programs' transcripts of the clips, which must be equal and not all the same."""
    from nemo.collections.asr.models import ASRModel

    recordings = tones.clips(folder, CLIPS)
    model = ASRModel.restore_from(str(archive), map_location="cpu").eval()
    theirs = nemo_models.transcripts(model, recordings)
    ours = [entry["text"] for entry in tones.transcribe(archive, recordings)]
    assert ours == theirs
    assert len(set(theirs)) >= different
    return theirs


@pytest.fixture(scope="module")
def archives(folder: Path) -> dict[str, Path]:
    made = {}
    for head in nemo_models.HEADS:
        made[head] = nemo_models.save(nemo_models.make(folder, head), folder / f"plain-{head}.nemo")
    return made


@pytest.mark.parametrize("head", nemo_models.HEADS)
def test_every_head(archives: dict[str, Path], folder: Path, head: str) -> None:
    equal(archives[head], folder)


@pytest.mark.parametrize("head", ["tdt", "rnnt"])
def test_a_hybrid_is_read_as_its_transducer(folder: Path, head: str) -> None:
    archive = folder / f"hybrid-{head}.nemo"
    model = nemo_models.make(folder, head, hybrid=True)
    assert any(name.startswith("ctc_decoder.") for name in model.state_dict())
    nemo_models.save(model, archive)
    equal(archive, folder)


def setting(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(config: dict[str, Any]) -> None:
        *sections, key = path.split(".")
        for each in sections:
            config = config[each]
        config[key] = value

    return change


EQUAL = [
    ("ctc", "preprocessor.preemph", None),
    ("ctc", "preprocessor.preemph", 0.5),
    ("ctc", "encoder.xscaling", None),
    ("ctc", "preprocessor.pad_to", 16),
    ("rnnt", "preprocessor.pad_to", 16),
    ("rnnt", "decoding.greedy.max_symbols", 3),
    ("rnnt", "decoding.greedy.max_symbols", 30),
    ("tdt", "decoding.greedy.max_symbols", 2),
]


@pytest.mark.parametrize(("head", "key", "value"), EQUAL)
def test_keys_of_the_config(archives: dict, folder: Path, head: str, key: str, value: Any) -> None:
    changed = nemo_models.with_config(archives[head], folder / "changed.nemo", setting(key, value))
    found = equal(changed, folder)
    if "max_symbols" in key:
        assert found != equal(archives[head], folder), "the key changes these transcripts"


@pytest.mark.parametrize(("key", "value"), [("normalize", None), ("log", None), ("log", False)])
def test_features_that_are_refused(archives: dict, folder: Path, key: str, value: Any) -> None:
    archive = nemo_models.with_config(
        archives["ctc"], folder / "refused.nemo", setting(f"preprocessor.{key}", value)
    )
    with pytest.raises(AssertionError, match=f"preprocessor.{key}: got"):
        tones.transcribe(archive, tones.clips(folder, 1))


def test_word_times_of_tdt(folder: Path) -> None:
    """A trained model's words. The last one ends with the recording here, and in NeMo it may end later. A
    last token of duration 0 lasts a frame here, and in NeMo no time: of a clip that has such tokens, starts
    alone are compared."""
    from nemo.collections.asr.models import ASRModel

    archive = folder / "times.nemo"
    tones.octavo("export", tones.trained(folder, "tdt"), archive)
    recordings = tones.clips(folder)
    model = ASRModel.restore_from(str(archive), map_location="cpu").eval()
    theirs = model.transcribe(recordings, batch_size=4, verbose=False, timestamps=True)
    starts = ends = 0
    for mine, other in zip(tones.transcribe(archive, recordings), theirs, strict=True):
        words = other.timestamp["word"]
        assert [w["word"] for w in mine["words"]] == [w["word"] for w in words]
        assert [w["start"] for w in mine["words"]] == pytest.approx([w["start"] for w in words])
        starts += len(words)
        if 0 in other.token_duration:
            continue
        expected = [min(w["end"], mine["duration"]) for w in words]
        assert [w["end"] for w in mine["words"]] == pytest.approx(expected)
        ends += len(words)
    assert starts > 20
    assert ends > 10


def test_word_times_of_ctc(folder: Path) -> None:
    """A word lasts from its first token's first frame to its last token's last frame. In NeMo it begins where
    the word before ends, and ends where its last token begins."""
    from nemo.collections.asr.models import ASRModel

    archive = folder / "times-ctc.nemo"
    tones.octavo("export", tones.trained(folder, "ctc"), archive)
    recordings = tones.clips(folder)
    model = ASRModel.restore_from(str(archive), map_location="cpu").eval()
    theirs = model.transcribe(recordings, batch_size=4, verbose=False, timestamps=True)
    for mine, other in zip(tones.transcribe(archive, recordings), theirs, strict=True):
        words = other.timestamp["word"]
        assert [w["word"] for w in mine["words"]] == [w["word"] for w in words]
        before = 0.0
        for ours, nemos in zip(mine["words"], words, strict=True):
            assert nemos["start"] == pytest.approx(before)
            assert ours["start"] <= nemos["end"] + 1e-9
            assert nemos["end"] < ours["end"]
            before = nemos["end"]


@pytest.mark.parametrize("head", ["ctc", "tdt"])
def test_archives_in_bfloat16(folder: Path, head: str) -> None:
    """The window and the filterbank of such an archive are rounded. `octavo` makes them from the settings, so
    its transcripts are those of NeMo with exact tables."""
    import torch
    from nemo.collections.asr.models import ASRModel

    made = nemo_models.make(folder, head)
    tables = {name: value.clone() for name, value in made.preprocessor.featurizer.state_dict().items()}
    archive = nemo_models.save(made.bfloat16(), folder / f"bfloat16-{head}.nemo")
    model = ASRModel.restore_from(str(archive), map_location="cpu").float().eval()
    rounded = model.preprocessor.featurizer.state_dict()
    assert any(not torch.equal(rounded[name], tables[name]) for name in tables)
    model.preprocessor.featurizer.load_state_dict(tables)
    recordings = tones.clips(folder, CLIPS)
    theirs = nemo_models.transcripts(model, recordings)
    assert [entry["text"] for entry in tones.transcribe(archive, recordings)] == theirs
    assert len(set(theirs)) > 4


def test_nemos_resampling_of_8000_hz_leaves_images(tmp_path: Path) -> None:
    """The reason why transcripts of 8 kHz recordings may differ: what lies above 4 kHz after lhotse, which
    NeMo's transcribe() resamples with, is not there after soxr, which `octavo` uses."""
    import numpy as np
    import soundfile
    import soxr
    from lhotse import Recording

    noise = np.random.default_rng(0).normal(size=8000).astype(np.float32) * 0.1
    soundfile.write(tmp_path / "noise.wav", noise, 8000, subtype="FLOAT")
    images = []
    for samples in (
        Recording.from_file(tmp_path / "noise.wav").resample(16000).load_audio()[0],
        soxr.resample(noise, 8000, 16000, quality="HQ"),
    ):
        middle = samples[1000:-1000]
        power = np.abs(np.fft.rfft(middle * np.hanning(len(middle)))) ** 2
        pitch = np.fft.rfftfreq(len(middle), 1 / 16000)
        images.append(power[pitch > 4200].sum() / power[pitch < 3800].sum())
    assert images[0] > 1e-4
    assert images[1] < 1e-8


def test_recordings_of_44100_hz(folder: Path) -> None:
    """Both programs resample them, each in its own way."""
    import numpy as np
    import soxr
    from nemo.collections.asr.models import ASRModel

    archive = folder / "rate.nemo"
    tones.octavo("export", tones.trained(folder, "ctc"), archive)
    paths = []
    for i in range(CLIPS):
        path = folder / f"rate-{i}.wav"
        samples = soxr.resample(tones.samples_of(i).astype(np.float64), tones.RATE, 44100)
        tones.write_wave(path, np.round(samples).clip(-32768, 32767).astype(np.int16), 44100)
        paths.append(str(path))
    model = ASRModel.restore_from(str(archive), map_location="cpu").eval()
    theirs = nemo_models.transcripts(model, paths)
    assert [entry["text"] for entry in tones.transcribe(archive, paths)] == theirs
    assert len(set(theirs)) > 4


def test_short_clips_in_a_batch_with_long_ones(archives: dict[str, Path], folder: Path) -> None:
    """0.1 s, 0.3 s and 20 s, alone and together."""
    import numpy as np
    from nemo.collections.asr.models import ASRModel

    long = np.concatenate([tones.samples_of(i) for i in range(40)])[: 20 * tones.RATE]
    paths = []
    for name, samples in (("a", long[40000:41600]), ("b", long[:4800]), ("c", long)):
        paths.append(str(folder / f"length-{name}.wav"))
        tones.write_wave(Path(paths[-1]), samples)
    for head in nemo_models.HEADS:
        model = ASRModel.restore_from(str(archives[head]), map_location="cpu").eval()
        ours = [entry["text"] for entry in tones.transcribe(archives[head], paths, window="30")]
        assert ours == nemo_models.transcripts(model, paths, 1) == nemo_models.transcripts(model, paths, 3)
