"""Chooses the libfabric.so.1 of this process and opens it before the native module is imported.

The native module names its library by soname only, so whichever libfabric.so.1 is already open is the one it uses.
Order: the file named by SGLANG_LIBFABRIC; else the newest of the system's, the EFA installer's and the `mpich` wheel's.
"""

import ctypes
import importlib.metadata
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyfabric.errors import LibraryNotFoundError

ENVIRONMENT_VARIABLE: Final = "SGLANG_LIBFABRIC"
_NAME: Final = "libfabric.so.1"
_SYSTEM_FOLDERS: Final = (
    "/opt/amazon/efa/lib64",
    "/opt/amazon/efa/lib",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)
# Each release that grows the ABI adds a version node to the library: 1.17.0 ends at FABRIC_1.6, 2.5 at FABRIC_1.9.
_ABI_NODE: Final = re.compile(rb"FABRIC_1\.(\d+)\0")


@dataclass(frozen=True, slots=True)
class Library:
    """A libfabric.so.1 on this machine. `abi` is the highest minor number of its FABRIC_1.x version nodes."""

    path: Path
    origin: str
    abi: int


def _abi(path: Path) -> int:
    """Read from the file: opening two libraries of one soname to compare them would bind us to the first."""
    nodes = [int(minor) for minor in _ABI_NODE.findall(path.read_bytes())]
    return max(nodes, default=-1)


def _wheel_files() -> Iterator[Path]:
    try:
        files = importlib.metadata.distribution("mpich").files or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name == _NAME:
            yield Path(str(file.locate())).resolve()


def candidates() -> list[Library]:
    """Every libfabric.so.1 found, best first: newest ABI, then the system's before the wheel's."""
    seen: dict[Path, Library] = {}
    for folder in _SYSTEM_FOLDERS:
        path = Path(folder, _NAME)
        if path.exists():
            seen.setdefault(path.resolve(), Library(path, "system", _abi(path)))
    for path in _wheel_files():
        if path.exists():
            seen.setdefault(path, Library(path, "mpich wheel", _abi(path)))
    return sorted(seen.values(), key=lambda library: -library.abi)


def choose(explicit: str | None = None) -> Library:
    """The library to open.

    Raises:
        LibraryNotFoundError: `explicit` names no file, or no library is installed at all.
    """
    if explicit:
        path = Path(explicit)
        if not path.is_file():
            raise LibraryNotFoundError(0, f"{ENVIRONMENT_VARIABLE}={explicit} names no file")
        return Library(path, ENVIRONMENT_VARIABLE, _abi(path))
    found = candidates()
    if not found:
        remedy = f"install libfabric, or `pip install mpich`, or set {ENVIRONMENT_VARIABLE}"
        raise LibraryNotFoundError(0, f"no {_NAME}: {remedy}")
    return found[0]


def load() -> Library:
    """Opens the chosen library for the whole process. The only place of pyfabric that reads the environment.

    Raises:
        LibraryNotFoundError: no library was found, or it cannot be opened.
    """
    library = choose(os.environ.get(ENVIRONMENT_VARIABLE))
    try:
        ctypes.CDLL(str(library.path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise LibraryNotFoundError(0, f"{library.path} cannot be opened: {error}") from error
    return library
