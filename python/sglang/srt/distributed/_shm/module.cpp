#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "group.hpp"
#include "mailbox.hpp"
#include "rounds.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;

nb::object receive(shm::Mailbox& mailbox, uint32_t reader) {
  std::optional<std::string> message;
  {
    nb::gil_scoped_release released;
    message = mailbox.receive(reader);
  }
  return message ? nb::object(nb::bytes(message->data(), message->size())) : nb::none();
}

bool publish(shm::Mailbox& mailbox, nb::bytes data) { return mailbox.publish(data.c_str(), data.size()); }

}  // namespace

NB_MODULE(_shm, m) {
  // An engine freezes its heap when it is ready (gc.freeze), so some objects live until the process ends: no fault.
  nb::set_leak_warnings(false);
  nb::exception<shm::Aborted>(m, "Aborted", PyExc_RuntimeError);
  nb::enum_<shm::Element>(m, "Element")
      .value("f32", shm::Element::f32)
      .value("bf16", shm::Element::bf16)
      .value("i64", shm::Element::i64);
  nb::class_<shm::Group>(m, "Group")
      .def(nb::init<uint64_t, uint64_t, uint32_t, uint32_t, uint64_t>(), nb::kw_only(), "address"_a, "nbytes"_a,
           "rank"_a, "size"_a, "spin_ns"_a)
      .def_static("needed", &shm::Group::needed, "size"_a, "slot_bytes"_a)
      .def("all_reduce", &shm::Group::all_reduce, Released(), "address"_a, "count"_a, "element"_a)
      .def("all_gather", &shm::Group::all_gather, Released(), "source"_a, "rows"_a, "row_bytes"_a, "target"_a)
      .def("broadcast", &shm::Group::broadcast, Released(), "address"_a, "nbytes"_a, "root"_a)
      .def("all_to_all", &shm::Group::all_to_all, Released(), "source"_a, "row_bytes"_a, "counts"_a, "target"_a)
      .def("barrier", &shm::Group::barrier, Released())
      .def("abort", &shm::Group::abort)
      .def("progress", &shm::Group::progress);
  nb::class_<shm::Mailbox>(m, "Mailbox")
      .def(nb::init<uint64_t, uint64_t, uint32_t, uint64_t>(), nb::kw_only(), "address"_a, "nbytes"_a, "readers"_a,
           "spin_ns"_a)
      .def("publish", &publish, "data"_a)
      .def("receive", &receive, "reader"_a)
      .def("close", &shm::Mailbox::close);
  nb::class_<shm::Rounds>(m, "Rounds")
      .def(nb::init<uint64_t, uint64_t, uint32_t>(), nb::kw_only(), "address"_a, "nbytes"_a, "size"_a)
      .def_static("needed", &shm::Rounds::needed)
      .def("call", &shm::Rounds::call)
      .def("join", &shm::Rounds::join, Released())
      .def("leave", &shm::Rounds::leave)
      .def("close", &shm::Rounds::close);
}
