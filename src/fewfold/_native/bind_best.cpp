// The k best of every row, for Python; and the k best vectors of one query, most of them read as bytes alone.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "bind.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

template <class T> const T *reading(uintptr_t address) { return reinterpret_cast<const T *>(address); }
template <class T> T *writing(uintptr_t address) { return reinterpret_cast<T *>(address); }

// Takes a block of scores (rows, n) of the ids from `base` on into the heaps, (rows, k) each. What a row excludes is
// overwritten. False if a score is a NaN.
template <class T>
bool best_of(uintptr_t scores, int64_t rows, int64_t n, int64_t base, int64_t k, uintptr_t best, uintptr_t ids,
             uintptr_t count, uintptr_t excluded, uintptr_t offsets, uintptr_t allowed, int threads) {
  const int64_t *out = reading<int64_t>(excluded), *offset = reading<int64_t>(offsets);
  std::atomic<bool> fine{true};
  share(rows, n, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      T *x = writing<T>(scores) + r * n;
      for (int64_t i = offset ? offset[r] : 0; offset && i < offset[r + 1]; ++i)
        if (out[i] >= base && out[i] < base + n) x[out[i] - base] = -std::numeric_limits<T>::infinity();
      int64_t &held = writing<int64_t>(count)[r];
      Best<T> heap{writing<T>(best) + r * k, writing<int64_t>(ids) + r * k, k, held};
      if (!table<T>().best_of(heap, x, n, base, reading<bool>(allowed))) fine = false;
      held = heap.n;
    }
  });
  return fine;
}

// The heaps to lists, best first.
template <class T>
void best_sorted(int64_t rows, int64_t k, uintptr_t best, uintptr_t ids, uintptr_t count, int threads) {
  share(rows, 16 * k, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      Best<T> heap{writing<T>(best) + r * k, writing<int64_t>(ids) + r * k, k, reading<int64_t>(count)[r]};
      table<T>().best_sorted(heap);
    }
  });
}

// Vectors as numbers and as bytes. Column j of the bytes was multiplied by the power of two balance[j] before.
class Catalogue {
 public:
  Catalogue(uintptr_t vectors, int64_t items, int64_t d, uintptr_t code, int64_t width, uintptr_t step, uintptr_t slack,
            uintptr_t balance, double reach)
      : vectors_(reading<float>(vectors)), items_(items), d_(d), balance_(reading<float>(balance)), reach_(reach),
        bytes_{width, reading<int8_t>(code), reading<float>(step), reading<float>(slack)} {}

  // The exact best k of one query. False where the numbers are too large or too small for the bounds to hold.
  bool best(uintptr_t query_, int64_t k, uintptr_t excluded_, int64_t excluded_n, uintptr_t allowed, uintptr_t scores,
            uintptr_t ids, int threads) const {
    const float *query = reading<float>(query_);
    std::vector<int16_t> code(static_cast<size_t>(bytes_.width));
    ByteQuery q{code.data(), 0, 0};
    if (!round(query, code.data(), q)) return false;
    std::unique_ptr<float[]> high(new float[static_cast<size_t>(items_)]);
    share(items_, d_, threads, [&](int64_t a, int64_t b) {
      tables->byte_scores(bytes_, q, reading<bool>(allowed), a, b, high.get());
    });
    const int64_t *excluded = reading<int64_t>(excluded_);
    for (int64_t i = 0; i < excluded_n; ++i)
      if (excluded[i] >= 0 && excluded[i] < items_) high[static_cast<size_t>(excluded[i])] = -INFINITY;
    Best<float> heap{writing<float>(scores), writing<int64_t>(ids), k, 0};
    const float bar = k_good_ones(query, high.get(), heap);
    std::unique_ptr<int64_t[]> candidate(new int64_t[static_cast<size_t>(items_)]);
    const int64_t n = tables->above(high.get(), items_, std::nextafterf(bar, -INFINITY), candidate.get());
    exact(query, candidate.get(), n, high.get(), threads);  // the bounds have served
    heap.n = 0;
    for (int64_t i = 0; i < n; ++i) table<float>().best_of(heap, high.get() + i, 1, candidate[static_cast<size_t>(i)], nullptr);
    table<float>().best_sorted(heap);
    return true;
  }

 private:
  const float *vectors_;
  int64_t items_, d_;
  const float *balance_;
  double reach_;
  Bytes bytes_;

  // The query in whole numbers, as large as the sums of their products with bytes allow.
  bool round(const float *query, int16_t *code, ByteQuery &q) const {
    double top = 0, square = 0;
    for (int64_t j = 0; j < d_; ++j) {
      const double x = static_cast<double>(query[j]) / static_cast<double>(balance_[j]);
      top = std::max(top, std::abs(x));
      square += x * x;
    }
    const double norm = std::sqrt(square), furthest = norm * reach_;
    if (!(furthest > 1e-20 && furthest < 1e30 && norm > 1e-20 && norm < 1e30)) return false;
    const double largest = std::min<double>(32767, 2147483647 / (127 * d_)), scale = top / largest;
    for (int64_t j = 0; j < d_; ++j)
      code[j] = static_cast<int16_t>(std::lrint(static_cast<double>(query[j]) / static_cast<double>(balance_[j]) / scale));
    q.scale = static_cast<float>(scale);
    q.norm = static_cast<float>(norm * (1 + 1e-6));
    return true;
  }

  void exact(const float *query, const int64_t *id, int64_t n, float *scores, int threads) const {
    share(n, d_, threads, [&](int64_t a, int64_t b) {
      table<float>().picked_dots(query, vectors_, d_, id + a, b - a, n - b, scores + a);
    });
  }

  // The lowest score of k items that promise most: one that the answer reaches. Minus infinity if there are fewer.
  float k_good_ones(const float *query, const float *high, Best<float> &heap) const {
    table<float>().best_of(heap, high, items_, 0, nullptr);
    if (heap.n < heap.k) return -INFINITY;
    exact(query, heap.id, heap.n, heap.score, 1);
    return *std::min_element(heap.score, heap.score + heap.n);
  }
};

template <class T> void bind(nb::module_ &m, const std::string &suffix) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def(("best_of_" + suffix).c_str(), &best_of<T>, release());
  m.def(("best_sorted_" + suffix).c_str(), &best_sorted<T>, release());
}

}  // namespace

void bind_best(nb::module_ &m) {
  bind<float>(m, "f32");
  bind<double>(m, "f64");
  nb::class_<Catalogue>(m, "Catalogue")
      .def(nb::init<uintptr_t, int64_t, int64_t, uintptr_t, int64_t, uintptr_t, uintptr_t, uintptr_t, double>())
      .def("best", &Catalogue::best, nb::call_guard<nb::gil_scoped_release>());
}
