#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "calls.hpp"
#include "levels.hpp"
#include "parallel.hpp"

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
    compute(outputs * inputs, [&] { call_linear(table_, call); });
  }

  void norm(uint64_t x, int64_t x_stride, int64_t x_head_stride, uint64_t weight, uint64_t out, int64_t out_stride,
            int64_t out_head_stride, int64_t rows, int64_t heads, int64_t size, float eps, bool bfloat16) const {
    const Norm call{at(x), x_stride, x_head_stride, at(weight), at(out), out_stride, out_head_stride, rows, heads, size,
                    eps,   type_of(bfloat16)};
    compute(rows * heads * size, [&] { call_norm(table_, call); });
  }

  void gate(uint64_t x, int64_t x_stride, uint64_t out, int64_t rows, int64_t width, bool bfloat16) const {
    const Gate call{at(x), x_stride, at(out), rows, width, type_of(bfloat16)};
    compute(rows * width, [&] { call_gate(table_, call); });
  }

  void rotate(uint64_t x, int64_t x_stride, int64_t x_head_stride, uint64_t cosine, uint64_t sine, int64_t rows,
              int64_t heads, int64_t dim, bool bfloat16) const {
    const Rotate call{at(x), x_stride, x_head_stride, at(cosine), at(sine), rows, heads, dim, type_of(bfloat16)};
    compute(rows * heads * dim, [&] { call_rotate(table_, call); });
  }

  void argmax(uint64_t x, int64_t x_stride, uint64_t out, int64_t rows, int64_t size, bool bfloat16) const {
    const Argmax call{at(x), x_stride, at<int64_t>(out), rows, size, type_of(bfloat16)};
    compute(rows * size, [&] { call_argmax(table_, call); });
  }

 private:
  friend class PagedKernels;
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
    compute(tokens * pages_.kv_heads * pages_.dim, [&] { call_store(table_, call, at(kv), kv_stride); });
  }

  void decode(uint64_t pages, uint64_t q, int64_t q_stride, uint64_t out, bool bfloat16, int64_t window, int64_t all_keys,
              uint64_t table, int64_t table_stride, uint64_t keys, uint64_t first, uint64_t queries, int64_t rows,
              int64_t) const {
    Attend call = rows_of(pages, bfloat16, table, table_stride, keys, first, queries, rows);
    ask(call, q, q_stride, out, window);
    compute(all_keys * pages_.kv_heads * pages_.dim, [&] { call_decode(table_, call); });
  }

  void chunk(uint64_t pages, uint64_t q, int64_t q_stride, uint64_t out, int64_t window, uint64_t table,
             int64_t table_stride, uint64_t keys, uint64_t first, uint64_t queries, int64_t rows, int64_t tokens) const {
    Attend call = rows_of(pages, true, table, table_stride, keys, first, queries, rows);
    ask(call, q, q_stride, out, window);
    compute(tokens * pages_.kv_heads * pages_.dim * group_, [&] { call_chunk(table_, call); });
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
      .def("argmax", &Kernels::argmax);
  nb::class_<PagedKernels>(m, "PagedKernels")
      .def(nb::init<const Kernels&, int64_t, int64_t, int64_t, int64_t, float, bool>(), nb::keep_alive<1, 2>())
      .def("store", &PagedKernels::store)
      .def("decode", &PagedKernels::decode)
      .def("chunk", &PagedKernels::chunk)
      .def_prop_ro("chunks", &PagedKernels::chunks);
}
