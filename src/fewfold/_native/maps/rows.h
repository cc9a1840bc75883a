// The maps, row by row: forward, backward, and the support without the row.
#pragma once
#include "bernoulli.h"
#include "best.h"
#include "budget.h"
#include "cholesky.h"
#include "densities.h"
#include "draw.h"
#include "mix.h"
#include "nearest.h"
#include "pick.h"
#include "pull.h"
#include "touch.h"

namespace fewfold {
namespace FEWFOLD_ISA {

template <class T> inline Curve<T> curve_of(const Family &f, int64_t row) {
  const double alpha = f.alpha[f.per_row ? row : 0];
  return f.norm ? Curve<T>::normmax(alpha) : Curve<T>::entmax(alpha);
}

// A row with a NaN, with all scores -inf, or with +inf scores, which share all mass. True for the latter.
template <class T> bool odd_row(const T *x, T *p, int64_t k, const Stream<T> &s) {
  if (s.nan) fill(p, k, static_cast<T>(__builtin_nan("")));
  else if (s.top == -INF<T>) fill(p, k, T(0));
  else {
    int64_t n = 0;
    for (int64_t j = 0; j < k; ++j) n += x[j] == INF<T>;
    for (int64_t j = 0; j < k; ++j) p[j] = x[j] == INF<T> ? T(1) / static_cast<T>(n) : T(0);
    return true;
  }
  return false;
}

// Solves on the full row, for rows with large support. Returns the factor that normalises the sum.
template <class T> double dense_solve(const T *x, int64_t k, const Curve<T> &c, const Stream<T> &s, double &t) {
  const Scores<T> from{x, Vec<T>::of(s.top), Vec<T>::of(c.scale)};
  t = solve<T>(from, k, c, s.start_at(c), 64);
  if (!c.normalise) return 1;
  const Threshold<T> threshold(t);
  Total<T> sum;
  sweep<T>(from, 0, k, [&](Vec<T> v, int64_t, int) { sum.add(raise(threshold.above(v), c.out)); });
  return 1 / sum.sum();
}

template <class T, int Out> void write_all(const T *x, T *p, int64_t k, const Curve<T> &c, T top, double t, double factor) {
  const Scores<T> from{x, Vec<T>::of(top), Vec<T>::of(c.scale)};
  const Threshold<T> threshold(t);
  const Vec<T> by = Vec<T>::of(static_cast<T>(factor));
  sweep<T>(from, 0, k, [&](Vec<T> v, int64_t i, int n) {
    const Vec<T> u = threshold.above(v);
    const Vec<T> w = Out == 1 ? u : Out == 2 ? u * u : raise(u, c.out) * by;
    if (n == Vec<T>::N) w.store(p + i);
    else w.store(p + i, n);
  });
}

template <class T> void dense_write(const T *x, T *p, int64_t k, const Curve<T> &c, T top, double t, double factor) {
  if (c.normalise) write_all<T, 0>(x, p, k, c, top, t, factor);
  else if (c.out == 1) write_all<T, 1>(x, p, k, c, top, t, 1);
  else write_all<T, 2>(x, p, k, c, top, t, 1);
}

// Candidates -> weights, in place of the candidates.
template <class T> void weigh(Stream<T> &s, const Curve<T> &c) {
  using V = Vec<T>;
  const V top = V::of(s.top), scale = V::of(c.scale);
  for (int64_t i = 0; i < s.n; i += V::N) ((V::load(s.x + i) - top) * scale).store(s.x + i);
  const double t = solve<T>(Ready<T>{s.x}, s.n, c, s.start_at(c), 64);
  const Threshold<T> threshold(t);
  Total<T> sum;
  sweep<T>(Ready<T>{s.x}, 0, s.n, [&](V v, int64_t i, int) {
    const V w = raise(threshold.above(v), c.out);
    sum.add(w);
    w.store(s.x + i);
  });
  if (c.normalise) {
    const V by = V::of(static_cast<T>(1 / sum.sum()));
    for (int64_t i = 0; i < s.n; i += V::N) (V::load(s.x + i) * by).store(s.x + i);
  }
}

// Solves an ill-conditioned float row again in double precision. False if memory is exhausted.
template <class T> bool long_row(const T *x, T *p, int64_t k, const Curve<T> &c, SavedSupport saved, int64_t row);
inline bool again(const double *, double *, int64_t, const Curve<double> &) { return false; }
inline bool again(const float *x, float *p, int64_t k, const Curve<float> &c) {
  double *wide = static_cast<double *>(std::malloc(2 * static_cast<size_t>(k) * sizeof(double)));
  if (!wide) return false;
  for (int64_t j = 0; j < k; ++j) wide[j] = x[j];
  const Curve<double> d = c.norm ? Curve<double>::normmax(c.alpha) : Curve<double>::entmax(c.alpha);
  long_row<double>(wide, wide + k, k, d, {}, 0);
  for (int64_t j = 0; j < k; ++j) p[j] = static_cast<float>(wide[k + j]);
  std::free(wide);
  return true;
}

// From the candidates of a row to its answer. `saved` receives the support's indices for the backward pass;
// count -1 if they exceed its capacity. Returns whether the row had infinite scores.
template <class T>
bool finish_row(Stream<T> &s, const T *x, T *p, int64_t k, const Curve<T> &c, SavedSupport saved, int64_t row) {
  if (saved.first) saved.first[row * saved.capacity] = -1;
  if (s.odd()) return odd_row(x, p, k, s);
  if (s.full || s.n > k / 4) {  // many candidates: reading the row again is cheaper than picking them out
    double t;
    const double factor = dense_solve(x, k, c, s, t);
    dense_write(x, p, k, c, s.top, t, factor);
    if (c.normalise && touchy(p, k, c)) again(x, p, k, c);
    return false;
  }
  weigh(s, c);
  if (c.normalise && touchy(s.x, s.n, c) && again(x, p, k, c)) return false;
  fill(p, k, T(0));
  for (int64_t i = 0; i < s.n; ++i) p[s.index[i]] = s.x[i];
  if (!saved.first || s.n >= saved.capacity) return false;
  int32_t *places = saved.first + row * saved.capacity, n = 0;
  for (int64_t i = 0; i < s.n; ++i) {
    places[1 + n] = s.index[i];
    n += s.x[i] > 0;
  }
  places[0] = n;
  return false;
}

template <class T> bool long_row(const T *x, T *p, int64_t k, const Curve<T> &c, SavedSupport saved, int64_t row) {
  Stream<T> &s = Scratch<T>::get();
  s.read(x, k, c);
  return finish_row(s, x, p, k, c, saved, row);
}

template <class T, int E>
bool rows_of(const T *x, T *p, int64_t rows, int64_t k, const Curve<T> &c, SavedSupport saved, int64_t first) {
  uint64_t odd = k <= SHORT ? ShortRows<T, E>::run(x, p, rows, k, c) : Team<T, E>::run(x, p, rows, k, c);
  odd &= (uint64_t{1} << rows) - 1;
  bool infinite = false;
  for (; odd; odd &= odd - 1) {
    const int64_t i = __builtin_ctzll(odd);
    infinite |= long_row(x + i * k, p + i * k, k, c, saved, first + i);
  }
  return infinite;
}

template <class T> bool forward(const T *x, T *p, int64_t rows, int64_t k, const Family &f, SavedSupport saved) {
  // With alpha = 2 two passes suffice, so that teams are faster on longer rows too; but streams yield the support.
  const bool team = k <= MIDDLE || (k <= 2 * MIDDLE && !saved.first && !f.norm && !f.per_row && *f.alpha == 2);
  const int64_t most = k <= SHORT ? 2 * Vec<T>::N : team ? Vec<T>::N : 1;
  bool infinite = false;
  for (int64_t r = 0, n; r < rows; r += n) {
    n = alike(f, r, rows, most);
    const T *from = x + r * k;
    T *to = p + r * k;
    const Curve<T> c = curve_of<T>(f, r);
    if (!team) infinite |= long_row(from, to, k, c, saved, r);
    else if (c.e == 1) infinite |= rows_of<T, 1>(from, to, n, k, c, saved, r);
    else if (c.e == 2) infinite |= rows_of<T, 2>(from, to, n, k, c, saved, r);
    else infinite |= rows_of<T, 0>(from, to, n, k, c, saved, r);
  }
  return infinite;
}

// ---- the support without the row -----------------------------------------------------------------------------------

// Reallocates `old` to n numbers; on failure throws and leaves `old` unchanged.
template <class S> S *grown(S *old, int64_t n) {
  void *to = std::realloc(old, static_cast<size_t>(n) * sizeof(S));
  if (!to) throw std::bad_alloc();
  return static_cast<S *>(to);
}

template <class T> void append(Ragged<T> &out, const int32_t *index, const T *weight, int64_t n) {
  if (out.n + n > out.capacity) {
    out.capacity = 2 * (out.n + n);
    out.index = grown(out.index, out.capacity);
    out.weight = grown(out.weight, out.capacity);
  }
  int64_t m = out.n;
  for (int64_t i = 0; i < n; ++i) {
    if (weight[i] == 0) continue;
    out.index[m] = index[i];
    out.weight[m++] = weight[i];
  }
  out.n = m;
}

// A row whose answer had to be written out: its non-zeros, PIECE by PIECE.
template <class T> void append_dense(Ragged<T> &out, const T *p, int64_t k) {
  int32_t index[PIECE];
  for (int64_t b = 0; b < k; b += PIECE) {
    const int64_t n = least(PIECE, k - b);
    for (int64_t i = 0; i < n; ++i) index[i] = static_cast<int32_t>(b + i);
    append(out, index, p + b, n);
  }
}

template <class T> void support(const T *x, int64_t rows, int64_t k, const Family &f, Ragged<T> &out, int64_t *count) {
  Stream<T> &s = Scratch<T>::get();
  T *dense = nullptr;
  for (int64_t r = 0; r < rows; ++r, x += k) {
    const Curve<T> c = curve_of<T>(f, r);
    const int64_t before = out.n;
    s.read(x, k, c);
    bool written = s.odd() || s.full;  // as a dense row
    if (!written) {
      weigh(s, c);
      written = c.normalise && touchy(s.x, s.n, c);
    }
    if (written) {
      if (!dense) dense = grown(dense, k);
      long_row(x, dense, k, c, {}, 0);
      append_dense(out, dense, k);
    } else append(out, s.index, s.x, s.n);
    count[r] = out.n - before;
  }
  std::free(dense);
}

// ---- scores that come in chunks of columns --------------------------------------------------------------------------

// One stream per row, which persists between calls; null if memory is exhausted.
template <class T> void *streams_new(int64_t rows) {
  const size_t count = static_cast<size_t>(rows > 0 ? rows : 1);
  if (count > SIZE_MAX / sizeof(Stream<T>)) return nullptr;
  Stream<T> *s = static_cast<Stream<T> *>(std::malloc(count * sizeof(Stream<T>)));
  if (!s) return nullptr;
  for (int64_t r = 0; r < rows; ++r) {
    s[r] = Stream<T>();
    s[r].start();
  }
  return s;
}
template <class T> void streams_free(void *streams, int64_t rows) {
  Stream<T> *s = static_cast<Stream<T> *>(streams);
  for (int64_t r = 0; r < rows; ++r) s[r].release();
  std::free(s);
}
// Rows [first, last) take `size` scores each, `stride` apart, of the columns from `base` on.
template <class T>
void streams_push(void *streams, const T *x, int64_t first, int64_t last, int64_t size, int64_t stride, int64_t base,
                  double alpha, int64_t most) {
  Stream<T> *s = static_cast<Stream<T> *>(streams);
  const Curve<T> c = Curve<T>::entmax(alpha);
  for (int64_t r = first; r < last; ++r) {
    s[r].push(x + r * stride, size, base, c, most);
    if (s[r].full) s[r].release();
  }
}
// The candidates of row r above the final bound, or -1 if there were too many. Call with null pointers to count.
template <class T> int64_t streams_take(void *streams, int64_t r, double alpha, int64_t *column, T *score) {
  Stream<T> &s = static_cast<Stream<T> *>(streams)[r];
  if (s.full) return -1;
  if (s.nan) {  // a single NaN makes the whole row NaN
    if (column) {
      *column = 0;
      *score = static_cast<T>(__builtin_nan(""));
    }
    return 1;
  }
  if (!column) {
    if (s.n && !s.odd()) s.prune(Curve<T>::entmax(alpha));
    return s.n;
  }
  for (int64_t i = 0; i < s.n; ++i) {
    column[i] = s.index[i];
    score[i] = s.x[i];
  }
  return s.n;
}

template <class T> constexpr Table<T> table() {
  return {forward<T>,      backward<T>,  support<T>,         streams_new<T>, streams_free<T>, streams_push<T>,
          streams_take<T>, budget<T>,    budget_backward<T>, picked_dots<T>, picked_pulls<T>,
          soften<T>,       bag<T>,       unbag<T>,           touch<T>,       pay<T>,          best_of<T>,
          best_sorted<T>,  mix<T>,       mix_dots<T>,        mix_pull<T>,    tile_marks<T>,   tile_out<T>,
          tile_in<T>,      mix_scores<T>, mix_score_pulls<T>, expected_products<T>,
          log_densities<T>, bernoulli_costs<T>, bernoulli_pulls<T>};
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
