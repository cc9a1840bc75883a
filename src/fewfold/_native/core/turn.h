// The transpose of as many vectors as a vector has lanes.
#pragma once
#include "simd.h"

namespace fewfold {
namespace FEWFOLD_ISA {

#if defined(FEWFOLD_AVX512) || defined(FEWFOLD_AVX2)
// Row k of r becomes column k.
inline void turn(__m256 *r) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}
#endif
#if defined(FEWFOLD_AVX512)
inline void turn(__m512 *r) {
  __m512 a[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i)
    for (int j = i; j < 16; j += 8) {
      a[j] = _mm512_shuffle_f32x4(r[j], r[j + 4], 0x88);
      a[j + 4] = _mm512_shuffle_f32x4(r[j], r[j + 4], 0xdd);
    }
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd);
  }
}
#endif

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
