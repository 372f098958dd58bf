"""The wheel of the Python package: its files, its tag, and its use where nothing else of this project is.

pip builds it from pyproject.toml, and from the library and the command of the build under test:
tests/install/wheel stands for the project's, so nothing is compiled. `make wheel` makes a release's wheel.
"""

import email
import email.message
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "adapters/python/octavo"
COMMAND = "octavo/bin/octavo"
INFO = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")

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


@pytest.fixture(scope="module")
def build() -> pathlib.Path:
    """Returns the folder of the build under test."""
    library = pathlib.Path(os.environ.get("OCTAVO_LIBRARY", ROOT / "build/lib/liboctavo.so"))
    return library.resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(build: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    settings = {"cmake.source-dir": "tests/install/wheel", "cmake.define.OCTAVO_BUILD": build}
    options = [f"--config-settings={name}={value}" for name, value in settings.items()]
    pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", f"--wheel-dir={folder}", *options, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def version() -> str:
    header = (ROOT / "include/octavo/version.h").read_text()
    return ".".join(re.findall(r"OCTAVO_VERSION_(?:MAJOR|MINOR|PATCH) +(\d+)", header))


@pytest.fixture(scope="module")
def library_name(version: str) -> str:
    """Returns the name of the library's file, which has the version in it, as the command needs it."""
    return "octavo/lib/liboctavo.so." + version.rpartition(".")[0]


@pytest.fixture(scope="module")
def wheel_library(
    wheel: pathlib.Path, library_name: str, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
    with zipfile.ZipFile(wheel) as archive:
        return pathlib.Path(archive.extract(library_name, tmp_path_factory.mktemp("library")))


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


def test_files(wheel: pathlib.Path, version: str, library_name: str) -> None:
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]
    modules = {path.relative_to(PACKAGE.parent).as_posix() for path in sources}
    assert "octavo/__init__.py" in modules
    info = {f"octavo-{version}.dist-info/{name}" for name in INFO}
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == modules | info | {library_name, COMMAND, "octavo/py.typed"}


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


def test_installed_wheel(
    wheel: pathlib.Path, version: str, library_name: str, tmp_path: pathlib.Path
) -> None:
    """The environment has the wheel, and by a path the packages of the tests; no compiler is on its PATH."""
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin/python"
    site = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip("--python", python, "install", "--no-deps", "--no-index", "--no-compile", wheel)
    path = {"PATH": str(environment / "bin")}
    loaded = run(python, ROOT / "tests/install/use_wheel.py", **path)
    assert loaded.split() == [str(site / library_name)]
    assert run(environment / "bin/octavo", "--version", **path).split()[-1] == version


def test_sdist_can_be_built(tmp_path: pathlib.Path) -> None:
    """CMake finds every source that it lists; the wheel of the same sources was built by other tests."""
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("octavo-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    settings = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["scikit-build"]
    settings = {**settings["cmake"]["define"], "OCTAVO_CUDA": "OFF", "SKBUILD": "2"}
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    run("cmake", "-S", source, "-B", tmp_path / "build", *defines)
    assert (source / "scripts/build_wheel").stat().st_mode & 0o100


def test_stubs_of_an_older_glibc(tmp_path: pathlib.Path) -> None:
    """A program that is linked like the wheel of a release needs no newer symbol, and works."""
    glibc = ROOT / "cmake/glibc"
    run(sys.executable, glibc / "make_link_stubs.py", "gcc", "2.28", tmp_path)
    run("gcc", "-O2", "-fPIE", "-c", glibc / "compat.c", "-o", tmp_path / "compat.o")
    run("gcc", "-O2", "-fPIE", "-c", glibc / "start.c", "-o", tmp_path / "start.o")
    rules = (ROOT / "cmake/OctavoGlibc.cmake").read_text()
    options = re.search(r"-L\$.*?LINKER:--as-needed", rules, re.DOTALL)[0]
    options = options.replace("${octavo_glibc_stubs}", str(tmp_path)).replace("LINKER:", "-Wl,")
    program = tmp_path / "program"
    objects = [tmp_path / "compat.o", tmp_path / "start.o"]
    source = ROOT / "tests/install/glibc.cc"
    options += " -Wl,--wrap=__libc_start_main"
    run("g++", "-std=c++20", source, *objects, *options.split(), "-o", program)
    versions = re.findall(r"GLIBC_2[.](\d+)", run("readelf", "--version-info", "--wide", program))
    assert versions
    assert max(map(int, versions)) <= 28
    assert "libstdc++" not in run("readelf", "--dynamic", "--wide", program)
    assert run(program) == "fine\n"
