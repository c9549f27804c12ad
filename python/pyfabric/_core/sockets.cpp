#include "sockets.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "errors.hpp"

namespace pyfabric {
namespace {

// What a connection may hold for us. A kernel begins with 64 KiB, which is one segment of the loopback device, and raises
// it late: the sender then waited for our window 95-98% of the time (ss -ti: rwnd_limited), and every read of ours had to
// send its next segment, on our core. CPU time of both workers on one core, a job of 96 MiB in pages of 4K: 208 ms; with
// 2 MiB 198, with 4, 8 and 16 MiB 167, 165 and 167. In pages of 64K: 58; 58; 37, 26 and 26.
constexpr int kWindowBytes = 8 << 20;

// An IP address and port; IPv4 in its mapped IPv6 form so that both families compare.
struct Place {
  in6_addr ip{};
  uint16_t port = 0;
  bool same_ip(const Place& other) const { return !memcmp(&ip, &other.ip, sizeof ip); }
  bool operator==(const Place& other) const { return port == other.port && same_ip(other); }
};

std::optional<Place> place_of(const void* bytes, size_t size) {
  sockaddr_storage any{};
  if (size < sizeof(sa_family_t) || size > sizeof any) return std::nullopt;
  memcpy(&any, bytes, size);
  Place place;
  if (any.ss_family == AF_INET && size >= sizeof(sockaddr_in)) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(any);
    place.ip.s6_addr[10] = place.ip.s6_addr[11] = 0xff;
    memcpy(&place.ip.s6_addr[12], &v4.sin_addr, 4);
    place.port = ntohs(v4.sin_port);
    return place;
  }
  if (any.ss_family == AF_INET6 && size >= sizeof(sockaddr_in6)) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(any);
    place.ip = v6.sin6_addr;
    place.port = ntohs(v6.sin6_port);
    return place;
  }
  return std::nullopt;
}

std::optional<Place> ask(int fd, int (*call)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage any{};
  socklen_t size = sizeof any;
  if (call(fd, reinterpret_cast<sockaddr*>(&any), &size)) return std::nullopt;
  return place_of(&any, size);
}

uint64_t inode_of(int fd) {
  struct stat about {};
  return fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode) ? about.st_ino : 0;
}

std::optional<std::vector<std::string>> names_in(const std::string& folder) {
  std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(folder.c_str()), &closedir);
  if (!directory) return std::nullopt;
  std::vector<std::string> names;
  while (const dirent* entry = readdir(directory.get())) names.emplace_back(entry->d_name);
  return names;
}

bool listens(int fd) {
  int yes = 0;
  socklen_t size = sizeof yes;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes;
}

// Shuts our connected TCP sockets for which `wanted(here, there)` holds.
std::vector<CutSocket> cut_where(const std::function<bool(const Place&, const Place&)>& wanted) {
  std::vector<CutSocket> cut;
  for (const std::string& name : names_in("/proc/self/fd").value_or(std::vector<std::string>{})) {
    const int fd = atoi(name.c_str());
    const auto there = fd > 2 ? ask(fd, getpeername) : std::nullopt;
    const auto here = there ? ask(fd, getsockname) : std::nullopt;
    if (!here || !wanted(*here, *there)) continue;
    cut.push_back({fd, inode_of(fd)});
    shutdown(fd, SHUT_RDWR);
  }
  return cut;
}

// The socket inodes that a process of this machine holds: none once it is gone, nothing when we may not look.
std::optional<std::set<uint64_t>> inodes_of(uint32_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd/";
  const auto names = names_in(folder);
  if (!names && errno != ENOENT) return std::nullopt;
  std::set<uint64_t> inodes;
  if (!names) return inodes;
  for (const std::string& name : *names) {
    struct stat about {};
    if (stat((folder + name).c_str(), &about) == 0 && S_ISSOCK(about.st_mode)) inodes.insert(about.st_ino);
  }
  return inodes;
}

// Ports of this machine's TCP sockets by owner's inode. Ports suffice: an ephemeral port towards us is unique per address.
std::map<uint16_t, std::set<uint64_t>> owners_of_ports() {
  std::map<uint16_t, std::set<uint64_t>> owners;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::unique_ptr<FILE, int (*)(FILE*)> table(fopen(path, "re"), &fclose);
    char line[512];
    while (table && fgets(line, sizeof line, table.get())) {
      unsigned port = 0;
      unsigned long long inode = 0;
      if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*s %*s %*s %*s %*s %*s %*s %llu", &port, &inode) == 2 && inode)
        owners[uint16_t(port)].insert(inode);
    }
  }
  return owners;
}

// Says whether the far end of an accepted connection may be the writer's. In doubt it is. A far end that somebody else
// holds is not; one that nobody holds may be what a process that has ended left behind.
std::function<bool(const Place&)> may_be(const Address* writer) {
  if (!writer) return [](const Place&) { return true; };
  if (writer->host != this_host()) {
    std::vector<Place> listens;
    for (const Address::Rail& rail : writer->rails)
      if (const auto place = place_of(rail.endpoint.data(), rail.endpoint.size())) listens.push_back(*place);
    return [listens](const Place& there) {
      return listens.empty() || std::any_of(listens.begin(), listens.end(), [&](const Place& place) { return place.same_ip(there); });
    };
  }
  const auto inodes = inodes_of(writer->pid);
  if (!inodes) return [](const Place&) { return true; };
  return [inodes = *inodes, owners = owners_of_ports()](const Place& there) {
    const auto found = owners.find(there.port);
    if (found == owners.end()) return true;
    for (const uint64_t inode : found->second)
      if (inodes.count(inode)) return true;
    return false;
  };
}

}  // namespace

std::vector<CutSocket> cut_connections_to(const std::string& endpoint) {
  const auto target = place_of(endpoint.data(), endpoint.size());
  if (!target) return {};
  return cut_where([&](const Place&, const Place& there) { return there == *target; });
}

std::vector<CutSocket> cut_accepted(const std::string& endpoint, const Address* writer) {
  const auto own = place_of(endpoint.data(), endpoint.size());
  if (!own) return {};
  const auto suspect = may_be(writer);
  return cut_where([&](const Place& here, const Place& there) { return here.port == own->port && suspect(there); });
}

// A low-water mark makes the kernel give the socket room for it (up to half of tcp_rmem's limit), and what is accepted
// inherits that. SO_RCVBUF would end the kernel's own adjustment, and stops at net.core.rmem_max, 208 KiB on most machines.
// The mark itself goes back to 1 before anybody knows our port: it would keep small messages from waking us.
void widen_window(const std::string& endpoint) {
  const auto own = place_of(endpoint.data(), endpoint.size());
  if (!own) return;
  for (const std::string& name : names_in("/proc/self/fd").value_or(std::vector<std::string>{})) {
    const int fd = atoi(name.c_str());
    if (fd <= 2 || !listens(fd) || ask(fd, getsockname) != own) continue;
    for (const int mark : {kWindowBytes, 1})
      if (setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark)) throw FabricFailure(errno, "setsockopt(SO_RCVLOWAT)");
  }
}

bool closed(const std::vector<CutSocket>& sockets) {
  return std::none_of(sockets.begin(), sockets.end(), [](const CutSocket& s) { return inode_of(s.fd) == s.inode; });
}

bool drained(const std::vector<CutSocket>& sockets) {
  for (const CutSocket& socket : sockets) {
    int waiting = 0;
    if (inode_of(socket.fd) == socket.inode && ioctl(socket.fd, FIONREAD, &waiting) == 0 && waiting > 0) return false;
  }
  return true;
}

}  // namespace pyfabric
