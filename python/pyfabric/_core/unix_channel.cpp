#include "unix_channel.hpp"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "errors.hpp"

namespace pyfabric {
namespace {

constexpr int kBacklog = 128;

socklen_t place(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address.sun_path) return 0;
  memcpy(address.sun_path + 1, name.data(), name.size());
  return socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

File open_socket() { return File(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

union Control {
  char bytes[CMSG_SPACE(sizeof(int))];
  cmsghdr align;
};

}  // namespace

File listen_at(const std::string& name) {
  File file = open_socket();
  sockaddr_un address;
  const socklen_t size = place(name, address);
  if (!file || bind(file.fd(), reinterpret_cast<sockaddr*>(&address), size) || listen(file.fd(), kBacklog))
    throw FabricFailure(errno, "listening at the Unix socket @" + name);
  return file;
}

long connect_to(const std::string& name, File& connected) {
  File file = open_socket();
  sockaddr_un address;
  const socklen_t size = place(name, address);
  if (!file) return -errno;
  if (size == 0) return -EINVAL;
  if (connect(file.fd(), reinterpret_cast<sockaddr*>(&address), size)) return -errno;
  connected = std::move(file);
  return 0;
}

bool same_user(int socket) {
  ucred who{};
  socklen_t size = sizeof who;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid();
}

long send_note(int socket, const Note& note, int fd) {
  iovec part{const_cast<Note*>(&note), sizeof note};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control{};
  if (fd >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
  }
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == ssize_t(sizeof note) ? 0 : -errno;
}

long receive_note(int socket, Note& note, File& file) {
  iovec part{&note, sizeof note};
  msghdr message{};
  Control control{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); got > 0 && head; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    memcpy(&fd, CMSG_DATA(head), sizeof fd);
    file = File(fd);
  }
  if (got == 0) return -ECONNRESET;
  if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : -errno;
  return got == ssize_t(sizeof note) && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ? 1 : -EPROTO;
}

}  // namespace pyfabric
