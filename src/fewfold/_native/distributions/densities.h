// Densities of the Gaussian-sparsemax with independent scores, row by row: distributions/gaussian_sparsemax.py.
#pragma once
#include "expected.h"
#include "table.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// The scores on the face, `y + t`: the Gaussian posterior of their common shift t, and their log density.
struct Shifted {
  double place = 0, width = 0, log_density = 0;
  int64_t corners = 0;
};

// In double precision: the inverse square of a small scale may dominate the sums. `where` holds up to n positions.
template <class T> Shifted shifted_normal(const T *y, const T *loc, const T *scale, int64_t n, int32_t *where) {
  Shifted found;
  double total = 0, pull = 0, product = 1, logs = 0, spread = 0;
  for (int64_t j = 0; j < n; ++j) {
    if (!(y[j] > 0)) {
      if (y[j] != y[j]) total = __builtin_nan("");
      continue;
    }
    const double s = static_cast<double>(scale[j]), precision = 1 / (s * s);
    where[found.corners++] = static_cast<int32_t>(j);
    total += precision;
    pull += precision * (static_cast<double>(y[j]) - static_cast<double>(loc[j]));
    product *= s;
    if (product < 1e-200 || product > 1e200) {
      logs += __builtin_log(product);
      product = 1;
    }
  }
  found.place = -pull / total;
  found.width = 1 / __builtin_sqrt(total);
  for (int64_t i = 0; i < found.corners; ++i) {
    const int64_t j = where[i];
    const double s = static_cast<double>(scale[j]);
    const double off = (static_cast<double>(y[j]) - static_cast<double>(loc[j]) + found.place) / s;
    spread += off * off;
  }
  const double corners = static_cast<double>(found.corners);
  found.log_density = __builtin_log(corners * found.width / product) - logs -
                      (spread + (corners - 1) * __builtin_log(2 * PI)) / 2;
  return found;
}

// Shifts and slopes of the scores off the face. Returns their number.
template <class T>
int64_t off_the_face(const T *y, const T *loc, const T *scale, int64_t n, const Shifted &on, T *shift, T *slope) {
  using V = Vec<T>;
  const V place = V::of(static_cast<T>(on.place)), width = V::of(static_cast<T>(on.width));
  const V zero = V::of(0), one = V::of(1);
  int64_t many = 0;
  for (int64_t j = 0; j < n; j += V::N) {
    const int m = static_cast<int>(n - j < V::N ? n - j : V::N);
    const V by = V::load(scale + j, m, 1), a = (place - V::load(loc + j, m, 0)) / by, s = width / by;
    const typename V::Mask off = V::gt(one, V::keep(V::gt(V::load(y + j, m, 1), zero), one));
    V::pack(shift + many, off, a);
    V::pack(slope + many, off, s);
    many += V::count(off);
  }
  return many;
}

// Returns the number of rows that need the general method, which are set to NaN.
template <class T> int64_t log_densities(const Scored<T> &at, int64_t first, int64_t last, T *out) {
  const int64_t capacity = at.n + Vec<T>::N;
  T *shift = static_cast<T *>(std::malloc(2 * static_cast<size_t>(capacity) * sizeof(T))), *slope = shift + capacity;
  int32_t *where = static_cast<int32_t *>(std::malloc(static_cast<size_t>(capacity) * sizeof(int32_t)));
  Products<T> products(at.n);
  int64_t left = 0;
  for (int64_t r = first; r < last; ++r) {
    out[r] = static_cast<T>(__builtin_nan(""));
    if (shift && where) {
      const T *y = at.y + r * at.apart, *loc = at.loc + r * at.loc_apart, *scale = at.scale + r * at.scale_apart;
      const Shifted on = shifted_normal(y, loc, scale, at.n, where);
      const int64_t off = off_the_face(y, loc, scale, at.n, on, shift, slope);
      if (off == 1) {  // Phi(shift + slope t) is itself the probability of a Gaussian
        const double s = static_cast<double>(*slope);
        *shift = static_cast<T>(static_cast<double>(*shift) / __builtin_sqrt(1 + s * s));
        *slope = 0;
      }
      out[r] = static_cast<T>(on.log_density + (off ? products.of(shift, slope, off) : 0));
    }
    left += !(out[r] - out[r] == 0);
  }
  std::free(shift);
  std::free(where);
  return left;
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
