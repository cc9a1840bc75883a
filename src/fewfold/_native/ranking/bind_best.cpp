// The k best of every row, for Python; and the k best vectors of one query, most of them read as bytes alone.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "argument.h"
#include "bind.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

// The heaps of all rows, (rows, k) each, of which `count` entries are in use.
template <class T> struct Heaps {
  T *score;
  int64_t *id, *count, k;
  Heaps(int64_t rows, int64_t k_, const Buffer &best, const Buffer &ids, const Buffer &counts)
      : score(best.numbers<T>("best", count_of(rows, k_))), id(ids.numbers<int64_t>("ids", count_of(rows, k_))),
        count(counts.numbers<int64_t>("count", rows)), k(k_) {
    check_range(count, rows, 0, k + 1, "count");
  }
  Best<T> of(int64_t row) const { return {score + row * k, id + row * k, k, count[row]}; }
};

// Takes a block of scores (rows, n) of the ids from `base` on into the heaps, (rows, k) each. What a row excludes is
// overwritten. False if a score is a NaN.
template <class T>
bool best_of(const Buffer &scores_, int64_t rows, int64_t n, int64_t base, int64_t k, const Buffer &best,
             const Buffer &ids, const Buffer &count, const Buffer &excluded, const Buffer &offsets,
             const Buffer &allowed_, int threads) {
  T *scores = scores_.numbers<T>("scores", count_of(rows, n));
  check_positive(k, "k");
  const Heaps<T> heaps(rows, k, best, ids, count);
  const int64_t *offset = offsets.maybe<int64_t>("offsets", count_of(rows) + 1);
  if (offset) check_offsets(offset, rows, excluded.count(), "offsets");
  const int64_t *out = offset ? excluded.numbers<int64_t>("excluded", offset[rows]) : nullptr;
  const bool *allowed = allowed_.maybe<bool>("allowed", count_of(base) + n);
  std::atomic<bool> fine{true};
  share(rows, n, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      T *x = scores + r * n;
      for (int64_t i = offset ? offset[r] : 0; offset && i < offset[r + 1]; ++i)
        if (out[i] >= base && out[i] < base + n) x[out[i] - base] = -std::numeric_limits<T>::infinity();
      Best<T> heap = heaps.of(r);
      if (!table<T>().best_of(heap, x, n, base, allowed)) fine = false;
      heaps.count[r] = heap.n;
    }
  });
  return fine;
}

// The heaps to lists, best first.
template <class T>
void best_sorted(int64_t rows, int64_t k, const Buffer &best, const Buffer &ids, const Buffer &count, int threads) {
  const Heaps<T> heaps(rows, k, best, ids, count);
  share(rows, 16 * k, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      Best<T> heap = heaps.of(r);
      table<T>().best_sorted(heap);
    }
  });
}

// Vectors as numbers and as bytes. Column j of the bytes was multiplied by the power of two balance[j] before.
class Catalogue {
 public:
  Catalogue(const Buffer &vectors, int64_t items, int64_t d, const Buffer &code, int64_t width, const Buffer &step,
            const Buffer &slack, const Buffer &balance, double reach)
      : vectors_(vectors.numbers<float>("vectors", count_of(items, d))), items_(items), d_(d),
        balance_(balance.numbers<float>("balance", d)), reach_(reach),
        bytes_{width, code.numbers<int8_t>("code", count_of(items, width)), step.numbers<float>("step", items),
               slack.numbers<float>("slack", items)} {
    check_positive(d, "d");
    if (width < d || width % 32) refuse("width must be a multiple of 32 and at least d=" + std::to_string(d));
    if (d > MOST_COLUMNS) refuse("vectors must be shorter than " + std::to_string(MOST_COLUMNS));
  }

  // The exact best k of one query. False where the numbers are too large or too small for the bounds to hold.
  bool best(const Buffer &query_, int64_t k, const Buffer &excluded_, int64_t excluded_n, const Buffer &allowed_,
            const Buffer &scores, const Buffer &ids, int threads) const {
    const float *query = query_.numbers<float>("query", d_);
    const bool *allowed = allowed_.maybe<bool>("allowed", items_);
    const int64_t *excluded = excluded_.numbers<int64_t>("excluded", count_of(excluded_n));
    check_positive(k, "k");
    Best<float> heap{scores.numbers<float>("scores", k), ids.numbers<int64_t>("ids", k), k, 0};
    std::vector<int16_t> code(static_cast<size_t>(bytes_.width));
    ByteQuery q{code.data(), 0, 0};
    if (!round(query, code.data(), q)) return false;
    std::unique_ptr<float[]> high(new float[static_cast<size_t>(items_)]);
    share(items_, d_, threads, [&](int64_t a, int64_t b) {
      tables->byte_scores(bytes_, q, allowed, a, b, high.get());
    });
    for (int64_t i = 0; i < excluded_n; ++i)
      if (excluded[i] >= 0 && excluded[i] < items_) high[static_cast<size_t>(excluded[i])] = -INFINITY;
    const float bar = k_good_ones(query, high.get(), heap);
    std::unique_ptr<int64_t[]> candidate(new int64_t[static_cast<size_t>(items_)]);
    const int64_t n = tables->above(high.get(), items_, std::nextafterf(bar, -INFINITY), candidate.get());
    exact(query, candidate.get(), n, high.get(), threads);  // overwrites the bounds, which are no longer needed
    heap.n = 0;
    for (int64_t i = 0; i < n; ++i) table<float>().best_of(heap, high.get() + i, 1, candidate[static_cast<size_t>(i)], nullptr);
    table<float>().best_sorted(heap);
    return true;
  }

 private:
  static constexpr int64_t MOST_COLUMNS = 1 << 24;  // so that the quantised query is not all zeros
  const float *vectors_;
  int64_t items_, d_;
  const float *balance_;
  double reach_;
  Bytes bytes_;

  // The query quantised to integers, as large as possible without overflow of the inner products.
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

  // The lowest exact score among the k items of highest bounds: a bound on the k-th best. -inf if there are fewer.
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
      .def(nb::init<const Buffer &, int64_t, int64_t, const Buffer &, int64_t, const Buffer &, const Buffer &,
                    const Buffer &, double>(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>(),
           nb::keep_alive<1, 9>())
      .def("best", &Catalogue::best, nb::call_guard<nb::gil_scoped_release>());
}
