#include "counter.hpp"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "errors.hpp"

namespace pyfabric {

Waker::Waker() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) throw FabricFailure(errno, "eventfd");
}

Waker::~Waker() { close(fd_); }

void Waker::signal() {
  const uint64_t one = 1;
  // EAGAIN means that the count is already at its maximum: the sleeper is awake in any case.
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
}

void Waker::wake_up(bool signalled) {
  asleep_.store(false, std::memory_order_seq_cst);
  if (!signalled) return;  // a signal that comes in between only makes the next sleep short
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof count);
}

Counter::Counter(std::shared_ptr<Waker> waker) : waker_(std::move(waker)) {
  void* page = mmap(nullptr, size_t(sysconf(_SC_PAGESIZE)), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw FabricFailure(errno, "mmap of a counter page");
  word_ = new (page) std::atomic<uint64_t>(0);
}

Counter::~Counter() { munmap(word_, size_t(sysconf(_SC_PAGESIZE))); }

}  // namespace pyfabric
