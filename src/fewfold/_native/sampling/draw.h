// Draws from an inverted index: a cell by its score, then an item of the cell.
#pragma once
#include <cmath>
#include <stdexcept>
#include <vector>

#include "random.h"
#include "simd.h"
#include "table.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// The inverse cumulative distribution over the cells of one query, in blocks of one vector.
struct Wheel {
  using V = Vec<float>;
  const Cells &at;
  const int64_t n, blocks;
  std::vector<float> score, sum;  // sum: of the weights of a block, up to and including this one
  std::vector<double> before;     // the weight of all blocks up to and including this one
  std::vector<int32_t> guess;     // the block in which this part of the whole begins
  double log_total = 0;

  explicit Wheel(const Cells &cells)
      : at(cells), n(cells.cells), blocks((n + V::N - 1) / V::N), score(blocks * V::N), sum(blocks * V::N),
        before(blocks), guess(blocks) {}

  // False if the scores hold a NaN or an infinity.
  bool turn(const float *scores) {
    V top = V::of(-INF<float>);
    unsigned nan = 0;  // the maximum and the exponentials pass over them
    for (int64_t c = 0; c < n; c += V::N) {
      const int size = static_cast<int>(n - c < V::N ? n - c : V::N);
      V v = V::gather(scores, at.code + c, size);
      for (int64_t b = 1; b < at.codebooks; ++b) v = v + V::gather(scores, at.code + b * n + c, size);
      v.store(&score[c]);
      v = v + V::load(at.log_mass + c, size, -INF<float>);
      v.store(&sum[c]);
      nan |= V::bits(V::nan(v, v));
      top = V::max(v, top);
    }
    const float high = top.top();
    if (nan || high - high != 0) return false;
    double total = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      float *s = &sum[b * V::N], run = 0;
      exp_down(V::load(s) - V::of(high)).store(s);
      for (int i = 0; i < V::N; ++i) s[i] = run += s[i];
      before[b] = total += static_cast<double>(run);
    }
    log_total = std::log(total) + static_cast<double>(high);
    const double step = total / static_cast<double>(blocks);
    for (int64_t g = 0, b = 0; g < blocks; ++g) {
      while (b < blocks - 1 && before[b] <= step * static_cast<double>(g)) ++b;
      guess[g] = static_cast<int32_t>(b);
    }
    return true;
  }
  int64_t find(double unit) const {
    const double x = unit * before[blocks - 1];
    int64_t b = guess[static_cast<int64_t>(unit * static_cast<double>(blocks))];
    while (b < blocks - 1 && before[b] <= x) ++b;
    const V inside = V::of(static_cast<float>(x - (b ? before[b - 1] : 0)));
    const unsigned past = V::bits(V::gt(V::load(&sum[b * V::N]), inside));
    const int64_t c = b * V::N + (past ? __builtin_ctz(past) : V::N - 1);  // rounding may leave none
    return c < n ? c : n - 1;
  }
};

// log q of all cells for rows [first, last) of queries, (rows, cells). Returns the first row with non-finite
// scores, or -1.
inline int64_t cell_log_probs(const Cells &at, const float *scores, int64_t width, int64_t first, int64_t last, float *out) {
  using V = Vec<float>;
  Wheel wheel(at);
  for (int64_t r = first; r < last; ++r) {
    if (!wheel.turn(scores + r * width)) return r;
    const V log_total = V::of(static_cast<float>(wheel.log_total));
    for (int64_t c = 0; c < at.cells; c += V::N) {
      const int size = static_cast<int>(at.cells - c < V::N ? at.cells - c : V::N);
      const V v = V::load(&wheel.score[c]) + V::load(at.log_mass + c, size, 0.f);
      (v - log_total).store(out + r * at.cells + c, size);
    }
  }
  return -1;
}

// The log of the mean of exp(x), x (rows, cells), for cells [first, last).
inline void mix_cells(const float *x, int64_t rows, int64_t cells, int64_t first, int64_t last, float *out) {
  using V = Vec<float>;
  for (int64_t c = first; c < last; c += V::N) {
    const int size = static_cast<int>(last - c < V::N ? last - c : V::N);
    V top = V::of(-INF<float>), sum = V::of(0);
    for (int64_t r = 0; r < rows; ++r) top = V::max(V::load(x + r * cells + c, size, 0.f), top);
    for (int64_t r = 0; r < rows; ++r) sum = sum + exp_down(V::load(x + r * cells + c, size, 0.f) - top);
    float t[V::N], total[V::N];
    top.store(t);
    sum.store(total);
    for (int i = 0; i < size; ++i) out[c + i] = t[i] + std::log(total[i] / static_cast<float>(rows));
  }
}

// Rows [first, last) of n draws each, whose random numbers are those of rows from `start` on. Returns the first row with non-finite scores, or -1.
inline int64_t draw(const Cells &at, const float *scores, int64_t width, int64_t first, int64_t last, int64_t n,
                    uint64_t seed, int64_t start, int64_t *ids, float *log_q, double *log_z) {
  Wheel wheel(at);
  std::vector<int64_t> place(n);
  std::vector<float> fraction(n);
  for (int64_t r = first; r < last; ++r) {
    if (!wheel.turn(scores + r * width)) return r;
    log_z[r] = wheel.log_total;
    Random random(seed, start + r);
    float *q = log_q + r * n;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t c = wheel.find(random.unit());
      const uint64_t size = static_cast<uint64_t>(at.start[c + 1] - at.start[c]);
      // The high half of the product is a place in the cell, the low half a fresh fraction for the alias table.
      const unsigned __int128 product = static_cast<unsigned __int128>(random.next()) * size;
      place[i] = at.start[c] + static_cast<int64_t>(product >> 64);
      fraction[i] = static_cast<float>(static_cast<uint64_t>(product) >> 40) * 0x1p-24f;
      q[i] = static_cast<float>(static_cast<double>(wheel.score[c]) - wheel.log_total);
      if (at.accept) {
        __builtin_prefetch(at.accept + place[i]);
        __builtin_prefetch(at.other + place[i]);
      }
    }
    // Without branches, of which every second one would be predicted wrongly.
    if (at.accept)
      for (int64_t i = 0; i < n; ++i) {
        const int64_t p = place[i], other = at.other[p];
        place[i] = fraction[i] >= at.accept[p] ? other : p;
      }
    for (int64_t i = 0; i < n; ++i)
      if (static_cast<uint64_t>(place[i]) >= static_cast<uint64_t>(at.places)) throw std::out_of_range("an alias table names no item");
    // A separate loop, so that many of these cache misses overlap.
    int64_t *out = ids + r * n;
    for (int64_t i = 0; i < n; ++i) out[i] = at.item[place[i]];
    if (at.log_share)
      for (int64_t i = 0; i < n; ++i) q[i] += at.log_share[place[i]];
  }
  return -1;
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
