"""What pyfabric raises. An errno of libfabric gets its class here and nowhere else.

A bad argument raises ValueError and never reaches libfabric; everything that libfabric refuses is a FabricError.
"""

import errno
from typing import Final


class FabricError(Exception):
    """A libfabric call failed.

    Attributes:
        code: the positive fi_errno (equal to errno where errno has the value); 0 when no call was made.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class LibraryNotFoundError(FabricError):
    """No usable libfabric.so.1 was found, or the one that was asked for cannot be loaded."""


class ProviderUnavailableError(FabricError):
    """The loaded library has no provider that fits the request."""


class RegionBusyError(FabricError):
    """A region cannot be closed while programs that have not ended read from it."""


class WorkerHungError(FabricError):
    """The native worker did not come back from a provider call in time."""


# FI_ENODATA (61) and FI_ENOSYS (38) are what fi_getinfo answers when nothing matches.
_BY_ERRNO: Final = {
    errno.ENODATA: ProviderUnavailableError,
    errno.ENOSYS: ProviderUnavailableError,
    errno.EBUSY: RegionBusyError,
    errno.ETIMEDOUT: WorkerHungError,
}


def from_errno(code: int, message: str) -> FabricError:
    """The exception for a positive fi_errno. Called by the native module."""
    return _BY_ERRNO.get(code, FabricError)(code, message)
