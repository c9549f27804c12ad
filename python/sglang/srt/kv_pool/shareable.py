"""Memory that another process can map: each rank's KV pool, so that one process sends for all ranks.

A region is exported as a file descriptor, which travels over a Unix socket (SCM_RIGHTS, unix(7)). On CPU it is a memfd:
it has no name that could be left behind, and the kernel frees it with its last map and descriptor.
"""

import ctypes
import fcntl
import mmap
import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from sglang.srt.errors import ConfigError

TOUCH_BYTES = 256 << 20
"""Memory is first touched in steps of this size, so that the start can show progress."""


class ShareableRegion(Protocol):
    """A Region that other processes can be given."""

    address: int
    nbytes: int

    @property
    def buffer(self) -> object:
        """A writable object with the buffer protocol."""
        ...

    def fileno(self) -> int:
        """A descriptor that, passed to another process, can be attached there."""
        ...

    def close(self) -> None:
        """Give up the descriptor; the map stays as long as this object."""
        ...


class SharedMemory:
    """Memory behind a memfd, mapped into this process: a ShareableRegion."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        """Map the first `nbytes` of `descriptor`, which belongs to this object from now on.

        Raises ConfigError where it is smaller, for touching what lies beyond would kill the process, or cannot be
        mapped.
        """
        self._descriptor = descriptor
        self.nbytes = nbytes
        try:
            self._map = _map_of(descriptor, nbytes)
        except ConfigError:
            self.close()
            raise
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @classmethod
    def create(cls, nbytes: int, name: str) -> "SharedMemory":
        """Zeroed memory of a fixed size; `name` shows in /proc/PID/maps. Raises ConfigError where there is none."""
        try:
            descriptor = os.memfd_create(f"sglang-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, nbytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"the system refuses {nbytes} bytes of shared memory: {error}") from error
        return cls(descriptor, nbytes)

    def touch(self, progress: Callable[[int], None]) -> None:
        """Have the kernel find memory for every byte now, which no step should pay for."""
        for start in range(0, self.nbytes, TOUCH_BYTES):
            step = min(TOUCH_BYTES, self.nbytes - start)
            ctypes.memset(self.address + start, 0, step)
            progress(step)

    @property
    def buffer(self) -> mmap.mmap:
        """The memory as a writable buffer."""
        return self._map

    def fileno(self) -> int:
        """For another process to attach."""
        return self._descriptor

    def close(self) -> None:
        """Give up the descriptor. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _map_of(descriptor: int, nbytes: int) -> mmap.mmap:
    size = os.fstat(descriptor).st_size
    if size < nbytes:
        raise ConfigError(f"a shared region of {size} bytes where {nbytes} were announced")
    try:
        return mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"cannot map {nbytes} bytes of shared memory: {error}") from error


def shared_pool(nbytes: int, progress: Callable[[int], None]) -> SharedMemory:
    """Touched memory for a KV pool that another process will map."""
    memory = SharedMemory.create(nbytes, "kv")
    memory.touch(progress)
    return memory


def send_with(channel: socket.socket, message: bytes, regions: Sequence[ShareableRegion] = ()) -> None:
    """One message of a SOCK_SEQPACKET socket, and the descriptors of `regions` with it."""
    socket.send_fds(channel, [message], [region.fileno() for region in regions])


def receive_with(channel: socket.socket, most: int, descriptors: int = 1) -> tuple[bytes, list[int]]:
    """One message of at most `most` bytes and the descriptors that came with it; the caller closes them.

    An empty message means that the other end is gone.
    """
    message, found, _, _ = socket.recv_fds(channel, most, descriptors, socket.MSG_CMSG_CLOEXEC)
    return message, list(found)
