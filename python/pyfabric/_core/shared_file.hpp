#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

namespace pyfabric {

// A descriptor that closes itself.
class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept;
  ~File();
  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A whole memfd, mapped.
class SharedMapping {
 public:
  SharedMapping() = default;
  // Maps all of the file. Refuses (false) a file that its owner could still shrink: reading past a new end would kill us.
  bool open(int fd, bool writable);
  SharedMapping(SharedMapping&& other) noexcept : base_(std::exchange(other.base_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();
  char* base() const { return base_; }
  size_t nbytes() const { return nbytes_; }

 private:
  char* base_ = nullptr;
  size_t nbytes_ = 0;
};

// A memfd that can neither shrink nor grow. Throws FabricFailure.
File make_shared_file(const char* name, size_t nbytes);
bool cannot_shrink(int fd);
// The same file, for reading only: what is handed to a peer. Throws FabricFailure.
File read_only(int fd);
// True when [address, address + nbytes) is a mapping of the file, starting at `offset` in it.
bool backs(int fd, uint64_t offset, uint64_t address, uint64_t nbytes);

}  // namespace pyfabric
