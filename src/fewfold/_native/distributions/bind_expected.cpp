// The Python side of expected products of normal distribution functions, and of densities that have one.
#include <atomic>

#include "argument.h"
#include "bind.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

constexpr int64_t WORK = 32;  // approximate cost of a score: it is read at each point and in each step to the peak

// Returns the number of rows that need the general method, which are set to NaN.
template <class T>
int64_t expected_products(const Buffer &shift_, const Buffer &slope_, int64_t rows, int64_t n, const Buffer &out_,
                          int threads) {
  const T *shift = shift_.numbers<T>("shift", count_of(rows, n)), *slope = slope_.numbers<T>("slope", count_of(rows, n));
  T *out = out_.numbers<T>("out", rows);
  std::atomic<int64_t> left{0};
  share(rows, WORK * n, threads, [&](int64_t a, int64_t b) {
    left += table<T>().expected_products(shift + a * n, slope + a * n, b - a, n, out + a);
  });
  return left;
}

template <class T>
int64_t log_densities(const Buffer &y, int64_t apart, const Buffer &loc, int64_t loc_apart, const Buffer &scale,
                      int64_t scale_apart, int64_t rows, int64_t n, const Buffer &out_, int threads) {
  const Scored<T> at{y.apart<T>("y", reach_of(rows, n, apart)), loc.apart<T>("loc", reach_of(rows, n, loc_apart)),
                     scale.apart<T>("scale", reach_of(rows, n, scale_apart)), n, apart, loc_apart, scale_apart};
  T *out = out_.numbers<T>("out", count_of(rows));
  check_positive(n, "n");
  std::atomic<int64_t> left{0};
  share(rows, WORK * n, threads, [&](int64_t a, int64_t b) { left += table<T>().log_densities(at, a, b, out); });
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
