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

void EventQueue::append(Event event) {
  events_.push_back(std::move(event));
  if (events_.size() > 1) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
}

void EventQueue::armed(uint64_t handle) {
  const std::lock_guard lock(mutex_);
  owed_.insert(handle);
}

void EventQueue::push(Event event) {
  const std::lock_guard lock(mutex_);
  if (sealed_) return;
  std::visit(
      [this](const auto& e) {
        if constexpr (requires { e.handle; }) owed_.erase(e.handle);
      },
      event);
  append(std::move(event));
}

void EventQueue::withdraw(uint64_t slot) {
  const std::lock_guard lock(mutex_);
  const size_t gone = std::erase_if(events_, [slot](const Event& event) {
    const auto* complete = std::get_if<SlotComplete>(&event);
    return complete && complete->slot == slot;
  });
  if (gone && events_.empty()) clear_signal();
}

void EventQueue::clear_signal() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof count);
}

void EventQueue::seal(const std::vector<int64_t>& peers, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (sealed_) return;
  sealed_ = true;
  for (const int64_t peer : peers) append(PeerLost{peer, reason});
  for (const uint64_t handle : owed_) append(ProgramFailed{handle, -1, reason});
  owed_.clear();
}

bool EventQueue::sealed() const {
  const std::lock_guard lock(mutex_);
  return sealed_;
}

std::vector<Event> EventQueue::drain() {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return {};
  clear_signal();
  return std::exchange(events_, {});
}

}  // namespace pyfabric
