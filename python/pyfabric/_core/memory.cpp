#include "memory.hpp"

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <stdexcept>

#include "errors.hpp"

namespace pyfabric {
namespace {

constexpr int kKeyAttempts = 16;

uint64_t random_key(size_t key_bytes) {
  const uint64_t key = random_bits();
  return key_bytes >= sizeof key ? key : key & ((uint64_t(1) << (8 * key_bytes)) - 1);
}

// True when every byte is mapped with the permission. A provider that copies with the CPU would fault on anything else.
bool mapped(uint64_t address, uint64_t nbytes, char permission) {
  const size_t column = permission == 'w' ? 1 : 0;
  std::unique_ptr<FILE, int (*)(FILE*)> maps(fopen("/proc/self/maps", "re"), &fclose);
  if (!maps) throw FabricFailure(errno, "/proc/self/maps");
  uint64_t covered = address;
  char line[512];
  while (fgets(line, sizeof line, maps.get())) {
    uint64_t from = 0, to = 0;
    char flags[8] = {};
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &from, &to, flags) != 3) continue;
    if (from > covered) return false;
    if (to <= covered) continue;
    if (flags[column] != permission) return false;
    covered = to;
    if (covered >= address + nbytes) return true;
  }
  return false;
}

}  // namespace

Region::Region(std::shared_ptr<Fabric> fabric, uint64_t address, uint64_t nbytes)
    : fabric_(std::move(fabric)), address_(address), nbytes_(nbytes) {
  if (nbytes == 0 || address == 0 || address + nbytes < address)
    throw std::invalid_argument("register: address and nbytes must name a non-empty range");
  if (!mapped(address, nbytes, 'r')) throw std::invalid_argument("register: the range is not mapped readable memory");
  local_ = open(FI_WRITE | FI_READ);
  descriptor_ = fi_mr_desc(local_.get());
}

Fid<fid_mr> Region::open(uint64_t access) const {
  for (int attempt = 0;; ++attempt) {
    const uint64_t key = fabric_->provider_keys() ? 0 : random_key(fabric_->info->domain_attr->mr_key_size);
    fid_mr* mr = nullptr;
    const int rc = fi_mr_reg(fabric_->domain.get(), reinterpret_cast<void*>(address_), nbytes_, access, 0, key, 0, &mr, nullptr);
    if (rc == 0) return Fid<fid_mr>(mr);
    if (rc != -FI_ENOKEY || attempt == kKeyAttempts) check(rc, "fi_mr_reg of " + std::to_string(nbytes_) + " bytes");
  }
}

Grant Region::grant(const std::string& peer, std::optional<Address> writer) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw std::invalid_argument("grant: the region is closed");
  Holder& holder = grants_[peer];
  if (!holder.mr) {
    if (!mapped(address_, nbytes_, 'w')) {
      grants_.erase(peer);
      throw std::invalid_argument("grant: the region is not writable memory");
    }
    holder = {open(FI_REMOTE_WRITE), std::move(writer)};
  }
  return {fabric_->virtual_addresses() ? address_ : 0, fi_mr_key(holder.mr.get()), nbytes_};
}

bool Region::revoke(const std::string& peer, std::optional<Address>& writer) {
  const std::lock_guard lock(mutex_);
  const auto found = grants_.find(peer);
  if (found == grants_.end()) return false;
  writer = std::move(found->second.writer);
  grants_.erase(found);
  return true;
}

void Region::close() {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_ = true;  // before the look at the readers: arm() looks at closed_ after it has counted itself in
  if (readers.load() > 0) {
    closed_ = false;
    throw FabricFailure(FI_EBUSY, "close: " + std::to_string(readers.load()) + " programs that have not ended read from the region");
  }
  grants_.clear();
  local_.reset();
}

void Region::close_by_engine() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  grants_.clear();
  local_.reset();
  fabric_.reset();
}

}  // namespace pyfabric
