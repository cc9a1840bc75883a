// The best chains of states: Viterbi's algorithm, its list of the k best, and bits in a row of which k are on.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "argument.h"
#include "structured.h"

namespace fewfold {

// Numbers given per row, shared by all rows (stride 0), or absent (null: zeros).
struct Given {
  const double *data = nullptr;
  int64_t by_row = 0, by_position = 0;
  const char *name = "";
  int64_t reach = 0, own = 0;  // extent of the array; how many numbers a row needs
  // Raises unless there are numbers for this many rows.
  void check(int64_t rows) const {
    if (rows > 0 && own && reach_of(rows, own, by_row) > reach)
      refuse(std::string(name) + " must be given for " + std::to_string(rows) + " instances");
  }
  const double *at(int64_t row) const { return data ? data + row * by_row : nullptr; }
};

// `tables` of transitions, `between` numbers apart, by columns.
inline void turn(const double *from, int64_t tables, int64_t between, int64_t states, std::vector<double> &to) {
  to.resize(static_cast<size_t>(tables * states * states));
  double *table = to.data();
  for (int64_t i = 0; i < tables; ++i, table += states * states)
    for (int64_t r = 0; r < states; ++r)
      for (int64_t s = 0; s < states; ++s) table[s * states + r] = from[i * between + r * states + s];
}

// The codes of m chains: a state of every position, or none.
inline void check_states(const int32_t *codes, int64_t m, int64_t positions, int64_t states) {
  for (int64_t i = 0; i < m; ++i, codes += positions)
    for (int64_t j = 0; j < positions; ++j)
      if (codes[j] >= 0 && (codes[j] < j * states || codes[j] >= (j + 1) * states))
        refuse("codes at position " + std::to_string(j) + " must be between " + std::to_string(j * states) + " and " +
               std::to_string((j + 1) * states - 1) + ", got " + std::to_string(codes[j]));
}

struct Chains {
  int64_t positions, states;
  Given transitions, start, stop;
  std::vector<double> turned = {};  // transitions by columns, if all rows have the same ones

  int64_t parts() const { return positions * states; }
  void check_codes(const int32_t *codes, int64_t m) const { check_states(codes, m, positions, states); }
  void check(int64_t rows) const { transitions.check(rows), start.check(rows), stop.check(rows); }
  int64_t tables() const { return positions < 2 ? 0 : transitions.by_position ? positions - 1 : 1; }
};

// One state at each position, part = position * states + state. A position of which all scores are -inf is omitted;
// the transition to the next one is the one that leaves its left neighbour.
class SequenceOracle {
 public:
  SequenceOracle(const Chains &chains, int64_t row)
      : n_(chains.positions), s_(chains.states), between_(chains.transitions.by_position),
        wide_((s_ + 7) / 8 * 8), tables_(chains.tables()), transitions_(chains.transitions.at(row)), start_(chains.start.at(row)), stop_(chains.stop.at(row)) {
    none_.assign(at(transitions_ ? s_ : s_ * s_), 0.0);
    if (!transitions_) transitions_ = none_.data(), between_ = 0;
    if (!start_) start_ = none_.data();
    if (!stop_) stop_ = none_.data();
    workspace_.resize(at(2 * (n_ + 1) * wide_));
    if (!chains.turned.empty())
      turned_ = chains.turned.data();
    else
      turn(transitions_, tables_, between_, s_, own_turned_), turned_ = own_turned_.data();
    where_.reserve(at(n_));
    const StructuredTable &t = structured();
    broken_ = t.any_nan(start_, s_) || t.any_nan(stop_, s_);
    for (int64_t i = 0; i < tables_ && !broken_; ++i) broken_ = t.any_nan(table(i), s_ * s_);
  }

  double best(const double *scores, int32_t *code) {
    std::fill_n(code, n_, -1);
    if (!look(scores)) return std::numeric_limits<double>::quiet_NaN();
    if (where_.empty()) return 0;
    double *reach = workspace_.data(), *most = reach + (n_ + 1) * wide_;
    const Chain chain{s_, wide_, between_, transitions_, turned_, start_, stop_, reach, most};
    const int64_t m = layers(), middle = structured().viterbi(chain, scores, where_.data(), m);
    if (middle < 0) return -INFINITY;
    structured().trace(chain, where_.data(), m, middle, code);
    return reach[m / 2 * wide_ + middle] + most[(m / 2 + 1) * wide_ + middle];
  }

  double extra(const int32_t *code) const {
    double sum = 0;
    int64_t last = -1;
    for (int64_t i = 0; i < n_; ++i) {
      if (code[i] < 0) continue;
      const int64_t s = code[i] - i * s_;
      sum += last < 0 ? start_[s] : table(last)[(code[last] - last * s_) * s_ + s];
      last = i;
    }
    return last < 0 ? 0 : sum + stop_[code[last] - last * s_];
  }

  // As a lattice, for list_viterbi: layers of states, and what leads into one. `look` sets the scores; false if
  // some are invalid.
  bool look(const double *scores) {
    scores_ = scores;
    if (structured().all_numbers(scores, n_ * s_)) {
      if (layers() < n_) where_.resize(at(n_)), std::iota(where_.begin(), where_.end(), 0);
      return !broken_;
    }
    where_.clear();
    for (int64_t i = 0; i < n_; ++i) {
      const double *own = scores + i * s_;
      int64_t s = 0;
      while (s < s_ && own[s] == -INFINITY) ++s;
      if (s < s_) where_.push_back(i);
    }
    return !broken_ && !structured().any_nan(scores, n_ * s_);
  }
  int64_t layers() const { return static_cast<int64_t>(where_.size()); }
  int64_t states() const { return s_; }
  double own(int64_t layer, int64_t state) const { return scores_[where_[at(layer)] * s_ + state]; }
  double first(int64_t state) const { return start_[state]; }
  double last(int64_t state) const { return stop_[state]; }
  template <class F> void into(int64_t layer, int64_t state, F take) const {
    const double *from = table(where_[at(layer - 1)]) + state;
    for (int64_t r = 0; r < s_; ++r) take(r, from[r * s_]);
  }
  void mark(int64_t layer, int64_t state, int32_t *code) const {
    const int64_t i = where_[at(layer)];
    code[i] = static_cast<int32_t>(i * s_ + state);
  }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  const double *table(int64_t position) const { return transitions_ + position * between_; }

  int64_t n_, s_, between_, wide_, tables_;
  const double *transitions_, *turned_, *start_, *stop_;
  const double *scores_ = nullptr;
  bool broken_ = false;
  std::vector<double> none_, workspace_, own_turned_;
  std::vector<int64_t> where_;
};

// Where the gradients of the additional scores of chains go; strides as in `Given`, null where not needed.
struct Pulled {
  double *transitions;
  int64_t by_row, by_position;
  double *start;
  int64_t start_by_row;
  double *stop;
  int64_t stop_by_row;
};

// Adds by[i] to the gradient of every additional score that structure i, of instance row[i], has.
inline void pull_sequences(const int32_t *codes, const int64_t *row, const double *by, int64_t count, int64_t positions,
                           int64_t states, const Pulled &to) {
  for (int64_t i = 0; i < count; ++i, codes += positions) {
    int64_t last = -1, from = -1;
    for (int64_t j = 0; j < positions; ++j) {
      if (codes[j] < 0) continue;
      const int64_t state = codes[j] - j * states;
      if (last < 0) {
        if (to.start) to.start[row[i] * to.start_by_row + state] += by[i];
      } else if (to.transitions) {
        to.transitions[row[i] * to.by_row + last * to.by_position + from * states + state] += by[i];
      }
      last = j, from = state;
    }
    if (to.stop && last >= 0) to.stop[row[i] * to.stop_by_row + from] += by[i];
  }
}

struct Subsets {
  int64_t positions, on;  // number of bits that are on, exact or at most
  bool at_most;
  Given bonus;  // for neighbours that are both on

  int64_t parts() const { return positions; }
  void check(int64_t rows) const { bonus.check(rows); }
  void check_codes(const int32_t *, int64_t) const {}  // a part is its position
};

// Bits in a row, part = position. The state of a lattice of these is 2 * (bits on so far) + (whether the last is).
class SubsetOracle {
 public:
  SubsetOracle(const Subsets &subsets, int64_t row)
      : n_(subsets.positions), k_(subsets.on), between_(subsets.bonus.by_position), at_most_(subsets.at_most),
        bonus_(subsets.bonus.at(row)), width_(k_ + 2), reach_(static_cast<size_t>(2 * (n_ + 1) * width_), -INFINITY) {
    for (int64_t i = 0; i + 1 < n_ && !broken_; ++i) broken_ = std::isnan(bonus(i));
  }

  double best(const double *scores, int32_t *code) {
    std::fill_n(code, n_, -1);
    if (!look(scores)) return std::numeric_limits<double>::quiet_NaN();
    if (nothing_) return 0;
    const StructuredTable &t = structured();
    off(0)[0] = 0;
    for (int64_t i = 0; i < n_; ++i)
      t.count_step(off(i), on(i), k_ + 1, scores[i], i ? bonus(i - 1) : 0.0, off(i + 1), on(i + 1));
    int64_t c = k_;
    double value = std::max(off(n_)[c], on(n_)[c]);
    if (at_most_)
      for (int64_t less = k_; less-- > 0;) {
        const double other = std::max(off(n_)[less], on(n_)[less]);
        if (other > value) value = other, c = less;
      }
    if (!(value > -INFINITY)) return value;
    bool is_on = on(n_)[c] > off(n_)[c];
    for (int64_t i = n_; i-- > 0;) {
      if (!is_on) {
        is_on = on(i)[c] > off(i)[c];
        continue;
      }
      code[i] = static_cast<int32_t>(i);
      --c;
      is_on = i && on(i)[c] + bonus(i - 1) > off(i)[c];
    }
    return value;
  }

  double extra(const int32_t *code) const {
    double sum = 0;
    for (int64_t i = 0; i + 1 < n_; ++i)
      if (code[i] >= 0 && code[i + 1] >= 0) sum += bonus(i);
    return sum;
  }

  bool look(const double *scores) {
    scores_ = scores;
    nothing_ = true;
    for (int64_t i = 0; i < n_ && nothing_; ++i) nothing_ = scores[i] == -INFINITY;
    return !broken_ && !structured().any_nan(scores, n_);
  }
  int64_t layers() const { return nothing_ ? 0 : n_; }
  int64_t states() const { return 2 * (k_ + 1); }
  double own(int64_t layer, int64_t state) const { return state & 1 ? scores_[layer] : 0.0; }
  double first(int64_t state) const { return state == 0 || state == 3 ? 0.0 : -INFINITY; }
  double last(int64_t state) const { return at_most_ || state / 2 == k_ ? 0.0 : -INFINITY; }
  template <class F> void into(int64_t layer, int64_t state, F take) const {
    if (!(state & 1)) return take(state, 0.0), take(state + 1, 0.0);
    if (state > 1) take(state - 3, 0.0), take(state - 2, bonus(layer - 1));
  }
  void mark(int64_t layer, int64_t state, int32_t *code) const {
    if (state & 1) code[layer] = static_cast<int32_t>(layer);
  }

 private:
  double bonus(int64_t i) const { return bonus_[i * between_]; }
  double *off(int64_t i) { return reach_.data() + 2 * i * width_ + 1; }  // one more element in front, never reached
  double *on(int64_t i) { return off(i) + width_; }

  int64_t n_, k_, between_;
  bool at_most_;
  const double *bonus_;
  int64_t width_;
  const double *scores_ = nullptr;
  bool broken_ = false, nothing_ = true;
  std::vector<double> reach_;
};

// The k best paths through a lattice, best first: `codes` (k, slots) and `values` (k,), -1 and -inf where there are
// fewer. Every state has the k best paths that reach it, merged from those of its predecessors.
template <class Lattice>
void list_viterbi(Lattice &lattice, const double *scores, int64_t slots, int64_t k, int32_t *codes, double *values) {
  std::fill_n(codes, k * slots, -1);
  std::fill_n(values, k, -INFINITY);
  if (!lattice.look(scores)) return std::fill_n(values, k, std::numeric_limits<double>::quiet_NaN()), void();
  const int64_t layers = lattice.layers(), states = lattice.states();
  if (!layers) return values[0] = 0, void();
  const auto at = [](int64_t i) { return static_cast<size_t>(i); };
  if (count_of(states, k) > std::numeric_limits<int32_t>::max()) refuse("k must be smaller, got " + std::to_string(k));
  std::vector<double> reach(at(count_of(states, k)), -INFINITY), next(reach);
  std::vector<int32_t> back(at(count_of(layers, states, k)));  // predecessor: its state * k + its rank
  struct Head {
    double value, step;
    int64_t way;
    bool operator<(const Head &other) const { return value < other.value; }
  };
  std::vector<Head> heads;
  const auto merge = [&](double own, double *to, int32_t *from) {
    std::make_heap(heads.begin(), heads.end());
    for (int64_t rank = 0; rank < k && !heads.empty(); ++rank) {
      std::pop_heap(heads.begin(), heads.end());
      Head &head = heads.back();
      to[rank] = head.value + own;
      from[rank] = static_cast<int32_t>(head.way);
      const double value = ++head.way % k ? reach[at(head.way)] + head.step : -INFINITY;
      if (value > -INFINITY) head.value = value, std::push_heap(heads.begin(), heads.end());
      else heads.pop_back();
    }
  };
  const auto take = [&](int64_t state, double step) {
    const double value = reach[at(state * k)] + step;
    if (value > -INFINITY) heads.push_back({value, step, state * k});
  };
  for (int64_t s = 0; s < states; ++s) reach[at(s * k)] = lattice.first(s) + lattice.own(0, s);
  for (int64_t j = 1; j < layers; ++j) {
    std::fill(next.begin(), next.end(), -INFINITY);
    for (int64_t s = 0; s < states; ++s) {
      const double own = lattice.own(j, s);
      heads.clear();
      if (own > -INFINITY) lattice.into(j, s, take);
      merge(own, next.data() + s * k, back.data() + (j * states + s) * k);
    }
    reach.swap(next);
  }
  heads.clear();
  for (int64_t s = 0; s < states; ++s) take(s, lattice.last(s));
  std::vector<int32_t> ways(at(k));
  merge(0, values, ways.data());
  for (int64_t rank = 0; rank < k && values[rank] > -INFINITY; ++rank) {
    int64_t way = ways[at(rank)];
    for (int64_t j = layers; j-- > 0;) {
      lattice.mark(j, way / k, codes + rank * slots);
      way = back[at(j * states * k + way)];
    }
  }
}

}  // namespace fewfold
