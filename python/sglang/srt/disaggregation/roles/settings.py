"""Timing and bounds of the two disaggregated roles."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings:
    """Seconds and counts, resolved from --disagg-* flags."""

    heartbeat_s: float = 1.0
    heartbeat_misses: int = 3
    ask_timeout_s: float = 2.0
    """An ask that is not acknowledged by then goes to another prefill engine."""
    wait_s: float = 30.0
    """How long a request waits while no prefill engine is usable at all."""
    transfer_floor_s: float = 10.0
    """A transfer may take this long plus `transfer_factor` times what its prefill engine estimated."""
    transfer_factor: float = 4.0
    transfer_cap_s: float = 600.0
    """And never longer than this, whatever was estimated."""
    retry_cap_s: float = 30.0
    """Longest time that a peer's hint to come back later is obeyed."""
    local_tokens: int = 32
    fallback_local: bool = False
    max_asks: int = 256
    max_attempts: int = 4
    slots: int = 4096
    """Counting slots of a decode engine."""

    def allowed_s(self, estimate_ms: int) -> float:
        """How long a transfer may take for which its prefill engine estimated so much."""
        return min(self.transfer_floor_s + self.transfer_factor * estimate_ms / 1000, self.transfer_cap_s)

    @property
    def lost_after_s(self) -> float:
        """Silence after which a peer counts as lost."""
        return self.heartbeat_s * self.heartbeat_misses
