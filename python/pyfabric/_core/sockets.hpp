#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "address.hpp"

namespace pyfabric {

// libfabric has no call that ends one connection of an RDM endpoint, and socket providers need one twice:
// - a write half received when its key is revoked would go on landing, since the key is looked up once a write;
// - writes to a stopped peer would stay in flight for ever.
// Both are ended by shutting the provider's socket down: it then cancels what the connection carried. All of this is a
// no-op for endpoint names that are not socket addresses.

// A provider's socket that was shut down. The inode tells it from a later socket with the same descriptor.
struct CutSocket {
  int fd;
  uint64_t inode;
};

// Shuts every socket that is connected to the listening address `endpoint`.
std::vector<CutSocket> cut_connections_to(const std::string& endpoint);

// Shuts the connections that were accepted at our own `endpoint`. With a writer, those of other processes of this
// machine, and those from other machines, are spared.
std::vector<CutSocket> cut_accepted(const std::string& endpoint, const Address* writer);

// Opens the receive window of connections that will be accepted at our own `endpoint`. Throws FabricFailure.
void widen_window(const std::string& endpoint);

// True when the provider has closed all of them.
bool closed(const std::vector<CutSocket>& sockets);

// True when none of the sockets holds received bytes that the provider could still copy somewhere.
bool drained(const std::vector<CutSocket>& sockets);

}  // namespace pyfabric
