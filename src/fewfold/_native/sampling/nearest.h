// The nearest centre of each point, for many points and a small number of centres.
#pragma once
#include "simd.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// Points are `stride` apart. centres: (d, k) with k a multiple of 16; half: (k) half their squared norms, +inf where there
// is none. Distances of all centres grow side by side in lanes, BLOCK vectors of them at a time.
inline void nearest(const float *points, int64_t stride, int64_t n, int64_t d, const float *centres, const float *half,
                    int64_t k, int64_t *code) {
  using V = Vec<float>;
  constexpr int64_t BLOCK = 16 / V::N, STEP = BLOCK * V::N;
  float gap[STEP];
  for (int64_t i = 0; i < n; ++i) {
    const float *x = points + i * stride;
    float best = INF<float>;
    int64_t where = 0;
    for (int64_t c = 0; c < k; c += STEP) {
      V sum[BLOCK];
      for (int64_t b = 0; b < BLOCK; ++b) sum[b] = V::load(half + c + b * V::N);
      for (int64_t j = 0; j < d; ++j) {
        const V xj = V::of(-x[j]);
        for (int64_t b = 0; b < BLOCK; ++b) sum[b] = V::fma(xj, V::load(centres + j * k + c + b * V::N), sum[b]);
      }
      V low = sum[0];
      for (int64_t b = 1; b < BLOCK; ++b) low = V::min(low, sum[b]);
      const float least_here = low.bottom();
      if (!(least_here < best)) continue;
      best = least_here;
      for (int64_t b = 0; b < BLOCK; ++b) sum[b].store(gap + b * V::N);
      for (where = c; gap[where - c] != best; ++where) {
      }
    }
    code[i] = where;
  }
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
