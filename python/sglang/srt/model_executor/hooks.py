"""What is told about each layer of a forward pass. The messenger's counter hangs here."""

from sglang.srt.models.base import LayerHook

__all__ = ["LayerHook", "NullHook"]


class NullHook:
    """The hook of an engine that sends no KV."""

    def after_attention(self, layer: int) -> None:
        pass
