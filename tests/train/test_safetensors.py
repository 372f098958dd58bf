"""Tests that train/formats and the `safetensors` package read each other's files: train/formats reads a file
of the package and writes it again, and the package reads the result. OCTAVO_SAFETENSORS_COPY is the path of
the program built from safetensors_copy.cc."""

import json
import os
import subprocess

import pytest

SHAPES = [(), (0,), (1,), (3, 5), (7, 0, 2), (1, 2, 3, 1), (4097,)]


def copy(source, target):
    program = os.environ.get("OCTAVO_SAFETENSORS_COPY") or pytest.skip("OCTAVO_SAFETENSORS_COPY is not set")
    done = subprocess.run([program, source, target], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_tensors_of_every_dtype_come_back(tmp_path):
    torch = pytest.importorskip("torch")
    from_torch = pytest.importorskip("safetensors.torch")
    safetensors = pytest.importorskip("safetensors")
    names = "bool uint8 int8 float8_e4m3fn float8_e5m2 uint16 int16 float16 bfloat16 uint32 int32 float32"
    dtypes = [getattr(torch, name) for name in [*names.split(), "uint64", "int64", "float64"]]
    torch.manual_seed(1)
    tensors = {}
    for dtype in dtypes:
        for shape in SHAPES:
            values = torch.randint(0, 2 if dtype is torch.bool else 100, shape)
            tensors[f"layer.{dtype}.{shape}"] = values.to(dtype)
    metadata = {"format": "pt", "text": 'a "quote", a \n line and ü'}
    from_torch.save_file(tensors, tmp_path / "theirs", metadata)

    assert copy(tmp_path / "theirs", tmp_path / "ours") == (0, "")

    loaded = from_torch.load_file(tmp_path / "ours")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert loaded[name].shape == tensor.shape, name
        assert loaded[name].reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8)), name
    with safetensors.safe_open(tmp_path / "ours", "pt") as opened:
        assert opened.metadata() == metadata
        assert opened.get_slice("layer.torch.float32.(3, 5)")[1:2].equal(
            tensors["layer.torch.float32.(3, 5)"][1:2]
        )


def test_nothing_comes_back(tmp_path):
    from_torch = pytest.importorskip("safetensors.torch")
    from_torch.save_file({}, tmp_path / "theirs")
    assert copy(tmp_path / "theirs", tmp_path / "ours") == (0, "")
    assert from_torch.load_file(tmp_path / "ours") == {}


def test_both_refuse_the_same_files(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    good = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

    def entry(**changed):
        return {"t": good | changed}

    cases = [
        ("the good one", entry(), True),
        ("hole", entry(shape=[1], data_offsets=[4, 8]), False),
        ("short", entry(shape=[1], data_offsets=[0, 4]), False),
        ("long", entry(shape=[4], data_offsets=[0, 16]), False),
        ("backwards", entry(data_offsets=[8, 0]), False),
        ("size", entry(shape=[3]), False),
        ("wrapping", entry(shape=[2**62, 2, 2]), False),
        ("dtype", entry(dtype="F31"), False),
        ("no dtype", {"t": {"shape": [2], "data_offsets": [0, 8]}}, False),
        ("overlap", {"t": good, "u": good}, False),
        ("metadata", entry() | {"__metadata__": {"a": 1}}, False),
        ("list", [], False),
    ]
    for what, header, expected in cases:
        text = json.dumps(header).encode()
        file = tmp_path / "file"
        file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
        code, message = copy(file, tmp_path / "ours")
        assert (code == 0) == expected, what
        assert expected or str(file) in message, what
        try:
            safetensors.deserialize(file.read_bytes())
            theirs = True
        except safetensors.SafetensorError:
            theirs = False
        assert theirs == expected, what
