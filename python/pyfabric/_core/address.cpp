#include "address.hpp"

#include <cstring>
#include <fstream>
#include <functional>
#include <stdexcept>

namespace pyfabric {
namespace {

constexpr uint32_t kMagic = 0x42465950;  // "PYFB", little endian
constexpr uint8_t kVersion = 1;
constexpr size_t kLongest = 4096;

struct Head {
  uint32_t magic;
  uint8_t version, virtual_addresses;
  uint16_t provider_bytes;
  uint32_t endpoint_bytes, pid;
  uint64_t host, scratch_base, scratch_key;
};
static_assert(sizeof(Head) == 40, "the blob's head has no padding");

[[noreturn]] void reject(const char* what) { throw std::invalid_argument(std::string("address: ") + what); }

}  // namespace

std::string Address::encode() const {
  const Head head{kMagic, kVersion, virtual_addresses, uint16_t(provider.size()), uint32_t(endpoint.size()), pid, host, scratch_base, scratch_key};
  std::string blob(reinterpret_cast<const char*>(&head), sizeof head);
  return blob + provider + endpoint;
}

Address Address::decode(const std::string& blob) {
  Head head{};
  if (blob.size() < sizeof head || blob.size() > kLongest) reject("not a pyfabric address");
  std::memcpy(&head, blob.data(), sizeof head);
  if (head.magic != kMagic) reject("not a pyfabric address");
  if (head.version != kVersion) reject("unknown version");
  if (blob.size() != sizeof head + head.provider_bytes + uint64_t(head.endpoint_bytes)) reject("truncated or oversized");
  if (head.endpoint_bytes == 0) reject("empty endpoint name");
  Address a;
  a.provider = blob.substr(sizeof head, head.provider_bytes);
  a.endpoint = blob.substr(sizeof head + head.provider_bytes);
  a.virtual_addresses = head.virtual_addresses;
  a.pid = head.pid;
  a.host = head.host;
  a.scratch_base = head.scratch_base;
  a.scratch_key = head.scratch_key;
  return a;
}

uint64_t this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return std::hash<std::string>{}(id);
}

}  // namespace pyfabric
