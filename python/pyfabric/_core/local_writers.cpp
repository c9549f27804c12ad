#include "local_writers.hpp"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "clock.hpp"
#include "worker.hpp"

namespace pyfabric {
namespace {

struct Pairs {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Gate>> writes;  // from, to
  std::map<std::string, std::weak_ptr<Worker>> workers;                         // by endpoint
};

Pairs& pairs() {
  static Pairs kept;
  return kept;
}

}  // namespace

const long Gate::kShut = -FI_ESHUTDOWN;

void Gate::done() {
  const std::lock_guard lock(mutex_);
  --in_flight_;
}

void Gate::shut() {
  const std::lock_guard lock(mutex_);
  shut_ = true;
}

bool Gate::idle() const {
  const std::lock_guard lock(mutex_);
  return in_flight_ == 0;
}

std::shared_ptr<Gate> LocalWriters::claim(const std::string& writer, const std::string& target) {
  const std::lock_guard lock(pairs().mutex);
  if (pairs().writes.contains({target, writer}))
    throw std::invalid_argument("connect: over shm two engines of one process cannot write to each other (libfabric 2.5.1 crashes); "
                                "use provider mapped or tcp, or put one of them into another process");
  auto& gate = pairs().writes[{writer, target}];
  if (!gate) gate = std::make_shared<Gate>();
  return gate;
}

void LocalWriters::shut(const std::string& endpoint, int64_t patience_ns) {
  std::vector<std::shared_ptr<Gate>> gates;
  {
    const std::lock_guard lock(pairs().mutex);
    for (const auto& [pair, gate] : pairs().writes)
      if (pair.second == endpoint) gates.push_back(gate);
  }
  for (const auto& gate : gates) gate->shut();
  const auto busy = [&] { return !std::all_of(gates.begin(), gates.end(), [](const auto& gate) { return gate->idle(); }); };
  for (Patience patience(patience_ns); busy() && !patience.over();) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void LocalWriters::serve(const std::string& endpoint, const std::shared_ptr<Worker>& worker) {
  const std::lock_guard lock(pairs().mutex);
  pairs().workers[endpoint] = worker;
}

bool LocalWriters::taken(const std::string& endpoint, int64_t patience_ns) {
  std::vector<std::shared_ptr<Worker>> readers;
  {
    const std::lock_guard lock(pairs().mutex);
    for (const auto& [pair, gate] : pairs().writes) {
      if (pair.first != endpoint) continue;
      const auto found = pairs().workers.find(pair.second);
      if (found == pairs().workers.end()) return false;  // not started yet: it would read when it is
      readers.push_back(found->second.lock());
    }
  }
  return std::all_of(readers.begin(), readers.end(), [&](const auto& reader) { return !reader || reader->credit_all(patience_ns); });
}

bool LocalWriters::forget(const std::string& endpoint) {
  const std::lock_guard lock(pairs().mutex);
  pairs().workers.erase(endpoint);
  bool idle = true;
  std::erase_if(pairs().writes, [&](const auto& item) {
    const auto& [pair, gate] = item;
    if (pair.first != endpoint && pair.second != endpoint) return false;
    gate->shut();
    idle = idle && gate->idle();
    return true;
  });
  return idle;
}

}  // namespace pyfabric
