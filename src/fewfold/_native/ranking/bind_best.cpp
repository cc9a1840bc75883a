// The k best of every row, for Python; and the k best vectors of some queries, most of them read as bytes alone.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
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
            const Buffer &slack, const Buffer &balance, const Buffer &reach)
      : vectors_(vectors.numbers<float>("vectors", count_of(items, d))), items_(items), d_(d),
        balance_(balance.numbers<float>("balance", d)),
        bytes_{width, code.numbers<int8_t>("code", count_of(items, width)), step.numbers<float>("step", items),
               slack.numbers<float>("slack", items), reach.numbers<float>("reach", items)} {
    check_positive(d, "d");
    if (width < d || width % 32) refuse("width must be a multiple of 32 and at least d=" + std::to_string(d));
    for (int64_t i = 0; i < items; ++i) furthest_ = std::max(furthest_, static_cast<double>(bytes_.reach[i]));
    if (d > MOST_COLUMNS) refuse("vectors must be shorter than " + std::to_string(MOST_COLUMNS));
  }

  // The exact best k of n queries, (n, k) each. False where numbers are too large or too small for the bounds to hold.
  bool best(const Buffer &queries_, int64_t n, int64_t k, const Buffer &excluded_, const Buffer &offsets_,
            const Buffer &allowed_, const Buffer &scores_, const Buffer &ids_, int threads) const {
    const float *queries = queries_.numbers<float>("queries", count_of(n, d_));
    const bool *allowed = allowed_.maybe<bool>("allowed", items_);
    const int64_t *offsets = offsets_.numbers<int64_t>("offsets", count_of(n) + 1);
    check_offsets(offsets, n, excluded_.count(), "offsets");
    const int64_t *excluded = excluded_.numbers<int64_t>("excluded", offsets[n]);
    check_positive(k, "k");
    float *scores = scores_.numbers<float>("scores", count_of(n, k));
    int64_t *ids = ids_.numbers<int64_t>("ids", count_of(n, k));
    if (n == 0) return true;  // work is divided by the number of queries
    WholeQueries whole(n, bytes_.width);
    if (!round(queries, whole)) return false;
    const ByteQueries coded = whole.coded();
    std::vector<int64_t> out(excluded, excluded + offsets[n]);
    for (int64_t q = 0; q < n; ++q) std::sort(out.begin() + offsets[q], out.begin() + offsets[q + 1]);
    // Pieces are handed out one by one, since a thread may have to share its processor with others.
    const int lanes = team_for(items_, count_of(n, d_), threads);
    const int64_t pieces = lanes > 1 ? (items_ + PIECE - 1) / PIECE : 1, size = lanes > 1 ? PIECE : items_;
    std::vector<std::vector<Candidates>> by_lane(static_cast<size_t>(lanes), std::vector<Candidates>(static_cast<size_t>(n)));
    each_row(pieces, lanes, [&](int64_t piece, int lane) {
      const int64_t first = piece * size, last = std::min(first + size, items_);
      scan(coded, k, out.data(), offsets, allowed, first, last, by_lane[static_cast<size_t>(lane)]);
    });
    std::vector<Candidates> &found = by_lane[0];
    for (size_t lane = 1; lane < by_lane.size(); ++lane)
      for (size_t q = 0; q < found.size(); ++q) found[q].merge(by_lane[lane][q]);
    const int inside = n == 1 ? threads : 1;  // many queries are shared out among the threads
    share(n, 64 * count_of(k, d_), threads, [&](int64_t a, int64_t b) {
      for (int64_t q = a; q < b; ++q)
        best_of_candidates(queries + q * d_, found[static_cast<size_t>(q)], {scores + q * k, ids + q * k, k, 0}, inside);
    });
    return true;
  }

 private:
  static constexpr int64_t BLOCK = 512;  // items whose bounds are compared at a time
  static constexpr int64_t PIECE = 4 * BLOCK;  // items that a thread takes at a time
  static constexpr int64_t BYTES_FROM = 4;  // queries; fewer are read no faster as bytes
  static constexpr int64_t BYTES_UP_TO = 1 << 14;  // columns; with the shift, sums of products have 31 bits
  static constexpr double BYTES_ERROR = 0.02;  // of the norm of a query
  static constexpr int64_t SPLIT = 64;
  static constexpr int MOST_SHIFT = 8;
  static constexpr int64_t MOST_COLUMNS = 1 << 24;  // so that the quantised query is not all zeros
  const float *vectors_;
  int64_t items_, d_;
  const float *balance_;
  double furthest_ = 0;  // the largest of reach
  Bytes bytes_;

  // Queries quantised to integers.
  struct WholeQueries {
    int64_t n, stride, split = 0;
    std::vector<int16_t> code;
    std::vector<int8_t> bytes;
    std::vector<int32_t> shift, offset;
    std::vector<float> scale, norm, error;

    WholeQueries(int64_t count, int64_t width)
        : n(count), stride((width + 63) / 64 * 64), shift(static_cast<size_t>(count)), offset(static_cast<size_t>(count)),
          scale(static_cast<size_t>(count)), norm(static_cast<size_t>(count)), error(static_cast<size_t>(count)) {}

    ByteQueries coded() const {
      return {n, split, code.data(), bytes.empty() ? nullptr : bytes.data(), shift.data(), offset.data(), scale.data(),
              norm.data(), error.data()};
    }
  };

  // Rounds to bytes, which are multiplied faster, if the error is small; else to 16 bits. False if a query is out of range.
  bool round(const float *queries, WholeQueries &to) const {
    std::vector<double> x(static_cast<size_t>(count_of(to.n, d_)));  // balanced
    for (int64_t q = 0; q < to.n; ++q) {
      double square = 0, *row = x.data() + q * d_;
      for (int64_t j = 0; j < d_; ++j) {
        row[j] = static_cast<double>(queries[q * d_ + j]) / static_cast<double>(balance_[j]);
        square += row[j] * row[j];
      }
      const double norm = std::sqrt(square), furthest = norm * furthest_;
      if (!(furthest > 1e-20 && furthest < 1e30 && norm > 1e-20 && norm < 1e30)) return false;
      to.norm[static_cast<size_t>(q)] = static_cast<float>(norm * (1 + 1e-6));
    }
    if (to.n >= BYTES_FROM && d_ <= BYTES_UP_TO && tables->byte_products() && rounded_to_bytes(x.data(), to)) return true;
    // As large as possible without overflow of the inner products.
    const double largest = std::min<double>(32767, 2147483647 / (127 * d_));
    to.code.resize(static_cast<size_t>(count_of(to.n, bytes_.width)));
    for (int64_t q = 0; q < to.n; ++q) {
      const double *row = x.data() + q * d_, scale = largest_of(row, 0, d_) / largest;
      for (int64_t j = 0; j < d_; ++j)
        to.code[static_cast<size_t>(q * bytes_.width + j)] = static_cast<int16_t>(std::lrint(row[j] / scale));
      to.scale[static_cast<size_t>(q)] = static_cast<float>(scale);
      to.error[static_cast<size_t>(q)] = 0;
    }
    return true;
  }

  static double largest_of(const double *x, int64_t first, int64_t last) {
    double top = 0;
    for (int64_t j = first; j < last; ++j) top = std::max(top, std::abs(x[j]));
    return top;
  }

  // False if the error of a query would let too many items pass. The first columns often are larger than the others, and get
  // units of their own.
  bool rounded_to_bytes(const double *x, WholeQueries &to) const {
    to.split = d_ > SPLIT ? SPLIT : 0;
    to.bytes.assign(static_cast<size_t>(count_of(to.n, to.stride)), 0);
    for (int64_t q = 0; q < to.n; ++q, x += d_) {
      const size_t at = static_cast<size_t>(q);
      const double first = largest_of(x, 0, to.split), others = largest_of(x, to.split, d_);
      int shift = 0;
      while (shift < MOST_SHIFT && std::ldexp(others, shift + 1) <= first) ++shift;
      const double unit = std::max(std::ldexp(first, -shift), others) / 127;
      double square = 0;
      int64_t sum = 0;
      for (int64_t j = 0; j < d_; ++j) {
        const int up = j < to.split ? shift : 0;
        const long whole = std::lrint(std::ldexp(x[j], -up) / unit);
        const double rest = x[j] - std::ldexp(unit * static_cast<double>(whole), up);
        square += rest * rest;
        sum += static_cast<int64_t>(whole) * (int64_t{1} << up);
        to.bytes[static_cast<size_t>(q * to.stride + j)] = static_cast<int8_t>(whole);
      }
      const double error = std::sqrt(square);
      if (!(error <= BYTES_ERROR * static_cast<double>(to.norm[at]))) {
        to.bytes.clear();
        to.split = 0;
        return false;
      }
      to.shift[at] = shift;
      to.offset[at] = static_cast<int32_t>(-128 * sum);
      to.scale[at] = static_cast<float>(unit);
      to.error[at] = static_cast<float>(error * (1 + 1e-5));
    }
    return true;
  }

  // Items whose upper bound reached the bar when they were met, in any order. The bar is a lower bound of the k-th best.
  struct Candidates {
    std::vector<int64_t> id;
    std::vector<float> high, lows;  // of lows, a heap, the k best so far
    float bar = -INFINITY;

    void add(int64_t item, float upper, float lower, size_t k) {
      id.push_back(item);
      high.push_back(upper);
      if (lows.size() == k) {
        if (!(lower > bar)) return;
        std::pop_heap(lows.begin(), lows.end(), std::greater<float>());
        lows.back() = lower;
      } else {
        lows.push_back(lower);
      }
      std::push_heap(lows.begin(), lows.end(), std::greater<float>());
      if (lows.size() == k) bar = lows.front();
    }

    void merge(const Candidates &other) {
      id.insert(id.end(), other.id.begin(), other.id.end());
      high.insert(high.end(), other.high.begin(), other.high.end());
      bar = std::max(bar, other.bar);
    }

    // Removes those below the bar.
    void prune() {
      size_t kept = 0;
      for (size_t i = 0; i < id.size(); ++i)
        if (high[i] >= bar) {
          id[kept] = id[i];
          high[kept++] = high[i];
        }
      id.resize(kept);
      high.resize(kept);
    }
  };

  // Finds the candidates of each query among the items of [first, last), a block that fits the cache at a time.
  void scan(const ByteQueries &queries, int64_t k, const int64_t *out, const int64_t *offsets, const bool *allowed,
            int64_t first, int64_t last, std::vector<Candidates> &found) const {
    std::unique_ptr<float[]> high(new float[static_cast<size_t>(count_of(queries.n, BLOCK))]);
    int64_t at[BLOCK];
    for (int64_t start = first; start < last; start += BLOCK) {
      const int64_t stop = std::min(start + BLOCK, last);
      tables->byte_scores(bytes_, queries, allowed, start, stop, high.get() - start, BLOCK);
      for (int64_t q = 0; q < queries.n; ++q) {
        Candidates &mine = found[static_cast<size_t>(q)];
        const float *bounds = high.get() + q * BLOCK;
        const int64_t hits = tables->above(bounds, stop - start, std::nextafterf(mine.bar, -INFINITY), at);
        for (int64_t i = 0; i < hits; ++i) {
          const int64_t item = start + at[i];
          const float upper = bounds[at[i]];
          if (upper < mine.bar || std::binary_search(out + offsets[q], out + offsets[q + 1], item)) continue;
          const float margin = queries.norm[q] * bytes_.slack[item] + queries.error[q] * bytes_.reach[item];
          mine.add(item, upper, upper - 2 * margin, static_cast<size_t>(k));
        }
      }
    }
  }

  // The exact best k among the candidates of one query.
  void best_of_candidates(const float *query, Candidates &found, Best<float> heap, int threads) const {
    found.prune();
    const size_t k = static_cast<size_t>(heap.k);
    std::vector<float> scores;
    if (found.id.size() > 2 * k) {  // the exact scores of the k of highest bounds raise the bar
      std::vector<size_t> order(found.id.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::nth_element(order.begin(), order.begin() + heap.k - 1, order.end(),
                       [&](size_t a, size_t b) { return found.high[a] > found.high[b]; });
      std::vector<int64_t> first(k);
      for (size_t i = 0; i < k; ++i) first[i] = found.id[order[i]];
      scores.resize(k);
      exact(query, first.data(), heap.k, scores.data(), 1);
      found.bar = std::max(found.bar, *std::min_element(scores.begin(), scores.end()));
      found.prune();
    }
    std::sort(found.id.begin(), found.id.end());  // of equal scores the lower id wins
    const int64_t n = static_cast<int64_t>(found.id.size());
    scores.resize(found.id.size());
    exact(query, found.id.data(), n, scores.data(), threads);
    for (int64_t i = 0; i < n; ++i)
      table<float>().best_of(heap, scores.data() + i, 1, found.id[static_cast<size_t>(i)], nullptr);
    table<float>().best_sorted(heap);
  }

  void exact(const float *query, const int64_t *id, int64_t n, float *scores, int threads) const {
    share(n, d_, threads, [&](int64_t a, int64_t b) {
      table<float>().picked_dots(query, vectors_, d_, id + a, b - a, n - b, scores + a);
    });
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
                    const Buffer &, const Buffer &>(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>(),
           nb::keep_alive<1, 9>(), nb::keep_alive<1, 10>())
      .def("best", &Catalogue::best, nb::call_guard<nb::gil_scoped_release>());
}
