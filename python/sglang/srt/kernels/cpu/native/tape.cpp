#include "tape.hpp"

#include <stdexcept>
#include <string>
#include <utility>

#include "calls.hpp"

namespace cpu_kernels {
namespace {

thread_local Tape* current = nullptr;

template <typename C> int64_t rows_of(const C& call) { return call.rows; }
int64_t rows_of(const StoreRows& call) { return call.rows.rows; }
int64_t rows_of(const Decode& call) { return call.rows.rows; }

void place(Attend& call, const StepRows& rows) {
  call.table = rows.table;
  call.table_stride = rows.table_stride;
  call.keys = rows.keys;
  call.first = rows.first;
  call.queries = rows.queries;
  call.rows = rows.count;
}

template <typename C> void place(C& call, const StepRows& rows) { call.rows = rows.count; }
void place(StoreRows& call, const StepRows& rows) { place(call.rows, rows); }
void place(Decode& call, const StepRows& rows) { place(call.rows, rows); }

}  // namespace

Tape::~Tape() { end(); }

Tape* Tape::recording() { return current; }

void Tape::begin() {
  if (current) throw std::logic_error("this thread is recording already");
  current = this;
}

void Tape::end() {
  if (current == this) current = nullptr;
}

void Tape::record(Call call) {
  const int64_t rows = std::visit([](const auto& one) { return rows_of(one); }, call);
  if (rows != rows_)
    throw std::invalid_argument("a kernel's call of " + std::to_string(rows) + " rows in a step of " + std::to_string(rows_));
  if (!fuse(call)) calls_.push_back(std::move(call));
}

// A residual sum and the norm of it, which follows at once, are one pass over the rows.
bool Tape::fuse(const Call& call) {
  const auto* norm = std::get_if<Norm>(&call);
  const auto* add = calls_.empty() ? nullptr : std::get_if<Add>(&calls_.back());
  if (!norm || !add || add->x != norm->x || norm->heads != 1 || norm->x_stride != add->width || norm->size != add->width ||
      norm->out == norm->x || norm->type != add->type)
    return false;
  Norm both = *norm;
  both.added = add->y;
  calls_.back() = both;
  return true;
}

void Tape::record(const Argmax&) { throw std::invalid_argument("the largest of a row is no part of a recorded step"); }
void Tape::record(const Draw&) { throw std::invalid_argument("drawing a token is no part of a recorded step"); }
void Tape::record(const Chunk&) { throw std::invalid_argument("rows of several queries are no part of a recorded step"); }

void Tape::play(const StepRows& rows) const {
  if (rows.count < 1 || rows.count > rows_)
    throw std::invalid_argument(std::to_string(rows.count) + " rows for a recorded step of " + std::to_string(rows_));
  for (const Call& recorded : calls_)
    std::visit(
        [&](auto call) {
          place(call, rows);
          perform(table_, call);
        },
        recorded);
}

}  // namespace cpu_kernels
