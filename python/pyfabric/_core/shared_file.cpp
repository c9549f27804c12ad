#include "shared_file.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>

#include "errors.hpp"

namespace pyfabric {

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) close(fd_);
}

bool SharedMapping::open(int fd, bool writable) {
  struct stat about {};
  if (fstat(fd, &about) || about.st_size <= 0 || !cannot_shrink(fd)) return false;
  void* at = mmap(nullptr, size_t(about.st_size), writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return false;
  base_ = static_cast<char*>(at);
  nbytes_ = size_t(about.st_size);
  // The owner's huge pages serve us too, once we ask; a kernel without them says EINVAL.
  madvise(at, nbytes_, MADV_HUGEPAGE);
  return true;
}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(nbytes_, other.nbytes_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (base_) munmap(base_, nbytes_);
}

File make_shared_file(const char* name, size_t nbytes) {
  File file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw FabricFailure(errno, "memfd_create");
  if (ftruncate(file.fd(), off_t(nbytes))) throw FabricFailure(errno, "ftruncate of a memfd");
  if (fcntl(file.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) throw FabricFailure(errno, "sealing a memfd");
  return file;
}

bool cannot_shrink(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK);
}

File read_only(int fd) {
  File file(open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw FabricFailure(errno, "opening a memfd for reading");
  return file;
}

bool backs(int fd, uint64_t offset, uint64_t address, uint64_t nbytes) {
  struct stat about {};
  std::unique_ptr<FILE, int (*)(FILE*)> maps(fopen("/proc/self/maps", "re"), &fclose);
  if (fstat(fd, &about) || !maps) return false;
  uint64_t covered = address;
  char line[512];
  while (covered < address + nbytes && fgets(line, sizeof line, maps.get())) {
    uint64_t from = 0, to = 0, at = 0, inode = 0;
    char flags[8] = {};
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %*s %" SCNu64, &from, &to, flags, &at, &inode) != 5) continue;
    if (to <= covered) continue;
    const bool same = from <= covered && inode == about.st_ino && flags[3] == 's';
    if (!same || at + (covered - from) != offset + (covered - address)) return false;
    covered = to;
  }
  return covered >= address + nbytes;
}

}  // namespace pyfabric
