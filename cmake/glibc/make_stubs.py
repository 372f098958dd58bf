"""Writes libraries without code that have the symbols of an older glibc, for the linker alone.

usage: make_stubs.py COMPILER VERSION FOLDER

The linker gives every call of a glibc function the newest version that it finds in libc.so.6, so a program runs on the
glibc of the machine that built it and on later ones. These libraries have, of each symbol of this machine's glibc, only
the newest version that VERSION (for example 2.28) has. A program that is linked with them runs on that glibc, too. A
symbol that is newer than VERSION is missing here, and the link fails if the program needs it.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

LIBRARIES = {"c": "libc.so.6", "m": "libm.so.6", "pthread": "libpthread.so.0", "dl": "libdl.so.2", "rt": "librt.so.1"}
SYMBOL = re.compile(r"(\d+) (FUNC|IFUNC|OBJECT|TLS) +(?:GLOBAL|WEAK) +DEFAULT +\d+ (\w+)@@?GLIBC_([\d.]+)$")


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def run(*command: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def symbols_of(library: str, newest: str) -> dict[str, tuple[str, str, int]]:
    """Returns the version, kind and size of each symbol."""
    found: dict[str, tuple[str, str, int]] = {}
    for line in run("readelf", "--dyn-syms", "--wide", library).splitlines():
        if match := SYMBOL.search(line):
            size, kind, name, version = match.groups()
            old = found.get(name)
            if number(version) <= number(newest) and (old is None or number(version) > number(old[0])):
                found[name] = (version, kind, int(size))
    return found


def write_stub(compiler: str, newest: str, folder: pathlib.Path, short: str) -> None:
    soname = LIBRARIES[short]
    symbols = symbols_of(run(compiler, f"-print-file-name={soname}"), newest)
    source, versions = folder / f"{short}.s", folder / f"{short}.map"
    lines = []
    for index, (name, (version, kind, size)) in enumerate(symbols.items()):
        section = {"OBJECT": ".data", "TLS": '.section .tdata,"awT",@progbits'}.get(kind, ".text")
        elf_type = {"OBJECT": "object", "TLS": "tls_object"}.get(kind, "function")
        size = max(size, 1)
        lines += [section, f".globl stub_{index}", f".type stub_{index}, %{elf_type}", f".size stub_{index}, {size}"]
        lines += [f"stub_{index}: .zero {size if kind in ('OBJECT', 'TLS') else 1}"]
        lines += [f".symver stub_{index}, {name}@@GLIBC_{version}"]
    source.write_text("\n".join(lines) + "\n")
    ordered = sorted({version for version, _, _ in symbols.values()}, key=number)
    nodes = [f"GLIBC_{version} {{}};" for version in ordered]
    versions.write_text("\n".join(nodes) + "\nHIDDEN { local: stub_*; };\n")
    run(compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", f"-Wl,--version-script={versions}", source,
        "-o", folder / soname)


def main() -> None:
    compiler, newest, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    for short in LIBRARIES:
        write_stub(compiler, newest, folder, short)
        (folder / f"lib{short}.so").write_text(f"INPUT({LIBRARIES[short]})\n")
    # The C library has a part that is linked statically: atexit() and other functions.
    fixed = run(compiler, "-print-file-name=libc_nonshared.a")
    loader = re.search(r"AS_NEEDED \( (\S+) \)", pathlib.Path(run(compiler, "-print-file-name=libc.so")).read_text())
    (folder / "libc.so").write_text(f"GROUP({folder / 'libc.so.6'} {fixed} AS_NEEDED({loader.group(1)}))\n")


main()
