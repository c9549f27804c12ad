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

#include "fabric.hpp"

namespace pyfabric {
namespace {

constexpr const char* kFolder = "/dev/shm/";

// A pid means something only within its namespace; containers may share /dev/shm without sharing pids.
uint64_t pid_namespace() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

std::string our_prefix() {
  char prefix[64];
  snprintf(prefix, sizeof prefix, "pyfabric-%" PRIu64 "-%d-", pid_namespace(), int(getpid()));
  return prefix;
}

std::string file_of(const std::string& endpoint) {
  const std::string name = endpoint.c_str();  // up to its terminating zero
  const size_t at = name.rfind('/');
  return name.substr(at == std::string::npos ? 0 : at + 1);
}

}  // namespace

std::string shared_memory_name() {
  char bits[24];
  snprintf(bits, sizeof bits, "%016" PRIx64, random_bits());
  return our_prefix() + bits;
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

bool shared_memory_gone(const std::string& endpoint) { return access((kFolder + file_of(endpoint)).c_str(), F_OK) != 0; }

bool shared_memory_is_ours(const std::string& endpoint) { return file_of(endpoint).starts_with(our_prefix()); }

}  // namespace pyfabric
