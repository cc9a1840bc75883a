// k-subset map: p_i = clip(x_i - t, 0, 1) with sum k.
//
// The sum is piecewise linear and falls with t, so Newton inside a bracket ends exactly. The start is where the
// k-th largest of n normal scores would be; most rows then take three or four steps.
#pragma once
#include "stream.h"
#include "team.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// Relative tolerance of the sum at convergence; the last step is still taken.
template <class T> constexpr double TINY = sizeof(T) == 4 ? 2e-7 : 1e-15;
constexpr float FARTHEST = 4e6f;
constexpr int MOST_STEPS = 60;  // each Newton step that fails halves the bracket
// Beyond this magnitude a threshold of type T is too coarse; scores are then shifted by it, and solved once more.
template <class T> constexpr double COARSE = sizeof(T) == 4 ? 8 : 1e6;

// The upper quantile of the standard normal distribution at p (Abramowitz and Stegun 26.2.23).
inline double quantile(double p) {
  const double r = std::sqrt(-2 * std::log(p < .5 ? p : 1 - p));
  const double z = r - (2.515517 + r * (.802853 + r * .010328)) / (1 + r * (1.432788 + r * (.189269 + r * .001308)));
  return p < .5 ? z : -z;
}

// The threshold is t + d: the last step d is stored separately, because adding it to t may round it off.
template <class T> struct Budget {
  double k, low, high, t, d = 0;

  // False if the steps ran out.
  bool solve(const T *x, int64_t n, T shift) {
    using V = Vec<T>;
    const V zero = V::of(0), one = V::of(1);
    const Scores<T> from{x, V::of(shift), one};
    if (!(t > low && t < high)) t = high - 1 > low ? high - 1 : low + (high - low) / 2;
    for (int i = 0; i < MOST_STEPS; ++i) {
      t = static_cast<double>(static_cast<T>(t));
      const V at = V::of(static_cast<T>(t));
      Total<T> total, inside, over;
      for (int64_t b = 0; b < n; b += RUN * V::N) {
        V part = zero, some = zero, most = zero;
        sweep<T>(from, b, least(b + RUN * V::N, n), [&](V v, int64_t, int) {
          const V u = v - at;
          const typename V::Mask above = V::gt(u, zero), on = V::gt_too(above, one, u);
          part = V::add_where(on, part, u);
          some = V::add_where(on, some, one);
          most = V::add_where(above, most, one);
        });
        total.add(part);
        inside.add(some);
        over.add(most);
      }
      const double sum = total.sum(), free = inside.sum(), excess = sum + (over.sum() - free - k);
      if (excess >= 0) low = t;
      if (excess <= 0) high = t;
      d = excess == 0 ? 0 : excess / free;
      const bool still = static_cast<T>(t + d) == static_cast<T>(t);  // a step lost in the rounding of t
      if (std::fabs(excess) <= TINY<T> * (2 + sum) || (still && free > 0)) return true;
      if (!(t + d > low && t + d < high)) {
        d = low + (high - low) / 2 - t;
        if (static_cast<T>(t + d) == static_cast<T>(t)) {  // nothing between the ends: the answer jumps there
          d = excess > 0 ? high - t : low - t;
          return false;
        }
      }
      t += d;
    }
    return false;
  }
};

// One row with a finite maximum and 0 < k < number of finite scores. False if it did not converge.
template <class T> bool budget_row(const T *x, T *p, int64_t n, Budget<T> b) {
  using V = Vec<T>;
  T shift = 0;
  bool found = b.solve(x, n, shift);
  if (std::fabs(b.t) > COARSE<T>) {
    shift = static_cast<T>(b.t);
    const double slack = 1 + std::fabs(b.t) * 4e-7;  // the bracket was rounded out there
    b = Budget<T>{b.k, b.low - shift - slack, b.high - shift + slack, 0};
    found = b.solve(x, n, shift);
  }
  if (!found) return false;
  const V first = V::of(static_cast<T>(b.t)), second = V::of(static_cast<T>(b.d)), zero = V::of(0), one = V::of(1);
  sweep<T>(Scores<T>{x, V::of(shift), one}, 0, n, [&](V v, int64_t i, int m) {
    const V u = V::min(V::max((v - first) - second, zero), one);
    if (m == V::N) u.store(p + i);
    else u.store(p + i, m);
  });
  return true;
}

// The sum of the clipped scores in three: of those inside, how many these are, and how many are above t.
template <class T> struct Clipped {
  using V = Vec<T>;
  V sum = V::of(0), inside = V::of(0), above = V::of(0);
  void add(V score, V t) {
    const V zero = V::of(0), one = V::of(1), u = score - t;
    const typename V::Mask up = V::gt(u, zero), on = V::gt_too(up, one, u);
    sum = V::add_where(on, sum, u);
    inside = V::add_where(on, inside, one);
    above = V::add_where(up, above, one);
  }
  void add(const Clipped &o) {
    sum = sum + o.sum;
    inside = inside + o.inside;
    above = above + o.above;
  }
};

// Row statistics for the initial guess.
template <class T> struct Moments {
  using V = Vec<T>;
  V sum = V::of(0), squares = V::of(0), low = V::of(INF<T>), high = V::of(-INF<T>);
  void add(V v) {
    sum = sum + v;
    squares = V::fma(v, v, squares);
    low = V::min(v, low);
    high = V::max(v, high);
  }
  void add(const Moments &o) {
    sum = sum + o.sum;
    squares = squares + o.squares;
    low = V::min(o.low, low);
    high = V::max(o.high, high);
  }
};

// One row per lane: its k, a bracket, and the threshold t + d.
template <class T> struct Budgets {
  using V = Vec<T>;
  V whole, k, low, high, t, d = V::of(0);  // to choose: whole + k, as float does not hold every double
  unsigned odd;  // rows with a NaN, an infinite score, or k out of range: the caller solves them one by one

  Budgets(const Moments<T> &m, int64_t n, const double *ks, bool per_row, int64_t rows) {
    T each[V::N], most[V::N], point[V::N];
    for (int i = 0; i < V::N; ++i) {
      const double wanted = ks[per_row && i < rows ? i : 0];
      const bool fits = wanted > 0 && wanted < static_cast<double>(n);
      most[i] = fits ? static_cast<T>(std::floor(wanted)) : T(-1);
      each[i] = fits ? static_cast<T>(wanted - std::floor(wanted)) : T(0);
      point[i] = !fits ? T(0) : i == 0 || per_row ? static_cast<T>(quantile(wanted / static_cast<double>(n))) : point[0];
    }
    k = V::load(each);
    whole = V::load(most);
    const V zero = V::of(0), by = V::of(T(1) / static_cast<T>(n)), mean = m.sum * by;
    odd = ~(V::bits(V::gt(V::of(INF<T>), m.squares)) & V::bits(V::gt(whole, V::of(T(-.5)))));
    low = m.low - V::of(1);
    high = m.high;
    start(mean + V::sqrt(V::max(m.squares * by - mean * mean, zero)) * V::load(point) - V::of(T(.5)));
  }
  void start(V at) { t = V::pick(V::both(V::gt(at, low), V::gt(high, at)), at, high - V::of(1)); }

  // One Newton step from the sums at t, or a bisection if it leaves the bracket. Returns the lanes not yet converged.
  unsigned step(const Clipped<T> &s) {
    const V zero = V::of(0), excess = s.sum + ((s.above - s.inside - whole) - k);
    low = V::pick(V::gt(zero, excess), low, t);
    high = V::pick(V::gt(excess, zero), high, t);
    const V jump = excess / V::max(s.inside, V::of(T(1e-30))), newton = t + jump;
    const V next = V::pick(V::both(V::gt(newton, low), V::gt(high, newton)), newton, low + (high - low) * V::of(T(.5)));
    // Converged when the sum is right, or a step is lost in the rounding of t.
    const V near = V::fma(s.sum, V::of(T(TINY<T>)), V::of(T(2 * TINY<T>))), off = V::max(excess, zero - excess);
    const typename V::Mask some = V::gt(s.inside, zero), apart = V::gt(off, near);
    const unsigned still = ~(V::bits(V::gt(newton, t)) | V::bits(V::gt(t, newton))) & V::bits(some);
    d = V::pick(V::both(apart, V::gt(V::max(newton - t, t - newton), zero)), next - t, V::keep(some, jump));
    return V::bits(apart) & ~still;
  }
  void move() { t = t + d; }
  // Thresholds that T holds too coarsely.
  unsigned coarse() const { return ~V::bits(V::gt(V::of(T(COARSE<T>)), V::max(t, V::of(0) - t))); }
};

template <class T> void clip_row(const T *x, T *p, int64_t n, T t, T d) {
  using V = Vec<T>;
  const V first = V::of(t), second = V::of(d), zero = V::of(0), one = V::of(1);
  sweep<T>(Ready<T>{x}, 0, n, [&](V v, int64_t i, int m) {
    const V u = V::min(V::max((v - first) - second, zero), one);
    if (m == V::N) u.store(p + i);
    else u.store(p + i, m);
  });
}

template <class T> Moments<T> moments(const Slab<T> &s, int64_t n) {
  Moments<T> m, other;
  int64_t j = 0;
  for (; j + 2 <= n; j += 2) {
    m.add(s.at[j]);
    other.add(s.at[j + 1]);
  }
  if (j < n) m.add(s.at[j]);
  m.add(other);
  return m;
}

template <class T> Clipped<T> clipped(const Slab<T> &s, Vec<T> t) {
  constexpr int WAYS = Slab<T>::WAYS;
  Clipped<T> way[WAYS], all;
  for (int64_t j = 0; j < s.k; j += WAYS)
    for (int i = 0; i < WAYS; ++i) way[i].add(s.at[j + i], t);
  gather(way, all);
  return all;
}

// Up to 2 N short rows, transposed, in two halves to hide latency. Returns a mask of the odd rows,
// which are left to the caller.
template <class T> uint64_t budget_short(const T *x, T *p, int64_t rows, int64_t n, const double *ks, bool per_row) {
  using V = Vec<T>;
  constexpr int N = V::N;
  Slab<T> s[2];
  const int64_t second = rows > N ? N : 0;
  s[0].load(Block<T>(x, rows, n));
  s[1].load(Block<T>(x + second * n, rows - second, n));
  const double *later = per_row ? ks + second : ks;
  Budgets<T> a[2] = {{moments(s[0], n), n, ks, per_row, rows}, {moments(s[1], n), n, later, per_row, rows - second}};
  for (int looks = 0; looks < MOST_STEPS; ++looks) {
    unsigned moving = 0;
    for (int i = 0; i < 2; ++i) {
      if (looks) a[i].move();
      const unsigned still = a[i].step(clipped(s[i], a[i].t)) & ~a[i].odd & ((1u << N) - 1);
      if (looks == MOST_STEPS - 1) a[i].odd |= still;
      moving |= still;
    }
    if (!moving) break;
  }
  uint64_t odd = 0;
  for (int64_t first = 0; first < rows; first += N) {
    const Budgets<T> &b = a[first / N];
    T t[N], d[N];
    b.t.store(t);
    b.d.store(d);
    for (int64_t r = first; r < least<int64_t>(rows, first + N); ++r)
      clip_row(x + r * n, p + r * n, n, t[r - first], d[r - first]);
    odd |= static_cast<uint64_t>((b.odd | b.coarse()) & ((1u << N) - 1)) << first;
  }
  return odd;
}

// The same for rows of medium length, each read contiguously.
template <class T> uint64_t budget_team(const T *x, T *p, int64_t rows, int64_t n, const double *ks, bool per_row) {
  using V = Vec<T>;
  constexpr int WAYS = 4;
  Board<T, 4> board;
  for (int64_t r = 0; r < rows; ++r) {
    Moments<T> way[WAYS];
    in_runs(x + r * n, n, T(0), [&](V v, int i, int64_t, int) { way[i].add(v); }, [] {});
    way[0].add(way[1]);
    way[2].add(way[3]);
    way[0].add(way[2]);
    board.note(r, {way[0].sum, way[0].squares, way[0].low, way[0].high});
  }
  Moments<T> m;
  m.sum = board.sum(0);
  m.squares = board.sum(1);
  m.low = fold<T>(board.part[2], V::min);
  m.high = fold<T>(board.part[3], V::max);
  Budgets<T> a(m, n, ks, per_row, rows);
  unsigned active = ~a.odd & ((1u << rows) - 1), odd = a.odd;
  T t[V::N], d[V::N];
  for (int looks = 0; active && looks < MOST_STEPS; ++looks) {
    a.t.store(t);
    each(active, [&](int r) {
      const V at = V::of(t[r]);
      Clipped<T> way[WAYS], all;
      in_runs(x + r * n, n, -INF<T>, [&](V v, int i, int64_t, int) { way[i].add(v, at); }, [&] { gather(way, all); });
      board.note(r, {all.sum, all.inside, all.above, V::of(0)});
    });
    Clipped<T> s;
    s.sum = board.sum(0);
    s.inside = board.sum(1);
    s.above = board.sum(2);
    const unsigned moving = a.step(s);
    if (looks == MOST_STEPS - 1) odd |= active & moving;
    a.d.store(d);
    const unsigned there = active & ~moving;
    odd |= there & a.coarse();
    each(there, [&](int r) { clip_row(x + r * n, p + r * n, n, t[r], d[r]); });
    active &= moving;
    a.move();
  }
  return odd;
}

// Returns false at the first row with a NaN, with a maximum so far from zero that adding one to it means nothing, or
// without convergence after MOST_STEPS: the caller handles those.
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
      const typename V::Mask present = V::gt(v, V::of(-INF<T>));
      nan |= V::bits(V::nan(v, v));
      top = V::max(v, top);
      bottom = V::min_where(present, bottom, v);
      finite += V::count(present);
      const V w = V::keep(present, v);
      sum.add(w);
      squares.add(w * w);
    });
    const T high = top.top();
    if (nan || high > FARTHEST || (high < -FARTHEST && finite)) return false;
    const double m = static_cast<double>(finite);
    if (k <= 0) {
      std::memset(out, 0, static_cast<size_t>(n) * sizeof(T));
    } else if (k >= m) {
      for (int64_t j = 0; j < n; ++j) out[j] = row[j] > -INF<T> ? T(1) : T(0);
    } else {
      const double mean = sum.sum() / m, spread = std::sqrt(std::fmax(squares.sum() / m - mean * mean, 0));
      const double start = mean + spread * quantile(k / m) - .5;
      const double low = static_cast<double>(bottom.bottom()) - 1;
      return budget_row(row, out, n, Budget<T>{k, low, static_cast<double>(high), start});
    }
    return true;
  };
  const auto work = n <= SHORT ? budget_short<T> : budget_team<T>;
  const int64_t most = n <= SHORT ? 2 * V::N : n <= MIDDLE ? V::N : 1;
  for (int64_t r = 0, m; r < rows; r += m) {
    m = least(most, rows - r);
    uint64_t odd = 1;
    if (n <= MIDDLE)
      odd = work(x + r * n, p + r * n, m, n, ks + (per_row ? r : 0), per_row) & ((uint64_t{1} << m) - 1);
    for (; odd; odd &= odd - 1)
      if (!one_row(r + __builtin_ctzll(odd))) return false;
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
