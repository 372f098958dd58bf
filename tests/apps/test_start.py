"""Tests what a newcomer meets first: `octavo --help`, `octavo init`, tab completion and suggestions."""

import os
import pathlib
import pty
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build/bin/octavo")


def octavo(*args, **options):
    command = [BINARY, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def has_trainer():
    return "\n  train " in octavo("--help").stdout


pytestmark = pytest.mark.skipif(not has_trainer(), reason="this octavo is built without the trainer")


def test_help_groups_the_commands_with_an_example_each():
    lines = octavo("--help").stdout.splitlines()
    titles = ["This machine:", "Train:", "Use a trained model:", "Data and reports:"]
    assert [line for line in lines if line in titles] == titles
    commands = [
        "info",
        "bench",
        "init",
        "train",
        "plan",
        "sample",
        "transcribe",
        "evaluate",
        "export",
        "data",
        "report",
        "completion",
    ]
    for command in commands:
        assert any(line.split()[:1] == [command] for line in lines), command
        assert any(
            line.strip().startswith(f"octavo {command} ") or f"octavo {command} " in line for line in lines
        ), command
    assert not any("__complete" in line for line in lines)


def test_train_without_a_file_says_what_to_do():
    done = octavo("train")
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 5
    assert "octavo init run.yaml" in done.stderr
    assert "docs/guides/train.md" in done.stderr


@pytest.mark.parametrize(
    ("args", "suggestion"),
    [
        (["trian"], "did you mean train?"),
        (["report", "runs/x", "--wach"], "did you mean --watch?"),
        (["bench", "optimiser"], "did you mean optimizer?"),
        (["plan", "run.yaml", "--num-gpu=2"], "did you mean --num-gpus?"),
    ],
)
def test_a_misspelled_word_gets_a_suggestion(args, suggestion):
    done = octavo(*args)
    assert done.returncode == 2
    assert suggestion in done.stderr


def test_a_word_that_resembles_nothing_gets_none():
    done = octavo("xylophone")
    assert done.returncode == 2
    assert "unknown subcommand 'xylophone'" in done.stderr
    assert "did you mean" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (
            ["--train", "a text.txt", "--output-dir", "runs/a"],
            ["  train: 'a text.txt'", "output_dir: runs/a"],
        ),
        (
            ["--task", "speech", "--train", "t.jsonl", "--val", "it's.jsonl"],
            ["  train_manifest: t.jsonl", "  val_manifest: 'it''s.jsonl'"],
        ),
    ],
)
def test_init_writes_a_config_that_train_reads(flags, lines, tmp_path):
    done = octavo("init", "my.yaml", *flags, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert "octavo train my.yaml" in done.stdout
    text = (tmp_path / "my.yaml").read_text()
    for line in lines:
        assert any(written.split(" #")[0].rstrip() == line for written in text.splitlines()), line
    assert "FILE" not in text
    printed = octavo("train", "my.yaml", "--print-config", cwd=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert "adamw_8bit" in printed.stdout


@pytest.mark.parametrize("value", ["null", "-", "true", "12", "~", "PROFILE.txt", "a#b", "[x]", "a: b"])
def test_init_keeps_every_value_as_a_text(value, tmp_path):
    done = octavo("init", "myFILE.yaml", "--train", value, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    printed = octavo("train", "myFILE.yaml", "--print-config", cwd=tmp_path).stdout
    assert value in next(line for line in printed.splitlines() if line.strip().startswith("data.train ")), (
        printed
    )


@pytest.mark.parametrize("args", [["a\nseed: 7.yaml"], ["--train", "a\nb"], ["--output-dir", "a\x1bb"]])
def test_init_refuses_control_characters(args, tmp_path):
    done = octavo("init", *args, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "control character" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_init_keeps_an_existing_file(tmp_path):
    (tmp_path / "run.yaml").write_text("mine\n")
    done = octavo("init", cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert (tmp_path / "run.yaml").read_text() == "mine\n"
    assert octavo("init", "--force", cwd=tmp_path, stdin=subprocess.DEVNULL).returncode == 0
    assert "name: bdh" in (tmp_path / "run.yaml").read_text()


def test_init_refuses_a_validation_file_of_a_text(tmp_path):
    done = octavo("init", "--task", "text", "--val", "v.txt", cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "held out" in done.stderr
    assert not (tmp_path / "run.yaml").exists()


def test_init_asks_on_a_terminal(tmp_path):
    main, side = pty.openpty()
    with subprocess.Popen([BINARY, "init"], cwd=tmp_path, stdin=side, stdout=side, stderr=side) as process:
        os.close(side)
        os.write(main, b"speech\nmine.jsonl\n\n")
        assert process.wait(timeout=60) == 0
    os.close(main)
    text = (tmp_path / "run.yaml").read_text()
    assert "  train_manifest: mine.jsonl " in text
    assert "  val_manifest: val.jsonl " in text


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["tr"], ["train", "transcribe"]),
        (["bench", "o"], ["offload", "optimizer"]),
        (["plan", "run.yaml", "--so"], ["--solve"]),
        (["plan", "run.yaml", "--solve", ""], ["batch", "gpus", "length", "model"]),
        (["plan", "run.yaml", "--solve", "m"], ["model"]),
        (["train", "run"], []),
        (["report", "runs/x", "--output", ""], []),
    ],
)
def test_completion_lists_candidates(words, found):
    done = octavo("__complete", "--", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == found


def test_bash_completes_a_subcommand(tmp_path):
    (tmp_path / "octavo").symlink_to(BINARY)
    script = """
        source <(octavo completion bash)
        COMP_WORDS=(octavo evalu) COMP_CWORD=1
        _octavo
        echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "evaluate\n", done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell):
    done = octavo("completion", shell)
    assert done.returncode == 0
    assert "octavo __complete -- " in done.stdout
