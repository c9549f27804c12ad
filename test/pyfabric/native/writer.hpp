#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "board.hpp"
#include "engine.hpp"
#include "pool.hpp"
#include "reader.hpp"

namespace fuzz {

// The sending half of a node: takes tickets, arms a program for each, says how it ended.
class Writer {
 public:
  Writer(Board& board, int self, uint64_t life, const Settings& settings, pyfabric::Engine& engine, Random& random);
  ~Writer();

  bool write(int reader);
  bool cancel();
  bool reconnect(int reader);
  void reregister();  // a new region over the source; the old one closes as soon as nothing reads from it
  void release_layers() { counter_->add(1); }
  void ended(uint64_t handle, State how);
  void lost(int64_t peer, bool engine_closed);
  bool idle() const { return programs_.empty(); }
  void abandon_tickets();  // before an engine of this process is replaced

 private:
  struct Armed {
    int reader, ticket;
    uint64_t reader_life;
  };
  struct Peer {
    uint64_t life = 0;
    int64_t id = -1;
  };
  bool meet(int reader, uint64_t life);
  void arm(const Ask& ask, const Armed& armed);
  void say(const Armed& armed, State how);

  Board& board_;
  const int self_;
  const uint64_t life_;
  pyfabric::Engine& engine_;
  Random& random_;
  Pool source_;
  std::vector<std::shared_ptr<pyfabric::Region>> regions_;  // the last is the present one
  std::shared_ptr<pyfabric::Counter> counter_;
  std::array<Peer, kNodes> peers_;
  std::map<uint64_t, Armed> programs_;
  uint64_t page_bytes_;
};

}  // namespace fuzz
