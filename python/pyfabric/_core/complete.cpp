#include <algorithm>

#include "clock.hpp"
#include "errors.hpp"
#include "worker.hpp"

namespace pyfabric {
namespace {

constexpr size_t kBatch = 64;
constexpr int kBatchesAPass = 8;

void bump(Tally& tally, uint64_t n) { tally.store(tally.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }

}  // namespace

bool Worker::reap(int64_t now) {
  bool worked = false;
  for (int batch = 0; batch < kBatchesAPass; ++batch) {
    fi_cq_data_entry entries[kBatch];
    uint32_t immediates[kBatch];
    size_t credits = 0;
    const ssize_t got = fi_cq_read(fabric_->cq.get(), entries, kBatch);
    if (got == -FI_EAVAIL) {
      reap_error(now);
      worked = true;
      continue;
    }
    if (got <= 0) break;
    for (ssize_t i = 0; i < got; ++i) {
      // FI_REMOTE_CQ_DATA alone does not tell the sides apart (one provider sets it at the source too).
      if (entries[i].flags & FI_REMOTE_WRITE) immediates[credits++] = uint32_t(entries[i].data);
      else if (entries[i].op_context) complete(*static_cast<Op*>(entries[i].op_context), now, nullptr);
    }
    if (credits) credit(immediates, credits);
    worked = true;
    if (size_t(got) < kBatch) break;
  }
  return worked;
}

void Worker::credit(const uint32_t* immediates, size_t count) {
  bump(tallies.immediates, count);
  const auto complete = slots_->credit(immediates, count);
  for (const uint64_t slot : complete) events_->push(SlotComplete{slot, now_ns()});
}

void Worker::reap_error(int64_t now) {
  fi_cq_err_entry entry{};
  char text[256] = {};
  entry.err_data = nullptr;
  entry.err_data_size = 0;
  if (fi_cq_readerr(fabric_->cq.get(), &entry, 0) <= 0) return;
  bump(tallies.errors, 1);
  if (!entry.op_context || (entry.flags & FI_REMOTE_WRITE)) return;  // the far side of a write of ours reports it there
  std::string error = describe(entry.err);
  if (entry.prov_errno && entry.prov_errno != entry.err) {
    const char* detail = fi_cq_strerror(fabric_->cq.get(), entry.prov_errno, entry.err_data, text, sizeof text);
    if (detail && error != detail) error += std::string(" (") + detail + ")";
  }
  complete(*static_cast<Op*>(entry.op_context), now, &error);
}

void Worker::complete(Op& op, int64_t now, const std::string* error) {
  bump(tallies.completions, 1);
  Program* program = op.program;
  Peer* peer = op.peer;
  const bool warming = op.warming;
  give_op(op);
  if (!peer) return;  // given up earlier, and accounted for then
  --in_flight_;
  tallies.in_flight.fetch_sub(1, std::memory_order_relaxed);
  --peer->in_flight;
  peer->progress_ns = now;
  if (peer->blocked_since) peer->blocked_since = now;
  if (warming && peer->state == PeerState::kOpen) {
    if (error) lose(*peer, "warming write: " + *error, now);
    else events_->push(PeerReady{peer->id});
  }
  if (!program) return;
  --program->in_flight;
  if (error) program->fail(peer->id, *error);
  settle(*program);
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
