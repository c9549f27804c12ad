#include "node.hpp"

#include <malloc.h>
#include <poll.h>

#include <chrono>
#include <filesystem>
#include <thread>
#include <variant>

#include "clock.hpp"

namespace fuzz {
namespace {

constexpr uint32_t kWeightBits = 16;
constexpr uint64_t kPollEvery = 8;
constexpr int kRestUs = 200;
constexpr int64_t kLingerNs = 10'000'000'000;
constexpr size_t kHeapSlack = 4 << 20;  // a leak of one byte in three operations of the long run would exceed it

// Of 10,000 tries; a try that finds nothing to do (no ticket, no program) is not counted as an operation.
struct Share {
  Kind kind;
  uint64_t weight;
};
constexpr Share kShares[] = {{Kind::kWrite, 8700}, {Kind::kCancel, 900}, {Kind::kRegister, 350}, {Kind::kRevoke, 30}, {Kind::kReconnect, 19}, {Kind::kClose, 1}};
// A revoke or a reconnect ends a connection, and the next takes 8-80 ms on sockets, while everything else waits.
constexpr Share kSocketShares[] = {{Kind::kWrite, 8760}, {Kind::kCancel, 900}, {Kind::kRegister, 329}, {Kind::kRevoke, 5}, {Kind::kReconnect, 5}, {Kind::kClose, 1}};

size_t entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

Node::Node(Board& board, int self, const Settings& settings)
    : board_(board), self_(self), settings_(settings), random_(settings.seed * 1000 + uint64_t(self) + (board.seats[self].life.load() << 32)),
      sources_(make_sources(settings.page_bytes)) {
  pyfabric::Engine(options()).start({});  // what the library sets up once a process is no leak
  first_ = measure();
  open();
}

pyfabric::EngineOptions Node::options() const {
  return {settings_.provider, "127.0.0.1", kWeightBits, kSlots, settings_.deadline_s, false, {}};
}

Node::Footprint Node::measure() { return {entries("/proc/self/fd"), entries("/proc/self/task"), mallinfo2().uordblks}; }

void Node::open() {
  Seat& seat = board_.seats[self_];
  life_ = seat.life.load();
  engine_ = std::make_unique<pyfabric::Engine>(options());
  closed_ = false;
  reader_ = std::make_unique<Reader>(board_, self_, life_, settings_, *engine_, random_, sources_);
  writer_ = std::make_unique<Writer>(board_, self_, life_, settings_, *engine_, random_);
  engine_->start({});
  Endpoint endpoint{uint32_t(engine_->address().size()), {}};
  if (endpoint.size > sizeof endpoint.bytes) fault("an address of %u bytes", endpoint.size);
  memcpy(endpoint.bytes, engine_->address().data(), endpoint.size);
  seat.endpoint.store(endpoint);
  seat.up.store(life_);
}

// Under everyone's feet: their programs towards us fail, ours end as failed, once each.
void Node::close() {
  engine_->close();
  closed_ = true;
  for (int i = 0; i < 2; ++i) poll();
  writer_->abandon_tickets();
  board_.note(Fact::kStrays, engine_->stats().at("strays"));
  if (engine_->stats().at("in_flight")) fault("node %d: a closed engine has writes in flight", self_);
  writer_.reset();
  reader_.reset();
  engine_.reset();
  check_footprint();
}

// Only a node that is a process can tell what is its own.
void Node::check_footprint() {
  if (!settings_.processes) return;
  const auto grown = [this](const Footprint& now) { return now.descriptors > first_.descriptors || now.threads > first_.threads; };
  Footprint now = measure();
  // A thread that was joined is in /proc until its last few steps are done.
  for (pyfabric::Patience patience(kLingerNs); grown(now) && !patience.over(); now = measure())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (grown(now)) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      fprintf(stderr, "%s -> %s\n", entry.path().c_str(), std::filesystem::read_symlink(entry, gone).c_str());
    }
    fault("node %d: %zu descriptors and %zu threads are left, once %zu and %zu", self_, now.descriptors, now.threads, first_.descriptors, first_.threads);
  }
  if (now.heap_bytes > first_.heap_bytes + kHeapSlack) fault("node %d: the heap grew from %zu to %zu bytes", self_, first_.heap_bytes, now.heap_bytes);
}

int Node::other() { return int((uint64_t(self_) + 1 + below(random_, kNodes - 1)) % kNodes); }

bool Node::poll() {
  bool any = false;
  for (const pyfabric::Event& event : engine_->poll()) {
    any = true;
    if (const auto* done = std::get_if<pyfabric::ProgramDone>(&event)) writer_->ended(done->handle, State::kDone), board_.note(Fact::kDone);
    else if (const auto* drained = std::get_if<pyfabric::ProgramDrained>(&event)) writer_->ended(drained->handle, State::kDrained), board_.note(Fact::kDrained);
    else if (const auto* failed = std::get_if<pyfabric::ProgramFailed>(&event)) writer_->ended(failed->handle, State::kFailed), board_.note(Fact::kFailed);
    else if (const auto* slot = std::get_if<pyfabric::SlotComplete>(&event)) reader_->slot_complete(slot->slot);
    else if (const auto* lost = std::get_if<pyfabric::PeerLost>(&event)) writer_->lost(lost->peer, closed_), board_.note(Fact::kPeerLost);
  }
  return any;
}

// A region that comes and goes, with a grant.
void Node::churn() {
  alignas(64) static char bytes[4096];
  const auto region = engine_->register_memory(reinterpret_cast<uint64_t>(bytes), sizeof bytes, {});
  region->grant("someone", std::nullopt);
  region->close();
}

bool Node::act() {
  uint64_t draw = below(random_, 10000);
  const Share* share = std::string(settings_.provider) == "tcp" ? kSocketShares : kShares;
  for (; draw >= share->weight; ++share) draw -= share->weight;
  switch (share->kind) {
    case Kind::kWrite: return writer_->write(other());  // counts itself: one page is a write, more are write_pages
    case Kind::kCancel:
      if (!writer_->cancel()) return false;
      break;
    case Kind::kRegister:
      if (chance(random_, 0.5)) churn();
      else writer_->reregister();
      break;
    case Kind::kRevoke: reader_->revoke(other()); break;
    case Kind::kReconnect:
      if (!writer_->reconnect(other())) return false;
      break;
    default:
      close();
      board_.seats[self_].life.fetch_add(1);
      open();
  }
  board_.count(share->kind);
  return true;
}

bool Node::step() {
  const bool acted = !stopping_ && act();
  const bool asked = !stopping_ && reader_->ask(other());
  bool worked = acted || asked;
  if (stopping_ || !worked || steps_++ % kPollEvery == 0) {
    worked |= poll();
    worked |= reader_->settle();
    if (chance(random_, 0.3)) writer_->release_layers();
    reader_->verify();
  }
  return worked;
}

void Node::rest() {
  pollfd fd{engine_->fileno(), POLLIN, 0};
  const timespec limit{0, kRestUs * 1000};
  ppoll(&fd, 1, &limit, nullptr);
  writer_->release_layers();
}

void Node::run() {
  Seat& seat = board_.seats[self_];
  int missed = 0;
  for (bool all_quiet = false; !all_quiet;) {
    seat.heartbeat.fetch_add(1, std::memory_order_relaxed);
    stopping_ = board_.stop.load(std::memory_order_relaxed);
    if (stopping_ && writer_->write(other())) continue;  // what was asked before the end is still done
    missed = step() ? 0 : missed + 1;
    if (missed > 2) rest();
    seat.quiet.store(stopping_ && missed > 2 && writer_->idle() && reader_->idle());
    all_quiet = stopping_;
    for (const Seat& each : board_.seats) all_quiet = all_quiet && each.quiet.load();
  }
  reader_->verify_all_free();
  close();
}

}  // namespace fuzz
