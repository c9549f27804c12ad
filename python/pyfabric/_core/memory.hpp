#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "address.hpp"
#include "fabric.hpp"

namespace pyfabric {

// Where a remote writer may write: address = base + offset, under `key`.
struct Grant {
  uint64_t base, key, nbytes;
};

// Memory of the caller, registered once for reading by our own writes and once more for each peer that was granted it.
class Region {
 public:
  // Throws std::invalid_argument unless [address, address + nbytes) is mapped and readable.
  Region(std::shared_ptr<Fabric> fabric, uint64_t address, uint64_t nbytes);

  uint64_t address() const { return address_; }
  uint64_t nbytes() const { return nbytes_; }
  bool closed() const { return closed_.load(); }
  void* descriptor() const { return descriptor_; }
  // `writer` is the address of the peer's engine, where it is known: it narrows down what a revoke has to cut.
  Grant grant(const std::string& peer, std::optional<Address> writer);
  // Closes the peer's registration and hands out what grant() was told. False when the peer holds none.
  bool revoke(const std::string& peer, std::optional<Address>& writer);
  void close();           // throws while programs read from it
  void close_by_engine(); // no more programs can exist
  std::atomic<int64_t> readers{0};  // programs that have not ended and read from this region

 private:
  struct Holder {
    Fid<fid_mr> mr;
    std::optional<Address> writer;
  };
  Fid<fid_mr> open(uint64_t access) const;
  std::shared_ptr<Fabric> fabric_;
  uint64_t address_, nbytes_;
  std::atomic<bool> closed_{false};
  void* descriptor_ = nullptr;
  std::mutex mutex_;
  Fid<fid_mr> local_;
  std::map<std::string, Holder> grants_;
};

}  // namespace pyfabric
