#include "shared_memory.hpp"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "fabric.hpp"

namespace pyfabric {
namespace {

constexpr const char* kFolder = "/dev/shm/";

// A pid means something only within its namespace; containers may share /dev/shm without sharing pids.
uint64_t pid_namespace() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

}  // namespace

std::string shared_memory_name() {
  char name[96];
  snprintf(name, sizeof name, "pyfabric-%" PRIu64 "-%d-%016" PRIx64, pid_namespace(), int(getpid()), random_bits());
  return name;
}

void sweep_shared_memory() {
  std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(kFolder), &closedir);
  const uint64_t here = pid_namespace();
  while (const dirent* entry = folder ? readdir(folder.get()) : nullptr) {
    uint64_t space = 0;
    int pid = 0;
    if (sscanf(entry->d_name, "pyfabric-%" SCNu64 "-%d-", &space, &pid) != 2 || space != here || pid <= 0) continue;
    // Another user's file cannot be removed: unlink says so, and it is theirs to clean.
    if (kill(pid, 0) != 0 && errno == ESRCH) unlink((std::string(kFolder) + entry->d_name).c_str());
  }
}

bool shared_memory_gone(const std::string& endpoint) {
  const std::string name = endpoint.c_str();  // up to its terminating zero
  const size_t at = name.rfind('/');
  return access((kFolder + name.substr(at == std::string::npos ? 0 : at + 1)).c_str(), F_OK) != 0;
}

namespace {

struct Pairs {
  std::mutex mutex;
  std::set<std::pair<std::string, std::string>> writes;  // from, to
};

Pairs& pairs() {
  static Pairs kept;
  return kept;
}

}  // namespace

void LocalWriters::claim(const std::string& writer, const std::string& target) {
  const std::lock_guard lock(pairs().mutex);
  if (pairs().writes.contains({target, writer}))
    throw std::invalid_argument("connect: over shm two engines of one process cannot write to each other (libfabric 2.5.1 crashes); "
                                "use provider mapped or tcp, or put one of them into another process");
  pairs().writes.emplace(writer, target);
}

void LocalWriters::forget(const std::string& endpoint) {
  const std::lock_guard lock(pairs().mutex);
  std::erase_if(pairs().writes, [&](const auto& pair) { return pair.first == endpoint || pair.second == endpoint; });
}

}  // namespace pyfabric
