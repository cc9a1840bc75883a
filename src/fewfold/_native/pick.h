// Inner products of a few rows of a table, chosen by id, with the query that chose them; and their gradients.
#pragma once
#include <cstring>

#include "simd.h"
#include "table.h"

namespace fewfold {
namespace FEWFOLD_ISA {

constexpr int64_t AHEAD = 16;  // rows asked for before they are needed: each is a miss in every cache

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

template <class T> inline void fetch(const T *row, int64_t d) {
  for (int64_t j = 0; j < d; j += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(row + j);
}

// scores[i] = query . table[ids[i]] for the n ids of one query; false if one of them is not below `size`.
template <class T>
bool picked_dots(const T *query, const T *table, int64_t size, int64_t d, const int64_t *ids, int64_t n, T *scores) {
  for (int64_t i = 0; i < n; ++i)
    if (static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(size)) return false;
  for (int64_t i = 0; i < n; ++i) {
    if (i + AHEAD < n) fetch(table + ids[i + AHEAD] * d, d);
    scores[i] = dot(query, table + ids[i] * d, d);
  }
  return true;
}

// pull += sum_i by[i] table[ids[i]]; values[i] = by[i] query. Either may be left out. The ids have been through the above.
template <class T>
void picked_pulls(const T *query, const T *table, int64_t d, const int64_t *ids, int64_t n, const T *by, T *pull,
                  T *values) {
  using V = Vec<T>;
  for (int64_t i = 0; i < n; ++i) {
    if (pull) {
      if (i + AHEAD < n) fetch(table + ids[i + AHEAD] * d, d);
      add_scaled(pull, table + ids[i] * d, by[i], d);
    }
    if (!values) continue;
    const V b = V::of(by[i]);
    T *out = values + i * d;
    int64_t j = 0;
    for (; j + V::N <= d; j += V::N) (V::load(query + j) * b).store(out + j);
    if (j < d) (V::load(query + j, static_cast<int>(d - j), T(0)) * b).store(out + j, static_cast<int>(d - j));
  }
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
