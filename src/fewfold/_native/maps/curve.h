// The threshold equation every map of the family solves, and its solution on one row.
//
//   u_i = [scale * (x_i - top) - t]_+      sum_i u_i^e = 1      p_i = u_i^out  (divided by its sum if `normalise`)
//
// 1 < alpha <= 2 (above, u^out is too steep at zero and needs another algorithm).
// alpha-entmax: scale = alpha - 1, e = out = 1/(alpha-1).  alpha-normmax: scale = 1, e = alpha/(alpha-1), out = 1/(alpha-1).
// So e >= 1, and the e-norm of u is convex in t: Newton from the left is monotone and every iterate is a lower bound.
// Any subset of the row gives a lower bound on t as well, which is what makes the filters of stream.h safe.
#pragma once
#include "simd.h"

namespace fewfold {
namespace FEWFOLD_ISA {

template <class T> inline T least(T a, T b) { return a < b ? a : b; }

// A number of type T slightly below t: filters must never remove entries of the support.
inline float below(double t, float) { return static_cast<float>(t - std::fabs(t) * 1.2e-7 - 1e-37); }
inline double below(double t, double) { return t - std::fabs(t) * 2.3e-16; }

// Sums of many small numbers: eight vectors at most are added in T, the rest in double, or a constant row of a
// million entries would lose its sixth digit.
template <class T> struct Total {
  Vec<double> part[2];
  Total() : part{Vec<double>::of(0), Vec<double>::of(0)} {}
  void add(Vec<T> v) { widen(v, part[0], part[1]); }
  double sum() const { return (part[0] + part[1]).sum(); }
};
constexpr int RUN = 8;

template <class T> struct Curve {
  T scale, e, out;
  bool normalise, norm;
  double alpha;
  // Where one entry leads many that are barely in the support, its share depends on the last digits of the threshold, times
  // their number: normmax divides by their sum, and of another alpha float does not even hold alpha - 1. A row in which
  // their number times the square of the highest is more than this is done again in double.
  T touchy() const { return sizeof(T) == 8 ? INF<T> : norm || out < 2 ? T(8) : T(64); }
  static Curve entmax(double alpha) {
    const double e = 1 / (alpha - 1);
    return {static_cast<T>(alpha - 1), static_cast<T>(e), static_cast<T>(e), alpha != 2 && alpha != 1.5, false, alpha};
  }
  static Curve normmax(double alpha) {
    return {T(1), static_cast<T>(alpha / (alpha - 1)), static_cast<T>(1 / (alpha - 1)), true, true, alpha};
  }
};

// u^q; small whole powers need no logarithm.
template <class T> inline bool multiplies(T q) { return q == 1 || q == 2 || q == 3 || q == 4; }
template <class T> inline Vec<T> raise(Vec<T> u, T q) {
  if (q == 1) return u;
  if (q == 2) return u * u;
  if (q == 3) return u * u * u;
  if (q == 4) {
    const Vec<T> w = u * u;
    return w * w;
  }
  return power(u, q);
}

// Where a solve reads its values from: an array that is shifted already, or a row of scores.
template <class T> struct Ready {
  const T *v;
  Vec<T> at(int64_t i) const { return Vec<T>::load(v + i); }
  Vec<T> at(int64_t i, int n) const { return Vec<T>::load(v + i, n, -INF<T>); }
};
template <class T> struct Scores {
  const T *x;
  Vec<T> top, scale;
  Vec<T> at(int64_t i) const { return (Vec<T>::load(x + i) - top) * scale; }
  Vec<T> at(int64_t i, int n) const { return (Vec<T>::load(x + i, n, -INF<T>) - top) * scale; }
};

template <class T, class S, class F> inline void sweep(S from, int64_t begin, int64_t end, F visit) {
  constexpr int N = Vec<T>::N;
  int64_t i = begin;
  for (; i + N <= end; i += N) visit(from.at(i), i, N);
  if (i < end) visit(from.at(i, static_cast<int>(end - i)), i, static_cast<int>(end - i));
}

template <class T> inline void fill(T *p, int64_t k, T value) {
  if (value == 0 && k > 2048) {
    std::memset(p, 0, static_cast<size_t>(k) * sizeof(T));
    return;
  }
  const Vec<T> v = Vec<T>::of(value);
  int64_t j = 0;
  for (; j + Vec<T>::N <= k; j += Vec<T>::N) v.store(p + j);
  if (j < k) v.store(p + j, static_cast<int>(k - j));
}

struct Sums {
  double n = 0, s1 = 0, s2 = 0;  // how many are above t, sum of u, sum of u^2; for E = 0: -, sum of u^(e-1), sum of u^e
  double least = __builtin_huge_val();
};

template <class T, int E, class S> inline Sums sums_at(S from, int64_t size, T t, const Curve<T> &c) {
  using V = Vec<T>;
  const V tv = V::of(t), zero = V::of(0), inf = V::of(INF<T>);
  const T lower = c.e - 1;
  constexpr int64_t BLOCK = RUN * V::N;
  Sums out;
  Total<T> t1, t2;
  V small = inf;
  int64_t count = 0;
  for (int64_t b = 0; b < size; b += BLOCK) {
    V s1 = zero, s2 = zero;
    sweep<T>(from, b, least(b + BLOCK, size), [&](V v, int64_t, int) {
      const V u = v - tv;
      const typename V::Mask on = V::gt(u, zero);
      const V w = V::keep(on, u);
      if (E == 0) {
        const V r = raise(w, lower);
        s1 = s1 + r;
        s2 = V::fma(r, w, s2);
      } else {
        small = V::min_where(on, small, u);
        count += V::count(on);
        s1 = s1 + w;
        if (E == 2) s2 = V::fma(w, w, s2);
      }
    });
    if (size <= BLOCK) {
      out.s1 = s1.sum();
      if (E != 1) out.s2 = s2.sum();
    } else {
      t1.add(s1);
      if (E != 1) t2.add(s2);
    }
  }
  if (size > BLOCK) {
    out.s1 = t1.sum();
    if (E != 1) out.s2 = t2.sum();
  }
  if (E != 0) {
    out.n = static_cast<double>(count);
    out.least = small.bottom();
  }
  return out;
}

// A root found by a long step has lost digits to cancellation; it starts one more iteration instead.
constexpr int FAR = 4;

// sum u = 1: t from the mean of the entries above it, until the set of these is stable (Michelot).
template <class T, class S> double solve_linear(S from, int64_t n, const Curve<T> &c, double t, int steps) {
  double best = -1;
  while (steps-- > 0) {
    const T at = static_cast<T>(t);
    const Sums s = sums_at<T, 1>(from, n, at, c);
    const double d = (s.s1 - 1) / s.n;
    if (s.s1 < FAR && d >= 0 && d < s.least) return at + d;
    t = at + d - (s.s1 < FAR ? 0 : 1e-6 * d);
    if (!(t > best)) return t;  // a step back: rounding had carried the last one too far
    best = t;
  }
  return best;
}

// sum u^2 = 1: Newton on the norm until the root of the quadratic on the survivors leaves them all above it.
template <class T, class S> double solve_square(S from, int64_t n, const Curve<T> &c, double t, int steps) {
  double best = -1;
  while (steps-- > 0) {
    const T at = static_cast<T>(t);
    const Sums s = sums_at<T, 2>(from, n, at, c);
    const double disc = s.s1 * s.s1 - s.n * (s.s2 - 1), norm = std::sqrt(s.s2);
    double d = norm * (norm - 1) / s.s1;
    if (disc >= 0 && s.s2 >= 1) {
      const double root = (s.s2 - 1) / (s.s1 + std::sqrt(disc));
      if (root < s.least && s.s2 < FAR) return at + root;
      if (root < s.least && root * .999 > d) d = root * .999;
    }
    t = at + d;
    if (!(t > best)) return t;  // a step back: rounding had carried the last one too far
    best = t;
  }
  return best;
}

template <class T, class S> double solve_convex(S from, int64_t n, const Curve<T> &c, double t, int steps) {
  const double off = sizeof(T) == 4 ? 1e-7 : 1e-15;  // how far from one the sum may be
  double best = -1;
  while (steps-- > 0) {
    const T at = static_cast<T>(t);
    const Sums s = sums_at<T, 0>(from, n, at, c);
    const double norm = std::pow(s.s2, 1 / static_cast<double>(c.e));
    const double d = (norm - 1) * s.s2 / (norm * s.s1);
    t = at + d;
    if (!(t > best)) return t;
    best = t;
    if (s.s2 - 1 < off && s.s2 - 1 > -off) break;
  }
  return best;
}

// The threshold of the n values, or a lower bound on it when `steps` run out. Any start will do: the tangent of a
// convex function lies below it.
template <class T, class S> double solve(S from, int64_t n, const Curve<T> &c, double start, int steps) {
  if (c.e == 1) return solve_linear<T>(from, n, c, start, steps);
  if (c.e == 2) return solve_square<T>(from, n, c, start, steps);
  return solve_convex<T>(from, n, c, start, steps);
}

// One Newton step from t < 0 on four vectors whose maximum is 0: a lower bound on the threshold, wherever t was.
template <class T> inline T tangent(const Vec<T> (&v)[4], T t, const Curve<T> &c) {
  using V = Vec<T>;
  const V at = V::of(t), zero = V::of(0), one = V::of(1);
  V s0 = zero, s1 = zero, s2 = zero;
  for (int j = 0; j < 4; ++j) {
    const V w = V::max(v[j] - at, zero);
    if (c.e == 1) {
      s0 = V::add_where(V::gt(w, zero), s0, one);
      s1 = s1 + w;
    } else {
      const V r = c.e == 2 ? w : raise(w, c.e - 1);
      s1 = s1 + r;
      s2 = V::fma(r, w, s2);
    }
  }
  if (c.e == 1) return t + (s1.sum() - 1) / s0.sum();
  const T sum = s2.sum();
  const T norm = c.e == 2 ? std::sqrt(sum) : std::pow(sum, 1 / c.e);
  return t + (sum - sum / norm) / s1.sum();
}

// The threshold as two numbers, so that a million entries near it do not share one rounding error.
template <class T> struct Threshold {
  Vec<T> high, low;
  explicit Threshold(double t)
      : high(Vec<T>::of(static_cast<T>(t))), low(Vec<T>::of(static_cast<T>(t - static_cast<double>(static_cast<T>(t))))) {}
  Vec<T> above(Vec<T> v) const { return Vec<T>::max((v - high) - low, Vec<T>::of(0)); }
};

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
