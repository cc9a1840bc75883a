// The normal distribution function, by Mills' ratio: with full relative accuracy in the tail.
//
//     Phi(-z) = e^(-z^2 / 2) mills(z),   z >= 0
//
// (z + c) mills(z) is smooth in 1 / (z + c) as far as infinity, so that one polynomial covers all z.
#pragma once
#include "exponential.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// Chebyshev interpolation in 1 - 2c / (z + c), between -1 and 1, computed with fifty digits.
template <class T> struct Mills;
template <> struct Mills<float> {
  static constexpr float C = 4.f;
  static constexpr float OF[] = {7.55285127e-1f,  -6.07896596e-1f, 3.87137559e-1f,  -1.86524184e-1f, 6.03953134e-2f,
                                 -7.52125553e-3f, -3.47619646e-3f, 1.57575208e-3f, 1.29340123e-4f,  -1.62616316e-4f};
};
template <> struct Mills<double> {
  static constexpr double C = 5.;
  static constexpr double OF[] = {
      7.6919304975006296e-1,  -6.6538250289006841e-1, 4.9530561596999375e-1,  -3.1353315667043614e-1,
      1.6502036616910736e-1,  -6.9118638725453031e-2, 2.0795066827479358e-2,  -2.9933765747193971e-3,
      -7.9786967110366957e-4, 5.4489794667893012e-4,  -5.9374254572626343e-5, -4.9758894070727902e-5,
      1.6676472037663174e-5,  3.972040494146394e-6,   -2.7598749410219641e-6, -3.2349752237852996e-7,
      4.2180192145092113e-7,  2.9828593613267891e-8,  -5.8140759654532122e-8, -2.3627806826406505e-9,
      5.151491485332322e-9};
};

template <class T> FEWFOLD_INLINE Vec<T> mills(Vec<T> z) {
  using V = Vec<T>;
  const V u = V::of(1) / (z + V::of(Mills<T>::C));
  return u * polynomial<T>(V::fma(V::of(-2 * Mills<T>::C), u, V::of(1)), Mills<T>::OF);
}

// Phi(x) = e^-nats part, where nats are those of the tail: zero above zero. The part is at least about 0.4 / |x|, so
// that short products keep full precision however small Phi is.
template <class T> struct Normal {
  using V = Vec<T>;
  typename V::Mask low;
  V nats, part;
  V fall;  // e^(-x^2 / 2)
  FEWFOLD_INLINE explicit Normal(V x) {
    const V zero = V::of(0), z = V::max(x, zero - x), half = z * z * V::of(static_cast<T>(.5)), m = mills<T>(z);
    low = V::gt(zero, x);
    fall = exponential<T>(zero - half);
    nats = V::keep(low, half);
    part = V::pick(low, m, V::fma(zero - fall, m, V::of(1)));
  }
  // phi(x) / Phi(x)
  FEWFOLD_INLINE V hazard() const {
    return V::pick(low, V::of(1), fall) * V::of(static_cast<T>(0.39894228040143267794)) / part;
  }
};

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
