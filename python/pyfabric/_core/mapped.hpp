#pragma once
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "mapped_memory.hpp"
#include "mapped_ring.hpp"
#include "rail.hpp"
#include "shared_file.hpp"
#include "unix_channel.hpp"

namespace pyfabric {

// Writes between processes of one machine and user through mapped memory. The RECEIVER copies: it maps the sender's memfd
// read-only and works off a ring that the sender fills. So a stopped or dead sender can write nothing, ever, and a revoked
// key is gone once the receiver's own loop has come around.
class MappedRail final : public Rail {
 public:
  MappedRail();
  ~MappedRail() override;

  std::string provider() const override { return "mapped"; }
  std::string domain() const override { return "memory"; }
  std::string endpoint() const override { return name_; }
  bool virtual_addresses() const override { return false; }
  RailLimits limits() const override;
  std::unique_ptr<Registration> register_local(uint64_t address, uint64_t nbytes, const Backing& backing) override;
  std::unique_ptr<Registration> register_target(uint64_t address, uint64_t nbytes) override;

  long add_peer(const std::string& endpoint, uint64_t& peer) override;
  void remove_peer(uint64_t peer) override;
  long post(const Write& write) override;
  size_t poll(Completion* out, size_t most) override;
  std::string explain(const Completion& failed) const override;
  bool may_sleep() override;
  int wait_fd() const override { return epoll_.fd(); }
  void sever(uint64_t peer, const std::string& endpoint, const Address& target) override;
  std::vector<CutSocket> cut_incoming(const Address*) override { return {}; }
  void close_endpoint() override;

 private:
  // A peer that we write to.
  struct Out {
    uint64_t id = 0;
    std::string name;
    File socket;
    SharedMapping mapping;
    Ring* ring = nullptr;
    uint64_t submitted = 0, reaped = 0;
    std::array<void*, kRingEntries> contexts{};
    std::set<uint64_t> known;  // sources that the peer has mapped
    uint64_t waiting() const { return submitted - reaped; }
    // What it sleeps until: half of what is outstanding. A bell is a system call and an interrupt of the other core, so the
    // last 64 entries of a job ring seven times and not sixty-four. Its own count the receiver has at once in any case.
    uint64_t worth_waking() const { return waiting() ? reaped + (waiting() + 1) / 2 : 0; }
  };
  // A peer that writes to us.
  struct In {
    File socket;
    SharedMapping mapping;
    Ring* ring = nullptr;
    uint64_t done = 0;
    struct Mapped {
      SharedMapping file;
      uint64_t offset;
    };
    std::map<uint64_t, Mapped> sources;
    bool broken = false;
  };

  long connect(Out& out);
  long introduce(Out& out, const MappedSource& source);
  void reap(Out& out, Completion* to, size_t& count, size_t most);
  void bury(Out& out, int error);

  void watch(int fd, uint64_t tag);
  void pump();
  void accept_peers();
  void listen_to(Out& out);
  void listen_to(In& in);
  bool take(In& in, const Note& note, File file);
  void forget_sources();
  void work(In& in, Completion* to, size_t& count, size_t most);
  uint64_t carry_some(In& in, uint64_t submitted, Completion* to, size_t& count, size_t most);
  int carry(In& in, const RingEntry& entry);

  std::shared_ptr<MappedTable> table_ = std::make_shared<MappedTable>();
  std::string name_;
  File listener_, epoll_;
  std::map<uint64_t, std::unique_ptr<Out>> outs_;
  std::map<uint64_t, std::unique_ptr<In>> ins_;
  uint64_t next_id_ = 1;
  std::deque<Completion> pending_;  // from links that ended
  static constexpr uint64_t kListener = 0, kOutTag = uint64_t(1) << 62, kInTag = uint64_t(1) << 63;  // of the epoll set
  bool flagged_ = false;            // the rings say that we sleep
  uint32_t turns_ = 0;
};

}  // namespace pyfabric
