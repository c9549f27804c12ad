#include "address.hpp"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <stdexcept>

namespace pyfabric {
namespace {

constexpr uint32_t kMagic = 0x42465950;  // "PYFB", little endian
constexpr uint8_t kVersion = 2;
constexpr size_t kLongest = 16384;

struct Head {
  uint32_t magic;
  uint8_t version, virtual_addresses;
  uint16_t provider_bytes;
  uint32_t rails, pid;
  uint64_t host, scratch_base;
};
static_assert(sizeof(Head) == 32, "the blob's head has no padding");

struct RailHead {
  uint64_t scratch_key, endpoint_bytes;
};

[[noreturn]] void reject(const char* what) { throw std::invalid_argument(std::string("address: ") + what); }

template <class T>
std::string bytes_of(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

class Reader {
 public:
  explicit Reader(const std::string& blob) : blob_(blob) {}
  std::string take(uint64_t nbytes) {
    if (nbytes > blob_.size() - at_) reject("truncated");
    at_ += nbytes;
    return blob_.substr(at_ - nbytes, nbytes);
  }
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  bool at_end() const { return at_ == blob_.size(); }

 private:
  const std::string& blob_;
  size_t at_ = 0;
};

}  // namespace

std::string Address::encode() const {
  std::string blob = bytes_of(Head{kMagic, kVersion, virtual_addresses, uint16_t(provider.size()), uint32_t(rails.size()), pid, host, scratch_base});
  blob += provider;
  for (const Rail& rail : rails) blob += bytes_of(RailHead{rail.scratch_key, rail.endpoint.size()}) + rail.endpoint;
  return blob;
}

Address Address::decode(const std::string& blob) {
  if (blob.size() < sizeof(Head) || blob.size() > kLongest) reject("not a pyfabric address");
  Reader reader(blob);
  const Head head = reader.take<Head>();
  if (head.magic != kMagic) reject("not a pyfabric address");
  if (head.version != kVersion) reject("unknown version");
  if (head.rails == 0 || head.rails > kMostRails) reject("no endpoint, or too many");
  Address a;
  a.provider = reader.take(head.provider_bytes);
  for (uint32_t i = 0; i < head.rails; ++i) {
    const RailHead rail = reader.take<RailHead>();
    if (rail.endpoint_bytes == 0) reject("empty endpoint name");
    a.rails.push_back({reader.take(rail.endpoint_bytes), rail.scratch_key});
  }
  if (!reader.at_end()) reject("oversized");
  a.virtual_addresses = head.virtual_addresses;
  a.pid = head.pid;
  a.host = head.host;
  a.scratch_base = head.scratch_base;
  return a;
}

uint64_t this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  // Process ids mean something within one namespace: what runs in another container is another host to us.
  char space[64] = {};
  if (readlink("/proc/self/ns/pid", space, sizeof space - 1) > 0) id += space;
  return std::hash<std::string>{}(id);
}

}  // namespace pyfabric
