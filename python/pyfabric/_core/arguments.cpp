#include "arguments.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace nb = nanobind;

namespace pyfabric {
namespace {

// (region, peer, base, keys, remote nbytes, source_layers, destination_layers, source_page_bytes, destination_page_bytes,
//  source_offset, destination_offset, nbytes, source_pages, destination_pages)
constexpr Py_ssize_t kLaneFields = 14;

uint64_t whole(nb::handle value, const char* name) {
  PyObject* index = PyNumber_Index(value.ptr());
  if (!index) {
    PyErr_Clear();
    throw std::invalid_argument(std::string(name) + " must be an int");
  }
  const uint64_t number = PyLong_AsUnsignedLongLong(index);
  Py_DECREF(index);
  if (number == uint64_t(-1) && PyErr_Occurred()) {
    PyErr_Clear();
    throw std::invalid_argument(std::string(name) + " must be an int of 0..2**64-1");
  }
  return number;
}

// A borrowed one-dimensional contiguous buffer. The buffer protocol costs ~0.1 us, an ndarray cast ten times that.
class Buffer {
 public:
  Buffer(nb::handle object, const char* name) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ND | PyBUF_FORMAT) == 0) return;
    PyErr_Clear();
    throw std::invalid_argument(std::string(name) + " must be a contiguous one-dimensional array");
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <class T>
  std::vector<T> copy(const char* name, const char* formats, const char* type) const {
    const char* format = view_.format ? view_.format : "B";
    const bool fits = view_.itemsize == sizeof(T) && strlen(format) == 1 && strchr(formats, *format);
    if (view_.ndim != 1 || !fits) throw std::invalid_argument(std::string(name) + " must be a one-dimensional " + type + " array");
    std::vector<T> items(size_t(view_.len) / sizeof(T));
    if (!items.empty()) memcpy(items.data(), view_.buf, size_t(view_.len));
    return items;
  }

 private:
  Py_buffer view_{};
};

std::vector<uint64_t> offsets(nb::handle object, const char* name) { return Buffer(object, name).copy<uint64_t>(name, "LQ", "uint64"); }
std::vector<int32_t> pages(nb::handle object, const char* name) { return Buffer(object, name).copy<int32_t>(name, "il", "int32"); }

std::vector<uint64_t> keys(nb::handle tuple) {
  if (!PyTuple_Check(tuple.ptr())) throw std::invalid_argument("destination.key must be an int");
  std::vector<uint64_t> keys;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple.ptr()); ++i) keys.push_back(whole(PyTuple_GET_ITEM(tuple.ptr(), i), "destination.key"));
  return keys;
}

LaneSpec read_lane(nb::handle fields) {
  if (!PyTuple_Check(fields.ptr()) || PyTuple_GET_SIZE(fields.ptr()) != kLaneFields) throw std::invalid_argument("lanes must be Lane objects");
  const auto field = [&](Py_ssize_t i) { return nb::handle(PyTuple_GET_ITEM(fields.ptr(), i)); };
  std::shared_ptr<Region> region;
  if (!nb::try_cast(field(0), region) || !region) throw std::invalid_argument("source must be a MemoryRegion of this library");
  const uint64_t peer = whole(field(1), "peer");
  const Grant destination{whole(field(2), "destination.base"), whole(field(4), "destination.nbytes"), keys(field(3))};
  return LaneSpec{ReadLease(std::move(region)),
                  int64_t(std::min<uint64_t>(peer, INT64_MAX)),
                  destination,
                  offsets(field(5), "source_layers"),
                  offsets(field(6), "destination_layers"),
                  whole(field(7), "source_page_bytes"),
                  whole(field(8), "destination_page_bytes"),
                  whole(field(9), "source_offset"),
                  whole(field(10), "destination_offset"),
                  whole(field(11), "nbytes"),
                  pages(field(12), "source_pages"),
                  pages(field(13), "destination_pages")};
}

}  // namespace

std::unique_ptr<Program> read_program(std::shared_ptr<Counter> counter, nb::handle thresholds, nb::handle slot, nb::handle lanes) {
  auto program = std::make_unique<Program>();
  program->counter = std::move(counter);
  program->thresholds = offsets(thresholds, "thresholds");
  program->slot = whole(slot, "slot");
  if (!PyList_Check(lanes.ptr())) throw std::invalid_argument("lanes must be a sequence of Lane");
  const Py_ssize_t count = PyList_GET_SIZE(lanes.ptr());
  program->lanes.reserve(size_t(count));
  for (Py_ssize_t i = 0; i < count; ++i) program->lanes.push_back(Lane{read_lane(nb::handle(PyList_GET_ITEM(lanes.ptr(), i)))});
  return program;
}

}  // namespace pyfabric
