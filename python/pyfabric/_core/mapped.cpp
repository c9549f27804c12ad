#include "mapped.hpp"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <stdexcept>

#include "errors.hpp"
#include "shared_memory.hpp"

namespace pyfabric {
namespace {

constexpr uint64_t kMostWriteBytes = 16 << 20;  // what the receiver's loop may be held up by one entry: ~3 ms
constexpr uint32_t kPumpTurns = 64;
constexpr int kEvents = 32;

}  // namespace

MappedRail::MappedRail() : name_(shared_memory_name()), listener_(listen_at(name_)), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw FabricFailure(errno, "epoll_create1");
  watch(listener_.fd(), kListener);
}

MappedRail::~MappedRail() = default;

RailLimits MappedRail::limits() const { return {kRingExtents, kMostWriteBytes, 0, kRingEntries}; }

std::unique_ptr<Registration> MappedRail::register_local(uint64_t address, uint64_t nbytes, const Backing& backing) {
  if (backing.fd < 0) return nullptr;  // good as a destination
  if (!cannot_shrink(backing.fd)) throw std::invalid_argument("register: fd must be a memfd sealed with F_SEAL_SHRINK");
  if (!backs(backing.fd, backing.offset, address, nbytes))
    throw std::invalid_argument("register: the memory is not a shared mapping of fd at fd_offset");
  return std::make_unique<MappedSource>(table_, address, backing);
}

std::unique_ptr<Registration> MappedRail::register_target(uint64_t address, uint64_t nbytes) {
  return std::make_unique<MappedTarget>(table_, MappedTable::Area{address, nbytes});
}

void MappedRail::watch(int fd, uint64_t tag) {
  epoll_event event{EPOLLIN, {.u64 = tag}};
  if (epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event)) throw FabricFailure(errno, "epoll_ctl");
}

size_t MappedRail::poll(Completion* out, size_t most) {
  size_t count = 0;
  if (flagged_) {
    flagged_ = false;
    for (auto& [id, peer] : outs_)
      if (peer->ring) peer->ring->wake_sender_at.store(0, std::memory_order_relaxed);
    for (auto& [id, peer] : ins_)
      if (peer->ring) peer->ring->receiver_asleep.store(0, std::memory_order_relaxed);
    turns_ = 0;
  }
  if (turns_++ % kPumpTurns == 0) pump();
  for (; !pending_.empty() && count < most; pending_.pop_front()) out[count++] = pending_.front();
  for (auto& [id, peer] : outs_) reap(*peer, out, count, most);
  for (auto& [id, peer] : ins_) work(*peer, out, count, most);
  std::erase_if(ins_, [](const auto& item) { return item.second->broken; });
  return count;
}

// Says to every peer that we sleep, then looks once more: whoever brings work after that look rings the bell.
bool MappedRail::may_sleep() {
  flagged_ = true;
  for (auto& [id, peer] : outs_)
    if (peer->ring) peer->ring->wake_sender_at.store(peer->worth_waking(), std::memory_order_seq_cst);
  for (auto& [id, peer] : ins_)
    if (peer->ring) peer->ring->receiver_asleep.store(1, std::memory_order_seq_cst);
  if (!pending_.empty()) return false;
  for (auto& [id, peer] : outs_)
    if (peer->ring && peer->waiting() && peer->ring->completed.load(std::memory_order_seq_cst) >= peer->worth_waking()) return false;
  for (auto& [id, peer] : ins_)
    if (peer->ring && peer->ring->submitted.load(std::memory_order_seq_cst) != peer->done) return false;
  return true;
}

void MappedRail::pump() {
  forget_sources();
  epoll_event events[kEvents];
  const int got = epoll_wait(epoll_.fd(), events, kEvents, 0);
  for (int i = 0; i < got; ++i) {
    const uint64_t tag = events[i].data.u64;
    if (tag == kListener) {
      accept_peers();
    } else if (tag & kInTag) {
      if (const auto found = ins_.find(tag & ~kInTag); found != ins_.end()) listen_to(*found->second);
    } else if (const auto found = outs_.find(tag & ~kOutTag); found != outs_.end()) {
      listen_to(*found->second);
    }
  }
}

void MappedRail::accept_peers() {
  for (;;) {
    File socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    if (!same_user(socket.fd())) continue;
    auto in = std::make_unique<In>();
    const uint64_t id = next_id_++;
    watch(socket.fd(), kInTag | id);
    in->socket = std::move(socket);
    ins_[id] = std::move(in);
  }
}

std::string MappedRail::explain(const Completion& failed) const {
  switch (failed.error) {
    case EACCES: return "the peer has no such memory key (revoked?)";
    case ERANGE: return "outside the peer's region";
    case ECONNRESET: return "the peer's process is gone";
    default: return describe(failed.error);
  }
}

void MappedRail::close_endpoint() {
  for (auto& [id, out] : outs_) bury(*out, ECANCELED);
  outs_.clear();
  ins_.clear();
  listener_ = File();
  epoll_ = File();
}

}  // namespace pyfabric
