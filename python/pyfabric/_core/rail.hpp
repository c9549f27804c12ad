#pragma once
#include <rdma/fi_rma.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "address.hpp"
#include "sockets.hpp"

namespace pyfabric {

// The memfd behind some memory of the caller, and where in the file that memory starts. fd -1: private memory.
struct Backing {
  int fd = -1;
  uint64_t offset = 0;
};

// Memory as one rail knows it; ends when it is destroyed.
class Registration {
 public:
  virtual ~Registration() = default;
  void* descriptor = nullptr;  // for writes that read from it
  uint64_t key = 0;            // for peers that write to it
};

struct Write {
  const iovec* local;
  void** descriptors;
  const fi_rma_iov* remote;
  size_t extents;
  uint64_t peer;  // what add_peer() answered
  void* context;
  uint32_t immediate;
  bool counted;  // false: no immediate
};

struct Completion {
  enum class Kind : uint8_t { kDelivered, kFailed, kImmediate, kPeerGone };
  Kind kind;
  uint32_t immediate = 0;
  void* context = nullptr;
  uint64_t peer = 0;  // kPeerGone
  int error = 0, detail = 0;
};

constexpr size_t kPollBatch = 64;  // completions that one poll() is asked for: fewer say that there are no more

// What a rail can do, asked once and never assumed.
struct RailLimits {
  uint64_t extents;  // local and remote extents of one write
  uint64_t max_write_bytes, inject_bytes, window;
};

// One way out of this machine (a libfabric domain) or to a neighbour on it (mapped memory). post(), poll() and what
// follows belong to the worker's thread; registrations may come and go on any thread.
class Rail {
 public:
  virtual ~Rail() = default;
  virtual std::string provider() const = 0;
  virtual std::string domain() const = 0;
  virtual std::string endpoint() const = 0;  // what a peer needs to find us
  virtual bool virtual_addresses() const = 0;
  virtual RailLimits limits() const = 0;
  // `why` names the call for error messages. Throws FabricFailure, or std::invalid_argument for a bad backing.
  virtual std::unique_ptr<Registration> register_local(uint64_t address, uint64_t nbytes, const Backing& backing) = 0;
  virtual std::unique_ptr<Registration> register_target(uint64_t address, uint64_t nbytes) = 0;

  // 0, or a negative fi_errno; `peer` receives the handle for post().
  virtual long add_peer(const std::string& endpoint, uint64_t& peer) = 0;
  virtual void remove_peer(uint64_t peer) = 0;
  virtual long post(const Write& write) = 0;  // 0, -FI_EAGAIN, or another negative fi_errno
  virtual size_t poll(Completion* out, size_t most) = 0;
  virtual std::string explain(const Completion& failed) const = 0;
  virtual bool may_sleep() = 0;        // called last before a sleep: false when there is work already
  virtual int wait_fd() const = 0;     // readable when poll() has something; -1 where there is none that works
  // Ends the connection to a lost peer, so that its writes come back.
  virtual void sever(uint64_t peer, const std::string& endpoint, const Address& target) = 0;
  // For a revoke: ends what a writer may have half sent. The rail's own loop must come around afterwards.
  virtual std::vector<CutSocket> cut_incoming(const Address* writer) = 0;
  virtual void close_endpoint() = 0;  // from then on nothing moves
};

using Rails = std::vector<std::shared_ptr<Rail>>;

}  // namespace pyfabric
