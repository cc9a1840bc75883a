// The Python side of expected products of normal distribution functions, and of densities that have one.
#include <atomic>

#include "bind.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

constexpr int64_t WORK = 32;  // a score is read about as often as a few points and a few steps to the peak need

// How many rows are not for the kernel: they get a NaN.
template <class T>
int64_t expected_products(uintptr_t shift, uintptr_t slope, int64_t rows, int64_t n, uintptr_t out, int threads) {
  std::atomic<int64_t> left{0};
  share(rows, WORK * n, threads, [&](int64_t a, int64_t b) {
    left += table<T>().expected_products(reinterpret_cast<const T *>(shift) + a * n,
                                         reinterpret_cast<const T *>(slope) + a * n, b - a, n,
                                         reinterpret_cast<T *>(out) + a);
  });
  return left;
}

template <class T>
int64_t log_densities(uintptr_t y, int64_t apart, uintptr_t loc, int64_t loc_apart, uintptr_t scale, int64_t scale_apart,
                      int64_t rows, int64_t n, uintptr_t out, int threads) {
  const Scored<T> at{reinterpret_cast<const T *>(y), reinterpret_cast<const T *>(loc),
                     reinterpret_cast<const T *>(scale), n, apart, loc_apart, scale_apart};
  std::atomic<int64_t> left{0};
  share(rows, WORK * n, threads, [&](int64_t a, int64_t b) {
    left += table<T>().log_densities(at, a, b, reinterpret_cast<T *>(out));
  });
  return left;
}

}  // namespace

void bind_expected(nb::module_ &m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def("expected_products_f32", &expected_products<float>, release());
  m.def("expected_products_f64", &expected_products<double>, release());
  m.def("log_densities_f32", &log_densities<float>, release());
  m.def("log_densities_f64", &log_densities<double>, release());
}
