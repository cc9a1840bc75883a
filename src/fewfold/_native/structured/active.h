// SparseMAP by an active set: max s'x - |A x|^2 / 2 over convex combinations x of structures, generated one by one.
//
// A structure is `slots` numbers, one for each slot: the part that it has there, or -1. Parts of different slots differ.
// A is never formed: an entry of A'A is the number of parts that two structures share.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "structured.h"

namespace fewfold {

// Sum of values[code[j]] - less[j] over all slots; without a part, of -less[j].
inline double sum_over(const int32_t *code, int64_t slots, const double *values, const double *less = nullptr) {
  double sum[4] = {0, 0, 0, 0};  // four accumulators, to hide latency
  for (int64_t j = 0; j < slots; ++j) {
    const double own = code[j] < 0 ? 0 : values[code[j]];
    sum[j % 4] += less ? own - less[j] : own;
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Affinely independent structures, their weights, and the Cholesky factor of A'A + 11'. As the weights sum to one, the
// term 11' only shifts the Lagrange multiplier of that constraint; it makes the matrix nonsingular.
class ActiveSet {
 public:
  // `by` weighs the parts in A'A, or is null: one each.
  void reset(int64_t slots, const double *by = nullptr) {
    slots_ = slots;
    by_ = by;
    whole_ = true;
    order_.clear();
    free_.clear();
    mix_.clear();
    score_.clear();
    codes_.clear();
  }

  int64_t size() const { return static_cast<int64_t>(order_.size()); }
  int64_t slots() const { return slots_; }
  const double *by() const { return by_; }
  const int32_t *code(int64_t i) const { return codes_.data() + at(order_[i]) * slots_; }
  double weight(int64_t i) const { return mix_[at(i)]; }
  double mean_score() const { return structured().dot(mix_.data(), score_.data(), size()); }

  // Adds a structure with weight zero. If it is affinely dependent on the others, weight moves to it until one of them
  // has none left and is removed; false if that does not increase the objective.
  bool add(const int32_t *code, double score) {
    if (append(code, score, 0)) return true;
    const int64_t n = size();
    structured().solve_upper(factor(), n, row_.data());  // the coefficients: they sum to one
    double gain = score, most = INFINITY;
    int64_t leaves = -1;
    for (int64_t i = 0; i < n; ++i) {
      gain -= row_[at(i)] * score_[at(i)];
      if (row_[at(i)] > 1e-9 && mix_[at(i)] / row_[at(i)] < most) most = mix_[at(i)] / row_[at(i)], leaves = i;
    }
    if (leaves < 0 || !(gain > 1e-13 * (1 + std::abs(score)))) return false;  // nothing: it may be one of them
    for (int64_t i = 0; i < n; ++i) mix_[at(i)] = std::max(0.0, mix_[at(i)] - most * row_[at(i)]);
    remove(leaves);
    return append(code, score, most);
  }

  // Adds a structure with this weight; false if it is affinely dependent on the others.
  bool append(const int32_t *code, double score, double weight) {
    const int64_t n = size();
    grow(n + 1);
    int64_t has = 0;
    for (int64_t j = 0; j < slots_; ++j) has += code[j] >= 0;
    const double own = 1 + (by_ ? sum_over(code, slots_, by_) : static_cast<double>(has));
    structured().overlaps(codes_.data(), order_.data(), n, slots_, sought(code, has), by_, row_.data());
    for (int64_t i = 0; i < n; ++i) row_[at(i)] += 1;
    const Factor f = factor();
    structured().solve_lower(f, n, row_.data());
    const double left = own - structured().dot(row_.data(), row_.data(), n);
    if (!(left > 1e-9 * own)) return false;
    const double corner = std::sqrt(left), one_by = 1 / corner;
    for (int64_t i = 0; i < n; ++i) f.l[i * capacity_ + n] = row_[at(i)];
    f.l[n * capacity_ + n] = corner;
    f.inverse[n] = one_by;
    f.scores[n] = (score - structured().dot(row_.data(), f.scores, n)) * one_by;
    f.ones[n] = (1 - structured().dot(row_.data(), f.ones, n)) * one_by;
    whole_ &= has == slots_;
    order_.push_back(place(code));
    score_.push_back(score);
    mix_.push_back(weight);
    return true;
  }

  // Computes the optimal mixture of the active structures and removes those of weight zero. Returns the common value of
  // the gradient on the active structures.
  double optimise() {
    for (;;) {
      const int64_t n = size();
      const Factor f = factor();
      const double shift =
          (structured().dot(f.ones, f.scores, n) - 1) / structured().dot(f.ones, f.ones, n);
      for (int64_t i = 0; i < n; ++i) row_[at(i)] = f.scores[i] - shift * f.ones[i];
      structured().solve_upper(f, n, row_.data());
      double step = 1;
      int64_t leaves = -1;
      for (int64_t i = 0; i < n; ++i) {
        const double from = mix_[at(i)], to = row_[at(i)];
        if (to < 0 && from / (from - to) < step) step = from / (from - to), leaves = i;
      }
      if (leaves < 0) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += row_[at(i)];
        for (int64_t i = 0; i < n; ++i) mix_[at(i)] = row_[at(i)] / sum;  // one but for rounding
        return shift + 1;
      }
      for (int64_t i = 0; i < n; ++i) mix_[at(i)] += step * (row_[at(i)] - mix_[at(i)]);
      remove(leaves);
    }
  }

  void remove(int64_t i) {
    structured().drop(factor(), size(), i, row_.data());
    free_.push_back(order_[at(i)]);
    order_.erase(order_.begin() + i);
    mix_.erase(mix_.begin() + i);
    score_.erase(score_.begin() + i);
  }

  // Recomputes the factor: rotations accumulate rounding errors.
  void refresh() {
    std::vector<int32_t> codes;
    for (int64_t i = 0; i < size(); ++i) codes.insert(codes.end(), code(i), code(i) + slots_);
    const std::vector<double> mix = mix_, score = score_;
    reset(slots_, by_);
    for (size_t i = 0; i < mix.size(); ++i) append(codes.data() + i * at(slots_), score[i], mix[i]);
    normalise();
  }

  // Appends the columns of the factor, each from the diagonal on.
  void give_factor(std::vector<double> &to) const {
    for (int64_t c = 0; c < size(); ++c) {
      const double *column = l_.data() + c * capacity_;
      to.insert(to.end(), column + c, column + size());
    }
  }

  // Replaces all structures by `count` others, with their factor as appended by give_factor().
  void take_factor(const int32_t *codes, int64_t count, const double *from) {
    reset(slots_, by_);
    grow(count);
    codes_.assign(codes, codes + count * slots_);
    order_.resize(at(count));
    std::iota(order_.begin(), order_.end(), 0);
    for (int32_t part : codes_) whole_ &= part >= 0;
    mix_.assign(at(count), 0.0);
    score_.assign(at(count), 0.0);
    const Factor f = factor();
    for (int64_t c = 0; c < count; from += count - c, ++c) {
      std::copy_n(from, count - c, f.l + c * capacity_ + c);
      f.inverse[c] = 1 / *from;
      f.scores[c] = 0, f.ones[c] = 1;
    }
    structured().solve_lower(f, count, f.ones);
  }

  // Recomputes the scores by a function of a structure.
  template <class F> void rescore(F score_of) {
    const Factor f = factor();
    for (int64_t i = 0; i < size(); ++i) f.scores[i] = score_[at(i)] = score_of(code(i));
    structured().solve_lower(f, size(), f.scores);
  }

  // to = the marginals, the weighted sum of the structures
  void marginals(double *to, int64_t parts) const {
    std::fill_n(to, parts, 0.0);
    for (int64_t i = 0; i < size(); ++i) add_to(i, mix_[at(i)], to);
  }

  // to += by * structure i
  void add_to(int64_t i, double by, double *to) const {
    const int32_t *c = code(i);
    const int64_t slots = slots_;
    int64_t j = 0;
    for (; whole_ && j + 4 <= slots; j += 4) {  // parts are distinct: the additions are independent
      const double one = to[c[j]] + by, two = to[c[j + 1]] + by, three = to[c[j + 2]] + by, four = to[c[j + 3]] + by;
      to[c[j]] = one, to[c[j + 1]] = two, to[c[j + 2]] = three, to[c[j + 3]] = four;
    }
    for (; j < slots; ++j)
      if (c[j] >= 0) to[c[j]] += by;
  }

  // x <- Q x, with Q the Jacobian of the optimal weights with respect to the scores of the structures.
  void derive(double *x) {
    const int64_t n = size();
    const Factor f = factor();
    double *own = row_.data();  // padded to whole vectors
    std::copy_n(x, n, own);
    structured().solve_lower(f, n, own);
    const double shift = structured().dot(f.ones, own, n) / structured().dot(f.ones, f.ones, n);
    for (int64_t i = 0; i < n; ++i) own[i] -= shift * f.ones[i];
    structured().solve_upper(f, n, own);
    std::copy_n(own, n, x);
  }

  // Renormalises the weights after structures were omitted.
  void normalise() {
    double sum = 0;
    for (double w : mix_) sum += w;
    for (double &w : mix_) w = sum > 0 ? w / sum : 1.0 / static_cast<double>(size());
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  Factor factor() {
    return {l_.data(), capacity_, along_.data(), along_.data() + capacity_, along_.data() + 2 * capacity_};
  }

  // A copy of a structure with -2 for -1, so that empty slots match nothing.
  const int32_t *sought(const int32_t *code, int64_t has) {
    if (has == slots_) return code;
    sought_.resize(at(slots_));
    for (int64_t j = 0; j < slots_; ++j) sought_[at(j)] = code[j] < 0 ? -2 : code[j];
    return sought_.data();
  }

  int32_t place(const int32_t *code) {
    int32_t where;
    if (free_.empty()) {
      where = static_cast<int32_t>(codes_.size() / at(slots_));
      codes_.resize(codes_.size() + at(slots_));
    } else {
      where = free_.back();
      free_.pop_back();
    }
    std::copy_n(code, slots_, codes_.data() + at(where) * at(slots_));
    return where;
  }

  void grow(int64_t n) {
    if (n <= capacity_) return;
    const int64_t capacity = (std::max<int64_t>({16, n, capacity_ + capacity_ / 2}) + 7) / 8 * 8;  // whole vectors
    std::vector<double> wider(at(capacity * capacity)), along(at(3 * capacity));
    const int64_t have = size();
    for (int64_t c = 0; c < have; ++c) std::copy_n(l_.data() + c * capacity_, have, wider.data() + c * capacity);
    for (int k = 0; k < 3; ++k)
      std::copy_n(along_.data() + k * capacity_, std::min(have, capacity_), along.data() + k * capacity);
    l_.swap(wider);
    along_.swap(along);
    capacity_ = capacity;
    row_.resize(at(capacity));
  }

  int64_t slots_ = 0, capacity_ = 0;
  const double *by_ = nullptr;
  bool whole_ = true;  // whether every structure has a part at every slot
  std::vector<int32_t> codes_, order_, free_, sought_;
  std::vector<double> l_, along_, mix_, score_, row_;
};

struct Limits {
  int64_t turns;     // calls of the oracle, at most
  double tolerance;  // of the gap
};

enum class Outcome : int32_t { converged = 0, stopped = 1, infeasible = 2, no_numbers = 3 };

struct Result {
  Outcome outcome;
  int64_t turns;
  double gap;  // upper bound on the distance of the objective from its optimum
};

// Solves one instance. `Oracle` has
//   double best(const double *scores, int32_t *code)   the best structure for these scores of parts, its value with
//                                                      what the oracle adds; -inf if there is none
//   double extra(const int32_t *code)                  what it adds
// `active` may hold structures already: a warm start. `left`, (parts,), and `code`, (slots,), are workspaces.
template <class Oracle>
Result sparsemap(Oracle &oracle, const double *scores, int64_t parts, const Limits &limits, ActiveSet &active,
               double *marginals, double *left, int32_t *code) {
  if (!active.size()) {
    const double value = oracle.best(scores, code);
    if (std::isnan(value) || value == INFINITY) return {Outcome::no_numbers, 1, NAN};
    if (value == -INFINITY) return {Outcome::infeasible, 1, NAN};
    active.append(code, 0, 1);
  }
  // Scores of structures are relative to the first one, slot by slot: a large common offset would cancel the digits of
  // their differences.
  const int32_t *first = active.code(0);
  const double own_extra = oracle.extra(first);
  std::vector<double> base(static_cast<size_t>(active.slots()));
  for (int64_t j = 0; j < active.slots(); ++j) base[static_cast<size_t>(j)] = first[j] < 0 ? 0 : scores[first[j]];
  const auto score_of = [&](const int32_t *c) {
    return oracle.extra(c) - own_extra + sum_over(c, active.slots(), scores, base.data());
  };
  active.rescore(score_of);
  Result result{Outcome::stopped, 0, INFINITY};
  bool fresh = false;
  for (;;) {
    const double level = active.optimise();
    active.marginals(marginals, parts);
    const double own = active.mean_score();
    const double square = structured().take_off(scores, marginals, active.by(), parts, left);
    const double found = oracle.best(left, code);
    ++result.turns;
    if (std::isnan(found) || found == INFINITY) return {Outcome::no_numbers, result.turns, NAN};
    const double score = score_of(code);
    double value = score;
    if (!active.by()) value -= sum_over(code, active.slots(), marginals);
    for (int64_t j = 0; active.by() && j < active.slots(); ++j)
      if (code[j] >= 0) value -= marginals[code[j]] * active.by()[code[j]];
    result.gap = std::max(0.0, value - (own - square));
    const double floor = 4e-16 * std::abs(found) + 1e-13 * (std::abs(value) + std::abs(level) + square);
    if (result.gap <= std::max(limits.tolerance, floor)) return result.outcome = Outcome::converged, result;
    if (result.turns >= limits.turns) return result;
    if (active.add(code, score)) {
      fresh = false;
      continue;
    }
    // Rounding errors prevent progress: recompute the factor and retry once. If that fails, the gap bounds the error.
    if (fresh) return result;
    active.refresh();
    fresh = true;
  }
}

// Adds structures of weight zero until the active set spans its face: in degenerate cases a solution has fewer
// structures than that, but the derivative is that of the face. `left` are the scores less the marginals, perturbed in a
// random direction along which all active structures are equal. The solution is in the relative interior of the face, so
// that the face extends to both sides. `workspace` holds 2 * parts.
template <class Oracle>
void widen(Oracle &oracle, int64_t parts, ActiveSet &active, const double *marginals,
           const double *left, int32_t *code, double *workspace) {
  double *along = workspace, *tried = workspace + parts;
  std::vector<double> by;
  uint64_t drawn = 0;
  const auto sum_of = [&](const double *values, const int32_t *c) { return sum_over(c, active.slots(), values); };
  const int64_t most = std::min(parts, active.size() + 128);  // with nearly equal scores there could be very many
  for (bool more = true; more && active.size() <= most;) {
    more = false;
    for (int64_t p = 0; p < parts; ++p) {
      uint64_t bits = ++drawn * 0x9e3779b97f4a7c15;  // counter-based: iterations are independent
      bits = (bits ^ bits >> 32) * 0xd6e8feb86659fd93;
      const double random = static_cast<double>(static_cast<int32_t>(bits >> 32)) * 0x1p-31;
      along[p] = marginals[p] < 1e-9 ? 0 : random;
    }
    by.resize(static_cast<size_t>(active.size()));
    for (int64_t i = 0; i < active.size(); ++i) by[static_cast<size_t>(i)] = sum_of(along, active.code(i));
    active.derive(by.data());
    for (int64_t i = 0; i < active.size(); ++i) active.add_to(i, -by[static_cast<size_t>(i)], along);
    const double level = sum_of(along, active.code(0));
    const double top = oracle.extra(active.code(0)) + sum_of(left, active.code(0)), close = 1e-9 * (1 + std::abs(top));
    for (int64_t p = 0; p < parts; ++p) tried[p] = marginals[p] < 1e-9 ? -INFINITY : left[p] + 1e-6 * along[p];
    if (!(oracle.best(tried, code) > -INFINITY)) return;
    const double value = oracle.extra(code) + sum_of(left, code);
    more = std::abs(value - top) < close && std::abs(sum_of(along, code) - level) > 1e-6 && active.append(code, 0, 0);
  }
}

}  // namespace fewfold
