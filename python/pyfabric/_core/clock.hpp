#pragma once
#include <time.h>

#include <cstdint>

namespace pyfabric {

// CLOCK_MONOTONIC in nanoseconds: the clock of Python's time.monotonic_ns().
inline int64_t now_ns() {
  timespec ts{};
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return int64_t(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec;
}

// A time limit for whoever looks at something again and again. Between two looks at most kStep counts: a process that was
// stopped and continues must not take the stop for its patience's end.
class Patience {
 public:
  explicit Patience(int64_t ns) : left_(ns) {}
  bool over() {
    const int64_t now = now_ns();
    left_ -= now - last_ < kStep ? now - last_ : kStep;
    last_ = now;
    return left_ < 0;
  }
  static constexpr int64_t kStep = 20'000'000;

 private:
  int64_t left_, last_ = now_ns();
};

}  // namespace pyfabric
