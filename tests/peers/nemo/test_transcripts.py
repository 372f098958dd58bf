"""NeMo's transcribe() and `octavo transcribe` with archives that NeMo saved: every head, hybrids, and keys of the
config that change features or decoding."""

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


def test_word_times_of_tdt(archives: dict[str, Path], folder: Path) -> None:
    from nemo.collections.asr.models import ASRModel

    recordings = tones.clips(folder, CLIPS)
    model = ASRModel.restore_from(str(archives["tdt"]), map_location="cpu").eval()
    theirs = model.transcribe(recordings, batch_size=4, verbose=False, timestamps=True)
    ours = tones.transcribe(archives["tdt"], recordings)
    words = 0
    for mine, other in zip(ours, theirs, strict=True):
        # NeMo's last word may end after the recording.
        end = mine["duration"]
        expected = [(w["word"], w["start"], min(w["end"], end)) for w in other.timestamp["word"]]
        assert [(w["word"], w["start"], w["end"]) for w in mine["words"]] == [
            (word, pytest.approx(start), pytest.approx(end)) for word, start, end in expected
        ]
        words += len(expected)
    assert words > CLIPS


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
