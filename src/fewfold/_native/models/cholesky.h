// A Cholesky factor that grows by rows, in single precision.
#pragma once
#include "simd.h"

namespace fewfold {
namespace FEWFOLD_ISA {

inline float row_dot(const float *a, const float *b, int64_t n) {
  using V = Vec<float>;
  V one = V::of(0), two = V::of(0);
  int64_t i = 0;
  for (; i + 2 * V::N <= n; i += 2 * V::N) {
    one = V::fma(V::load(a + i), V::load(b + i), one);
    two = V::fma(V::load(a + i + V::N), V::load(b + i + V::N), two);
  }
  if (i + V::N <= n) one = V::fma(V::load(a + i), V::load(b + i), one), i += V::N;
  const int rest = static_cast<int>(n - i);
  if (rest) two = V::fma(V::load(a + i, rest, 0.0f), V::load(b + i, rest, 0.0f), two);
  return (one + two).sum();
}

// Inner products of four rows with two others, over the first n columns: what is loaded serves several of them.
inline void tile_dots(const float *a, const float *b, int64_t stride, int64_t n, float out[4][2]) {
  using V = Vec<float>;
  V sum[4][2];
  for (int r = 0; r < 4; ++r) sum[r][0] = sum[r][1] = V::of(0);
  int64_t i = 0;
  for (; i + V::N <= n; i += V::N) {
    const V p = V::load(b + i), q = V::load(b + stride + i);
    for (int r = 0; r < 4; ++r) {
      const V x = V::load(a + r * stride + i);
      sum[r][0] = V::fma(x, p, sum[r][0]);
      sum[r][1] = V::fma(x, q, sum[r][1]);
    }
  }
  const int rest = static_cast<int>(n - i);
  if (rest) {
    const V p = V::load(b + i, rest, 0.0f), q = V::load(b + stride + i, rest, 0.0f);
    for (int r = 0; r < 4; ++r) {
      const V x = V::load(a + r * stride + i, rest, 0.0f);
      sum[r][0] = V::fma(x, p, sum[r][0]);
      sum[r][1] = V::fma(x, q, sum[r][1]);
    }
  }
  for (int r = 0; r < 4; ++r) out[r][0] = sum[r][0].sum(), out[r][1] = sum[r][1].sum();
}

// Rows [first, last) of a matrix, from their diagonal to the left, become those of its factor L; the rows before have
// been. `inverse` are the inverses of the diagonal of L. A pivot below `least` counts as `least`.
inline void cholesky_rows(float *l, int64_t stride, int64_t first, int64_t last, float least, float *inverse) {
  for (int64_t i = first; i < last;) {
    const int64_t many = last - i < 4 ? 1 : 4;
    int64_t j = 0;
    for (; many == 4 && j + 2 <= i; j += 2) {
      float dots[4][2];
      tile_dots(l + i * stride, l + j * stride, stride, j, dots);
      const float between = l[(j + 1) * stride + j];
      for (int r = 0; r < 4; ++r) {
        float *row = l + (i + r) * stride;
        row[j] = (row[j] - dots[r][0]) * inverse[j];
        row[j + 1] = (row[j + 1] - dots[r][1] - row[j] * between) * inverse[j + 1];
      }
    }
    const int64_t from = j;
    for (int64_t r = i; r < i + many; ++r) {
      float *row = l + r * stride;
      for (j = from; j < r; ++j) row[j] = (row[j] - row_dot(row, l + j * stride, j)) * inverse[j];
      const float pivot = row[r] - row_dot(row, row, r);
      row[r] = __builtin_sqrtf(pivot > least ? pivot : least);
      inverse[r] = 1 / row[r];
    }
    i += many;
  }
}

// Entries [first, last) of the solution y of L y = x, in place; those before have been found.
inline void solve_rows(const float *l, int64_t stride, int64_t first, int64_t last, const float *inverse, float *y) {
  for (int64_t i = first; i < last; ++i) y[i] = (y[i] - row_dot(l + i * stride, y, i)) * inverse[i];
}

// L' x = what is in x, in place.
inline void solve_columns(const float *l, int64_t stride, int64_t n, const float *inverse, float *x) {
  using V = Vec<float>;
  for (int64_t i = n - 1; i >= 0; --i) {
    x[i] *= inverse[i];
    const float *row = l + i * stride;
    const V by = V::of(-x[i]);
    int64_t k = 0;
    for (; k + V::N <= i; k += V::N) V::fma(by, V::load(row + k), V::load(x + k)).store(x + k);
    for (; k < i; ++k) x[k] -= x[i] * row[k];
  }
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
