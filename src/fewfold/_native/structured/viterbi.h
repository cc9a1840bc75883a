// The steps of dynamic programmes over chains, many states at once.
#pragma once
#include "simd.h"
#include "structured.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// most[s] = max over r of from[r] + table[r, s] and to[s] = most[s] + add[s], for `Blocks` vectors of states, the last
// of `last` states, padded with arbitrary values: whole stores can be forwarded to loads. Several
// independent maxima over interleaved r hide latency. A sum that is NaN is never the largest.
template <int Blocks>
inline void max_plus_block(const double *from, const double *table, int64_t states, const double *add, double *most,
                           double *to, int last) {
  using V = Vec<double>;
  constexpr int Ways = Blocks > 2 ? 2 : 4;
  V best[Ways][Blocks];
  for (int w = 0; w < Ways; ++w)
    for (int b = 0; b < Blocks; ++b) best[w][b] = V::of(-INF<double>);
  const auto meet = [&](V *top, int64_t r) {
    const V start = V::of(from[r]);
    const double *row = table + r * states;
    for (int b = 0; b + 1 < Blocks; ++b) top[b] = V::max(start + V::load(row + b * V::N), top[b]);
    const int b = Blocks - 1;
    const V end = last == V::N ? V::load(row + b * V::N) : V::load(row + b * V::N, last, 0.0);
    top[b] = V::max(start + end, top[b]);
  };
  int64_t r = 0;
  for (; r + Ways <= states; r += Ways)
    for (int w = 0; w < Ways; ++w) meet(best[w], r + w);
  if (r < states) meet(best[0], r++);
  if (r < states) meet(best[1], r++);
  if (Ways == 4 && r < states) meet(best[2 % Ways], r);
  for (int b = 0; b < Blocks; ++b) {
    V top = V::max(best[1][b], best[0][b]);
    if (Ways == 4) top = V::max(V::max(best[Ways - 1][b], best[Ways - 2][b]), top);
    top.store(most + b * V::N);
    (top + V::load(add + b * V::N, b + 1 < Blocks ? V::N : last, 0.0)).store(to + b * V::N);
  }
}

inline void max_plus(const double *from, const double *table, int64_t states, const double *add, double *most,
                     double *to) {
  constexpr int64_t N = Vec<double>::N;
  for (int64_t s = 0; s < states; s += 4 * N) {
    const int64_t left = states - s < 4 * N ? states - s : 4 * N;
    const int last = static_cast<int>((left - 1) % N) + 1;
    switch ((left - 1) / N) {
      case 0: max_plus_block<1>(from, table + s, states, add + s, most + s, to + s, last); break;
      case 1: max_plus_block<2>(from, table + s, states, add + s, most + s, to + s, last); break;
      case 2: max_plus_block<3>(from, table + s, states, add + s, most + s, to + s, last); break;
      default: max_plus_block<4>(from, table + s, states, add + s, most + s, to + s, last);
    }
  }
}

// The first place where a[i] + b[i] is `top`, the largest.
inline int64_t place(const double *a, const double *b, int64_t n, double top) {
  using V = Vec<double>;
  if (n > V::N && n <= 2 * V::N) {  // two vectors: branch-free, to avoid mispredictions
    const int m = static_cast<int>(n - V::N);
    const V one = V::load(a) + V::load(b), two = V::load(a + V::N, m, 0.0) + V::load(b + V::N, m, -INF<double>);
    const unsigned less = V::bits(V::over(V::of(top), one)) | V::bits(V::over(V::of(top), two)) << V::N;
    return __builtin_ctz(~less) < n ? __builtin_ctz(~less) : 0;
  }
  for (int64_t i = 0; i < n; i += V::N) {
    const int m = static_cast<int>(n - i < V::N ? n - i : V::N);
    const V sum = V::load(a + i, m, 0.0) + V::load(b + i, m, -INF<double>);
    const unsigned less = V::bits(V::over(V::of(top), sum));
    if (less != (1u << V::N) - 1) return i + __builtin_ctz(~less);
  }
  return 0;
}

// The best values with which each state is reached, from both ends to the middle: the halves are independent.
// Returns the best state there, or -1.
inline int64_t viterbi(const Chain &c, const double *scores, const int64_t *where, int64_t layers) {
  using V = Vec<double>;
  const int64_t n = c.states, w = c.wide, middle = layers / 2, last = layers - 1;
  double *right = c.reach + w, *most = c.most + w;  // one further on, so that the middle has both
  for (int64_t s = 0; s < n; ++s) {
    c.reach[s] = scores[where[0] * n + s] + c.start[s];
    right[last * w + s] = scores[where[last] * n + s] + c.stop[s];
    most[last * w + s] = c.stop[s];
  }
  for (int64_t j = 1, k = last; j <= middle; ++j, --k) {  // the right half is no longer than the left
    const double *from = c.transitions + where[j - 1] * c.between;
    max_plus(c.reach + (j - 1) * w, from, n, scores + where[j] * n, c.most + j * w, c.reach + j * w);
    if (k <= middle) continue;
    const double *to = c.turned + where[k - 1] * c.between;
    max_plus(right + k * w, to, n, scores + where[k - 1] * n, most + (k - 1) * w, right + (k - 1) * w);
  }
  const double *left = c.reach + middle * w, *rest = most + middle * w;
  V top = V::of(-INF<double>);
  for (int64_t s = 0; s < n; s += V::N) {
    const int m = static_cast<int>(n - s < V::N ? n - s : V::N);
    top = V::max(V::load(left + s, m, -INF<double>) + V::load(rest + s, m, -INF<double>), top);
  }
  const double value = top.top();
  return value > -INF<double> ? place(left, rest, n, value) : -1;
}

// The states on the best path through this state of the middle. The best neighbour is found only here: the sums are the
// same as in `viterbi`, so that it is found by comparison for equality.
inline void trace(const Chain &c, const int64_t *where, int64_t layers, int64_t state, int32_t *code) {
  const int64_t n = c.states, w = c.wide, middle = layers / 2;
  const double *right = c.reach + w, *most = c.most + w;
  const auto mark = [&](int64_t j, int64_t s) { code[where[j]] = static_cast<int32_t>(where[j] * n + s); };
  mark(middle, state);
  int64_t before = state, after = state;
  for (int64_t j = middle, k = middle; j > 0; --j, ++k) {
    const double *from = c.turned + where[j - 1] * c.between + before * n;
    before = place(c.reach + (j - 1) * w, from, n, c.most[j * w + before]);
    mark(j - 1, before);
    if (k + 1 >= layers) continue;
    const double *to = c.transitions + where[k] * c.between + after * n;
    after = place(right + (k + 1) * w, to, n, most[k * w + after]);
    mark(k + 1, after);
  }
}

inline bool any_nan(const double *a, int64_t n) {
  using V = Vec<double>;
  unsigned found = 0;
  int64_t i = 0;
  for (; i + V::N <= n; i += V::N) {
    const V x = V::load(a + i);
    found |= V::bits(V::nan(x, x));
  }
  const int rest = static_cast<int>(n - i);
  if (rest) {
    const V x = V::load(a + i, rest, 0.0);
    found |= V::bits(V::nan(x, x));
  }
  return found != 0;
}

inline bool all_numbers(const double *a, int64_t n) {
  using V = Vec<double>;
  const V least = V::of(LOWEST<double>);
  unsigned odd = 0;
  int64_t i = 0;
  for (; i + V::N <= n; i += V::N) odd |= V::bits(V::over(least, V::load(a + i)));
  const int rest = static_cast<int>(n - i);
  if (rest) odd |= V::bits(V::over(least, V::load(a + i, rest, 0.0)));
  return !odd;
}

// One more bit. `off` and `on` hold the best value for every number of bits that are on so far, by whether the last
// one is; on[-1] and off[-1] can be read.
inline void count_step(const double *off, const double *on, int64_t n, double score, double bonus, double *new_off,
                       double *new_on) {
  using V = Vec<double>;
  const V own = V::of(score), both = V::of(bonus);
  int64_t c = 0;
  for (; c < n; c += V::N) {
    const int m = static_cast<int>(n - c < V::N ? n - c : V::N);
    V::max(V::load(on + c, m, 0.0), V::load(off + c, m, 0.0)).store(new_off + c, m);
    (V::max(V::load(on + c - 1, m, 0.0) + both, V::load(off + c - 1, m, 0.0)) + own).store(new_on + c, m);
  }
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
