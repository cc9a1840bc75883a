// Sequences, and bits in a row.
#include "bind.h"
#include "sequence.h"
#include "solve.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

// SparseMAP, the best and the k best for what `Oracle` makes of a `Problem`.
template <class Oracle, class Problem> void bind_chain(nb::module_ &m, const std::string &name) {
  m.def(("sparsemap_" + name).c_str(), [](const Request &q, const Problem &problem) {
    return solve_rows(q, [&](int64_t r, int) { return Oracle(problem, r); });
  });
  m.def(("best_" + name).c_str(),
        [](uintptr_t scores, int64_t rows, int64_t parts, int64_t slots, const Problem &problem, uintptr_t codes,
           uintptr_t values, int threads) {
          each_row(rows, threads, [&](int64_t r, int) {
            address<double>(values)[r] = Oracle(problem, r).best(address<const double>(scores) + r * parts,
                                                                 address<int32_t>(codes) + r * slots);
          });
        },
        nb::call_guard<nb::gil_scoped_release>());
  m.def(("k_best_" + name).c_str(),
        [](uintptr_t scores, int64_t rows, int64_t parts, int64_t slots, const Problem &problem, int64_t k,
           uintptr_t codes, uintptr_t values, int threads) {
          each_row(rows, threads, [&](int64_t r, int) {
            Oracle lattice(problem, r);
            list_viterbi(lattice, address<const double>(scores) + r * parts, slots, k,
                         address<int32_t>(codes) + r * k * slots, address<double>(values) + r * k);
          });
        },
        nb::call_guard<nb::gil_scoped_release>());
}

Given given_at(uintptr_t data, int64_t by_row, int64_t by_position = 0) {
  return {address<const double>(data), by_row, by_position};
}

}  // namespace

void bind_sequences(nb::module_ &m) {
  nb::class_<Chains>(m, "Chains")
      .def("__init__", [](Chains *to, int64_t positions, int64_t states, uintptr_t transitions, int64_t by_row,
                          int64_t by_position, uintptr_t start, int64_t start_by_row, uintptr_t stop,
                          int64_t stop_by_row) {
        new (to) Chains{positions, states, given_at(transitions, by_row, by_position), given_at(start, start_by_row),
                        given_at(stop, stop_by_row)};
        if (transitions && !by_row) turn(to->transitions.data, to->tables(), by_position, states, to->turned);
      });
  nb::class_<Subsets>(m, "Subsets")
      .def("__init__", [](Subsets *to, int64_t positions, int64_t on, bool at_most, uintptr_t bonus, int64_t by_row,
                          int64_t by_position) {
        new (to) Subsets{positions, on, at_most, given_at(bonus, by_row, by_position)};
      });
  m.def("pull_sequences",
        [](uintptr_t codes, uintptr_t row, uintptr_t by, int64_t count, int64_t positions, int64_t states,
           uintptr_t transitions, int64_t by_row, int64_t by_position, uintptr_t start, int64_t start_by_row,
           uintptr_t stop, int64_t stop_by_row) {
          pull_sequences(address<const int32_t>(codes), address<const int64_t>(row), address<const double>(by), count,
                         positions, states,
                         {address<double>(transitions), by_row, by_position, address<double>(start), start_by_row,
                          address<double>(stop), stop_by_row});
        },
        nb::call_guard<nb::gil_scoped_release>());
  bind_chain<SequenceOracle, Chains>(m, "sequences");
  bind_chain<SubsetOracle, Subsets>(m, "subsets");
}
