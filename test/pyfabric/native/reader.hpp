#pragma once
#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "board.hpp"
#include "engine.hpp"
#include "pool.hpp"

namespace fuzz {

using Random = std::mt19937_64;
inline uint64_t below(Random& random, uint64_t n) { return random() % n; }
inline bool chance(Random& random, double share) { return double(random() >> 11) * 0x1p-53 < share; }

// The receiving half of a node: gives out pages and slots, and holds whoever writes there to what was asked.
class Reader {
 public:
  Reader(Board& board, int self, uint64_t life, const Settings& settings, pyfabric::Engine& engine, Random& random,
         const std::vector<Pool>& sources);

  bool ask(int writer);
  void revoke(int writer);  // fences it and takes back every page that it was given
  void slot_complete(uint64_t slot);
  bool settle();  // looks at every ticket that has ended; true when one had
  void verify();  // some free pages
  bool idle() const { return open_ == 0; }
  void verify_all_free();

 private:
  struct Flight {
    bool open = false, fenced = false;
    Ask ask{};
    int64_t delivered_ns = 0;  // since when the writer calls it done
  };
  void settle(int writer, int ticket, bool& ended);
  void delivered(int writer, Flight& flight);
  void take_back(Flight& flight, bool exact);
  void close(int writer, int ticket);
  void choose_pages(uint32_t count, Ask& ask);
  Flight& flight(int writer, int ticket) { return flights_[size_t(writer)][size_t(ticket)]; }
  Ticket& ticket(int writer, int i) { return board_.seats[self_].tickets[writer][i]; }

  Board& board_;
  const int self_;
  const uint64_t life_;
  const bool tells_revoked_;
  pyfabric::Engine& engine_;
  Random& random_;
  const std::vector<Pool>& sources_;
  Pool pool_;
  std::shared_ptr<pyfabric::Region> region_;
  FreePages free_;
  std::vector<uint32_t> slots_;
  std::bitset<kSlots> full_;
  std::array<std::array<Flight, kTickets>, kNodes> flights_{};
  int open_ = 0;
};

}  // namespace fuzz
