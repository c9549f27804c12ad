#pragma once
#include <cstdint>
#include <memory>

#include "board.hpp"
#include "reader.hpp"
#include "writer.hpp"

namespace fuzz {

// One engine, its two halves, and the random choice of what happens next. A node is a process, or a thread.
class Node {
 public:
  Node(Board& board, int self, const Settings& settings);
  void run();  // until the board says stop, and then until nothing is open any more

 private:
  void open();
  void close();
  bool step();
  bool act();
  bool poll();
  void rest();
  void churn();
  int other();
  void check_footprint();
  pyfabric::EngineOptions options() const;

  Board& board_;
  const int self_;
  const Settings& settings_;
  Random random_;
  const std::vector<Pool> sources_;
  uint64_t life_ = 0, steps_ = 0;
  bool stopping_ = false, closed_ = false;
  std::unique_ptr<pyfabric::Engine> engine_;
  std::unique_ptr<Reader> reader_;
  std::unique_ptr<Writer> writer_;
  struct Footprint {
    size_t descriptors = 0, threads = 0, heap_bytes = 0;
  };
  static Footprint measure();
  Footprint first_{};
};

}  // namespace fuzz
