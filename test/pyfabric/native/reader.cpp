#include "reader.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "clock.hpp"

namespace fuzz {
namespace {

constexpr int64_t kCountingNs = 20'000'000'000;  // from the writer's "done" to the reader's count, on a loaded machine
constexpr double kRuns = 0.3;

std::string label(int writer) { return std::string(1, char('0' + writer)); }

std::optional<pyfabric::Address> address_of(const Seat& seat) {
  const Endpoint endpoint = seat.endpoint.load();
  return pyfabric::Address::decode(std::string(endpoint.bytes, endpoint.size));
}

}  // namespace

Reader::Reader(Board& board, int self, uint64_t life, const Settings& settings, pyfabric::Engine& engine, Random& random,
               const std::vector<Pool>& sources)
    : board_(board), self_(self), life_(life), tells_revoked_(std::string(settings.provider) != "shm"), engine_(engine), random_(random),
      sources_(sources), pool_(settings.page_bytes),
      region_(engine.register_memory(reinterpret_cast<uint64_t>(pool_.base()), pool_.nbytes(), {pool_.fd(), 0})) {
  for (uint32_t slot = 0; slot < kSlots; ++slot) slots_.push_back(slot);
  for (auto& row : board_.seats[self_].tickets)
    for (Ticket& t : row) t.word.store(Ticket::pack(life_, State::kFree));
}

void Reader::choose_pages(uint32_t count, Ask& ask) {
  const bool run = chance(random_, kRuns);
  int32_t from = int32_t(below(random_, kPages)), to = free_.all()[below(random_, free_.count())];
  for (uint32_t i = 0; i < count; ++i) {
    if (!run || from == kPages) from = int32_t(below(random_, kPages));
    if (!run || to == kPages || !free_.holds(to)) to = free_.all()[below(random_, free_.count())];
    free_.take(to);
    ask.source[i] = from++;
    ask.destination[i] = to++;
  }
}

bool Reader::ask(int writer) {
  const Seat& seat = board_.seats[writer];
  const uint64_t life = seat.life.load();
  if (seat.up.load() != life || slots_.empty()) return false;
  const auto found = std::find_if(flights_[size_t(writer)].begin(), flights_[size_t(writer)].end(), [](const Flight& f) { return !f.open; });
  const uint32_t count = chance(random_, 0.5) ? 1 : uint32_t(2 + below(random_, kMostPages - 1));
  if (found == flights_[size_t(writer)].end() || free_.count() < count) return false;
  const auto address = address_of(seat);
  if (seat.life.load() != life) return false;
  const pyfabric::Grant grant = region_->grant(label(writer), address);
  Ask ask{life, grant.base, grant.nbytes, grant.keys[0], 0, count, {}, {}};
  const size_t pick = below(random_, slots_.size());
  ask.slot = slots_[pick];
  slots_[pick] = slots_.back();
  slots_.pop_back();
  choose_pages(count, ask);
  engine_.expect(ask.slot, uint64_t(count) * kLayers);
  *found = Flight{true, false, ask, 0};
  ++open_;
  Ticket& t = ticket(writer, int(found - flights_[size_t(writer)].begin()));
  t.ask.store(ask);
  t.word.store(Ticket::pack(life_, State::kAsked));
  return true;
}

void Reader::slot_complete(uint64_t slot) {
  if (full_[slot]) fault("slot %lu was complete twice", slot);
  full_[slot] = true;
}

// Ends the flight's use of its slot and pages: whatever lands there from now on is a fault.
void Reader::take_back(Flight& flight, bool exact) {
  const uint64_t weight = engine_.forget(flight.ask.slot), full = uint64_t(flight.ask.count) * kLayers;
  if (weight > full || (exact && weight != full)) fault("slot %u counted %lu of %lu", flight.ask.slot, weight, full);
  full_[flight.ask.slot] = false;
  slots_.push_back(flight.ask.slot);
  for (uint32_t i = 0; i < flight.ask.count; ++i) {
    pool_.poison(flight.ask.destination[i]);
    free_.give(flight.ask.destination[i]);
  }
}

void Reader::revoke(int writer) {
  engine_.revoke(*region_, label(writer));
  for (Flight& f : flights_[size_t(writer)]) {
    if (!f.open || f.fenced) continue;
    f.fenced = true;
    take_back(f, false);
    board_.note(Fact::kFenced);
  }
}

void Reader::close(int writer, int i) {
  flight(writer, i).open = false;
  --open_;
  ticket(writer, i).word.store(Ticket::pack(life_, State::kFree));
}

void Reader::delivered(int writer, Flight& f) {
  for (uint32_t i = 0; i < f.ask.count; ++i)
    if (!pool_.is_copy(f.ask.destination[i], sources_[size_t(writer)], f.ask.source[i]))
      fault("node %d: page %d differs from page %d of node %d, slot %u", self_, f.ask.destination[i], f.ask.source[i], writer, f.ask.slot);
  take_back(f, true);
}

void Reader::settle(int writer, int i, bool& ended) {
  Flight& f = flight(writer, i);
  if (!f.open) return;
  const State state = Ticket::state(ticket(writer, i).word.load());
  const bool over = state == State::kDone || state == State::kDrained || state == State::kFailed;
  if (!over) {
    if (board_.seats[writer].life.load() == f.ask.writer_life) return;
    revoke(writer);  // its process was killed, or its engine replaced: nobody will end this ticket
    if (!f.fenced) fault("a revoke left a flight open");
  } else if (!f.fenced && state == State::kDone) {
    const int64_t now = pyfabric::now_ns();
    if (!f.delivered_ns) f.delivered_ns = now;
    // Delivered, though our loop may have yet to read the immediates.
    if (!full_[f.ask.slot]) {
      if (now - f.delivered_ns > kCountingNs)
        fault("node %d: slot %u of node %d: a delivered write was not counted", self_, f.ask.slot, writer);
      return;
    }
    delivered(writer, f);
  } else if (!f.fenced && state == State::kDrained) {
    take_back(f, false);
  } else if (!f.fenced) {
    revoke(writer);  // nothing is in flight there, but a cut connection may have left bytes here
  }
  close(writer, i);
  ended = true;
}

bool Reader::settle() {
  bool ended = false;
  for (int writer = 0; writer < kNodes; ++writer)
    for (int i = 0; i < kTickets; ++i) settle(writer, i, ended);
  return ended;
}

void Reader::verify() {
  for (int i = 0; i < 4 && free_.count(); ++i) {
    const int32_t page = free_.all()[below(random_, free_.count())];
    if (!pool_.is_poison(page)) fault("node %d: bytes landed in page %d, which is free", self_, page);
    board_.note(Fact::kVerified);
  }
}

void Reader::verify_all_free() {
  if (free_.count() != kPages || slots_.size() != kSlots) fault("node %d: %zu pages and %zu slots came back", self_, free_.count(), slots_.size());
  for (const int32_t page : free_.all())
    if (!pool_.is_poison(page)) fault("node %d: bytes landed in page %d after the end", self_, page);
}

}  // namespace fuzz
