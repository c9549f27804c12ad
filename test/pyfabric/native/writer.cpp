#include "writer.hpp"

#include "errors.hpp"

namespace fuzz {
namespace {

constexpr double kLater = 0.15;  // layers that wait for the counter

}  // namespace

Writer::Writer(Board& board, int self, uint64_t life, const Settings& settings, pyfabric::Engine& engine, Random& random)
    : board_(board), self_(self), life_(life), engine_(engine), random_(random), source_(settings.page_bytes),
      counter_(engine.counter()), page_bytes_(settings.page_bytes) {
  source_.fill_as_source_of(self);
  reregister();
}

Writer::~Writer() = default;

void Writer::reregister() {
  regions_.push_back(engine_.register_memory(reinterpret_cast<uint64_t>(source_.base()), source_.nbytes(), {source_.fd(), 0}));
  std::erase_if(regions_, [this](const auto& region) {
    if (region == regions_.back()) return false;
    try {
      region->close();
      return true;
    } catch (const pyfabric::FabricFailure&) {
      return false;  // programs still read from it
    }
  });
}

// Connects to the reader's present life, once.
bool Writer::meet(int reader, uint64_t life) {
  Peer& peer = peers_[size_t(reader)];
  if (peer.id >= 0 && peer.life == life) return true;
  if (peer.id >= 0) engine_.disconnect(peer.id);
  peer = {};
  const Seat& seat = board_.seats[reader];
  const Endpoint endpoint = seat.endpoint.load();
  if (seat.up.load() != life || seat.life.load() != life) return false;
  peer = {life, engine_.connect(std::string(endpoint.bytes, endpoint.size))};
  return true;
}

bool Writer::write(int reader) {
  Seat& seat = board_.seats[reader];
  const int first = int(below(random_, kTickets));
  for (int i = 0; i < kTickets; ++i) {
    const int index = (first + i) % kTickets;
    Ticket& ticket = seat.tickets[self_][index];
    uint64_t word = ticket.word.load();
    if (Ticket::state(word) != State::kAsked) continue;
    const Ask ask = ticket.ask.load();
    const uint64_t life = word >> 8;
    if (ask.writer_life != life_ || !meet(reader, life)) continue;
    if (!ticket.word.compare_exchange_strong(word, Ticket::pack(life, State::kTaken))) continue;
    arm(ask, {reader, index, life});
    return true;
  }
  return false;
}

void Writer::arm(const Ask& ask, const Armed& armed) {
  auto program = std::make_unique<pyfabric::Program>();
  program->counter = counter_;
  uint64_t threshold = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    if (chance(random_, kLater)) threshold = counter_->value() + 1;
    program->thresholds.push_back(threshold);
  }
  program->slot = ask.slot;
  const std::vector<uint64_t> layers{0, source_.layer_bytes()};
  program->lanes.push_back(pyfabric::Lane{pyfabric::LaneSpec{
      pyfabric::ReadLease(regions_.back()), peers_[size_t(armed.reader)].id, pyfabric::Grant{ask.base, ask.nbytes, {ask.key}}, layers, layers,
      page_bytes_, page_bytes_, 0, 0, page_bytes_, std::vector<int32_t>(ask.source.begin(), ask.source.begin() + ask.count),
      std::vector<int32_t>(ask.destination.begin(), ask.destination.begin() + ask.count)}});
  programs_.emplace(engine_.arm(std::move(program)), armed);
  board_.count(ask.count == 1 ? Kind::kWrite : Kind::kWritePages);
  board_.note(Fact::kExtents, uint64_t(ask.count) * kLayers);
}

bool Writer::cancel() {
  if (programs_.empty()) return false;
  const uint64_t low = programs_.begin()->first, high = programs_.rbegin()->first;
  engine_.cancel(programs_.lower_bound(low + below(random_, high - low + 1))->first);
  return true;
}

bool Writer::reconnect(int reader) {
  Peer& peer = peers_[size_t(reader)];
  if (peer.id < 0) return false;
  engine_.disconnect(peer.id);
  peer = {};
  return true;
}

void Writer::say(const Armed& armed, State how) {
  uint64_t taken = Ticket::pack(armed.reader_life, State::kTaken);
  // A reader that has begun a new life asks no more about the old one's tickets.
  board_.seats[armed.reader].tickets[self_][armed.ticket].word.compare_exchange_strong(taken, Ticket::pack(armed.reader_life, how));
}

void Writer::ended(uint64_t handle, State how) {
  const auto found = programs_.find(handle);
  if (found == programs_.end()) fault("node %d: program %lu ended twice, or was never armed", self_, handle);
  say(found->second, how);
  programs_.erase(found);
}

void Writer::lost(int64_t id, bool engine_closed) {
  if (engine_closed) return;
  for (int reader = 0; reader < kNodes; ++reader)
    if (peers_[size_t(reader)].id == id) reconnect(reader);
}

void Writer::abandon_tickets() {
  if (!programs_.empty()) fault("node %d: a closed engine owes the ends of %zu programs", self_, programs_.size());
}

}  // namespace fuzz
