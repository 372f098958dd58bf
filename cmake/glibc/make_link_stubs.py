"""Writes libraries without code that have the symbols of an older glibc, for the linker alone.

usage: make_link_stubs.py COMPILER VERSION FOLDER

The linker binds every call of a glibc function to the newest version that it finds in libc.so.6, so a program
runs on the glibc of the machine that built it and on later ones. These libraries have, of each symbol of this
machine's glibc, only the newest version that VERSION (for example 2.28) has. A program that is linked with
them runs on that glibc, too. A symbol that is newer than VERSION is missing here, and the link fails if the
program needs it.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

LIBRARIES = {
    "c": "libc.so.6",
    "m": "libm.so.6",
    "pthread": "libpthread.so.0",
    "dl": "libdl.so.2",
    "rt": "librt.so.1",
}
# A line of readelf: the size, type, name and version of a symbol that is defined.
SYMBOL = re.compile(r"(\d+) (FUNC|IFUNC|OBJECT|TLS) +(?:GLOBAL|WEAK) +DEFAULT +\d+ (\w+)@@?GLIBC_([\d.]+)$")
SECTIONS = {"OBJECT": (".data", "object"), "TLS": ('.section .tdata,"awT",%progbits', "tls_object")}


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def run(*command: object) -> str:
    arguments = [str(part) for part in command]
    return subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def read_symbols(library: str, newest: str) -> dict[str, tuple[str, str, int]]:
    """Returns the version, type and size of each symbol that glibc `newest` has."""
    found: dict[str, tuple[str, str, int]] = {}
    for line in run("readelf", "--dyn-syms", "--wide", library).splitlines():
        match = SYMBOL.search(line)
        if match is None or number(match[4]) > number(newest):
            continue
        name, version = match[3], match[4]
        if name not in found or number(version) > number(found[name][0]):
            found[name] = (version, match[2], int(match[1]))
    return found


def write_stub(compiler: str, newest: str, folder: pathlib.Path, short: str) -> None:
    soname = LIBRARIES[short]
    symbols = read_symbols(run(compiler, f"-print-file-name={soname}"), newest)
    lines = []
    for index, (name, (version, kind, size)) in enumerate(symbols.items()):
        section, elf_type = SECTIONS.get(kind, (".text", "function"))
        stub, bytes_ = f"stub_{index}", max(size, 1) if kind in SECTIONS else 1
        lines += [section, f".globl {stub}", f".type {stub}, %{elf_type}", f".size {stub}, {bytes_}"]
        lines += [f"{stub}: .zero {bytes_}", f".symver {stub}, {name}@@GLIBC_{version}"]
    source = folder / f"{short}.s"
    source.write_text("\n".join(lines) + "\n")
    versions = sorted({version for version, _, _ in symbols.values()}, key=number)
    script = folder / f"{short}.map"
    nodes = [f"GLIBC_{version} {{}};" for version in versions]
    script.write_text("\n".join([*nodes, "HIDDEN { local: stub_*; };"]) + "\n")
    options = ("-shared", "-nostdlib", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}")
    run(compiler, *options, source, "-o", folder / soname)


def main() -> None:
    compiler, newest, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    for short, soname in LIBRARIES.items():
        write_stub(compiler, newest, folder, short)
        (folder / f"lib{short}.so").write_text(f"INPUT({folder / soname})\n")
    # libc.so also names a static library, which has atexit(), and the dynamic loader.
    script = pathlib.Path(run(compiler, "-print-file-name=libc.so")).read_text()
    group = re.search(r"GROUP *\( *\S+/libc\.so\.6 (.*)\)", script)
    if group is None:
        sys.exit(f"make_link_stubs.py: {compiler} links a libc.so without a GROUP line, so it is not glibc's")
    (folder / "libc.so").write_text(f"GROUP({folder / 'libc.so.6'} {group[1]})\n")


main()
