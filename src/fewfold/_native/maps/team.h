// Rows of middling length, a team of N at a time: each row is read contiguously, but its state (maximum,
// sums, threshold) is in its own lane, so that a Newton step of all of them costs as much as that of one.
#pragma once
#include "short.h"
#include "table.h"

namespace fewfold {
namespace FEWFOLD_ISA {

constexpr int64_t MIDDLE = 2048;  // rows up to this length; longer ones are evicted from L1 before the second pass

// How many rows from `first` on, at most `most`, share its alpha.
inline int64_t alike(const Family &f, int64_t first, int64_t rows, int64_t most) {
  most = least(most, rows - first);
  if (!f.per_row) return most;
  int64_t n = 1;
  while (n < most && f.alpha[first + n] == f.alpha[first]) ++n;
  return n;
}

// Visits a row in runs short enough to be summed in T: visit(vector, way, index, size), run() after each.
template <class T, class Visit, class Run> inline void in_runs(const T *x, int64_t k, T rest, Visit visit, Run run) {
  using V = Vec<T>;
  constexpr int WAYS = 4;
  int64_t j = 0;
  while (k - j >= WAYS * V::N) {
    const int64_t end = least<int64_t>(k, j + RUN * WAYS * V::N);
    for (; j + WAYS * V::N <= end; j += WAYS * V::N)
      for (int i = 0; i < WAYS; ++i) visit(V::load(x + j + i * V::N), i, j + i * V::N, V::N);
    run();
  }
  for (; j < k; j += V::N) {
    const int n = static_cast<int>(least<int64_t>(V::N, k - j));
    visit(n == V::N ? V::load(x + j) : V::load(x + j, n, rest), 0, j, n);
  }
  run();
}

// Four partial results into one, for as many as there were runs.
template <class S> inline void gather(S (&way)[4], S &all) {
  way[0].add(way[1]);
  way[2].add(way[3]);
  way[0].add(way[2]);
  all.add(way[0]);
  for (auto &w : way) w = S();
}

template <class F> inline void each(unsigned rows, F work) {
  for (; rows; rows &= rows - 1) work(__builtin_ctz(rows));
}

// Partial results of each row of a team, as vectors, to be reduced to one number per row.
template <class T, int SUMS> struct Board {
  using V = Vec<T>;
  T part[SUMS][V::N][V::N];
  Board() {
    for (auto &p : part)
      for (auto &row : p) V::of(0).store(row);
  }
  void note(int64_t row, const V (&v)[SUMS]) {
    for (int i = 0; i < SUMS; ++i) v[i].store(part[i][row]);
  }
  V sum(int i) const { return fold<T>(part[i], plus<T>); }
};

template <class T> bool touchy(const T *p, int64_t k, const Curve<T> &c) {
  using V = Vec<T>;
  V top = V::of(0), count = V::of(0);
  sweep<T>(Ready<T>{p}, 0, k, [&](V v, int64_t, int) {
    top = V::max(v, top);
    count = V::add_where(V::gt(v, V::of(0)), count, V::of(1));
  });
  const T high = top.top();
  return count.sum() * high * high > c.touchy();
}

template <class T, int E> struct Team {
  using V = Vec<T>;
  static constexpr int N = V::N, WAYS = 4;
  static constexpr int64_t LANES = SHORT;  // parts of a row whose maxima bound its threshold from below

  // Maxima of LANES interleaved parts of the row.
  static void lanes(const T *x, int64_t k, T *out) {
    constexpr int GROUP = LANES / N;
    V m[GROUP];
    for (int i = 0; i < GROUP; ++i) m[i] = V::of(-INF<T>);
    int64_t j = 0;
    for (; j + LANES <= k; j += LANES)
      for (int i = 0; i < GROUP; ++i) m[i] = V::max(V::load(x + j + i * N), m[i]);
    for (; j < k; j += N) {
      const int n = static_cast<int>(least<int64_t>(N, k - j));
      m[0] = V::max(n == N ? V::load(x + j) : V::load(x + j, n, -INF<T>), m[0]);
    }
    for (int i = 0; i < GROUP; ++i) m[i].store(out + i * N);
  }

  // Of each of WIDE interleaved parts of the row, its four largest entries. They mostly hold the whole support.
  static void largest(const T *x, int64_t k, T *out) {
    constexpr int WIDE = LANES / 4, GROUP = WIDE / N;
    V m[GROUP][4];  // sorted downwards
    for (auto &part : m)
      for (V &v : part) v = V::of(-INF<T>);
    int64_t j = 0;
    for (; j + 4 * WIDE <= k; j += 4 * WIDE)
      for (int g = 0; g < GROUP; ++g) {
        V w[4];
        for (int i = 0; i < 4; ++i) w[i] = V::load(x + j + i * WIDE + g * N);
        order(w[0], w[1]), order(w[2], w[3]), order(w[0], w[2]), order(w[1], w[3]), order(w[1], w[2]);
        for (int i = 0; i < 4; ++i) m[g][i] = V::max(w[3 - i], m[g][i]);
        order(m[g][0], m[g][2]), order(m[g][1], m[g][3]), order(m[g][0], m[g][1]), order(m[g][2], m[g][3]);
      }
    for (int g = 0; j < k; j += N, g = (g + 1) % GROUP) {
      const int n = static_cast<int>(least<int64_t>(N, k - j));
      V v = n == N ? V::load(x + j) : V::load(x + j, n, -INF<T>);
      for (V &own : m[g]) {
        const V high = V::max(v, own);
        v = V::min(v, own);
        own = high;
      }
    }
    for (int i = 0; i < 4; ++i)
      for (int g = 0; g < GROUP; ++g) m[g][i].store(out + i * WIDE + g * N);
  }

  // A lower bound on every threshold, from the lanes; with E = 2 it is the threshold if they hold the whole support, and
  // `factor` then makes the sum one.
  static Thresholds<T> bound(const T *lane, int64_t rows, const Curve<T> &c, V &factor) {
    const Block<T> block(lane, rows, LANES);
    Thresholds<T> a;
    if (E == 1) {
      const Best<T> best(block);
      a.start(best.v[0], best.v[0], best.threshold());
      return a;
    }
    Slab<T> s;
    s.load(block);
    a.template guess<E>(s, c);
    a.template look<E>(s.at, s.k, c);
    for (int i = 0; E == 2 && i < 2; ++i) {
      a.template move<E>();
      a.template look<E>(s.at, s.k, c);
    }
    if (E == 2) factor = ShortRows<T, E>::factors(s, a, c);
    else a.template move<E>();
    return a;
  }

  template <bool Shifted> static Step<T, E> step_from(const T *x, int64_t k, T base, T t, const Curve<T> &c) {
    const V from = V::of(base), at = V::of(t);
    Step<T, E> way[WAYS], all;
    in_runs(x, k, -INF<T>, [&](V v, int i, int64_t, int) { way[i].add(Shifted ? v - from : v, at, c); },
            [&] { gather(way, all); });
    return all;
  }
  static Step<T, E> step_of(const T *x, int64_t k, T base, T t, const Curve<T> &c) {
    return base == 0 ? step_from<false>(x, k, base, t, c) : step_from<true>(x, k, base, t, c);
  }

  // Returns false if the row must be solved by the general path.
  static bool write(const T *x, T *p, int64_t k, const Curve<T> &c, T base, T t, T d) {
    write_row<T, E>(x, p, k, c, base, t, d, T(1));
    if (!c.normalise) return true;
    Total<T> total;
    V part = V::of(0);
    in_runs(p, k, T(0), [&](V v, int, int64_t, int) { part = part + v; }, [&] {
      total.add(part);
      part = V::of(0);
    });
    const V by = V::of(static_cast<T>(1 / total.sum()));
    sweep<T>(Ready<T>{p}, 0, k, [&](V v, int64_t i, int n) {
      if (n == N) (v * by).store(p + i);
      else (v * by).store(p + i, n);
    });
    return !touchy(p, k, c);
  }

  // Sum u = 1: the lanes often hold the whole support, so the row is written at once and its sum checked.
  static Step<T, E> try_write(const T *x, T *p, int64_t k, T base, T t) {
    const V from = V::of(base), at = V::of(t), zero = V::of(0);
    Step<T, E> way[WAYS], all;
    in_runs(x, k, -INF<T>, [&](V v, int i, int64_t j, int n) {
      const V u = (v - from) - at;
      const typename V::Mask on = V::over(u, zero);
      way[i].first = V::add_where(on, way[i].first, V::of(1));
      way[i].second = V::add_where(on, way[i].second, u);
      if (n == N) V::keep(on, u).store(p + j);
      else V::keep(on, u).store(p + j, n);
    }, [&] { gather(way, all); });
    return all;
  }
  // Sum u^2 = 1, likewise: the row of squares, or of u times `by`; and the sums of squares and of the row.
  template <bool Square>
  static void try_row(const T *x, T *p, int64_t k, const Curve<T> &c, T base, T t, T d, T by, V (&sum)[2]) {
    const V scale = V::of(c.scale), minus = V::of(-t * c.scale), rest = V::of(d * c.scale);
    const V from = V::of(base), zero = V::of(0), times = V::of(by);
    V squares[WAYS] = {zero, zero, zero, zero}, all[WAYS] = {zero, zero, zero, zero};
    const auto answer = [&](V v, int i) {
      const V u = V::max(zero, V::fma(v - from, scale, minus) - rest), w = u * (Square ? u : times);
      if (!Square) squares[i] = V::fma(u, u, squares[i]);
      all[i] = all[i] + w;
      return w;
    };
    int64_t j = 0;
    for (; j + WAYS * N <= k; j += WAYS * N)
      for (int i = 0; i < WAYS; ++i) answer(V::load(x + j + i * N), i).store(p + j + i * N);
    for (; j < k; j += N) {
      const int n = static_cast<int>(least<int64_t>(N, k - j));
      answer(V::load(x + j, n, -INF<T>), 0).store(p + j, n);
    }
    sum[1] = (all[0] + all[1]) + (all[2] + all[3]);
    sum[0] = Square ? sum[1] : (squares[0] + squares[1]) + (squares[2] + squares[3]);
  }
  static constexpr int SUMS = E == 1 ? 3 : 2;
  static void note(Board<T, SUMS> &board, int r, const Step<T, E> &s) {
    s.first.store(board.part[0][r]);
    s.second.store(board.part[1][r]);
    if (E == 1) s.lowest.store(board.part[SUMS - 1][r]);
  }
  static Step<T, E> sum(const Board<T, SUMS> &board) {
    Step<T, E> s;
    s.first = board.sum(0);
    s.second = board.sum(1);
    if (E == 1) s.lowest = fold<T>(board.part[SUMS - 1], V::min);
    return s;
  }

  static constexpr int64_t PLACES = SHORT + WAYS * N;  // entries are picked a few vectors at a time

  // The entries of a row above `cut`, less its base, and -inf after them. Returns how many, or some number above SHORT.
  static int64_t pick(const T *x, int64_t k, T base, T cut, T *to) {
    const V from = V::of(base), at = V::of(cut);
    int64_t n = 0, j = 0;
    const auto take = [&](V v) {
      const V w = v - from;
      const typename V::Mask on = V::over(w, at);
      V::pack(to + n, on, w);
      n += V::count(on);
    };
    for (; j + WAYS * N <= k && n <= SHORT; j += WAYS * N)
      for (int i = 0; i < WAYS; ++i) take(V::load(x + j + i * N));
    for (; j < k && n <= SHORT; j += N) take(V::load(x + j, static_cast<int>(least<int64_t>(N, k - j)), -INF<T>));
    for (int64_t i = n; i < SHORT; i += N) V::of(-INF<T>).store(to + i);
    return n;
  }

  // Rows of which at most SHORT entries are above their bounds: those are laid side by side, as short rows are. Takes them
  // out of `active`, and returns the odd ones.
  static unsigned run_few(const T *x, T *p, int64_t k, const Curve<T> &c, Thresholds<T> a, unsigned &active) {
    T few[N * PLACES], base[N], cut[N];
    a.base.store(base);
    a.left_of(a.t - a.size(a.d) * V::of(T(1) / 4096)).store(cut);  // steps may be too long by their error
    unsigned found = 0;
    int64_t most = 1;
    for (int r = 0; r < N; ++r) {
      const bool open = active >> r & 1;
      const int64_t n = pick(x + r * k, open ? k : 0, base[r], cut[r], few + r * PLACES);
      if (!open || n > SHORT) continue;
      found |= 1u << r;
      most = n > most ? n : most;
    }
    if (!found) return 0;
    Slab<T> s;
    s.load(Block<T>(typename Block<T>::Filled{few, PLACES, most}));
    a.odd |= ~found;
    int looks = 0;
    while (const unsigned moving = a.template look<E>(s.at, s.k, c)) {
      if (++looks == MOST_LOOKS) {
        a.odd |= moving;
        break;
      }
      a.template move<E>();
    }
    const V factor = ShortRows<T, E>::factors(s, a, c);
    T t[N], d[N], by[N];
    a.t.store(t), a.d.store(d), factor.store(by);
    each(found, [&](int r) { write_row<T, E>(x + r * k, p + r * k, k, c, base[r], t[r], d[r], by[r]); });
    active &= ~found;
    return a.odd_rows() & found;
  }

  // Up to N rows. Returns a mask of the odd rows, which are left to the caller.
  static unsigned run(const T *x, T *p, int64_t rows, int64_t k, const Curve<T> &c) {
    T lane[N * LANES], base[N], t[N], d[N];
    Board<T, SUMS> board;
    for (int64_t r = 0; r < rows; ++r) (E == 2 ? largest : lanes)(x + r * k, k, lane + r * LANES);
    V factor = V::of(1);
    Thresholds<T> a = bound(lane, rows, c, factor);
    a.base.store(base);
    unsigned active = ~a.odd & ((1u << rows) - 1), odd = a.odd;
    if (E == 1) {
      a.t.store(t);
      each(active, [&](int r) { note(board, r, try_write(x + r * k, p + r * k, k, base[r], t[r])); });
      const Step<T, E> s = sum(board);
      const V off = s.second - V::of(1), near = V::of(sizeof(T) == 4 ? T(4e-7) : T(1e-15));
      active &= V::bits(V::over(off, near)) | V::bits(V::over(V::of(0) - near, off));
      a.t = a.left_of(a.t + off / s.first);
    } else if (E == 2) {
      T by[N];
      a.t.store(t), a.d.store(d), factor.store(by);
      const auto row = c.normalise ? try_row<false> : try_row<true>;
      each(active, [&](int r) {
        V sums[2];
        row(x + r * k, p + r * k, k, c, base[r], t[r], d[r], by[r], sums);
        sums[0].store(board.part[0][r]), sums[1].store(board.part[1][r]);
      });
      const V near = V::of(sizeof(T) == 4 ? T(8e-7) : T(4e-15));
      unsigned off = 0;
      for (int i = 0; i < 2; ++i) off |= V::bits(V::over(a.size(board.sum(i) - V::of(1)), near));
      active &= off;
      a.template move<E>();
    } else if (E == 0 && !multiplies(c.e - 1)) {  // a look at all entries takes long
      odd |= run_few(x, p, k, c, a, active);
    }
    for (int looks = 0; active; ++looks) {
      a.t.store(t);
      each(active, [&](int r) { note(board, r, step_of(x + r * k, k, base[r], t[r], c)); });
      const unsigned moving = a.step(sum(board), k, c);
      odd |= V::bits(V::nan(a.d, a.d)) & active;
      a.d.store(d);
      each(active & ~moving, [&](int r) {
        if (!write(x + r * k, p + r * k, k, c, base[r], t[r], d[r])) odd |= 1u << r;
      });
      active &= moving;
      if (looks >= MOST_LOOKS) {
        odd |= active;
        break;
      }
      a.template move<E>();
    }
    return odd;
  }
};

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
