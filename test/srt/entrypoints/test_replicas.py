"""Several schedulers behind one server: who gets a request, and one state of many."""

import asyncio
from pathlib import Path

from sglang.srt.config.hardware import Hardware
from sglang.srt.config.replica import replica_config
from sglang.srt.config.resolve import resolve
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.entrypoints.replicas import Replicas, merged
from sglang.srt.ipc.zmq_channel import ZmqChannel
from sglang.srt.messages.codec import Codec
from sglang.srt.messages.frontend import Generate, Ready, State, ToFrontend, ToScheduler

TO_FRONTEND = Codec[ToFrontend](ToFrontend)
MACHINE = Hardware(cores=(0, 1, 2, 3), memory_bytes=1 << 30, no_color=True)


def generate(rid: str, prompt: int, most: int) -> Generate:
    return Generate(rid=rid, token_ids=(1,) * prompt, sampling=SamplingParams(max_new_tokens=most))


def ready(tokens: int) -> Ready:
    return Ready(
        max_total_tokens=tokens, max_running_requests=4, context_length=500, page_size=4, model="m", role="null"
    )  # fmt: skip


def test_a_call_goes_to_the_replica_with_the_fewest_tokens_to_do(tmp_path: Path) -> None:
    async def run() -> list[list[str]]:
        addresses = [f"ipc://{tmp_path}/{number}" for number in range(3)]
        replicas = Replicas(addresses, on_state=lambda state: None)
        schedulers = [
            ZmqChannel(address, incoming=Codec[ToScheduler](ToScheduler), outgoing=TO_FRONTEND, bind=False)
            for address in addresses
        ]
        replicas.start()
        for number, scheduler in enumerate(schedulers):
            scheduler.send(ready(1000 + number))
        assert replicas.ready is not None
        assert (await replicas.ready).max_total_tokens == 1000, "a request lives in one replica"
        replicas.submit([generate("a", 100, 50)])
        replicas.submit([generate("b", 10, 10), generate("b2", 10, 10)])
        replicas.submit([generate("c", 30, 30)])
        replicas.submit([generate("d", 1, 1)])
        last = replicas.submit([generate("e", 100, 100)])
        found = [sorted(client._open) for client in replicas._clients]
        assert replicas.open_outputs == 6
        last.close()
        assert replicas.open_outputs == 5
        replicas.close()
        for scheduler in schedulers:
            scheduler.close()
        assert replicas.dead == "the server is closing"
        return found

    # b: 40 tokens on the second, c: 60 on the third, so d joins b; then c has 60, b and d 42.
    assert asyncio.run(run()) == [["a"], ["b", "b2", "d", "e"], ["c"]]


def test_amounts_add_up_and_shares_do_not() -> None:
    states = [
        State(
            call=number, gauges={"num_running_reqs": 3, "token_usage": usage, "step_age_seconds": age},
            counters={"num_transfers_total": 5 * number}, info={"version": "1", "prefill p:1": said},
        )
        for number, usage, age, said in ((1, 0.25, 0.1, "usable"), (2, 0.75, 2.0, "greeting"))
    ]  # fmt: skip
    whole = merged(states)
    assert whole.gauges == {"num_running_reqs": 6, "token_usage": 0.5, "step_age_seconds": 2.0}
    assert whole.counters == {"num_transfers_total": 15}
    assert whole.info == {"version": "1", "dp 0 prefill p:1": "usable", "dp 1 prefill p:1": "greeting"}


def test_replicas_share_ports_cores_and_memory() -> None:
    flags = {"model_path": "m", "disagg_mode": "prefill", "disagg_bootstrap_port": 9000, "dp_size": 2}
    config = resolve({**flags, "cpu_cores": "0-3", "trace_file": "t", "mem_fraction_static": 0.2}, MACHINE)
    second = replica_config(config, 1)
    assert (second.dp_rank, second.disagg_bootstrap_port, second.cpu_cores) == (1, 9001, (2, 3))
    assert (second.mem_fraction_static, second.trace_file) == (0.1, "t.dp1")
    shared = resolve({**flags, "tp_size": 2, "ep_size": 2, "enable_dp_attention": True}, MACHINE)
    assert replica_config(shared, 1).tp_size == 1, "of two ranks in all"
    alone = resolve({"model_path": "m"}, MACHINE)
    assert replica_config(alone, 0) is alone
