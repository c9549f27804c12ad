"""A step's kernel calls, recorded once and played with nothing between them."""

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from sglang.srt.kernels.cpu import _native
from sglang.srt.kernels.cpu.ops import CpuKernels
from sglang.srt.kernels.cpu.paged import PagedRows

ALIGNMENT = 64
_OF = torch.Tensor
_LOOKS: frozenset[object] = frozenset(
    {
        *(_OF.data_ptr, _OF.dim, _OF.is_contiguous, _OF.numel, _OF.size, _OF.stride, _OF.unsqueeze, _OF.view),
        *(getattr(_OF, name).__get__ for name in ("dtype", "is_cpu", "shape")),
    }
)
"""What neither computes nor copies."""


class NotRecordable(Exception):
    """A step does something else than call native kernels; says what."""


class Tape:
    """What the native kernels were asked to do for `rows` rows of one query; `play` does it for the first of them.

    Tensors that are made while it records lie in buffers of its own. A buffer whose tensor has died serves later ones,
    so a whole walk through a model takes little more than one layer does.
    """

    def __init__(self, kernels: CpuKernels, rows: int) -> None:
        self.rows = rows
        self._native = _native.Tape(kernels.native, rows)
        self._buffers = Buffers()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note down this thread's calls in place of performing them.

        Raises NotRecordable where torch is asked to compute, or a kernel for other rows: what is played is then
        everything there is to do.
        """
        self._native.begin()
        try:
            with _OnlyKernels(self._buffers):
                yield
        except ValueError as error:
            raise NotRecordable(str(error)) from error
        finally:
            self._native.end()

    def play(self, rows: PagedRows) -> None:
        """Perform the calls for these rows of one query each, of which there are at most as many as were recorded."""
        if not rows.single:
            raise ValueError("rows of several queries for a recorded step")
        self._native.play(*rows.arguments)

    def __len__(self) -> int:
        return len(self._native)

    @property
    def nbytes(self) -> int:
        """Of all buffers."""
        return self._buffers.nbytes


class Buffers:
    """Memory for tensors, of which each block serves one living tensor at a time."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[np.ndarray[tuple[int], np.dtype[np.uint8]]]] = defaultdict(list)
        self.nbytes = 0

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised contiguous tensor."""
        nbytes = math.prod(shape) * dtype.itemsize
        free = self._free[nbytes]
        block = free.pop() if free else self._new(nbytes)
        view = block[:]
        weakref.finalize(view, free.append, block).atexit = False  # the tensor keeps `view`, and it alone does
        return torch.from_numpy(view).view(dtype).view(*shape)

    def _new(self, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        raw = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
        self.nbytes += nbytes
        return raw[-raw.ctypes.data % ALIGNMENT :][:nbytes]


class _OnlyKernels(TorchFunctionMode):
    """Lets torch make tensors, out of `buffers`, look at them and make views of them, and refuses everything else.

    (A TorchDispatchMode would know views by itself, but imports torch's compiler for it, which takes 1.5 s.)
    """

    def __init__(self, buffers: Buffers) -> None:
        super().__init__()
        self._buffers = buffers

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        given = kwargs or {}
        if func is torch.Tensor.new_empty:
            like, *sizes = args
            shape = sizes[0] if isinstance(sizes[0], Sequence) else sizes
            return self._buffers.take(shape, given.get("dtype", like.dtype))
        sliced = func is torch.Tensor.__getitem__ and not _has_tensor(args[1])
        if func not in _LOOKS and not sliced:
            raise NotRecordable(f"torch computes {getattr(func, '__name__', func)}")
        return func(*args, **given)


def _has_tensor(index: object) -> bool:
    """Whether an index picks single elements, which copies them."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(not isinstance(part, slice | int) for part in parts)
