"""Tests the first commands of some guides: --config, DeepSpeed's launcher, examples/train/run_training.sh
with its parakeet.yaml, and a script of settings. The meaning of their configs is tested in
tests/train/config_guides_test.cc.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
TRAINER = pathlib.Path(BINARY).with_name("octavo-trainer")
EXAMPLES = ROOT / "examples" / "train"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

pytestmark = pytest.mark.skipif(not TRAINER.exists(), reason="this build has no octavo-trainer (LibTorch)")

TINY = """\
model: {name: bdh, n_layer: 1, n_embd: 32, n_head: 2, mlp_internal_dim_multiplier: 4}
data: {train: tales.txt, block_size: 32, max_eval_samples: 2}
training: {compute_dtype: float32, per_device_train_batch_size: 2, max_steps: 2, device: cpu}
output_dir: run
"""
# Settings that generate clips and create the model without downloaded files.
GENERATED = (
    "model.pretrained=false",
    "train_manifest=null",
    "val_manifest=null",
    "data.generator.clips=64",
    "data.generator.validation_clips=16",
    "data.generator.seconds=20",
    "data.generator.tokens=70",
)


@pytest.fixture
def folder(tmp_path):
    subprocess.run(
        [BINARY, "data", "make-text", tmp_path / "tales.txt", "--bytes", "20k"],
        check=True,
        capture_output=True,
    )
    (tmp_path / "config.yaml").write_text(TINY)
    return tmp_path


def run(folder, *words, code=0, **variables):
    """Returns the command's output on stdout and stderr."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**ENVIRONMENT, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def settings(table):
    """Returns the keys and values that --print-config prints."""
    return dict(re.findall(r"^(\S+\.\S+)  +(\S+)", table, re.MULTILINE))


@pytest.mark.parametrize("command", ["train", "plan"])
def test_the_config_may_be_an_option(folder, command):
    def octavo(*words, code):
        if command == "plan":
            words = (*words, "--gpu", "24GB")
        elif code == 0:
            words = (*words, "--print-config")
        return run(folder, BINARY, command, *words, code=code)

    plain = octavo("config.yaml", "n_layer=2", code=0)
    for words in (
        ["--config", "config.yaml", "n_layer=2"],
        ["--config=config.yaml", "n_layer=2"],
        ["n_layer=2", "--config", "config.yaml"],
    ):
        assert settings(octavo(*words, code=0)) == settings(plain), words
    said = octavo("config.yaml", "--config", "other.yaml", code=2)
    assert (
        "octavo: the config is given twice, as config.yaml and as --config other.yaml; give one of them"
        in said
    )
    assert "file" in octavo(code=2)
    assert "--config" in octavo("--config", code=2)
    assert "none.yaml: cannot be opened" in octavo("--config", "none.yaml", code=1)


def launched(folder, rank, ranks, port):
    """Starts a process like DeepSpeed 0.19's launcher with --no_python."""
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_SIZE": str(ranks),
        "CROSS_RANK": "0",
        "CROSS_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen(
        [BINARY, f"--local_rank={rank}", "train", "--config", "config.yaml"],
        cwd=folder,
        env={**ENVIRONMENT, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_deepspeeds_launcher(folder, ranks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [launched(folder, rank, ranks, port) for rank in range(ranks)]
    said = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, said
    assert ("2 ranks (ddp)" in said[0]) == (ranks == 2)
    assert (folder / "run" / "checkpoint-2").is_dir()


def test_the_script_trains_a_config(folder):
    script = EXAMPLES / "run_training.sh"
    said = run(folder, "bash", script, "config.yaml", "max_steps=1", OCTAVO=BINARY)
    assert "AdamW 8-bit: " in said
    assert (folder / "run" / "checkpoint-1").is_dir()
    said = run(folder, "bash", script, "none.yaml", code=2, OCTAVO=BINARY)
    assert said == "run_training.sh: none.yaml: there is no such config\n"
    # The config alone starts several ranks.
    said = run(folder, "bash", script, "config.yaml", "num_gpus=2", "output_dir=two", OCTAVO=BINARY)
    assert "2 ranks (ddp)" in said


def test_the_script_chooses_the_config(folder, tmp_path_factory):
    """The script takes the argument, then ./config.yaml, then the parakeet.yaml in its own folder."""
    empty, scripts = tmp_path_factory.mktemp("empty"), tmp_path_factory.mktemp("scripts")
    script = scripts / "run_training.sh"
    shutil.copy(EXAMPLES / "run_training.sh", script)
    printed = scripts / "octavo"
    printed.write_text('#!/bin/sh\necho "$*"\n')
    printed.chmod(0o755)

    def chosen(where, *words):
        lines = run(where, "bash", script, *words, "max_steps=1", OCTAVO=str(printed)).splitlines()
        config = lines[0].removeprefix("train --config ").removesuffix(" max_steps=1")
        assert lines == [
            f"train --config {config} max_steps=1",
            f"run_training.sh: training with {config}",
        ]
        return config

    said = run(empty, "bash", script, code=2, OCTAVO=str(printed))
    assert said == (
        f"run_training.sh: found neither ./config.yaml nor {scripts / 'parakeet.yaml'}; "
        "give the path of a config as the first argument\n"
    )
    shutil.copy(EXAMPLES / "parakeet.yaml", scripts)
    assert chosen(empty) == str(scripts / "parakeet.yaml")
    assert chosen(folder) == "./config.yaml"
    (folder / "other.yaml").write_text(TINY)
    assert chosen(folder, "other.yaml") == "other.yaml"


# sed replaces the rest of a line, so each key has its own line, as in the guide.
STAGED = """\
model: {name: bdh, n_layer: 1, n_embd: 32, n_head: 2, mlp_internal_dim_multiplier: 4}
data:
  train: tales.txt
  block_size: 8
  max_eval_samples: 2
  max_samples: -1
training:
  compute_dtype: float32
  per_device_train_batch_size: 2
  max_steps: 2
  device: cpu
  resume_from_checkpoint: false
output_dir: run
"""
# The lines of a guide for five million clips, verbatim. Each comment has the last step and the number of
# samples of the preceding run.
STAGES = """\
sed -i 's/max_samples:.*/max_samples: 100000/' config.yaml
bash run_training.sh
# 2 of 100000
sed -i 's/max_samples:.*/max_samples: 500000/' config.yaml
sed -i 's/resume_from_checkpoint: false/resume_from_checkpoint: true/' config.yaml
bash run_training.sh
# 4 of 500000
sed -i 's/max_samples:.*/max_samples: 1000000/' config.yaml
bash run_training.sh
# 6 of 1000000
sed -i 's/max_samples:.*/max_samples: -1/' config.yaml
bash run_training.sh
# 8 of 1079999
"""


def test_the_script_trains_in_stages_of_max_samples(tmp_path):
    """The script is in the folder of config.yaml, as in the guide."""
    shutil.copy(EXAMPLES / "run_training.sh", tmp_path)
    (tmp_path / "tales.txt").write_text("a tale. " * 1_200_000)
    (tmp_path / "config.yaml").write_text(STAGED)
    commands = []
    for line in STAGES.splitlines():
        if not line.startswith("# "):
            commands.append(line)
            continue
        said = run(tmp_path, "bash", "-ec", "\n".join(commands), OCTAVO=BINARY)
        assert "run_training.sh: training with ./config.yaml" in said
        step, samples = line.removeprefix("# ").split(" of ")
        state = json.loads((tmp_path / "run" / f"checkpoint-{step}" / "state.json").read_text())
        assert (state["step"], state["sampler"]["samples"]) == (int(step), int(samples)), said
        commands = []


def test_the_script_finds_the_command(folder):
    """The script finds the command in its own checkout, or else on the PATH."""
    scripts = folder / "a checkout" / "examples" / "train"
    scripts.mkdir(parents=True)
    for name in ("run_training.sh", "parakeet.yaml"):
        shutil.copy(EXAMPLES / name, scripts)
    (folder / "bin").mkdir()
    for place in (folder / "bin", folder / "a checkout" / "build" / "bin"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "octavo").write_text(f'#!/bin/sh\necho "{place.parent.name}: $*"\n')
        (place / "octavo").chmod(0o755)
    path = "/usr/bin:/bin"
    words = ("bash", scripts / "run_training.sh")
    config = scripts / "parakeet.yaml"
    (folder / "config.yaml").unlink()
    trains = f" train --config {config} max_steps=1\nrun_training.sh: training with {config}\n"
    assert run(folder, *words, "max_steps=1", PATH=path) == f"build:{trains}"
    shutil.rmtree(folder / "a checkout" / "build")
    in_path = run(folder, *words, "max_steps=1", PATH=f"{folder / 'bin'}:{path}")
    assert in_path == f"{folder.name}:{trains}"
    said = run(folder, *words, code=127, PATH=path)
    assert "the command octavo was not found: run make in the checkout" in said


def test_the_example_of_parakeet(folder):
    script = EXAMPLES / "run_training.sh"
    (folder / "config.yaml").unlink()
    found = settings(run(folder, "bash", script, "--print-config", OCTAVO=BINARY))
    expected = {
        "model.name": "nvidia/parakeet-tdt-0.6b-v3",
        "model.gradient_checkpointing": "true",
        "data.max_samples": "-1",
        "training.optimizer": "adamw_8bit",
        "training.compute_dtype": "bfloat16",
        "training.per_device_train_batch_size": "20",
        "training.per_device_eval_batch_size": "10",
        "training.gradient_accumulation_steps": "6",
    }
    assert {key: found[key] for key in expected} == expected
    # The settings in its comments are switched on.
    text = (EXAMPLES / "parakeet.yaml").read_text()
    other = re.sub(r"^  # ((max_steps|num_gpus): \d+) .*$", r"  \1", text, flags=re.MULTILINE)
    (folder / "other.yaml").write_text(other)
    said = run(folder, BINARY, "train", "other.yaml", "--print-config")
    assert settings(said)["training.num_gpus"] == "2"
    assert settings(said)["training.max_steps"] == "100"
    assert "num_train_epochs: without effect: training.max_steps is 100" in " ".join(said.split())
    # If the model is missing, a message names the command that downloads it.
    missing = run(folder, BINARY, "train", EXAMPLES / "parakeet.yaml", code=2, HF_HOME=str(folder))
    assert "hf download nvidia/parakeet-tdt-0.6b-v3" in missing
    planned = run(folder, BINARY, "plan", EXAMPLES / "parakeet.yaml", *GENERATED, "--gpu", "a100")
    assert "it fits" in planned


def test_the_plan_of_deepspeeds_file(folder):
    """DeepSpeed's stage 2 with a CPU optimizer offloads gradients and their fp32 sums over micro-batches."""
    zero = '{"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}}'
    (folder / "ds.json").write_text(
        f'{{"gradient_clipping": 1.0, "bf16": {{"enabled": true}}, "zero_optimization": {zero}}}'
    )

    def gradients(*words):
        all_words = ("deepspeed=ds.json", *GENERATED, "--gpu", "a100", "--json", *words)
        planned = json.loads(run(folder, BINARY, "plan", EXAMPLES / "parakeet.yaml", *all_words))
        return planned["memory"]["owners"]["gradients"]

    there, here = gradients(), gradients("offload_gradients=false")
    assert here > 6 * 620e6, "bf16 gradients and their fp32 sums"
    assert there < here / 10


def test_a_script_with_code_is_told_what_to_do(folder):
    """The command in the message makes a config from the script's settings."""
    script = "import torch\n\nUSE_FP8 = False\nUSE_4BIT_OPTIMIZER = True\nN = len([])\n"
    (folder / "train.py").write_text(script)
    said = run(folder, BINARY, "train", "train.py", code=2)
    assert said.startswith("octavo: train.py:1:1: import torch: Python code is not executed")
    copies = re.search(r"(grep .* > settings\.py);", said).group(1)
    run(folder, "bash", "-c", copies)
    assert (folder / "settings.py").read_text() == "\n".join(script.splitlines()[2:4]) + "\n"
    said = run(folder, BINARY, "train", "settings.py", "--print-config")
    assert settings(said)["training.optimizer"] == "adamw_8bit"
    assert "note: settings.py:2:1: use_4bit_optimizer: true is 8-bit AdamW" in " ".join(said.split())


def test_a_value_that_is_code_is_named(folder):
    """An error names a line that would need Python to compute it and that a copy of the settings still
    contains."""
    line = 'COMPUTE_DTYPE = "bfloat16" if torch.cuda.is_available() else "float16"'
    (folder / "settings.py").write_text(f"USE_FP8 = False\n{line}\n")
    said = run(folder, BINARY, "train", "settings.py", code=2)
    assert said.startswith(f"octavo: settings.py:2:1: {line[:20]}")
    assert "Python code is not executed" in said
    assert "not YAML" not in said
    assert "Write the value itself in this line" in said
    copies = re.search(r"(grep .* settings\.py > config\.py);", said).group(1)
    run(folder, "bash", "-c", copies)
    copied = folder / "config.py"
    copied.write_text(copied.read_text().replace(line, 'COMPUTE_DTYPE = "float16"'))
    said = run(folder, BINARY, "train", "config.py", "--print-config")
    assert settings(said)["training.compute_dtype"] == "float16"
