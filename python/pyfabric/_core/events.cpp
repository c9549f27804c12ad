#include "events.hpp"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

#include "errors.hpp"

namespace pyfabric {

EventQueue::EventQueue() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) throw FabricFailure(errno, "eventfd");
}

EventQueue::~EventQueue() { close(fd_); }

void EventQueue::push(Event event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  if (events_.size() > 1) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
}

std::vector<Event> EventQueue::drain() {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return {};
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof count);
  return std::exchange(events_, {});
}

}  // namespace pyfabric
