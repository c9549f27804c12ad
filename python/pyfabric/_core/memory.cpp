#include "memory.hpp"

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <stdexcept>

#include "errors.hpp"

namespace pyfabric {
namespace {

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

Region::Region(Rails rails, uint64_t address, uint64_t nbytes, const Backing& backing)
    : rails_(std::move(rails)), address_(address), nbytes_(nbytes) {
  if (nbytes == 0 || address == 0 || address + nbytes < address)
    throw std::invalid_argument("register: address and nbytes must name a non-empty range");
  if (!mapped(address, nbytes, 'r')) throw std::invalid_argument("register: the range is not mapped readable memory");
  for (const auto& rail : rails_) {
    local_.push_back(rail->register_local(address, nbytes, backing));
    readable_ = readable_ && local_.back();
    descriptors_.push_back(local_.back() ? local_.back()->descriptor : nullptr);
  }
}

Grant Region::grant(const std::string& peer, std::optional<Address> writer) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw std::invalid_argument("grant: the region is closed");
  if (!grants_.contains(peer)) {
    if (!mapped(address_, nbytes_, 'w')) throw std::invalid_argument("grant: the region is not writable memory");
    Holder holder{{}, std::move(writer)};
    for (const auto& rail : rails_) holder.registrations.push_back(rail->register_target(address_, nbytes_));
    grants_.emplace(peer, std::move(holder));
  } else if (writer) {
    grants_.at(peer).writer = std::move(writer);  // learnt after the grant, as when the peer answers a greeting
  }
  Grant grant{rails_[0]->virtual_addresses() ? address_ : 0, nbytes_, {}};
  for (const auto& registration : grants_.at(peer).registrations) grant.keys.push_back(registration->key);
  return grant;
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
    throw FabricFailure(EBUSY, "close: " + std::to_string(readers.load()) + " programs that have not ended read from the region");
  }
  grants_.clear();
  local_.clear();
}

void Region::close_by_engine() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  grants_.clear();
  local_.clear();
  rails_.clear();
}

}  // namespace pyfabric
