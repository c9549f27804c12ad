#include "fabric.hpp"

#include <dlfcn.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "errors.hpp"
#include "shared_memory.hpp"

namespace pyfabric {
namespace {

constexpr uint32_t kApi = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
constexpr size_t kQueueEntries = 16384;
constexpr uint64_t kImmediateBytes = 4;

Info make_hints(const std::string& provider) {
  Info hints(fi_allocinfo());
  if (!hints) throw std::bad_alloc();
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  // Our worker drives progress; a provider thread beside it would only take a core from it.
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  if (!provider.empty()) hints->fabric_attr->prov_name = strdup(provider.c_str());
  return hints;
}

Info query(const std::string& provider, const std::string& node, int& rc) {
  Info hints = make_hints(provider);
  fi_info* found = nullptr;
  const char* where = node.empty() ? nullptr : node.c_str();
  rc = fi_getinfo(kApi, where, nullptr, where ? FI_SOURCE : 0, hints.get(), &found);
  return Info(found);
}

bool usable(const fi_info& info) { return info.domain_attr->cq_data_size >= kImmediateBytes; }

// Names tried for a request, best first. Native RDM over sockets is `net` on 1.16-1.17 and `tcp` from 1.18 on, where
// 1.17 answers a request for `tcp` with the slower tcp;ofi_rxm.
std::vector<std::string> candidates(const std::string& wanted) {
  const std::vector<std::string> sockets{"tcp", "net", "tcp;ofi_rxm"};
  if (wanted == "tcp") return sockets;
  if (wanted == "verbs") return {"verbs;ofi_rxm", "verbs"};
  if (wanted != "auto") return {wanted};
  std::vector<std::string> all{"efa", "verbs;ofi_rxm"};
  all.insert(all.end(), sockets.begin(), sockets.end());
  return all;
}

bool takes_node(const std::string& provider) {
  // shm given a node makes two processes share one name; NIC providers are found by device, not by address.
  return provider == "tcp" || provider == "net" || provider == "tcp;ofi_rxm";
}

Info choose(const std::string& wanted, const std::string& node) {
  if (wanted == "shm" && FI_MAJOR(fi_version()) < 2)
    throw FabricFailure(FI_ENOSYS, "provider shm needs libfabric >= 2.0: before it, a delivery-complete write whose "
                                   "target is gone never completes; loaded is " + library_version() + " at " + library_path());
  int rc = -FI_ENODATA;
  for (const auto& name : candidates(wanted)) {
    for (Info info = query(name, takes_node(name) ? node : "", rc); info;) {
      if (info->fabric_attr->prov_name == name && usable(*info)) {
        Info one(fi_dupinfo(info.get()));
        return one;
      }
      fi_info* next = info->next;
      info->next = nullptr;
      info.reset(next);
    }
  }
  throw FabricFailure(rc ? -rc : FI_ENODATA, "no provider for \"" + wanted + "\" with RDM, RMA and 4 bytes of CQ data on node " +
                                                 node + " in libfabric " + library_version() + " at " + library_path());
}

}  // namespace

std::string describe(int code) { return fi_strerror(code); }

void check(long rc, const std::string& operation) {
  if (rc < 0) throw FabricFailure(int(-rc), operation + ": " + describe(int(-rc)));
}

std::string library_path() {
  Dl_info found{};
  if (!dladdr(reinterpret_cast<void*>(&fi_version), &found) || !found.dli_fname) return "unknown";
  return found.dli_fname;
}

std::string library_version() {
  const uint32_t version = fi_version();
  return std::to_string(FI_MAJOR(version)) + "." + std::to_string(FI_MINOR(version));
}

std::vector<ProviderInfo> list_providers() {
  int rc = 0;
  Info all = query("", "", rc);
  if (rc == -FI_ENODATA) return {};
  check(rc, "fi_getinfo");
  std::vector<ProviderInfo> found;
  for (const fi_info* i = all.get(); i; i = i->next) {
    if (!usable(*i)) continue;
    const auto& d = *i->domain_attr;
    found.push_back({i->fabric_attr->prov_name, d.name, d.cq_data_size, i->tx_attr->inject_size, i->tx_attr->size,
                     i->tx_attr->iov_limit, i->tx_attr->rma_iov_limit, i->ep_attr->max_msg_size,
                     bool(d.mr_mode & FI_MR_VIRT_ADDR), bool(d.mr_mode & FI_MR_PROV_KEY), bool(d.mr_mode & FI_MR_LOCAL),
                     i->nic != nullptr});
  }
  return found;
}

uint64_t random_bits() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != ssize_t(sizeof bits)) throw FabricFailure(EIO, "getrandom");
  return bits;
}

Fabric::Fabric(const std::string& wanted, const std::string& node) : info(choose(wanted, node)) {
  if (info->addr_format == FI_ADDR_STR) sweep_shared_memory();
  const std::string at = " (provider " + provider() + ", " + library_path() + ")";
  fid_fabric* f = nullptr;
  check(fi_fabric(info->fabric_attr, &f, nullptr), "fi_fabric" + at);
  fabric.reset(f);
  fid_domain* d = nullptr;
  check(fi_domain(f, info.get(), &d, nullptr), "fi_domain" + at);
  domain.reset(d);
  open_queue();
  fi_av_attr av_attr{};
  av_attr.type = FI_AV_UNSPEC;
  fid_av* a = nullptr;
  check(fi_av_open(d, &av_attr, &a, nullptr), "fi_av_open" + at);
  av.reset(a);
  fid_ep* e = nullptr;
  check(fi_endpoint(d, info.get(), &e, nullptr), "fi_endpoint" + at);
  ep.reset(e);
  check(fi_ep_bind(e, &a->fid, 0), "fi_ep_bind(av)" + at);
  check(fi_ep_bind(e, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind(cq)" + at);
  if (info->addr_format == FI_ADDR_STR) {
    // The provider's own names repeat within a process: a stale address would reach whoever opened the next endpoint.
    const std::string name = "fi_shm://" + shared_memory_name();
    check(fi_setname(&e->fid, const_cast<char*>(name.c_str()), name.size() + 1), "fi_setname" + at);
  }
  check(fi_enable(e), "fi_enable" + at);
}

void Fabric::open_queue() {
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_DATA;
  attr.size = kQueueEntries;
  // shm has no descriptor that wakes a sleeper reliably (its blocking read hung): the worker naps instead.
  attr.wait_obj = info->addr_format == FI_ADDR_STR ? FI_WAIT_NONE : FI_WAIT_FD;
  fid_cq* opened = nullptr;
  int rc = fi_cq_open(domain.get(), &attr, &opened, nullptr);
  if (rc && attr.wait_obj == FI_WAIT_FD) {
    attr.wait_obj = FI_WAIT_NONE;
    rc = fi_cq_open(domain.get(), &attr, &opened, nullptr);
  }
  check(rc, "fi_cq_open");
  cq.reset(opened);
  if (attr.wait_obj == FI_WAIT_FD && fi_control(&opened->fid, FI_GETWAIT, &wait_fd)) wait_fd = -1;
}

uint64_t Fabric::write_extents() const {
  return std::max<uint64_t>(1, std::min(info->tx_attr->iov_limit, info->tx_attr->rma_iov_limit));
}

std::string Fabric::endpoint_name() const {
  std::string name(256, '\0');
  size_t size = name.size();
  int rc = fi_getname(&ep->fid, name.data(), &size);
  if (rc == -FI_ETOOSMALL) {
    name.resize(size);
    rc = fi_getname(&ep->fid, name.data(), &size);
  }
  check(rc, "fi_getname");
  name.resize(size);
  return name;
}

}  // namespace pyfabric
