// SparseMAP over a batch of instances, and the derivatives of its answers. For the bind_*.cpp that know structures.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "active.h"

namespace fewfold {

// Calls work(row, lane) for every row; a lane is what one thread keeps to itself. Rows differ in what they cost.
template <class F> void each_row(int64_t rows, int threads, F work) {
#ifdef _OPENMP
  const int n = static_cast<int>(std::min<int64_t>(threads, rows));
  if (n > 1) {
#pragma omp parallel num_threads(n)
    {
      const int lane = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
      for (int64_t r = 0; r < rows; ++r) work(r, lane);
    }
    return;
  }
#endif
  (void)threads;
  for (int64_t r = 0; r < rows; ++r) work(r, 0);
}

// Where Python wants the answers; raw addresses.
struct Request {
  uintptr_t scores;      // (rows, parts) float64
  int64_t rows, parts, slots;
  int64_t turns;
  double tolerance;
  uintptr_t warm_codes;  // (m, slots) int32, or 0: structures to start from
  uintptr_t warm_offsets;  // (rows + 1) int64
  uintptr_t marginals;   // (rows, parts) float64
  uintptr_t gaps;        // (rows,) float64
  uintptr_t took;        // (rows,) int64
  uintptr_t outcomes;    // (rows,) int32
  int threads;
  bool widen;            // whether structures of weight zero are wanted, for derivatives
};

template <class T> T *address(uintptr_t p) { return reinterpret_cast<T *>(p); }

// An array that numpy owns.
template <class T> nanobind::ndarray<nanobind::numpy, T> given(std::vector<T> &&from, std::vector<size_t> shape) {
  auto *kept = new std::vector<T>(std::move(from));
  nanobind::capsule owner(kept, [](void *p) noexcept { delete static_cast<std::vector<T> *>(p); });
  return nanobind::ndarray<nanobind::numpy, T>(kept->data(), shape.size(), shape.data(), owner);
}

// Solves every row with the oracle that make(row, lane) returns, and hands over (codes, weights, offsets, factors): the
// structures of row r are those from offsets[r] to offsets[r + 1], and for derivatives the factor of each row follows
// that of the one before.
template <class Make> nanobind::tuple solve_rows(const Request &q, Make make) {
  struct Found {
    std::vector<int32_t> codes;
    std::vector<double> weights, factor;
  };
  std::vector<Found> found(static_cast<size_t>(q.rows));
  {
    nanobind::gil_scoped_release release;
    const size_t lanes = static_cast<size_t>(std::max(1, q.threads));
    std::vector<ActiveSet> sets(lanes);
    std::vector<std::vector<double>> left(lanes, std::vector<double>(static_cast<size_t>(q.parts)));
    std::vector<std::vector<double>> spare(lanes);
    std::vector<std::vector<int32_t>> code(lanes, std::vector<int32_t>(static_cast<size_t>(q.slots)));
    each_row(q.rows, q.threads, [&](int64_t r, int lane) {
      const size_t mine = static_cast<size_t>(lane);
      ActiveSet &active = sets[mine];
      active.reset(q.slots);
      auto &&oracle = make(r, lane);
      const double *scores = address<const double>(q.scores) + r * q.parts;
      if (q.warm_offsets) {
        const int64_t *at = address<const int64_t>(q.warm_offsets) + r;
        for (int64_t i = at[0]; i < at[1]; ++i) {
          const int32_t *c = address<const int32_t>(q.warm_codes) + i * q.slots;
          active.append(c, 0, 1);
        }
        if (active.size()) active.normalise();
      }
      double *marginals = address<double>(q.marginals) + r * q.parts;
      const Told told = sparsemap(oracle, scores, q.parts, {q.turns, q.tolerance}, active, marginals,
                                  left[mine].data(), code[mine].data());
      address<double>(q.gaps)[r] = told.gap;
      address<int64_t>(q.took)[r] = told.turns;
      address<int32_t>(q.outcomes)[r] = static_cast<int32_t>(told.outcome);
      if (told.outcome == Outcome::no_numbers || told.outcome == Outcome::infeasible) {
        std::fill_n(marginals, q.parts, told.outcome == Outcome::no_numbers ? NAN : 0.0);
        return;
      }
      if (q.widen && told.outcome == Outcome::converged) {
        spare[mine].resize(static_cast<size_t>(2 * q.parts));
        widen(oracle, q.parts, active, marginals, left[mine].data(), code[mine].data(), spare[mine].data());
      }
      for (int64_t p = 0; p < q.parts; ++p) marginals[p] = std::min(marginals[p], 1.0);  // rounding
      Found &to = found[static_cast<size_t>(r)];
      for (int64_t i = 0; i < active.size(); ++i) {
        if (!(active.weight(i) > 0) && !q.widen) continue;
        to.codes.insert(to.codes.end(), active.code(i), active.code(i) + q.slots);
        to.weights.push_back(active.weight(i));
      }
      if (q.widen) active.give_factor(to.factor);
    });
  }
  std::vector<int32_t> codes;
  std::vector<double> weights, factors;
  std::vector<int64_t> offsets{0};
  for (const Found &one : found) {
    codes.insert(codes.end(), one.codes.begin(), one.codes.end());
    weights.insert(weights.end(), one.weights.begin(), one.weights.end());
    factors.insert(factors.end(), one.factor.begin(), one.factor.end());
    offsets.push_back(static_cast<int64_t>(weights.size()));
  }
  const size_t m = weights.size(), slots = static_cast<size_t>(q.slots), rows = offsets.size(), all = factors.size();
  return nanobind::make_tuple(given(std::move(codes), {m, slots}), given(std::move(weights), {m}),
                              given(std::move(offsets), {rows}), given(std::move(factors), {all}));
}

}  // namespace fewfold
