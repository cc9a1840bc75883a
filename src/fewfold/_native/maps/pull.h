// Jacobian-vector products of the maps. With s = p^(2 - alpha) on the support and g the incoming gradient:
//   entmax:  s (g - <s, g> / sum s)
//   normmax: c (w - p sum w), w = s (g - <p, g>), c = norm^(alpha - 1) / (alpha - 1), norm^alpha = sum p^alpha
#pragma once
#include "stream.h"
#include "table.h"
#include "team.h"

namespace fewfold {
namespace FEWFOLD_ISA {

constexpr int64_t READ_ALL = 1024;  // longer rows are read where their support is

enum class Slope { ONE, ROOT, POWER, NORM };  // s = 1, s = sqrt(p), any entmax, any normmax

inline Slope slope_of(bool norm, double alpha) {
  return norm ? Slope::NORM : alpha == 2 ? Slope::ONE : alpha == 1.5 ? Slope::ROOT : Slope::POWER;
}

template <class T, Slope S> struct Pull {
  using V = Vec<T>;
  using Mask = typename V::Mask;
  static constexpr int SUMS = S == Slope::NORM ? 4 : 2;
  T alpha;
  V shift, rest, factor;
  explicit Pull(double a) : alpha(static_cast<T>(a)) {}

  // s, which is 0 off the support.
  V slope(V p) const {
    const Mask on = V::gt(p, V::of(0));
    if (S == Slope::ONE || (S == Slope::NORM && alpha == 2)) return V::keep(on, V::of(1));
    if (S == Slope::ROOT) return V::keep(on, root(p));
    return power(V::keep(on, p), 2 - alpha);
  }
  // Adds s, s g, and for normmax p g and p^alpha. Returns s.
  V look(V p, V g, V *sum) const {
    const Mask on = V::gt(p, V::of(0));
    if (S == Slope::ONE) {
      sum[0] = V::add_where(on, sum[0], V::of(1));
      sum[1] = V::add_where(on, sum[1], g);
      return V::keep(on, V::of(1));
    }
    const V h = V::keep(on, g), s = slope(p);
    sum[0] = sum[0] + s;
    sum[1] = V::fma(s, h, sum[1]);
    if (S == Slope::NORM) {
      const V q = V::keep(on, p);
      sum[2] = V::fma(q, h, sum[2]);
      sum[3] = sum[3] + V::keep(on, q * q / V::pick(on, s, V::of(1)));
    }
    return s;
  }
  // From the sums of a row, or of one row per lane.
  void ready(const V *sum) {
    if (S == Slope::NORM) {
      shift = sum[2];
      rest = sum[1] - sum[2] * sum[0];
      factor = power(sum[3], (alpha - 1) / alpha) / V::of(alpha - 1);
    } else {
      const Mask some = V::gt(sum[0], V::of(0));
      shift = V::keep(some, sum[1]) / V::pick(some, sum[0], V::of(1));
    }
  }
  V out(V p, V g) const { return out(p, g, slope(p)); }
  V out(V p, V g, V s) const {  // where s = 1 the support is all that counts of it, so p will do
    const Mask on = V::gt(S == Slope::NORM ? p : s, V::of(0));
    const V w = S == Slope::ONE ? g - shift : s * (g - shift);
    return V::keep(on, S == Slope::NORM ? (w - p * rest) * factor : w);
  }
};

template <class T> inline Vec<T> load(const T *x, int n) {
  return n == Vec<T>::N ? Vec<T>::load(x) : Vec<T>::load(x, n, T(0));
}

template <class T, Slope S> void pull_row(const T *p, const T *g, T *out, int64_t k, const Pull<T, S> &pull) {
  sweep<T>(Ready<T>{p}, 0, k, [&](Vec<T> v, int64_t i, int n) {
    const Vec<T> w = pull.out(v, load(g + i, n));
    if (n == Vec<T>::N) w.store(out + i);
    else w.store(out + i, n);
  });
}

// Up to N short rows, with their sums in the lanes of a vector.
template <class T, Slope S>
void pull_short(const T *p, const T *g, T *out, int64_t rows, int64_t k, Pull<T, S> pull) {
  using V = Vec<T>;
  constexpr int N = V::N, SUMS = Pull<T, S>::SUMS;
  Board<T, SUMS> board;
  V slope[SHORT];  // N rows of at most SHORT / N vectors
  const int64_t vectors = (k + N - 1) / N;
  for (int64_t r = 0; r < rows; ++r) {
    V sum[SUMS];
    for (V &s : sum) s = V::of(0);
    sweep<T>(Ready<T>{p + r * k}, 0, k, [&](V v, int64_t j, int n) {
      const V s = pull.look(v, load(g + r * k + j, n), sum);
      if (S != Slope::ONE) slope[r * vectors + j / N] = s;
    });
    board.note(r, sum);
  }
  V sum[SUMS];
  for (int i = 0; i < SUMS; ++i) sum[i] = board.sum(i);
  pull.ready(sum);
  T shift[N], rest[N], factor[N];
  pull.shift.store(shift);
  if (S == Slope::NORM) {
    pull.rest.store(rest);
    pull.factor.store(factor);
  }
  for (int64_t r = 0; r < rows; ++r) {
    pull.shift = V::of(shift[r]);
    if (S == Slope::NORM) {
      pull.rest = V::of(rest[r]);
      pull.factor = V::of(factor[r]);
    }
    sweep<T>(Ready<T>{p + r * k}, 0, k, [&](V v, int64_t j, int n) {
      const V w = pull.out(v, load(g + r * k + j, n), S == Slope::ONE ? v : slope[r * vectors + j / N]);
      if (n == N) w.store(out + r * k + j);
      else w.store(out + r * k + j, n);
    });
  }
}

// A row of middling length: both passes read all of it, as that is faster than jumping to the support. The first leaves
// it in L1 for the second, which asks for the next row if there is one.
template <class T, Slope S> void pull_middle(const T *p, const T *g, T *out, int64_t k, Pull<T, S> pull, bool last) {
  using V = Vec<T>;
  constexpr int N = V::N, WAYS = 4, SUMS = Pull<T, S>::SUMS;
  V way[WAYS][SUMS];
  for (auto &w : way)
    for (V &s : w) s = V::of(0);
  int64_t j = 0;
  for (; j + WAYS * N <= k; j += WAYS * N)
    for (int i = 0; i < WAYS; ++i) pull.look(V::load(p + j + i * N), V::load(g + j + i * N), way[i]);
  for (; j < k; j += N) {
    const int n = static_cast<int>(least<int64_t>(N, k - j));
    pull.look(load(p + j, n), load(g + j, n), way[0]);
  }
  V sum[SUMS];
  for (int i = 0; i < SUMS; ++i) sum[i] = V::of(((way[0][i] + way[1][i]) + (way[2][i] + way[3][i])).sum());
  pull.ready(sum);
  const int64_t ahead = last ? 0 : k;
  sweep<T>(Ready<T>{p}, 0, k, [&](V v, int64_t i, int n) {
    __builtin_prefetch(p + i + ahead);
    __builtin_prefetch(g + i + ahead);
    const V w = pull.out(v, load(g + i, n));
    if (n == N) w.store(out + i);
    else w.store(out + i, n);
  });
}

// A long row with large support: sums in double.
template <class T, Slope S> void pull_dense(const T *p, const T *g, T *out, int64_t k, Pull<T, S> pull) {
  using V = Vec<T>;
  constexpr int SUMS = Pull<T, S>::SUMS;
  Total<T> total[SUMS];
  V sum[SUMS];
  for (int64_t b = 0; b < k; b += RUN * V::N) {
    for (int i = 0; i < SUMS; ++i) sum[i] = V::of(0);
    sweep<T>(Ready<T>{p}, b, least(b + RUN * V::N, k), [&](V v, int64_t i, int n) {
      pull.look(v, load(g + i, n), sum);
    });
    for (int i = 0; i < SUMS; ++i) total[i].add(sum[i]);
  }
  for (int i = 0; i < SUMS; ++i) sum[i] = V::of(static_cast<T>(total[i].sum()));
  pull.ready(sum);
  pull_row(p, g, out, k, pull);
}

// A long row from the n indices of its support: the rest is only zero-filled.
template <class T, Slope S>
void pull_support(const T *p, const T *g, T *out, int64_t k, Pull<T, S> pull, const int32_t *index, int64_t n) {
  using V = Vec<T>;
  constexpr int N = V::N, SUMS = Pull<T, S>::SUMS;
  fill(out, k, T(0));
  V sum[SUMS], v = V::of(0), gv = v;
  for (int i = 0; i < SUMS; ++i) sum[i] = V::of(0);
  auto gather = [&](int64_t i) {
    const int m = static_cast<int>(least<int64_t>(N, n - i));
    v = V::gather(p, index + i, m);
    gv = V::gather(g, index + i, m);
  };
  for (int64_t i = 0; i < n; i += N) {
    gather(i);
    pull.look(v, gv, sum);
  }
  for (int i = 0; i < SUMS; ++i) sum[i] = V::of(sum[i].sum());
  pull.ready(sum);
  for (int64_t i = 0; i < n; i += N) {
    if (n > N) gather(i);
    T r[N];
    pull.out(v, gv).store(r);
    for (int j = 0; j < N && i + j < n; ++j) out[index[i + j]] = r[j];
  }
}

// The indices of the non-zeros; -1 if there are so many that a dense pass is faster.
template <class T> int64_t find_support(const T *p, int64_t k, int32_t *index) {
  using V = Vec<T>;
  const int64_t most = least<int64_t>(k / 4, CAPACITY);
  int64_t n = 0;
  for (int64_t b = 0; b < k; b += PIECE) {
    int32_t *to = index + n;
    sweep<T>(Ready<T>{p}, b, least(b + PIECE, k), [&](V v, int64_t i, int) {
      const typename V::Mask on = V::gt(v, V::of(0));
      V::pack_index(to, on, static_cast<int32_t>(i));
      to += V::count(on);
    });
    n = to - index;
    if (n > most) return -1;
  }
  return n;
}

template <class T, Slope S>
void backward_rows(const T *p, const T *g, T *out, int64_t rows, int64_t k, double alpha, SavedSupport saved,
                   int64_t first, int32_t *scratch) {
  const Pull<T, S> pull(alpha);
  if (k <= SHORT) {
    pull_short(p, g, out, rows, k, pull);
    return;
  }
  constexpr bool cheap = S == Slope::ONE || (S == Slope::ROOT && FAST_ROOTS);  // also off the support
  if (cheap && !PLAIN_LOOPS && k <= READ_ALL) {
    for (int64_t r = 0; r < rows; ++r) pull_middle(p + r * k, g + r * k, out + r * k, k, pull, r + 1 == rows);
    return;
  }
  for (int64_t r = 0; r < rows; ++r, p += k, g += k, out += k) {
    const int32_t *places = saved.first ? saved.first + (first + r) * saved.capacity : nullptr;
    const bool known = places && *places >= 0;
    const int64_t n = known ? *places : find_support(p, k, scratch);
    if (n >= 0) pull_support(p, g, out, k, pull, known ? places + 1 : scratch, n);
    else pull_dense(p, g, out, k, pull);
  }
}

template <class T>
void backward(const T *p, const T *g, T *out, int64_t rows, int64_t k, const Family &f, SavedSupport saved) {
  int32_t *scratch = Scratch<T>::get().index;
  for (int64_t r = 0, n; r < rows; r += n) {
    n = alike(f, r, rows, k <= SHORT ? Vec<T>::N : rows);
    const double alpha = f.alpha[f.per_row ? r : 0];
    const Slope slope = slope_of(f.norm, alpha);
    const auto work = slope == Slope::ONE    ? backward_rows<T, Slope::ONE>
                      : slope == Slope::ROOT ? backward_rows<T, Slope::ROOT>
                      : slope == Slope::NORM ? backward_rows<T, Slope::NORM>
                                             : backward_rows<T, Slope::POWER>;
    work(p + r * k, g + r * k, out + r * k, n, k, alpha, saved, r, scratch);
  }
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
