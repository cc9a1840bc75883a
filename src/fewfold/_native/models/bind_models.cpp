// Sparse item-to-item models for Python: shared users of items, regressions on few items, and rankings by sums of rows.
#include <nanobind/nanobind.h>

#include <atomic>

#include "argument.h"
#include "bind.h"
#include "neighbour_rank.h"
#include "share.h"
#include "sparse_ridge.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

constexpr int64_t MUCH = 1 << 20;  // more than enough work for a thread
constexpr int64_t MOST_HUBS = 4096;  // 64 MB

// Calls work(next) in every thread; next() is the next of the items from `first` on, or -1.
template <class F> void take_turns(int64_t first, int64_t last, int threads, F work) {
  std::atomic<int64_t> turn{first};
  share(lanes_for(last - first, threads), MUCH, threads, [&](int64_t, int64_t) {
    work([&] {
      const int64_t mine = turn++;
      return mine < last ? mine : -1;
    });
  });
}

// Offsets from 0 to the number of entries.
const int64_t *offsets_of(const Buffer &given, int64_t rows, int64_t entries, const char *name) {
  const int64_t *found = given.numbers<int64_t>(name, count_of(rows) + 1);
  check_offsets(found, rows, entries, name);
  return found;
}

void check_part(int64_t first, int64_t last, int64_t items) {
  if (first < 0 || first > last || last > items)
    refuse("items from " + std::to_string(first) + " to " + std::to_string(last) + " are not among " +
           std::to_string(items));
}

// The log by user and by item; an error if an id is not among them.
Pairs pairs_of(const Buffer &user_offsets, const Buffer &items_, const Buffer &item_offsets, const Buffer &users_,
               int threads) {
  const int64_t users = user_offsets.count() - 1, items = item_offsets.count() - 1;
  const Pairs log{users, items, offsets_of(user_offsets, users, items_.count(), "user_offsets"),
                  items_.numbers<int64_t>("items", 0), offsets_of(item_offsets, items, users_.count(), "item_offsets"),
                  users_.numbers<int32_t>("users", 0)};
  check_ids(log.item, items_.count(), items, "items", threads);
  check_range(log.user, users_.count(), 0, users, "users");
  return log;
}

// How many steps the rows of shared users of the items from `first` to `last` take: in bytes, and in 16 bits. That of
// item i is at i + 1.
void count_shared_users(const Buffer &user_offsets, const Buffer &items, const Buffer &item_offsets, const Buffer &users,
                        int64_t first, int64_t last, const Buffer &bytes_, const Buffer &wide_, int threads) {
  const Pairs log = pairs_of(user_offsets, items, item_offsets, users, threads);
  check_part(first, last, log.items);
  int64_t *bytes = bytes_.numbers<int64_t>("bytes", log.items + 1), *wide = wide_.numbers<int64_t>("wide", log.items + 1);
  take_turns(first, last, threads, [&](auto next) {
    RowCounter counter(log);
    for (int64_t i = next(); i >= 0; i = next()) {
      int64_t in_bytes = 0, in_16 = 0;
      counter.row(i, [&](int64_t gap, int64_t count) {
        in_bytes += steps<uint8_t>(gap, count, nullptr);
        in_16 += steps<uint16_t>(gap, count, nullptr);
      });
      bytes[i + 1] = in_bytes, wide[i + 1] = in_16;
    }
  });
}

// The steps themselves, of item i from start[i] on.
template <class Part, class Stored>
void shared_users(const Buffer &user_offsets, const Buffer &items, const Buffer &item_offsets, const Buffer &users,
                  int64_t first, int64_t last, const Buffer &start_, const Buffer &steps_, int threads) {
  const Pairs log = pairs_of(user_offsets, items, item_offsets, users, threads);
  check_part(first, last, log.items);
  const int64_t *start = offsets_of(start_, log.items, steps_.count() / 2, "start");
  Step<Part> *to = reinterpret_cast<Step<Part> *>(steps_.numbers<Stored>("steps", 0));
  take_turns(first, last, threads, [&](auto next) {
    RowCounter counter(log);
    for (int64_t i = next(); i >= 0; i = next()) {
      int64_t at = start[i];
      counter.row(i, [&](int64_t gap, int64_t count) {
        const int64_t more = steps<Part>(gap, count, nullptr);
        if (at + more > start[i + 1]) refuse("start does not agree with the log");
        at += steps<Part>(gap, count, to + at);
      });
      if (at != start[i + 1]) refuse("start does not agree with the log");
    }
  });
}

// Regressions of items on few others, from the steps of their rows, which are checked once. The most popular items come
// first.
template <class Part, class Stored> class SparseRidge {
 public:
  SparseRidge(const Buffer &start, const Buffer &steps, const Buffer &number, const Buffer &item_offsets,
              const Buffer &users_, int64_t users, double l2, int64_t width, int64_t rounds)
      : ridge_{{offsets_of(start, number.count(), steps.count() / 2, "start"),
                reinterpret_cast<const Step<Part> *>(steps.numbers<Stored>("steps", 0))},
               number.count(), width, rounds, number.numbers<float>("number", 0), static_cast<float>(l2), users,
               offsets_of(item_offsets, number.count(), users_.count(), "item_offsets"),
               users_.numbers<int32_t>("users", 0), {}} {
    check_range(ridge_.user, users_.count(), 0, users, "users");
    check_positive(width, "width");
    check_positive(rounds, "rounds");
    const Gram<Part> &gram = ridge_.gram;
    for (int64_t i = 0; i < ridge_.items; ++i) {
      const int64_t first = gram.start[i], last = gram.start[i + 1];
      int64_t reach = -1;
      for (int64_t step = first; step < last; ++step) reach += gram.step[step].gap;
      if (reach >= ridge_.items || (first < last && gram.step[first].gap == 0))
        refuse("the steps of item " + std::to_string(i) + " leave the items");
    }
    // The counts between hubs take a sixteenth of an items x items matrix.
    ridge_.hubs = Hubs(gram, std::min(MOST_HUBS, ridge_.items / 4));
  }

  // The predictors of the items from `first` to `last` and their weights, (last - first, width) each, `count` in use.
  void solve(int64_t first, int64_t last, const Buffer &ids_, const Buffer &weights_, const Buffer &count_,
             int threads) const {
    check_part(first, last, ridge_.items);
    const int64_t width = ridge_.width, places = count_of(last - first, width);
    int32_t *ids = ids_.numbers<int32_t>("ids", places);
    float *weights = weights_.numbers<float>("weights", places);
    int64_t *count = count_.numbers<int64_t>("count", last - first);
    take_turns(first, last, threads, [&](auto next) {
      RidgeSolver<Part> solver(ridge_);
      for (int64_t i = next(); i >= 0; i = next())
        count[i - first] = solver.solve(i, ids + (i - first) * width, weights + (i - first) * width);
    });
  }

 private:
  Ridge<Part> ridge_;
};

// The best k of every row of a history by sums of sparse rows; `done` is false where fewer than k have a positive score.
template <class Id>
void rank_rows(const Buffer &start_, const Buffer &id_, const Buffer &weight_, int64_t items, const Buffer &history_,
               const Buffer &history_offsets, const Buffer &excluded_, const Buffer &excluded_offsets,
               const Buffer &allowed_, int64_t k, const Buffer &ids_, const Buffer &scores_, const Buffer &done_,
               int threads) {
  check_positive(items, "items");
  check_positive(k, "k");
  const int64_t entries = id_.count();
  const SparseRows<Id> rows{items, offsets_of(start_, items, entries, "start"), id_.numbers<Id>("id", 0),
                            weight_.numbers<float>("weight", entries)};
  const int64_t users = history_offsets.count() - 1;
  const int64_t *offset = offsets_of(history_offsets, users, history_.count(), "history_offsets");
  const int64_t *history = history_.numbers<int64_t>("history", 0);
  const int64_t *out_offset = offsets_of(excluded_offsets, users, excluded_.count(), "excluded_offsets");
  const int64_t *out = excluded_.numbers<int64_t>("excluded", 0);
  check_ids(history, history_.count(), items, "history", threads);
  check_ids(out, excluded_.count(), items, "excluded", threads);
  const bool *allowed = allowed_.maybe<bool>("allowed", items);
  int64_t *ids = ids_.numbers<int64_t>("ids", count_of(users, k));
  float *scores = scores_.numbers<float>("scores", count_of(users, k));
  bool *done = done_.numbers<bool>("done", users);
  take_turns(0, users, threads, [&](auto next) {
    RowSums<Id> sums(rows);
    for (int64_t u = next(); u >= 0; u = next())
      done[u] = sums.best(history + offset[u], offset[u + 1] - offset[u], out + out_offset[u],
                          out_offset[u + 1] - out_offset[u], allowed, k, ids + u * k, scores + u * k);
  });
}

template <class Part, class Stored> void bind_ridge(nb::module_ &m, const std::string &suffix) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  using Solver = SparseRidge<Part, Stored>;
  m.def(("shared_users_" + suffix).c_str(), &shared_users<Part, Stored>, release());
  nb::class_<Solver>(m, ("SparseRidge_" + suffix).c_str())
      .def(nb::init<const Buffer &, const Buffer &, const Buffer &, const Buffer &, const Buffer &, int64_t, double,
                    int64_t, int64_t>(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
           nb::keep_alive<1, 6>())
      .def("solve", &Solver::solve, release());
}

}  // namespace

void bind_models(nb::module_ &m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def("count_shared_users", &count_shared_users, release());
  bind_ridge<uint8_t, uint8_t>(m, "u8");
  bind_ridge<uint16_t, int16_t>(m, "i16");
  m.def("rank_rows_i32", &rank_rows<int32_t>, release());
  m.def("rank_rows_i64", &rank_rows<int64_t>, release());
}
