"""Tests that train/formats and Python read each other's archives: train/formats reads archives of tarfile and
torch.save and writes them again, and tarfile, zipfile and torch.load read the result. OCTAVO_ARCHIVE_COPY is
the path of the program built from archive_copy.cc."""

import collections
import gzip
import io
import os
import pickle
import subprocess
import tarfile
import zipfile

import pytest

torch = pytest.importorskip("torch")

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
SHAPES = [(), (0,), (1,), (3, 5), (7, 0, 2), (1, 2, 3, 1), (4097,)]


def copy(kind, source, target):
    program = os.environ.get("OCTAVO_ARCHIVE_COPY") or pytest.skip("OCTAVO_ARCHIVE_COPY is not set")
    done = subprocess.run([program, kind, source, target], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def refusal(kind, path, tmp_path):
    code, message = copy(kind, path, tmp_path / "refused")
    assert code == 1
    assert message.startswith(f"{path}")
    assert not (tmp_path / "refused").exists()
    return message


def assert_same(loaded, expected):
    assert list(loaded) == list(expected)
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert loaded[name].shape == tensor.shape, name
        assert loaded[name].is_contiguous(), name
        theirs = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
        assert loaded[name].reshape(-1).view(torch.uint8).equal(theirs), name


def load(file):
    return torch.load(file, weights_only=True)


def test_tensors_of_every_dtype_come_back(tmp_path):
    torch.manual_seed(1)
    tensors = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            values = torch.randint(0, 2 if dtype == "bool" else 100, shape)
            tensors[f"layer.{dtype}.{shape} ü"] = values.to(getattr(torch, dtype))
    torch.save(tensors, tmp_path / "theirs.pt")
    assert copy("torch", tmp_path / "theirs.pt", tmp_path / "ours.pt") == (0, "")
    assert_same(load(tmp_path / "ours.pt"), tensors)
    assert_same(torch.load(tmp_path / "ours.pt", weights_only=True, mmap=True), tensors)
    # Another zip reader checks every CRC and every header.
    with zipfile.ZipFile(tmp_path / "ours.pt") as opened:
        assert opened.testzip() is None
        assert opened.read("archive/byteorder") == b"little"
    for tensor in torch.load(tmp_path / "ours.pt", weights_only=True, mmap=True).values():
        assert tensor.data_ptr() % 64 == 0 or tensor.numel() == 0
    # A copy of the copy has the same bytes: they do not depend on how the input was saved.
    assert copy("torch", tmp_path / "ours.pt", tmp_path / "again.pt") == (0, "")
    assert (tmp_path / "again.pt").read_bytes() == (tmp_path / "ours.pt").read_bytes()


def test_strides_and_shared_storages(tmp_path):
    base = torch.arange(120, dtype=torch.float32)
    grid = base.view(2, 3, 20)
    tensors = {
        "base": base,
        "transposed": grid.transpose(0, 2),
        "permuted": grid.permute(1, 2, 0),
        "every third": base[::3],
        "from 7": base[7:31],
        "last": base[119:],
        "expanded": base[5:6].expand(4, 6),
        "windows": base.unfold(0, 8, 2),
        "channels": torch.arange(48.0).view(1, 2, 4, 6).to(memory_format=torch.channels_last),
        "lower rows": grid[:, 1:, 3:9],
        "one": base[3:4].as_strided((1, 1), (99, 77)),
        "empty": base[:0].as_strided((0, 3), (50, 50)),
        "nothing behind": base[120:],
    }
    torch.save(tensors, tmp_path / "theirs.pt")
    assert copy("torch", tmp_path / "theirs.pt", tmp_path / "ours.pt") == (0, "")
    assert_same(load(tmp_path / "ours.pt"), tensors)


def test_state_dicts_of_modules(tmp_path):
    module = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), torch.nn.BatchNorm1d(3), torch.nn.LSTM(3, 4))
    for what, state in [
        ("state dict", module.state_dict()),
        ("with parameters", module.state_dict(keep_vars=True)),
        ("plain dict", dict(module.state_dict())),
        ("empty", collections.OrderedDict()),
    ]:
        torch.save(state, tmp_path / "theirs.pt")
        assert copy("torch", tmp_path / "theirs.pt", tmp_path / "ours.pt") == (0, ""), what
        assert_same(load(tmp_path / "ours.pt"), state)
    assert copy("torch", tmp_path / "theirs.pt", tmp_path / "ours.pt") == (0, "")
    torch.save(module.state_dict(), tmp_path / "theirs.pt")
    assert copy("torch", tmp_path / "theirs.pt", tmp_path / "ours.pt") == (0, "")
    module.load_state_dict(load(tmp_path / "ours.pt"))
    # More than 256 names and values need the long forms of the memo's opcodes.
    many = {f"layer.{i}": torch.full((i % 3,), float(i)) for i in range(700)}
    torch.save(many, tmp_path / "theirs.pt")
    assert copy("torch", tmp_path / "theirs.pt", tmp_path / "ours.pt") == (0, "")
    assert_same(load(tmp_path / "ours.pt"), many)


def test_crcs_that_torch_leaves_wrong(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.ones(3)}, tmp_path / "theirs.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert copy("torch", tmp_path / "theirs.pt", tmp_path / "ours.pt") == (0, "")
    assert_same(load(tmp_path / "ours.pt"), {"a": torch.ones(3)})


class Attack:
    def __reduce__(self):
        return os.system, ("touch attacked",)


def test_what_is_no_state_dict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "theirs.pt"
    for value, words in [
        ({"a": Attack()}, ["data.pkl", "0x63 GLOBAL", '"posix" "system"', "nothing of it is run"]),
        (torch.nn.Linear(2, 2), ["0x63 GLOBAL", '"torch.nn.modules.linear" "Linear"']),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, ['"torch" "ComplexFloatStorage"']),
        ({"a": torch.zeros(2, dtype=torch.uint16)}, ["0x63 GLOBAL"]),
        ({"a": torch.zeros(2).to_sparse()}, ['"torch._utils" "_rebuild_sparse_tensor"']),
        ({"a": 1}, ['"a" is a number, expected a tensor']),
        ({"a": {"b": torch.ones(1)}}, ['"a" is a dict, expected a tensor']),
        ({"a": "text"}, ['"a" is a text, expected a tensor']),
        ({"a": None}, ['"a" is None, expected a tensor']),
        ({1: torch.ones(1)}, ["a key is a number, expected a text"]),
        ({"a": 1.5}, ["0x47 BINFLOAT"]),
        ([torch.ones(1)], ["0x5d EMPTY_LIST"]),
        (torch.ones(1), ["the file's content is a tensor, expected a dict"]),
    ]:
        torch.save(value, path)
        message = refusal("torch", path, tmp_path)
        for word in words:
            assert word in message, message
        assert "byte " in message, message
    assert not (tmp_path / "attacked").exists()

    torch.save({"a": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    assert "torch before 1.6" in refusal("torch", path, tmp_path)
    torch.save({"a": torch.ones(1)}, path, pickle_protocol=4)
    assert "protocol 4, expected 2" in refusal("torch", path, tmp_path)
    path.write_bytes(pickle.dumps(Attack()))
    assert "not a zip archive" in refusal("torch", path, tmp_path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("archive/data.pkl", b"." * 100)
    assert "compressed by method 8" in refusal("torch", path, tmp_path)


def archive(path, mode="w", tar_format=tarfile.PAX_FORMAT, files=None):
    with tarfile.open(path, mode, format=tar_format) as opened:
        folder = tarfile.TarInfo(".")
        folder.type = tarfile.DIRTYPE
        opened.addfile(folder)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = 1.5  # a fraction, which pax writes in a separate header
            opened.addfile(info, io.BytesIO(data))


def contents(path):
    with tarfile.open(path) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened.getmembers()}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_of_every_kind(tmp_path, mode, tar_format):
    files = {"./a": b"", "./b.txt": b"x", "folder/c": b"y" * 512, "folder/ü": bytes(range(256)) * 33}
    archive(tmp_path / "theirs", mode, tar_format, files)
    assert copy("tar", tmp_path / "theirs", tmp_path / "ours") == (0, "")
    assert contents(tmp_path / "ours") == {name.removeprefix("./"): data for name, data in files.items()}


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_read(tmp_path, tar_format):
    name = "/".join(["a folder with a long name"] * 5) + "/model_weights.ckpt"
    archive(tmp_path / "theirs", "w", tar_format, {name: b"x"})
    # train/formats writes only short names, so its error contains the name that was read.
    _, message = copy("tar", tmp_path / "theirs", tmp_path / "ours")
    assert f'file "{name}": the name has {len(name)} bytes, expected 1 to 99' in message


def nemo_files(state):
    weights = io.BytesIO()
    torch.save(state, weights)
    return {
        "./model_config.yaml": b"target: a.Model\ntokenizer:\n  model_path: nemo:0a_tokenizer.model\n",
        "./0a_tokenizer.model": bytes(range(256)) * 5,
        "./model_weights.ckpt": weights.getvalue(),
    }


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_nemo_comes_back(tmp_path, mode):
    state = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7)).state_dict()
    files = nemo_files(state)
    archive(tmp_path / "theirs.nemo", mode, files=files)
    assert copy("nemo", tmp_path / "theirs.nemo", tmp_path / "ours.nemo") == (0, "")
    written = contents(tmp_path / "ours.nemo")
    assert written.keys() == files.keys()
    for name in ("./model_config.yaml", "./0a_tokenizer.model"):
        assert written[name] == files[name]
    assert_same(load(io.BytesIO(written["./model_weights.ckpt"])), state)
    # GNU tar can read it too; it prints warnings about features that it does not support.
    command = ["tar", "-tvf", tmp_path / "ours.nemo"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert listed.stderr == ""
    assert len(listed.stdout.splitlines()) == 3


def test_nemo_that_is_none(tmp_path):
    path = tmp_path / "theirs.nemo"
    files = nemo_files({"a": torch.ones(2)})
    for missing in ("model_config.yaml", "model_weights.ckpt"):
        archive(path, files={name: data for name, data in files.items() if name != f"./{missing}"})
        assert f'no file "{missing}" in the archive' in refusal("nemo", path, tmp_path)
    archive(path, files=files | {"./model_weights.ckpt": b"no zip"})
    assert "model_weights.ckpt: not a zip archive" in refusal("nemo", path, tmp_path)
    archive(path, files=files | {"../outside": b""})
    assert "leads out of its folder" in refusal("nemo", path, tmp_path)
    with tarfile.open(path, "w") as opened:
        link = tarfile.TarInfo("model_weights.ckpt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        opened.addfile(link)
    assert "a link" in refusal("nemo", path, tmp_path)


def test_gzip_that_was_made_to_take_memory(tmp_path):
    path = tmp_path / "theirs.nemo"
    path.write_bytes(gzip.compress(bytes(70 << 20)))
    assert "the file unpacks to more than" in refusal("nemo", path, tmp_path)
