// LP-SparseMAP: factors over shared bits, solved until they agree. The method is that of consensus.py.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "plan.h"

namespace fewfold {

struct Search {
  int64_t turns;
  double tolerance, step;
};

// Solves one instance at a time; owns the workspace.
class Consensus {
 public:
  explicit Consensus(const Plan &plan) : p_(plan) {
    const size_t links = p_.bit.size(), bits = at(p_.bits);
    for (auto *v : {&near_, &local_, &apart_, &found_, &along_, &pushed_, &left_, &trial_}) v->resize(links);
    for (auto *v : {&sums_, &b_found_, &b_left_, &b_along_, &b_pushed_, &alone_}) v->resize(bits);
  }

  void solve(const double *scores, const double *pairs, const Search &search, State &s) {
    scores_ = scores, pairs_ = pairs;
    double largest = 0;
    s.outcome = Outcome::stopped, s.failed = -1;
    for (int64_t i = 0; i < p_.bits; ++i) {
      if (std::isnan(scores[i]) || scores[i] == INFINITY) s.outcome = Outcome::no_numbers;
      if (std::isfinite(scores[i])) largest = std::max(largest, std::abs(scores[i]));
      alone_[at(i)] = LinearNearest::clip(scores[i]);
    }
    if (s.outcome == Outcome::no_numbers) return;
    const double exact = EXACT * (1 + largest);
    look(s.l.data(), s);
    s.turns = 1, s.moved = s.apart;
    const auto goes_on = [&] { return s.turns < search.turns && s.apart > exact && s.outcome == Outcome::stopped; };
    while (goes_on()) {
      alternate(s, search.step, std::min(ALTERNATE, search.turns - s.turns));
      for (int64_t k = 0; k < NEWTON && goes_on(); ++k) newton(s);
      if (s.apart <= search.tolerance) break;
    }
    if (s.outcome != Outcome::stopped) return;
    for (size_t k = 0; k < p_.factors.size() && s.failed < 0; ++k) {
      const FactorPlan &f = p_.factors[k];
      if (f.kind == Kind::generic && !s.generics[at(f.extra)].converged()) s.failed = static_cast<int32_t>(k);
    }
    if (s.apart <= search.tolerance && s.failed < 0) s.outcome = Outcome::converged;
  }

  // to = Jacobian of the marginals times `change`: its projection on the intersection of all factors' faces.
  void project(State &s, const double *change, double *to) {
    if (s.outcome == Outcome::no_numbers) {
      std::fill_n(to, p_.bits, NAN);
      return;
    }
    const size_t bits = at(p_.bits);
    double all = 0, square = 0;
    for (size_t i = 0; i < bits; ++i) all += change[i] * change[i], b_found_[i] = 0;
    outside(s, change, b_left_.data());
    for (size_t i = 0; i < bits; ++i) b_along_[i] = b_left_[i], square += b_left_[i] * b_left_[i];
    for (int64_t k = 0; k < 2 * p_.bits + 20 && square > 1e-28 * all; ++k) {
      outside(s, b_along_.data(), b_pushed_.data());
      double curved = 0, now = 0;
      for (size_t i = 0; i < bits; ++i) curved += b_along_[i] * b_pushed_[i];
      if (!(curved > 0)) break;
      const double by = square / curved;
      for (size_t i = 0; i < bits; ++i) {
        b_found_[i] += by * b_along_[i], b_left_[i] -= by * b_pushed_[i];
        now += b_left_[i] * b_left_[i];
      }
      for (size_t i = 0; i < bits; ++i) b_along_[i] = b_left_[i] + now / square * b_along_[i];
      square = now;
    }
    for (size_t i = 0; i < bits; ++i) to[i] = change[i] - b_found_[i];
  }

  // derivative of the weights of a generic factor's active structures along a change of bits
  void derive(State &s, const FactorPlan &f, const double *change, double *by) {
    GenericState &g = s.generics[at(f.extra)];
    local_change(f, change);
    for (int64_t i = 0; i < g.active.size(); ++i) {
      const int32_t *c = g.active.code(i);
      by[i] = 0;
      for (int64_t j = 0; j < g.active.slots(); ++j)
        if (c[j] >= 0) by[i] += g.by[at(c[j])] * local_[at(f.first + c[j])];
    }
    g.active.derive(by);
  }

  // to (by bits) += the gradient of the bits' scores, from that of the scores of a generic factor's structures
  void weigh(State &s, const FactorPlan &f, const double *values, double *to) {
    GenericState &g = s.generics[at(f.extra)];
    by_.assign(values, values + g.active.size());
    g.active.derive(by_.data());
    for (int64_t i = 0; i < g.active.size(); ++i) {
      const int32_t *c = g.active.code(i);
      for (int64_t j = 0; j < g.active.slots(); ++j) {
        if (c[j] < 0) continue;
        const size_t link = at(f.first + c[j]);
        to[p_.bit[link]] += p_.sign[link] * p_.weight[link] * by_[at(i)];
      }
    }
  }

 private:
  static constexpr int64_t ALTERNATE = 15, NEWTON = 30;
  static constexpr double RELAX = 1.6, EXACT = 1e-11;
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  double score_of(size_t link) const { return scores_[p_.bit[link]]; }

  // z = the projection of `near` by every factor; additional scores count 1 / ease.
  void answer(const double *near, double ease, State &s) {
    for (size_t i = 0; i < p_.bit.size(); ++i) local_[i] = p_.offset[i] + p_.sign[i] * near[i];
    const double *w = p_.weight.data(), *y = local_.data();
    double *z = s.z.data();
    for (size_t k = 0; k < p_.factors.size(); ++k) {
      const FactorPlan &f = p_.factors[k];
      const int64_t o = f.first;
      uint8_t *free = s.free.data() + o;
      switch (f.kind) {
        case Kind::pair: {
          const int sign = nearest_pair(y[o], y[o + 1], w[o], w[o + 1], pairs_[f.extra] / ease, z[o], z[o + 1], free);
          s.across[at(o)] = 1, s.across[at(o + 1)] = sign;
          s.bound[k] = sign ? Bound::across : Bound::none;
          break;
        }
        case Kind::any_out:
          s.bound[k] = or_out_(y + o, w + o, p_.costs.data() + o, f.count, z + o, free);
          break;
        case Kind::generic: {
          GenericState &g = s.generics[at(f.extra)];
          g.answer(y + o, w + o, ease, f.count, p_.generics[at(f.extra)].slots);
          if (s.outcome == Outcome::stopped && (g.outcome == Outcome::infeasible || g.outcome == Outcome::no_numbers))
            s.outcome = g.outcome, s.failed = static_cast<int32_t>(k);
          std::copy(g.marginals.begin(), g.marginals.end(), z + o);
          break;
        }
        default:
          s.bound[k] = linear_(y + o, w + o, p_.costs.data() + o, f.count, f.bound, f.kind == Kind::linear_equal, z + o,
                               free);
      }
      bool absent = f.kind != Kind::generic;
      for (int64_t i = 0; absent && i < f.count; ++i) absent = y[o + i] == -INFINITY;
      if (absent) std::fill_n(z + o, f.count, 0.0);
    }
    for (size_t i = 0; i < p_.bit.size(); ++i) z[i] = p_.offset[i] + p_.sign[i] * z[i];
  }

  // to = weighted mean of the values of a bit's links; `without` for bits without links
  void mean(const double *values, double *to, const double *without) {
    std::fill(sums_.begin(), sums_.end(), 0.0);
    for (size_t i = 0; i < p_.bit.size(); ++i) sums_[at(p_.bit[i])] += p_.weight[i] * values[i];
    for (size_t b = 0; b < sums_.size(); ++b) to[b] = p_.degree[b] > 0 ? sums_[b] : without ? without[b] : 0;
  }

  double inner(const double *a, const double *b) const {
    double sum = 0;
    for (size_t i = 0; i < p_.bit.size(); ++i) sum += p_.weight[i] * a[i] * b[i];
    return sum;
  }

  // The answers to these multipliers, where they meet and how far they are apart.
  void look(const double *l, State &s) {
    for (size_t i = 0; i < p_.bit.size(); ++i) near_[i] = score_of(i) + l[i];
    answer(near_.data(), 1, s);
    mean(s.z.data(), s.middle.data(), alone_.data());
    for (size_t i = 0; i < p_.bit.size(); ++i) apart_[i] = s.z[i] - s.middle[at(p_.bit[i])];
    s.apart = std::sqrt(inner(apart_.data(), apart_.data()) / std::max<double>(1, static_cast<double>(p_.links())));
  }

  void keep_moved(State &s) {
    double sum = 0;
    for (size_t b = 0; b < sums_.size(); ++b) sum += (s.middle[b] - b_found_[b]) * (s.middle[b] - b_found_[b]);
    s.moved = std::sqrt(sum / static_cast<double>(p_.links()));
  }

  void alternate(State &s, double step, int64_t turns) {
    std::copy(s.middle.begin(), s.middle.end(), b_found_.begin());
    for (int64_t k = 0; k < turns; ++k) {
      for (size_t i = 0; i < p_.bit.size(); ++i)
        near_[i] = (score_of(i) + s.l[i] + step * s.middle[at(p_.bit[i])]) / (1 + step);
      answer(near_.data(), 1 + step, s);
      for (size_t i = 0; i < p_.bit.size(); ++i)
        trial_[i] = RELAX * s.z[i] + (1 - RELAX) * s.middle[at(p_.bit[i])];
      mean(trial_.data(), s.middle.data(), alone_.data());
      for (size_t i = 0; i < p_.bit.size(); ++i) s.l[i] -= step * (trial_[i] - s.middle[at(p_.bit[i])]);
    }
    look(s.l.data(), s);
    keep_moved(s);
    s.turns += turns;
  }

  void local_change(const FactorPlan &f, const double *bits) {
    for (int64_t i = f.first; i < f.first + f.count; ++i) local_[at(i)] = p_.sign[at(i)] * bits[p_.bit[at(i)]];
  }

  // to = Jacobian of the projections times `change`, both by links
  void push(State &s, const double *change, double *to) {
    for (size_t i = 0; i < p_.bit.size(); ++i) local_[i] = p_.sign[i] * change[i];
    const double *v = local_.data(), *w = p_.weight.data();
    for (size_t k = 0; k < p_.factors.size(); ++k) {
      const FactorPlan &f = p_.factors[k];
      const int64_t o = f.first, end = o + f.count;
      const uint8_t *free = s.free.data();
      if (f.kind == Kind::generic) {
        push_generic(s.generics[at(f.extra)], v + o, to + o, f.count);
        continue;
      }
      double sum = 0, size = 0, by = 0;
      if (s.bound[k] == Bound::across) {
        const double *c = f.kind == Kind::pair ? s.across.data() : p_.costs.data();
        for (int64_t i = o; i < end; ++i)
          if (free[i]) sum += c[i] * v[i], size += c[i] * c[i] / w[i];
        by = size > 0 ? sum / size : 0;
        for (int64_t i = o; i < end; ++i) to[i] = free[i] ? v[i] - c[i] / w[i] * by : 0;
        continue;
      }
      for (int64_t i = o; i < end; ++i)
        if (free[i] == joined) sum += w[i] * v[i], size += w[i];
      by = size > 0 ? sum / size : 0;
      for (int64_t i = o; i < end; ++i) to[i] = free[i] == joined ? by : free[i] == loose ? v[i] : 0;
    }
    for (size_t i = 0; i < p_.bit.size(); ++i) to[i] *= p_.sign[i];
  }

  void push_generic(GenericState &g, const double *v, double *to, int64_t parts) {
    by_.resize(at(g.active.size()));
    for (int64_t i = 0; i < g.active.size(); ++i) {
      const int32_t *c = g.active.code(i);
      by_[at(i)] = 0;
      for (int64_t j = 0; j < g.active.slots(); ++j)
        if (c[j] >= 0) by_[at(i)] += g.by[at(c[j])] * v[c[j]];
    }
    g.active.derive(by_.data());
    std::fill_n(to, parts, 0.0);
    for (int64_t i = 0; i < g.active.size(); ++i) g.active.add_to(i, by_[at(i)], to);
  }

  // One step of Newton's method on the dual: by conjugate gradients, then as far as the dual is less than half as steep.
  void newton(State &s) {
    const size_t links = p_.bit.size();
    const double ease = std::min(1.0, 10 * s.apart);
    for (size_t i = 0; i < links; ++i) found_[i] = 0, along_[i] = left_[i] = -apart_[i];
    double square = inner(left_.data(), left_.data());
    const double enough = square * std::min(0.01, s.apart);
    for (int k = 0; k < 100; ++k) {
      push(s, along_.data(), pushed_.data());
      mean(pushed_.data(), b_pushed_.data(), nullptr);
      for (size_t i = 0; i < links; ++i) pushed_[i] += ease * along_[i] - b_pushed_[at(p_.bit[i])];
      const double curved = inner(along_.data(), pushed_.data());
      if (!(curved > 0)) break;
      const double by = square / curved;
      for (size_t i = 0; i < links; ++i) found_[i] += by * along_[i], left_[i] -= by * pushed_[i];
      const double now = inner(left_.data(), left_.data());
      if (!(now > enough)) break;
      for (size_t i = 0; i < links; ++i) along_[i] = left_[i] + now / square * along_[i];
      square = now;
    }
    const double slope = inner(apart_.data(), found_.data());
    double by = 1, low = 0, high = 0, low_slope = slope, high_slope = INFINITY;
    std::copy(s.middle.begin(), s.middle.end(), b_found_.begin());
    for (int k = 0; k < 20; ++k) {
      for (size_t i = 0; i < links; ++i) trial_[i] = s.l[i] + by * found_[i];
      look(trial_.data(), s);
      const double now = inner(apart_.data(), found_.data());
      if (!(std::abs(now) > 0.5 * std::abs(slope))) break;
      (now > 0 ? high : low) = by, (now > 0 ? high_slope : low_slope) = now;
      by = high_slope < INFINITY
               ? low + (high - low) * std::min(0.9, std::max(0.1, -low_slope / (high_slope - low_slope)))
               : 2 * by;
    }
    s.l.swap(trial_);
    keep_moved(s);
    ++s.turns;
  }

  // to = change less the mean of its projections on the faces
  void outside(State &s, const double *change, double *to) {
    for (size_t i = 0; i < p_.bit.size(); ++i) along_[i] = change[p_.bit[i]];
    push(s, along_.data(), pushed_.data());
    mean(pushed_.data(), to, nullptr);
    for (size_t b = 0; b < sums_.size(); ++b) {
      const bool stays = p_.degree[b] > 0 || s.middle[b] <= 0 || s.middle[b] >= 1;
      to[b] = stays ? change[b] - to[b] : 0;
    }
  }

  const Plan &p_;
  const double *scores_ = nullptr, *pairs_ = nullptr;
  LinearNearest linear_;
  OrOutNearest or_out_;
  std::vector<double> near_, local_, apart_, found_, along_, pushed_, left_, trial_, by_;
  std::vector<double> sums_, b_found_, b_left_, b_along_, b_pushed_, alone_;
};

}  // namespace fewfold
