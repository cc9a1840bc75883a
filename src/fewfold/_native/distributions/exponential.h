// Exponentials and logarithms of vectors, accurate to the precision of their type.
#pragma once
#include "simd.h"

namespace fewfold {
namespace FEWFOLD_ISA {

constexpr double LOG_2 = 0.69314718055994530942;

// Polynomials through Chebyshev points, and how many terms of a series are enough.
template <class T> struct Exponential;
template <> struct Exponential<float> {
  static constexpr float LOWEST = -87.f;
  static constexpr int TERMS = 5;
  static constexpr float TWO_TO[] = {1.0f,           6.93147207e-1f, 2.40226509e-1f, 5.55032723e-2f,
                                     9.61805668e-3f, 1.34004282e-3f, 1.54614447e-4f};
};
template <> struct Exponential<double> {
  static constexpr double LOWEST = -708.;
  static constexpr int TERMS = 11;
  static constexpr double TWO_TO[] = {1.0,
                                      6.9314718055994531e-1,
                                      2.402265069591016e-1,
                                      5.5504108664821627e-2,
                                      9.6181291075872567e-3,
                                      1.3333558146406471e-3,
                                      1.5403530463724354e-4,
                                      1.5252733841556773e-5,
                                      1.3215432535912376e-6,
                                      1.0178057087733941e-7,
                                      7.074194297288521e-9,
                                      4.4558179083360645e-10};
};

// c[0] + c[1] x + ..., the even and the odd powers in parallel: half the latency.
template <class T, int M> FEWFOLD_INLINE Vec<T> polynomial(Vec<T> x, const T (&c)[M]) {
  using V = Vec<T>;
  const V x2 = x * x;
  V first = V::of(c[M - 1]), second = V::of(c[M - 2]);
#pragma GCC unroll 32
  for (int i = M - 3; i > 0; i -= 2) {
    first = V::fma(first, x2, V::of(c[i]));
    second = V::fma(second, x2, V::of(c[i - 1]));
  }
  if (M % 2) return V::fma(second, x, V::fma(first, x2, V::of(c[0])));
  return V::fma(first, x, second);
}

// e^x for x <= 0; never quite zero, and not a NaN's.
template <class T> FEWFOLD_INLINE Vec<T> exponential(Vec<T> x) {
  using V = Vec<T>;
  const V z = V::max(x, V::of(Exponential<T>::LOWEST)) * V::of(static_cast<T>(1 / LOG_2)), whole = V::round(z);
  return V::scale(polynomial<T>(z - whole, Exponential<T>::TWO_TO), whole);
}

// log x for x in [1, 2): twice the series of the inverse hyperbolic tangent, from the side of 1 or of 2.
template <class T> FEWFOLD_INLINE Vec<T> logarithm_of_mantissa(Vec<T> x) {
  using V = Vec<T>;
  const V one = V::of(1);
  const typename V::Mask high = V::gt(x, V::of(static_cast<T>(1.41421356)));
  const V m = V::pick(high, x * V::of(static_cast<T>(.5)), x), y = (m - one) / (m + one), y2 = y * y;
  V series = V::of(static_cast<T>(2. / (2 * Exponential<T>::TERMS - 1)));
#pragma GCC unroll 32
  for (int i = Exponential<T>::TERMS - 2; i >= 0; --i)
    series = V::fma(series, y2, V::of(static_cast<T>(2. / (2 * i + 1))));
  return V::fma(y, series, V::keep(high, V::of(static_cast<T>(LOG_2))));
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
