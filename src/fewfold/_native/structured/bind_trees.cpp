// Trees: dependency trees over words, spanning trees of graphs.
#include "bind.h"
#include "ranked.h"
#include "solve.h"
#include "spanning.h"
#include "trees.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

// Arguments and outputs of a search for the best structures.
struct Best {
  int64_t rows, parts, slots, k;
  const double *scores;  // (rows, parts)
  int32_t *codes;        // (rows, k, slots), all -1
  double *values;        // (rows, k), all -inf
  int threads;

  Best(const Buffer &scores_, int64_t rows_, int64_t parts_, int64_t slots_, int64_t k_, const Buffer &codes_,
       const Buffer &values_, int threads_)
      : rows(rows_), parts(parts_), slots(slots_), k(k_), scores(scores_.numbers<double>("scores", count_of(rows, parts))),
        codes(codes_.numbers<int32_t>("codes", count_of(rows, k, slots))),
        values(values_.numbers<double>("values", count_of(rows, k))), threads(lanes_for(rows, threads_)) {
    check_positive(k, "k");
  }
  const double *row(int64_t r) const { return scores + r * parts; }
  int32_t *code(int64_t r, int64_t i = 0) const { return codes + (r * k + i) * slots; }
  double *value(int64_t r, int64_t i = 0) const { return values + r * k + i; }
  void expect(int64_t own) const {
    if (rows && parts != own) refuse("an instance must have " + std::to_string(own) + " scores, got " + std::to_string(parts));
  }
};

// Trees over n words have n^2 scores, indexed in 32 bits.
void check_words(int64_t n) {
  if (count_of(n) > MOST_WORDS) refuse("a tree must have at most " + std::to_string(MOST_WORDS) + " words, got " + std::to_string(n));
}

// make() returns the oracle of a thread.
template <class Make> void best_rows(const Best &q, Make make) {
  if (q.rows == 0) return;
  std::vector<decltype(make())> lanes;
  for (int lane = 0; lane < q.threads; ++lane) lanes.push_back(make());
  each_row(q.rows, q.threads, [&](int64_t r, int lane) {
    *q.value(r) = lanes[static_cast<size_t>(lane)].best(q.row(r), q.code(r));
  });
}

// The k best dependency trees of one row.
void rank_dependencies(const Best &q, int64_t r, bool projective, bool single) {
  std::vector<int32_t> present;
  std::vector<double> scores;
  TreeOracle(q.slots, projective, single).pack(q.row(r), present, scores);
  const int64_t n = static_cast<int64_t>(present.size());
  TreeOracle oracle(n, projective, single);
  std::vector<double> allowed;
  const auto solve = [&](const std::vector<int32_t> &forced, const std::vector<int32_t> &forbidden, int32_t *code) {
    allowed = scores;
    for (int32_t part : forced)
      for (int64_t h = 0; h < n; ++h)
        if (h != part / n) allowed[static_cast<size_t>(h * n + part % n)] = -INFINITY;
    for (int32_t part : forbidden) allowed[static_cast<size_t>(part)] = -INFINITY;
    return oracle.best_present(allowed.data(), n, nullptr, code);
  };
  const std::vector<Ranked> found = ranked(n, q.k, solve);
  for (size_t i = 0; i < found.size(); ++i) {
    *q.value(r, static_cast<int64_t>(i)) = found[i].value;
    for (int32_t part : found[i].code) {
      const int64_t head = present[static_cast<size_t>(part / n)], word = present[static_cast<size_t>(part % n)];
      q.code(r, static_cast<int64_t>(i))[word] = static_cast<int32_t>(head * q.slots + word);
    }
  }
}

void rank_spanning(const Best &q, int64_t r, const int32_t *ends, int64_t nodes) {
  SpanningOracle oracle(ends, q.slots, nodes);
  std::vector<double> allowed;
  const auto solve = [&](const std::vector<int32_t> &forced, const std::vector<int32_t> &forbidden, int32_t *code) {
    allowed.assign(q.row(r), q.row(r) + q.parts);
    for (int32_t edge : forbidden) allowed[static_cast<size_t>(edge)] = -INFINITY;
    return oracle.best_with(forced, allowed.data(), code);
  };
  const std::vector<Ranked> found = ranked(q.slots, q.k, solve);
  for (size_t i = 0; i < found.size(); ++i) {
    *q.value(r, static_cast<int64_t>(i)) = found[i].value;
    std::copy(found[i].code.begin(), found[i].code.end(), q.code(r, static_cast<int64_t>(i)));
  }
}

}  // namespace

void bind_trees(nb::module_ &m) {
  nb::class_<Best>(m, "BestTrees")
      .def(nb::init<const Buffer &, int64_t, int64_t, int64_t, int64_t, const Buffer &, const Buffer &, int>(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>());
  m.def("sparsemap_dependencies", [](const Request &q, bool projective, bool single) {
    check_words(q.slots);
    q.expect(q.slots * q.slots, q.slots);
    std::vector<TreeOracle> lanes;
    for (int lane = 0; q.rows && lane < q.threads; ++lane) lanes.emplace_back(q.slots, projective, single);
    return solve_rows(q, [&](int64_t, int lane) -> TreeOracle & { return lanes[static_cast<size_t>(lane)]; });
  });
  m.def(
      "best_dependencies",
      [](const Best &q, bool projective, bool single) {
        check_words(q.slots);
        q.expect(q.slots * q.slots);
        if (q.k == 1) return best_rows(q, [&] { return TreeOracle(q.slots, projective, single); });
        each_row(q.rows, q.threads, [&](int64_t r, int) { rank_dependencies(q, r, projective, single); });
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def("sparsemap_spanning", [](const Request &q, const Buffer &ends, int64_t nodes) {
    q.expect(q.parts, q.parts);
    const int32_t *edges = check_edges(ends, q.slots, nodes);
    return solve_rows(q, [&](int64_t, int) { return SpanningOracle(edges, q.slots, nodes); });
  });
  m.def(
      "best_spanning",
      [](const Best &q, const Buffer &ends, int64_t nodes) {
        q.expect(q.slots);
        const int32_t *edges = check_edges(ends, q.slots, nodes);
        if (q.k == 1) return best_rows(q, [&] { return SpanningOracle(edges, q.slots, nodes); });
        each_row(q.rows, q.threads, [&](int64_t r, int) { rank_spanning(q, r, edges, nodes); });
      },
      nb::call_guard<nb::gil_scoped_release>());
}
