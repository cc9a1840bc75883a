// Negative log-likelihoods of rows of data under Bernoulli distributions given by logits: expectation/binary_data.py.
#pragma once
#include "exponential.h"
#include "table.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// log(1 + u) for 0 <= u <= 1: twice the series of the inverse hyperbolic tangent of u / (2 + u), which is at most 1/3.
template <class T> FEWFOLD_INLINE Vec<T> log_one_plus(Vec<T> u) {
  using V = Vec<T>;
  constexpr int TERMS = sizeof(T) == 4 ? 8 : 17;
  const V y = u / (u + V::of(2)), y2 = y * y;
  V series = V::of(static_cast<T>(2. / (2 * TERMS - 1)));
#pragma GCC unroll 32
  for (int i = TERMS - 2; i >= 0; --i) series = V::fma(series, y2, V::of(static_cast<T>(2. / (2 * i + 1))));
  return y * series;
}

// e^-|x|; never quite zero. The caller sees to NaN.
template <class T> FEWFOLD_INLINE Vec<T> fall_of(Vec<T> x) {
  const Vec<T> zero = Vec<T>::of(0);
  return exponential<T>(Vec<T>::min(zero - x, x));
}

// A vector of logits x and of data t: log(1 + e^x) - t x, and its derivative, sigmoid(x) - t.
template <class T> struct Bernoulli {
  using V = Vec<T>;
  V x, t, fall;
  FEWFOLD_INLINE Bernoulli(const T *logits, const T *target, int n)
      : x(V::load(logits, n, 0)), t(V::load(target, n, 0)), fall(fall_of<T>(x)) {}
  FEWFOLD_INLINE Bernoulli(const T *logits, const T *target)
      : x(V::load(logits)), t(V::load(target)), fall(fall_of<T>(x)) {}
  FEWFOLD_INLINE V cost() const {
    const V zero = V::of(0);
    return ((V::of(1) - t) * x - V::min(zero, x)) + log_one_plus<T>(fall);  // min returns a NaN
  }
  FEWFOLD_INLINE V slope() const {
    const V one = V::of(1), share = V::pick(V::gt(V::of(0), x), fall, one) / (one + fall);
    return V::pick(V::numbers(V::all(), x, x), share, x) - t;
  }
};

// out[i] = the sum of the costs of pair i. `slope`, unless null, gets the derivatives; it may be the memory of the logits.
template <class T> void bernoulli_costs(const Logits<T> &at, int64_t first, int64_t last, T *out, T *slope) {
  using V = Vec<T>;
  for (int64_t i = first; i < last; ++i) {
    const T *x = at.logits + i * at.n, *t = at.target + at.row[i] * at.n;
    T *to = slope ? slope + i * at.n : nullptr;
    Vec<double> even = Vec<double>::of(0), odd = even;
    int64_t j = 0;
    for (; j + V::N <= at.n; j += V::N) {
      const Bernoulli<T> one(x + j, t + j);
      widen(one.cost(), even, odd);
      if (to) one.slope().store(to + j);
    }
    double sum = (even + odd).sum();
    if (j < at.n) {
      const int rest = static_cast<int>(at.n - j);
      const Bernoulli<T> one(x + j, t + j, rest);
      T tail[V::N];
      one.cost().store(tail);
      for (int k = 0; k < rest; ++k) sum += static_cast<double>(tail[k]);
      if (to) one.slope().store(to + j, rest);
    }
    out[i] = static_cast<T>(sum);
  }
}

// out = the derivatives times the gradient of the pair.
template <class T>
void bernoulli_pulls(const Logits<T> &at, const T *grad, int64_t first, int64_t last, T *out) {
  using V = Vec<T>;
  for (int64_t i = first; i < last; ++i) {
    const T *x = at.logits + i * at.n, *t = at.target + at.row[i] * at.n;
    T *to = out + i * at.n;
    const V by = V::of(grad[i]);
    for (int64_t j = 0; j < at.n; j += V::N) {
      const int count = static_cast<int>(at.n - j < V::N ? at.n - j : V::N);
      (Bernoulli<T>(x + j, t + j, count).slope() * by).store(to + j, count);
    }
  }
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
