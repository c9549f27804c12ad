#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "calls.hpp"
#include "levels.hpp"
#include "parallel.hpp"
#include "tape.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace cpu_kernels;

namespace {

// Elements from which on a call gives up the GIL. Getting it back may mean waiting for another thread's turn, which for
// the small calls of a decode step would be longer than the call.
constexpr int64_t kWorthRelease = 1 << 17;

template <typename T = void> T* at(uint64_t address) { return reinterpret_cast<T*>(address); }

template <typename F> void compute(int64_t elements, F&& body) {
  std::optional<nb::gil_scoped_release> released;
  if (elements >= kWorthRelease) released.emplace();
  body();
}

// Performs a call, or notes it down where this thread is recording.
template <typename Call> void make(const Table& table, int64_t elements, const Call& call) {
  if (Tape* tape = Tape::recording()) return tape->record(call);
  compute(elements, [&] { perform(table, call); });
}

Type type_of(bool bfloat16) { return bfloat16 ? Type::kBfloat16 : Type::kFloat32; }

// A level's kernels. Addresses are trusted: ops.py checks shapes, types and strides.
class Kernels {
 public:
  explicit Kernels(const std::string& name) : table_(level(name)) {}

  std::string name() const { return table_.name; }

  void linear(uint64_t x, int64_t x_stride, int64_t rows, int64_t inputs, uint64_t weight, int64_t outputs, uint64_t bias,
              uint64_t out, int64_t out_stride, uint64_t scales) const {
    const Linear call{at<uint16_t>(x),   x_stride, at<uint16_t>(weight), at<uint16_t>(bias),
                      at<uint16_t>(out), out_stride, rows,               outputs,
                      inputs,            at<float>(scales)};
    make(table_, outputs * inputs, call);
  }

  void norm(uint64_t x, int64_t x_stride, int64_t x_head_stride, uint64_t weight, uint64_t out, int64_t out_stride,
            int64_t out_head_stride, int64_t rows, int64_t heads, int64_t size, float eps, bool bfloat16) const {
    const Norm call{at(x), x_stride, x_head_stride, at(weight), at(out), out_stride, out_head_stride, rows, heads, size,
                    eps,   type_of(bfloat16)};
    make(table_, rows * heads * size, call);
  }

  void gate(uint64_t x, int64_t x_stride, uint64_t out, int64_t rows, int64_t width, bool bfloat16) const {
    const Gate call{at(x), x_stride, at(out), rows, width, type_of(bfloat16)};
    make(table_, rows * width, call);
  }

  void rotate(uint64_t x, int64_t x_stride, int64_t x_head_stride, uint64_t cosine, uint64_t sine, int64_t rows,
              int64_t heads, int64_t dim, bool bfloat16) const {
    const Rotate call{at(x), x_stride, x_head_stride, at(cosine), at(sine), rows, heads, dim, type_of(bfloat16)};
    make(table_, rows * heads * dim, call);
  }

  void add(uint64_t x, uint64_t y, int64_t rows, int64_t width, bool bfloat16) const {
    const Add call{at(x), at(y), rows, width, type_of(bfloat16)};
    make(table_, rows * width, call);
  }

  void lookup(uint64_t numbers, uint64_t table, bool packed, int64_t entries, int64_t width, uint64_t out, int64_t rows,
              bool bfloat16) const {
    const Lookup call{at<int64_t>(numbers), at(table), packed, entries, width, at(out), rows, type_of(bfloat16)};
    make(table_, rows * width, call);
  }

  void turns(uint64_t positions, uint64_t inverse, int64_t pairs, float magnitude, uint64_t cosine, uint64_t sine,
             int64_t rows, bool bfloat16) const {
    const Turns call{at<int64_t>(positions), at<float>(inverse), pairs, magnitude, at(cosine), at(sine), rows,
                     type_of(bfloat16)};
    make(table_, rows * pairs, call);
  }

  void argmax(uint64_t x, int64_t x_stride, uint64_t out, int64_t rows, int64_t size, bool bfloat16) const {
    const Argmax call{at(x), x_stride, at<int64_t>(out), rows, size, type_of(bfloat16)};
    make(table_, rows * size, call);
  }

  void draw(uint64_t x, int64_t x_stride, bool bfloat16, uint64_t temperature, uint64_t top_k, uint64_t top_p, uint64_t min_p,
            uint64_t uniform, uint64_t out, int64_t rows, int64_t size) const {
    const Draw call{at(x),           x_stride,          type_of(bfloat16), at<float>(temperature), at<int64_t>(top_k), at<float>(top_p),
                    at<float>(min_p), at<double>(uniform), at<int64_t>(out),  rows,                   size};
    make(table_, rows * size, call);
  }

  void route(uint64_t x, int64_t x_stride, bool bfloat16, uint64_t weight, int64_t experts, int64_t inputs, int64_t top_k,
             bool normalize, float scale, uint64_t chosen, uint64_t shares, int64_t rows) const {
    const Route call{at(x),  x_stride,  type_of(bfloat16), at<float>(weight),   experts,          inputs,
                     top_k, normalize, scale,             at<int64_t>(chosen), at<float>(shares), rows};
    make(table_, rows * experts * inputs, call);
  }

  void experts(uint64_t x, int64_t x_stride, uint64_t chosen, uint64_t shares, int64_t top_k, uint64_t held, int64_t first,
               int64_t count, int64_t inputs, int64_t width, uint64_t out, int64_t rows) const {
    const Experts call{at<uint16_t>(x), x_stride, at<int64_t>(chosen), at<float>(shares), top_k,          at<Expert>(held),
                       first,           count,    inputs,              width,             at<float>(out), rows};
    make(table_, rows * top_k * inputs * width, call);
  }

  void narrow(uint64_t x, uint64_t added, uint64_t out, int64_t rows, int64_t width, bool bfloat16) const {
    const Narrow call{at<float>(x), at(added), at(out), rows, width, type_of(bfloat16)};
    make(table_, rows * width, call);
  }

 private:
  friend class PagedKernels;
  friend class Recorder;
  const Table& table_;
};

// The kernels that touch one geometry of pages.
class PagedKernels {
 public:
  PagedKernels(const Kernels& kernels, int64_t heads, int64_t kv_heads, int64_t page_size, int64_t dim, float scale,
               bool pages_bfloat16)
      : table_(kernels.table_), group_(heads / kv_heads), scale_(scale) {
    pages_ = {nullptr, type_of(pages_bfloat16), kv_heads, page_size, dim};
  }

  bool chunks() const { return pages_.type == Type::kBfloat16 && pages_.dim % 32 == 0; }

  void store(uint64_t pages, uint64_t kv, int64_t kv_stride, bool bfloat16, uint64_t table, int64_t table_stride,
             uint64_t keys, uint64_t first, uint64_t queries, int64_t rows, int64_t tokens) const {
    const Attend call = rows_of(pages, bfloat16, table, table_stride, keys, first, queries, rows);
    make(table_, tokens * pages_.kv_heads * pages_.dim, StoreRows{call, at(kv), kv_stride});
  }

  void decode(uint64_t pages, uint64_t q, int64_t q_stride, uint64_t out, bool bfloat16, int64_t window, int64_t all_keys,
              uint64_t table, int64_t table_stride, uint64_t keys, uint64_t first, uint64_t queries, int64_t rows,
              int64_t) const {
    Attend call = rows_of(pages, bfloat16, table, table_stride, keys, first, queries, rows);
    ask(call, q, q_stride, out, window);
    make(table_, all_keys * pages_.kv_heads * pages_.dim, Decode{call});
  }

  void chunk(uint64_t pages, uint64_t q, int64_t q_stride, uint64_t out, int64_t window, uint64_t table,
             int64_t table_stride, uint64_t keys, uint64_t first, uint64_t queries, int64_t rows, int64_t tokens) const {
    Attend call = rows_of(pages, true, table, table_stride, keys, first, queries, rows);
    ask(call, q, q_stride, out, window);
    make(table_, tokens * pages_.kv_heads * pages_.dim * group_, Chunk{call});
  }

 private:
  void ask(Attend& call, uint64_t q, int64_t q_stride, uint64_t out, int64_t window) const {
    call.q = at(q);
    call.q_stride = q_stride;
    call.out = at(out);
    call.window = window;
  }

  Attend rows_of(uint64_t pages, bool bfloat16, uint64_t table, int64_t table_stride, uint64_t keys, uint64_t first,
                 uint64_t queries, int64_t rows) const {
    Attend call{};
    call.pages = pages_;
    call.pages.data = at(pages);
    call.type = type_of(bfloat16);
    call.table = at<int32_t>(table);
    call.table_stride = table_stride;
    call.keys = at<int32_t>(keys);
    call.first = at<int32_t>(first);
    call.queries = at<int32_t>(queries);
    call.rows = rows;
    call.group = group_;
    call.scale = scale_;
    return call;
  }

  const Table& table_;
  int64_t group_;
  float scale_;
  Pages pages_;
};

// A tape for Python.
class Recorder {
 public:
  Recorder(const Kernels& kernels, int64_t rows) : tape_(kernels.table_, rows) {}

  void begin() { tape_.begin(); }
  void end() { tape_.end(); }
  size_t size() const { return tape_.size(); }

  void play(uint64_t table, int64_t table_stride, uint64_t keys, uint64_t first, uint64_t queries, int64_t rows,
            int64_t) const {
    const nb::gil_scoped_release released;
    tape_.play({at<int32_t>(table), table_stride, at<int32_t>(keys), at<int32_t>(first), at<int32_t>(queries), rows});
  }

 private:
  Tape tape_;
};

std::vector<std::string> level_names() {
  std::vector<std::string> names;
  for (const Table* table : levels()) names.emplace_back(table->name);
  return names;
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("levels", &level_names);
  m.def("threads", &threads);
  m.def("packed_size", &packed_size, "outputs"_a, "inputs"_a);
  m.def("pack", [](uint64_t weight, int64_t stride, int64_t outputs, int64_t inputs, uint64_t packed) {
    const nb::gil_scoped_release released;
    pack(at<uint16_t>(weight), stride, outputs, inputs, at<uint16_t>(packed));
  });
  nb::class_<Kernels>(m, "Kernels")
      .def(nb::init<const std::string&>(), "level"_a)
      .def_prop_ro("level", &Kernels::name)
      .def("linear", &Kernels::linear)
      .def("norm", &Kernels::norm)
      .def("gate", &Kernels::gate)
      .def("rotate", &Kernels::rotate)
      .def("add", &Kernels::add)
      .def("lookup", &Kernels::lookup)
      .def("turns", &Kernels::turns)
      .def("argmax", &Kernels::argmax)
      .def("draw", &Kernels::draw)
      .def("route", &Kernels::route)
      .def("experts", &Kernels::experts)
      .def("narrow", &Kernels::narrow);
  nb::class_<PagedKernels>(m, "PagedKernels")
      .def(nb::init<const Kernels&, int64_t, int64_t, int64_t, int64_t, float, bool>(), nb::keep_alive<1, 2>())
      .def("store", &PagedKernels::store)
      .def("decode", &PagedKernels::decode)
      .def("chunk", &PagedKernels::chunk)
      .def_prop_ro("chunks", &PagedKernels::chunks);
  nb::class_<Recorder>(m, "Tape")
      .def(nb::init<const Kernels&, int64_t>(), nb::keep_alive<1, 2>())
      .def("begin", &Recorder::begin)
      .def("end", &Recorder::end)
      .def("play", &Recorder::play)
      .def("__len__", &Recorder::size);
}
