"""The machine as a transfer engine sees it: NICs, GPUs and NUMA nodes, read from sysfs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SYSFS: Final = Path("/sys")
_GPU_CLASSES: Final = ("0x0300", "0x0302")  # VGA and 3D controllers
_NVIDIA: Final = "0x10de"


@dataclass(frozen=True, slots=True)
class NumaNode:
    """`cpus` are the logical CPUs of the node."""

    index: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nic:
    """A network device.

    Attributes:
        kind: "rdma" for InfiniBand, RoCE and EFA devices, "net" for a plain interface.
        pci: the PCI addresses from the root port down to the device; empty for a virtual device.
        numa: the NUMA node, -1 when the machine does not say.
        speed_mbps: link speed in Mbit/s, -1 when unknown or down.
    """

    name: str
    kind: str
    pci: tuple[str, ...]
    numa: int
    speed_mbps: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """`pci` as in Nic."""

    pci: tuple[str, ...]
    numa: int


@dataclass(frozen=True, slots=True)
class Topology:
    nodes: tuple[NumaNode, ...]
    nics: tuple[Nic, ...]
    gpus: tuple[Gpu, ...]

    def nearest_nics(self, gpu: Gpu, kind: str = "rdma") -> tuple[Nic, ...]:
        """The NICs of `kind` that share most of the PCI path with the GPU; among equals those of its NUMA node."""
        ranked = [(_shared(gpu.pci, nic.pci), nic.numa == gpu.numa, nic) for nic in self.nics if nic.kind == kind]
        if not ranked:
            return ()
        best = max(rank[:2] for rank in ranked)
        return tuple(nic for shared, near, nic in ranked if (shared, near) == best)

    def cpus_near(self, numa: int) -> tuple[int, ...]:
        """Logical CPUs of the node; all CPUs when the node is unknown."""
        found = [node.cpus for node in self.nodes if node.index == numa]
        return found[0] if found else tuple(cpu for node in self.nodes for cpu in node.cpus)

    def cpus_of_nics(self, names: Sequence[str]) -> tuple[int, ...]:
        """Logical CPUs of the NUMA nodes of the NICs of these names; empty when no node is known for any of them.

        libfabric's domain names start with the device's: "rdmap16s27-rdm" is a domain of rdmap16s27.
        """
        known = {nic.numa for nic in self.nics for name in names if name == nic.name or name.startswith(nic.name + "-")}
        return tuple(cpu for node in self.nodes if node.index in known for cpu in node.cpus)


def _shared(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        # Absent, or an attribute that the kernel refuses to read (the speed of a link that is down).
        return None


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else -1


def _cpu_list(text: str) -> tuple[int, ...]:
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def _pci_path(device: Path) -> tuple[str, ...]:
    """PCI addresses (dddd:bb:dd.f) on the resolved device path, root first."""
    if not device.exists():
        return ()
    return tuple(part for part in device.resolve().parts if part.count(":") == 2 and "." in part)


def _nics(root: Path) -> list[Nic]:
    found: list[Nic] = []
    for kind, folder in (("rdma", "class/infiniband"), ("net", "class/net")):
        for entry in sorted((root / folder).glob("*")):
            device = entry / "device"
            numa, speed = _number(device / "numa_node"), _number(entry / "speed")
            found.append(Nic(entry.name, kind, _pci_path(device), numa, speed))
    return found


def _gpus(root: Path) -> list[Gpu]:
    found: list[Gpu] = []
    for device in sorted((root / "bus/pci/devices").glob("*")):
        kind = _text(device / "class") or ""
        if kind[:6] in _GPU_CLASSES and _text(device / "vendor") == _NVIDIA:
            found.append(Gpu(_pci_path(device), _number(device / "numa_node")))
    return found


def _nodes(root: Path) -> list[NumaNode]:
    folders = [f for f in (root / "devices/system/node").glob("node*") if f.name[4:].isdigit()]
    nodes = [NumaNode(int(f.name[4:]), _cpu_list(_text(f / "cpulist") or "")) for f in folders]
    return sorted(nodes, key=lambda node: node.index)


def read_topology(root: Path = _SYSFS) -> Topology:
    """Reads the machine's topology. `root` stands for /sys, so that a recorded tree can be read too."""
    return Topology(tuple(_nodes(root)), tuple(_nics(root)), tuple(_gpus(root)))
