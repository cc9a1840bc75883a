// SparseMAP over a batch of instances, and the derivatives of its answers. For the bind_*.cpp that know structures.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "active.h"
#include "argument.h"
#include "share.h"

namespace fewfold {

// Codes (m, slots): the part at each slot, or -1 for none.
inline const int32_t *check_codes(const Buffer &codes, int64_t m, int64_t slots, int64_t parts, const char *name) {
  const int32_t *found = codes.numbers<int32_t>(name, count_of(m, slots));
  check_range(found, m * slots, -1, parts, name);
  return found;
}

// The ends of edges, (edges, 2), between this number of nodes.
inline const int32_t *check_edges(const Buffer &ends, int64_t edges, int64_t nodes) {
  const int32_t *found = ends.numbers<int32_t>("ends", count_of(edges, 2));
  if (count_of(nodes) > std::numeric_limits<int32_t>::max()) refuse("there must be fewer than 2^31 nodes");
  if (nodes > edges + 1) refuse(std::to_string(edges) + " edges cannot connect " + std::to_string(nodes) + " nodes");
  check_range(found, 2 * edges, 0, nodes, "ends");
  return found;
}

// Arguments and outputs of a batched solve.
struct Request {
  int64_t rows, parts, slots;
  int64_t turns;
  double tolerance;
  const double *scores;         // (rows, parts)
  const int32_t *warm_codes;    // (m, slots), or null: structures to start from
  const int64_t *warm_offsets;  // (rows + 1)
  double *marginals;            // (rows, parts)
  double *gaps;                 // (rows,)
  int64_t *took;                // (rows,)
  int32_t *outcomes;            // (rows,)
  int threads;
  bool widen;                   // whether to add structures of weight zero, for derivatives

  Request(const Buffer &scores_, int64_t rows_, int64_t parts_, int64_t slots_, int64_t turns_, double tolerance_,
          const Buffer &codes, const Buffer &offsets, const Buffer &marginals_, const Buffer &gaps_, const Buffer &took_,
          const Buffer &outcomes_, int threads_, bool widen_)
      : rows(rows_), parts(parts_), slots(slots_), turns(turns_), tolerance(tolerance_),
        scores(scores_.numbers<double>("scores", count_of(rows, parts))),
        warm_offsets(offsets.maybe<int64_t>("warm offsets", count_of(rows) + 1)),
        marginals(marginals_.numbers<double>("marginals", count_of(rows, parts))),
        gaps(gaps_.numbers<double>("gaps", rows)), took(took_.numbers<int64_t>("turns", rows)),
        outcomes(outcomes_.numbers<int32_t>("outcomes", rows)), threads(lanes_for(rows, threads_)), widen(widen_) {
    check_positive(slots, "slots");
    count_of(slots, 4);
    if (parts > std::numeric_limits<int32_t>::max()) refuse("parts must be fewer than 2^31");
    const int64_t m = warm_offsets ? check_offsets(warm_offsets, rows, codes.count(), "warm offsets") : 0;
    warm_codes = m ? check_codes(codes, m, slots, parts, "warm codes") : nullptr;
  }

  // Raises unless an instance has this number of parts and slots.
  void expect(int64_t own_parts, int64_t own_slots) const {
    if (parts != own_parts || slots != own_slots)
      refuse("the structure has " + std::to_string(own_parts) + " parts and " + std::to_string(own_slots) +
             " slots, the request " + std::to_string(parts) + " and " + std::to_string(slots));
  }
};

// An array that numpy owns.
template <class T> nanobind::ndarray<nanobind::numpy, T> given(std::vector<T> &&from, std::vector<size_t> shape) {
  auto *owned = new std::vector<T>(std::move(from));
  nanobind::capsule owner(owned, [](void *p) noexcept { delete static_cast<std::vector<T> *>(p); });
  return nanobind::ndarray<nanobind::numpy, T>(owned->data(), shape.size(), shape.data(), owner);
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
  if (q.rows > 0) {  // without rows the number of parts is unchecked
    nanobind::gil_scoped_release release;
    const size_t lanes = static_cast<size_t>(q.threads);
    std::vector<ActiveSet> sets(lanes);
    std::vector<std::vector<double>> left(lanes, std::vector<double>(static_cast<size_t>(q.parts)));
    std::vector<std::vector<double>> spare(lanes);
    std::vector<std::vector<int32_t>> code(lanes, std::vector<int32_t>(static_cast<size_t>(q.slots)));
    each_row(q.rows, q.threads, [&](int64_t r, int lane) {
      const size_t mine = static_cast<size_t>(lane);
      ActiveSet &active = sets[mine];
      active.reset(q.slots);
      auto &&oracle = make(r, lane);
      const double *scores = q.scores + r * q.parts;
      if (q.warm_offsets) {
        const int64_t *at = q.warm_offsets + r;
        for (int64_t i = at[0]; i < at[1]; ++i) {
          const int32_t *c = q.warm_codes + i * q.slots;
          active.append(c, 0, 1);
        }
        if (active.size()) active.normalise();
      }
      double *marginals = q.marginals + r * q.parts;
      const Result result = sparsemap(oracle, scores, q.parts, {q.turns, q.tolerance}, active, marginals,
                                  left[mine].data(), code[mine].data());
      q.gaps[r] = result.gap;
      q.took[r] = result.turns;
      q.outcomes[r] = static_cast<int32_t>(result.outcome);
      if (result.outcome == Outcome::no_numbers || result.outcome == Outcome::infeasible) {
        std::fill_n(marginals, q.parts, result.outcome == Outcome::no_numbers ? NAN : 0.0);
        return;
      }
      if (q.widen && result.outcome == Outcome::converged) {
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
