"""The C ABI of include/octavo/octavo.h through ctypes: loads the library, turns its errors into exceptions.
_abi_generated.py has the structs and functions.

The library is the one that OCTAVO_LIBRARY names, else the one in this package (lib/liboctavo.so.0.1), else
the one that a source checkout has built (build/lib/liboctavo.so). It is loaded at the first use, not at
import.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import sys
from typing import Any

from ._abi_generated import *  # noqa: F403
from ._abi_generated import ABI_VERSION, SIGNATURES, MomentSpec, u32

MAX_DIMS = len(MomentSpec().shape)


class OctavoError(RuntimeError):
    """A native call failed; the message is the library's own."""


def library_path() -> pathlib.Path:
    """Returns the path of the library, or raises OctavoError if there is none."""
    if named := os.environ.get("OCTAVO_LIBRARY"):
        files, looked = [pathlib.Path(named)], named
    else:
        here = pathlib.Path(__file__).resolve().parent
        # An editable install has its sources here and its library in another folder of the package.
        folders = [pathlib.Path(folder) for folder in sys.modules[__name__.partition(".")[0]].__path__]
        places = [folder / "lib" for folder in dict.fromkeys([here, *folders])]
        if len(here.parents) > 2:
            places.append(here.parents[2] / "build/lib")
        files = [file for place in places for file in sorted(place.glob("liboctavo.so*"))]
        looked = " and ".join(str(place / "liboctavo.so") for place in places)
    for path in files:
        if path.exists():
            return path
    raise OctavoError(
        f"the octavo library was not found at {looked}: install the package with `pip install .`, build the "
        "sources with `make`, or name a library with the environment variable OCTAVO_LIBRARY"
    )


@functools.cache
def library() -> ctypes.CDLL:
    path = library_path()
    try:
        loaded = ctypes.CDLL(str(path))
        # The version is compared first: a library of another release may lack functions.
        found = loaded.octavo_abi_version()
        if found != ABI_VERSION:
            raise OctavoError(
                f"{path} has version {found} of the C ABI, this package needs {ABI_VERSION}: "
                "install both from one release"
            )
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise OctavoError(f"{path} is not a usable octavo library: {error}") from error
    return loaded


def last_error() -> str:
    return str(library().octavo_last_error().decode())


def check(status: int) -> None:
    if status != 0:
        raise OctavoError(last_error())


@functools.cache
def parse(kind: str, name: str) -> int:
    """Returns the number of a name, or raises ValueError; `kind` is that of octavo_parse."""
    number = u32()
    if library().octavo_parse(kind.encode(), name.encode(), ctypes.byref(number)) != 0:
        raise ValueError(last_error())
    return number.value


def implementation() -> str:
    """Returns the name of the CPU implementation in use, for example "avx2"."""
    name = library().octavo_implementation()
    if name is None:
        raise OctavoError(last_error())
    return str(name.decode())


def new(struct: type[Any], **fields: Any) -> Any:
    """Returns a struct of the ABI with its struct_size set."""
    return struct(struct_size=ctypes.sizeof(struct), **fields)
