"""KV memory that another process maps."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sglang.srt.errors import ConfigError
from sglang.srt.kv_pool.shareable import SharedMemory, receive_with, send_with, shared_pool

CHILD = """
import socket, sys
from sglang.srt.kv_pool.shareable import SharedMemory, send_with, shared_pool
channel = socket.socket(fileno=int(sys.argv[1]))
memory = shared_pool(1 << 20, lambda done: None)
memory.buffer[5:10] = b"hello"
send_with(channel, b"mine", [memory])
channel.recv(1)
memory.buffer[0:5] = bytes(memory.buffer[5:10])
channel.send(b"x")
channel.recv(1)
"""


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_another_process_memory_is_read_and_written_in_place() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(there.fileno())], pass_fds=[there.fileno()])
    there.close()
    with here:
        message, descriptors = receive_with(here, 100)
        assert message == b"mine" and len(descriptors) == 1
        memory = SharedMemory(descriptors[0], 1 << 20)
        memory.close()
        assert memory.buffer[5:10] == b"hello"
        memory.buffer[5:10] = b"there"
        here.send(b"x")
        assert here.recv(1) == b"x" and memory.buffer[0:5] == b"there"
    assert child.wait(10) == 0
    assert memory.buffer[0:5] == b"there", "the map outlives the process"


def test_an_end_of_the_socket_is_an_empty_message() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there.close()
    with here:
        assert receive_with(here, 100) == (b"", [])


def test_a_region_smaller_than_announced_is_refused() -> None:
    """Touching what lies beyond the end of a file kills the process."""
    memory = SharedMemory.create(4096, "small")
    copy = os.dup(memory.fileno())
    with pytest.raises(ConfigError, match="4096 bytes where 8192"):
        SharedMemory(copy, 8192)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(memory.fileno(), 0)
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copy)


def test_more_than_there_is() -> None:
    with pytest.raises(ConfigError, match="refuses"):
        SharedMemory.create(1 << 63, "huge")


def test_memory_is_touched_and_nothing_is_left_behind() -> None:
    done: list[int] = []
    before = open_descriptors()
    memory = shared_pool(3 << 20, done.append)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        send_with(here, b"m", [memory])
        _, descriptors = receive_with(there, 100)
        os.close(descriptors[0])
    resident = Path("/proc/self/smaps").read_text().split("memfd:sglang-kv")[1].split("Rss:")[1].split()[0]
    assert sum(done) == 3 << 20 and int(resident) == 3 << 10
    memory.close()
    memory.close()
    del memory
    assert open_descriptors() == before
