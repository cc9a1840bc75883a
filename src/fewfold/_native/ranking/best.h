// The top k of long rows of scores, read in the order of their ids; and upper bounds from vectors quantised to int8.
#pragma once
#include "simd.h"
#include "table.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// Whether one ranks below the other: a lower score, or the later of two equal ones.
template <class T> inline bool worse(T score, int64_t id, T other, int64_t other_id) {
  return score < other || (score == other && id > other_id);
}

// Sifts an entry down a heap of n entries whose root is free.
template <class T> inline void sink(Best<T> &best, int64_t n, T score, int64_t id) {
  T *s = best.score;
  int64_t *i = best.id, at = 0;
  for (int64_t child = 1; child < n; child = 2 * at + 1) {
    if (child + 1 < n) child += worse(s[child + 1], i[child + 1], s[child], i[child]);
    if (!worse(s[child], i[child], score, id)) break;
    s[at] = s[child];
    i[at] = i[child];
    at = child;
  }
  s[at] = score;
  i[at] = id;
}

template <class T> inline void enter(Best<T> &best, T score, int64_t id) {
  if (best.n == best.k) return sink(best, best.n, score, id);
  T *s = best.score;
  int64_t *i = best.id, at = best.n++;
  while (at) {
    const int64_t parent = (at - 1) / 2;
    if (!worse(score, id, s[parent], i[parent])) break;
    s[at] = s[parent];
    i[at] = i[parent];
    at = parent;
  }
  s[at] = score;
  i[at] = id;
}

// What a score must exceed. Ids come in increasing order, so an equal one is too late; minus infinity never enters.
template <class T> inline T bar(const Best<T> &best) { return best.n < best.k ? -INF<T> : best.score[0]; }

// Pushes the scores of the ids from `base` on. False if an allowed score is NaN.
template <class T> bool best_of(Best<T> &best, const T *x, int64_t n, int64_t base, const bool *allowed) {
  using V = Vec<T>;
  constexpr int AT_ONCE = 4;
  T least = bar(best);
  for (int64_t j = 0; j < n; j += AT_ONCE * V::N) {
    uint64_t hits = 0;
    if (j + AT_ONCE * V::N <= n) {
      for (int v = 0; v < AT_ONCE; ++v)
        hits |= static_cast<uint64_t>(V::bits(V::over(V::load(x + j + v * V::N), V::of(least)))) << (v * V::N);
    } else {
      for (int64_t i = j; i < n; ++i) hits |= static_cast<uint64_t>(!(x[i] <= least)) << (i - j);
    }
    for (; hits; hits &= hits - 1) {
      const int64_t i = j + __builtin_ctzll(hits);
      if (x[i] <= least || (allowed && !allowed[base + i])) continue;  // the threshold may have risen since
      if (x[i] != x[i]) return false;
      enter(best, x[i], base + i);
      least = bar(best);
    }
  }
  return true;
}

// Best first; unused entries are filled with id -1 and score -inf.
template <class T> void best_sorted(Best<T> &best) {
  for (int64_t n = best.n - 1; n > 0; --n) {
    const T score = best.score[n];
    const int64_t id = best.id[n];
    best.score[n] = best.score[0];
    best.id[n] = best.id[0];
    sink(best, n, score, id);
  }
  for (int64_t i = best.n; i < best.k; ++i) {
    best.score[i] = -INF<T>;
    best.id[i] = -1;
  }
}

// ---- vectors of bytes -----------------------------------------------------------------------------------------------

constexpr int SIDE_BY_SIDE = 4;  // rows at once, so that one load of the query serves them all
// Queries at once, so that one load of the rows serves them all; their sums fill the registers.
#if defined(FEWFOLD_AVX512)
constexpr int QUERIES_AT_ONCE = 4;
#else
constexpr int QUERIES_AT_ONCE = 2;
#endif
constexpr int64_t AHEAD_BYTES = 8192;  // prefetch distance: the hardware prefetcher stops at page boundaries

#if defined(FEWFOLD_AVX512) || defined(FEWFOLD_AVX2)
inline __m128i halves_added(__m256i x) { return _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)); }
#endif

#if defined(FEWFOLD_AVX512)
struct ByteSums {  // sums of products of bytes and 16-bit integers
  static constexpr int64_t N = 32;
  using V = __m512i;
  static V zero() { return _mm512_setzero_si512(); }
  static V bytes(const int8_t *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))); }
  static V query(const int16_t *p) { return _mm512_loadu_si512(p); }
  static V add(V sum, V x, V y) { return _mm512_add_epi32(sum, _mm512_madd_epi16(x, y)); }
  static V total(V x, V y) { return _mm512_add_epi32(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y)); }
  static V pairs(V x, V y) { return _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y)); }
  static __m128i folded(V x) { return halves_added(_mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1))); }
};
#elif defined(FEWFOLD_AVX2)
struct ByteSums {
  static constexpr int64_t N = 16;
  using V = __m256i;
  static V zero() { return _mm256_setzero_si256(); }
  static V bytes(const int8_t *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
  static V query(const int16_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
  static V add(V sum, V x, V y) { return _mm256_add_epi32(sum, _mm256_madd_epi16(x, y)); }
  static V total(V x, V y) { return _mm256_add_epi32(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y)); }
  static V pairs(V x, V y) { return _mm256_add_epi32(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y)); }
  static __m128i folded(V x) { return halves_added(x); }
};
#endif

// Inner products of `Queries` queries with `Rows` rows of bytes, all `width` apart, a multiple of 32; Rows is 1 or 4.
template <int Rows, int Queries>
inline void byte_dots(const int8_t *code, int64_t width, const int16_t *query, int32_t (*out)[SIDE_BY_SIDE]) {
#if defined(FEWFOLD_AVX512) || defined(FEWFOLD_AVX2)
  ByteSums::V sum[Queries][Rows];
  for (int q = 0; q < Queries; ++q)
    for (int r = 0; r < Rows; ++r) sum[q][r] = ByteSums::zero();
  for (int64_t j = 0; j < width; j += ByteSums::N) {
    ByteSums::V bytes[Rows];
    for (int r = 0; r < Rows; ++r) bytes[r] = ByteSums::bytes(code + r * width + j);
    for (int q = 0; q < Queries; ++q) {
      const ByteSums::V numbers = ByteSums::query(query + q * width + j);
      for (int r = 0; r < Rows; ++r) sum[q][r] = ByteSums::add(sum[q][r], bytes[r], numbers);
    }
  }
  for (int q = 0; q < Queries; ++q) {
    const ByteSums::V *x = sum[q];  // of one row all entries are its own; otherwise each row gets an entry of every four
    const ByteSums::V rows = ByteSums::pairs(ByteSums::total(x[0], x[Rows > 1 ? 1 : 0]),
                                             ByteSums::total(x[Rows > 2 ? 2 : 0], x[Rows > 3 ? 3 : 0]));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(out[q]), ByteSums::folded(rows));
  }
#else
  for (int q = 0; q < Queries; ++q)
    for (int r = 0; r < Rows; ++r) {
      int32_t sum = 0;
      for (int64_t j = 0; j < width; ++j) sum += static_cast<int32_t>(code[r * width + j]) * query[q * width + j];
      out[q][r] = sum;
    }
#endif
}

// Inner products of `queries` of them with `rows` rows.
template <int Queries>
inline void some_byte_dots(const int8_t *code, int64_t width, int rows, const int16_t *query,
                           int32_t (*out)[SIDE_BY_SIDE]) {
  if (rows == SIDE_BY_SIDE) return byte_dots<SIDE_BY_SIDE, Queries>(code, width, query, out);
  for (int r = 0; r < rows; ++r) {
    int32_t one[Queries][SIDE_BY_SIDE];
    byte_dots<1, Queries>(code + r * width, width, query, one);
    for (int q = 0; q < Queries; ++q) out[q][r] = one[q][0];
  }
}

// Upper bounds of `rows` rows from i on, as many as `Rows` unless that is 0, from their inner products with query n.
template <int Rows>
inline void upper(const Bytes &at, const ByteQueries &q, int64_t n, int64_t i, const int32_t *dots, float *out, int rows) {
  const float scale = q.scale[n], norm = q.norm[n];
  for (int r = 0; r < (Rows ? Rows : rows); ++r)
    out[r] = scale * at.step[i + r] * static_cast<float>(dots[r]) + norm * at.slack[i + r];
}

// high[q][i] = scale[q] step[i] <query q, code[i]> + norm[q] slack[i] for the items of [first, last) and all queries, whose
// rows are `stride` apart; minus infinity if not allowed.
inline void byte_scores(const Bytes &at, const ByteQueries &q, const bool *allowed, int64_t first, int64_t last,
                        float *high, int64_t stride) {
  int32_t dots[QUERIES_AT_ONCE][SIDE_BY_SIDE];
  for (int64_t i = first; i < last; i += SIDE_BY_SIDE) {
    const int rows = static_cast<int>(last - i < SIDE_BY_SIDE ? last - i : SIDE_BY_SIDE);
    if (allowed) {
      bool any = false;
      for (int r = 0; r < rows; ++r) any |= allowed[i + r];
      if (!any) {
        for (int64_t n = 0; n < q.n; ++n)
          for (int r = 0; r < rows; ++r) high[n * stride + i + r] = -INF<float>;
        continue;
      }
    }
    const int8_t *code = at.code + i * at.width;
    if (last - i > AHEAD_BYTES / at.width + SIDE_BY_SIDE)
      prefetch_range<3>(code + AHEAD_BYTES, SIDE_BY_SIDE * at.width);
    for (int64_t n = 0, some; n < q.n; n += some) {
      some = q.n - n < QUERIES_AT_ONCE ? 1 : QUERIES_AT_ONCE;
      const int16_t *query = q.code + n * at.width;
      if (some == QUERIES_AT_ONCE) {
        some_byte_dots<QUERIES_AT_ONCE>(code, at.width, rows, query, dots);
      } else {
        some_byte_dots<1>(code, at.width, rows, query, dots);
      }
      for (int64_t m = 0; m < some; ++m) {
        float *out = high + (n + m) * stride + i;
        if (rows == SIDE_BY_SIDE) {  // known to the compiler, which makes it four at once
          upper<SIDE_BY_SIDE>(at, q, n + m, i, dots[m], out, SIDE_BY_SIDE);
        } else {
          upper<0>(at, q, n + m, i, dots[m], out, rows);
        }
        for (int r = 0; allowed && r < rows; ++r)
          if (!allowed[i + r]) out[r] = -INF<float>;
      }
    }
  }
}

// Writes the positions of the n values that exceed the threshold; returns their number.
inline int64_t above(const float *x, int64_t n, float bar, int64_t *out) {
  using V = Vec<float>;
  int64_t found = 0;
  for (int64_t j = 0; j < n; j += V::N) {
    const V v = V::load(x + j, static_cast<int>(n - j < V::N ? n - j : V::N), -INF<float>);
    for (unsigned hits = V::bits(V::gt(v, V::of(bar))); hits; hits &= hits - 1) out[found++] = j + __builtin_ctz(hits);
  }
  return found;
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
