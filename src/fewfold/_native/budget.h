// k-subset map: p_i = clip(x_i - t, 0, 1) with sum k.
//
// The sum is piecewise linear and falls with t, so Newton inside a bracket ends exactly. The start is where the
// k-th of n normal scores would be, which most rows resemble enough to need three or four looks.
#pragma once
#include "short.h"
#include "stream.h"
#include "table.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// A step this small is rounding; it is still taken.
template <class T> constexpr double TINY = sizeof(T) == 4 ? 5e-7 : 1e-15;
constexpr float FARTHEST = 4e6f;
constexpr int MOST_STEPS = 100;  // each Newton step that fails halves the bracket
// Beyond this a threshold of type T is too coarse; everything is then measured from it, and solved once more.
template <class T> constexpr double COARSE = sizeof(T) == 4 ? 8 : 1e6;

// Where the threshold would be for normal scores: above it lies a share k/n. The logistic curve is close enough.
inline double guess(double n, double k, double sum, double squares) {
  const double mean = sum / n, spread = std::sqrt(squares / n - mean * mean);
  return mean + spread * std::log((n - k) / k) / 1.702 - .5;
}

// The threshold is t + d: d is the last step, kept apart because t may be a coarse number.
template <class T> struct Budget {
  double k, low, high, t, d = 0;

  void solve(const T *x, int64_t n, T shift) {
    using V = Vec<T>;
    const V zero = V::of(0), one = V::of(1);
    const Scores<T> from{x, V::of(shift), one};
    if (!(t > low && t < high)) t = high - 1 > low ? high - 1 : low + (high - low) / 2;
    for (int i = 0; i < MOST_STEPS; ++i, t += d) {
      t = static_cast<double>(static_cast<T>(t));
      const V at = V::of(static_cast<T>(t));
      Total<T> total, inside, over;
      for (int64_t b = 0; b < n; b += RUN * V::N) {
        V part = zero, some = zero, most = zero;
        sweep<T>(from, b, least(b + RUN * V::N, n), [&](V v, int64_t, int) {
          const V u = v - at;
          const typename V::Mask above = V::gt(u, zero), on = V::both(above, V::gt(one, u));
          part = V::add_where(on, part, u);
          some = V::add_where(on, some, one);
          most = V::add_where(above, most, one);
        });
        total.add(part);
        inside.add(some);
        over.add(most);
      }
      const double free = inside.sum(), excess = total.sum() + (over.sum() - free - k);
      if (excess >= 0) low = t;
      if (excess <= 0) high = t;
      d = excess == 0 ? 0 : excess / free;
      if (std::fabs(d) <= std::fabs(t) * TINY<T> || std::fabs(d) <= TINY<T>) return;
      if (!(t + d > low && t + d < high)) d = low + (high - low) / 2 - t;
    }
  }
};

// One row with a finite maximum and 0 < k < number of finite scores.
template <class T> void budget_row(const T *x, T *p, int64_t n, Budget<T> b) {
  using V = Vec<T>;
  T shift = 0;
  b.solve(x, n, shift);
  if (std::fabs(b.t) > COARSE<T>) {
    shift = static_cast<T>(b.t);
    const double slack = 1 + std::fabs(b.t) * 4 * TINY<T>;  // the bracket was rounded out there
    b = Budget<T>{b.k, -slack, slack, 0};
    b.solve(x, n, shift);
  }
  const V first = V::of(static_cast<T>(b.t)), second = V::of(static_cast<T>(b.d)), zero = V::of(0), one = V::of(1);
  sweep<T>(Scores<T>{x, V::of(shift), one}, 0, n, [&](V v, int64_t i, int m) {
    const V u = V::min(V::max((v - first) - second, zero), one);
    if (m == V::N) u.store(p + i);
    else u.store(p + i, m);
  });
}

// Rows that fit a slab, one per lane: the same iteration on all of them at once.
template <class T> struct ShortBudget {
  using V = Vec<T>;
  static constexpr int WAYS = Slab<T>::WAYS;
  V low, high, t, d, k;

  void solve(const V *v, int64_t n, unsigned odd) {
    const V zero = V::of(0), one = V::of(1), small = V::of(T(TINY<T>));
    for (int i = 0; i < MOST_STEPS; ++i, t = t + d) {
      V sum[WAYS] = {zero, zero, zero, zero}, free[WAYS] = {zero, zero, zero, zero}, full[WAYS] = {zero, zero, zero, zero};
      for (int64_t j = 0; j < n; j += WAYS) {
        for (int w = 0; w < WAYS; ++w) {
          const V u = v[j + w] - t;
          const typename V::Mask above = V::gt(u, zero), on = V::both(above, V::gt(one, u));
          sum[w] = V::add_where(on, sum[w], u);
          free[w] = V::add_where(on, free[w], one);
          full[w] = V::add_where(above, full[w], one);
        }
      }
      const V slope = ShortRows<T>::all(free), excess = ShortRows<T>::all(sum) + ((ShortRows<T>::all(full) - slope) - k);
      low = V::pick(V::gt(zero, excess), low, t);
      high = V::pick(V::gt(excess, zero), high, t);
      const V jump = excess / V::max(slope, V::of(T(1e-30))), newton = t + jump, middle = low + (high - low) * V::of(T(.5));
      const V next = V::pick(V::both(V::gt(newton, low), V::gt(high, newton)), newton, middle);
      const V far = V::max(V::max(t, zero - t), one) * small;
      // A jump lost in the rounding of t is the end, on whichever side of the bracket it falls.
      const typename V::Mask there = V::both(V::gt(far, jump), V::gt(jump, zero - far));
      d = V::pick(there, jump, next - t);
      const unsigned moving = ~V::bits(there);
      if (!(moving & ~odd & ((1u << V::N) - 1))) return;
    }
  }

  // Rows with a NaN, an infinite score, k out of range or a far threshold are returned as bits, to be done singly.
  unsigned run(const T *x, T *p, int64_t rows, int64_t n, const double *ks, bool per_row) {
    Slab<T> s;
    s.load(x, rows, n, T(1), false);
    T start[V::N], each[V::N];
    V sum = V::of(0), squares = sum, bottom = s.at[0];
    for (int64_t j = 0; j < n; ++j) {
      sum = sum + s.at[j];
      squares = V::fma(s.at[j], s.at[j], squares);
      bottom = V::min(s.at[j], bottom);
    }
    T a[V::N], b[V::N];
    sum.store(a);
    squares.store(b);
    for (int i = 0; i < V::N; ++i) {
      const double wanted = ks[per_row && i < rows ? i : 0];
      each[i] = static_cast<T>(wanted);
      start[i] = static_cast<T>(guess(static_cast<double>(n), wanted, a[i], b[i]));
    }
    k = V::load(each);
    low = bottom - V::of(1);
    high = s.top;
    t = V::load(start);
    t = V::pick(V::both(V::gt(t, low), V::gt(high, t)), t, high - V::of(1));
    const V far = V::of(T(COARSE<T>)), count = V::of(static_cast<T>(n));
    const unsigned inside = V::bits(V::gt(bottom, V::of(-INF<T>))) & V::bits(V::gt(k, V::of(0))) &
                            V::bits(V::gt(count, k));
    if (!V::bits(V::gt(k, V::of(T(Slab<T>::PARTS / 2)))) && n >= 2 * Slab<T>::PARTS) {
      // Few to choose: the maxima of the parts are a subset, whose threshold is a near and safe start.
      solve(s.part, Slab<T>::PARTS, s.odd | ~inside);
      low = t = V::max(low, t + d - V::of(T(1e-5)));
      high = s.top;
    }
    solve(s.at, (n + WAYS - 1) / WAYS * WAYS, s.odd | ~inside);
    const unsigned close = V::bits(V::gt(far, V::max(t, V::of(0) - t)));
    T first[V::N], second[V::N];
    t.store(first);
    d.store(second);
    for (int64_t i = 0; i < rows; ++i, x += n, p += n) {
      const V t0 = V::of(first[i]), t1 = V::of(second[i]), zero = V::of(0), one = V::of(1);
      for (int64_t j = 0; j < n; j += V::N) {
        const int m = static_cast<int>(least<int64_t>(V::N, n - j));
        const V v = m == V::N ? V::load(x + j) : V::load(x + j, m, -INF<T>);
        const V u = V::min(V::max((v - t0) - t1, zero), one);
        if (m == V::N) u.store(p + j);
        else u.store(p + j, m);
      }
    }
    return s.odd | (~(inside & close) & ((1u << V::N) - 1));
  }
};

// Returns false at the first row with a NaN or a maximum so far from zero that adding one to it means nothing: those
// are the caller's.
template <class T> bool budget(const T *x, T *p, int64_t rows, int64_t n, const double *ks, bool per_row) {
  using V = Vec<T>;
  auto one_row = [&](int64_t r) {
    const T *row = x + r * n;
    T *out = p + r * n;
    const double k = ks[per_row ? r : 0];
    V top = V::of(-INF<T>), bottom = V::of(INF<T>);
    Total<T> sum, squares;
    unsigned nan = 0;
    int64_t finite = 0;
    sweep<T>(Ready<T>{row}, 0, n, [&](V v, int64_t, int) {
      const typename V::Mask kept = V::gt(v, V::of(-INF<T>));
      nan |= V::bits(V::nan(v, v));
      top = V::max(v, top);
      bottom = V::min_where(kept, bottom, v);
      finite += V::count(kept);
      const V w = V::keep(kept, v);
      sum.add(w);
      squares.add(w * w);
    });
    const T high = top.top();
    if (nan || high > FARTHEST || (high < -FARTHEST && finite)) return false;
    if (k <= 0) {
      std::memset(out, 0, static_cast<size_t>(n) * sizeof(T));
    } else if (k >= static_cast<double>(finite)) {
      for (int64_t j = 0; j < n; ++j) out[j] = row[j] > -INF<T> ? T(1) : T(0);
    } else {
      const double start = guess(static_cast<double>(finite), k, sum.sum(), squares.sum());
      budget_row(row, out, n, Budget<T>{k, static_cast<double>(bottom.bottom()) - 1, static_cast<double>(high), start});
    }
    return true;
  };
  for (int64_t r = 0; r < rows;) {
    if (n > SHORT) {
      if (!one_row(r++)) return false;
      continue;
    }
    const int64_t m = least<int64_t>(V::N, rows - r);
    ShortBudget<T> slab;
    unsigned odd = slab.run(x + r * n, p + r * n, m, n, ks + (per_row ? r : 0), per_row) & ((1u << m) - 1);
    for (; odd; odd &= odd - 1)
      if (!one_row(r + __builtin_ctz(odd))) return false;
    r += m;
  }
  return true;
}

// Jacobian-vector product: on the entries strictly between 0 and 1, less their mean.
template <class T> void budget_backward(const T *p, const T *g, T *out, int64_t rows, int64_t n) {
  using V = Vec<T>;
  const V zero = V::of(0), one = V::of(1);
  for (int64_t r = 0; r < rows; ++r, p += n, g += n, out += n) {
    auto load_g = [&](int64_t i, int m) { return m == V::N ? V::load(g + i) : V::load(g + i, m, T(0)); };
    auto free = [&](V v) { return V::both(V::gt(one, v), V::gt(v, zero)); };
    Total<T> total;
    int64_t count = 0;
    sweep<T>(Ready<T>{p}, 0, n, [&](V v, int64_t i, int m) {
      const typename V::Mask on = free(v);
      total.add(V::keep(on, load_g(i, m)));
      count += V::count(on);
    });
    const V mean = V::of(static_cast<T>(count ? total.sum() / static_cast<double>(count) : 0));
    sweep<T>(Ready<T>{p}, 0, n, [&](V v, int64_t i, int m) {
      const V w = V::keep(free(v), load_g(i, m) - mean);
      if (m == V::N) w.store(out + i);
      else w.store(out + i, m);
    });
  }
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
