// log E_t prod_j Phi(shift_j + slope_j t), t ~ N(0, 1), row by row.
//
// The method of distributions/integrals/expected_product.py, which explains it and handles the rows too steep for this
// kernel: find the peak, interpolate the logarithm of the product at Chebyshev points around it, and sum the integrand at
// many evenly spaced points. SIMD lanes hold points, not factors, so that a product needs no horizontal reduction.
#pragma once
#include <cstdlib>

#include "normal.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// Precision limits of a dtype, equal to `Digits` of distributions/integrals/peak.py.
template <class T> struct Precision {
  static constexpr bool SINGLE = sizeof(T) == 4;
  static constexpr double DROP = SINGLE ? 13.5 : 32;     // nats below the peak at which the integrand is neglected
  static constexpr double ERROR = SINGLE ? 13 : 27;      // the error of a sum is at most exp(-ERROR)
  static constexpr double FULL = SINGLE ? 6 : 8.3;       // beyond this Phi is 1
  static constexpr double LEAST = SINGLE ? -1e4 : -1e8;  // AT_ONCE factors below this could underflow
  static constexpr double NOISE = SINGLE ? 5e-5 : 1e-10;  // accepted rounding at the ends; a tenth is visible
  static constexpr double EPSILON = SINGLE ? 0x1p-23 : 0x1p-52;
};
constexpr double NEAR_PEAK = .6;  // accuracy of the peak's location
constexpr double INNER = .75;     // fraction of the interval that matters: the integrand is tiny near its ends
constexpr double GENTLE = .788;   // log 2.2, by which an error grows with every point outside of that part
constexpr double ZERO = 2.8;      // from the real line to the nearest zero of Phi
constexpr int EASY = 64;          // Chebyshev points; rows that need more have an edge
constexpr double MOST = 1024;     // evenly spaced points, where the product is to be found at each
constexpr int AT_ONCE = 8;        // factors before their product is made a mantissa and an exponent
constexpr double PI = 3.14159265358979323846;

// First and minus second derivative of the logarithm of the integrand.
struct Rise {
  double rise, bend;
};

// At t, to low accuracy.
template <class T> Rise rise_at(const T *shift, const T *slope, int64_t n, double t) {
  using V = Vec<T>;
  const V at = V::of(static_cast<T>(t)), zero = V::of(0), one = V::of(1);
  V pulls = zero, bends = zero;
  for (int64_t j = 0; j < n; j += V::N) {
    const int m = static_cast<int>(n - j < V::N ? n - j : V::N);
    const V s = V::load(slope + j, m, 0), x = V::fma(s, at, V::load(shift + j, m, 0));
    const V hazard = Normal<T>(x).hazard(), pull = s * hazard;
    // Far below, the difference cancels but has a known limit; far above, the hazard is zero.
    const V known = V::min(V::max(hazard * V::min(hazard + x, V::of(40)), zero), one);
    bends = V::fma(s * s, V::pick(V::gt(V::of(-30), x), one, known), bends);
    pulls = pulls + pull;
  }
  return {static_cast<double>(pulls.sum()) - t, 1 + static_cast<double>(bends.sum())};
}

// Approximate mode of the integrand. False if a derivative is not finite or Newton's method fails.
template <class T> bool find_peak(const T *shift, const T *slope, int64_t n, double &t, double &bend) {
  t = 0;
  Rise at = rise_at(shift, slope, n, t);
  double low = at.rise < 0 ? at.rise : 0, high = at.rise > 0 ? at.rise : 0;
  for (int looks = 0; looks < 200; ++looks) {
    if (!(at.rise - at.rise == 0 && at.bend - at.bend == 0)) return false;
    bend = at.bend;
    if (__builtin_fabs(at.rise) <= NEAR_PEAK + 4 * Precision<T>::EPSILON * bend * __builtin_fabs(t)) return true;
    (at.rise > 0 ? low : high) = t;
    double ahead = t + at.rise / bend;
    if (!(ahead >= low && ahead <= high)) ahead = (low + high) / 2;
    t = static_cast<double>(static_cast<T>(ahead));
    at = rise_at(shift, slope, n, t);
  }
  return false;
}

// The matrix from values at m Chebyshev points to Chebyshev coefficients, computed on first use.
template <class T> class Chebyshev {
 public:
  Chebyshev() = default;
  Chebyshev(const Chebyshev &) = delete;
  Chebyshev &operator=(const Chebyshev &) = delete;
  ~Chebyshev() {
    for (T *made : made_) std::free(made);
  }
  // (m + 1, m): a row per point, the points themselves last. Null if memory is exhausted.
  const T *of(int m) {
    T *&made = made_[m / Vec<T>::N];
    if (made) return made;
    made = static_cast<T *>(std::malloc(static_cast<size_t>((m + 1) * m) * sizeof(T)));
    if (!made) return nullptr;
    double cosine[4 * EASY];  // of a whole turn
    for (int i = 0; i < 4 * m; ++i) cosine[i] = __builtin_cos(PI * i / (2 * m));
    for (int k = 0; k < m; ++k)
      for (int j = 0; j < m; ++j) made[k * m + j] = static_cast<T>(cosine[j * (2 * k + 1) % (4 * m)] * (j ? 2 : 1) / m);
    for (int k = 0; k < m; ++k) made[m * m + k] = static_cast<T>(cosine[2 * k + 1]);
    return made;
  }

 private:
  T *made_[EASY / Vec<T>::N + 1] = {};
};

// Of the ellipse around -reach ... reach through the first zero of Phi.
inline double log_rho(double reach) {
  const double axis = ZERO / (reach > 1e-3 ? reach : 1e-3);
  return __builtin_log(axis + __builtin_sqrt(1 + axis * axis));
}

// The factors of a row that are not 1 everywhere, and where its points go.
template <class T> struct Expected {
  using V = Vec<T>;
  T *shift, *slope;  // buffers for a row and one vector more
  int64_t n = 0;
  double peak = 0, start = 0, stop = 0;
  double inner = 1;                       // the part of the interval that has Chebyshev points
  int terms = 0;                          // of the polynomial through them
  int points = 0;                         // how many of these, in whole vectors; none if the product is found at
  int64_t places = 0;                     // all places of the evenly spaced sum

  static int within(int64_t rest) { return static_cast<int>(rest < V::N ? rest : V::N); }

  // False if the row needs the general method.
  bool plan(const T *shifts, const T *slopes, int64_t size) {
    double bend;
    if (!find_peak(shifts, slopes, size, peak, bend)) return false;
    V least = V::of(0), most = V::of(0);
    for (int64_t j = 0; j < size; j += V::N) {
      const V s = V::load(slopes + j, within(size - j), 0);
      least = V::min(least, s);
      most = V::max(most, s);
    }
    // The logarithm bends at least as -t^2 / 2, and against all slopes ever more.
    const double reach = 1.02 * __builtin_sqrt(2 * Precision<T>::DROP) + NEAR_PEAK;
    const double narrow = reach / __builtin_sqrt(bend);
    start = peak - (least.bottom() >= 0 ? narrow : reach);
    stop = peak + (most.top() <= 0 ? narrow : reach);
    return keep_live(shifts, slopes, size);
  }

  bool keep_live(const T *shifts, const T *slopes, int64_t size) {
    const V low = V::of(static_cast<T>(start)), high = V::of(static_cast<T>(stop)), zero = V::of(0);
    const V full = V::of(static_cast<T>(Precision<T>::FULL)), at = V::of(static_cast<T>(peak));
    V lowest = zero, steepest = zero, squares = zero, nats = zero, needed = zero;
    n = 0;
    for (int64_t j = 0; j < size; j += V::N) {
      const int m = within(size - j);
      const V a = V::load(shifts + j, m, static_cast<T>(2 * Precision<T>::FULL)), s = V::load(slopes + j, m, 0);
      const V x = V::fma(s, V::pick(V::gt(zero, s), high, low), a);
      const typename V::Mask live = V::gt(full, x);
      const V own = V::keep(live, s);
      const V below = V::min(x, zero), here = V::min(V::fma(s, at, a), zero);
      lowest = V::min(lowest, below);
      nats = V::fma(below, below, nats);
      needed = V::fma(here, here, needed);
      steepest = V::max(steepest, V::max(own, zero - own));
      squares = V::fma(own, own, squares);
      V::pack(shift + n, live, a);
      V::pack(slope + n, live, s);
      n += V::count(live);
    }
    if (static_cast<double>(lowest.bottom()) < Precision<T>::LEAST) return false;
    const double noise = Precision<T>::EPSILON * static_cast<double>(static_cast<T>(n) + nats.sum());
    const double tolerance = Precision<T>::NOISE * (1 + static_cast<double>(needed.sum()));
    return place(static_cast<double>(steepest.top()), static_cast<double>(squares.sum()), noise, tolerance);
  }

  // How many points: for the polynomial by the nearest zero. For the sum, |Phi(x + iy)| is at most e^(y^2 / 2) Phi(x), so
  // that each factor adds at most slope^2 to the precision v of a Gaussian, whose sum has the error 2 exp(-2 pi^2 / v h^2).
  // Coefficients share the rounding of all points, which is that of the lowest values, where nothing is left: if that
  // exceeds `tolerance`, no polynomial is used.
  bool place(double steepest, double squares, double noise, double tolerance) {
    const double half = (stop - start) / 2, error = Precision<T>::ERROR, rho = log_rho(INNER * half * steepest);
    const double many = 2 * half * __builtin_sqrt(error * (1 + squares) / 2) / PI;
    if (!(many <= 1e5)) return false;
    places = (static_cast<int64_t>(many) / V::N + 1) * V::N;
    double count = .75 * error / rho + 2;
    // Outside of the inner part rounding grows as fast as the error does.
    const bool gentle = rho > GENTLE && noise * __builtin_exp(GENTLE * count) < 1;
    if (!gentle) count = error / log_rho(half * steepest) + 2;
    inner = gentle ? INNER : 1;
    terms = count <= EASY ? static_cast<int>(__builtin_ceil(count)) : 0;
    points = (terms + V::N - 1) / V::N * V::N;
    terms = terms + 2 < points ? terms + 2 : points;  // padding points are computed anyway
    if (points >= places || noise > tolerance) points = 0;
    // With steeper slopes the rounding of x would dominate in single precision.
    return points > 0 || (static_cast<double>(places) <= MOST && half * steepest <= (Precision<T>::SINGLE ? 16 : 1e9));
  }

  // The logarithm of the product at N points.
  V log_product(V t) const {
    V product = V::of(1), exponent = V::of(0), nats = V::of(0);
    for (int64_t j = 0; j < n;) {
      const int64_t end = n - j < AT_ONCE ? n : j + AT_ONCE;
      V partial = V::of(0);
      for (; j < end; ++j) {
        const Normal<T> phi(V::fma(V::of(slope[j]), t, V::of(shift[j])));
        product = product * phi.part;
        partial = partial + phi.nats;
      }
      V whole;
      V::split(product, whole, product);
      exponent = exponent + whole;
      nats = nats + partial;
    }
    return V::fma(exponent, V::of(static_cast<T>(LOG_2)), logarithm_of_mantissa<T>(product)) - nats;
  }

  // The coefficients of the logarithm of the product in Chebyshev polynomials.
  void interpolate(const T *matrix, T *coefficients) const {
    const V middle = V::of(static_cast<T>((stop + start) / 2));
    const V part = V::of(static_cast<T>(inner * (stop - start) / 2));
    T logs[EASY];
    for (int k = 0; k < points; k += V::N)
      log_product(V::fma(part, V::load(matrix + points * points + k), middle)).store(logs + k);
    for (int j = 0; j < points; j += V::N) {
      V sum = V::of(0);
      for (int k = 0; k < points; ++k) sum = V::fma(V::of(logs[k]), V::load(matrix + k * points + j), sum);
      sum.store(coefficients + j);
    }
  }

  // Clenshaw's recurrence, given twice the argument.
  V polynomial_at(const T *coefficients, V twice) const {
    V one = V::of(0), two = V::of(0);
    for (int j = terms - 1; j > 0; --j) {
      const V next = V::fma(twice, one, V::of(coefficients[j]) - two);
      two = one;
      one = next;
    }
    return V::fma(twice * V::of(static_cast<T>(.5)), one, V::of(coefficients[0]) - two);
  }

  double sum(const T *matrix) const {
    static constexpr T LANES[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    T coefficients[EASY];
    if (points) interpolate(matrix, coefficients);
    const double half = (stop - start) / 2, step = 2 * half / static_cast<double>(places - 1);
    const V lanes = V::load(LANES), h = V::of(static_cast<T>(step)), reach = V::of(static_cast<T>(half));
    const V middle = V::of(static_cast<T>((stop + start) / 2)), wide = V::of(static_cast<T>(2 / (inner * half)));
    double top = -INF<double>, total = 0;
    for (int64_t first = 0; first < places; first += V::N) {
      const V off = V::fma(lanes + V::of(static_cast<T>(first)), h, V::of(0) - reach), t = middle + off;
      const V product = points ? polynomial_at(coefficients, off * wide) : log_product(t);
      const V logs = V::fma(t * V::of(static_cast<T>(-.5)), t, product);
      const double most = static_cast<double>(logs.top());
      if (most > top) {
        total *= __builtin_exp(top - most);
        top = most;
      }
      total += static_cast<double>(exponential<T>(logs - V::of(static_cast<T>(top))).sum());
    }
    return top + __builtin_log(total * step * 0.39894228040143267794);
  }
};

// The kernel, row by row. Returns NaN for rows that need the general method.
template <class T> class Products {
 public:
  explicit Products(int64_t n) : capacity_(n + Vec<T>::N) {
    live_ = static_cast<T *>(std::malloc(2 * static_cast<size_t>(capacity_) * sizeof(T)));
  }
  Products(const Products &) = delete;
  Products &operator=(const Products &) = delete;
  ~Products() { std::free(live_); }
  double of(const T *shift, const T *slope, int64_t n) {
    Expected<T> row{live_, live_ + capacity_};
    if (!live_ || !row.plan(shift, slope, n)) return __builtin_nan("");
    const T *matrix = row.points ? chebyshev_.of(row.points) : nullptr;
    return matrix || !row.points ? row.sum(matrix) : __builtin_nan("");
  }

 private:
  int64_t capacity_;
  T *live_;
  Chebyshev<T> chebyshev_;
};

// Returns the number of rows that need the general method, which are set to NaN.
template <class T> int64_t expected_products(const T *shift, const T *slope, int64_t rows, int64_t n, T *out) {
  Products<T> products(n);
  int64_t left = 0;
  for (int64_t r = 0; r < rows; ++r) {
    out[r] = static_cast<T>(products.of(shift + r * n, slope + r * n, n));
    left += !(out[r] == out[r]);
  }
  return left;
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
