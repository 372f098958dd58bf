"""Tests the command `octavo` as a subprocess: JSON keys, byte counts, checksums across implementations,
errors.

OCTAVO_BIN (or OCTAVO_COMMAND) names the binary; the default is build/bin/octavo. No timing is asserted.
"""

import functools
import json
import math
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_BINARY = ROOT / "build" / "bin" / "octavo"
BINARY = os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(DEFAULT_BINARY)

ROW_KEYS = {
    "optimizer",
    "state",
    "param_dtype",
    "grad_dtype",
    "grad_offset",
    "shape",
    "zeros",
    "touched",
    "ever_touched",
    "device",
    "implementation",
    "threads",
    "numel",
    "tensors",
    "ms_median",
    "ms_min",
    "state_bytes_per_param",
    "moved_bytes_per_param",
    "gb_per_s",
    "copy_gb_per_s",
    "percent_of_copy",
    "checksum",
    "store",
    "block_size",
    "guard",
    "error",
}
TIMING_KEYS = {
    "ms_median", "ms_min", "gb_per_s", "copy_gb_per_s", "percent_of_copy", "touched", "ever_touched"
}  # fmt: skip
GPU_TIMING_KEYS = {"ms_guard", "ms_clip", "host_us", "host_us_rebind_grads", "host_us_after_rebind"}
GPU_KEYS = {
    "name",
    "compute_capability",
    "multiprocessors",
    "memory_bytes",
    "usable",
    "note",
    "fp8_conversion",
}
TENSORS = {
    "gpt2": (148, 124_475_904),
    "parakeet": (646, 627_006_854),
    "gpt2-embedding": (1, 50_257 * 768),
    "moe": (20, 118_066_176),
    "lora": (3072, 3072 * 8192),
    "vit-g": (727, 1_134_771_200),
}
OPTIMIZERS = ["adam", "adamw", "sgd", "lion", "rmsprop", "adagrad", "lars", "lamb", "ademamix"]
STORES = ["nearest", "stochastic", "bf16+8", "bf16+16"]


def octavo(*args, impl=None):
    env = {k: v for k, v in os.environ.items() if k != "OCTAVO_FORCE_IMPL"}
    if impl is not None:
        env["OCTAVO_FORCE_IMPL"] = impl
    return subprocess.run([BINARY, *args], env=env, capture_output=True, text=True, timeout=300)


def octavo_json(*args, impl=None):
    done = octavo(*args, "--json", impl=impl)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def dry_rows(*args, impl=None):
    return octavo_json("bench", "optimizer", "--dry-run", *args, impl=impl)["rows"]


@functools.cache
def info():
    return octavo_json("info")


def assert_fails(done, code, *words):
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("octavo: "), done.stderr
    for word in words:
        assert word in last, last


def test_info_json_has_the_interface_keys():
    out = info()
    keys = {"version", "cpu", "gpus", "implementations", "optimizers", "states", "stores", "dtypes"}
    assert keys <= out.keys()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", out["version"])
    assert out["cpu"]["model"]
    assert out["cpu"]["cores"] >= 1
    assert out["gpus"] or out["gpu_note"]
    for key in ("optimizers", "states", "stores", "dtypes"):
        assert out[key]
        assert all(isinstance(name, str) for name in out[key])
    assert out["optimizers"] == OPTIMIZERS
    assert [each["name"] for each in out["algorithms"]] == out["optimizers"]
    assert out["stores"] == STORES
    states = {"fp32", "bf16", "8bit", "4bit", "4bit-rank1", "fp8", "fp8-e5m2", "4bit/8bit", "fp4", "fp3"}
    assert states <= set(out["states"])


def test_info_marks_exactly_one_chosen_implementation():
    implementations = info()["implementations"]
    for each in implementations:
        assert {"name", "description", "supported", "chosen"} <= each.keys()
    chosen = [each for each in implementations if each["chosen"]]
    assert len(chosen) == 1
    assert chosen[0]["supported"]
    assert implementations[-1]["name"] == "scalar"
    assert implementations[-1]["supported"]


def test_info_says_which_trainer_there_is(tmp_path):
    trainer = info()["trainer"]
    assert trainer["available"] == pathlib.Path(BINARY).with_name("octavo-trainer").exists()
    assert trainer["available"] == (trainer["note"] == "")
    if trainer["available"]:
        libtorch = trainer["libtorch"]
        assert re.fullmatch(r"\d+\.\d+\.\d+", libtorch["version"])
        assert (pathlib.Path(libtorch["path"]) / "lib" / "libtorch.so").exists()
        assert f"LibTorch {libtorch['version']}, {libtorch['build'].upper()} build" in octavo("info").stdout
    # A copy without octavo-trainer in its folder has no trainer and reports this.
    alone = tmp_path / "octavo"
    shutil.copy(BINARY, alone)
    library = {"LD_LIBRARY_PATH": str(pathlib.Path(BINARY).parents[1] / "lib")}
    for arguments in (["info"], ["sample", "run", "--prompt", "x"]):
        done = subprocess.run([alone, *arguments], env=library, capture_output=True, text=True)
        said = " ".join((done.stdout + done.stderr).split())  # lines are broken at blanks
        assert "octavo-trainer is not there" in said or not trainer["libtorch"]


def trainer_environment(folder, pattern, names):
    """Returns a function that runs a stand-in trainer and returns the lines of its environment that match
    `pattern`, and the environment of this process without `names`.

    LibTorch reads these variables when it is loaded, so they must be set before.
    """
    if not info()["trainer"]["libtorch"]:
        pytest.skip("this octavo was built without the trainer")
    shutil.copy(BINARY, folder / "octavo")
    trainer = folder / "octavo-trainer"
    trainer.write_text(f"#!/bin/sh\nenv | grep -E '{pattern}' | sort\n")
    trainer.chmod(0o755)
    plain = {k: v for k, v in os.environ.items() if k not in names}
    plain["LD_LIBRARY_PATH"] = str(pathlib.Path(BINARY).parents[1] / "lib")

    def given(**chosen):
        done = subprocess.run(
            [folder / "octavo", "sample", "run"],
            env={**plain, **chosen},
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, 1), done.stderr  # 1: grep found nothing
        return done.stdout.split()

    return given, plain


def test_idle_threads_of_the_trainer_sleep_unless_the_user_chose(tmp_path):
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    given, _ = trainer_environment(tmp_path, "^(OMP_WAIT|GOMP_SPIN|KMP_BLOCK)", names)
    assert given() == ["OMP_WAIT_POLICY=passive"]
    for name, value in (("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "100"), ("KMP_BLOCKTIME", "5")):
        assert given(**{name: value}) == [f"{name}={value}"]


def test_the_trainer_starts_with_expandable_segments_unless_the_user_chose(tmp_path):
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    given, plain = trainer_environment(tmp_path, "ALLOC_CONF", names)
    assert given() == ["PYTORCH_ALLOC_CONF=expandable_segments:True"]
    for name in names:
        for value in ("max_split_size_mb:64", ""):
            assert given(**{name: value}) == [f"{name}={value}"]

    def shown(**chosen):
        env = {**plain, **chosen}
        done = subprocess.run([BINARY, "info", "--json"], env=env, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["trainer"]["libtorch"]["allocator"]

    assert shown() == "PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert shown(PYTORCH_CUDA_ALLOC_CONF="backend:native") == "PYTORCH_CUDA_ALLOC_CONF=backend:native"


def test_the_trainer_takes_the_standard_library_before_libtorch():
    """LibTorch exports its own std::filesystem. The one of torch 2.11 with CUDA crashed our programs."""
    trainer = pathlib.Path(BINARY).with_name("octavo-trainer")
    listed = subprocess.run(["readelf", "-dW", trainer], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listed)
    assert needed.index("libstdc++.so.6") < needed.index("libtorch.so")


def test_info_supports_every_optimizer_with_every_state():
    cells = {(cell["optimizer"], cell["state"]): cell for cell in info()["support"]}
    assert cells.keys() == {(o, s) for o in info()["optimizers"] for s in info()["states"]}
    assert all("cpu" in cell["backends"] for cell in cells.values())
    assert cells["adamw", "fp32"]["bytes_per_param"] == 8
    assert cells["lion", "8bit"]["bytes_per_param"] == 1 + 4 / 256


def algorithm(name):
    (found,) = [each for each in info()["algorithms"] if each["name"] == name]
    return found


def test_info_describes_what_optimizers_keep_and_take():
    def names(moments):
        return [moment["name"] for moment in moments]

    adamw, sgd = algorithm("adamw"), algorithm("sgd")
    assert (adamw["title"], adamw["weight_decay"], adamw["passes"]) == ("AdamW", "decoupled", 1)
    assert names(adamw["moments"]) == ["exp_avg", "exp_avg_sq"]
    assert names(adamw["switches"]["amsgrad"]) == ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
    assert adamw["options"]["eps"] == 1e-8
    assert adamw["options"]["amsgrad"] is False
    assert names(sgd["moments"]) == ["momentum_buffer"], "nothing would be kept without momentum"
    text = octavo("info").stdout
    for each in info()["algorithms"]:
        assert ", ".join(names(each["moments"])) in text
        for option in each["options"]:
            assert option in text


def test_info_text_lists_every_name():
    text = octavo("info").stdout
    for key in ("optimizers", "states", "stores", "dtypes"):
        for name in info()[key]:
            assert name in text


def test_forced_implementation_is_reported():
    out = octavo_json("info", impl="scalar")
    assert [each["name"] for each in out["implementations"] if each["chosen"]] == ["scalar"]


def test_timed_row_has_every_key_and_consistent_numbers():
    # One run measures the row and the norm, because each run copies 1 GiB for the copy speed.
    flags = ["--numel", "2^18", "--state", "8bit", "--threads", "1", "--repeat", "3", "--norm"]
    out = octavo_json("bench", "optimizer", *flags)
    assert {"version", "cpu", "rows"} <= out.keys()
    (norm,) = out["norms"]
    assert norm["moved_bytes_per_param"] == 4
    assert norm["ms_median"] > 0
    assert norm["error"] is None
    (row,) = out["rows"]
    assert row.keys() >= ROW_KEYS
    assert row["numel"] == 2**18
    assert row["tensors"] == 1
    assert row["threads"] == 1
    assert 0 < row["ms_min"] <= row["ms_median"]
    moved = row["moved_bytes_per_param"] * row["numel"]
    assert math.isclose(row["gb_per_s"], moved / row["ms_median"] / 1e6, rel_tol=1e-9)
    assert math.isclose(row["percent_of_copy"], 100 * row["gb_per_s"] / row["copy_gb_per_s"], rel_tol=1e-9)


def test_rows_without_gradients_are_sections_of_one_run():
    shapes = ["--shape", "flat,gpt2-embedding", "--numel", "100K", "--zeros", "0,0.5"]
    flags = ["--state", "4bit", "--threads", "1", "--repeat", "1", "--settle", "2", "--norm"]
    out = octavo_json("bench", "optimizer", *shapes, *flags)
    keys = ("shape", "zeros")
    sections = [("flat", 0), ("flat", 0.5), ("gpt2-embedding", 0), ("gpt2-embedding", 0.5)]
    assert [tuple(row[key] for key in keys) for row in out["rows"]] == sections
    assert [tuple(row[key] for key in keys) for row in out["norms"]] == sections
    full, half, tokens, fewer = out["rows"]
    assert (full["touched"], full["ever_touched"]) == (1, 1)
    # There are 98 rows of 1024 elements; the last one has 672.
    assert half["touched"] == half["ever_touched"] == pytest.approx(0.5, abs=0.01)
    for row in (tokens, fewer):
        assert 100 / 50_257 < row["touched"] < 512 / 50_257
        assert row["touched"] < row["ever_touched"] < 2 * 512 / 50_257
    assert fewer["touched"] < tokens["touched"]  # fewer distinct tokens are drawn repeatedly more often
    assert all(row["moved_bytes_per_param"] == pytest.approx(14.12, abs=0.01) for row in out["rows"])
    assert len({row["checksum"] for row in out["rows"]}) == 1
    text = octavo("bench", "optimizer", *shapes, *flags).stdout
    assert "flat, zeros 0.5: 1 tensor" in text
    assert re.search(r"^elements in rows with a gradient: 0\.\d% in the timed step, \d\.\d%", text, re.M)


def test_dry_run_has_null_times_and_real_checksums():
    for row in dry_rows("--state", "all"):
        assert row.keys() >= ROW_KEYS
        assert all(row[key] is None for key in TIMING_KEYS)
        assert re.fullmatch(r"[0-9a-f]{16}", row["checksum"])


@pytest.mark.parametrize("shape", TENSORS)
def test_model_shapes_have_their_totals(shape):
    (row,) = dry_rows("--shape", shape, "--state", "fp32")
    assert (row["tensors"], row["numel"]) == TENSORS[shape]


# The sizes of Parakeet's tensors, without the biases of the subsampling convolutions, as an independent
# second list: (numel, count).
PARAKEET = [
    *((2304, 3), (65536, 2), (1024 * 4096, 1), (1024, 1)),  # subsampling
    *((1024, 24 * 14), (4096 * 1024, 24 * 4), (2048 * 1024, 24), (9216, 24), (1024 * 1024, 24 * 6)),  # layers
    *((8193 * 640, 1), (4 * 640 * 640, 4), (2560, 4)),  # embedding, LSTM
    *((640 * 640, 1), (640, 2), (640 * 1024, 1), (8198 * 640, 1), (8198, 1)),  # joint
]


# There are two moments. With blocks, tensors below 4096 elements keep fp32 states.
@pytest.mark.parametrize(
    ("state", "bits", "block"),
    [
        ("fp32", (32, 32), 0),
        ("bf16", (16, 16), 0),
        ("8bit", (8, 8), 256),
        ("4bit", (4, 4), 128),
        ("fp8", (8, 8), 256),
        ("fp8-e5m2", (8, 8), 256),
        ("4bit/8bit", (4, 8), 128),
        ("fp4", (4, 4), 128),
        ("fp3", (3, 3), 128),
    ],
)
def test_parakeet_state_bytes_are_exact(state, bits, block):
    def moment(numel, bits):
        if numel < 4096 and block:
            return 4 * numel
        return math.ceil(numel * bits / 8) + (4 * math.ceil(numel / block) if block else 0)

    assert sum(count for _, count in PARAKEET) == TENSORS["parakeet"][0]
    (row,) = dry_rows("--shape", "parakeet", "--state", state)
    expected = sum(count * moment(numel, of_moment) for numel, count in PARAKEET for of_moment in bits)
    assert row["state_bytes_per_param"] * row["numel"] == pytest.approx(expected, rel=1e-12)


def test_parakeet_rank1_needs_no_more_than_blockwise():
    blockwise, rank1 = dry_rows("--shape", "parakeet", "--state", "4bit,4bit-rank1")
    assert 1 < rank1["state_bytes_per_param"] < blockwise["state_bytes_per_param"]


@pytest.mark.parametrize(
    ("state", "param", "grad", "store", "expected"),
    [
        ("fp32", "fp32", "fp32", "nearest", 28),
        ("8bit", "fp32", "fp32", "nearest", 12 + 2 * (2 + 8 / 256)),
        ("4bit", "float32", "fp32", "nearest", 12 + 2 * (1 + 8 / 128)),
        ("bf16", "bf16", "bf16", "nearest", 14),
        ("8bit", "bfloat16", "fp32", "bf16+8", 8 + 2 + 2 * (2 + 8 / 256)),
        ("fp8", "bf16", "bf16", "bf16+16", 6 + 4 + 2 * (2 + 8 / 256)),
        ("fp32", "half", "fp16", "nearest", 22),
    ],
)
def test_moved_bytes(state, param, grad, store, expected):
    args = ("--state", state, "--param-dtype", param, "--grad-dtype", grad, "--store", store)
    assert dry_rows(*args)[0]["moved_bytes_per_param"] == expected
    grad_bytes = 4 if grad == "fp32" else 2
    assert dry_rows(*args, "--guard")[0]["moved_bytes_per_param"] == expected + grad_bytes


def checksums(*args, impl=None):
    rows = dry_rows("--state", "all", "--optimizer", "all", *args, impl=impl)
    return {(row["optimizer"], row["state"]): row["checksum"] for row in rows}


VARIANTS = [[], ["--param-dtype", "fp16"], *(["--param-dtype", "bf16", "--store", store] for store in STORES)]


@pytest.mark.parametrize("extra", VARIANTS, ids=" ".join)
def test_checksums_do_not_depend_on_how_they_are_computed(extra):
    scalar = checksums(*extra, "--threads", "1", impl="scalar")
    assert len(scalar) == len(info()["optimizers"]) * len(info()["states"])
    assert checksums(*extra, "--threads", "1") == scalar
    assert checksums(*extra, "--guard", "--shape", "gpt2", "--grad-offset", "3") == scalar
    # The C++ implementations_test compares them for every store; here the command must select them.
    if extra:
        return
    for each in info()["implementations"]:
        if each["supported"] and each["name"] != "scalar":
            assert checksums("--threads", "2", impl=each["name"]) == scalar


def test_checksums_depend_on_what_is_computed():
    plain = checksums()
    for each in info()["algorithms"]:  # without a second moment, these formats equal 4bit
        if all(moment["moment"] == "first" for moment in each["moments"]):
            for state in ("4bit-rank1", "4bit/8bit"):
                assert plain.pop((each["name"], state)) == plain[each["name"], "4bit"]
    assert len(set(plain.values())) == len(plain)
    for other in (["--param-dtype", "bf16"], ["--grad-dtype", "fp16"]):
        assert not set(plain.values()) & set(checksums(*other).values())
    (block,) = dry_rows("--state", "8bit", "--block-size", "64")
    assert block["block_size"] == 64
    assert block["checksum"] != plain["adamw", "8bit"]
    (amsgrad,) = dry_rows("--state", "8bit", "--switch", "amsgrad")
    assert amsgrad["switches"] == ["amsgrad"]
    assert amsgrad["checksum"] != plain["adamw", "8bit"]
    assert amsgrad["state_bytes_per_param"] == 3 * (1 + 4 / 256)


def test_every_switch_of_every_optimizer_runs():
    for each in info()["algorithms"]:
        for switch, moments in each["switches"].items():
            (row,) = dry_rows("--optimizer", each["name"], "--switch", switch, "--state", "fp32")
            assert row["error"] is None
            assert switch in row["switches"]
            assert row["state_bytes_per_param"] == 4 * len(moments)
    # An optimizer without the switch runs unchanged.
    rows = dry_rows("--optimizer", "lion,adam", "--switch", "amsgrad", "--state", "fp32")
    assert [row["switches"] for row in rows] == [[], ["amsgrad"]]


def test_moved_bytes_of_an_optimizer_that_measures_first():
    for each in info()["algorithms"]:
        (row,) = dry_rows("--optimizer", each["name"], "--state", "8bit", "--param-dtype", "bf16")
        states, extra = row["state_bytes_per_param"], each["passes"] - 1
        assert row["moved_bytes_per_param"] == pytest.approx(2 + (2 + states) * (2 + extra) + 2 * extra)


@pytest.mark.parametrize(
    ("text", "numel"),
    [("5", 5), ("64M", 64_000_000), ("64Mi", 2**26), ("2^26", 2**26), ("1G", 10**9), ("2K", 2000)],
)
def test_numel_spellings(text, numel):
    (row,) = dry_rows("--numel", text, "--state", "fp32")
    assert row["numel"] == numel


@pytest.mark.parametrize(
    "text", ["0", "-1", "", "x", "1.5M", "2^", "2^99", "2^-1", "64Q", "Mi", "9999999999G", "1 2"]
)
def test_bad_numel(text):
    assert_fails(octavo("bench", "optimizer", "--dry-run", f"--numel={text}"), 2, "--numel")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--state", "7bit"], ["--state", "7bit", "8bit", ", or all"]),
        (["--state", "8bit,"], ["--state"]),
        (["--optimizer", "adamx"], ["--optimizer", "adamx", "adamw"]),
        (["--switch", "amsgrd"], ["--switch", "'amsgrd'", "--optimizer adamw", "amsgrad"]),
        (["--switch", "amsgrad", "--optimizer", "lion"], ["--switch", "'amsgrad'", "no switches"]),
        (["--switch", "amsgrad,"], ["--switch", "''"]),
        (["--param-dtype", "int8"], ["--param-dtype", "int8", "bf16"]),
        (["--store", "exact"], ["--store", "exact", "nearest"]),
        (["--shape", "gpt2", "--numel", "5"], ["--numel", "gpt2"]),
        (["--shape", "cube"], ["--shape", "'cube'", "flat, gpt2, parakeet, gpt2-embedding", ", or all"]),
        (["--shape", "flat,cube"], ["--shape", "'cube'"]),
        (["--shape", "gpt2,parakeet", "--numel", "5"], ["--numel", "gpt2,parakeet"]),
        (["--zeros", "1.5"], ["--zeros", "'1.5'", "from 0 to 1"]),
        (["--zeros", "-0.1"], ["--zeros", "'-0.1'", "from 0 to 1"]),
        (["--zeros", "nan"], ["--zeros", "'nan'", "from 0 to 1"]),
        (["--zeros", "90%"], ["--zeros", "'90%'", "0.9"]),
        (["--zeros", "0.5,"], ["--zeros", "''", "from 0 to 1"]),
        (["--settle", "-1"], ["--settle", "'-1'", "whole number"]),
        (["--device", "tpu"], ["--device", "tpu", "cpu"]),
        (["--device", "cuda:x"], ["--device", "cuda:x", "cuda:N"]),
        (["--device", "cuda:-1"], ["--device", "cuda:-1", "cuda:N"]),
        (["--device", "cuda:"], ["--device", "'cuda:'", "cuda:N"]),
        (["--device", "CUDA"], ["--device", "CUDA", "cuda:N"]),
        (["--param-dtype", "fp32", "--store", "bf16+8"], ["bf16"]),
        (["--block-size", "100", "--state", "8bit"], ["--block-size", "100", "power of two"]),
        (["--block-size", "48", "--state", "fp32"], ["--block-size", "48", "power of two"]),
        (["--block-size", "8"], ["--block-size", "'8'", "from 32 to 4096"]),
        (["--threads", "0"], ["--threads", "'0'", "1024"]),
        (["--repeat", "0"], ["--repeat", "'0'"]),
        (["--repeat", "1.5"], ["--repeat", "'1.5'", "whole number"]),
        (["--repeat", "x"], ["--repeat", "'x'", "whole number"]),
        (["--state"], ["--state", "expected a value"]),
        (["--repeat", "1", "--repeat", "2"], ["--repeat", "more than once"]),
        (["--frobnicate"], ["--frobnicate", "octavo bench optimizer --help"]),
        (["--stat", "8bit"], ["unknown option '--stat'"]),
        (["8bit"], ["'8bit'"]),
    ],
)
def test_wrong_usage_is_named_and_exits_2(args, words):
    assert_fails(octavo("bench", "optimizer", "--dry-run", *args), 2, *words)


@pytest.mark.parametrize("args", [["info"], ["bench", "optimizer", "--dry-run", "--state", "fp32"]])
def test_unknown_forced_implementation_is_an_error(args):
    done = octavo(*args, impl="bogus")
    assert_fails(done, done.returncode, "bogus", "scalar")
    assert done.returncode in (1, 2)


def usable_gpus():
    return [gpu for gpu in info()["gpus"] if gpu["usable"]]


def needs_gpu():
    if not usable_gpus():
        pytest.skip("no GPU that this build can use: " + (info()["gpu_note"] or "see octavo info"))


def test_info_describes_gpus_and_cuda():
    for gpu in info()["gpus"]:
        assert gpu.keys() >= GPU_KEYS
        assert re.fullmatch(r"\d+\.\d+", gpu["compute_capability"])
        assert gpu["multiprocessors"] > 0
        assert gpu["fp8_conversion"] in ("hardware", "software")
        assert gpu["usable"] or gpu["note"]
    assert ("cuda" in info()["backends"]) == bool(usable_gpus())
    cuda = info()["cuda"]
    if cuda is None:
        assert not info()["gpus"]
    else:
        assert re.fullmatch(r"\d+\.\d", cuda["runtime"])
        assert cuda["driver"] is None or re.fullmatch(r"\d+\.\d", cuda["driver"])


def test_info_text_says_what_there_is_for_gpus():
    text = octavo("info").stdout
    for gpu in info()["gpus"]:
        for part in (gpu["name"], gpu["compute_capability"], f"{gpu['multiprocessors']} SMs"):
            assert part in text
        assert f"fp8 conversion in {gpu['fp8_conversion']}" in text
    if not info()["gpus"]:
        assert f"none: {info()['gpu_note']}" in text
    cuda = info()["cuda"]
    assert ("CUDA     runtime" in text) == (cuda is not None)
    if cuda is not None:
        assert f"runtime {cuda['runtime']}" in text


@pytest.mark.parametrize("extra", [[], ["--dry-run"], ["--json"]], ids=" ".join)
def test_cuda_without_a_gpu_says_why(extra):
    if info()["gpus"]:
        pytest.skip("this machine has a GPU")
    done = octavo("bench", "optimizer", "--device", "cuda", *extra)
    assert_fails(done, 1, "--device cuda:0", info()["gpu_note"], "--device cpu")


def test_cuda_index_beyond_the_last_gpu_is_an_error():
    needs_gpu()
    last = len(info()["gpus"]) - 1
    done = octavo("bench", "optimizer", "--device", f"cuda:{last + 1}")
    assert_fails(done, 2, f"cuda:{last + 1}", f"cuda:{last}")


@pytest.mark.parametrize("extra", VARIANTS, ids=" ".join)
def test_cuda_agrees_with_the_cpu(extra):
    needs_gpu()
    rows = dry_rows("--device", "cuda", "--state", "all", "--optimizer", "all", "--zeros", "0.5", *extra)
    assert [row["error"] for row in rows] == [None] * len(rows)
    assert {(row["optimizer"], row["state"]): row["checksum"] for row in rows} == checksums(*extra)


def test_cuda_rows_have_every_key():
    needs_gpu()
    flags = ["--device", "cuda", "--numel", "2^22", "--state", "all", "--repeat", "3", "--norm"]
    out = octavo_json("bench", "optimizer", *flags)
    assert out["gpu"].keys() >= GPU_KEYS
    for row in out["rows"]:
        assert row.keys() >= ROW_KEYS | GPU_TIMING_KEYS
        assert row["device"] == "cuda:0"
        assert all(row[key] > 0 for key in TIMING_KEYS | GPU_TIMING_KEYS)
    assert all(norm["percent_of_copy"] > 0 and norm["error"] is None for norm in out["norms"])


def test_cuda_rows_of_models_whose_batches_reach_some_rows():
    needs_gpu()
    shapes = ["--shape", "gpt2-embedding,moe,lora", "--state", "8bit", "--repeat", "3", "--settle", "20"]
    for row in octavo_json("bench", "optimizer", "--device", "cuda", *shapes)["rows"]:
        assert row["error"] is None
        assert 0 < row["touched"] < 1


def test_more_gpu_memory_than_there_is_fails_before_allocating():
    needs_gpu()
    done = octavo("bench", "optimizer", "--device", "cuda", "--numel", "2^44", "--state", "8bit")
    assert_fails(done, 1, "needs", "cuda:0", "are free")


def test_all_shapes_are_sections_of_one_run():
    rows = dry_rows("--shape", "all", "--numel", "1000", "--state", "fp32,8bit")
    expected = [("flat", 1, 1000), *((shape, *TENSORS[shape]) for shape in TENSORS)]
    assert [(row["shape"], row["tensors"], row["numel"]) for row in rows[::2]] == expected
    assert [row["state"] for row in rows] == ["fp32", "8bit"] * len(expected)


def test_a_list_of_shapes():
    rows = dry_rows("--shape", "parakeet,flat", "--numel", "1000", "--state", "fp32")
    assert [(row["shape"], row["numel"]) for row in rows] == [
        ("parakeet", TENSORS["parakeet"][1]),
        ("flat", 1000),
    ]


def some_rows(row, rows, alive, draws):
    return {(("row", row), ("rows", rows), ("alive", alive), ("draws", draws))}


SOME_ROWS = {
    "gpt2-embedding": some_rows(768, 50_257, 50_257, 512),
    "moe": some_rows(384 * 768, 64, 56, 24),
    "lora": some_rows(1024, 8, 0, 0),
}


@pytest.mark.parametrize("shape", TENSORS)
def test_shapes_lists_every_tensor(shape):
    out = octavo_json("bench", "shapes", shape)
    assert (len(out["tensors"]), out["numel"]) == TENSORS[shape]
    assert sum(math.prod(tensor["shape"]) for tensor in out["tensors"]) == out["numel"]
    assert len({tensor["name"] for tensor in out["tensors"]}) == len(out["tensors"])
    rows = {tuple(t["gradient"].items()) for t in out["tensors"] if "gradient" in t}
    assert rows == SOME_ROWS.get(shape, set())
    assert any(t.get("zero_weights") for t in out["tensors"]) == (shape == "lora")
    text = octavo("bench", "shapes", shape).stdout
    assert f"{len(out['tensors']):,} tensors" in text


def test_shapes_say_which_rows_have_gradients():
    flags = ["bench", "shapes", "flat", "--numel", "51200K", "--zeros"]
    (tensor,) = octavo_json(*flags, "0.99")["tensors"]
    assert tensor["gradient"] == {"row": 1024, "rows": 50_000, "alive": 500, "draws": 0}
    (tensor,) = octavo_json("bench", "shapes", "gpt2-embedding", "--zeros", "1")["tensors"]
    assert tensor["gradient"] == {"row": 768, "rows": 50_257, "alive": 0, "draws": 0}
    assert "500 of 50,000 rows" in octavo(*flags, "0.99").stdout
    assert "512 draws among 50,257 of 50,257 rows" in octavo("bench", "shapes", "gpt2-embedding").stdout
    assert_fails(octavo(*flags, "2"), 2, "--zeros", "'2'", "from 0 to 1")
    assert_fails(octavo(*flags, "0,0.5"), 2, "--zeros", "'0,0.5'", "one share")


def test_shapes_of_flat_and_of_an_unknown_name():
    assert octavo_json("bench", "shapes", "flat", "--numel", "2^10")["tensors"][0]["shape"] == [1024]
    assert_fails(octavo("bench", "shapes", "cube"), 2, "cube", "parakeet")
    assert_fails(octavo("bench", "shapes"), 2, "name", "octavo bench shapes --help")


def test_more_memory_than_there_is_fails_before_allocating():
    done = octavo("bench", "optimizer", "--numel", "2^48", "--state", "fp32", "--repeat", "1")
    assert_fails(done, 1, "memory")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["infoo"], ["'infoo'", "info", "bench", "octavo --help"]),
        (["--frobnicate"], ["'--frobnicate'", "octavo --help"]),
        (["bench"], ["subcommand", "optimizer"]),
        (["bench", "optimiser"], ["'optimiser'", "optimizer", "octavo bench --help"]),
        (["--json", "info"], ["'--json'", "octavo --help"]),
        (["info", "--jsn"], ["'--jsn'", "octavo info --help"]),
    ],
)
def test_wrong_subcommand_says_what_there_is(args, words):
    assert_fails(octavo(*args), 2, *words)


def test_info_says_why_an_implementation_was_chosen():
    assert "chosen by OCTAVO_FORCE_IMPL" in octavo("info", impl="scalar").stdout
    assert "chosen: the first" in octavo("info").stdout


def test_the_name_alone_prints_help():
    done = octavo()
    assert done.returncode == 0
    assert done.stdout == octavo("--help").stdout
    assert "docs/README.md lists the guides" in done.stdout


def subcommands(*words):
    """Yields the words of each command, from the lists that --help prints."""
    said = octavo(*words, "--help").stdout
    yield words
    for title, block in re.findall(r"^([A-Z][A-Za-z ]+):\n((?:  .*\n)+)", said, re.M):
        if title not in ("Options", "Positionals", "For example"):
            for name in re.findall(r"^  ([a-z-]+)  ", block, re.M):
                yield from subcommands(*words, name)


def test_help_is_for_readers():
    commands = list(subcommands())
    assert ("info",) in commands
    assert ("train",) in commands or "train" not in octavo("--help").stdout
    assert ("bench", "shapes") in commands
    for words in commands:
        said = octavo(*words, "--help").stdout
        assert "9223372036854775807" not in said, words
        for noise in (" in [", "... ...", "REQUIRED", "TEXT:", ":INT", ":FLOAT", ":{"):
            assert noise not in said, (words, noise)
        assert not re.search(r"\bmps\b", said, re.I), (words, "device: mps is an error")
        assert ("docs/README.md lists the guides" in said) == (words == ()), words
        # A description must not begin with these words, because the option's name is not part of the
        # sentence.
        for sentence in re.findall(r"^(?: {30}|  -.{27} )(\S.*)", said, re.M):
            assert sentence.split()[0] not in {"Of", "That", "What", "Whether", "As"}, (words, sentence)
        assert max(map(len, said.splitlines())) <= 100, words


def test_what_a_command_requires_has_no_brackets():
    if "train" not in octavo("--help").stdout:
        pytest.skip("this octavo is built without the trainer")
    assert "Usage: octavo train [OPTIONS] file [overrides...]" in octavo("train", "--help").stdout
    assert "batch|length|model|gpus" in octavo("plan", "--help").stdout
    assert "(at least 0; default: 200)" in octavo("sample", "--help").stdout


def test_info_fits_a_page():
    said = octavo("info").stdout
    library = json.dumps(info()["trainer"])
    for line in said.splitlines():
        assert len(line) <= 100 or line.split()[-1].strip("(") in library, line
    for name in (*info()["optimizers"], *info()["states"], "amsgrad", "trust_coefficient"):
        assert name in said


def test_help_and_version():
    done = octavo("bench", "optimizer", "--help")
    assert done.returncode == 0
    assert "--param-dtype" in done.stdout
    assert "16.06" in done.stdout
    assert octavo("--version").stdout.strip() == info()["version"]


def test_table_has_a_row_per_state():
    done = octavo("bench", "optimizer", "--dry-run", "--state", "fp32,8bit", "--shape", "gpt2")
    assert done.returncode == 0
    assert "148 tensors, 124,475,904 parameters" in done.stdout
    for cells in (["adamw", "fp32", "8.00", "28.00"], ["adamw", "8bit", "2.04", "16.07"]):
        assert re.search(r"^" + r"\s+".join(cells), done.stdout, re.M), done.stdout
