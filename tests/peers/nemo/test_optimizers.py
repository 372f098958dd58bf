"""octavo.optim in NeMo's own setup_optimization and Lightning's Trainer: by name, with NeMo's schedules, by
the swap of docs/guides/nemo.md, and resumed from Lightning's checkpoints. CTC and RNN-T: NeMo trains no TDT
model on a CPU."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import nemo_models
import pytest
import tones
import torch

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/nemo.md"
STEPS = 8
COSINE = {"name": "CosineAnnealing", "warmup_steps": 2, "min_lr": 1e-5}
NOAM = {"name": "NoamAnnealing", "d_model": 64, "warmup_steps": 3, "min_lr": 1e-6}
ADAMW = {"lr": 3e-3, "betas": [0.9, 0.98], "weight_decay": 1e-3}


def guide(language: str, which: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[which]


class Trained:
    """A model after some steps, with what Lightning gave its optimizer."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.gradients: list[list[torch.Tensor]] = []  # clipped
        self.weights = [p.detach().clone() for p in model.parameters()]  # before the first step
        self.states: Any = None  # before the first step
        self.trainer: Any = None

    @property
    def optimizer(self) -> Any:
        return self.trainer.optimizers[0]

    def assert_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer`, made by hand for copies of the weights, makes the same bits of the same gradients."""
        (group,) = optimizer.param_groups
        for rate, gradients in zip(self.rates, self.gradients, strict=True):
            group["lr"] = rate
            for weight, gradient in zip(group["params"], gradients, strict=True):
                weight.grad = gradient
            optimizer.step()
        for mine, weight in zip(group["params"], self.model.parameters(), strict=True):
            assert torch.equal(mine, weight)

    def dtypes(self) -> set[torch.dtype]:
        """Of the states of large tensors."""
        entries = [value for state in self.optimizer.state.values() for value in state.values()]
        return {value.dtype for value in entries if torch.is_tensor(value) and value.numel() >= 4096}


def fit(
    archive: Path,
    folder: Path,
    optim: dict,
    cls: type | None = None,
    resume: Path | None = None,
    steps: int = STEPS,
    stop: int | None = None,
    batches: int = 4,
) -> Trained:
    import lightning.pytorch as lightning
    from nemo.collections.asr.models import ASRModel
    from omegaconf import OmegaConf, open_dict

    lightning.seed_everything(1, verbose=False)
    model = (cls or ASRModel).restore_from(str(archive), map_location="cpu")
    with open_dict(model.cfg):
        model.cfg.optim = optim
    data = {"manifest_filepath": str(folder / "train.jsonl"), "sample_rate": 16000, "batch_size": 4}
    model.setup_training_data(
        OmegaConf.create({**data, "shuffle": False, "num_workers": 0, "max_duration": 20})
    )
    out = Trained(model)

    class Notes(lightning.Callback):
        def on_train_start(self, trainer: Any, *_: Any) -> None:
            out.states = copied(trainer.optimizers[0].state_dict()["state"])

        def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
            out.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

        def on_train_batch_end(self, trainer: Any, _: Any, outputs: Any, *__: Any) -> None:
            out.losses.append(outputs["loss"].item())
            out.gradients.append([p.grad.clone() for p in model.parameters()])
            trainer.should_stop = trainer.global_step == stop

    out.trainer = lightning.Trainer(
        max_steps=steps,
        limit_train_batches=batches,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Notes()],
        limit_val_batches=0,
        gradient_clip_val=1.0,
    )
    model.set_trainer(out.trainer)
    out.trainer.fit(model, ckpt_path=str(resume) if resume else None)
    return out


def copied(value: Any) -> Any:
    if torch.is_tensor(value):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


def assert_same(one: Any, other: Any) -> None:
    if torch.is_tensor(one):
        assert one.dtype == other.dtype
        assert torch.equal(
            one.view(torch.uint8) if one.dim() else one, other.view(torch.uint8) if other.dim() else other
        )
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other


@pytest.fixture(scope="module")
def archives(folder: Path) -> dict[str, Path]:
    made = {}
    for head in ("ctc", "rnnt"):
        model = nemo_models.make(folder, head, varied=False)
        made[head] = nemo_models.save(model, folder / f"train-{head}.nemo")
    return made


@pytest.fixture(scope="module")
def torchs(archives: dict[str, Path], folder: Path) -> dict[tuple[str, str], Trained]:
    """torch's AdamW, by head and schedule."""
    return {
        (head, sched["name"]): fit(archives[head], folder, {"name": "adamw", **ADAMW, "sched": sched})
        for head in ("ctc", "rnnt")
        for sched in (COSINE, NOAM)
    }


@pytest.fixture(scope="module")
def names() -> list[str]:
    from octavo.integrations import register_with_nemo

    found = register_with_nemo()
    assert register_with_nemo() == found, "a second call changes nothing"
    return found


def test_every_name_makes_its_class_in_nemos_registry(names: list[str]) -> None:
    from nemo.core.optim.optimizers import get_optimizer

    weight = torch.nn.Parameter(torch.zeros(4))
    for name in names:
        made = get_optimizer(name, lr=1e-3)([weight])
        assert type(made).__module__.startswith("octavo.")
    assert len(names) == len(set(names))


RUNS = [
    ("ctc", "adamw_8bit", {}, COSINE, "8bit"),
    ("ctc", "adamw8bit", {}, NOAM, "8bit"),
    ("ctc", "8bit_adamw", {}, COSINE, "8bit"),
    ("ctc", "AdamW8bit", {"block_size": 128}, COSINE, "8bit"),
    ("ctc", "adamw_4bit", {}, COSINE, "4bit"),
    ("ctc", "AdamWFp8", {}, COSINE, "fp8"),
    ("rnnt", "adamw_8bit", {}, COSINE, "8bit"),
    ("rnnt", "adamw_8bit", {}, NOAM, "8bit"),
    ("rnnt", "adamw_4bit", {}, NOAM, "4bit"),
]
CLASSES = {"8bit": "AdamW8bit", "4bit": "AdamW4bit", "fp8": "AdamWFp8"}
CODES = {"8bit": torch.uint8, "4bit": torch.uint8, "fp8": torch.float8_e4m3fn}


@pytest.mark.parametrize(("head", "name", "options", "sched", "state"), RUNS)
def test_by_name(
    archives: dict,
    torchs: dict,
    folder: Path,
    names: list,
    head: str,
    name: str,
    options: dict,
    sched: dict,
    state: str,
) -> None:
    from octavo import optim

    assert name in names
    found = fit(archives[head], folder, {"name": name, **ADAMW, **options, "sched": sched})
    expected = torchs[head, sched["name"]]
    assert type(found.optimizer).__module__.startswith("octavo.")
    assert found.dtypes() == {CODES[state]}
    assert found.rates == expected.rates
    assert len(set(found.rates)) > 4
    assert found.losses[0] == expected.losses[0]
    assert found.losses[-1] < found.losses[0]
    made = getattr(optim, CLASSES[state])(found.weights, **ADAMW, **options)
    found.assert_steps(made)


def test_the_guides_config(archives: dict, folder: Path, names: list) -> None:
    """Word for word. NeMo adds max_steps to the schedule."""
    from omegaconf import OmegaConf

    optim = OmegaConf.to_container(OmegaConf.create(guide("yaml")))["optim"]
    found = fit(archives["ctc"], folder, optim)
    group = found.optimizer.param_groups[0]
    assert (type(found.optimizer).__name__, group["block_size"], tuple(group["betas"])) == (
        optim["name"],
        optim["block_size"],
        tuple(optim["betas"]),
    )
    assert found.rates[0] < found.rates[-1] < optim["lr"], "it warms up"


def test_nemos_older_form_of_options(archives: dict, folder: Path, names: list) -> None:
    """`optim.args`: NeMo makes the registered dataclass of the optimizer's parameters."""
    args = {"name": "auto", "params": {"block_size": 128, "betas": [0.9, 0.98]}}
    found = fit(archives["ctc"], folder, {"name": "adamw_8bit", "lr": 1e-3, "args": args}, steps=1)
    group = found.optimizer.param_groups[0]
    assert (type(found.optimizer).__name__, group["block_size"], tuple(group["betas"]), group["lr"]) == (
        "AdamW8bit",
        128,
        (0.9, 0.98),
        1e-3,
    )


def test_a_class_with_the_format_as_an_option(archives: dict, folder: Path) -> None:
    from octavo import optim
    from octavo.integrations import register_with_nemo

    assert register_with_nemo(optim.Lion) == ["Lion"]
    found = fit(archives["ctc"], folder, {"name": "Lion", "lr": 1e-4, "state": "4bit"}, steps=1)
    assert type(found.optimizer).__name__ == "Lion"
    assert found.dtypes() == {torch.uint8}


def test_nemos_groups(archives: dict, folder: Path, names: list) -> None:
    from omegaconf import OmegaConf

    def change(config: dict[str, Any]) -> None:
        config["optim_param_groups"] = {"encoder": {"lr": 1e-4}}

    archive = nemo_models.with_config(archives["ctc"], folder / "groups.nemo", change)
    found = fit(archive, folder, {"name": "adamw_8bit", **ADAMW}, steps=2)
    decoder, encoder = found.optimizer.param_groups
    assert (decoder["lr"], encoder["lr"]) == (ADAMW["lr"], 1e-4)
    assert len(encoder["params"]) == len(list(found.model.encoder.parameters()))
    assert OmegaConf.to_container(found.model.cfg.optim_param_groups) == {"encoder": {"lr": 1e-4}}


def test_the_stand_in_of_make_test_is_like_nemo() -> None:
    """tests/python/test_nemo.py has NeMo's functions without their code: signatures and errors are equal."""
    from nemo.core import config
    from nemo.core.optim import optimizers

    sys.path.insert(0, str(GUIDE.parents[2] / "tests/python"))
    try:
        import test_nemo
    finally:
        sys.path.pop(0)
    stand_in = test_nemo.Registry()
    real = {
        "register_optimizer": optimizers.register_optimizer,
        "get_optimizer": optimizers.get_optimizer,
        "register_optimizer_params": config.register_optimizer_params,
    }
    arguments = {
        "register_optimizer": ("adamw", torch.optim.AdamW, config.OptimizerParams),
        "get_optimizer": ("adamw_9bit",),
    }
    for name, function in real.items():
        assert list(inspect.signature(function).parameters) == list(
            inspect.signature(getattr(stand_in, name)).parameters
        )
    for name, values in arguments.items():
        errors = []
        for function in (real[name], getattr(stand_in, name)):
            with pytest.raises(ValueError, match=values[0]) as caught:
                function(*values)
            errors.append(str(caught.value).split(" Available")[0])
        assert errors[0] == errors[1]
    assert config.OptimizerParams.__dataclass_fields__.keys() == {"lr"}


def test_a_wrong_option_is_an_error(archives: dict, folder: Path, names: list) -> None:
    with pytest.raises(TypeError, match="blocksize"):
        fit(archives["ctc"], folder, {"name": "adamw_8bit", **ADAMW, "blocksize": 128})
    with pytest.raises(ValueError, match="block_size: 100, expected a power of two"):
        fit(archives["ctc"], folder, {"name": "adamw_8bit", **ADAMW, "block_size": 100})


@pytest.mark.parametrize("sched", [COSINE, NOAM], ids=["cosine", "noam"])
@pytest.mark.parametrize("head", ["ctc", "rnnt"])
def test_the_guides_swap(archives: dict, torchs: dict, folder: Path, head: str, sched: dict) -> None:
    """Word for word."""
    from octavo import optim

    scope: dict[str, Any] = {"YourModel": nemo_models.model_class(head)}
    exec(guide("python", 1), scope)
    found = fit(archives[head], folder, {"name": "adamw", **ADAMW, "sched": sched}, scope["Model"])
    expected = torchs[head, sched["name"]]
    assert type(found.optimizer).__name__ == "AdamW8bit"
    assert found.dtypes() == {torch.uint8}
    assert found.rates == expected.rates
    group = found.optimizer.param_groups[0]
    assert (tuple(group["betas"]), group["weight_decay"]) == (tuple(ADAMW["betas"]), ADAMW["weight_decay"])
    found.assert_steps(optim.AdamW8bit(found.weights, **ADAMW))


@pytest.mark.parametrize("name", ["adamw_8bit", "adamw_4bit", "AdamWFp8"])
def test_lightnings_checkpoint_resumes(archives: dict, folder: Path, names: list, name: str) -> None:
    """A run stops and saves after four steps. The resumed run has its states, byte for byte, and the losses,
    learning rates and weights of a run that was not stopped. All steps have the same batch, because a resumed
    Trainer begins its loader in another place."""
    optim = {"name": name, **ADAMW, "sched": COSINE}
    whole = fit(archives["ctc"], folder, optim, batches=1)
    first = fit(archives["ctc"], folder, optim, stop=4, batches=1)
    checkpoint = folder / f"{name}.ckpt"
    first.trainer.save_checkpoint(str(checkpoint))
    resumed = fit(archives["ctc"], folder, optim, resume=checkpoint, batches=1)
    assert_same(resumed.states, first.optimizer.state_dict()["state"])
    assert first.rates + resumed.rates == whole.rates
    assert first.losses + resumed.losses == whole.losses
    for one, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit"])
def test_nemos_schedule_keeps_its_length_on_resume(
    archives: dict, folder: Path, names: list, name: str
) -> None:
    """With any optimizer: max_steps is in the checkpoint of the schedule."""
    optim = {"name": name, **ADAMW, "sched": COSINE}
    first = fit(archives["ctc"], folder, optim, steps=4)
    checkpoint = folder / f"{name}-length.ckpt"
    first.trainer.save_checkpoint(str(checkpoint))
    resumed = fit(archives["ctc"], folder, optim, resume=checkpoint)
    assert resumed.rates == [COSINE["min_lr"]] * 4


@pytest.mark.parametrize("head", ["ctc", "rnnt"])
def test_an_exported_run_is_trained_further_in_nemo(folder: Path, names: list, head: str) -> None:
    """A run of Octavo is exported, trained in NeMo and saved there. Both programs transcribe the result
    equally."""
    run = tones.trained(folder, head)
    tones.octavo("export", run, folder / f"further-{head}.nemo")
    found = fit(folder / f"further-{head}.nemo", folder, {"name": "adamw_8bit", **ADAMW, "lr": 1e-4}, steps=3)
    archive = nemo_models.save(found.model.eval(), folder / f"further-in-nemo-{head}.nemo")
    theirs = nemo_models.transcripts(found.model, tones.clips(folder))
    assert [entry["text"] for entry in tones.transcribe(archive, tones.clips(folder))] == theirs
    assert len(set(theirs)) > 4
