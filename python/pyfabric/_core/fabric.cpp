#include "fabric.hpp"

#include <algorithm>
#include <cerrno>

#include "errors.hpp"
#include "shared_memory.hpp"

namespace pyfabric {
namespace {

constexpr size_t kQueueEntries = 16384;
constexpr int kKeyAttempts = 16;
constexpr int kClosingTurns = 1000;  // of a few microseconds; two suffice

class FabricRegistration : public Registration {
 public:
  explicit FabricRegistration(fid_mr* mr) : mr_(mr) {
    descriptor = fi_mr_desc(mr);
    key = fi_mr_key(mr);
  }

 private:
  Fid<fid_mr> mr_;
};

uint64_t random_key(size_t key_bytes) {
  const uint64_t key = random_bits();
  return key_bytes >= sizeof key ? key : key & ((uint64_t(1) << (8 * key_bytes)) - 1);
}

}  // namespace

Fabric::Fabric(const std::string& wanted, const std::string& node, const std::string& domain) : info_(choose(wanted, node, domain)) {
  if (shared_memory()) sweep_shared_memory();
  const std::string at = " (provider " + provider() + ", " + library_path() + ")";
  fid_fabric* f = nullptr;
  check(fi_fabric(info_->fabric_attr, &f, nullptr), "fi_fabric" + at);
  fabric_.reset(f);
  fid_domain* d = nullptr;
  check(fi_domain(f, info_.get(), &d, nullptr), "fi_domain" + at);
  domain_.reset(d);
  open_queue();
  fi_av_attr av_attr{};
  av_attr.type = FI_AV_UNSPEC;
  fid_av* a = nullptr;
  check(fi_av_open(d, &av_attr, &a, nullptr), "fi_av_open" + at);
  av_.reset(a);
  fid_ep* e = nullptr;
  check(fi_endpoint(d, info_.get(), &e, nullptr), "fi_endpoint" + at);
  ep_.reset(e);
  check(fi_ep_bind(e, &a->fid, 0), "fi_ep_bind(av)" + at);
  check(fi_ep_bind(e, &cq_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind(cq)" + at);
  if (shared_memory()) {
    // The provider's own names repeat within a process: a stale address would reach whoever opened the next endpoint.
    const std::string name = "fi_shm://" + shared_memory_name();
    check(fi_setname(&e->fid, const_cast<char*>(name.c_str()), name.size() + 1), "fi_setname" + at);
  }
  check(fi_enable(e), "fi_enable" + at);
  widen_window(endpoint());
}

void Fabric::open_queue() {
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_DATA;
  attr.size = kQueueEntries;
  // shm has no descriptor that wakes a sleeper reliably (its blocking read hung): the worker naps instead.
  attr.wait_obj = shared_memory() ? FI_WAIT_NONE : FI_WAIT_FD;
  fid_cq* opened = nullptr;
  int rc = fi_cq_open(domain_.get(), &attr, &opened, nullptr);
  if (rc && attr.wait_obj == FI_WAIT_FD) {
    attr.wait_obj = FI_WAIT_NONE;
    rc = fi_cq_open(domain_.get(), &attr, &opened, nullptr);
  }
  check(rc, "fi_cq_open");
  cq_.reset(opened);
  if (attr.wait_obj == FI_WAIT_FD && fi_control(&opened->fid, FI_GETWAIT, &wait_fd_)) wait_fd_ = -1;
}

RailLimits Fabric::limits() const {
  const uint64_t extents = std::min(info_->tx_attr->iov_limit, info_->tx_attr->rma_iov_limit);
  return {std::max<uint64_t>(1, extents), info_->ep_attr->max_msg_size, info_->tx_attr->inject_size, info_->tx_attr->size};
}

std::string Fabric::endpoint() const {
  std::string name(256, '\0');
  size_t size = name.size();
  int rc = fi_getname(&ep_->fid, name.data(), &size);
  if (rc == -FI_ETOOSMALL) {
    name.resize(size);
    rc = fi_getname(&ep_->fid, name.data(), &size);
  }
  check(rc, "fi_getname");
  name.resize(size);
  return name;
}

std::unique_ptr<Registration> Fabric::open(uint64_t address, uint64_t nbytes, uint64_t access) {
  for (int attempt = 0;; ++attempt) {
    const bool assigned = info_->domain_attr->mr_mode & FI_MR_PROV_KEY;
    const uint64_t key = assigned ? 0 : random_key(info_->domain_attr->mr_key_size);
    fid_mr* mr = nullptr;
    const int rc = fi_mr_reg(domain_.get(), reinterpret_cast<void*>(address), nbytes, access, 0, key, 0, &mr, nullptr);
    if (rc == 0) return std::make_unique<FabricRegistration>(mr);
    if (rc != -FI_ENOKEY || attempt == kKeyAttempts) check(rc, "fi_mr_reg of " + std::to_string(nbytes) + " bytes");
  }
}

std::unique_ptr<Registration> Fabric::register_local(uint64_t address, uint64_t nbytes, const Backing&) {
  return open(address, nbytes, FI_WRITE | FI_READ);
}

std::unique_ptr<Registration> Fabric::register_target(uint64_t address, uint64_t nbytes) {
  return open(address, nbytes, FI_REMOTE_WRITE);
}

long Fabric::add_peer(const std::string& endpoint, uint64_t& peer) {
  if (const auto found = kept_.find(endpoint); found != kept_.end()) {
    ++found->second.users;
    peer = found->second.address;
    return 0;
  }
  forget_gone_peers();
  const int got = fi_av_insert(av_.get(), endpoint.data(), 1, &peer, 0, nullptr);
  if (got == 1 && shared_memory()) kept_[endpoint] = {peer, 1};
  return got == 1 ? 0 : got < 0 ? got : -FI_EINVAL;
}

// Addresses of peers over shared memory stay, and are used again, until their process is gone: such a peer may still write
// to us, and libfabric 2.5.1 looks its address up then. A precaution: the known shm crash (docs/pyfabric.md) remains.
void Fabric::remove_peer(uint64_t peer) {
  if (!shared_memory()) {
    fi_av_remove(av_.get(), &peer, 1, 0);
    return;
  }
  for (auto& [name, kept] : kept_)
    if (kept.address == peer) --kept.users;
}

void Fabric::forget_gone_peers() {
  for (auto item = kept_.begin(); item != kept_.end();) {
    const bool gone = item->second.users == 0 && shared_memory_gone(item->first);
    // Of a closed endpoint of this process fi_av_remove would read the memory, which is unmapped: that entry stays.
    if (gone && !shared_memory_is_ours(item->first)) fi_av_remove(av_.get(), &item->second.address, 1, 0);
    item = gone ? kept_.erase(item) : std::next(item);
  }
}

long Fabric::post(const Write& w) {
  const fi_msg_rma message{w.local, w.descriptors, w.extents, w.peer, w.remote, w.extents, w.context, w.immediate};
  return fi_writemsg(ep_.get(), &message, (w.counted ? FI_REMOTE_CQ_DATA : 0) | FI_DELIVERY_COMPLETE | FI_COMPLETION);
}

size_t Fabric::poll(Completion* out, size_t most) {
  fi_cq_data_entry entries[kPollBatch];
  const ssize_t got = fi_cq_read(cq_.get(), entries, std::min(most, kPollBatch));
  if (got == -FI_EAVAIL) return take_error(out);
  size_t count = 0;
  for (ssize_t i = 0; i < got; ++i) {
    // FI_REMOTE_CQ_DATA alone does not tell the sides apart (one provider sets it at the source too).
    if (entries[i].flags & FI_REMOTE_WRITE) out[count++] = {Completion::Kind::kImmediate, uint32_t(entries[i].data)};
    else if (entries[i].op_context) out[count++] = {Completion::Kind::kDelivered, 0, entries[i].op_context};
  }
  return count;
}

// The far side of a write of the peer reports its error there: here it is a failure without a context.
size_t Fabric::take_error(Completion* out) {
  fi_cq_err_entry entry{};
  if (fi_cq_readerr(cq_.get(), &entry, 0) <= 0) return 0;
  const bool ours = entry.op_context && !(entry.flags & FI_REMOTE_WRITE);
  *out = {Completion::Kind::kFailed, 0, ours ? entry.op_context : nullptr, 0, entry.err, entry.prov_errno};
  return 1;
}

std::string Fabric::explain(const Completion& failed) const {
  std::string error = describe(failed.error);
  if (!failed.detail || failed.detail == failed.error) return error;
  char text[256] = {};
  const char* detail = fi_cq_strerror(cq_.get(), failed.detail, nullptr, text, sizeof text);
  return detail && error != detail ? error + " (" + detail + ")" : error;
}

bool Fabric::may_sleep() {
  if (wait_fd_ < 0) return true;
  fid* queue = &cq_->fid;
  return fi_trywait(fabric_.get(), &queue, 1) == FI_SUCCESS;
}

void Fabric::sever(uint64_t, const std::string& endpoint, const Address& target) {
  cut_connections_to(endpoint);
  cut_accepted(this->endpoint(), &target);  // one connection serves both directions, whoever opened it
}

// libfabric 2.5.1 closes, with an endpoint, the connections that have said whose they are. One that was accepted and has
// not spoken yet would stay as a socket of this process; shut, it is closed by the provider's next turns.
void Fabric::end_accepted() {
  std::vector<CutSocket> cut;
  for (int turn = 0; turn < kClosingTurns; ++turn) {
    for (const CutSocket& socket : cut_accepted(endpoint(), nullptr)) cut.push_back(socket);
    if (closed(cut)) return;
    Completion dropped[kPollBatch];
    poll(dropped, kPollBatch);
  }
}

void Fabric::close_endpoint() {
  if (ep_ && !shared_memory()) end_accepted();
  ep_.reset();
}

std::vector<CutSocket> Fabric::cut_incoming(const Address* writer) { return cut_accepted(endpoint(), writer); }

}  // namespace pyfabric
