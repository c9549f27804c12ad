#pragma once
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rail.hpp"

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

// The fi_info to open: socket providers are found by the local address `node`, others by the name of their `domain` (empty: the first).
Info choose(const std::string& wanted, const std::string& node, const std::string& domain);

// One fabric, domain, endpoint, completion queue and address vector. Closed in reverse order of opening.
class Fabric : public Rail {
 public:
  Fabric(const std::string& provider, const std::string& node, const std::string& domain);

  std::string provider() const override { return info_->fabric_attr->prov_name; }
  std::string domain() const override { return info_->domain_attr->name; }
  std::string endpoint() const override;
  bool virtual_addresses() const override { return info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR; }
  RailLimits limits() const override;
  std::unique_ptr<Registration> register_local(uint64_t address, uint64_t nbytes, const Backing& backing) override;
  std::unique_ptr<Registration> register_target(uint64_t address, uint64_t nbytes) override;

  long add_peer(const std::string& endpoint, uint64_t& peer) override;
  void remove_peer(uint64_t peer) override;
  long post(const Write& write) override;
  size_t poll(Completion* out, size_t most) override;
  std::string explain(const Completion& failed) const override;
  bool may_sleep() override;
  int wait_fd() const override { return wait_fd_; }
  void sever(uint64_t peer, const std::string& endpoint, const Address& target) override;
  std::vector<CutSocket> cut_incoming(const Address* writer) override;
  void close_endpoint() override;

 private:
  std::unique_ptr<Registration> open(uint64_t address, uint64_t nbytes, uint64_t access);
  void open_queue();
  size_t take_error(Completion* out);
  bool shared_memory() const { return info_->addr_format == FI_ADDR_STR; }
  void forget_gone_peers();
  void end_accepted();

  Info info_;
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  Fid<fid_cq> cq_;
  Fid<fid_av> av_;
  Fid<fid_ep> ep_;
  struct Kept {
    uint64_t address;
    int users;
  };
  std::map<std::string, Kept> kept_;  // shared memory only, by endpoint name
  int wait_fd_ = -1;
};

}  // namespace pyfabric
