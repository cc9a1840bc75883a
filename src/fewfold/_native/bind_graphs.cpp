// Logic over bits, and graphs of factors that share bits.
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

// Which bits the factors of a group use; raw addresses.
struct Uses {
  int64_t factors, parts;
  uintptr_t bits;  // (factors, parts) int64
  uintptr_t sign;  // (factors, parts) float64: -1 where a bit is read the other way round
};

// A graph and what it knows of every instance once it is solved.
class Graph {
 public:
  explicit Graph(int64_t bits) { plan_.bits = bits; }
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;

  void add_linear(const Uses &uses, uintptr_t costs, uintptr_t bounds, bool equal) {
    const double *c = address<const double>(costs);
    for (int64_t f = 0; f < uses.factors; ++f)
      add(uses, f, equal ? Kind::linear_equal : Kind::linear, 0, c + f * uses.parts, address<const double>(bounds)[f]);
  }

  void add_any_out(const Uses &uses) {
    std::vector<double> costs(static_cast<size_t>(uses.parts), 1.0);
    costs.back() = -1;
    for (int64_t f = 0; f < uses.factors; ++f) add(uses, f, Kind::any_out, 0, costs.data(), 0);
  }

  void add_pairs(const Uses &uses) {
    for (int64_t f = 0; f < uses.factors; ++f)
      add(uses, f, Kind::pair, static_cast<int32_t>(plan_.pairs++), nullptr, 0);
  }

  // make(row) gives the oracle of a factor of an instance, row = instance * factors + factor.
  template <class Make> void add_generic(const Uses &uses, int64_t slots, Make make) {
    for (int64_t f = 0; f < uses.factors; ++f) {
      add(uses, f, Kind::generic, static_cast<int32_t>(plan_.generics.size()), nullptr, 0);
      const int64_t factors = uses.factors;
      plan_.generics.push_back({slots, [=](int64_t r) { return make(r * factors + f); }});
    }
  }

  // pairs is (rows, pairs), steps (rows,). With `warm`, goes on from the multipliers of the last call.
  void solve(uintptr_t scores, int64_t rows, uintptr_t pairs, int64_t turns, double tolerance, uintptr_t steps, bool warm,
             uintptr_t marginals, uintptr_t took, uintptr_t apart, uintptr_t moved, uintptr_t outcomes,
             uintptr_t failed, int threads) {
    if (!warm) plan_.finish(), states_.clear(), states_.resize(static_cast<size_t>(rows));
    each(rows, threads, [&](int64_t r, Consensus &consensus) {
      State &s = states_[static_cast<size_t>(r)];
      if (!warm) begin(r, s);
      consensus.solve(address<const double>(scores) + r * plan_.bits, address<const double>(pairs) + r * plan_.pairs,
                      {turns, tolerance, address<const double>(steps)[r]}, s);
      double *to = address<double>(marginals) + r * plan_.bits;
      const bool odd = s.outcome == Outcome::no_numbers;
      for (int64_t b = 0; b < plan_.bits; ++b) to[b] = odd ? NAN : s.middle[static_cast<size_t>(b)];
      address<int64_t>(took)[r] = s.turns;
      address<double>(apart)[r] = odd ? NAN : s.apart;
      address<double>(moved)[r] = odd ? NAN : s.moved;
      address<int32_t>(outcomes)[r] = static_cast<int32_t>(s.outcome);
      address<int32_t>(failed)[r] = s.failed;
    });
  }

  void pull(uintptr_t grads, uintptr_t to, int threads) {
    each(static_cast<int64_t>(states_.size()), threads, [&](int64_t r, Consensus &consensus) {
      consensus.project(states_[static_cast<size_t>(r)], address<const double>(grads) + r * plan_.bits,
                        address<double>(to) + r * plan_.bits);
    });
  }

  // to (rows, bits) += what changes of the scores of those structures, in the order of `active`, are worth as changes of
  // the scores of bits
  void weigh(int64_t first, int64_t factors, uintptr_t values, uintptr_t to) {
    Consensus consensus(plan_);
    const double *at = address<const double>(values);
    for (size_t r = 0; r < states_.size(); ++r) {
      if (states_[r].outcome == Outcome::no_numbers) continue;
      for (int64_t k = first; k < first + factors; ++k) {
        const FactorPlan &f = plan_.factors[static_cast<size_t>(k)];
        consensus.weigh(states_[r], f, at, address<double>(to) + static_cast<int64_t>(r) * plan_.bits);
        at += states_[r].generics[static_cast<size_t>(f.extra)].active.size();
      }
    }
  }

  // The structures of some generic factors, by instance and factor; their weights, and by how much these move as the
  // bits of every instance do.
  nb::tuple active(int64_t first, int64_t factors, uintptr_t changes) {
    std::vector<int32_t> codes;
    std::vector<double> weights, by;
    std::vector<int64_t> offsets{0};
    Consensus consensus(plan_);
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
            consensus.derive(states_[r], f, address<const double>(changes) + static_cast<int64_t>(r) * plan_.bits,
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
  void add(const Uses &uses, int64_t f, Kind kind, int32_t extra, const double *costs, double bound) {
    plan_.factors.push_back({kind, extra, plan_.links(), uses.parts, bound});
    for (int64_t i = 0; i < uses.parts; ++i) {
      const double sign = address<const double>(uses.sign)[f * uses.parts + i];
      plan_.bit.push_back(static_cast<int32_t>(address<const int64_t>(uses.bits)[f * uses.parts + i]));
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
    std::vector<std::unique_ptr<Consensus>> lanes(static_cast<size_t>(std::max(1, threads)));
    each_row(rows, threads, [&](int64_t r, int lane) {
      auto &mine = lanes[static_cast<size_t>(lane)];
      if (!mine) mine = std::make_unique<Consensus>(plan_);
      work(r, *mine);
    });
  }

  Plan plan_;
  std::vector<State> states_;
};

// The nearest points, with all weights one: call(nearest, y, w, n, z, free) for every row.
template <class Nearest, class Call>
void nearest_rows(uintptr_t scores, int64_t rows, int64_t n, uintptr_t to, int threads, Call call) {
  struct Lane {
    Nearest nearest;
    std::vector<double> ones;
    std::vector<uint8_t> free;
  };
  const size_t size = static_cast<size_t>(n);
  std::vector<Lane> lanes(static_cast<size_t>(std::max(1, threads)));
  for (Lane &lane : lanes) lane.ones.assign(size, 1.0), lane.free.resize(size);
  each_row(rows, threads, [&](int64_t r, int lane) {
    Lane &mine = lanes[static_cast<size_t>(lane)];
    const double *y = address<const double>(scores) + r * n;
    double *z = address<double>(to) + r * n;
    if (std::any_of(y, y + n, [](double v) { return std::isnan(v); })) return std::fill(z, z + n, NAN);
    call(mine.nearest, y, mine.ones.data(), z, mine.free.data());
  });
}

void nearest_linear(uintptr_t scores, int64_t rows, int64_t n, uintptr_t costs, double bound, bool equal, uintptr_t to,
                    int threads) {
  nearest_rows<LinearNearest>(scores, rows, n, to, threads,
                              [=](LinearNearest &nearest, const double *y, const double *w, double *z, uint8_t *free) {
                                nearest(y, w, address<const double>(costs), n, bound, equal, z, free);
                              });
}

void nearest_any_out(uintptr_t scores, int64_t rows, int64_t n, uintptr_t to, int threads) {
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
  m.def("sparsemap_logic", [](const Request &q, int rule, uintptr_t turned) {
    return solve_rows(q, [&](int64_t, int) {
      return LogicOracle(q.parts, static_cast<Rule>(rule), address<const uint8_t>(turned));
    });
  });
  m.def("sparsemap_pairs", [](const Request &q, uintptr_t scores) {
    return solve_rows(q, [&](int64_t r, int) { return PairOracle(address<const double>(scores)[r]); });
  });
  m.def("nearest_linear", &nearest_linear, nb::call_guard<nb::gil_scoped_release>());
  m.def("nearest_any_out", &nearest_any_out, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<Uses>(m, "Uses").def(nb::init<int64_t, int64_t, uintptr_t, uintptr_t>());
  nb::class_<Graph>(m, "Graph")
      .def(nb::init<int64_t>())
      .def("add_linear", &Graph::add_linear)
      .def("add_any_out", &Graph::add_any_out)
      .def("add_pairs", &Graph::add_pairs)
      .def("add_sequences", [](Graph &g, const Uses &uses, const Chains &chains) {
        g.add_generic(uses, chains.positions, [chains](int64_t r) { return made<SequenceOracle>(chains, r); });
      })
      .def("add_subsets", [](Graph &g, const Uses &uses, const Subsets &subsets) {
        g.add_generic(uses, subsets.positions, [subsets](int64_t r) { return made<SubsetOracle>(subsets, r); });
      })
      .def("add_dependencies", [](Graph &g, const Uses &uses, int64_t n, bool projective, bool single) {
        g.add_generic(uses, n, [=](int64_t) { return made<TreeOracle>(n, projective, single); });
      })
      .def("add_spanning", [](Graph &g, const Uses &uses, uintptr_t ends, int64_t nodes) {
        const int64_t edges = uses.parts;
        g.add_generic(uses, edges,
                      [=](int64_t) { return made<SpanningOracle>(address<const int32_t>(ends), edges, nodes); });
      })
      .def("add_assignments", [](Graph &g, const Uses &uses, int64_t rows, int64_t columns, bool alone) {
        g.add_generic(uses, rows, [=](int64_t) { return made<AssignmentOracle>(rows, columns, alone); });
      })
      .def("solve", &Graph::solve, nb::call_guard<nb::gil_scoped_release>())
      .def("pull", &Graph::pull, nb::call_guard<nb::gil_scoped_release>())
      .def("active", &Graph::active)
      .def("weigh", &Graph::weigh, nb::call_guard<nb::gil_scoped_release>());
}
