"""Keys of the control plane: CURVE key pairs in files, and who holds what.

A prefill engine is the server: it proves `prefill.key` and lets in the public keys listed in `decode.pub`. A decode
engine proves `decode.key` and talks only to a server that holds the secret of `prefill.pub`.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import zmq

from sglang.srt.errors import ConfigError

PREFILL, DECODE = "prefill", "decode"
KEY_CHARACTERS = 40
"""Z85 of 32 bytes."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Z85, as ZeroMQ takes it."""

    public: bytes
    secret: bytes


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """What a listening engine needs."""

    own: KeyPair
    allowed: frozenset[bytes]
    """Public keys of the engines that may dial."""


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """What a dialling engine needs."""

    own: KeyPair
    server: bytes


def make_keys(folder: Path) -> list[Path]:
    """Write new pairs for both roles, secrets readable by their owner alone. Raises ConfigError where a file exists."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for role in (PREFILL, DECODE):
        public, secret = zmq.curve_keypair()
        written.append(_write(folder / f"{role}.key", public + b"\n" + secret + b"\n", 0o600))
        written.append(_write(folder / f"{role}.pub", public + b"\n", 0o644))
    return written


def server_keys(folder: Path) -> ServerKeys:
    """Read what a prefill engine needs. Raises ConfigError that names the file."""
    return ServerKeys(_pair(folder / f"{PREFILL}.key"), frozenset(_publics(folder / f"{DECODE}.pub")))


def client_keys(folder: Path) -> ClientKeys:
    """Read what a decode engine needs. Raises ConfigError that names the file."""
    servers = _publics(folder / f"{PREFILL}.pub")
    if len(servers) != 1:
        raise ConfigError(f"--disagg-keys: {folder / f'{PREFILL}.pub'} must hold one key, not {len(servers)}")
    return ClientKeys(_pair(folder / f"{DECODE}.key"), servers[0])


def _write(path: Path, content: bytes, mode: int) -> Path:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise ConfigError(f"--out: cannot create {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return path


def _pair(path: Path) -> KeyPair:
    keys = _keys(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError(f"--disagg-keys: {path} can be read by others; chmod 600 it")
    if len(keys) != 2 or _public_of(keys[1]) != keys[0]:
        raise ConfigError(f"--disagg-keys: {path} is not a key pair; make one with `python -m sglang.disagg_keys`")
    return KeyPair(keys[0], keys[1])


def _public_of(secret: bytes) -> bytes:
    try:
        return zmq.curve_public(secret)
    except ValueError:
        return b""


def _publics(path: Path) -> list[bytes]:
    keys = _keys(path)
    if not keys or any(len(key) != KEY_CHARACTERS for key in keys):
        raise ConfigError(f"--disagg-keys: {path} must hold public keys of {KEY_CHARACTERS} characters, one a line")
    return keys


def _keys(path: Path) -> list[bytes]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--disagg-keys: cannot read {path}: {error.strerror}") from error
    return [line.strip() for line in lines if line.strip()]
