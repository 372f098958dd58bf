"""The wheel of the Python package: built by pip from this tree, looked into, installed elsewhere and used.

It is built for the CPU alone, with options and compiler of the build under test, whose objects ccache has.
"""

import email
import email.message
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "adapters/python/octavo"
LIBRARY = "octavo/lib/liboctavo.so"
INFO = ("METADATA", "RECORD", "WHEEL", "licenses/LICENSE")

# What every machine with a C++ program has. CUDA's runtime, torch and Highway are not among them.
SYSTEM_LIBRARIES = re.compile(
    r"(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux-[\w-]+)\.so\.\d+$"
)
# Octavo's own names: the C ABI, then functions, and type information, of namespace octavo.
OWN_SYMBOL = re.compile(r"octavo_\w+$|_Z(T[ISV])?N?K?6octavo")
# Templates and inline functions of the C++ library; weak, so that any copy may stand for them.
STANDARD_SYMBOL = re.compile(r"_Z\w*(St|9__gnu_cxx)")


def run(*command: object, **variables: str) -> str:
    """The output of a command; OCTAVO_LIBRARY and PYTHONPATH, which lead to this tree, are hidden from it."""
    env = {name: value for name, value in os.environ.items() if name not in ("OCTAVO_LIBRARY", "PYTHONPATH")}
    arguments = [str(part) for part in command]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False, env={**env, **variables})
    assert result.returncode == 0, f"{arguments}\n{result.stdout[-8000:]}\n{result.stderr[-8000:]}"
    return result.stdout


def pip(*arguments: object) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


def options_of_this_build() -> dict[str, str]:
    """CMake options that decide over compiler commands, from the build that made the library under test."""
    library = pathlib.Path(os.environ.get("OCTAVO_LIBRARY", ROOT / "build/lib/liboctavo.so")).resolve()
    cache = library.parents[1] / "CMakeCache.txt"
    if not cache.exists():
        return {}
    entries = dict(re.findall(r"^(\w+):\w+=(.+)$", cache.read_text(), re.MULTILINE))
    if not pathlib.Path(entries.get("OCTAVO_HWY_INCLUDE_DIR", "")).is_dir():  # that build has fetched it
        entries["OCTAVO_HWY_INCLUDE_DIR"] = str(cache.parent / "_deps/highway-src")
    wanted = ("CMAKE_CXX_COMPILER", "OCTAVO_CCACHE", "OCTAVO_DEVELOPER", "OCTAVO_HWY_INCLUDE_DIR")
    return {name: entries[name] for name in wanted if name in entries}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    defines = {**options_of_this_build(), "OCTAVO_CUDA": "OFF"}
    settings = [f"--config-settings=cmake.define.{name}={value}" for name, value in defines.items()]
    pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", f"--wheel-dir={folder}", *settings, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def version() -> str:
    header = (ROOT / "include/octavo/version.h").read_text()
    return ".".join(re.findall(r"OCTAVO_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", header))


@pytest.fixture(scope="module")
def wheel_library(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    with zipfile.ZipFile(wheel) as archive:
        return pathlib.Path(archive.extract(LIBRARY, tmp_path_factory.mktemp("library")))


def metadata(wheel: pathlib.Path, file: str) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(f".dist-info/{file}"))
        return email.message_from_bytes(archive.read(name))


def test_one_wheel_for_every_python(wheel: pathlib.Path, version: str) -> None:
    tag = "py3-none-" + re.sub("[-.]", "_", sysconfig.get_platform())
    assert wheel.name == f"octavo-{version}-{tag}.whl"
    assert metadata(wheel, "WHEEL").get_all("Tag") == [tag]
    assert metadata(wheel, "METADATA")["Requires-Python"] == ">=3.10"
    assert metadata(wheel, "METADATA").get_all("Requires-Dist") == ["torch>=2.5"]


def test_files(wheel: pathlib.Path, version: str) -> None:
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
    modules = {path.relative_to(PACKAGE.parent).as_posix() for path in sources}
    assert "octavo/__init__.py" in modules
    info = {f"octavo-{version}.dist-info/{name}" for name in INFO}
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == modules | info | {LIBRARY, "octavo/py.typed"}


def test_library_needs_the_system_alone(wheel_library: pathlib.Path) -> None:
    dynamic = run("readelf", "--dynamic", "--wide", wheel_library)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert needed
    assert [name for name in needed if not SYSTEM_LIBRARIES.match(name)] == []
    assert "PATH)" not in dynamic, "RPATH or RUNPATH names a folder of the machine that built the wheel"


def test_library_exports_its_interface_alone(wheel_library: pathlib.Path) -> None:
    listing = run("nm", "--dynamic", "--defined-only", "--format=posix", wheel_library)
    exported = dict(line.split()[:2] for line in listing.splitlines())
    others = {
        name: kind
        for name, kind in exported.items()
        if not OWN_SYMBOL.match(name) and not (kind in "VWu" and STANDARD_SYMBOL.match(name))
    }
    assert others == {}
    header = (ROOT / "include/octavo/octavo.h").read_text()
    interface = re.findall(r"^OCTAVO_API [^(]*?(octavo_\w+)\(", header, re.MULTILINE)
    assert interface
    assert [name for name in interface if name not in exported] == []

    wanted = run("nm", "--dynamic", "--undefined-only", "--format=posix", wheel_library)
    foreign = re.compile(r"_?Py[A-Z_]|cu[A-Z]|cuda|_ZN?K?(5torch|3c10|2at)")
    assert [line for line in wanted.splitlines() if foreign.match(line)] == []


def test_installed_package_steps(wheel: pathlib.Path, version: str, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "site"
    pip("install", "--no-deps", "--no-index", "--no-compile", f"--target={target}", wheel)
    script = pathlib.Path(__file__).with_name("wheel_use.py")
    loaded = run(sys.executable, script, target, version, PYTHONPATH=str(target))
    assert loaded.split() == [str(target / LIBRARY)]
