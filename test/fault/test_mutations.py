"""Each rule taken out of the code, one at a time: the test that guards it must turn red.

A copy of the package is changed, never the tree itself; the tests named here need no native module.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIM = "test/srt/disaggregation/test_cluster_sim.py"
ROLES = "test/fault/test_roles.py"
MODEL = "test/model_check/test_interleavings.py"
RUNNER = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, sys.argv[1])
import sglang, pytest
assert sglang.__file__.startswith(sys.argv[1]), sglang.__file__
sys.exit(pytest.main(sys.argv[2:]))
"""


@dataclass(frozen=True)
class Mutation:
    """A rule, where it stands, what it becomes, and the tests that must notice."""

    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    select: str = ""


MUTATIONS = (
    Mutation(
        "a cancelled transfer frees its pages only when nothing can land",
        "srt/disaggregation/handoff/states.py",
        "(_D.ACCEPTED, _DE.CANCEL): _D.CANCELLING",
        "(_D.ACCEPTED, _DE.CANCEL): _D.DRAINED",
        (SIM, "test/srt/disaggregation/handoff"),
    ),
    Mutation(
        "a lost peer's key is revoked before its pages are reused",
        "srt/disaggregation/roles/peers.py",
        "        self._messenger.revoke(peer.name)\n",
        "",
        (SIM,),
    ),
    Mutation(
        "silence is noticed",
        "srt/disaggregation/roles/peers.py",
        "                silent.append(peer)\n",
        "                pass\n",
        (ROLES,),
        "heartbeats",
    ),
    Mutation(
        "an ask is obeyed once",
        "srt/disaggregation/handoff/replay.py",
        "return Fate.OPEN if life.numbers.take(transfer) else Fate.STALE",
        "return Fate.OPEN",
        (MODEL,),
        "no_late_write",
    ),
    Mutation(
        "an ask belongs to its grant",
        "srt/disaggregation/handoff/replay.py",
        "if greeting != life.greeting or copy:",
        "if copy:",
        (MODEL,),
        "no_late_write",
    ),
    Mutation(
        "a cancel takes the number of its ask",
        "srt/disaggregation/handoff/replay.py",
        "            life.numbers.take(number)\n",
        "            pass\n",
        (MODEL,),
        "no_late_write",
    ),
    Mutation(
        "source pages stay until their writes are over",
        "srt/disaggregation/roles/prefill.py",
        "return outbound is not None and bool(outbound.handles)",
        "return False",
        (SIM,),
    ),
    Mutation(
        "heartbeats of another incarnation do not count",
        "srt/disaggregation/roles/decode.py",
        "                if incarnation == peer.incarnation:\n                    peer.heard_at = now",
        "                if True:\n                    peer.heard_at = now",
        (ROLES,),
    ),
    Mutation(
        "a request without any usable peer is refused in time",
        "srt/disaggregation/roles/routing.py",
        "now - trouble.stranded_since < patience",
        "True",
        (SIM, ROLES),
        "refused",
    ),
    Mutation(
        "an engine that leaves waits for no prefill engine that is not there",
        "srt/disaggregation/roles/routing.py",
        "patience = 0.0 if self._leaving else self._settings.wait_s",
        "patience = self._settings.wait_s",
        (ROLES,),
        "told_to_end",
    ),
    Mutation(
        "a prefill engine that hung up is lost at once",
        "srt/disaggregation/roles/decode.py",
        "        for peer in (self._peers[name] for name in self._link.hung_up()):\n",
        "        for peer in ():\n",
        (ROLES,),
        "hung_up",
    ),
    Mutation(
        "a connection that ended and was made again is no hang-up",
        "srt/ipc/guard.py",
        "            self._up, self._ended = False, True\n",
        "            return True\n",
        ("test/srt/ipc/test_links.py",),
        "dialled_again",
    ),
    Mutation(
        "a leaving engine takes no more asks",
        "srt/disaggregation/roles/prefill.py",
        "        elif self._leaving:\n",
        "        elif False:\n",
        (ROLES,),
    ),
    Mutation(
        "a prefill engine leaves after the farewell",
        "srt/disaggregation/roles/guests.py",
        "return now >= self._stays_until or all(g.state is GuestState.PARTED for g in self._guests.values())",
        "return True",
        (ROLES,),
        "leaves_when_no_ask",
    ),
    Mutation(
        "nothing is asked of an engine that leaves",
        "srt/disaggregation/handoff/acquaintance.py",
        "(_D.USABLE, _DE.LEAVING): _D.LEAVING",
        "(_D.USABLE, _DE.LEAVING): _D.USABLE",
        (ROLES,),
        "lost_farewell",
    ),
    Mutation(
        "farewell is said when nothing is open",
        "srt/disaggregation/roles/decode.py",
        "if peer.state is PeerState.LEAVING and not self._open_with(peer):",
        "if peer.state is PeerState.LEAVING:",
        (ROLES,),
        "ask_is_open",
    ),
    Mutation(
        "a farewell belongs to its grant",
        "srt/disaggregation/roles/guests.py",
        "if guest is None or (farewell.incarnation, farewell.greeting) != (self._incarnation, guest.life.greeting):",
        "if guest is None:",
        (ROLES,),
        "farewell_under",
    ),
    Mutation(
        "a lost farewell is asked for again",
        "srt/disaggregation/roles/guests.py",
        "if self._leaving and guest.state is GuestState.WELCOME:",
        "if False:",
        (ROLES,),
        "lost_farewell",
    ),
    Mutation(
        "an engine does not wait for ever for a farewell",
        "srt/disaggregation/roles/guests.py",
        "return now >= self._stays_until or all(",
        "return all(",
        (ROLES,),
        "wait_for_ever",
    ),
    Mutation(
        "a decode engine's last word is a farewell",
        "srt/disaggregation/roles/decode.py",
        "            if peer.state in ACQUAINTED and not self._open_with(peer):",
        "            if False:",
        (ROLES,),
        "last_word",
    ),
    Mutation(
        "an end is final",
        "srt/disaggregation/handoff/states.py",
        "        **{(end, event): end for end in DESTINATION_ENDS for event in _DE},\n",
        "",
        ("test/srt/disaggregation/handoff",),
    ),
    Mutation(
        "drained is said only when nothing is in flight",
        "srt/disaggregation/handoff/states.py",
        "(_P.SENDING, _PE.CANCEL): _P.CANCELLING",
        "(_P.SENDING, _PE.CANCEL): _P.DRAINED",
        ("test/srt/disaggregation/handoff", MODEL),
    ),
    Mutation(
        "every transfer has a deadline",
        "srt/disaggregation/roles/decode.py",
        "[i for i in self._live.values() if i.deadline <= now]",
        "[i for i in self._live.values() if i.deadline <= now and False]",
        ("test/fault/test_control_fuzz.py",),
        "replayed",
    ),
    Mutation(
        "a prefill engine drops what a lost decode engine asked for",
        "srt/disaggregation/roles/prefill.py",
        "            self._stop(outbound, SourceEvent.PEER_LOST)\n",
        "            pass\n",
        (ROLES,),
        "lost_decode",
    ),
    Mutation(
        "a restart is a new incarnation",
        "srt/disaggregation/handoff/replay.py",
        "if life is None or addressee != own:",
        "if life is None:",
        (MODEL, "test/srt/disaggregation/handoff"),
    ),
    Mutation(
        "a malformed frame never leaves the codec as another error",
        "srt/messages/codec.py",
        "except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:",
        "except ZeroDivisionError as error:",
        ("test/fault/test_control_fuzz.py",),
        "crash_and_leak",
    ),
    Mutation(
        "every number of an ask is checked before it is used",
        "srt/disaggregation/roles/prefill.py",
        "        if problem:\n",
        "        if False:\n",
        (ROLES,),
        "page_that_does_not_exist",
    ),
    Mutation(
        "a frame has a size limit",
        "srt/messages/codec.py",
        "if not frame or len(frame) > self._limit:",
        "if not frame:",
        ("test/srt/messages",),
    ),
    Mutation(
        "asks in the queue are bounded",
        "srt/disaggregation/roles/prefill.py",
        "elif len(self._live) >= self._settings.max_asks:",
        "elif False:",
        (ROLES,),
        "full_queue",
    ),
    Mutation(
        "a layout that differs is refused by its fields",
        "srt/disaggregation/handshake.py",
        "problems = layout.kv.differences(hello.layout.kv)",
        "problems: list[str] = []",
        ("test/srt/disaggregation/test_handshake.py",),
    ),
    Mutation(
        "off loopback the control plane needs keys",
        "srt/config/resolve.py",
        "bool(c.disagg_keys) or c.disagg_insecure or is_loopback(c.disagg_host)",
        "True",
        ("test/srt/config/test_cli.py",),
    ),
    Mutation(
        "a hint to come back costs no try",
        "srt/disaggregation/roles/decode.py",
        "elif not inbound.hinted:",
        "else:",
        (ROLES,),
    ),
    Mutation(
        "a damaged frame is dropped",
        "srt/messages/codec.py",
        'if zlib.crc32(body).to_bytes(4, "little") != check:',
        "if False:",
        ("test/fault/test_control_fuzz.py",),
        "damaged",
    ),
    Mutation(
        "only listed keys get in",
        "srt/ipc/guard.py",
        'known = len(frames) == 7 and frames[5] == b"CURVE" and frames[6] in self._allowed',
        "known = True",
        ("test/fault/test_control_plane.py",),
        "wrong_or_absent",
    ),
)


def run(package: Path, mutation: Mutation) -> subprocess.CompletedProcess[str]:
    """The mutation's tests against a copy of the package."""
    select = ["-k", mutation.select] if mutation.select else []
    quiet = ["-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "--timeout", "60"]
    command = [sys.executable, "-c", RUNNER, str(package), *quiet, *select, *mutation.tests]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.rule)
def test_without_the_rule_its_test_is_red(mutation: Mutation, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "python" / "sglang", tmp_path / "sglang", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "sglang" / mutation.file
    text = path.read_text()
    assert text.count(mutation.old) == 1, f"the rule is not at its place any more: {mutation.old!r}"
    path.write_text(text.replace(mutation.old, mutation.new))
    result = run(tmp_path, mutation)
    assert result.returncode == 1, f"{result.stdout[-2000:]}{result.stderr[-2000:]}"


def test_every_mutation_still_finds_its_line() -> None:
    """Cheap, so that the list cannot rot between the slow runs."""
    for mutation in MUTATIONS:
        text = (ROOT / "python" / "sglang" / mutation.file).read_text()
        assert text.count(mutation.old) == 1, mutation.rule
