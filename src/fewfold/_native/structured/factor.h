// Cholesky factors that grow by a row and lose one, and the overlaps of structures they are made of.
#pragma once
#include "arborescence.h"
#include "assign.h"
#include "eisner.h"
#include "simd.h"
#include "structured.h"
#include "viterbi.h"

namespace fewfold {
namespace FEWFOLD_ISA {

inline double dot(const double *a, const double *b, int64_t n) {
  using V = Vec<double>;
  V one = V::of(0), two = V::of(0);
  int64_t i = 0;
  for (; i + 2 * V::N <= n; i += 2 * V::N) {
    one = V::fma(V::load(a + i), V::load(b + i), one);
    two = V::fma(V::load(a + i + V::N), V::load(b + i + V::N), two);
  }
  if (i + V::N <= n) one = V::fma(V::load(a + i), V::load(b + i), one), i += V::N;
  const int rest = static_cast<int>(n - i);
  if (rest) two = V::fma(V::load(a + i, rest, 0.0), V::load(b + i, rest, 0.0), two);
  return (one + two).sum();
}

// Four columns at a time, to shorten the dependency chain of the updates. Vectors begin at multiples of
// their length, and are whole, as partial stores prevent store forwarding. So x is padded to
// whole vectors, and so are columns of L; entries above the diagonal are arbitrary.
inline void solve_lower(const Factor &f, int64_t n, double *x) {
  using V = Vec<double>;
  int64_t c = 0;
  for (; c + 4 <= n; c += 4) {
    const double *p = f.l + c * f.ld, *q = p + f.ld, *r = q + f.ld, *s = r + f.ld;
    const double *inverse = f.inverse + c;
    const double a = x[c] * inverse[0], b = (x[c + 1] - p[c + 1] * a) * inverse[1];
    const double d = (x[c + 2] - p[c + 2] * a - q[c + 2] * b) * inverse[2];
    const double e = (x[c + 3] - p[c + 3] * a - q[c + 3] * b - r[c + 3] * d) * inverse[3];
    const V va = V::of(-a), vb = V::of(-b), vd = V::of(-d), ve = V::of(-e);
    static_assert(V::N <= 8, "of what is before c nothing may change");
    for (int64_t i = (c + 4) / V::N * V::N; i < n; i += V::N) {
      const V sum = V::fma(vb, V::load(q + i), V::fma(va, V::load(p + i), V::load(x + i)));
      const V other = V::fma(vd, V::load(r + i), ve * V::load(s + i));
      (sum + other).store(x + i);
    }
    x[c] = a, x[c + 1] = b, x[c + 2] = d, x[c + 3] = e;
  }
  for (; c < n; ++c) {  // at most three
    const double *column = f.l + c * f.ld;
    x[c] *= f.inverse[c];
    for (int64_t i = c + 1; i < n; ++i) x[i] -= x[c] * column[i];
  }
}

inline void solve_upper(const Factor &f, int64_t n, double *x) {
  using V = Vec<double>;
  int64_t c = n;
  for (; c >= 4; c -= 4) {
    const double *p = f.l + (c - 4) * f.ld, *q = p + f.ld, *r = q + f.ld, *s = r + f.ld;
    V vp = V::of(0), vq = V::of(0), vr = V::of(0), vs = V::of(0);
    for (int64_t i = c; i < n; i += V::N) {
      const int m = static_cast<int>(n - i < V::N ? n - i : V::N);
      const V known = V::load(x + i, m, 0.0);
      vp = V::fma(known, V::load(p + i, m, 0.0), vp);
      vq = V::fma(known, V::load(q + i, m, 0.0), vq);
      vr = V::fma(known, V::load(r + i, m, 0.0), vr);
      vs = V::fma(known, V::load(s + i, m, 0.0), vs);
    }
    const double *inverse = f.inverse + c;
    const double e = (x[c - 1] - vs.sum()) * inverse[-1];
    const double d = (x[c - 2] - vr.sum() - r[c - 1] * e) * inverse[-2];
    const double b = (x[c - 3] - vq.sum() - q[c - 1] * e - q[c - 2] * d) * inverse[-3];
    x[c - 4] = (x[c - 4] - vp.sum() - p[c - 1] * e - p[c - 2] * d - p[c - 3] * b) * inverse[-4];
    x[c - 1] = e, x[c - 2] = d, x[c - 3] = b;
  }
  for (--c; c >= 0; --c) {
    const double *column = f.l + c * f.ld;
    x[c] = (x[c] - dot(column + c + 1, x + c + 1, n - c - 1)) * f.inverse[c];
  }
}

// Without row i the rest has one number above the diagonal in each row from there on: rotations of neighbouring
// columns bring it to zero. `spare` holds n numbers.
inline void drop(const Factor &f, int64_t n, int64_t i, double *spare) {
  using V = Vec<double>;
  for (int64_t c = 0; c < i; ++c) {
    double *column = f.l + c * f.ld;
    for (int64_t r = i; r + 1 < n; ++r) column[r] = column[r + 1];
  }
  for (int64_t r = i; r < n; ++r) spare[r] = f.l[i * f.ld + r];
  for (int64_t k = i; k + 1 < n; ++k) {
    const double *next = f.l + (k + 1) * f.ld;
    double *to = f.l + k * f.ld;
    const double a = spare[k + 1], b = next[k + 1], one_by = 1 / std::sqrt(a * a + b * b);
    const double c = a * one_by, s = b * one_by;
    f.inverse[k] = one_by;
    const V cs = V::of(c), sn = V::of(s);
    int64_t r = k + 1;
    for (; r + V::N <= n; r += V::N) {  // stores are one row above the loads
      const V x = V::load(spare + r), y = V::load(next + r);
      V::fma(cs, x, sn * y).store(to + r - 1);
      (cs * y - sn * x).store(spare + r);
    }
    for (; r < n; ++r) {
      const double x = spare[r], y = next[r];
      to[r - 1] = c * x + s * y;
      spare[r] = c * y - s * x;
    }
    double *const sides[] = {f.scores, f.ones};
    for (double *along : sides) {
      const double x = along[k], y = along[k + 1];
      along[k] = c * x + s * y;
      along[k + 1] = c * y - s * x;
    }
  }
}

inline void overlaps(const int32_t *codes, const int32_t *order, int64_t count, int64_t slots, const int32_t *code,
                     const double *by, double *out) {
  for (int64_t i = 0; i < count; ++i) {
    const int32_t *other = codes + static_cast<int64_t>(order[i]) * slots;
    if (by) {
      double sum = 0;
      for (int64_t j = 0; j < slots; ++j)
        if (code[j] >= 0 && code[j] == other[j]) sum += by[code[j]];
      out[i] = sum;
    } else {
      out[i] = static_cast<double>(count_equal(code, other, slots));
    }
  }
}

inline double take_off(const double *scores, const double *mu, const double *by, int64_t n, double *left) {
  using V = Vec<double>;
  V sum = V::of(0), other = sum;
  int64_t i = 0;
  for (; !by && i + 2 * V::N <= n; i += 2 * V::N) {
    const V x = V::load(mu + i), y = V::load(mu + i + V::N);
    sum = V::fma(x, x, sum), other = V::fma(y, y, other);
    (V::load(scores + i) - x).store(left + i);
    (V::load(scores + i + V::N) - y).store(left + i + V::N);
  }
  for (; i < n; i += V::N) {
    const int m = static_cast<int>(n - i < V::N ? n - i : V::N);
    const V x = V::load(mu + i, m, 0.0), pull = by ? x * V::load(by + i, m, 0.0) : x;
    sum = V::fma(pull, x, sum);
    (V::load(scores + i, m, 0.0) - pull).store(left + i, m);
  }
  return (sum + other).sum();
}

constexpr StructuredTable structured_table() { return {overlaps, solve_lower, solve_upper, drop, dot, viterbi, trace, any_nan, count_step, arborescence, eisner, assignment_table(), take_off, all_numbers}; }

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
