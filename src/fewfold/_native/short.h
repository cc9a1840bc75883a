// Short rows: N rows at a time, one per SIMD lane, so that nothing is ever summed across lanes.
#pragma once
#include "curve.h"

namespace fewfold {
namespace FEWFOLD_ISA {

constexpr int64_t SHORT = 64;  // rows up to this length

// Entry i of N rows, as one vector, for i < N. `row(i)` is where row i starts.
template <class T, class F> inline void transpose(F row, Vec<T> (&out)[Vec<T>::N]) {
  constexpr int N = Vec<T>::N;
  T a[N][N];
  for (int i = 0; i < N; ++i)
    for (int j = 0; j < N; ++j) a[j][i] = row(i)[j];
  for (int i = 0; i < N; ++i) out[i] = Vec<T>::load(a[i]);
}

#if defined(FEWFOLD_AVX512)
template <class F> inline void transpose(F row, Vec<float> (&out)[16]) {
  __m512 a[16], b[16];
  // a[4i + j]: quarter i of rows j, j+4, j+8, j+12. Inserting from memory spares the one port that shuffles.
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      __m512 q = _mm512_castps128_ps512(_mm_loadu_ps(row(j) + 4 * i));
      q = _mm512_insertf32x4(q, _mm_loadu_ps(row(j + 4) + 4 * i), 1);
      q = _mm512_insertf32x4(q, _mm_loadu_ps(row(j + 8) + 4 * i), 2);
      a[4 * i + j] = _mm512_insertf32x4(q, _mm_loadu_ps(row(j + 12) + 4 * i), 3);
    }
  }
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const __m512d x = _mm512_castps_pd(b[i + j]), y = _mm512_castps_pd(b[i + j + 2]);
      out[i + 2 * j].v = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
      out[i + 2 * j + 1].v = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
    }
  }
}
#elif defined(FEWFOLD_AVX2)
template <class F> inline void transpose(F row, Vec<float> (&out)[8]) {
  __m256 a[8], b[8];
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 4; ++j) {
      const __m256 q = _mm256_castps128_ps256(_mm_loadu_ps(row(j) + 4 * i));
      a[4 * i + j] = _mm256_insertf128_ps(q, _mm_loadu_ps(row(j + 4) + 4 * i), 1);
    }
  }
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      out[i + 2 * j].v = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0x44);
      out[i + 2 * j + 1].v = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0xee);
    }
  }
}
#endif

// N rows of length k, side by side: at[j] holds entry j of every row, if `centred` less that row's maximum, times scale.
template <class T> struct Slab {
  using V = Vec<T>;
  static constexpr int N = V::N, PARTS = 8;
  V at[SHORT + N];
  V part[PARTS];  // maxima of eighths of the row: a subset, so a first guess at the threshold costs little
  V top;
  unsigned odd;  // rows with a NaN or an infinite maximum: the caller treats them one by one

  void load(const T *x, int64_t rows, int64_t k, T scale, bool centred = true) {
    const V none = V::of(-INF<T>);
    V block[N];
    T rest[N][N];
    unsigned nan = 0;
    for (int i = 0; i < PARTS; ++i) part[i] = none;
    for (int64_t c = 0; c < k; c += N) {
      if (k - c >= N) {
        transpose([&](int i) { return x + (i < rows ? i : rows - 1) * k + c; }, block);
      } else {
        for (int i = 0; i < N; ++i)
          V::load(x + (i < rows ? i : rows - 1) * k + c, static_cast<int>(k - c), -INF<T>).store(rest[i]);
        transpose([&](int i) { return rest[i]; }, block);
      }
      for (int j = 0; j < N; j += 2) {
        nan |= V::bits(V::nan(block[j], block[j + 1]));
        part[j % PARTS] = V::max(block[j], part[j % PARTS]);
        part[(j + 1) % PARTS] = V::max(block[j + 1], part[(j + 1) % PARTS]);
        at[c + j] = block[j];
        at[c + j + 1] = block[j + 1];
      }
    }
    top = V::max(V::max(V::max(part[0], part[1]), V::max(part[2], part[3])),
                 V::max(V::max(part[4], part[5]), V::max(part[6], part[7])));
    const unsigned high = V::bits(V::gt(V::of(INF<T>), top)), low = V::bits(V::gt(top, none));
    odd = nan | (~(high & low) & ((1u << N) - 1));
    for (int64_t j = k; j % WAYS; ++j) at[j] = none;
    if (!centred) return;
    const V by = V::of(scale);
    for (int i = 0; i < PARTS; ++i) part[i] = (part[i] - top) * by;
    if (scale == 1)
      for (int64_t j = 0; j < k; ++j) at[j] = at[j] - top;
    else
      for (int64_t j = 0; j < k; ++j) at[j] = (at[j] - top) * by;
  }
  static constexpr int WAYS = 4;  // independent sums: one alone would wait for its own latency
};

// One threshold per lane. `t + d` is the answer, d the last, tiny step: kept apart it spares the rounding of t.
template <class T> struct ShortRows {
  using V = Vec<T>;
  static constexpr int WAYS = Slab<T>::WAYS;
  V t, d, before;
  int looks = 0;

  static V all(const V (&s)[WAYS]) { return (s[0] + s[1]) + (s[2] + s[3]); }

  V linear_step(const V *v, int64_t k) {
    const V zero = V::of(0), one = V::of(1);
    V s[WAYS] = {zero, zero, zero, zero}, n[WAYS] = {zero, zero, zero, zero};
    for (int64_t j = 0; j < k; j += WAYS) {
      for (int i = 0; i < WAYS; ++i) {
        const V u = v[j + i] - t;
        const typename V::Mask on = V::gt(u, zero);
        n[i] = V::add_where(on, n[i], one);
        s[i] = V::add_where(on, s[i], u);
      }
    }
    const V count = all(n);
    d = (all(s) - one) / count;
    return count;
  }

  void square_step(const V *v, int64_t k) {
    const V zero = V::of(0);
    V s1[WAYS] = {zero, zero, zero, zero}, s2[WAYS] = {zero, zero, zero, zero};
    for (int64_t j = 0; j < k; j += WAYS) {
      for (int i = 0; i < WAYS; ++i) {
        const V w = V::max(v[j + i] - t, zero);
        s1[i] = s1[i] + w;
        s2[i] = V::fma(w, w, s2[i]);
      }
    }
    const V sum = all(s2), norm = V::sqrt(sum);
    d = (sum - norm) / all(s1);
  }

  void convex_step(const V *v, int64_t k, const Curve<T> &c) {
    const V zero = V::of(0), one = V::of(1);
    const T lower = c.e - 1, inverse = 1 / c.e;
    V s1[WAYS] = {zero, zero, zero, zero}, s2[WAYS] = {zero, zero, zero, zero};
    for (int64_t j = 0; j < k; j += WAYS) {
      for (int i = 0; i < WAYS; ++i) {
        const V w = V::max(v[j + i] - t, zero), r = raise(w, lower);
        s1[i] = s1[i] + r;
        s2[i] = V::fma(r, w, s2[i]);
      }
    }
    // power() wants a base in [0, 1]; a sum below one (a first guess too far right) is left to the next step.
    const V sum = all(s2), big = V::max(sum, one), norm = one / power(one / big, inverse);
    const V back = (sum - one) / V::of(c.e);  // Newton on the sum: also a step to the left of the root
    d = V::pick(V::gt(one, sum), back, (norm - one) * big / norm) / all(s1);
  }

  void begin(const Slab<T> &s, const Curve<T> &c) {
    t = V::of(T(-.5));
    for (int i = 0; i < 2; ++i) {
      step(s.part, Slab<T>::PARTS, c);
      t = t + d;
    }
    before = V::of(-1);
  }
  // One step; true when the threshold is t + d.
  bool advance(const Slab<T> &s, int64_t k, const Curve<T> &c) {
    const V near = V::of(sizeof(T) == 4 ? T(1e-4) : T(1e-9)), minus = V::of(0) - near;
    const V count = step(s.at, k, c);
    // Nested sets of equal size are equal: then d is exact. Elsewhere the next step would be about d squared.
    const unsigned moving = c.e == 1 ? V::bits(V::gt(before, count)) | V::bits(V::gt(count, before))
                                     : V::bits(V::gt(d, near)) | V::bits(V::gt(minus, d));
    if (!(moving & ~s.odd & ((1u << V::N) - 1)) || ++looks > 80) return true;
    t = t + d;
    before = count;
    return false;
  }
  V step(const V *v, int64_t k, const Curve<T> &c) {
    if (c.e == 1) return linear_step(v, k);
    if (c.e == 2) square_step(v, k);
    else convex_step(v, k, c);
    return d;
  }

  // Back in rows, so that nothing needs to be transposed twice.
  template <int Out> static void write(const T *x, T *p, int64_t k, const Curve<T> &c, T top, T t, T d) {
    const V high = V::of(top), scale = V::of(c.scale), first = V::of(t), second = V::of(d), zero = V::of(0);
    V w[SHORT / V::N + 1], sum = zero;
    for (int64_t j = 0; j < k; j += V::N) {
      const V v = k - j >= V::N ? V::load(x + j) : V::load(x + j, static_cast<int>(k - j), -INF<T>);
      const V u = V::max(((Out == 1 ? v - high : (v - high) * scale) - first) - second, zero);
      const V r = Out == 1 ? u : Out == 2 ? u * u : raise(u, c.out);
      if (Out == 0) {
        w[j / V::N] = r;
        sum = sum + r;
      } else if (k - j >= V::N) r.store(p + j);
      else r.store(p + j, static_cast<int>(k - j));
    }
    if (Out != 0) return;
    const V over = V::of(1 / sum.sum());
    for (int64_t j = 0; j < k; j += V::N) {
      if (k - j >= V::N) (w[j / V::N] * over).store(p + j);
      else (w[j / V::N] * over).store(p + j, static_cast<int>(k - j));
    }
  }

  // Up to two slabs of rows, in step: while one waits for its sums the other computes. Returns the odd rows.
  static uint64_t run(const T *x, T *p, int64_t rows, int64_t k, const Curve<T> &c) {
    Slab<T> s[2];
    ShortRows a[2];
    const int slabs = rows > V::N ? 2 : 1;
    const int64_t padded = (k + WAYS - 1) / WAYS * WAYS;
    for (int64_t j = 0; j < slabs * V::N * k; j += 64 / static_cast<int64_t>(sizeof(T))) {
      __builtin_prefetch(x + slabs * V::N * k + j);
      __builtin_prefetch(p + j, 1);
    }
    for (int i = 0; i < slabs; ++i) s[i].load(x + i * V::N * k, least<int64_t>(V::N, rows - i * V::N), k, c.scale);
    for (int i = 0; i < slabs; ++i) a[i].begin(s[i], c);
    bool done[2] = {false, slabs == 1};
    while (!(done[0] && done[1]))
      for (int i = 0; i < 2; ++i)
        if (!done[i]) done[i] = a[i].advance(s[i], padded, c);
    uint64_t odd = 0;
    for (int i = 0; i < slabs; ++i) {
      a[i].write_all(s[i], x + i * V::N * k, p + i * V::N * k, least<int64_t>(V::N, rows - i * V::N), k, c);
      odd |= static_cast<uint64_t>(s[i].odd) << (i * V::N);
    }
    return odd;
  }

  void write_all(const Slab<T> &s, const T *x, T *p, int64_t rows, int64_t k, const Curve<T> &c) const {
    T top[V::N], first[V::N], second[V::N];
    s.top.store(top);
    t.store(first);
    d.store(second);
    for (int64_t i = 0; i < rows; ++i, x += k, p += k) {
      if (c.normalise) write<0>(x, p, k, c, top[i], first[i], second[i]);
      else if (c.e == 1) write<1>(x, p, k, c, top[i], first[i], second[i]);
      else write<2>(x, p, k, c, top[i], first[i], second[i]);
    }
  }
};

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
