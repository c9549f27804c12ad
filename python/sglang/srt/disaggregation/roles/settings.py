"""Timing and bounds of the two disaggregated roles."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings:
    """Seconds and counts, resolved from --disagg-* flags."""

    heartbeat_s: float = 1.0
    heartbeat_misses: int = 3
    ask_timeout_s: float = 2.0
    """An ask that is not acknowledged by then goes to another prefill engine."""
    transfer_floor_s: float = 10.0
    """A transfer may take this long plus `transfer_factor` times what its prefill engine estimated."""
    transfer_factor: float = 4.0
    local_tokens: int = 32
    fallback_local: bool = False
    max_asks: int = 256
    max_attempts: int = 4
    slots: int = 4096
    """Counting slots of a decode engine."""

    @property
    def lost_after_s(self) -> float:
        """Silence after which a peer counts as lost."""
        return self.heartbeat_s * self.heartbeat_misses
