"""Logging of one engine process: one line format, to stderr."""

import logging
from typing import TextIO

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def setup_logging(role: str, level: str, *, log_requests: bool = False, stream: TextIO | None = None) -> None:
    """Sends every logger of this process to `stream` (default: stderr) as `time [role] LEVEL logger: message`.

    HTTP accesses are logged only with `log_requests`: at hundreds of requests a second they hide everything else.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(f"%(asctime)s [{role}] %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    logging.getLogger("uvicorn.access").setLevel(logging.INFO if log_requests else logging.WARNING)
    # Its own lines (started, waiting, finished) say nothing that ours do not.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
