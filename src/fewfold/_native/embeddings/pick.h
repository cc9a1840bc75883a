// Rows of a table gathered by id: their inner products with a query, their sum, and the gradients of both.
#pragma once
#include <cstring>

#include "simd.h"
#include "table.h"

namespace fewfold {
namespace FEWFOLD_ISA {

constexpr int64_t AHEAD = 16;  // prefetch distance in rows: each misses every cache

template <class T> inline T dot(const T *a, const T *b, int64_t d) {
  using V = Vec<T>;
  V sum[2] = {V::of(0), V::of(0)};
  int64_t j = 0;
  for (; j + 2 * V::N <= d; j += 2 * V::N)
    for (int i = 0; i < 2; ++i) sum[i] = V::fma(V::load(a + j + i * V::N), V::load(b + j + i * V::N), sum[i]);
  for (; j < d; j += V::N) {
    const int n = static_cast<int>(d - j < V::N ? d - j : V::N);
    sum[0] = V::fma(V::load(a + j, n, T(0)), V::load(b + j, n, T(0)), sum[0]);
  }
  return (sum[0] + sum[1]).sum();
}

// y += by * x
template <class T> inline void add_scaled(T *y, const T *x, T by, int64_t d) {
  using V = Vec<T>;
  const V b = V::of(by);
  int64_t j = 0;
  for (; j + V::N <= d; j += V::N) V::fma(V::load(x + j), b, V::load(y + j)).store(y + j);
  if (j < d) {
    const int n = static_cast<int>(d - j);
    V::fma(V::load(x + j, n, T(0)), b, V::load(y + j, n, T(0))).store(y + j, n);
  }
}

// y = by * x
template <class T> inline void scaled(T *y, const T *x, T by, int64_t d) {
  using V = Vec<T>;
  const V b = V::of(by);
  int64_t j = 0;
  for (; j + V::N <= d; j += V::N) (V::load(x + j) * b).store(y + j);
  if (j < d) (V::load(x + j, static_cast<int>(d - j), T(0)) * b).store(y + j, static_cast<int>(d - j));
}

// Whether all ids are rows of a table of this size.
inline bool within(const int64_t *ids, int64_t n, int64_t size) {
  bool fine = true;
  for (int64_t i = 0; i < n; ++i) fine &= static_cast<uint64_t>(ids[i]) < static_cast<uint64_t>(size);
  return fine;
}

// scores[i] = query . table[ids[i]] for the n ids of one query; `later` more ids follow, of other queries.
template <class T>
void picked_dots(const T *query, const T *table, int64_t d, const int64_t *ids, int64_t n, int64_t later, T *scores) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + AHEAD < n + later) prefetch_range<2>(table + ids[i + AHEAD] * d, d);
    scores[i] = dot(query, table + ids[i] * d, d);
  }
}

// pull += sum_i scale by[i] table[ids[i]]; values[i] = scale by[i] query. Either may be null.
template <class T>
void picked_pulls(const T *query, const T *table, int64_t d, const int64_t *ids, int64_t n, int64_t later, const T *by,
                  T scale, T *pull, T *values) {
  for (int64_t i = 0; i < n; ++i) {
    if (pull) {
      if (i + AHEAD < n + later) prefetch_range<2>(table + ids[i + AHEAD] * d, d);
      add_scaled(pull, table + ids[i] * d, scale * by[i], d);
    }
    if (values) scaled(values + i * d, query, scale * by[i], d);
  }
}

// The softmax of x - shift, in place of x; returns its log normaliser. NaN if a score is NaN or +inf; scores of -inf
// have weight zero.
template <class T> T soften(T *x, const T *shift, int64_t n) {
  using V = Vec<T>;
  const V lowest = V::of(LOWEST<T>);
  V top = V::of(-INF<T>), poison = V::of(0);
  for (int64_t j = 0; j < n; j += V::N) {
    const int size = static_cast<int>(n - j < V::N ? n - j : V::N);
    const V v = V::load(x + j, size, T(0)) - V::load(shift + j, size, T(0));
    v.store(x + j, size);
    top = V::max(V::load(x + j, size, -INF<T>), top);
    const V bounded = V::max(lowest, v);  // a NaN stays
    poison = poison + (bounded - bounded);
  }
  const T high = top.top(), bad = poison.sum();
  if (!(bad == 0)) {
    for (int64_t j = 0; j < n; ++j) x[j] = bad;
    return bad;
  }
  V sum = V::of(0);
  for (int64_t j = 0; j < n; j += V::N) {
    const int size = static_cast<int>(n - j < V::N ? n - j : V::N);
    const V e = exp_down(V::load(x + j, size, -INF<T>) - V::of(high));
    e.store(x + j, size);
    sum = sum + V::load(x + j, size, T(0));
  }
  const T total = sum.sum();
  scaled(x, x, 1 / total, n);
  return high + std::log(total);
}

// out = by sum_i table[ids[i]]
template <class T>
void bag(const T *table, int64_t d, const int64_t *ids, int64_t n, int64_t later, T by, T *out) {
  constexpr int64_t SHORT_AHEAD = 4;  // prefetch distance: shorter, as these rows are long
  std::memset(out, 0, static_cast<size_t>(d) * sizeof(T));
  for (int64_t i = 0; i < n; ++i) {
    if (i + SHORT_AHEAD < n + later) prefetch_range<2>(table + ids[i + SHORT_AHEAD] * d, d);
    add_scaled(out, table + ids[i] * d, T(1), d);
  }
  scaled(out, out, by, d);
}

// Its gradient: by g for each of n rows.
template <class T> void unbag(const T *g, int64_t d, int64_t n, T by, T *values) {
  for (int64_t i = 0; i < n; ++i) scaled(values + i * d, g, by, d);
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
