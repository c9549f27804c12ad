#pragma once
#include <atomic>
#include <array>
#include <cstdint>
#include <cstring>

// What the nodes of a fuzz run share: anonymous shared memory, so that a node may be a process (and be killed) or a thread.
namespace fuzz {

constexpr int kNodes = 3, kLayers = 2, kTickets = 24, kMostPages = 8;
constexpr int kPages = 192;  // of a pool; each is an extent of either layer
constexpr int kSlots = 256;

enum class Kind { kRegister, kWrite, kWritePages, kCancel, kRevoke, kReconnect, kClose, kKill, kCount };
constexpr const char* kKindNames[] = {"register", "write", "write_pages", "cancel", "revoke", "reconnect", "close", "kill"};
// What became of programs, and what else is worth knowing; none of it counts as an operation.
enum class Fact { kDone, kDrained, kFailed, kPeerLost, kFenced, kVerified, kExtents, kStrays, kCount };
constexpr const char* kFactNames[] = {"done", "drained", "failed", "peer_lost", "fenced", "pages_verified", "extents", "strays"};

// A value that another node may be reading while it is replaced: torn reads are told by the word beside it.
template <class T>
class Shared {
 public:
  void store(const T& value) {
    std::array<uint64_t, kWords> words{};
    memcpy(words.data(), &value, sizeof value);
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
  }
  T load() const {
    std::array<uint64_t, kWords> words;
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    T value;
    memcpy(&value, words.data(), sizeof value);
    return value;
  }

 private:
  static constexpr size_t kWords = (sizeof(T) + 7) / 8;
  std::array<std::atomic<uint64_t>, kWords> words_{};
};

// What a reader asks of a writer, as a decoder asks a prefiller: copy these pages there and count them in that slot.
struct Ask {
  uint64_t writer_life, base, nbytes, key;
  uint32_t slot, count;
  std::array<int32_t, kMostPages> source, destination;
};

enum class State : uint64_t { kFree, kAsked, kTaken, kDone, kDrained, kFailed };

// `word` carries the reader's life beside the state, so that nobody speaks for an earlier life.
struct Ticket {
  std::atomic<uint64_t> word{0};
  Shared<Ask> ask;
  static uint64_t pack(uint64_t life, State state) { return life << 8 | uint64_t(state); }
  static State state(uint64_t word) { return State(word & 255); }
};

struct Endpoint {
  uint32_t size;
  char bytes[508];
};

struct Seat {
  std::atomic<uint64_t> life{0};  // which incarnation of this node is the present one
  std::atomic<uint64_t> up{0};    // the life whose endpoint stands below
  std::atomic<bool> quiet{false};
  std::atomic<uint64_t> heartbeat{0};
  Shared<Endpoint> endpoint;
  Ticket tickets[kNodes][kTickets];  // by writer: what this node asks of it
};

struct Board {
  Seat seats[kNodes];
  std::atomic<uint64_t> done[int(Kind::kCount)]{};
  std::atomic<uint64_t> facts[int(Fact::kCount)]{};
  std::atomic<uint64_t> operations{0};
  std::atomic<bool> stop{false};
  void count(Kind kind) {
    done[int(kind)].fetch_add(1, std::memory_order_relaxed);
    operations.fetch_add(1, std::memory_order_relaxed);
  }
  void note(Fact fact, uint64_t n = 1) { facts[int(fact)].fetch_add(n, std::memory_order_relaxed); }
};

struct Settings {
  const char* provider = "mapped";
  uint64_t operations = 100000, seed = 1, page_bytes = 512;
  double deadline_s = 2.0;
  bool processes = true;
  double kills_a_second = 0.3;
};

}  // namespace fuzz
