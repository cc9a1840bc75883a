// Logic over bits, and graphs of factors that share bits.
#include "argument.h"
#include "assignment.h"
#include "bind.h"
#include "consensus.h"
#include "sequence.h"
#include "solve.h"
#include "spanning.h"
#include "trees.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

// Which bits the factors of a group use.
struct Uses {
  int64_t factors, parts;
  const int64_t *bits;  // (factors, parts)
  const double *sign;   // (factors, parts): -1 where a bit is read the other way round

  Uses(int64_t factors_, int64_t parts_, const Buffer &bits_, const Buffer &sign_)
      : factors(factors_), parts(parts_), bits(bits_.numbers<int64_t>("bits", count_of(factors, parts))),
        sign(sign_.numbers<double>("sign", count_of(factors, parts))) {
    check_positive(parts, "parts");
  }
  void expect(int64_t own) const {
    if (parts != own) refuse("a factor must have " + std::to_string(own) + " parts, got " + std::to_string(parts));
  }
};

// A factor graph and, once solved, the solver state of every instance.
class Graph {
 public:
  explicit Graph(int64_t bits) {
    if (count_of(bits) > std::numeric_limits<int32_t>::max()) refuse("there must be fewer than 2^31 bits");
    plan_.bits = bits;
  }
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;

  void add_linear(const Uses &uses, const Buffer &costs_, const Buffer &bounds_, bool equal) {
    const double *costs = costs_.numbers<double>("costs", count_of(uses.factors, uses.parts));
    const double *bounds = bounds_.numbers<double>("bounds", uses.factors);
    check(uses);
    for (int64_t f = 0; f < uses.factors; ++f)
      add(uses, f, equal ? Kind::linear_equal : Kind::linear, 0, costs + f * uses.parts, bounds[f]);
  }

  void add_any_out(const Uses &uses) {
    check(uses);
    if (uses.factors == 0) return;
    std::vector<double> costs(static_cast<size_t>(uses.parts), 1.0);
    costs.back() = -1;
    for (int64_t f = 0; f < uses.factors; ++f) add(uses, f, Kind::any_out, 0, costs.data(), 0);
  }

  void add_pairs(const Uses &uses) {
    check(uses);
    uses.expect(2);
    for (int64_t f = 0; f < uses.factors; ++f)
      add(uses, f, Kind::pair, static_cast<int32_t>(plan_.pairs++), nullptr, 0);
  }

  // make(row) gives the oracle of a factor of an instance, row = instance * factors + factor; enough(rows) raises if
  // the arguments do not suffice for this many rows.
  template <class Make, class Enough> void add_generic(const Uses &uses, int64_t slots, Make make, Enough enough) {
    check(uses);
    check_positive(slots, "slots");
    const int64_t factors = uses.factors;
    enough_.push_back([=](int64_t rows) { enough(count_of(rows, factors)); });
    for (int64_t f = 0; f < factors; ++f) {
      add(uses, f, Kind::generic, static_cast<int32_t>(plan_.generics.size()), nullptr, 0);
      plan_.generics.push_back({slots, [=](int64_t r) { return make(r * factors + f); }});
    }
  }

  // pairs is (rows, pairs), steps (rows,). With `warm`, goes on from the multipliers of the last call.
  void solve(const Buffer &scores_, int64_t rows, const Buffer &pairs_, int64_t turns, double tolerance,
             const Buffer &steps_, bool warm, const Buffer &marginals_, const Buffer &took_, const Buffer &apart_,
             const Buffer &moved_, const Buffer &outcomes_, const Buffer &failed_, int threads) {
    const double *scores = scores_.numbers<double>("scores", count_of(rows, plan_.bits));
    const double *pairs = pairs_.numbers<double>("pairs", count_of(rows, plan_.pairs));
    const double *steps = steps_.numbers<double>("steps", rows);
    double *marginals = marginals_.numbers<double>("marginals", rows * plan_.bits);
    double *apart = apart_.numbers<double>("apart", rows), *moved = moved_.numbers<double>("moved", rows);
    int64_t *took = took_.numbers<int64_t>("turns", rows);
    int32_t *outcomes = outcomes_.numbers<int32_t>("outcomes", rows), *failed = failed_.numbers<int32_t>("failed", rows);
    if (warm && static_cast<int64_t>(states_.size()) != rows) refuse("a warm start needs the same instances as before");
    for (const auto &enough : enough_) enough(rows);
    if (!warm) states_.clear();
    if (rows == 0) return;  // without rows the number of bits is unchecked
    if (!warm) plan_.finish(), states_.resize(static_cast<size_t>(rows));
    const auto one = [&](int64_t r, Consensus &consensus) {
      State &s = states_[static_cast<size_t>(r)];
      if (!warm) begin(r, s);
      consensus.solve(scores + r * plan_.bits, pairs + r * plan_.pairs, {turns, tolerance, steps[r]}, s);
      double *to = marginals + r * plan_.bits;
      const bool odd = s.outcome == Outcome::no_numbers;
      for (int64_t b = 0; b < plan_.bits; ++b) to[b] = odd ? NAN : s.middle[static_cast<size_t>(b)];
      took[r] = s.turns;
      apart[r] = odd ? NAN : s.apart;
      moved[r] = odd ? NAN : s.moved;
      outcomes[r] = static_cast<int32_t>(s.outcome);
      failed[r] = s.failed;
    };
    try {
      each(rows, threads, one);
    } catch (...) {  // some instances are half done
      states_.clear();
      throw;
    }
  }

  void pull(const Buffer &grads_, const Buffer &to_, int threads) {
    const int64_t rows = static_cast<int64_t>(states_.size());
    const double *grads = grads_.numbers<double>("grads", count_of(rows, plan_.bits));
    double *to = to_.numbers<double>("to", count_of(rows, plan_.bits));
    each(rows, threads, [&](int64_t r, Consensus &consensus) {
      consensus.project(states_[static_cast<size_t>(r)], grads + r * plan_.bits, to + r * plan_.bits);
    });
  }

  // to (rows, bits) += the gradient of the scores of bits, from that of the scores of those structures in the order of
  // `active`
  void weigh(int64_t first, int64_t factors, const Buffer &values, const Buffer &to_) {
    check_generic(first, factors);
    int64_t needed = 0;
    for (State &s : states_)
      for (int64_t k = first; k < first + factors && s.outcome != Outcome::no_numbers; ++k)
        needed += s.generics[static_cast<size_t>(plan_.factors[static_cast<size_t>(k)].extra)].active.size();
    const double *at = values.numbers<double>("values", needed);
    double *to = to_.numbers<double>("to", count_of(static_cast<int64_t>(states_.size()), plan_.bits));
    if (states_.empty()) return;
    Consensus consensus(plan_);
    for (size_t r = 0; r < states_.size(); ++r) {
      if (states_[r].outcome == Outcome::no_numbers) continue;
      for (int64_t k = first; k < first + factors; ++k) {
        const FactorPlan &f = plan_.factors[static_cast<size_t>(k)];
        consensus.weigh(states_[r], f, at, to + static_cast<int64_t>(r) * plan_.bits);
        at += states_[r].generics[static_cast<size_t>(f.extra)].active.size();
      }
    }
  }

  // The structures of some generic factors, by instance and factor; their weights, and the derivatives of the weights
  // along a change of the bits.
  nb::tuple active(int64_t first, int64_t factors, const Buffer &changes_) {
    check_generic(first, factors);
    const double *changes = changes_.maybe<double>("changes", count_of(static_cast<int64_t>(states_.size()), plan_.bits));
    std::vector<int32_t> codes;
    std::vector<double> weights, by;
    std::vector<int64_t> offsets{0};
    const Plan none;
    Consensus consensus(states_.empty() ? none : plan_);
    int64_t slots = 0;
    for (size_t r = 0; r < states_.size(); ++r) {
      for (int64_t k = first; k < first + factors; ++k) {
        const FactorPlan &f = plan_.factors[static_cast<size_t>(k)];
        slots = plan_.generics[static_cast<size_t>(f.extra)].slots;
        if (states_[r].outcome != Outcome::no_numbers) {
          ActiveSet &set = states_[r].generics[static_cast<size_t>(f.extra)].active;
          const size_t at = by.size(), count = static_cast<size_t>(set.size());
          by.resize(at + count);
          if (changes)
            consensus.derive(states_[r], f, changes + static_cast<int64_t>(r) * plan_.bits,
                             by.data() + at);
          for (int64_t i = 0; i < set.size(); ++i) {
            codes.insert(codes.end(), set.code(i), set.code(i) + slots);
            weights.push_back(set.weight(i));
          }
        }
        offsets.push_back(static_cast<int64_t>(by.size()));
      }
    }
    const size_t m = by.size(), rows = offsets.size();
    return nb::make_tuple(given(std::move(codes), {m, static_cast<size_t>(slots)}), given(std::move(weights), {m}),
                          given(std::move(by), {m}), given(std::move(offsets), {rows}));
  }

 private:
  // Called before factors are added: earlier solutions are invalid for the new graph.
  void check(const Uses &uses) {
    check_ids(uses.bits, uses.factors * uses.parts, plan_.bits, "bits", 1);
    states_.clear();
  }

  void check_generic(int64_t first, int64_t factors) const {
    const int64_t all = static_cast<int64_t>(plan_.factors.size());
    if (first < 0 || factors < 0 || first > all - factors)
      refuse("there are " + std::to_string(all) + " factors, got " + std::to_string(factors) + " from " + std::to_string(first));
    for (int64_t k = first; k < first + factors; ++k)
      if (plan_.factors[static_cast<size_t>(k)].kind != Kind::generic) refuse("factor " + std::to_string(k) + " has no structures");
  }

  void add(const Uses &uses, int64_t f, Kind kind, int32_t extra, const double *costs, double bound) {
    plan_.factors.push_back({kind, extra, plan_.links(), uses.parts, bound});
    for (int64_t i = 0; i < uses.parts; ++i) {
      const double sign = uses.sign[f * uses.parts + i];
      plan_.bit.push_back(static_cast<int32_t>(uses.bits[f * uses.parts + i]));
      plan_.sign.push_back(sign);
      plan_.offset.push_back(sign < 0 ? 1 : 0);
      plan_.costs.push_back(costs ? costs[i] : 0);
    }
  }

  void begin(int64_t r, State &s) {
    const size_t links = plan_.bit.size();
    s.l.assign(links, 0.0), s.z.assign(links, 0.0), s.across.assign(links, 0.0), s.free.assign(links, 0);
    s.middle.assign(static_cast<size_t>(plan_.bits), 0.0);
    s.bound.assign(plan_.factors.size(), Bound::none);
    s.generics.resize(plan_.generics.size());
    for (size_t g = 0; g < s.generics.size(); ++g) s.generics[g].oracle = plan_.generics[g].make(r);
  }

  template <class F> void each(int64_t rows, int threads, F work) {
    std::vector<std::unique_ptr<Consensus>> lanes(static_cast<size_t>(lanes_for(rows, threads)));
    each_row(rows, threads, [&](int64_t r, int lane) {
      auto &mine = lanes[static_cast<size_t>(lane)];
      if (!mine) mine = std::make_unique<Consensus>(plan_);
      work(r, *mine);
    });
  }

  Plan plan_;
  std::vector<State> states_;
  std::vector<std::function<void(int64_t)>> enough_;
};

// The nearest points, with all weights one: call(nearest, y, w, n, z, free) for every row.
template <class Nearest, class Call>
void nearest_rows(const Buffer &scores_, int64_t rows, int64_t n, const Buffer &to_, int threads, Call call) {
  const double *scores = scores_.numbers<double>("scores", count_of(rows, n));
  double *to = to_.numbers<double>("to", count_of(rows, n));
  if (rows == 0) return;
  struct Lane {
    Nearest nearest;
    std::vector<double> ones;
    std::vector<uint8_t> free;
  };
  const size_t size = static_cast<size_t>(n);
  std::vector<Lane> lanes(static_cast<size_t>(lanes_for(rows, threads)));
  for (Lane &lane : lanes) lane.ones.assign(size, 1.0), lane.free.resize(size);
  each_row(rows, threads, [&](int64_t r, int lane) {
    Lane &mine = lanes[static_cast<size_t>(lane)];
    const double *y = scores + r * n;
    double *z = to + r * n;
    if (std::any_of(y, y + n, [](double v) { return std::isnan(v); })) return std::fill(z, z + n, NAN);
    call(mine.nearest, y, mine.ones.data(), z, mine.free.data());
  });
}

void nearest_linear(const Buffer &scores, int64_t rows, int64_t n, const Buffer &costs_, double bound, bool equal,
                    const Buffer &to, int threads) {
  const double *costs = costs_.numbers<double>("costs", n);
  nearest_rows<LinearNearest>(scores, rows, n, to, threads,
                              [=](LinearNearest &nearest, const double *y, const double *w, double *z, uint8_t *free) {
                                nearest(y, w, costs, n, bound, equal, z, free);
                              });
}

void nearest_any_out(const Buffer &scores, int64_t rows, int64_t n, const Buffer &to, int threads) {
  check_positive(n, "n");
  scores.numbers<double>("scores", count_of(rows, n));
  if (rows == 0) return;
  std::vector<double> costs(static_cast<size_t>(n), 1.0);
  costs.back() = -1;
  nearest_rows<OrOutNearest>(scores, rows, n, to, threads,
                             [&](OrOutNearest &nearest, const double *y, const double *w, double *z, uint8_t *free) {
                               nearest(y, w, costs.data(), n, z, free);
                             });
}

template <class Oracle, class... A> std::unique_ptr<AnyOracle> made(A &&...a) {
  return std::make_unique<Wrapped<Oracle>>(std::forward<A>(a)...);
}

}  // namespace

void bind_graphs(nb::module_ &m) {
  // A solved graph lives as long as the tensors that came out of it, which may be until the interpreter ends.
  nb::set_leak_warnings(false);
  m.def("sparsemap_logic", [](const Request &q, int rule, const Buffer &turned_) {
    q.expect(q.parts, q.parts);
    if (rule < 0 || rule > 3) refuse("there are four rules, got " + std::to_string(rule));
    const uint8_t *turned = turned_.numbers<uint8_t>("turned", q.parts);
    return solve_rows(q, [&](int64_t, int) { return LogicOracle(q.parts, static_cast<Rule>(rule), turned); });
  });
  m.def("sparsemap_pairs", [](const Request &q, const Buffer &scores_) {
    q.expect(2, 2);
    const double *scores = scores_.numbers<double>("scores", q.rows);
    return solve_rows(q, [&](int64_t r, int) { return PairOracle(scores[r]); });
  });
  m.def("nearest_linear", &nearest_linear, nb::call_guard<nb::gil_scoped_release>());
  m.def("nearest_any_out", &nearest_any_out, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<Uses>(m, "Uses").def(nb::init<int64_t, int64_t, const Buffer &, const Buffer &>(), nb::keep_alive<1, 4>(),
                                  nb::keep_alive<1, 5>());
  const auto any_number = [](int64_t) {};
  nb::class_<Graph>(m, "Graph")
      .def(nb::init<int64_t>())
      .def("add_linear", &Graph::add_linear)
      .def("add_any_out", &Graph::add_any_out)
      .def("add_pairs", &Graph::add_pairs)
      .def("add_sequences",
           [](Graph &g, const Uses &uses, const Chains &chains) {
             uses.expect(chains.parts());
             g.add_generic(uses, chains.positions, [chains](int64_t r) { return made<SequenceOracle>(chains, r); },
                           [chains](int64_t rows) { chains.check(rows); });
           },
           nb::keep_alive<1, 3>())
      .def("add_subsets",
           [](Graph &g, const Uses &uses, const Subsets &subsets) {
             uses.expect(subsets.parts());
             g.add_generic(uses, subsets.positions, [subsets](int64_t r) { return made<SubsetOracle>(subsets, r); },
                           [subsets](int64_t rows) { subsets.check(rows); });
           },
           nb::keep_alive<1, 3>())
      .def("add_dependencies",
           [=](Graph &g, const Uses &uses, int64_t n, bool projective, bool single) {
             if (count_of(n) > MOST_WORDS) refuse("a tree must have at most " + std::to_string(MOST_WORDS) + " words");
             uses.expect(n * n);
             g.add_generic(uses, n, [=](int64_t) { return made<TreeOracle>(n, projective, single); }, any_number);
           })
      .def("add_spanning",
           [=](Graph &g, const Uses &uses, const Buffer &ends_, int64_t nodes) {
             const int64_t edges = uses.parts;
             const int32_t *ends = check_edges(ends_, edges, nodes);
             g.add_generic(uses, edges, [=](int64_t) { return made<SpanningOracle>(ends, edges, nodes); }, any_number);
           },
           nb::keep_alive<1, 3>())
      .def("add_assignments",
           [=](Graph &g, const Uses &uses, int64_t rows, int64_t columns, bool alone) {
             uses.expect(count_of(rows, columns));
             g.add_generic(uses, rows, [=](int64_t) { return made<AssignmentOracle>(rows, columns, alone); }, any_number);
           })
      .def("solve", &Graph::solve, nb::call_guard<nb::gil_scoped_release>())
      .def("pull", &Graph::pull, nb::call_guard<nb::gil_scoped_release>())
      .def("active", &Graph::active)
      .def("weigh", &Graph::weigh, nb::call_guard<nb::gil_scoped_release>());
}
