// A row, read in pieces, reduced to the candidates for its support.
//
// The maxima of the SIMD lanes are a subset of the row, so the threshold they solve is a lower bound on the row's:
// only entries above it are retained. A piece whose maximum is below the bound costs one read.
#pragma once
#include <cstdlib>
#include <new>

#include "curve.h"

namespace fewfold {
namespace FEWFOLD_ISA {

constexpr int64_t PIECE = 2048;      // entries read between updates of the bound: they fit into the L1 cache
constexpr int64_t CAPACITY = 16384;  // more candidates than this: the row is dense, read it as it is

template <class T> struct Stream {
  using V = Vec<T>;
  static constexpr int LANES = 4 * V::N;
  T *x = nullptr;        // candidates as they came
  int32_t *index = nullptr;
  int64_t n = 0, capacity = 0;
  T top, bound;  // of the row so far
  T high;        // of the current piece
  T lane[LANES], lane_now[LANES];      // maxima of interleaved parts, of the row so far and of the current piece
  T high_of[PIECE / LANES + 1][V::N];  // maxima of the groups of the current piece
  bool nan, full;

  void start() {
    n = 0;
    top = bound = -INF<T>;
    nan = full = false;
    forget_lanes();
  }
  void forget_lanes() {
    for (int i = 0; i < LANES; ++i) lane[i] = -INF<T>;
  }
  void reserve(int64_t size) {
    if (size + V::N <= capacity) return;
    const int64_t wanted = size + V::N;
    grow(x, wanted);
    grow(index, wanted);
    capacity = wanted;
  }
  template <class A> static void grow(A *&from, int64_t size) {
    void *to = std::realloc(from, static_cast<size_t>(size) * sizeof(A));
    if (!to) throw std::bad_alloc();
    from = static_cast<A *>(to);
  }
  void release() {
    std::free(x);
    std::free(index);
    x = nullptr;
    index = nullptr;
    capacity = 0;
  }

  bool odd() const { return nan || top == INF<T> || top == -INF<T>; }

  // A score at or below this cannot be in the support, given a lower bound t on the threshold.
  void raise_bound(double t, const Curve<T> &c) {
    if (!(top < INF<T>)) return;  // infinite scores: handled by the caller
    const double edge = static_cast<double>(top) + t / c.scale;
    const T value = below(edge - std::fabs(edge) * (sizeof(T) == 4 ? 1e-7 : 2e-16), T());
    if (value > bound) bound = value;
  }
  // The same bound as a threshold, to start a solve from.
  double start_at(const Curve<T> &c) const {
    const double t = (static_cast<double>(bound) - static_cast<double>(top)) * c.scale;
    return t > -1 ? t : -1;
  }

  // Computes the maxima of a piece by group and lane, and prefetches the next piece.
  void look(const T *piece, int64_t len) {
    V m[4] = {V::of(-INF<T>), V::of(-INF<T>), V::of(-INF<T>), V::of(-INF<T>)};
    unsigned bad = 0;
    const int64_t groups = len / LANES;
    auto look_at = [&](int64_t g, V &best) {
      const T *group = piece + g * LANES;
      for (int j = 0; j < 4; ++j) __builtin_prefetch(group + len + j * V::N);
      V a[4];
      for (int j = 0; j < 4; ++j) a[j] = V::load(group + j * V::N);
      bad |= V::bits(V::nan(a[0], a[1])) | V::bits(V::nan(a[2], a[3]));
      const V high = V::max(V::max(a[0], a[1]), V::max(a[2], a[3]));
      high.store(high_of[g]);
      best = V::max(high, best);
    };
    int64_t g = 0;
    for (; g + 4 <= groups; g += 4)
      for (int j = 0; j < 4; ++j) look_at(g + j, m[j]);
    for (; g < groups; ++g) look_at(g, m[0]);
    for (int64_t i = groups * LANES; i < len; i += V::N) {
      const int left = static_cast<int>(least<int64_t>(V::N, len - i));
      const V a = left == V::N ? V::load(piece + i) : V::load(piece + i, left, -INF<T>);
      bad |= V::bits(V::nan(a, a));
      m[0] = V::max(a, m[0]);
    }
    if (bad) nan = true;
    for (int j = 0; j < 4; ++j) m[j].store(lane_now + j * V::N);
    high = V::max(V::max(m[0], m[1]), V::max(m[2], m[3])).top();
  }

  // Merges the lanes of that piece into those of the row so far, and raises the bound. No branch depends on it, so
  // that the steps of several rows can run at once.
  void join(const Curve<T> &c, int steps) {
    if (high > top) top = high;
    const V best = V::of(top), scale = V::of(c.scale);
    V v[4];
    for (int j = 0; j < 4; ++j) {
      const V m = V::max(V::load(lane_now + j * V::N), V::load(lane + j * V::N));
      m.store(lane + j * V::N);
      v[j] = (m - best) * scale;
    }
    T t = T(-.5);
    for (int i = 0; i < steps; ++i) t = tangent(v, t, c);
    raise_bound(t, c);
  }

  // Drop the candidates that a solve on all of them rules out.
  void prune(const Curve<T> &c) {
    raise_bound(solve<T>(Scores<T>{x, V::of(top), V::of(c.scale)}, n, c, start_at(c), 6), c);
    int64_t retained = 0;
    for (int64_t i = 0; i < n; ++i) {
      x[retained] = x[i];
      index[retained] = index[i];
      retained += x[i] > bound;
    }
    n = retained;
  }

  // The groups of the current piece above the bound; branch-free, as branches would be unpredictable.
  int hit_groups(int64_t groups, int32_t *hit) const {
    const V edge = V::of(bound);
    int n = 0;
    for (int64_t g = 0; g < groups; ++g) {
      hit[n] = static_cast<int32_t>(g);
      n += V::bits(V::gt(V::load(high_of[g]), edge)) != 0;
    }
    return n;
  }

  // Records the entries of one vector above the bound. Indices only: packing values too would saturate the only
  // shuffle port.
  static int32_t *pack_from(V v, V edge, int64_t at, int32_t *to) {
    const typename V::Mask on = V::gt(v, edge);
    V::pack_index(to, on, static_cast<int32_t>(at));
    return to + V::count(on);
  }

  void keep(const T *from, int64_t size, int64_t base) {
    int32_t hit[PIECE / LANES + 1];
    // Locals: a store through `to` could alias the members, which would be reloaded.
    const V edge = V::of(bound);
    int32_t *to = index + n;
    const int64_t groups = size / LANES;
    const int hits = hit_groups(groups, hit);
    for (int h = 0; h < hits; ++h) {
      const int64_t i = hit[h] * int64_t{LANES};
      for (int j = 0; j < 4; ++j) to = pack_from(V::load(from + i + j * V::N), edge, base + i + j * V::N, to);
    }
    for (int64_t i = groups * LANES; i < size; i += V::N) {
      const int left = static_cast<int>(least<int64_t>(V::N, size - i));
      to = pack_from(V::load(from + i, left, -INF<T>), edge, base + i, to);
    }
    const int64_t more = to - index - n;
    if (more > size / 4) {
      T *value = x + n;
      sweep<T>(Ready<T>{from}, 0, size, [&](V v, int64_t, int) {
        const typename V::Mask on = V::gt(v, edge);
        V::pack(value, on, v);
        value += V::count(on);
      });
    } else {
      for (int64_t i = 0; i < more; i += V::N)
        V::gather(from - base, index + n + i, static_cast<int>(least<int64_t>(V::N, more - i))).store(x + n + i);
    }
    n += more;
  }

  // A first bound from groups all along the row, wherever its largest entries lie. Where most of them beat what their
  // maxima say, they are solved; where most still do, the row is dense.
  void sample(const T *from, int64_t size, const Curve<T> &c) {
    const int64_t last = size - LANES, stride = size / (CAPACITY / LANES) + PIECE;
    V m[4] = {V::of(-INF<T>), V::of(-INF<T>), V::of(-INF<T>), V::of(-INF<T>)};
    for (int64_t b = 0; b <= last; b += stride)
      for (int j = 0; j < 4; ++j) m[j] = V::max(V::load(from + b + j * V::N), m[j]);
    for (int j = 0; j < 4; ++j) m[j].store(lane_now + j * V::N);
    high = V::max(V::max(m[0], m[1]), V::max(m[2], m[3])).top();
    join(c, 2);
    // look() reads the sampled entries again and may assign them to other lanes. An entry in two lanes would count
    // twice, and the lanes would no longer be a subset of the row: only the bound stays.
    forget_lanes();
    if (odd()) return;
    auto keep_those = [&] {
      n = 0;
      for (int64_t b = 0; b <= last; b += stride)
        for (int j = 0; j < 4; ++j) {
          const V v = V::load(from + b + j * V::N);
          const typename V::Mask on = V::gt(v, V::of(bound));
          V::pack(x + n, on, v);
          n += V::count(on);
        }
      return n * stride > size * LANES / 2;
    };
    if (keep_those()) {
      raise_bound(solve<T>(Scores<T>{x, V::of(top), V::of(c.scale)}, n, c, start_at(c), 6), c);
      full = keep_those();
    }
    n = 0;
  }

  // Returns false once the row has turned out dense (`most` candidates are not enough).
  bool push(const T *from, int64_t size, int64_t base, const Curve<T> &c, int64_t most = CAPACITY) {
    for (int64_t b = 0; b < size; b += PIECE) {
      const int64_t len = least(PIECE, size - b);
      look(from + b, len);
      if (!(high > bound)) continue;
      join(c, 2);
      if (full) continue;
      if (n + len + V::N > capacity) {
        if (n > most / 2) prune(c);
        if (n > most / 2) full = true;
        else reserve(n + len > most ? most + PIECE : 2 * (n + len));
      }
      if (!full) keep(from + b, len, base + b);
    }
    return !full;
  }

  // A complete row; buffers for CAPACITY candidates must have been reserved.
  void read(const T *row, int64_t size, const Curve<T> &c) {
    start();
    if (size >= 8 * PIECE) sample(row, size, c);
    push(row, size, 0, c);
  }
};

// Scratch that lives as long as its thread: a fresh allocation of this size would fault its pages in every time.
template <class T> struct Scratch {
  Stream<T> stream;
  Scratch() { stream.reserve(CAPACITY + PIECE); }
  ~Scratch() { stream.release(); }
  static Stream<T> &get() {
    static thread_local Scratch scratch;
    return scratch.stream;
  }
};

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
