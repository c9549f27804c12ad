#pragma once
#include <cstdint>
#include <string>

#include "shared_file.hpp"

namespace pyfabric {

// What neighbours tell each other over a Unix socket besides the ring: a few words, and at most one descriptor.
struct Note {
  enum Kind : uint32_t { kHello = 1, kRegion, kRegionGone, kDoorbell };
  uint32_t kind = 0, version = 1;
  uint64_t region = 0, offset = 0, nbytes = 0;
};

// Abstract names: they vanish with their owner, and live in its network namespace.
File listen_at(const std::string& name);                     // throws FabricFailure
long connect_to(const std::string& name, File& connected);   // 0 or a negative errno; never waits
// Only processes of our own user may write into our memory.
bool same_user(int socket);
long send_note(int socket, const Note& note, int fd = -1);   // 0 or a negative errno; never waits
// 1 when a note was read (with `file` set if it carried one), 0 when none waits, negative errno when the peer is gone.
long receive_note(int socket, Note& note, File& file);

}  // namespace pyfabric
