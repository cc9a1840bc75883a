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

#if defined(FEWFOLD_AVX512)
inline bool byte_products() { return __builtin_cpu_supports("avx512vnni"); }

#define FEWFOLD_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

// Adds the products of the columns of [first, last). The instruction multiplies unsigned by signed bytes, so rows are shifted
// by 128. Without the pragmas the sums would not stay in registers.
template <int Rows, int Queries>
FEWFOLD_VNNI __attribute__((always_inline)) inline void add_products(const int8_t *code, int64_t width, const int8_t *query,
                                                                     int64_t stride, int64_t first, int64_t last,
                                                                     __m512i (&sum)[Queries][Rows]) {
  const __m512i shift = _mm512_set1_epi8(-128);
  for (int64_t j = first; j < last; j += 64) {
    const __mmask64 mask = width - j < 64 ? 0xffffffffu : ~__mmask64{0};
    __m512i rows[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
      rows[r] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, code + r * width + j), shift);
#pragma GCC unroll 8
    for (int q = 0; q < Queries; ++q) {
      const __m512i numbers = _mm512_loadu_si512(query + q * stride + j);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) sum[q][r] = _mm512_dpbusd_epi32(sum[q][r], rows[r], numbers);
    }
  }
}

// byte_dots of `Queries` queries of bytes from n on.
template <int Rows, int Queries>
FEWFOLD_VNNI __attribute__((noinline)) void products_of_bytes(const int8_t *code, int64_t width, const ByteQueries &of,
                                                              int64_t n, int32_t (*out)[SIDE_BY_SIDE]) {
  const int64_t stride = (width + 63) / 64 * 64;
  const int8_t *query = of.bytes + n * stride;
  __m512i sum[Queries][Rows];
#pragma GCC unroll 8
  for (int q = 0; q < Queries; ++q)
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) sum[q][r] = _mm512_setzero_si512();
  if (of.split) {
    add_products<Rows, Queries>(code, width, query, stride, 0, of.split, sum);
#pragma GCC unroll 8
    for (int q = 0; q < Queries; ++q)
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) sum[q][r] = _mm512_sll_epi32(sum[q][r], _mm_cvtsi32_si128(of.shift[n + q]));
  }
  add_products<Rows, Queries>(code, width, query, stride, of.split, width, sum);
#pragma GCC unroll 8
  for (int q = 0; q < Queries; ++q) {
    const __m512i rows = ByteSums::pairs(ByteSums::total(sum[q][0], sum[q][Rows > 1 ? 1 : 0]),
                                         ByteSums::total(sum[q][Rows > 2 ? 2 : 0], sum[q][Rows > 3 ? 3 : 0]));
    const __m128i each = _mm_add_epi32(ByteSums::folded(rows), _mm_set1_epi32(of.offset[n + q]));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(out[q]), each);
  }
}

template <int Queries>
inline void some_products_of_bytes(const int8_t *code, int64_t width, int rows, const ByteQueries &q, int64_t n,
                                   int32_t (*out)[SIDE_BY_SIDE]) {
  if (rows == SIDE_BY_SIDE) return products_of_bytes<SIDE_BY_SIDE, Queries>(code, width, q, n, out);
  for (int r = 0; r < rows; ++r) {
    int32_t one[Queries][SIDE_BY_SIDE];
    products_of_bytes<1, Queries>(code + r * width, width, q, n, one);
    for (int m = 0; m < Queries; ++m) out[m][r] = one[m][0];
  }
}
#else
inline bool byte_products() { return false; }
#endif

// Inner products of `Queries` queries from n on with `rows` rows.
template <int Queries>
inline void dots_of(const int8_t *code, int64_t width, int rows, const ByteQueries &q, int64_t n,
                    int32_t (*out)[SIDE_BY_SIDE]) {
#if defined(FEWFOLD_AVX512)
  if (q.bytes) return some_products_of_bytes<Queries>(code, width, rows, q, n, out);
#endif
  some_byte_dots<Queries>(code, width, rows, q.code + n * width, out);
}

// Upper bounds of `rows` rows from i on, as many as `Rows` unless that is 0, from their inner products with query n.
template <int Rows>
inline void upper(const Bytes &at, const ByteQueries &q, int64_t n, int64_t i, const int32_t *dots, float *out, int rows) {
  const float scale = q.scale[n], norm = q.norm[n], error = q.error[n];
  for (int r = 0; r < (Rows ? Rows : rows); ++r)
    out[r] = scale * at.step[i + r] * static_cast<float>(dots[r]) + (norm * at.slack[i + r] + error * at.reach[i + r]);
}

// high[q][i] = scale[q] step[i] <query q, code[i]> + norm[q] slack[i] + error[q] reach[i] for the items of [first, last) and all queries, whose
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
    // Spread over the queries: the processor can wait for a few lines at a time only.
    const bool more = last - i > AHEAD_BYTES / at.width + SIDE_BY_SIDE;
    const int64_t part = (SIDE_BY_SIDE * at.width * QUERIES_AT_ONCE / q.n + 64) / 64 * 64;
    int64_t ahead = 0;
    for (int64_t n = 0, some; n < q.n; n += some) {
      if (more && ahead < SIDE_BY_SIDE * at.width) {
        prefetch_range<3>(code + AHEAD_BYTES + ahead, std::min(part, SIDE_BY_SIDE * at.width - ahead));
        ahead += part;
      }
      some = q.n - n < QUERIES_AT_ONCE ? 1 : QUERIES_AT_ONCE;
      if (some == QUERIES_AT_ONCE) {
        dots_of<QUERIES_AT_ONCE>(code, at.width, rows, q, n, dots);
      } else {
        dots_of<1>(code, at.width, rows, q, n, dots);
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
