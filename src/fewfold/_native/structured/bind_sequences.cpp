// Sequences, and bits in a row.
#include "bind.h"
#include "sequence.h"
#include "solve.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

// The number of parts of a chain, indexed in 32 bits, as are those of one step.
int64_t chain_parts(int64_t positions, int64_t states) {
  check_positive(positions, "positions");
  check_positive(states, "states");
  const int64_t parts = count_of(positions, states);
  if (parts > std::numeric_limits<int32_t>::max()) refuse("a chain must have fewer than 2^31 parts");
  return parts;
}

// SparseMAP, the best and the k best for what `Oracle` makes of a `Problem`.
template <class Oracle, class Problem> void bind_chain(nb::module_ &m, const std::string &name) {
  m.def(("sparsemap_" + name).c_str(), [](const Request &q, const Problem &problem) {
    q.expect(problem.parts(), problem.positions);
    problem.check(q.rows);
    if (q.warm_codes) problem.check_codes(q.warm_codes, q.warm_offsets[q.rows]);
    return solve_rows(q, [&](int64_t r, int) { return Oracle(problem, r); });
  });
  m.def(("best_" + name).c_str(),
        [](const Buffer &scores_, int64_t rows, const Problem &problem, const Buffer &codes_, const Buffer &values_,
           int threads) {
          const int64_t parts = problem.parts(), slots = problem.positions;
          problem.check(rows);
          const double *scores = scores_.numbers<double>("scores", count_of(rows, parts));
          int32_t *codes = codes_.numbers<int32_t>("codes", count_of(rows, slots));
          double *values = values_.numbers<double>("values", rows);
          each_row(rows, threads, [&](int64_t r, int) {
            values[r] = Oracle(problem, r).best(scores + r * parts, codes + r * slots);
          });
        },
        nb::call_guard<nb::gil_scoped_release>());
  m.def(("k_best_" + name).c_str(),
        [](const Buffer &scores_, int64_t rows, const Problem &problem, int64_t k, const Buffer &codes_,
           const Buffer &values_, int threads) {
          const int64_t parts = problem.parts(), slots = problem.positions;
          check_positive(k, "k");
          problem.check(rows);
          const double *scores = scores_.numbers<double>("scores", count_of(rows, parts));
          int32_t *codes = codes_.numbers<int32_t>("codes", count_of(rows, k, slots));
          double *values = values_.numbers<double>("values", count_of(rows, k));
          each_row(rows, threads, [&](int64_t r, int) {
            Oracle lattice(problem, r);
            list_viterbi(lattice, scores + r * parts, slots, k, codes + r * k * slots, values + r * k);
          });
        },
        nb::call_guard<nb::gil_scoped_release>());
}

// Additional scores of instances: `tables` of them, of `own` numbers, for each.
Given given_at(const Buffer &from, const char *name, int64_t by_row, int64_t tables, int64_t by_position, int64_t own) {
  if (!from.given()) return {};
  const int64_t needed = reach_of(tables, own, by_position);  // per row
  from.apart<double>(name, from.count() ? needed : 0);
  return {from.apart<double>(name, 0), by_row, by_position, name, from.reach(), needed};
}

// Where gradients of additional scores go: rows of them, as in given_at.
double *pulled_at(const Buffer &to, const char *name, int64_t rows, int64_t by_row, int64_t own) {
  return to.given() ? to.numbers<double>(name, reach_of(rows, own, by_row)) : nullptr;
}

void pull(const Buffer &codes_, const Buffer &row_, const Buffer &by_, int64_t count, int64_t positions, int64_t states,
          int64_t rows, const Buffer &transitions, int64_t by_row, int64_t by_position, const Buffer &start,
          int64_t start_by_row, const Buffer &stop, int64_t stop_by_row) {
  chain_parts(positions, states);
  const int32_t *codes = codes_.numbers<int32_t>("codes", count_of(count, positions));
  check_states(codes, count, positions, states);
  const int64_t *row = row_.numbers<int64_t>("row", count);
  check_ids(row, count, rows, "row", 1);
  const int64_t steps = positions > 1 ? (positions - 2) * count_of(by_position, 1) + count_of(states, states) : 0;
  pull_sequences(codes, row, by_.numbers<double>("by", count), count, positions, states,
                 {pulled_at(transitions, "transitions", rows, by_row, steps), by_row, by_position,
                  pulled_at(start, "start", rows, start_by_row, states), start_by_row,
                  pulled_at(stop, "stop", rows, stop_by_row, states), stop_by_row});
}

}  // namespace

void bind_sequences(nb::module_ &m) {
  nb::class_<Chains>(m, "Chains")
      .def("__init__",
           [](Chains *to, int64_t positions, int64_t states, const Buffer &transitions, int64_t by_row,
              int64_t by_position, const Buffer &start, int64_t start_by_row, const Buffer &stop, int64_t stop_by_row) {
             chain_parts(positions, states);
             const int64_t tables = positions < 2 ? 0 : by_position ? positions - 1 : 1;
             Chains made{positions, states,
                         given_at(transitions, "transitions", by_row, tables, by_position, count_of(states, states)),
                         given_at(start, "start", start_by_row, 1, 0, states),
                         given_at(stop, "stop", stop_by_row, 1, 0, states)};
             if (transitions.count() && !by_row) turn(made.transitions.data, tables, by_position, states, made.turned);
             new (to) Chains(std::move(made));
           },
           nb::keep_alive<1, 4>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 9>());
  nb::class_<Subsets>(m, "Subsets")
      .def("__init__",
           [](Subsets *to, int64_t positions, int64_t on, bool at_most, const Buffer &bonus, int64_t by_row,
              int64_t by_position) {
             if (count_of(on) > positions) refuse("of " + std::to_string(positions) + " bits " + std::to_string(on) + " cannot be on");
             chain_parts(positions, on + 2);
             if (positions > 1 && !bonus.given()) throw nb::type_error("bonus must be a tensor, got None");
             new (to) Subsets{positions, on, at_most, given_at(bonus, "bonus", by_row, positions - 1, by_position, 1)};
           },
           nb::keep_alive<1, 5>());
  m.def("pull_sequences", &pull, nb::call_guard<nb::gil_scoped_release>());
  bind_chain<SequenceOracle, Chains>(m, "sequences");
  bind_chain<SubsetOracle, Subsets>(m, "subsets");
}
