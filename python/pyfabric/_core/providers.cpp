#include "fabric.hpp"

#include <dlfcn.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "errors.hpp"

namespace pyfabric {
namespace {

constexpr uint32_t kApi = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
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

Info query(const std::string& provider, const std::string& node, const std::string& domain, int& rc) {
  Info hints = make_hints(provider);
  if (!domain.empty()) hints->domain_attr->name = strdup(domain.c_str());
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
  Info all = query("", "", "", rc);
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

Info choose(const std::string& wanted, const std::string& node, const std::string& domain) {
  if (wanted == "shm" && FI_MAJOR(fi_version()) < 2)
    throw FabricFailure(FI_ENOSYS, "provider shm needs libfabric >= 2.0: before it, a delivery-complete write whose "
                                   "target is gone never completes; loaded is " + library_version() + " at " + library_path());
  int rc = -FI_ENODATA;
  for (const auto& name : candidates(wanted)) {
    const bool by_node = takes_node(name);
    for (Info info = query(name, by_node ? node : "", by_node ? "" : domain, rc); info;) {
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
                                                 node + (domain.empty() ? "" : " or domain " + domain) + " in libfabric " + library_version() + " at " + library_path());
}

}  // namespace pyfabric
