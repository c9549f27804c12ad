#include <algorithm>
#include <utility>

#include "clock.hpp"
#include "errors.hpp"
#include "worker.hpp"

namespace pyfabric {
namespace {

constexpr int kBatchesAPass = 8;

}  // namespace

bool Worker::reap(int64_t now) {
  bool worked = false, dry = true;
  for (const auto& rail : rails_) {
    size_t got = kPollBatch;  // a batch that is not full was the last: one look less at a queue that is empty
    for (int batch = 0; batch < kBatchesAPass && got == kPollBatch; ++batch) {
      got = reap(*rail, now);
      worked |= got > 0;
    }
    dry = dry && got == 0;
  }
  if (dry) dry_.fetch_add(1, std::memory_order_release);
  return worked;
}

// Takes one batch and says how many it held.
size_t Worker::reap(Rail& rail, int64_t now) {
  Completion batch[kPollBatch];
  uint32_t immediates[kPollBatch];
  size_t credits = 0;
  const size_t got = rail.poll(batch, kPollBatch);
  for (size_t i = 0; i < got; ++i) {
    const Completion& c = batch[i];
    switch (c.kind) {
      case Completion::Kind::kImmediate: immediates[credits++] = c.immediate; break;
      case Completion::Kind::kDelivered: complete(*static_cast<Op*>(c.context), now, nullptr); break;
      case Completion::Kind::kFailed: take_failure(rail, c, now); break;
      case Completion::Kind::kPeerGone: lose_gone(rail, c.peer, now); break;
    }
  }
  if (credits) credit(immediates, credits);
  if (got) taken_.fetch_add(got, std::memory_order_release);
  return got;
}

void Worker::credit(const uint32_t* immediates, size_t count) {
  slots_->credit(immediates, count, [this](uint64_t slot) { events_->push(SlotComplete{slot, now_ns()}); });
}

void Worker::take_failure(Rail& rail, const Completion& failed, int64_t now) {
  bump(tallies.errors, 1);
  if (!failed.context) return;  // of a peer's write to us: it hears of that itself
  const std::string error = rail.explain(failed);
  complete(*static_cast<Op*>(failed.context), now, &error);
}

void Worker::complete(Op& op, int64_t now, const std::string* error) {
  bump(tallies.completions, 1);
  Program* program = op.program;
  Link* link = op.link;
  const bool warming = op.warming;
  give_op(op);
  if (!link) return;  // given up earlier, and accounted for then
  Peer& peer = *link->peer;
  if (link->gate) link->gate->done();
  --in_flight_;
  bump(tallies.in_flight, uint64_t(-1));
  bump(peer.tallies->in_flight, uint64_t(-1));
  --peer.in_flight;
  --link->in_flight;
  peer.progress_ns = now;
  if (link->blocked_since) link->blocked_since = now;
  if (error) bump(peer.tallies->errors, 1);
  if (warming) complete_warming(*link, now, error);
  else if (error) suspect(peer, now);
  if (!program) return;
  --program->in_flight;
  if (error) program->fail(peer.id, *error);
  settle(*program);
}

void Worker::complete_warming(Link& link, int64_t now, const std::string* error) {
  Peer& peer = *link.peer;
  link.warmth = Link::Warmth::kIdle;
  if (peer.state != PeerState::kOpen) return;
  if (error && peer.suspected_ns) {
    link.warmth = Link::Warmth::kWanted;  // the probe goes on until its time is up
    return;
  }
  if (error) return lose(peer, "warming write: " + *error, now);
  if (peer.warming()) return;
  peer.suspected_ns = 0;
  if (std::exchange(peer.announce, false)) events_->push(PeerReady{peer.id});
}

// Emits the one terminal event once nothing of the program is in flight.
void Worker::settle(Program& program) {
  if (program.in_flight > 0 || program.finished) return;
  if (program.ending == Ending::kNone && !program.all_posted()) return;
  program.finished = true;
  ++finished_;
  program.lanes.clear();  // before the event: its reader may close the source region at once
  tallies.armed.fetch_sub(1, std::memory_order_relaxed);
  switch (program.ending) {
    case Ending::kNone:
      events_->push(ProgramDone{program.handle, std::move(program.seen_ns), std::move(program.posted_ns), std::move(program.layer_bytes)});
      return;
    case Ending::kCancelled: events_->push(ProgramDrained{program.handle}); return;
    case Ending::kFailed: events_->push(ProgramFailed{program.handle, program.failed_peer, program.reason}); return;
  }
}

void Worker::sweep() {
  std::erase_if(programs_, [](const auto& program) { return program->finished; });
  finished_ = 0;
}

}  // namespace pyfabric
