// Short rows transposed, one per SIMD lane, so that no reduction across lanes is needed.
#pragma once
#include "curve.h"

namespace fewfold {
namespace FEWFOLD_ISA {

constexpr int64_t SHORT = 64;  // rows up to this length are laid side by side as a whole

// Columns 0 to 3 of N rows that lie `stride` apart, each column as one vector.
template <class T> inline void columns(const T *x, int64_t stride, Vec<T> (&out)[4]) {
  constexpr int N = Vec<T>::N;
  T a[4][N];
  for (int i = 0; i < N; ++i)
    for (int j = 0; j < 4; ++j) a[j][i] = x[i * stride + j];
  for (int j = 0; j < 4; ++j) out[j] = Vec<T>::load(a[j]);
}

#if defined(FEWFOLD_AVX512)
template <> inline void columns(const float *x, int64_t stride, Vec<float> (&out)[4]) {
  __m512 a[4], b[4];
  // a[j]: rows j, j+4, j+8, j+12. Inserting from memory relieves the only shuffle port.
  for (int j = 0; j < 4; ++j) {
    a[j] = _mm512_castps128_ps512(_mm_loadu_ps(x + j * stride));
    a[j] = _mm512_insertf32x4(a[j], _mm_loadu_ps(x + (j + 4) * stride), 1);
    a[j] = _mm512_insertf32x4(a[j], _mm_loadu_ps(x + (j + 8) * stride), 2);
    a[j] = _mm512_insertf32x4(a[j], _mm_loadu_ps(x + (j + 12) * stride), 3);
  }
  for (int j = 0; j < 4; j += 2) {
    b[j] = _mm512_unpacklo_ps(a[j], a[j + 1]);
    b[j + 1] = _mm512_unpackhi_ps(a[j], a[j + 1]);
  }
  for (int j = 0; j < 2; ++j) {
    const __m512d low = _mm512_castps_pd(b[j]), high = _mm512_castps_pd(b[j + 2]);
    out[2 * j].v = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
    out[2 * j + 1].v = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
  }
}
#elif defined(FEWFOLD_AVX2)
template <> inline void columns(const float *x, int64_t stride, Vec<float> (&out)[4]) {
  __m256 a[4], b[4];
  for (int j = 0; j < 4; ++j)
    a[j] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(x + j * stride)),
                                _mm_loadu_ps(x + (j + 4) * stride), 1);
  for (int j = 0; j < 4; j += 2) {
    b[j] = _mm256_unpacklo_ps(a[j], a[j + 1]);
    b[j + 1] = _mm256_unpackhi_ps(a[j], a[j + 1]);
  }
  for (int j = 0; j < 2; ++j) {
    out[2 * j].v = _mm256_shuffle_ps(b[j], b[j + 2], 0x44);
    out[2 * j + 1].v = _mm256_shuffle_ps(b[j], b[j + 2], 0xee);
  }
}
#endif

template <class T> inline Vec<T> plus(Vec<T> a, Vec<T> b) { return a + b; }

// N vectors, each folded into one number: lane i is that of vector i.
template <class T, class F> inline Vec<T> fold(const T (*part)[Vec<T>::N], F both) {
  Vec<T> out{}, v[4];
  for (int c = 0; c < Vec<T>::N; c += 4) {
    columns(part[0] + c, Vec<T>::N, v);
    const Vec<T> four = both(both(v[0], v[1]), both(v[2], v[3]));
    out = c == 0 ? four : both(out, four);
  }
  return out;
}

constexpr int EIGHT = 8;  // columns are taken by eights

// N rows of length k <= SHORT, copied if they are fewer or their length is not a multiple of eight: then rows are
// repeated and filled up with -inf.
template <class T> struct Block {
  static constexpr int N = Vec<T>::N;
  const T *x;
  int64_t k, apart;  // apart: from one row to the next
  T copy[N * SHORT];
  Block(const T *from, int64_t rows, int64_t size) : x(from), k((size + EIGHT - 1) / EIGHT * EIGHT), apart(k) {
    if (rows >= N && size == k) return;
    x = copy;
    for (int64_t i = 0; i < N; ++i) {
      const T *row = from + (i < rows ? i : 0) * size;
      for (int64_t j = 0; j < k; ++j) copy[i * k + j] = j < size ? row[j] : -INF<T>;
    }
  }
  // N rows that are filled up already.
  struct Filled {
    const T *x;
    int64_t apart, most;
  };
  explicit Block(const Filled &f) : x(f.x), k((f.most + EIGHT - 1) / EIGHT * EIGHT), apart(f.apart) {}
  Block(const Block &) = delete;
  Block &operator=(const Block &) = delete;
  void columns_from(int64_t c, Vec<T> (&w)[EIGHT]) const {
    Vec<T> half[4];
    for (int h = 0; h < EIGHT; h += 4) {
      columns(x + c + h, apart, half);
      for (int j = 0; j < 4; ++j) w[h + j] = half[j];
    }
  }
};

// The rows of a block side by side: at[j] holds entry j of every row. NaNs are left to the sums.
template <class T> struct Slab {
  using V = Vec<T>;
  static constexpr int WAYS = 4;  // independent accumulators, to hide the latency of additions
  V at[SHORT];
  V part[EIGHT];  // maxima of eighths of the row: a subset, so a first guess at the threshold costs little
  V top, base;    // base: the shift subtracted from the scores
  int64_t k;

  // Scores far from zero are measured from their maximum, or steps would be lost in the rounding of t.
  void centre(bool always) {
    const V near = V::of(64), zero = V::of(0);
    const typename V::Mask far = V::gt(V::max(top, zero - top), near);
    base = always ? top : V::keep(far, top);
    if (!always && !V::bits(far)) return;
    for (int64_t j = 0; j < k; ++j) at[j] = at[j] - base;
    for (V &p : part) p = p - base;
    top = top - base;
  }

  void load(const Block<T> &b) {
    V high[EIGHT], w[EIGHT];  // locals, so that they stay in registers
    for (int i = 0; i < EIGHT; ++i) high[i] = V::of(-INF<T>);
    k = b.k;
    for (int64_t c = 0; c < k; c += EIGHT) {
      b.columns_from(c, w);
      for (int j = 0; j < EIGHT; ++j) {
        high[j] = V::max(w[j], high[j]);
        at[c + j] = w[j];
      }
    }
    for (int i = 0; i < EIGHT; ++i) part[i] = high[i];
    top = V::max(V::max(V::max(high[0], high[1]), V::max(high[2], high[3])),
                 V::max(V::max(high[4], high[5]), V::max(high[6], high[7])));
  }
};

// What a step sums, of the excess u of each score over t.  E = 1: how many, and u, and the least.  E = 2: u and u^2.
// E = 0: u^(e-1) and u^e, where u is scaled. A NaN among the scores ends in the second sum.
template <class T, int E> struct Step {
  using V = Vec<T>;
  V first = V::of(0), second = V::of(0), lowest = V::of(INF<T>);
  void add(V score, V t, const Curve<T> &c) {
    const V zero = V::of(0), u = score - t;
    if (E == 1) {
      const typename V::Mask on = V::over(u, zero);
      first = V::add_where(on, first, V::of(1));
      second = V::add_where(on, second, u);
      lowest = V::min_where(on, lowest, u);
      return;
    }
    const V w = E == 2 ? V::max(zero, u) : V::max(zero, u) * V::of(c.scale);
    const V r = E == 2 ? w : raise(w, c.e - 1);
    first = first + r;
    second = V::fma(r, w, second);
  }
  void add(const Step &o) {
    first = first + o.first;
    second = second + o.second;
    if (E == 1) lowest = V::min(lowest, o.lowest);
  }
};

constexpr int MOST_LOOKS = 80;

// One threshold per lane, base + t + d: `base` is the maximum of the row or zero, d the last, tiny step, which spares the
// rounding of t.
template <class T> struct Thresholds {
  using V = Vec<T>;
  static constexpr int WAYS = Slab<T>::WAYS;
  V base, t, d, lowest;
  unsigned odd;  // lanes with a NaN or an infinite maximum, or that did not converge: the caller solves them one by one

  void start(V from, V top, V at) {
    const V inf = V::of(INF<T>);
    odd = ~(V::bits(V::gt(inf, top)) & V::bits(V::gt(top, V::of(0) - inf)));
    base = from;
    t = at;
    d = lowest = V::of(0);
  }
  static V size(V x) { return V::max(x, V::of(0) - x); }
  // A little to the left: with E = 1 entries between the root and a t that rounding has carried past it would be lost.
  static V left_of(V x) { return x - size(x) * V::of(sizeof(T) == 4 ? T(1.3e-7) : T(2.3e-16)); }

  // One Newton step on the norm, from its sums at t over rows of length k. Returns the lanes that have not converged.
  template <int E> unsigned step(const Step<T, E> &s, int64_t k, const Curve<T> &c) {
    const V zero = V::of(0), one = V::of(1);
    if (E == 1) {  // exact, unless there is an entry between t and t + d
      d = (s.second - one) / s.first;
      lowest = s.lowest;
      // A long step d has lost digits to cancellation: iterate once more.
      return V::bits(V::gt(d, lowest)) | V::bits(V::gt(zero, d)) | V::bits(V::gt(s.second, V::of(FAR)));
    }
    if (E == 2) {
      d = step_to_norm(s.first, s.second, 1 / c.scale);
      // The residual of the sum after the step is at most k d^2, however the support changes.
      const V near = V::of(std::sqrt((sizeof(T) == 4 ? T(4e-7) : T(1e-16)) / static_cast<T>(k)) / c.scale);
      return V::bits(V::gt(size(d), near));
    }
    // power() needs a base in [0, 1]; a sum below one (a first guess too far right) takes a step back.
    const V big = V::max(one, s.second), norm = one / power(one / big, 1 / c.e);
    const V back = (s.second - one) / V::of(c.e);
    d = V::pick(V::gt(one, s.second), back, (norm - one) * big / norm) / (s.first * V::of(c.scale));
    // With an exponent below 2 small entries may spoil any bet on the next step: the sum itself must be right, or d
    // below what t can hold.
    const V off = V::of(sizeof(T) == 4 ? T(4e-7) : T(1e-15)), least_step = V::max(size(t), one) * off;
    return V::bits(V::gt(size(s.second - one), off)) & V::bits(V::gt(size(d), least_step));
  }
  template <int E> void move() {
    // Along a line: past the next entry if there is one before the root, however coarse t is.
    if (E == 1) t = V::pick(V::gt(d, lowest), V::max(left_of(t + d), t + lowest), left_of(t + d));
    else t = t + d;
  }
  template <int E> unsigned look(const V *v, int64_t k, const Curve<T> &c) {
    Step<T, E> s[WAYS];
    for (int64_t j = 0; j < k; j += WAYS)
      for (int i = 0; i < WAYS; ++i) s[i].add(v[j + i], t, c);
    s[0].add(s[1]);
    s[2].add(s[3]);
    s[0].add(s[2]);
    return step(s[0], k, c) & ~odd & ((1u << V::N) - 1);
  }
  template <int E> void guess(Slab<T> &s, const Curve<T> &c) {
    const V top = s.top;
    s.centre(E == 0);
    start(s.base, top, s.top - V::of(T(.5) / c.scale));
    for (int i = 0; i < 2; ++i) {
      look<E>(s.part, EIGHT, c);
      move<E>();
    }
  }
  unsigned odd_rows() const { return (odd | V::bits(V::nan(d, d))) & ((1u << V::N) - 1); }
};

template <class V> inline void order(V &a, V &b) {
  const V high = V::max(a, b);
  b = V::min(a, b);
  a = high;
}

// The eight largest entries of N rows, one row per lane, sorted downwards.
template <class T> struct Best {
  using V = Vec<T>;
  V v[EIGHT];
  typename V::Mask numbers = V::all();  // the lanes without a NaN, which would break the sort

  // A network of 19 exchanges, the fewest that sort eight; spelt out, or the compiler would keep w in memory.
  static void sort(V (&w)[EIGHT]) {
    order(w[0], w[2]), order(w[1], w[3]), order(w[4], w[6]), order(w[5], w[7]);
    order(w[0], w[4]), order(w[1], w[5]), order(w[2], w[6]), order(w[3], w[7]);
    order(w[0], w[1]), order(w[2], w[3]), order(w[4], w[5]), order(w[6], w[7]);
    order(w[2], w[4]), order(w[3], w[5]);
    order(w[1], w[4]), order(w[3], w[6]);
    order(w[1], w[2]), order(w[3], w[4]), order(w[5], w[6]);
  }
  void check(const V (&w)[EIGHT]) {
    for (int i = 0; i < EIGHT; i += 2) numbers = V::numbers(numbers, w[i], w[i + 1]);
  }
  void start(V (&w)[EIGHT]) {
    check(w);
    sort(w);
    for (int i = 0; i < EIGHT; ++i) v[i] = w[i];
  }
  // Eight more columns: the better of opposite ends are the best eight, and fall then rise.
  void take(V (&w)[EIGHT]) {
    check(w);
    sort(w);
    for (int i = 0; i < EIGHT; ++i) v[i] = V::max(v[i], w[EIGHT - 1 - i]);
    order(v[0], v[4]), order(v[1], v[5]), order(v[2], v[6]), order(v[3], v[7]);
    order(v[0], v[2]), order(v[1], v[3]), order(v[4], v[6]), order(v[5], v[7]);
    order(v[0], v[1]), order(v[2], v[3]), order(v[4], v[5]), order(v[6], v[7]);
  }
  explicit Best(const Block<T> &b) {
    V w[EIGHT];
    b.columns_from(0, w);
    start(w);
    for (int64_t c = EIGHT; c < b.k; c += EIGHT) {
      b.columns_from(c, w);
      take(w);
    }
  }
  // The threshold of sum u = 1, less the maximum: no mean of the j largest, less 1/j, exceeds it, and one attains it.
  V threshold() const {
    V sum = V::of(-1), best = V::of(-1);
    for (int j = 1; j < EIGHT; ++j) {
      sum = sum + (v[j] - v[0]);
      best = V::max(sum * V::of(T(1) / (j + 1)), best);
    }
    return best;
  }
};

// From the threshold base + t + d to a row of probabilities; `factor` makes the sum of those that are normalised one.
template <class T, int E, bool Shifted, bool Fine>
void write_as(const T *x, T *p, int64_t k, const Curve<T> &c, T base, T t, T d, T factor) {
  using V = Vec<T>;
  const V from = V::of(base), first = V::of(t), second = V::of(d), zero = V::of(0), by = V::of(factor);
  const V scale = V::of(c.scale), minus = V::of(-t * c.scale), rest = V::of(d * c.scale);
  auto answer = [&](V v) {
    const V w = Shifted ? v - from : v;
    if (E == 2 && !c.normalise) {  // the scale is 1/2, which rounds nothing
      const V u = V::max(V::fma(w, scale, minus) - rest, zero);
      return u * u;
    }
    const V u = V::max(Fine ? (w - first) - second : w - first, zero);
    return E == 1 ? u : raise(u * scale, c.out) * by;
  };
  int64_t j = 0;
  for (; j + V::N <= k; j += V::N) answer(V::load(x + j)).store(p + j);
  if (j < k) answer(V::load(x + j, static_cast<int>(k - j), -INF<T>)).store(p + j, static_cast<int>(k - j));
}
template <class T, int E> inline void write_row(const T *x, T *p, int64_t k, const Curve<T> &c, T base, T t, T d, T by) {
  if (base == 0) write_as<T, E, false, true>(x, p, k, c, base, t, d, by);
  else if (E == 1 && d == 0) write_as<T, E, true, false>(x, p, k, c, base, t, d, by);
  else write_as<T, E, true, true>(x, p, k, c, base, t, d, by);
}

// Rows of at most SHORT entries, N at a time.
template <class T, int E> struct ShortRows {
  using V = Vec<T>;

  static V factors(const Slab<T> &s, Thresholds<T> &a, const Curve<T> &c) {
    const V zero = V::of(0), one = V::of(1);
    if (!c.normalise) return one;
    V sum[4] = {zero, zero, zero, zero}, count = zero;
    for (int64_t j = 0; j < s.k; j += 4) {
      for (int i = 0; i < 4; ++i) {
        const V u = V::max((s.at[j + i] - a.t) - a.d, zero);
        sum[i] = sum[i] + (E == 2 ? u : raise(u * V::of(c.scale), c.out));  // normmax with alpha = 2
        count = V::add_where(V::gt(u, zero), count, one);
      }
    }
    const V all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    const V most = s.top - a.t - a.d, high = (E == 2 ? most : raise(most * V::of(c.scale), c.out)) / all;
    a.odd |= V::bits(V::gt(count * high * high, V::of(c.touchy())));
    return one / all;
  }
  // As write_row, of rows that are not shifted, with E = 2.
  template <bool Square>
  static void write_two(const T *x, T *p, int64_t rows, int64_t k, const Curve<T> &c, const Thresholds<T> &a, V factor) {
    const V scale = V::of(c.scale), zero = V::of(0);
    T t[V::N], d[V::N], by[V::N];
    (zero - a.t * scale).store(t);
    (a.d * scale).store(d);
    factor.store(by);
    for (int64_t r = 0; r < rows; ++r, x += k, p += k) {
      const V minus = V::of(t[r]), rest = V::of(d[r]), times = V::of(by[r]);
      const auto answer = [&](V v) {
        const V u = V::max(V::fma(v, scale, minus) - rest, zero);
        return u * (Square ? u : times);
      };
      int64_t j = 0;
      for (; j + V::N <= k; j += V::N) answer(V::load(x + j)).store(p + j);
      const int n = static_cast<int>(k - j);
      if (n) answer(V::load(x + j, n, -INF<T>)).store(p + j, n);
    }
  }
  static void write_all(const T *x, T *p, int64_t rows, int64_t k, const Curve<T> &c, const Thresholds<T> &a, V factor) {
    T base[V::N], t[V::N], d[V::N], by[V::N];
    a.base.store(base);
    a.t.store(t);
    a.d.store(d);
    factor.store(by);
    if (E == 2 && !PLAIN_LOOPS && !V::bits(V::gt(a.size(a.base), V::of(0)))) {
      (c.normalise ? write_two<false> : write_two<true>)(x, p, rows, k, c, a, factor);
      return;
    }
    for (int64_t r = 0; r < rows; ++r) write_row<T, E>(x + r * k, p + r * k, k, c, base[r], t[r], d[r], by[r]);
  }

  // Sum u = 1: where eight entries hold the support, sorting them gives the threshold at once.
  static unsigned by_sorting(const T *x, T *p, int64_t rows, int64_t k, const Curve<T> &c) {
    const Block<T> block(x, rows, k);
    const Best<T> best(block);
    Thresholds<T> a;
    a.start(best.v[0], best.v[0], best.threshold());
    a.odd |= ~V::bits(best.numbers);
    if (V::bits(V::gt(best.v[EIGHT - 1] - best.v[0], a.t)) & ~a.odd) {
      Slab<T> s;
      s.load(block);
      s.centre(true);
      unsigned moving;
      int looks = 0;
      a.t = a.left_of(a.t);
      while ((moving = a.template look<E>(s.at, s.k, c)) && ++looks < MOST_LOOKS) a.template move<E>();
      a.odd |= moving;
    }
    write_all(x, p, rows, k, c, a, V::of(1));
    return a.odd_rows();
  }

  // Newton steps on one or two interleaved slabs, to hide the latency of the sums.
  static uint64_t by_looking(const T *x, T *p, int64_t rows, int64_t k, const Curve<T> &c) {
    Slab<T> s[2];
    Thresholds<T> a[2];
    const int slabs = rows > V::N ? 2 : 1;
    for (int i = 0; i < slabs; ++i) s[i].load(Block<T>(x + i * V::N * k, rows - i * V::N, k));
    for (int i = 0; i < slabs; ++i) a[i].template guess<E>(s[i], c);
    // With this many rows, convergence within two steps is rare: skip the test, as a mispredicted branch costs a step.
    for (int looks = 0; looks < MOST_LOOKS; ++looks) {
      unsigned moving = 0;
      for (int i = 0; i < slabs; ++i) {
        if (looks) a[i].template move<E>();
        const unsigned still = a[i].template look<E>(s[i].at, s[i].k, c);
        if (looks == MOST_LOOKS - 1) a[i].odd |= still;
        moving |= still;
      }
      if (looks >= 2 && !moving) break;
    }
    uint64_t odd = 0;
    for (int i = 0; i < slabs; ++i) {
      const int64_t first = i * V::N;
      const V factor = factors(s[i], a[i], c);
      write_all(x + first * k, p + first * k, least<int64_t>(V::N, rows - first), k, c, a[i], factor);
      odd |= static_cast<uint64_t>(a[i].odd_rows()) << first;
    }
    return odd;
  }

  // Up to 2 N rows. Returns a mask of the odd rows, which are left to the caller.
  static uint64_t run(const T *x, T *p, int64_t rows, int64_t k, const Curve<T> &c) {
    if (E != 1) return by_looking(x, p, rows, k, c);
    uint64_t odd = 0;
    for (int64_t r = 0; r < rows; r += V::N)
      odd |= static_cast<uint64_t>(by_sorting(x + r * k, p + r * k, least<int64_t>(V::N, rows - r), k, c)) << r;
    return odd;
  }
};

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
