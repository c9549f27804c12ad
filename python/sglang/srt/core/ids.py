"""Names for the integers and strings that travel through the engine."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""A client-visible request; unique among the live requests of one engine."""

RowSlot = NewType("RowSlot", int)
"""Index of a request's row in the worker's tables, 0 <= slot < max_running_requests."""

PageId = NewType("PageId", int)
"""Index of a KV page in a rank's pool, 0 <= page < num_pages."""

TransferSlot = NewType("TransferSlot", int)
"""Index of a decode engine's counting slot; the upper part of every immediate."""

EngineId = NewType("EngineId", str)
"""An engine as its peers know it: role and control address."""

Incarnation = NewType("Incarnation", int)
"""63 random bits drawn at an engine's start; a restart is a new incarnation."""
