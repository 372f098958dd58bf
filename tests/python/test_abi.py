"""Python's declarations of the C ABI are those of include/octavo/octavo.h."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from octavo import _abi, _abi_generated

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT, PYTHON = "scripts/generate_abi", "adapters/python/octavo/_abi_generated.py"
HEADERS = ("include/octavo/octavo.h", "include/octavo/version.h", "include/octavo/export.h")


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the files that the script reads and writes."""
    for name in (*HEADERS, PYTHON):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def check(root: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / SCRIPT, "--check", root], text=True, capture_output=True, check=False
    )


def edit(file: pathlib.Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_the_checked_in_file_is_the_generated_one() -> None:
    done = check(ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  uint32_t residence;", "  uint64_t residence;"),
        ("int64_t* step; ", "int64_t* step, *later; "),
        ("double grad_factor;", "float grad_factor;"),
        ("uint32_t with_norm,", "uint64_t with_norm,"),
        ("OCTAVO_API int64_t octavo_host_room(void);", ""),
        ("void* codes[3];", "void* codes[4];"),
    ],
)
def test_a_change_of_the_header_is_found(tree: pathlib.Path, old: str, new: str) -> None:
    assert check(tree).returncode == 0
    edit(tree / HEADERS[0], old, new)
    done = check(tree)
    assert done.returncode == 1
    assert "run scripts/generate_abi" in done.stderr or "cannot read" in done.stderr


def test_another_version_is_found(tree: pathlib.Path) -> None:
    edit(tree / HEADERS[1], "OCTAVO_ABI_VERSION ", "OCTAVO_ABI_VERSION 9")
    assert "run scripts/generate_abi" in check(tree).stderr


def test_an_unreadable_declaration_is_named(tree: pathlib.Path) -> None:
    edit(tree / HEADERS[0], "OCTAVO_API int64_t octavo_host_room(void);", "OCTAVO_API int64_t f(int a);")
    assert "cannot read this declaration: OCTAVO_API int64_t f(int a)" in check(tree).stderr


def test_every_struct_has_the_layout_of_the_c_compiler(tmp_path: pathlib.Path) -> None:
    """The size of every struct, and the offset and size of every field."""
    lines, expected = [], []
    for c_name, struct in _abi_generated.STRUCTS.items():
        lines.append(f'printf("{c_name} %zu\\n", sizeof({c_name}));')
        expected.append(f"{c_name} {ctypes.sizeof(struct)}")
        for name, *_ in struct._fields_:
            field = getattr(struct, name)
            place = f"offsetof({c_name}, {name}), sizeof((({c_name}*)0)->{name})"
            lines.append(f'printf("{c_name}.{name} %zu %zu\\n", {place});')
            expected.append(f"{c_name}.{name} {field.offset} {field.size}")
    program = tmp_path / "layout.c"
    program.write_text(
        "#include <octavo/octavo.h>\n#include <stdio.h>\nint main(void) {\n"
        + "\n".join(lines)
        + "\nreturn 0;\n}\n"
    )
    compiler = [os.environ.get("CC", "cc"), "-std=c99", f"-I{ROOT / 'include'}"]
    subprocess.run([*compiler, str(program), "-o", str(tmp_path / "layout")], check=True)
    printed = subprocess.run([tmp_path / "layout"], text=True, stdout=subprocess.PIPE, check=True).stdout
    assert len(_abi_generated.STRUCTS) > 30
    assert printed.splitlines() == expected


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(AttributeError):
        _abi.new(_abi.StepArgs).max_norm = 1.0


def test_a_struct_of_another_type_is_refused() -> None:
    """Before the library reads memory of another layout."""
    library, wrong = _abi.library(), _abi.new(_abi.EnginePlan)
    with pytest.raises(ctypes.ArgumentError):
        library.octavo_step_args_init(ctypes.byref(wrong))
