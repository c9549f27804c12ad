#pragma once
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pyfabric {

template <class T>
struct FidCloser {
  void operator()(T* fid) const { fi_close(&fid->fid); }
};
template <class T>
using Fid = std::unique_ptr<T, FidCloser<T>>;

struct InfoCloser {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoCloser>;

// What one usable provider reports about itself (`python -m pyfabric`).
struct ProviderInfo {
  std::string provider, domain;
  uint64_t cq_data_bytes, inject_bytes, tx_size, iov_limit, rma_iov_limit, max_write_bytes;
  bool virtual_addresses, provider_keys, local_registration, has_nic;
};

// Every RDM provider of the loaded library that carries RMA and at least 4 bytes of CQ data, in the library's order.
std::vector<ProviderInfo> list_providers();
std::string library_path();
std::string library_version();
uint64_t random_bits();

// One fabric, domain, endpoint, completion queue and address vector. Closed in reverse order of opening.
class Fabric {
 public:
  Fabric(const std::string& provider, const std::string& node);

  std::string provider() const { return info->fabric_attr->prov_name; }
  bool virtual_addresses() const { return info->domain_attr->mr_mode & FI_MR_VIRT_ADDR; }
  bool provider_keys() const { return info->domain_attr->mr_mode & FI_MR_PROV_KEY; }
  uint64_t write_extents() const;    // local and remote extents that one write may carry
  uint64_t window() const { return info->tx_attr->size; }
  uint64_t max_write_bytes() const { return info->ep_attr->max_msg_size; }
  uint64_t inject_bytes() const { return info->tx_attr->inject_size; }
  std::string endpoint_name() const;
  void close_endpoint() { ep.reset(); }

  Info info;
  Fid<fid_fabric> fabric;
  Fid<fid_domain> domain;
  Fid<fid_cq> cq;
  Fid<fid_av> av;
  Fid<fid_ep> ep;
  int wait_fd = -1;  // readable when the CQ wants progress; -1 where the provider has none that works

 private:
  void open_queue();
};

}  // namespace pyfabric
