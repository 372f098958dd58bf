"""Tests restarts of `octavo train` (the folder, the settings, signals), and `octavo sample` on a terminal.
Behavior within a single process is tested in tests/train/resume_test.cc.
"""

import fcntl
import json
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import termios

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
TRAINER = pathlib.Path(BINARY).with_name("octavo-trainer")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.skipif(not TRAINER.exists(), reason="this build has no octavo-trainer (LibTorch)")

TINY = """\
model: {n_layer: 1, n_embd: 16, n_head: 2, mlp_internal_dim_multiplier: 4}
data: {train: text.txt, block_size: 16, dataloader_num_workers: 0, max_eval_samples: 2}
training:
  compute_dtype: float32
  per_device_train_batch_size: 2
  max_steps: 2
  logging_steps: 1
  sample_tokens: 0
  device: cpu
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.yaml").write_text(TINY)
    (tmp_path / "text.txt").write_bytes(bytes(i * i % 251 for i in range(4000)))
    return tmp_path


def octavo(folder, *words, code=0):
    done = subprocess.run(
        [BINARY, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
        timeout=300,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def runs(folder):
    return {p.name: sorted(c.name for c in p.glob("checkpoint-*")) for p in (folder / "runs").iterdir()}


def test_another_experiment_has_a_folder_of_its_own(folder):
    first = {"run": ["checkpoint-2"]}
    octavo(folder, "train", "run.yaml")
    assert runs(folder) == first
    octavo(folder, "train", "run.yaml", "lr=3e-4")
    assert runs(folder) == {**first, "run-learning_rate=3.0e-04": ["checkpoint-2"]}
    said = octavo(folder, "train", "run.yaml", "lr=3e-4", "output_dir=runs/run", code=2)
    assert "training.learning_rate: 0.001 -> 3.0e-04" in said
    assert "output_dir=runs/run-2" in said
    said = octavo(folder, "train", "run.yaml", "lr=3e-4", "max_steps=3", "--resume")
    assert "resuming from runs/run/checkpoint-2, step 2 of 3" in said
    assert runs(folder)["run"] == ["checkpoint-2", "checkpoint-3"]


def test_two_interrupts_at_once_leave_a_checkpoint(folder):
    """`make` or a launcher does this: it forwards a Ctrl-C that its child has also received."""
    process = subprocess.Popen(
        [BINARY, "train", "run.yaml", "max_steps=100000", "eval_steps=null"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    for line in process.stderr:  # ends with the process
        if line.startswith("step "):
            break
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "is saved, and the same command resumes from it" in err
    assert len(runs(folder)["run"]) == 1


def test_a_terminal_gets_no_control_characters(folder):
    octavo(folder, "train", "run.yaml")
    # A file that sampling does not need may be damaged, because it is not read.
    with (folder / "runs/run/checkpoint-2/optimizer.safetensors").open("ab") as states:
        states.write(b"x")
    words = [BINARY, "sample", "runs/run", "--prompt", "\x1b[31mred", "--tokens", "0"]
    piped = subprocess.run(words, cwd=folder, capture_output=True, env=ENVIRONMENT, check=True).stdout
    assert piped == b"\x1b[31mred\n"
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, cwd=folder, stdout=theirs, env=ENVIRONMENT) as process:
        os.close(theirs)
        assert process.wait(timeout=60) == 0
    assert os.read(ours, 1000) == b"\\x1b[31mred\r\n"
    os.close(ours)


def test_a_run_that_takes_days_says_so_before_its_first_step(folder):
    words = ["model.n_embd=64", "batch_size=8", "block_size=64", "max_steps=10000000", "eval_steps=null"]
    process = subprocess.Popen(
        [BINARY, "train", "run.yaml", *words], cwd=folder, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    said = []
    for line in process.stderr:
        if line.startswith("step "):
            break
        said.append(line)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    (note,) = [line for line in said if line.startswith("by its matmuls alone, ")]
    assert "this run will take at least" in note
    assert "train on a GPU" in note
    assert "by its matmuls" not in octavo(folder, "train", "run.yaml", "output_dir=short")


def test_a_text_that_is_there_twice_is_mentioned(folder):
    texts = folder / "texts"
    texts.mkdir()
    (texts / "first.txt").write_bytes((folder / "text.txt").read_bytes())
    (texts / "other.txt").write_bytes(b"another text " * 100)
    said = octavo(folder, "train", "run.yaml", "data.train=texts", "--dry-run", "2")
    assert "the same text" not in said
    (texts / "link.txt").symlink_to("first.txt")
    said = octavo(folder, "train", "run.yaml", "data.train=texts", "--dry-run", "2")
    assert "warning: 1 of 3 files have the same text as another one" in said


def on_a_terminal(folder, columns, *words):
    """Returns the command's output on a terminal of `columns` columns, as text."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    said = b""
    with subprocess.Popen(
        [BINARY, *words], cwd=folder, stdout=theirs, stderr=theirs, env=ENVIRONMENT
    ) as process:
        os.close(theirs)
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            said += more
    os.close(ours)
    assert process.returncode == 0, said
    return said.decode()


@pytest.mark.parametrize("columns", [60, 80, 100, 120])
def test_the_line_of_progress_keeps_the_time_left(folder, columns):
    said = on_a_terminal(folder, columns, "train", "run.yaml", "max_steps=20", "eval_steps=5")
    lines = [
        line for line in re.split(r"\r\x1b\[K|\r\n", said) if line.startswith("step ") and "loss" in line
    ]
    unfinished = [
        line for line in lines if re.match(r"step \d+/20  ", line) and not line.startswith("step 20/")
    ]
    assert len(unfinished) > 10
    for line in unfinished:
        assert len(line) < columns
        # The line has complete parts, the most important ones first.
        parts = line.split("  ")
        assert re.fullmatch(r"eta [0-9:.]+ ?[a-z0-9 ]*", parts[1]), line
        assert re.fullmatch(r"loss \d+\.\d{4}( \(eval \d+\.\d{4}\))?", parts[2]), line
        patterns = [r"[\d.]+k? tok/s", r"lr \S+", r"grad \S+", r"host [\d.]+ [kMG]?B"]
        for part, pattern in zip(parts[3:], patterns, strict=False):
            assert re.fullmatch(pattern, part), line
    if columns == 120:
        assert any("host" in line for line in unfinished)


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_config_info_and_help_are_as_wide_as_the_terminal(folder, columns):
    for words in (["train", "run.yaml", "--print-config"], ["info"], ["train", "--help"], ["--help"]):
        lines = on_a_terminal(folder, columns, *words).split("\r\n")
        # Names and paths are not broken.
        assert not [line for line in lines if len(line) > columns and " " in line.strip()[:columns]], words


def test_paths_lead_beside_the_config_and_runs_go_on_from_anywhere(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    octavo(elsewhere, "train", folder / "run.yaml")
    assert runs(elsewhere) == {"run": ["checkpoint-2"]}
    said = octavo(folder, "train", elsewhere / "runs/run/config.yaml", "max_steps=3")
    assert f"resuming from {elsewhere}/runs/run/checkpoint-2, step 2 of 3" in said
    assert not (folder / "runs").exists()
    assert runs(elsewhere) == {"run": ["checkpoint-2", "checkpoint-3"]}


def test_a_path_that_is_nowhere_names_the_places(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / "text.txt").unlink()
    said = octavo(elsewhere, "train", folder / "run.yaml", code=1)
    assert "data.train: text.txt: cannot open" in said
    here = f"{elsewhere}/text.txt (from the working directory)"
    assert f"looked at {folder}/text.txt (beside the config) and {here}" in said
    said = octavo(elsewhere, "train", folder / "run.yaml", "data.train=text.txt", code=1)
    assert f"looked at {here}" in said
    assert not list(elsewhere.iterdir())


def test_closed_standard_streams_reach_no_file_of_the_run(folder):
    """If the descriptors 0 to 2 are closed, the first files that a program opens get these numbers."""

    def close_all():
        for number in range(3):
            os.close(number)

    code = subprocess.run(
        [BINARY, "train", "run.yaml"],
        cwd=folder,
        env=ENVIRONMENT,
        preexec_fn=close_all,
        check=False,
        timeout=300,
    ).returncode
    assert code == 0
    lines = (folder / "runs/run/metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["kind"] for line in lines} >= {"start", "train", "checkpoint", "end"}
    (events,) = (folder / "runs/run").glob("events.out.tfevents.*")
    assert b"octavo:" not in events.read_bytes()
    assert b"step 2" not in events.read_bytes()
    said = octavo(folder, "train", "run.yaml", "max_steps=3")
    assert "resuming from runs/run/checkpoint-2" in said
    assert "warning" not in said


def test_control_characters_of_a_file_do_not_reach_the_terminal(folder):
    evil = "\x1b]0;title\x07\x1b[31m"
    # The header of a safetensors file contains a hostile name.
    header = json.dumps({evil: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights = folder / "weights.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    # A manifest contains a hostile path and text.
    line = {"audio_filepath": evil + ".wav", "duration": 1, "text": "a"}
    (folder / "clips.jsonl").write_text(json.dumps(line) + "\n")
    # A config contains a hostile path in YAML escapes.
    (folder / "evil.yaml").write_text(TINY.replace("text.txt", json.dumps(evil).replace("\\u00", "\\x")))
    for words, code in (
        (["train", "run.yaml", f"init_from={weights}"], 2),
        (["data", "check", "clips.jsonl"], None),
        (["train", "evil.yaml"], 2),
    ):
        done = subprocess.run(
            [BINARY, *words], cwd=folder, env=ENVIRONMENT, capture_output=True, check=False, timeout=300
        )
        assert code is None or done.returncode == code, done
        said = done.stdout + done.stderr
        assert b"\x1b" not in said
        assert b"\x07" not in said
        assert b"\\x1b]0;title\\x07" in said, said


def test_a_removed_working_directory_is_named(folder):
    gone = folder / "gone"
    gone.mkdir()
    words = f"cd {gone} && rmdir {gone} && exec {BINARY} train {folder}/run.yaml output_dir={folder}/out"
    done = subprocess.run(["sh", "-c", words], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "octavo: the working directory cannot be found (No such file or directory)" in done.stderr


def test_a_finished_run_removes_what_a_killed_one_left(folder):
    octavo(folder, "train", "run.yaml")
    run = folder / "runs/run"
    before = sorted(p.name for p in run.glob(".*"))
    (run / ".checkpoint-1.partial").mkdir()
    (run / ".checkpoint-1.partial" / "model.safetensors").write_bytes(b"x")
    (run / ".best.partial").symlink_to("checkpoint-2")
    assert "nothing to do" in octavo(folder, "train", "run.yaml")
    assert sorted(p.name for p in run.glob(".*")) == before
    assert runs(folder) == {"run": ["checkpoint-2"]}


def last_steps(folder, name):
    lines = [json.loads(line) for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line["kind"] == "end"]


# docs/guides/train.md states these numbers.
@pytest.mark.parametrize(
    ("length", "by_hand", "in_stages"),
    [("num_train_epochs: 1", [25, 125, 250], [25, 150, 400]), ("max_steps: 6", [6, 12, 18], [2, 4, 6])],
)
def test_progressive_training_by_editing_the_file(folder, length, by_hand, in_stages):
    (folder / "text.txt").write_bytes(bytes(i * i % 251 for i in range(20000)))
    config = TINY.replace("max_steps: 2", length).replace("batch_size: 2", "batch_size: 4")
    config = config.replace("training:", "training:\n  eval_steps: null")
    edited = config.replace("data: {", "data: {max_samples: SAMPLES, ")
    for samples in (100, 500, 1000):
        (folder / "hand.yaml").write_text(edited.replace("SAMPLES", str(samples)))
        octavo(folder, "train", "hand.yaml")
    assert last_steps(folder, "hand") == by_hand
    rates = {}
    for line in (folder / "runs/hand/metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "train":
            rates[record["step"]] = record["lr"]
    assert rates[by_hand[0] + 1] > 2 * rates[by_hand[0]]  # the schedule of the longer run applies
    # An unchanged file trains nothing and exits with 0. A change after which no step remains is an error.
    said = octavo(folder, "train", "hand.yaml")
    assert f"nothing to do: the run is complete, runs/hand/checkpoint-{by_hand[2]} is at step" in said
    (folder / "hand.yaml").write_text(edited.replace("SAMPLES", "500"))
    said = octavo(folder, "train", "hand.yaml", code=2)
    assert "data.max_samples: got 500, but the run has trained on 1000 samples" in said
    assert last_steps(folder, "hand")[-1] == by_hand[2]

    (folder / "stages.yaml").write_text(config.replace("data: {", "data: {stages: [100, 500, 1000], "))
    said = octavo(folder, "train", "stages.yaml")
    stages = re.findall(r"stage \d of 3: \d+ samples, to step (\d+)", said)
    assert [int(step) for step in stages] == in_stages


def test_more_samples_on_the_command_line_train_further(folder):
    for samples, step in (("max_samples=10", 2), ("max_samples=40", 4), ("max_samples=-1", 6)):
        octavo(folder, "train", "run.yaml", samples)
        assert f"checkpoint-{step}" in runs(folder)["run"]


def test_a_copied_checkpoint_is_skipped_with_a_warning(folder):
    octavo(folder, "train", "run.yaml", "save_steps=1")
    run = folder / "runs/run"
    shutil.copytree(run / "checkpoint-1", run / "checkpoint-99")
    warning = "runs/run/checkpoint-99: its name is of step 99, but its state.json is of step 1; "
    said = octavo(folder, "train", "run.yaml", "save_steps=1")
    assert "warning: not resumed from " + warning in said
    assert "nothing to do: the run is complete, runs/run/checkpoint-2 is at step 2 of 2" in said
    assert "warning: skipped " + warning in octavo(folder, "sample", "runs/run", "--tokens", "1")
    assert warning in octavo(
        folder, "train", "run.yaml", "resume_from_checkpoint=runs/run/checkpoint-99", code=1
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user with few processes")
def test_a_thread_that_cannot_be_started_is_named(folder):
    def become_nobody():
        os.setgid(65534)
        os.setuid(65534)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))

    with tempfile.TemporaryDirectory() as there:  # only root can access pytest's folders
        shutil.copytree(folder, there, dirs_exist_ok=True)
        pathlib.Path(there).chmod(0o777)
        done = subprocess.run(
            [BINARY, "train", "run.yaml"],
            cwd=there,
            env=ENVIRONMENT,
            preexec_fn=become_nobody,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 1
    assert "octavo: a thread could not be started (Resource temporarily unavailable); raise" in done.stderr
