// Rows that are sparse weighted sums of anchors, and the gradients of both. All scores of a tied layer are the same
// sums with the transposed scores of the anchors in place of the anchors: hence the tiles below.
#pragma once
#include "pick.h"
#include "simd.h"
#include "table.h"
#include "turn.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// B vectors of one sum, in registers.
template <class T, int B>
inline void mix_block(const T *anchors, int64_t stride, const T *weight, const int32_t *slot, int64_t m, Vec<T> by, T *out) {
  using V = Vec<T>;
  V sum[B];
  for (V &s : sum) s = V::of(0);
  for (int64_t p = 0; p < m; ++p) {
    const T *a = anchors + slot[p] * stride;
    const V w = V::of(weight[p]);
    for (int b = 0; b < B; ++b) sum[b] = V::fma(w, V::load(a + b * V::N), sum[b]);
  }
  for (int b = 0; b < B; ++b) (by * sum[b]).store(out + b * V::N);
}

// out[b] = by[b] sum_p weight[p] anchors[slot[p]] over the terms of bags [first, last).
template <class T> void mix(const T *anchors, int64_t d, const Terms<T> &t, int64_t first, int64_t last, T *out) {
  using V = Vec<T>;
  for (int64_t b = first; b < last; ++b) {
    const T *weight = t.weight + t.start(b);
    const int32_t *slot = t.slot + t.start(b);
    const int64_t m = t.start(b + 1) - t.start(b);
    const V by = V::of(t.scale(b));
    T *to = out + b * d;
    int64_t j = 0;
    for (; j + 8 * V::N <= d; j += 8 * V::N) mix_block<T, 8>(anchors + j, d, weight, slot, m, by, to + j);
    if (j + 4 * V::N <= d) mix_block<T, 4>(anchors + j, d, weight, slot, m, by, to + j), j += 4 * V::N;
    if (j + 2 * V::N <= d) mix_block<T, 2>(anchors + j, d, weight, slot, m, by, to + j), j += 2 * V::N;
    if (j + V::N <= d) mix_block<T, 1>(anchors + j, d, weight, slot, m, by, to + j), j += V::N;
    if (j == d) continue;
    const int rest = static_cast<int>(d - j);
    V sum = V::of(0);
    for (int64_t p = 0; p < m; ++p)
      sum = V::fma(V::of(weight[p]), V::load(anchors + slot[p] * d + j, rest, T(0)), sum);
    (by * sum).store(to + j, rest);
  }
}

// The gradient of the weights: values[p] = by[b] <g[b], anchors[slot[p]]>. Four anchors at a time share the loads of g.
template <class T> void mix_dots(const T *anchors, int64_t d, const Terms<T> &t, const T *g, int64_t first, int64_t last, T *values) {
  using V = Vec<T>;
  constexpr int64_t FOUR = 4;
  for (int64_t b = first; b < last; ++b) {
    const T *row = g + b * d, by = t.scale(b);
    const int64_t end = t.start(b + 1);
    int64_t p = t.start(b);
    for (; p + FOUR <= end; p += FOUR) {
      V sum[FOUR];
      for (V &s : sum) s = V::of(0);
      int64_t j = 0;
      for (; j + V::N <= d; j += V::N) {
        const V x = V::load(row + j);
        for (int i = 0; i < FOUR; ++i) sum[i] = V::fma(x, V::load(anchors + t.slot[p + i] * d + j), sum[i]);
      }
      if (j < d) {
        const int rest = static_cast<int>(d - j);
        const V x = V::load(row + j, rest, T(0));
        for (int i = 0; i < FOUR; ++i) sum[i] = V::fma(x, V::load(anchors + t.slot[p + i] * d + j, rest, T(0)), sum[i]);
      }
      for (int i = 0; i < FOUR; ++i) values[p + i] = by * sum[i].sum();
    }
    for (; p < end; ++p) values[p] = by * dot(row, anchors + t.slot[p] * d, d);
  }
}

template <class T, int B> inline void pull_block(const T *g, T by, const T *weight, const int32_t *slot, int64_t m, T *to, int64_t d) {
  using V = Vec<T>;
  V x[B];
  for (int b = 0; b < B; ++b) x[b] = V::of(by) * V::load(g + b * V::N);
  for (int64_t p = 0; p < m; ++p) {
    T *a = to + slot[p] * d;
    const V w = V::of(weight[p]);
    for (int b = 0; b < B; ++b) V::fma(w, x[b], V::load(a + b * V::N)).store(a + b * V::N);
  }
}

// The gradient of the anchors, `width` columns of it: to[slot[p]] += weight[p] by[b] g[b], in the order of the terms.
// Rows of g are `stride` apart, those of `to` d: the result does not depend on how columns are divided among threads.
template <class T>
void mix_pull(const T *g, int64_t stride, const Terms<T> &t, int64_t first, int64_t last, T *to, int64_t d, int64_t width) {
  using V = Vec<T>;
  int64_t j = 0;
  const auto blocks = [&](auto size) {
    constexpr int B = decltype(size)::value;
    for (; j + B * V::N <= width; j += B * V::N)
      for (int64_t b = first; b < last; ++b)
        pull_block<T, B>(g + b * stride + j, t.scale(b), t.weight + t.start(b), t.slot + t.start(b),
                         t.start(b + 1) - t.start(b), to + j, d);
  };
  blocks(Count<8>());
  blocks(Count<4>());
  blocks(Count<2>());
  blocks(Count<1>());
  if (j == width) return;
  const int rest = static_cast<int>(width - j);
  for (int64_t b = first; b < last; ++b) {
    const V x = V::of(t.scale(b)) * V::load(g + b * stride + j, rest, T(0));
    for (int64_t p = t.start(b); p < t.start(b + 1); ++p) {
      T *a = to + t.slot[p] * d + j;
      V::fma(V::of(t.weight[p]), x, V::load(a, rest, T(0))).store(a, rest);
    }
  }
}

// ---- tiles: rows of a table down, queries across ----------------------------------------------------------------------

// Which of n columns exceed the threshold in absolute value in one of the rows; a NaN always does.
template <class T> bool tile_marks(const T *x, int64_t stride, int64_t rows, int64_t n, T bar, uint8_t *mark) {
  using V = Vec<T>;
  const V high = V::of(bar), zero = V::of(0);
  unsigned any = 0;
  for (int64_t j = 0; j < n; j += V::N) {
    const int size = static_cast<int>(n - j < V::N ? n - j : V::N);
    unsigned bits = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const V v = V::load(x + r * stride + j, size, T(0));
      bits |= V::bits(V::over(V::max(v, zero - v), high));
    }
    for (int i = 0; i < size; ++i) mark[j + i] |= bits >> i & 1;
    any |= bits;
  }
  return any;
}

template <class T> inline T beyond(T x, T bar) { return x <= bar && x >= -bar ? T(0) : x; }

// A tile (rows, width) into columns of out, whose rows, as many as `across`, are `stride` apart.
template <class T> void tile_out(const T *tile, int64_t width, int64_t rows, int64_t across, T *out, int64_t stride) {
  for (int64_t b = 0; b < across; ++b)
    for (int64_t r = 0; r < rows; ++r) out[b * stride + r] = tile[r * width + b];
}

// And back, with values within the threshold set to zero; columns from `across` to `width` become zero.
template <class T> void tile_in(const T *x, int64_t stride, int64_t rows, int64_t across, T bar, T *tile, int64_t width) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t b = 0; b < width; ++b) tile[r * width + b] = b < across ? beyond(x[b * stride + r], bar) : T(0);
}

#if defined(FEWFOLD_AVX512) || defined(FEWFOLD_AVX2)
#if defined(FEWFOLD_AVX512)
inline void stream(float *to, __m512 x) { _mm512_stream_ps(to, x); }
#else
inline void stream(float *to, __m256 x) { _mm256_stream_ps(to, x); }
#endif

// Non-temporal stores where whole cache lines are written, as they are not read again here. All but the first and last
// line of a row of out are whole, whatever its alignment.
inline void line_out(const float *from, int64_t n, float *to) {
  using V = Vec<float>;
  const int64_t before = -(reinterpret_cast<intptr_t>(to) / int64_t(sizeof(float))) & (V::N - 1);
  const int64_t head = before < n ? before : n;
  if (head) V::load(from, static_cast<int>(head), 0.f).store(to, static_cast<int>(head));
  int64_t i = head;
  for (; i + V::N <= n; i += V::N) stream(to + i, V::load(from + i).v);
  if (i < n) V::load(from + i, static_cast<int>(n - i), 0.f).store(to + i, static_cast<int>(n - i));
}

// The tile is transposed first, then written row by row, so that consecutive lines are written together.
template <> inline void tile_out(const float *tile, int64_t width, int64_t rows, int64_t across, float *out, int64_t stride) {
  using V = Vec<float>;
  constexpr int64_t LONG = 64;
  alignas(64) float turned[V::N * LONG];
  for (int64_t first = 0; first < rows; first += LONG)
    for (int64_t b = 0; b < across; b += V::N) {
      const int64_t n = rows - first < LONG ? rows - first : LONG, even = n / V::N * V::N;
      const int64_t wide = across - b < V::N ? across - b : V::N;
      const float *from = tile + first * width + b;
      decltype(V::v) x[V::N];
      for (int64_t r = 0; r < even; r += V::N) {
        for (int i = 0; i < V::N; ++i) x[i] = V::load(from + (r + i) * width).v;
        turn(x);
        for (int i = 0; i < V::N; ++i) V{x[i]}.store(turned + i * LONG + r);
      }
      for (int64_t r = even; r < n; ++r)
        for (int64_t i = 0; i < wide; ++i) turned[i * LONG + r] = from[r * width + i];
      for (int64_t i = 0; i < wide; ++i) line_out(turned + i * LONG, n, out + (b + i) * stride + first);
    }
  _mm_sfence();
}

template <>
inline void tile_in(const float *x, int64_t stride, int64_t rows, int64_t across, float bar, float *tile, int64_t width) {
  const int64_t even = rows / 8 * 8, whole = across / 8 * 8;
  const __m256 high = _mm256_set1_ps(bar), sign = _mm256_set1_ps(-0.f);
  for (int64_t b = 0; b < whole; b += 8)
    for (int64_t r = 0; r < even; r += 8) {
      __m256 v[8];
      for (int i = 0; i < 8; ++i) {
        v[i] = _mm256_loadu_ps(x + (b + i) * stride + r);
        v[i] = _mm256_and_ps(v[i], _mm256_cmp_ps(_mm256_andnot_ps(sign, v[i]), high, _CMP_NLE_UQ));
      }
      turn(v);
      for (int i = 0; i < 8; ++i) _mm256_storeu_ps(tile + (r + i) * width + b, v[i]);
    }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t b = r < even ? whole : 0; b < width; ++b)
      tile[r * width + b] = b < across ? beyond(x[b * stride + r], bar) : 0.f;
}
#endif

// ---- rows selected by id, scored through the scores of the anchors for a query ------------------------------------------

// scores[i] = sum_j weight[i, j] query[slot[i, j]]
template <class T> void mix_scores(const T *query, const T *weight, const int32_t *slot, int64_t s, int64_t n, T *scores) {
  using V = Vec<T>;
  for (int64_t i = 0; i < n; ++i, weight += s, slot += s) {
    if (s < 4) {
      T sum = 0;
      for (int64_t j = 0; j < s; ++j) sum += weight[j] * query[slot[j]];
      scores[i] = sum;
      continue;
    }
    V sum = V::of(0);
    for (int64_t j = 0; j < s; j += V::N) {
      const int size = static_cast<int>(s - j < V::N ? s - j : V::N);
      sum = V::fma(V::load(weight + j, size, T(0)), V::gather(query, slot + j, size), sum);
    }
    scores[i] = sum.sum();
  }
}

// Their gradients: values[i, j] = scale by[i] query[slot[i, j]], pull[slot[i, j]] += scale by[i] weight[i, j].
template <class T>
void mix_score_pulls(const T *query, const T *weight, const int32_t *slot, int64_t s, int64_t n, const T *by, T scale,
                     T *pull, T *values) {
  for (int64_t i = 0; i < n; ++i, weight += s, slot += s) {
    const T x = scale * by[i];
    if (values)
      for (int64_t j = 0; j < s; ++j) values[i * s + j] = x * query[slot[j]];
    if (pull)
      for (int64_t j = 0; j < s; ++j) pull[slot[j]] += x * weight[j];
  }
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
