// The calls of a decode step, to be made again with nothing between them.
#pragma once

#include <variant>
#include <vector>

#include "table.hpp"

namespace cpu_kernels {

// What differs from step to step, next to what lies in the buffers: rows of one query each.
struct StepRows {
  const int32_t* table;
  int64_t table_stride;
  const int32_t* keys;
  const int32_t* first;
  const int32_t* queries;
  int64_t count;
};

// While a tape is recording, this thread's calls are noted down and not performed. All of them are of the same rows;
// played, they are made with the first so many of those. Addresses must stay valid as long as the tape is played.
class Tape {
 public:
  using Call = std::variant<Lookup, Turns, Linear, Norm, Gate, Rotate, Add, Route, Experts, Narrow, StoreRows, Decode>;

  Tape(const Table& table, int64_t rows) : table_(table), rows_(rows) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;
  ~Tape();

  // The tape that this thread's calls go to; null for none.
  static Tape* recording();

  void begin();
  void end();

  // Throws std::invalid_argument for a call of other rows.
  void record(Call call);
  [[noreturn]] void record(const Argmax&);
  [[noreturn]] void record(const Draw&);
  [[noreturn]] void record(const Chunk&);

  // At most as many rows as were recorded, else std::invalid_argument.
  void play(const StepRows& rows) const;

  size_t size() const { return calls_.size(); }

 private:
  bool fuse(const Call& call);

  const Table& table_;
  int64_t rows_;
  std::vector<Call> calls_;
};

}  // namespace cpu_kernels
