"""`python -m pyfabric`: which library, which providers, which NICs and NUMA nodes."""

import sys

from rich import box
from rich.console import Console
from rich.table import Column, Table

from pyfabric import LIBRARY, _core, read_topology

_UNBOUNDED = 10_000
"""Columns of an output that is no terminal: a file or a pipe takes lines of any length."""


def _table(*names: str, title: str) -> Table:
    """Cells that do not fit go on in the next line: nothing is cut. 80 columns hold the widest table."""
    columns = (Column(name, overflow="fold") for name in names)
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)


def _providers() -> Table:
    """One row a distinct provider, domain and capability set: the library lists each once an address format."""
    columns = ("provider", "domain", "memory", "keys", "CQ data", "inject", "tx queue", "extents", "NIC")
    table = _table(*columns, title="Usable providers: RDM, RMA and at least 4 bytes of CQ data")
    rows: dict[tuple[str, ...], None] = {}
    for p in _core.list_providers():
        memory = "virtual" if p.virtual_addresses else "offset"
        keys = "provider" if p.provider_keys else "engine"
        extents = f"{p.iov_limit}/{p.rma_iov_limit}"
        nic = "yes" if p.has_nic else ""
        sizes = (str(p.cq_data_bytes), str(p.inject_bytes), str(p.tx_size))
        rows[p.provider, p.domain, memory, keys, *sizes, extents, nic] = None
    for row in rows:
        table.add_row(*row)
    return table


def _machine() -> list[Table]:
    topology = read_topology()
    nics = _table("name", "kind", "PCI", "NUMA", "Mbit/s", title="NICs")
    for nic in topology.nics:
        nics.add_row(nic.name, nic.kind, nic.pci[-1] if nic.pci else "-", str(nic.numa), str(nic.speed_mbps))
    nodes = _table("node", "CPUs", title="NUMA nodes")
    for node in topology.nodes:
        nodes.add_row(str(node.index), ",".join(map(str, node.cpus)))
    return [nics, nodes]


def main() -> None:
    console = Console(width=None if sys.stdout.isatty() else _UNBOUNDED)
    console.print(f"libfabric {_core.library_version()} at {_core.library_path()} ({LIBRARY.origin})")
    for table in (_providers(), *_machine()):
        console.print(table)


if __name__ == "__main__":
    main()
