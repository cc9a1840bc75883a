// One SIMD interface for three instruction sets. Each translation unit that includes this file defines
// FEWFOLD_ISA (the namespace) and is compiled with that set's flags. Nothing here may instantiate a template of
// the standard library: the linker could hand such a function to a machine that lacks the instructions.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(FEWFOLD_AVX512) || defined(FEWFOLD_AVX2)
#include <immintrin.h>
#endif

namespace fewfold {
namespace FEWFOLD_ISA {

// What the compiler makes of the plain loops depends on more than a choice here can know: it takes the simpler path there.
#if defined(FEWFOLD_AVX512)
constexpr bool PLAIN_LOOPS = false, FAST_ROOTS = true;
#elif defined(FEWFOLD_AVX2)
constexpr bool PLAIN_LOOPS = false, FAST_ROOTS = false;
#else
constexpr bool PLAIN_LOOPS = true, FAST_ROOTS = false;
#endif

template <class T> constexpr T INF = static_cast<T>(__builtin_huge_val());
template <class T> constexpr T LOWEST = sizeof(T) == 4 ? static_cast<T>(-__FLT_MAX__) : static_cast<T>(-__DBL_MAX__);

// Vec<T>: N numbers; `bits` makes a plain bit mask, lane i at bit i. `over` is "greater, or a NaN is involved", and
// max and min return their second argument if a NaN is involved: the order of arguments decides if NaN propagates.
// `numbers` are the lanes of m where neither is a NaN, `gt_too` those where also a > b. `split` is for positive numbers:
// x = 2^exponent mantissa, mantissa in [1, 2); `scale` is x 2^whole. Neither supports subnormal arguments or results.
template <class T> struct Vec;

#if defined(FEWFOLD_AVX512)

template <> struct Vec<float> {
  static constexpr int N = 16;
  using Mask = __mmask16;
  __m512 v;
  static Vec of(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float *p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const float *p, int n, float rest) {
    return {_mm512_mask_loadu_ps(_mm512_set1_ps(rest), static_cast<Mask>((1u << n) - 1), p)};
  }
  static Vec gather(const float *p, const int32_t *index, int n) {
    const Mask m = static_cast<Mask>((1u << n) - 1);
    return {_mm512_mask_i32gather_ps(_mm512_setzero_ps(), m, _mm512_maskz_loadu_epi32(m, index), p, 4)};
  }
  void store(float *p) const { _mm512_storeu_ps(p, v); }
  void store(float *p, int n) const { _mm512_mask_storeu_ps(p, static_cast<Mask>((1u << n) - 1), v); }
  friend Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
  static Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
  static Mask gt(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
  static Mask gt_too(Mask m, Vec a, Vec b) { return _mm512_mask_cmp_ps_mask(m, a.v, b.v, _CMP_GT_OQ); }
  static Mask over(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_NLE_UQ); }
  static Mask all() { return static_cast<Mask>(~0); }
  static Mask numbers(Mask m, Vec a, Vec b) { return _mm512_mask_cmp_ps_mask(m, a.v, b.v, _CMP_ORD_Q); }
  static Mask nan(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q); }
  static Vec keep(Mask m, Vec a) { return {_mm512_maskz_mov_ps(m, a.v)}; }
  static Vec add_where(Mask m, Vec a, Vec b) { return {_mm512_mask_add_ps(a.v, m, a.v, b.v)}; }
  static Vec min_where(Mask m, Vec a, Vec b) { return {_mm512_mask_min_ps(a.v, m, a.v, b.v)}; }
  static Vec pick(Mask m, Vec a, Vec b) { return {_mm512_mask_blend_ps(m, b.v, a.v)}; }
  static unsigned bits(Mask m) { return m; }
  static Mask both(Mask a, Mask b) { return static_cast<Mask>(a & b); }
  static int count(Mask m) { return __builtin_popcount(m); }
  static void pack(float *p, Mask m, Vec a) {  // mostly of few, and a short store is cheaper
    const __m512 w = _mm512_maskz_compress_ps(m, a.v);
    if (__builtin_popcount(m) <= 4) _mm_storeu_ps(p, _mm512_castps512_ps128(w));
    else _mm512_storeu_ps(p, w);
  }
  static void pack_index(int32_t *p, Mask m, int32_t base) {
    const __m512i iota = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(m, _mm512_add_epi32(iota, _mm512_set1_epi32(base))));
  }
  float sum() const { return _mm512_reduce_add_ps(v); }
  float top() const { return _mm512_reduce_max_ps(v); }
  float bottom() const { return _mm512_reduce_min_ps(v); }
  static void split(Vec x, Vec &exponent, Vec &mantissa) {
    exponent.v = _mm512_getexp_ps(x.v);
    mantissa.v = _mm512_getmant_ps(x.v, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
  }
  static Vec round(Vec x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Vec scale(Vec x, Vec whole) { return {_mm512_scalef_ps(x.v, whole.v)}; }
};

template <> struct Vec<double> {
  static constexpr int N = 8;
  using Mask = __mmask8;
  __m512d v;
  static Vec of(double x) { return {_mm512_set1_pd(x)}; }
  static Vec load(const double *p) { return {_mm512_loadu_pd(p)}; }
  static Vec load(const double *p, int n, double rest) {
    return {_mm512_mask_loadu_pd(_mm512_set1_pd(rest), static_cast<Mask>((1u << n) - 1), p)};
  }
  static Vec gather(const double *p, const int32_t *index, int n) {
    const Mask m = static_cast<Mask>((1u << n) - 1);
    return {_mm512_mask_i32gather_pd(_mm512_setzero_pd(), m, _mm256_maskz_loadu_epi32(m, index), p, 8)};
  }
  void store(double *p) const { _mm512_storeu_pd(p, v); }
  void store(double *p, int n) const { _mm512_mask_storeu_pd(p, static_cast<Mask>((1u << n) - 1), v); }
  friend Vec operator+(Vec a, Vec b) { return {_mm512_add_pd(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm512_sub_pd(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm512_mul_pd(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm512_div_pd(a.v, b.v)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm512_max_pd(a.v, b.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm512_min_pd(a.v, b.v)}; }
  static Vec sqrt(Vec a) { return {_mm512_sqrt_pd(a.v)}; }
  static Mask gt(Vec a, Vec b) { return _mm512_cmp_pd_mask(a.v, b.v, _CMP_GT_OQ); }
  static Mask gt_too(Mask m, Vec a, Vec b) { return _mm512_mask_cmp_pd_mask(m, a.v, b.v, _CMP_GT_OQ); }
  static Mask over(Vec a, Vec b) { return _mm512_cmp_pd_mask(a.v, b.v, _CMP_NLE_UQ); }
  static Mask all() { return static_cast<Mask>(~0); }
  static Mask numbers(Mask m, Vec a, Vec b) { return _mm512_mask_cmp_pd_mask(m, a.v, b.v, _CMP_ORD_Q); }
  static Mask nan(Vec a, Vec b) { return _mm512_cmp_pd_mask(a.v, b.v, _CMP_UNORD_Q); }
  static Vec keep(Mask m, Vec a) { return {_mm512_maskz_mov_pd(m, a.v)}; }
  static Vec add_where(Mask m, Vec a, Vec b) { return {_mm512_mask_add_pd(a.v, m, a.v, b.v)}; }
  static Vec min_where(Mask m, Vec a, Vec b) { return {_mm512_mask_min_pd(a.v, m, a.v, b.v)}; }
  static Vec pick(Mask m, Vec a, Vec b) { return {_mm512_mask_blend_pd(m, b.v, a.v)}; }
  static unsigned bits(Mask m) { return m; }
  static Mask both(Mask a, Mask b) { return static_cast<Mask>(a & b); }
  static int count(Mask m) { return __builtin_popcount(m); }
  static void pack(double *p, Mask m, Vec a) { _mm512_storeu_pd(p, _mm512_maskz_compress_pd(m, a.v)); }
  static void pack_index(int32_t *p, Mask m, int32_t base) {
    const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i packed = _mm256_maskz_compress_epi32(m, _mm256_add_epi32(iota, _mm256_set1_epi32(base)));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), packed);
  }
  double sum() const { return _mm512_reduce_add_pd(v); }
  double top() const { return _mm512_reduce_max_pd(v); }
  double bottom() const { return _mm512_reduce_min_pd(v); }
  static void split(Vec x, Vec &exponent, Vec &mantissa) {
    exponent.v = _mm512_getexp_pd(x.v);
    mantissa.v = _mm512_getmant_pd(x.v, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
  }
  static Vec round(Vec x) { return {_mm512_roundscale_pd(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Vec scale(Vec x, Vec whole) { return {_mm512_scalef_pd(x.v, whole.v)}; }
};

#elif defined(FEWFOLD_AVX2)

// Left-packing permutations: entry m lists the set bits of m, first to last.
struct PackTable {
  alignas(32) int32_t row[256][8] = {};
  constexpr PackTable() {
    for (int m = 0; m < 256; ++m) {
      int n = 0;
      for (int i = 0; i < 8; ++i)
        if (m >> i & 1) row[m][n++] = i;
      while (n < 8) row[m][n++] = 0;
    }
  }
};
static constexpr PackTable PACK;  // constexpr: nothing may run at load time

inline __m256i first(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

template <> struct Vec<float> {
  static constexpr int N = 8;
  using Mask = __m256;
  __m256 v;
  static Vec of(float x) { return {_mm256_set1_ps(x)}; }
  static Vec load(const float *p) { return {_mm256_loadu_ps(p)}; }
  static Vec load(const float *p, int n, float rest) {
    const __m256i m = first(n);
    return {_mm256_blendv_ps(_mm256_set1_ps(rest), _mm256_maskload_ps(p, m), _mm256_castsi256_ps(m))};
  }
  static Vec gather(const float *p, const int32_t *index, int n) {
    float a[N] = {};
    for (int i = 0; i < n; ++i) a[i] = p[index[i]];
    return load(a);
  }
  void store(float *p) const { _mm256_storeu_ps(p, v); }
  void store(float *p, int n) const { _mm256_maskstore_ps(p, first(n), v); }
  friend Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
  static Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.v)}; }
  static Mask gt(Vec a, Vec b) { return _mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ); }
  static Mask gt_too(Mask m, Vec a, Vec b) { return both(m, gt(a, b)); }
  static Mask over(Vec a, Vec b) { return _mm256_cmp_ps(a.v, b.v, _CMP_NLE_UQ); }
  static Mask all() { return _mm256_castsi256_ps(_mm256_set1_epi32(-1)); }
  static Mask numbers(Mask m, Vec a, Vec b) { return _mm256_and_ps(m, _mm256_cmp_ps(a.v, b.v, _CMP_ORD_Q)); }
  static Mask nan(Vec a, Vec b) { return _mm256_cmp_ps(a.v, b.v, _CMP_UNORD_Q); }
  static Vec keep(Mask m, Vec a) { return {_mm256_and_ps(m, a.v)}; }
  static Vec add_where(Mask m, Vec a, Vec b) { return a + keep(m, b); }
  static Vec min_where(Mask m, Vec a, Vec b) { return min(a, pick(m, b, a)); }
  static Vec pick(Mask m, Vec a, Vec b) { return {_mm256_blendv_ps(b.v, a.v, m)}; }
  static unsigned bits(Mask m) { return static_cast<unsigned>(_mm256_movemask_ps(m)); }
  static Mask both(Mask a, Mask b) { return _mm256_and_ps(a, b); }
  static int count(Mask m) { return __builtin_popcount(bits(m)); }
  static __m256i order(Mask m) {
    return _mm256_load_si256(reinterpret_cast<const __m256i *>(PACK.row[bits(m)]));
  }
  static void pack(float *p, Mask m, Vec a) { _mm256_storeu_ps(p, _mm256_permutevar8x32_ps(a.v, order(m))); }
  static void pack_index(int32_t *p, Mask m, int32_t base) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm256_add_epi32(order(m), _mm256_set1_epi32(base)));
  }
  float sum() const {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  float top() const {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  float bottom() const { return -(of(0.f) - *this).top(); }
  static void split(Vec x, Vec &exponent, Vec &mantissa) {
    const __m256i i = _mm256_castps_si256(x.v);
    exponent.v = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(i, 23), _mm256_set1_epi32(127)));
    mantissa.v = _mm256_castsi256_ps(_mm256_or_si256(_mm256_and_si256(i, _mm256_set1_epi32(0x7fffff)),
                                                     _mm256_set1_epi32(0x3f800000)));
  }
  static Vec round(Vec x) { return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Vec scale(Vec x, Vec whole) {
    const __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(whole.v), 23);
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.v), e))};
  }
};

template <> struct Vec<double> {
  static constexpr int N = 4;
  using Mask = __m256d;
  __m256d v;
  static __m256i first(int n) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
  }
  static Vec of(double x) { return {_mm256_set1_pd(x)}; }
  static Vec load(const double *p) { return {_mm256_loadu_pd(p)}; }
  static Vec load(const double *p, int n, double rest) {
    const __m256i m = first(n);
    return {_mm256_blendv_pd(_mm256_set1_pd(rest), _mm256_maskload_pd(p, m), _mm256_castsi256_pd(m))};
  }
  static Vec gather(const double *p, const int32_t *index, int n) {
    double a[N] = {};
    for (int i = 0; i < n; ++i) a[i] = p[index[i]];
    return load(a);
  }
  void store(double *p) const { _mm256_storeu_pd(p, v); }
  void store(double *p, int n) const { _mm256_maskstore_pd(p, first(n), v); }
  friend Vec operator+(Vec a, Vec b) { return {_mm256_add_pd(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_pd(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_pd(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm256_div_pd(a.v, b.v)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_pd(a.v, b.v, c.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm256_max_pd(a.v, b.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm256_min_pd(a.v, b.v)}; }
  static Vec sqrt(Vec a) { return {_mm256_sqrt_pd(a.v)}; }
  static Mask gt(Vec a, Vec b) { return _mm256_cmp_pd(a.v, b.v, _CMP_GT_OQ); }
  static Mask gt_too(Mask m, Vec a, Vec b) { return both(m, gt(a, b)); }
  static Mask over(Vec a, Vec b) { return _mm256_cmp_pd(a.v, b.v, _CMP_NLE_UQ); }
  static Mask all() { return _mm256_castsi256_pd(_mm256_set1_epi32(-1)); }
  static Mask numbers(Mask m, Vec a, Vec b) { return _mm256_and_pd(m, _mm256_cmp_pd(a.v, b.v, _CMP_ORD_Q)); }
  static Mask nan(Vec a, Vec b) { return _mm256_cmp_pd(a.v, b.v, _CMP_UNORD_Q); }
  static Vec keep(Mask m, Vec a) { return {_mm256_and_pd(m, a.v)}; }
  static Vec add_where(Mask m, Vec a, Vec b) { return a + keep(m, b); }
  static Vec min_where(Mask m, Vec a, Vec b) { return min(a, pick(m, b, a)); }
  static Vec pick(Mask m, Vec a, Vec b) { return {_mm256_blendv_pd(b.v, a.v, m)}; }
  static unsigned bits(Mask m) { return static_cast<unsigned>(_mm256_movemask_pd(m)); }
  static Mask both(Mask a, Mask b) { return _mm256_and_pd(a, b); }
  static int count(Mask m) { return __builtin_popcount(bits(m)); }
  static void pack(double *p, Mask m, Vec a) {
    alignas(32) double from[N];
    a.store(from);
    for (unsigned b = bits(m); b; b &= b - 1) *p++ = from[__builtin_ctz(b)];
  }
  static void pack_index(int32_t *p, Mask m, int32_t base) {
    for (unsigned b = bits(m); b; b &= b - 1) *p++ = base + __builtin_ctz(b);
  }
  double sum() const {
    const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
  }
  double top() const {
    const __m128d s = _mm_max_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_max_sd(s, _mm_unpackhi_pd(s, s)));
  }
  double bottom() const { return -(of(0.) - *this).top(); }
  // A whole number added to a large one stands in its last bits: AVX2 has no other way from doubles to integers and back.
  static void split(Vec x, Vec &exponent, Vec &mantissa) {
    const __m256i i = _mm256_castpd_si256(x.v), large = _mm256_castpd_si256(_mm256_set1_pd(0x1p52));
    const __m256d e = _mm256_castsi256_pd(_mm256_or_si256(_mm256_srli_epi64(i, 52), large));
    exponent.v = _mm256_sub_pd(e, _mm256_set1_pd(0x1p52 + 1023));
    mantissa.v = _mm256_castsi256_pd(_mm256_or_si256(_mm256_and_si256(i, _mm256_set1_epi64x(0xfffffffffffff)),
                                                     _mm256_set1_epi64x(0x3ff0000000000000)));
  }
  static Vec round(Vec x) { return {_mm256_round_pd(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Vec scale(Vec x, Vec whole) {
    const __m256i last = _mm256_castpd_si256(_mm256_add_pd(whole.v, _mm256_set1_pd(0x1.8p52)));
    return {_mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(x.v), _mm256_slli_epi64(last, 52)))};
  }
};

#else

// The bits of a number: an unsigned integer with the exponent, off by BIAS, from bit AT on.
template <class T> struct Bits;
template <> struct Bits<float> {
  using Whole = uint32_t;
  static constexpr int AT = 23, BIAS = 127;
};
template <> struct Bits<double> {
  using Whole = uint64_t;
  static constexpr int AT = 52, BIAS = 1023;
};

// Plain loops over a small array; a compiler turns most of them into whatever the machine has.
template <class T> struct Vec {
  static constexpr int N = 16 / sizeof(T) * 2;
  using Mask = unsigned;
  T v[N];
#define FEWFOLD_EACH(expr)            \
  Vec r;                              \
  for (int i = 0; i < N; ++i) r.v[i] = (expr); \
  return r
  static Vec of(T x) { FEWFOLD_EACH(x); }
  static Vec load(const T *p) { FEWFOLD_EACH(p[i]); }
  static Vec load(const T *p, int n, T rest) { FEWFOLD_EACH(i < n ? p[i] : rest); }
  static Vec gather(const T *p, const int32_t *index, int n) {
    T a[N] = {};
    for (int i = 0; i < n; ++i) a[i] = p[index[i]];
    return load(a);
  }
  void store(T *p) const {
    for (int i = 0; i < N; ++i) p[i] = v[i];
  }
  void store(T *p, int n) const {
    for (int i = 0; i < n; ++i) p[i] = v[i];
  }
  friend Vec operator+(Vec a, Vec b) { FEWFOLD_EACH(a.v[i] + b.v[i]); }
  friend Vec operator-(Vec a, Vec b) { FEWFOLD_EACH(a.v[i] - b.v[i]); }
  friend Vec operator*(Vec a, Vec b) { FEWFOLD_EACH(a.v[i] * b.v[i]); }
  friend Vec operator/(Vec a, Vec b) { FEWFOLD_EACH(a.v[i] / b.v[i]); }
  static Vec fma(Vec a, Vec b, Vec c) { FEWFOLD_EACH(a.v[i] * b.v[i] + c.v[i]); }
  static Vec max(Vec a, Vec b) { FEWFOLD_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
  static Vec min(Vec a, Vec b) { FEWFOLD_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
  static Vec sqrt(Vec a) { FEWFOLD_EACH(std::sqrt(a.v[i])); }
  static Mask gt(Vec a, Vec b) {
    Mask m = 0;
    for (int i = 0; i < N; ++i) m |= static_cast<Mask>(a.v[i] > b.v[i]) << i;
    return m;
  }
  static Mask gt_too(Mask m, Vec a, Vec b) { return both(m, gt(a, b)); }
  static Mask over(Vec a, Vec b) {
    Mask m = 0;
    for (int i = 0; i < N; ++i) m |= static_cast<Mask>(!(a.v[i] <= b.v[i])) << i;
    return m;
  }
  static Mask all() { return (1u << N) - 1; }
  static Mask numbers(Mask m, Vec a, Vec b) { return m & ~nan(a, b); }
  static Mask nan(Vec a, Vec b) {
    Mask m = 0;
    for (int i = 0; i < N; ++i) m |= static_cast<Mask>(a.v[i] != a.v[i] || b.v[i] != b.v[i]) << i;
    return m;
  }
  static Vec keep(Mask m, Vec a) { FEWFOLD_EACH(m >> i & 1 ? a.v[i] : T(0)); }
  static Vec add_where(Mask m, Vec a, Vec b) { return a + keep(m, b); }
  static Vec min_where(Mask m, Vec a, Vec b) { return min(a, pick(m, b, a)); }
  static Vec pick(Mask m, Vec a, Vec b) { FEWFOLD_EACH(m >> i & 1 ? a.v[i] : b.v[i]); }
#undef FEWFOLD_EACH
  static unsigned bits(Mask m) { return m; }
  static Mask both(Mask a, Mask b) { return static_cast<Mask>(a & b); }
  static int count(Mask m) { return __builtin_popcount(m); }
  static void pack(T *p, Mask m, Vec a) {
    for (int i = 0; i < N; ++i)
      if (m >> i & 1) *p++ = a.v[i];
  }
  static void pack_index(int32_t *p, Mask m, int32_t base) {
    for (int i = 0; i < N; ++i)
      if (m >> i & 1) *p++ = base + i;
  }
  T sum() const {
    T s = 0;
    for (int i = 0; i < N; ++i) s += v[i];
    return s;
  }
  T top() const {
    T s = v[0];
    for (int i = 1; i < N; ++i) s = v[i] > s ? v[i] : s;
    return s;
  }
  T bottom() const {
    T s = v[0];
    for (int i = 1; i < N; ++i) s = v[i] < s ? v[i] : s;
    return s;
  }
  using B = Bits<T>;
  using Whole = typename B::Whole;
  static void split(Vec x, Vec &exponent, Vec &mantissa) {
    for (int i = 0; i < N; ++i) {
      Whole b;
      std::memcpy(&b, &x.v[i], sizeof(T));
      exponent.v[i] = static_cast<T>(static_cast<int>(b >> B::AT) - B::BIAS);
      b = (b & ((Whole{1} << B::AT) - 1)) | Whole{B::BIAS} << B::AT;
      std::memcpy(&mantissa.v[i], &b, sizeof(T));
    }
  }
  static Vec round(Vec x) {  // added to a number this large, what follows the point falls off
    const Vec large = of(static_cast<T>(Whole{3} << (B::AT - 1)));
    return (x + large) - large;
  }
  static Vec scale(Vec x, Vec whole) {
    for (int i = 0; i < N; ++i) {
      Whole b;
      std::memcpy(&b, &x.v[i], sizeof(T));
      b += static_cast<Whole>(static_cast<int>(whole.v[i])) << B::AT;
      std::memcpy(&x.v[i], &b, sizeof(T));
    }
    return x;
  }
};

#endif

// For how many i < n a[i] and b[i] are equal.
inline int64_t count_equal(const int32_t *a, const int32_t *b, int64_t n) {
  int64_t i = 0, sum = 0;
#if defined(FEWFOLD_AVX512)
  for (; i < n; i += 16) {
    const __mmask16 m = static_cast<__mmask16>(n - i < 16 ? (1u << (n - i)) - 1 : 0xffffu);
    const __m512i x = _mm512_maskz_loadu_epi32(m, a + i), y = _mm512_maskz_loadu_epi32(m, b + i);
    sum += __builtin_popcount(_mm512_mask_cmpeq_epi32_mask(m, x, y));
  }
#elif defined(FEWFOLD_AVX2)
  for (; i + 8 <= n; i += 8) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(a + i));
    const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(b + i));
    sum += __builtin_popcount(
        static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(x, y)))));
  }
#endif
  for (; i < n; ++i) sum += a[i] == b[i];
  return sum;
}

// Adds v to two double vectors.
inline void widen(Vec<double> v, Vec<double> &a, Vec<double> &) { a = a + v; }
#if defined(FEWFOLD_AVX512)
inline void widen(Vec<float> v, Vec<double> &a, Vec<double> &b) {
  a.v = _mm512_add_pd(a.v, _mm512_cvtps_pd(_mm512_castps512_ps256(v.v)));
  b.v = _mm512_add_pd(b.v, _mm512_cvtps_pd(_mm512_extractf32x8_ps(v.v, 1)));
}
#elif defined(FEWFOLD_AVX2)
inline void widen(Vec<float> v, Vec<double> &a, Vec<double> &b) {
  a.v = _mm256_add_pd(a.v, _mm256_cvtps_pd(_mm256_castps256_ps128(v.v)));
  b.v = _mm256_add_pd(b.v, _mm256_cvtps_pd(_mm256_extractf128_ps(v.v, 1)));
}
#else
inline void widen(Vec<float> v, Vec<double> &a, Vec<double> &b) {
  constexpr int N = Vec<double>::N;
  for (int i = 0; i < N; ++i) {
    a.v[i] += v.v[i];
    b.v[i] += v.v[N + i];
  }
}
#endif

// Prefetches n numbers; Cache as in __builtin_prefetch. Always inline, as must be its callers: a function that only
// prefetches has no visible effect, and the compiler would drop the call.
#if defined(__GNUC__)
#define FEWFOLD_INLINE inline __attribute__((always_inline))
#else
#define FEWFOLD_INLINE inline
#endif
template <int Cache, class T> FEWFOLD_INLINE void prefetch_range(const T *p, int64_t n) {
  constexpr int64_t LINE = 64 / sizeof(T);
  for (int64_t j = 0; j < n; j += LINE) __builtin_prefetch(p + j, 0, Cache);
}

// The square root of a positive number: to the last digit or two, where that is several times faster.
template <class T> inline Vec<T> root(Vec<T> x) { return Vec<T>::sqrt(x); }
#if defined(FEWFOLD_AVX512)
template <> inline Vec<float> root(Vec<float> x) {
  using V = Vec<float>;
  const V r{_mm512_rsqrt14_ps(x.v)}, y = x * r;
  return V::fma(y * V::of(.5f), V::of(1.f) - y * r, y);
}
#endif

// The step of Newton's method for sum u^2 = norm^2 from its sums: (second - norm sqrt(second)) / first. Written so that
// nothing cancels, its own error, of at most one part in 7000, matters as little as the last step is small.
template <class T> inline Vec<T> step_to_norm(Vec<T> first, Vec<T> second, T norm) {
  return (second - Vec<T>::sqrt(second) * Vec<T>::of(norm)) / first;
}
#if defined(FEWFOLD_AVX512)
template <> inline Vec<float> step_to_norm(Vec<float> first, Vec<float> second, float norm) {
  using V = Vec<float>;
  const V size = second * V{_mm512_rsqrt14_ps(second.v)}, bottom = (size + V::of(norm)) * first;
  return (second - V::of(norm * norm)) * size * V{_mm512_rcp14_ps(bottom.v)};
}
#endif

// base^exponent for base in [0, 1], any exponent. Zero stays zero.
template <class T> inline Vec<T> power(Vec<T> base, T exponent) {
  T x[Vec<T>::N];
  base.store(x);
  for (int i = 0; i < Vec<T>::N; ++i) x[i] = x[i] > 0 ? std::pow(x[i], exponent) : T(0);
  return Vec<T>::load(x);
}

// e^x for x <= 0, to about one part in 1e7; never quite zero.
template <class T> inline Vec<T> exp_down(Vec<T> x) {
  T v[Vec<T>::N];
  x.store(v);
  for (int i = 0; i < Vec<T>::N; ++i) v[i] = std::exp(v[i] < T(-87) ? T(-87) : v[i]);
  return Vec<T>::load(v);
}

#if defined(FEWFOLD_AVX512) || defined(FEWFOLD_AVX2)
// 2^z for |z| <= 126.
inline Vec<float> two_to(Vec<float> z) {
  using V = Vec<float>;
  const V whole = V::round(z), f = z - whole;
  V r = V::of(1.525273380e-5f);
  r = V::fma(r, f, V::of(1.540353039e-4f));
  r = V::fma(r, f, V::of(1.333355815e-3f));
  r = V::fma(r, f, V::of(9.618129108e-3f));
  r = V::fma(r, f, V::of(5.550410866e-2f));
  r = V::fma(r, f, V::of(2.402265070e-1f));
  r = V::fma(r, f, V::of(6.931471806e-1f));
  r = V::fma(r, f, V::of(1.f));
  return V::scale(r, whole);
}
template <> inline Vec<float> exp_down(Vec<float> x) {
  using V = Vec<float>;
  return two_to(V::max(x, V::of(-87.f)) * V::of(1.44269504f));
}

// 2^(exponent * log2 base); about one part in 1e7 where the result is not small, which is what the sums need.
template <> inline Vec<float> power<float>(Vec<float> base, float exponent) {
  using V = Vec<float>;
  const V one = V::of(1.f);
  V e, m;
  V::split(V::max(base, V::of(1.2e-38f)), e, m);
  const V::Mask high = V::gt(m, V::of(1.41421356f));
  m = V::pick(high, m * V::of(.5f), m);
  e = e + V::keep(high, one);
  const V y = (m - one) / (m + one), y2 = y * y;
  V series = V::fma(y2, V::of(2.885390082f / 9), V::of(2.885390082f / 7));
  series = V::fma(y2, series, V::of(2.885390082f / 5));
  series = V::fma(y2, series, V::of(2.885390082f / 3));
  series = V::fma(y2, series, V::of(2.885390082f));
  const V z = V::min(V::max(V::fma(y, series, e) * V::of(exponent), V::of(-126.f)), V::of(126.f));
  return V::keep(V::gt(base, V::of(0.f)), two_to(z));
}
#endif

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
