"""scripts/compare_kernels reads what cuobjdump prints and names each kernel that differs: docs/testing.md."""

import importlib.machinery
import importlib.util
import pathlib
import struct
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/compare_kernels"
loader = importlib.machinery.SourceFileLoader("compare_kernels", str(SCRIPT))
spec = importlib.util.spec_from_loader(loader.name, loader)
assert spec is not None
tool = importlib.util.module_from_spec(spec)
loader.exec_module(tool)

GUARD = "_ZN6octavo4cuda40_GLOBAL__N__b3b9144d_8_guard_cu_a7a0c13112count_kernelEPKj"
RENAMED = "_ZN6octavo4cuda51_GLOBAL__N__00000001_18_count_nonfinite_cu_0000000212count_kernelEPKj"


def dump(name: str, word: str = "0x00000a00ff017b82", architecture: str = "sm_90") -> list[str]:
    return f"""
Fatbin elf code:
================
arch = {architecture}

\tcode for {architecture}
\t.target\t{architecture}

\t\tFunction : {name}
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/        LDC R1, c[0x0][0x28] ;     /* {word} */
                                                   /* 0x000ff00000000800 */
\t\t..........


Fatbin ptx code:
================
arch = {architecture}
""".splitlines()


def test_a_name_of_a_source_file_is_no_part_of_a_symbol() -> None:
    plain = "_ZN6octavo4cuda<anonymous>12count_kernelEPKj"
    assert tool.without_files(GUARD) == tool.without_files(RENAMED) == plain
    after_a_digit = "_ZN3fp840_GLOBAL__N__b3b9144d_8_guard_cu_a7a0c1313oneE"
    assert tool.without_files(after_a_digit) == "_ZN3fp8<anonymous>3oneE"
    table = "_ZN49_INTERNAL_09ce2bb9_12_step_rule_cu_4ffc745d_170256octavo7kValuesE"
    assert tool.without_files(table) == "_ZN<static>6octavo7kValuesE"
    other = "_ZN43_INTERNAL_11111111_7_rule_cu_22222222_123456octavo7kValuesE"
    assert tool.without_files(other) == "_ZN<static>6octavo7kValuesE"
    assert tool.without_files("_Z3addPf") == "_Z3addPf"


def test_a_hash_is_of_the_code_of_one_function() -> None:
    [(architecture, name, code)] = tool.kernels_of(dump(GUARD))
    assert (architecture, name) == ("sm_90", "_ZN6octavo4cuda<anonymous>12count_kernelEPKj")
    assert [code] == [c for _, _, c in tool.kernels_of(dump(RENAMED))]
    assert [code] != [c for _, _, c in tool.kernels_of(dump(GUARD, "0x00000a00ff017b83"))]
    several = list(tool.kernels_of(dump("a") + dump("b", architecture="sm_80")))
    assert [(a, n) for a, n, _ in several] == [("sm_90", "a"), ("sm_80", "b")]
    assert several[0][2] == code


def test_registers_and_memory_belong_to_their_function() -> None:
    lines = [
        "Resource usage:",
        " Common:",
        "  GLOBAL:0",
        f" Function {GUARD}:",
        "  REG:64 STACK:0 SHARED:0",
        " Function b:",
        "  REG:8 STACK:0 SHARED:0",
    ]
    assert tool.usages_of(lines) == {
        "_ZN6octavo4cuda<anonymous>12count_kernelEPKj": ["REG:64 STACK:0 SHARED:0"],
        "b": ["REG:8 STACK:0 SHARED:0"],
    }


def cubin(table: bytes) -> bytes:
    """An ELF file with one section of bytes, in which `kValues` is one object, and a function."""
    names = b"\0kValues\0kernel\0"
    symbols = struct.pack("<IBBHQQ", 1, 1, 0, 1, 2, len(table) - 2)
    symbols += struct.pack("<IBBHQQ", 9, 2, 0, 1, 0, len(table))
    data_at = 64
    symbols_at = data_at + len(table)
    names_at = symbols_at + len(symbols)
    sections_at = names_at + len(names)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF", 1, 190, 1, 0, 0, sections_at, 0, 64, 0, 0, 64, 4, 3)
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, 0, 1, entry)
        for kind, at, size, link, entry in [
            (0, 0, 0, 0, 0),
            (1, data_at, len(table), 0, 0),
            (2, symbols_at, len(symbols), 3, 24),
            (3, names_at, len(names), 0, 0),
        ]
    )
    return header + table + symbols + names + sections


def test_tables_have_a_hash_of_their_bytes() -> None:
    [(name, code)] = tool.tables_of(cubin(b"..abc"))
    assert name == "kValues"
    assert [("kValues", code)] == list(tool.tables_of(cubin(b"--abc")))
    assert [("kValues", code)] != list(tool.tables_of(cubin(b"..abd")))


def compare(folder: pathlib.Path, before: str, after: str) -> tuple[int, str, list[str]]:
    (folder / "before").write_text(before)
    (folder / "after").write_text(after)
    command = [sys.executable, SCRIPT, "compare", "before", "after"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr.splitlines()


def test_a_comparison_names_what_differs(tmp_path: pathlib.Path) -> None:
    same = "11 sm_90 one\n22 sm_90 two\n33 table kValues\n"
    assert compare(tmp_path, same, same) == (0, "2 kernels and 1 tables are identical, 0 differ\n", [])
    other = "11 sm_90 one\n23 sm_90 two\n34 sm_90 three\n"
    assert compare(tmp_path, same, other) == (
        1,
        "1 kernels and 0 tables are identical, 3 differ\n",
        [
            "compare_kernels: only in before: table kValues",
            "compare_kernels: only in after: sm_90 three",
            "compare_kernels: differs: sm_90 two",
        ],
    )


def test_a_missing_cuobjdump_is_an_error(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, SCRIPT, "write", "--cuobjdump", "none/cuobjdump", "out", "liboctavo.so"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "cuobjdump was not found" in done.stderr
