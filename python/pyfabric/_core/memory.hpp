#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "address.hpp"
#include "rail.hpp"

namespace pyfabric {

// Where a remote writer may write: address = base + offset, under the key of the rail that it comes by.
struct Grant {
  uint64_t base, nbytes;
  std::vector<uint64_t> keys;
};

// Memory of the caller, registered once for reading by our own writes and once more for each peer that was granted it.
// shared_from_this: the binding then shares ownership as it is. Without it what Python passes in keeps a reference to the
// Python object, and whoever drops it last, here the worker, would wait for the GIL.
class Region : public std::enable_shared_from_this<Region> {
 public:
  // Throws std::invalid_argument unless [address, address + nbytes) is mapped and readable.
  Region(Rails rails, uint64_t address, uint64_t nbytes, const Backing& backing);

  uint64_t address() const { return address_; }
  uint64_t nbytes() const { return nbytes_; }
  bool closed() const { return closed_.load(); }
  // False where the rails read the source through its memfd and this memory has none.
  bool readable() const { return readable_; }
  void* descriptor(size_t rail) const { return descriptors_[rail]; }
  // `writer` is the address of the peer's engine, where it is known: it narrows down what a revoke has to cut.
  Grant grant(const std::string& peer, std::optional<Address> writer);
  // Closes the peer's registration and hands out what grant() was told. False when the peer holds none.
  bool revoke(const std::string& peer, std::optional<Address>& writer);
  void close();           // throws while programs read from it
  void close_by_engine(); // no more programs can exist
  std::atomic<int64_t> readers{0};  // programs that have not ended and read from this region

 private:
  struct Holder {
    std::vector<std::unique_ptr<Registration>> registrations;
    std::optional<Address> writer;
  };
  Rails rails_;
  uint64_t address_, nbytes_;
  std::atomic<bool> closed_{false};
  bool readable_ = true;
  std::vector<void*> descriptors_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Registration>> local_;
  std::map<std::string, Holder> grants_;
};

}  // namespace pyfabric
