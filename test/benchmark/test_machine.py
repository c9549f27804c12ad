"""Which records belong together, and how a profile's samples are named."""

import re

from machine import RESULTS, describe, name_of, results
from server_profile import KINDS

GENOA = {"cpu": "AMD EPYC", "family": "25/17", "cores": "2"}


def test_kinds_of_machines_have_folders_of_their_own() -> None:
    assert name_of(GENOA) == "amd-epyc-25-17-2c"
    others = [GENOA | {"family": "25/1"}, GENOA | {"cores": "4"}, GENOA | {"cpu": "Intel(R) Xeon(R)"}]
    assert len({name_of(machine) for machine in [GENOA, *others]}) == 4
    assert results("layerwise") == RESULTS / "layerwise" / name_of(describe())
    assert "/" not in name_of(GENOA)


def test_every_sample_has_a_kind_and_kernels_have_theirs() -> None:
    def kind(text: str) -> str:
        return next(name for pattern, name in KINDS if re.search(pattern, text))

    library = "_native.cpython-311-x86_64-linux-gnu.so"
    assert kind(f"{library} linear_rows<Halves2>") == "products with weights"
    assert kind(f"{library} decode_pairs<FloatDot>") == "attention over pages"
    assert kind(f"{library} void chunk_tile<8, FloatProducts>") == "attention over pages"
    assert kind(f"{library} norm_rows<unsigned short>").startswith("norm")
    assert kind(f"{library} add_rows<unsigned short>").startswith("norm")
    assert kind(f"{library} draw_row<unsigned short>") == "drawing tokens"
    assert kind("libgomp.so.1 gomp_barrier_wait_end").startswith("waiting awake")
    assert kind(f"{library} cpu_kernels::Team::await(unsigned int)").startswith("waiting awake")
    assert kind("[kernel.kallsyms] finish_task_switch") == "the operating system"
    assert kind("libzmq.so.5 zmq_poll") == "other libraries"
