#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arguments.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "fabric.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace pyfabric {
namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;

// A vector handed over to numpy without a copy.
nb::object as_array(std::vector<int64_t>&& values) {
  auto* kept = new std::vector<int64_t>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

// Events cross as tagged tuples; events.py gives them their classes.
struct ToTuple {
  nb::tuple operator()(ProgramDone& e) const {
    return nb::make_tuple("done", e.handle, as_array(std::move(e.seen_ns)), as_array(std::move(e.posted_ns)), as_array(std::move(e.layer_bytes)));
  }
  nb::tuple operator()(ProgramDrained& e) const { return nb::make_tuple("drained", e.handle); }
  nb::tuple operator()(ProgramFailed& e) const { return nb::make_tuple("failed", e.handle, e.peer, e.reason); }
  nb::tuple operator()(SlotComplete& e) const { return nb::make_tuple("slot", e.slot, e.completed_ns); }
  nb::tuple operator()(PeerReady& e) const { return nb::make_tuple("ready", e.peer); }
  nb::tuple operator()(PeerLost& e) const { return nb::make_tuple("lost", e.peer, e.reason); }
};

nb::list poll(Engine& engine) {
  nb::list out;
  for (Event& event : engine.poll()) out.append(std::visit(ToTuple{}, event));
  return out;
}

Grant grant(Region& region, const std::string& peer, nb::bytes address) {
  std::optional<Address> writer;
  if (address.size()) writer = Address::decode(std::string(address.c_str(), address.size()));
  const nb::gil_scoped_release released;
  return region.grant(peer, std::move(writer));
}

uint64_t arm(Engine& engine, std::shared_ptr<Counter> counter, nb::handle thresholds, nb::handle slot, nb::handle lanes) {
  auto program = read_program(std::move(counter), thresholds, slot, lanes);
  const nb::gil_scoped_release released;
  return engine.arm(std::move(program));
}

void raise_failure(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const FabricFailure& failure) {
    const nb::object error = nb::module_::import_("pyfabric.errors").attr("from_errno")(failure.code(), failure.what());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  }
}

void bind_memory(nb::module_& m) {
  nb::class_<Grant>(m, "Grant")
      .def_ro("base", &Grant::base)
      .def_prop_ro("keys", [](const Grant& g) { return nb::tuple(nb::cast(g.keys)); })
      .def_ro("nbytes", &Grant::nbytes);
  nb::class_<Region>(m, "Region")
      .def_prop_ro("address", &Region::address)
      .def_prop_ro("nbytes", &Region::nbytes)
      .def_prop_ro("closed", &Region::closed)
      .def("grant", &grant, "peer"_a, "address"_a)
      .def("close", &Region::close, Released());
  nb::class_<Counter>(m, "Counter")
      .def_prop_ro("address", &Counter::address)
      .def_prop_ro("value", &Counter::value)
      .def("add", &Counter::add, "n"_a = 1);
}

void bind_engine(nb::module_& m) {
  nb::class_<Engine>(m, "Engine")
      .def("__init__",
           [](Engine* self, const std::string& provider, const std::string& node, uint32_t weight_bits, uint64_t slots,
              double post_deadline_s, bool spin, std::vector<std::string> domains) {
             const nb::gil_scoped_release released;
             new (self) Engine({provider, node, weight_bits, slots, post_deadline_s, spin, std::move(domains)});
           },
           nb::kw_only(), "provider"_a, "node"_a, "weight_bits"_a, "slots"_a, "post_deadline_s"_a, "spin"_a, "domains"_a)
      .def("start", &Engine::start, "cpus"_a, Released())
      .def("close", &Engine::close, Released())
      .def_prop_ro("provider", &Engine::provider)
      .def_prop_ro("domains", &Engine::domains)
      .def_prop_ro("virtual_addresses", &Engine::virtual_addresses)
      .def_prop_ro("address", [](const Engine& e) { return nb::bytes(e.address().data(), e.address().size()); })
      .def_prop_ro("write_extents", [](const Engine& e) { return e.limits().write_extents; })
      .def("fileno", &Engine::fileno)
      .def("poll", &poll)
      .def("register_memory",
           [](Engine& e, uint64_t address, uint64_t nbytes, int fd, uint64_t offset) {
             const nb::gil_scoped_release released;
             return e.register_memory(address, nbytes, {fd, offset});
           },
           "address"_a, "nbytes"_a, "fd"_a, "fd_offset"_a)
      .def("revoke", &Engine::revoke, "region"_a, "peer"_a, Released())
      .def("connect", [](Engine& e, nb::bytes blob) { return e.connect(std::string(blob.c_str(), blob.size())); }, "address"_a)
      .def("warm", &Engine::warm, "peer"_a)
      .def("disconnect", &Engine::disconnect, "peer"_a)
      .def("expect", [](Engine& e, uint64_t slot, uint64_t weight) { e.expect(slot, weight); }, "slot"_a, "weight"_a)
      .def("forget", [](Engine& e, uint64_t slot) { return e.forget(slot); }, "slot"_a, Released())
      .def("counter", &Engine::counter)
      .def("arm", &arm, "counter"_a, "thresholds"_a, "slot"_a, "lanes"_a)
      .def("cancel", &Engine::cancel, "handle"_a)
      .def("stats", &Engine::stats)
      .def("peer_stats", &Engine::peer_stats, "peer"_a);
}

void bind_library(nb::module_& m) {
  nb::class_<ProviderInfo>(m, "ProviderInfo")
      .def_ro("provider", &ProviderInfo::provider)
      .def_ro("domain", &ProviderInfo::domain)
      .def_ro("cq_data_bytes", &ProviderInfo::cq_data_bytes)
      .def_ro("inject_bytes", &ProviderInfo::inject_bytes)
      .def_ro("tx_size", &ProviderInfo::tx_size)
      .def_ro("iov_limit", &ProviderInfo::iov_limit)
      .def_ro("rma_iov_limit", &ProviderInfo::rma_iov_limit)
      .def_ro("max_write_bytes", &ProviderInfo::max_write_bytes)
      .def_ro("virtual_addresses", &ProviderInfo::virtual_addresses)
      .def_ro("provider_keys", &ProviderInfo::provider_keys)
      .def_ro("local_registration", &ProviderInfo::local_registration)
      .def_ro("has_nic", &ProviderInfo::has_nic);
  m.def("list_providers", &list_providers, Released());
  m.def("library_path", &library_path);
  m.def("library_version", &library_version);
}

}  // namespace
}  // namespace pyfabric

NB_MODULE(_core, m) {
  nb::register_exception_translator(pyfabric::raise_failure);
  pyfabric::bind_library(m);
  pyfabric::bind_memory(m);
  pyfabric::bind_engine(m);
}
