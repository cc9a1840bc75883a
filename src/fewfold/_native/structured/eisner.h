// The best projective tree over words by Eisner's recurrences, O(n^3). Compiled per instruction set: see simd.h.
//
// A table holds spans by width: those of width d, from position i to i + d, are at [d * wide + i], so that neighbours
// are spans of the same width and a vector of them is made at a time. `right` and `left` are complete spans headed by
// their first and last position, `to_right` and `to_left` those with an arc between the two. Positions are words, after
// the root if several words may hang from it.
#pragma once
#include "simd.h"
#include "structured.h"

namespace fewfold {
namespace FEWFOLD_ISA {

struct Spans {
  int64_t positions, wide;
  double *right, *left, *to_right, *to_left;
};

// max over k < count of a[k * a_step + i] + b[k * b_step + i] for a vector of i. What k = 0 reads may just have been
// stored at another alignment, so it is read last; two chains of maxima are independent.
FEWFOLD_INLINE Vec<double> best_split(const double *a, int64_t a_step, const double *b, int64_t b_step, int64_t count) {
  using V = Vec<double>;
  V even = V::of(-INF<double>), odd = even;
  const double *p = a + a_step, *q = b + b_step;
  int64_t k = 1;
  for (; k + 2 <= count; k += 2, p += 2 * a_step, q += 2 * b_step) {
    even = V::max(V::load(p) + V::load(q), even);
    odd = V::max(V::load(p + a_step) + V::load(q + b_step), odd);
  }
  if (k < count) even = V::max(V::load(p) + V::load(q), even);
  return V::max(V::load(a) + V::load(b), V::max(even, odd));
}

// Scores of arcs into the tables of spans that have them; false if there is a NaN or +inf.
inline bool place_arcs(const Spans &s, const double *scores, int64_t n) {
  using V = Vec<double>;
  const int64_t w = s.wide, shift = s.positions - n;
  const V top = V::of(LOWEST<double> * -1);
  unsigned bad = 0;
  for (int64_t i = 0; i < n * n; i += V::N) {
    const int64_t rest = n * n - i;
    bad |= V::bits(V::over(V::load(scores + i, static_cast<int>(rest < V::N ? rest : V::N), 0.0), top));
  }
  for (int64_t d = 1; d < n; ++d) {
    double *right = s.to_right + d * w + shift, *left = s.to_left + d * w + shift;
    const double *up = scores + d, *low = scores + d * n;
    for (int64_t i = 0; i < n - d; ++i) right[i] = up[i * (n + 1)], left[i] = low[i * (n + 1)];
  }
  for (int64_t m = 0; shift && m < n; ++m) {
    s.to_right[(m + 1) * w] = scores[m * n + m];
    s.to_left[(m + 1) * w] = -INF<double>;
  }
  return !bad;
}

inline void fill_spans(const Spans &s) {
  using V = Vec<double>;
  const int64_t w = s.wide, n = s.positions;
  for (int64_t i = 0; i < n; ++i) s.right[i] = s.left[i] = 0;
  for (int64_t d = 1; d < n; ++d) {
    double *to_right = s.to_right + d * w, *to_left = s.to_left + d * w;
    for (int64_t i = 0; i < n - d; i += V::N) {
      const V split = best_split(s.right + i, w, s.left + (d - 1) * w + i + 1, 1 - w, d);
      (split + V::load(to_right + i)).store(to_right + i);
      (split + V::load(to_left + i)).store(to_left + i);
    }
    for (int64_t i = 0; i < n - d; i += V::N) {
      best_split(s.to_right + w + i, w, s.right + (d - 1) * w + i + 1, 1 - w, d).store(s.right + d * w + i);
      best_split(s.left + i, w, s.to_left + d * w + i, 1 - w, d).store(s.left + d * w + i);
    }
  }
}

// The first k for which a[k * a_step] + b[k * b_step] + more equals the given maximum.
inline int64_t split_of(double best, double more, const double *a, int64_t a_step, const double *b, int64_t b_step) {
  int64_t k = 0;
  while (*a + *b + more != best) a += a_step, b += b_step, ++k;
  return k;
}

// Reads off the heads of all positions in a complete span of width d from position i, headed by its first position or
// else its last. `arc(h, m)` notes a head and returns its score; `todo` is a stack of spans.
template <class Arc> void read_span(const Spans &s, int64_t i, int64_t d, bool right, int32_t *todo, Arc arc) {
  const int64_t w = s.wide;
  int64_t size = 0;
  const auto later = [&](int64_t from, int64_t width, bool headed_right) {
    if (!width) return;
    todo[size++] = static_cast<int32_t>(from);
    todo[size++] = static_cast<int32_t>(2 * width + headed_right);
  };
  later(i, d, right);
  while (size) {
    const int32_t what = todo[--size];
    d = what / 2, right = what % 2, i = todo[--size];
    int64_t from = i, width;  // of the arc between the headword and the farthest word it is the head of
    double score, value;
    if (right) {
      width = 1 + split_of(s.right[d * w + i], 0, s.to_right + w + i, w, s.right + (d - 1) * w + i + 1, 1 - w);
      score = arc(i, i + width);
      value = s.to_right[width * w + i];
      later(i + width, d - width, true);
    } else {
      from = i + split_of(s.left[d * w + i], 0, s.left + i, w, s.to_left + d * w + i, 1 - w);
      width = i + d - from;
      score = arc(i + d, from);
      value = s.to_left[width * w + from];
      later(i, from - i, false);
    }
    const int64_t k = split_of(value, score, s.right + from, w, s.left + (width - 1) * w + from + 1, 1 - w);
    later(from, k, true);
    later(from + k + 1, width - k - 1, false);
  }
}

// As arborescence(), projective.
inline double eisner(const double *scores, int64_t n, bool single, double *real, int32_t *whole, int32_t *heads) {
  const int64_t w = tree_column(n), table = (n + 1) * w, shift = single ? 0 : 1;
  const Spans s{n + shift, w, real, real + table, real + 2 * table, real + 3 * table};
  if (!place_arcs(s, scores, n)) return INF<double> - INF<double>;
  fill_spans(s);
  const auto arc = [&](int64_t head, int64_t word) {
    const int64_t m = word - shift, h = head < shift ? m : head - shift;
    heads[m] = static_cast<int32_t>(h);
    return scores[h * n + m];
  };
  if (!single) {
    if (!(s.right[n * w] > -INF<double>)) return -INF<double>;
    read_span(s, 0, n, true, whole, arc);
  } else {
    double value = -INF<double>;
    int64_t root = 0;
    for (int64_t r = 0; r < n; ++r) {
      const double here = s.left[r * w] + s.right[(n - 1 - r) * w + r] + scores[r * n + r];
      if (here > value) value = here, root = r;
    }
    if (!(value > -INF<double>)) return -INF<double>;
    heads[root] = static_cast<int32_t>(root);
    read_span(s, 0, root, false, whole, arc);
    read_span(s, root, n - 1 - root, true, whole, arc);
  }
  double sum = 0;
  for (int64_t m = 0; m < n; ++m) sum += scores[heads[m] * n + m];
  return sum;
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
