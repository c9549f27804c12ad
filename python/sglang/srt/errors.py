"""The one exception tree of the engine.

Each class says who has to act: the person who started a server (`ConfigError`), the one who wrote a checkpoint
(`CheckpointError`), the client that sent a request (`RequestError`), or the operator of a broken engine
(`EngineError`).
"""


class SglangError(Exception):
    """Root of every error that the engine raises on purpose."""


class ConfigError(SglangError):
    """A flag, a configuration file or a combination of flags cannot work; the message names the flag and the remedy."""


class CheckpointError(SglangError):
    """A model folder is incomplete, malformed or unsupported; the message names the file or the tensors."""


class EngineError(SglangError):
    """The engine itself cannot go on: a worker died, a queue is gone, an invariant is broken."""


class RequestError(SglangError):
    """A client's request cannot be served.

    `status` is the HTTP status, `kind` OpenAI's error `type`, `param` the offending field where one is to blame.
    """

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "invalid_request_error", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


class WireError(SglangError):
    """A frame from another process is malformed, oversized, of an unknown version, or breaks what was negotiated."""
