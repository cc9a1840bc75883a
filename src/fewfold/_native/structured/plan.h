// A flattened factor graph, and the solver state of an instance.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "active.h"
#include "logic.h"

namespace fewfold {

struct AnyOracle {
  virtual ~AnyOracle() = default;
  virtual double best(const double *scores, int32_t *code) = 0;
  virtual double extra(const int32_t *code) = 0;
};

template <class Oracle> struct Wrapped : AnyOracle {
  Oracle oracle;
  template <class... A> explicit Wrapped(A &&...a) : oracle(std::forward<A>(a)...) {}
  double best(const double *scores, int32_t *code) override { return oracle.best(scores, code); }
  double extra(const int32_t *code) override { return oracle.extra(code); }
};

enum class Kind : int32_t { linear = 0, linear_equal = 1, any_out = 2, pair = 3, generic = 4 };

struct FactorPlan {
  Kind kind;
  int32_t extra;  // which pair, or which generic factor
  int64_t first, count;
  double bound;
};

struct GenericPlan {
  int64_t slots;
  std::function<std::unique_ptr<AnyOracle>(int64_t row)> make;
};

// A flattened factor graph. A bit of degree d has weight 1 / d in each of its links. A link reads offset + sign * bit.
struct Plan {
  int64_t bits = 0, pairs = 0;
  std::vector<FactorPlan> factors;
  std::vector<GenericPlan> generics;
  std::vector<int32_t> bit;
  std::vector<double> weight, sign, offset, costs, degree;

  int64_t links() const { return static_cast<int64_t>(bit.size()); }

  void finish() {
    degree.assign(static_cast<size_t>(bits), 0.0);
    for (int32_t b : bit) degree[static_cast<size_t>(b)] += 1;
    weight.resize(bit.size());
    for (size_t i = 0; i < bit.size(); ++i) weight[i] = 1 / degree[static_cast<size_t>(bit[i])];
  }
};

// A factor without a closed form: an active set, reused as a warm start between solves.
struct GenericState {
  std::unique_ptr<AnyOracle> oracle;
  ActiveSet active;
  std::vector<double> by, scores, marginals, left, mix;
  std::vector<int32_t> code, codes;
  Outcome outcome = Outcome::converged;
  double gap = 0;

  // The solver's own tolerance is lower, but rounding may prevent it.
  bool converged() const { return outcome == Outcome::converged || gap <= 1e-9; }

  void answer(const double *wanted, const double *weights, double ease, int64_t parts, int64_t slots) {
    bool same = !by.empty();
    by.resize(static_cast<size_t>(parts)), scores.resize(by.size()), marginals.resize(by.size()), left.resize(by.size());
    code.resize(static_cast<size_t>(slots));
    for (size_t p = 0; p < by.size(); ++p) {
      const double weight = ease * weights[p], score = wanted[p] == -INFINITY ? -INFINITY : weight * wanted[p];
      same = same && by[p] == weight && scores[p] == score;
      by[p] = weight, scores[p] = score;
    }
    if (same) return;
    codes.clear(), mix.clear();
    for (int64_t i = 0; i < active.size(); ++i) {
      codes.insert(codes.end(), active.code(i), active.code(i) + slots);
      mix.push_back(active.weight(i));
    }
    active.reset(slots, by.data());
    for (size_t i = 0; i < mix.size(); ++i) {
      const int32_t *c = codes.data() + i * static_cast<size_t>(slots);
      double score = oracle->extra(c);
      for (int64_t j = 0; j < slots; ++j)
        if (c[j] >= 0) score += scores[static_cast<size_t>(c[j])];
      if (std::isfinite(score)) active.append(c, score, mix[i]);
    }
    if (active.size()) active.normalise();
    const Limits limits{1000, ease > 1 ? 1e-6 : 1e-13};  // inexact during the outer iterations
    const Result result =
        sparsemap(*oracle, scores.data(), parts, limits, active, marginals.data(), left.data(), code.data());
    outcome = result.outcome, gap = result.gap;
  }
};

// The solver state of one instance.
struct State {
  std::vector<double> l, middle, z;
  std::vector<double> across;  // of pairs, the sign; of others their costs
  std::vector<uint8_t> free;
  std::vector<Bound> bound;
  std::vector<GenericState> generics;
  Outcome outcome = Outcome::stopped;
  int32_t failed = -1;  // the first factor that is infeasible or did not converge
  int64_t turns = 0;
  double apart = 0, moved = 0;
};

}  // namespace fewfold
