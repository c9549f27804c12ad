"""What operators use: spans, profiles, pausing, log lines, a full queue, and the watchdog over a loop that hangs."""

import gzip
import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.engines import Engine, cluster

SMALL = ("--max-total-tokens", "4096", "--max-running-requests", "4", "--served-model-name", "smol")
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector:
    """An OTLP collector: keeps (service, span) of everything it is sent."""

    def __init__(self) -> None:
        spans: list[tuple[str, object]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    service = next(
                        a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
                    )
                    spans.extend((service, span) for scope in resource.scope_spans for span in scope.spans)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.spans = spans
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def test_one_request_is_one_trace_over_both_engines(collector: Collector, tmp_path: Path) -> None:
    flags = (*SMALL, "--otlp-endpoint", collector.url)
    files = [tmp_path / "p.json", tmp_path / "d.json"]
    with cluster(*flags, prefill_flags=("--trace-file", str(files[0]))) as (prefill, (decode,)):
        body = {"input_ids": list(range(100, 180)), "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        assert httpx.post(decode.url + "/generate", json=body, headers=headers, timeout=60).status_code == 200
        end = time.monotonic() + 15
        wanted = {("prefill", name) for name in ("queued", "prefill")}
        wanted |= {("decode", name) for name in ("request", "transfer", "decode")}
        while True:
            spans = list(collector.spans)
            found = {(s.split("-")[2], span.name): span for s, span in spans if span.trace_id.hex() == TRACE}
            if wanted <= found.keys():
                break
            assert time.monotonic() < end, wanted - found.keys()
            time.sleep(0.2)
        root = found["decode", "request"]
        assert all(s.parent_span_id == root.span_id for key, s in found.items() if key != ("decode", "request"))
        assert root.start_time_unix_nano <= found["prefill", "prefill"].start_time_unix_nano
        assert found["prefill", "prefill"].end_time_unix_nano <= root.end_time_unix_nano
        assert abs(root.end_time_unix_nano / 1e9 - time.time()) < 60
    names = [json.loads(line.rstrip(",\n"))["name"] for line in files[0].read_text().splitlines()[1:]]
    assert any(name.startswith("step") for name in names) and "prefill" in names
    assert prefill.process.returncode == 0


def test_operations_of_one_engine(tmp_path: Path) -> None:
    """A profile, a pause, the log's lines and a full queue: one engine, since each takes seconds to start."""
    with Engine(*SMALL, "--max-queued-requests", "2", "--decode-log-interval", "5") as engine:
        engine.wait_ready()
        _profile(engine, tmp_path)
        _pause(engine)
        _full_queue(engine)
        log = engine.log()
        assert "Prefill batch, #new-seq: 1, #new-token: " in log and "#cached-token: " in log
        assert "Decode batch, #running-req: 1, #token: " in log and "gen throughput (token/s): " in log
        flushed = httpx.post(engine.url + "/flush_cache").text
        assert "pages freed" in flushed and engine.metrics()["num_used_tokens"] == 0
        _watchdog_leaves_stopped_processes_alone(engine)


def _profile(engine: Engine, folder: Path) -> None:
    with httpx.Client(base_url=engine.url, timeout=60) as client:
        assert client.post("/stop_profile").status_code == 400
        assert client.post("/start_profile", json={"output_dir": str(folder)}).status_code == 200
        assert client.post("/start_profile").status_code == 400
        engine.generate("Hello", 12)
        path = Path(client.post("/stop_profile").text.split("written to ")[1].strip().rstrip("."))
    names = {event.get("name", "") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}
    assert any(name.startswith("aten::") for name in names)


def _pause(engine: Engine) -> None:
    with httpx.Client(base_url=engine.url, timeout=60) as client:
        expected = engine.generate("The sea is", 12)["output_ids"]
        for mode in ("in_place", "retract"):
            assert client.post("/pause_generation", json={"mode": mode}).json()["status"] == "paused"
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(engine.generate, "The sea is", 12)
                time.sleep(0.5)
                assert not asked.done() and client.get("/health").status_code == 200
                assert client.post("/continue_generation").status_code == 200
                assert asked.result(30)["output_ids"] == expected, mode
        assert client.post("/pause_generation", json={"mode": "sometimes"}).status_code == 400
        body = {"text": "The sea is", "sampling_params": {"max_new_tokens": 1000, "ignore_eos": True}}
        with client.stream("POST", "/generate", json={**body, "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            httpx.post(engine.url + "/pause_generation")
            last = [line for line in lines if line.startswith("data: {")][-1]
        assert json.loads(last[6:])["meta_info"]["finish_reason"]["type"] == "abort"
        client.post("/continue_generation")


def _full_queue(engine: Engine) -> None:
    """4 run, 2 wait, and the rest gets 503 with Retry-After."""
    httpx.post(engine.url + "/pause_generation", json={"mode": "in_place"})
    codes: list[httpx.Response] = []

    def ask(number: int) -> None:
        body = {"text": f"{number} and", "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
        codes.append(httpx.post(engine.url + "/generate", json=body, timeout=60))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 20
    while len(codes) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    refused = list(codes)
    httpx.post(engine.url + "/continue_generation")
    for thread in threads:
        thread.join(30)
    assert [answer.status_code for answer in refused] == [503] * 3
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert [answer.status_code for answer in codes].count(200) == 2


def _watchdog_leaves_stopped_processes_alone(engine: Engine) -> None:
    engine.signal(signal.SIGSTOP)
    time.sleep(1.0)
    engine.signal(signal.SIGCONT)
    assert engine.generate("Hello", 2)["output_ids"]
