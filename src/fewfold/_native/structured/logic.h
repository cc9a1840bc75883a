// Logic over bits: the best by a rule, the projection on its polytope in a weighted norm, and its face.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace fewfold {

enum class Rule : int32_t { one = 0, at_most_one = 1, any = 2, any_out = 3 };

// Bits that are `turned` are negated: the score of being off is minus that of being on.
class LogicOracle {
 public:
  LogicOracle(int64_t size, Rule rule, const uint8_t *turned) : size_(size), rule_(rule), turned_(turned) {}

  double best(const double *scores, int32_t *code) {
    bool absent = true;
    for (int64_t i = 0; i < size_; ++i) {
      code[i] = -1;
      if (std::isnan(scores[i])) return NAN;
      absent &= scores[i] == -INFINITY;
    }
    if (absent) return 0;
    const auto turned = [&](int64_t i) { return turned_[i] ? -scores[i] : scores[i]; };
    const int64_t inputs = rule_ == Rule::any_out ? size_ - 1 : size_;
    int64_t first = 0;
    for (int64_t i = 1; i < inputs; ++i)
      if (turned(i) > turned(first)) first = i;
    const bool many = (rule_ == Rule::any || rule_ == Rule::any_out) && turned(first) > 0;
    const auto on = [&](int64_t i) { return many ? turned(i) > 0 : i == first; };
    bool some = rule_ != Rule::at_most_one || turned(first) > 0;
    if (rule_ == Rule::any_out) {
      double gain = turned(inputs);
      for (int64_t i = 0; i < inputs; ++i)
        if (on(i)) gain += turned(i);
      some = gain > 0;
    }
    double value = 0;
    for (int64_t i = 0; i < size_; ++i) {
      const bool chosen = some && (i < inputs ? on(i) : true);
      if (chosen != static_cast<bool>(turned_[i])) code[i] = static_cast<int32_t>(i), value += scores[i];
    }
    return value;
  }

  double extra(const int32_t *) const { return 0; }

 private:
  int64_t size_;
  Rule rule_;
  const uint8_t *turned_;
};

// Two bits and a score for both.
class PairOracle {
 public:
  explicit PairOracle(double score) : score_(score) {}

  double best(const double *scores, int32_t *code) {
    const double a = scores[0], b = scores[1], both = a + b + score_;
    if (std::isnan(both)) return NAN;
    const double value = std::max({0.0, a, b, both});
    const bool two = both == value;
    code[0] = two || (a == value && value > 0) ? 0 : -1;
    code[1] = two || (b == value && value > 0 && code[0] < 0) ? 1 : -1;
    return value;
  }

  double extra(const int32_t *code) const { return code[0] >= 0 && code[1] >= 0 ? score_ : 0; }

 private:
  double score_;
};

// The Jacobian of a projection: bits that are held are constant; of the free ones some stay equal to each other (tied),
// or all are orthogonal to a direction (across).
enum class Bound : uint8_t { none = 0, across = 1, tied = 2 };
enum : uint8_t { held = 0, loose = 1, joined = 2 };

// argmin sum w (z - y)^2 / 2 where <costs, z> <= bound, or equal to it, and z in [0, 1]^n. y may be infinite.
class LinearNearest {
 public:
  Bound operator()(const double *y, const double *w, const double *costs, int64_t n, double bound, bool equal, double *z,
                   uint8_t *free) {
    double total = 0;
    for (int64_t i = 0; i < n; ++i) z[i] = clip(y[i]), total += costs[i] * z[i];
    const bool tight = equal || total > bound;
    if (tight) {
      const double x = root(y, w, costs, n, bound);
      for (int64_t i = 0; i < n; ++i)
        if (std::isfinite(y[i])) z[i] = clip(y[i] - x * costs[i] / w[i]);
    }
    for (int64_t i = 0; i < n; ++i) free[i] = z[i] > 0 && z[i] < 1 ? loose : held;
    return tight ? Bound::across : Bound::none;
  }

  static double clip(double v) { return v < 0 ? 0 : v > 1 ? 1 : v; }

 private:
  // The x at which <costs, clip(y - x costs / w)>, which falls, meets the bound. Newton's steps within a bracket; where
  // they leave it, the median of the breakpoints inside.
  double root(const double *y, const double *w, const double *costs, int64_t n, double bound) {
    double low = -INFINITY, high = INFINITY, x = 0;
    bool listed = false;
    for (int turn = 0;; ++turn) {
      double at = -bound, slope = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double v = std::isfinite(y[i]) ? y[i] - x * costs[i] / w[i] : y[i];
        at += costs[i] * clip(v);
        if (v > 0 && v < 1) slope += costs[i] * costs[i] / w[i];
      }
      if (at > 0) low = x;
      if (at < 0) high = x;
      if (at == 0) return x;
      const double next = slope > 0 ? x + at / slope : INFINITY;
      if (std::abs(next - x) <= 1e-15 * std::abs(x)) return next;
      if (turn < 8 && next > low && next < high) {  // and so finite
        x = next;
        continue;
      }
      if (!listed) {
        listed = true;
        turns_.clear();
        for (int64_t i = 0; i < n; ++i)
          if (costs[i] != 0 && std::isfinite(y[i]))
            turns_.push_back(y[i] * w[i] / costs[i]), turns_.push_back((y[i] - 1) * w[i] / costs[i]);
      }
      turns_.erase(std::remove_if(turns_.begin(), turns_.end(), [&](double t) { return !(t > low && t < high); }),
                   turns_.end());
      if (turns_.empty()) return between(y, w, costs, n, bound, low, high);
      const auto middle = turns_.begin() + static_cast<int64_t>(turns_.size() / 2);
      std::nth_element(turns_.begin(), middle, turns_.end());
      x = *middle;
    }
  }

  // There is no breakpoint between low and high.
  static double between(const double *y, const double *w, const double *costs, int64_t n, double bound, double low,
                        double high) {
    if (!std::isfinite(low) || !std::isfinite(high)) return std::isfinite(low) ? low : std::isfinite(high) ? high : 0;
    const double x = (low + high) / 2;
    double at = -bound, slope = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double v = std::isfinite(y[i]) ? y[i] - x * costs[i] / w[i] : y[i];
      at += costs[i] * clip(v);
      if (v > 0 && v < 1) slope += costs[i] * costs[i] / w[i];
    }
    return slope > 0 ? std::min(high, std::max(low, x + at / slope)) : x;
  }

  std::vector<double> turns_;
};

// The same for bits of which the last is the "or" of the others. `costs` is 1, and -1 for the last.
class OrOutNearest {
 public:
  Bound operator()(const double *y, const double *w, const double *costs, int64_t n, double *z, uint8_t *free) {
    order_.resize(static_cast<size_t>(n - 1));
    for (int64_t i = 0; i + 1 < n; ++i) order_[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return y[a] > y[b]; });
    double weight = w[n - 1], pull = weight * y[n - 1], mean = y[n - 1], total = 0;
    size_t count = 0;  // inputs larger than the output share its value
    for (; count < order_.size() && y[order_[count]] > mean; ++count) {
      const int32_t i = order_[count];
      weight += w[i], pull += w[i] * y[i];
      mean = pull / weight;
    }
    for (int64_t i = 0; i < n; ++i) z[i] = LinearNearest::clip(y[i]), free[i] = z[i] > 0 && z[i] < 1 ? loose : held;
    if (count) {
      const double shared = LinearNearest::clip(mean);
      const uint8_t how = shared > 0 && shared < 1 ? joined : held;
      z[n - 1] = shared, free[n - 1] = how;
      for (size_t k = 0; k < count; ++k) z[order_[k]] = shared, free[order_[k]] = how;
    }
    for (int64_t i = 0; i < n; ++i) total += costs[i] * z[i];
    if (total < 0) return linear_(y, w, costs, n, 0, true, z, free);
    return count ? Bound::tied : Bound::none;
  }

 private:
  LinearNearest linear_;
  std::vector<int32_t> order_;
};

// Two bits with a score for both. A positive one pulls the lower of them up, at most to the other; with a negative one
// that is true of the first bit and the second one's opposite. Returns the sign with which they are bound, or 0.
inline int nearest_pair(double y1, double y2, double w1, double w2, double score, double &z1, double &z2, uint8_t *free) {
  const bool flipped = score < 0;
  const double size = std::abs(score), first = flipped ? y1 - size / w1 : y1, second = flipped ? 1 - y2 : y2;
  const double up_first = flipped ? y1 : y1 + size / w1, up_second = second + size / w2;  // a size may be infinite
  double a, b;
  int bound = 0;
  if (first > up_second) {
    a = first, b = up_second;
  } else if (second > up_first) {
    a = up_first, b = second;
  } else {
    a = b = (w1 * up_first + w2 * second) / (w1 + w2);
    bound = flipped ? 1 : -1;
  }
  a = LinearNearest::clip(a), b = LinearNearest::clip(b);
  free[0] = a > 0 && a < 1, free[1] = b > 0 && b < 1;
  z1 = a, z2 = flipped ? 1 - b : b;
  return bound;
}

}  // namespace fewfold
