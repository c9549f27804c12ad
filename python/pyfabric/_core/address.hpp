#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace pyfabric {

constexpr uint32_t kMostRails = 64;  // of one engine

// The opaque blob that Engine.address hands out, version 2: what a peer needs to write to this engine.
struct Address {
  struct Rail {
    std::string endpoint;  // the provider's endpoint name
    uint64_t scratch_key;
  };
  std::string provider;
  std::vector<Rail> rails;
  bool virtual_addresses = false;
  uint32_t pid = 0;
  uint64_t host = 0;          // hash of the kernel's boot id: equal on one machine
  uint64_t scratch_base = 0;  // a few bytes that any peer may write to warm its connections

  std::string encode() const;
  // Throws std::invalid_argument for anything that encode() did not produce.
  static Address decode(const std::string& blob);
};

uint64_t this_host();

}  // namespace pyfabric
