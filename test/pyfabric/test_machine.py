"""The choice of a library, and the reading of recorded sysfs trees."""

from pathlib import Path

import pytest

import pyfabric
from pyfabric import LibraryNotFoundError, loader, read_topology


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def add_device(root: Path, pci: list[str], numa: int, **links: str) -> None:
    """A PCI device on its path below the root complex, with class links to it."""
    folder = root / "devices" / "pci0000:00"
    for address in pci:
        folder /= address
    write(folder / "numa_node", str(numa))
    for name, kind in links.items():
        if kind == "gpu":
            write(folder / "class", "0x030200")
            write(folder / "vendor", "0x10de")
            link = root / "bus/pci/devices" / pci[-1]
        else:
            (root / "class" / kind / name).mkdir(parents=True)
            link = root / "class" / kind / name / "device"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)


def node(root: Path, index: int, cpus: str) -> None:
    write(root / f"devices/system/node/node{index}/cpulist", cpus)


def test_many_nics_a_gpu_share_its_switch(tmp_path: Path) -> None:
    """The shape of a p5: four EFA devices behind the same PCI switch as each GPU, two NUMA nodes."""
    node(tmp_path, 0, "0-47,96-143")
    node(tmp_path, 1, "48-95,144-191")
    for gpu in range(8):
        switch = f"0000:{gpu * 16 + 1:02x}:00.0"
        add_device(tmp_path, [switch, f"0000:{gpu * 16 + 8:02x}:00.0"], gpu // 4, **{f"gpu{gpu}": "gpu"})
        for port in range(4):
            address = f"0000:{gpu * 16 + 2 + port:02x}:00.0"
            add_device(tmp_path, [switch, address], gpu // 4, **{f"rdmap{gpu}s{port}": "infiniband"})
    topology = read_topology(tmp_path)
    assert (len(topology.nics), len(topology.gpus), len(topology.nodes)) == (32, 8, 2)
    for index, gpu in enumerate(topology.gpus):
        assert [nic.name for nic in topology.nearest_nics(gpu)] == [f"rdmap{index}s{port}" for port in range(4)]
        assert topology.cpus_near(gpu.numa)[0] == (0 if index < 4 else 48)


def test_one_nic_a_gpu_and_a_shared_storage_nic(tmp_path: Path) -> None:
    """The shape of a DGX: one InfiniBand port a GPU, a further NIC on a root port of its own."""
    node(tmp_path, 0, "0-55")
    node(tmp_path, 1, "56-111")
    for gpu in range(4):
        switch = f"0000:{gpu * 16 + 1:02x}:00.0"
        add_device(tmp_path, [switch, f"0000:{gpu * 16 + 8:02x}:00.0"], gpu // 2, **{f"gpu{gpu}": "gpu"})
        add_device(tmp_path, [switch, f"0000:{gpu * 16 + 2:02x}:00.0"], gpu // 2, **{f"mlx5_{gpu}": "infiniband"})
    add_device(tmp_path, ["0000:f1:00.0"], 1, storage="infiniband", eth0="net")
    topology = read_topology(tmp_path)
    for index, gpu in enumerate(topology.gpus):
        assert [nic.name for nic in topology.nearest_nics(gpu)] == [f"mlx5_{index}"]
    assert [nic.name for nic in topology.nearest_nics(topology.gpus[3], "net")] == ["eth0"]


def test_a_laptop_has_nothing_to_be_near_to(tmp_path: Path) -> None:
    node(tmp_path, 0, "0-7")
    (tmp_path / "class/net/lo").mkdir(parents=True)
    write(tmp_path / "class/net/wlan0/speed", "-1")
    add_device(tmp_path, ["0000:00:02.0"], -1, gpu0="gpu")
    topology = read_topology(tmp_path)
    (gpu,) = topology.gpus
    assert topology.nearest_nics(gpu) == ()
    assert topology.cpus_near(gpu.numa) == tuple(range(8))
    assert [(nic.name, nic.pci, nic.speed_mbps) for nic in topology.nics] == [("lo", (), -1), ("wlan0", (), -1)]


def test_an_empty_tree_is_an_empty_machine(tmp_path: Path) -> None:
    topology = read_topology(tmp_path)
    assert (topology.nodes, topology.nics, topology.gpus) == ((), (), ())
    assert read_topology().nodes, "this machine has at least one node"


def test_the_newest_library_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, nodes in ((old, range(7)), (new, range(10))):
        folder.mkdir()
        (folder / "libfabric.so.1").write_bytes(b"".join(b"FABRIC_1.%d\0" % minor for minor in nodes))
    monkeypatch.setattr(loader, "_SYSTEM_FOLDERS", (str(old), str(new)))
    monkeypatch.setattr(loader, "_wheel_files", lambda: iter(()))
    assert loader.choose() == loader.Library(new / "libfabric.so.1", "system", 9)
    assert loader.choose(str(old / "libfabric.so.1")).origin == loader.ENVIRONMENT_VARIABLE
    with pytest.raises(LibraryNotFoundError, match="names no file"):
        loader.choose(str(tmp_path / "absent"))
    monkeypatch.setattr(loader, "_SYSTEM_FOLDERS", ())
    with pytest.raises(LibraryNotFoundError, match="install"):
        loader.choose()


def test_what_is_loaded_is_what_was_chosen() -> None:
    loaded = Path(pyfabric._core.library_path()).resolve()
    assert loaded == pyfabric.LIBRARY.path.resolve()
