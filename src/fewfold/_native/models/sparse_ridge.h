// Ridge regressions of one item on few others, which are chosen by how much each would explain.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "gram.h"
#include "table.h"

namespace fewfold {

// Counts between the hubs, the most popular items, which come first: their rows are long, and they are predictors of many
// items. Reading their rows for each of those would take most of the time.
class Hubs {
 public:
  Hubs() = default;
  template <class Part> Hubs(const Gram<Part> &gram, int64_t hubs) : count_(hubs), between_(static_cast<size_t>(hubs * hubs)) {
    for (int64_t h = 0; h < hubs; ++h)
      gram.each_below(hubs, h, [&](int64_t id, float common) { between_[static_cast<size_t>(h * hubs + id)] += common; });
  }

  int64_t count() const { return count_; }
  bool holds(int64_t item) const { return item < count_; }
  // Users that two hubs share.
  float common(int64_t a, int64_t b) const { return between_[static_cast<size_t>(a * count_ + b)]; }

 private:
  int64_t count_ = 0;
  std::vector<float> between_;
};

template <class Part> struct Ridge {
  Gram<Part> gram;
  int64_t items, width, rounds;
  const float *number;  // of users of each item: the diagonal of the Gram matrix
  float l2;
  // Users of each item, who are counted instead of reading rows if there is one round.
  int64_t users;
  const int64_t *item_start;
  const int32_t *user;
  Hubs hubs;
};

// Finds the few predictors of one item after the other, and their weights.
//
// The first predictors are those that would explain the item best alone, g^2 / (n + l2) with g common users of n. Then
// the regression is solved, and what it leaves of every g is judged in the same way, until there are `width` of them or
// none is left; not if there is to be one round.
template <class Part> class RidgeSolver {
 public:
  explicit RidgeSolver(const Ridge<Part> &ridge)
      : ridge_(ridge), stride_((ridge.width + 15) / 16 * 16), left_(size(ridge.items), 0), place_(size(ridge.items), NEW),
        factor_(size(ridge.width * stride_)), inverse_(size(stride_)), y_(size(stride_)), x_(size(stride_)),
        scale_(size(stride_)), newest_(ridge.rounds == 1 ? size(ridge.users) : 0, NEW) {}

  // How many predictors `item` has; their ids in ascending order, and weights.
  int64_t solve(int64_t item, int32_t *ids, float *weights) {
    chosen_.clear();
    for (int64_t round = 1;; ++round) {
      residual(item);
      const int64_t before = count();
      choose(item, std::min(ridge_.width, (ridge_.width + ridge_.rounds - 1) / ridge_.rounds * round));
      if (count() > before) regress(item, before);
      forget();
      if (count() == before || count() >= ridge_.width || ridge_.rounds == 1) break;
    }
    order_.resize(chosen_.size());
    for (size_t c = 0; c < order_.size(); ++c) order_[c] = static_cast<int32_t>(c);
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return chosen_[a] < chosen_[b]; });
    for (size_t c = 0; c < order_.size(); ++c) {
      ids[c] = chosen_[size(order_[c])];
      weights[c] = x_[size(order_[c])] * scale_[size(order_[c])];
    }
    return count();
  }

 private:
  static constexpr int32_t NEW = -1, MET = -2;  // otherwise the place among the chosen
  static constexpr int64_t FILTER = 8192;
  static constexpr float LEAST_PIVOT = 1e-6f;   // of a matrix with a diagonal of ones
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  int64_t count() const { return static_cast<int64_t>(chosen_.size()); }

  void meet(int64_t id) {
    if (place_[id] != NEW) return;
    place_[id] = MET;
    met_.push_back(static_cast<int32_t>(id));
  }

  // What the regression leaves to explain, for every item that shares users with `item` or with a predictor.
  void residual(int64_t item) {
    ridge_.gram.each(item, [&](int64_t id, float common) {
      meet(id);
      left_[id] += common;
    });
    for (size_t c = 0; c < chosen_.size(); ++c) {
      const float weight = x_[c] * scale_[c];
      ridge_.gram.each(chosen_[c], [&](int64_t id, float common) {
        meet(id);
        left_[id] -= weight * common;
      });
    }
    for (size_t c = 0; c < chosen_.size(); ++c) {
      meet(chosen_[c]);
      place_[chosen_[c]] = static_cast<int32_t>(c);
    }
  }

  void choose(int64_t item, int64_t most) {
    gains_.clear();
    for (const int32_t id : met_) {
      const double rest = left_[id];
      if (place_[id] == MET && id != item && rest != 0)
        gains_.emplace_back(rest * rest / (static_cast<double>(ridge_.number[id]) + ridge_.l2), id);
    }
    const int64_t vacant = most - count();
    if (static_cast<int64_t>(gains_.size()) > vacant) {
      std::nth_element(gains_.begin(), gains_.begin() + vacant, gains_.end(), better);
      gains_.resize(size(vacant));
    }
    std::sort(gains_.begin(), gains_.end(), better);
    for (const auto &[gain, id] : gains_) {
      place_[id] = static_cast<int32_t>(chosen_.size());
      chosen_.push_back(id);
    }
  }
  static bool better(const std::pair<double, int32_t> &a, const std::pair<double, int32_t> &b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  }

  // Weights of the chosen, of which those from `first` on are new. The matrix is scaled to a diagonal of ones, and the
  // factor of those that were chosen before stays as it is.
  void regress(int64_t item, int64_t first) {
    const int64_t n = count();
    for (int64_t c = first; c < n; ++c) {
      scale_[size(c)] = 1 / std::sqrt(ridge_.number[chosen_[size(c)]] + ridge_.l2);
      float *row = factor_.data() + c * stride_;
      std::fill_n(row, c, 0.0f);
      row[c] = 1;
    }
    correlations(first);
    std::fill(y_.begin() + first, y_.begin() + n, 0.0f);
    ridge_.gram.each(item, [&](int64_t id, float common) {
      const int32_t at = place_[id];
      if (at >= first) y_[size(at)] += common * scale_[size(at)];
    });
    tables->cholesky_rows(factor_.data(), stride_, first, n, LEAST_PIVOT, inverse_.data());
    tables->solve_rows(factor_.data(), stride_, first, n, inverse_.data(), y_.data());
    std::copy_n(y_.begin(), n, x_.begin());
    tables->solve_columns(factor_.data(), stride_, n, inverse_.data(), x_.data());
  }

  float scaled(int64_t c, int64_t at, float common) const { return common * scale_[size(c)] * scale_[size(at)]; }
  float &entry(int64_t c, int64_t at) { return factor_[size(std::max(c, at) * stride_ + std::min(c, at))]; }

  // The rows of the matrix from `first` on, left of the diagonal. The entry of two hubs is looked up, that of a hub and
  // another is read in the row of the other.
  void correlations(int64_t first) {
    const int64_t n = count();
    bool new_hubs = false;
    for (int64_t c = first; c < n; ++c) {
      if (!ridge_.hubs.holds(chosen_[size(c)])) continue;
      new_hubs = true;
      for (int64_t at = 0; at < c; ++at)
        if (ridge_.hubs.holds(chosen_[size(at)])) entry(c, at) = scaled(c, at, ridge_.hubs.common(chosen_[size(c)], chosen_[size(at)]));
    }
    if (ridge_.rounds == 1) return count_users();
    // Most of a row is not among the chosen. This filter stays in the nearest cache; the places of all items do not.
    uint64_t filter[FILTER / 64] = {};
    for (const int32_t id : chosen_) filter[(id & (FILTER - 1)) / 64] |= uint64_t{1} << (id & 63);
    for (int64_t c = new_hubs ? 0 : first; c < n; ++c) {
      if (ridge_.hubs.holds(chosen_[size(c)])) continue;
      ridge_.gram.each(chosen_[size(c)], [&](int64_t other, float common) {
        if (!(filter[(other & (FILTER - 1)) / 64] >> (other & 63) & 1)) return;
        const int64_t at = place_[other];
        const bool wanted = at < c ? at >= 0 && c >= first : at >= first && ridge_.hubs.holds(other);
        if (wanted) entry(c, at) += scaled(c, at, common);
      });
    }
  }

  // The same for all rows at once. Hubs come first in a row; the users that two others share are counted, which takes
  // their number of users instead of a whole row.
  void count_users() {
    for (int64_t c = 0; c < count(); ++c) {
      const int64_t id = chosen_[size(c)];
      if (ridge_.hubs.holds(id)) continue;
      ridge_.gram.each_below(ridge_.hubs.count(), id, [&](int64_t other, float common) {
        if (place_[other] >= 0) entry(c, place_[other]) += scaled(c, place_[other], common);
      });
      for (int64_t p = ridge_.item_start[id]; p < ridge_.item_start[id + 1]; ++p) {
        int32_t &newest = newest_[size(ridge_.user[p])];
        for (int32_t seen = newest; seen != NEW; seen = seen_[size(seen)].earlier) {
          const int64_t at = seen_[size(seen)].predictor;
          entry(c, at) += scaled(c, at, 1);
        }
        seen_.push_back({static_cast<int32_t>(c), newest});
        newest = static_cast<int32_t>(seen_.size()) - 1;
      }
    }
    for (const int32_t id : chosen_)
      if (!ridge_.hubs.holds(id))
        for (int64_t p = ridge_.item_start[id]; p < ridge_.item_start[id + 1]; ++p) newest_[size(ridge_.user[p])] = NEW;
    seen_.clear();
  }

  void forget() {
    for (const int32_t id : met_) left_[id] = 0, place_[id] = NEW;
    met_.clear();
  }

  const Ridge<Part> &ridge_;
  int64_t stride_;
  std::vector<float> left_;
  std::vector<int32_t> place_;
  std::vector<float> factor_, inverse_, y_, x_, scale_;
  std::vector<int32_t> chosen_, met_, order_;
  std::vector<std::pair<double, int32_t>> gains_;
  // A predictor that a user has, and the one before it of the same user.
  struct Seen {
    int32_t predictor, earlier;
  };
  std::vector<int32_t> newest_;  // of each user, in seen_
  std::vector<Seen> seen_;
};

}  // namespace fewfold
