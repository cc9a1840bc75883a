// Counts of users that two items share, row by row, in four bytes for most pairs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace fewfold {

// The log by user and by item.
struct Pairs {
  int64_t users, items;
  const int64_t *user_start, *item;  // items of each user
  const int64_t *item_start;
  const int32_t *user;  // users of each item
};

// A step forward in the ids of a row, and a count to add there. A gap or a count that is too large is several steps.
// Bytes serve dense rows, 16 bits sparse ones.
template <class Part> struct Step {
  static constexpr int64_t MOST = static_cast<Part>(-1);
  Part gap, count;
};

// Rows of counts: the ids of row i start before item 0, at -1, and do not include i itself.
template <class Part> struct Gram {
  const int64_t *start;
  const Step<Part> *step;

  template <class F> void each(int64_t row, F take) const { each_below(INT64_MAX, row, take); }

  // The part of the row with ids below `limit`.
  template <class F> void each_below(int64_t limit, int64_t row, F take) const {
    int64_t id = -1;
    for (int64_t s = start[row]; s < start[row + 1]; ++s) {
      id += step[s].gap;
      if (id >= limit) return;
      if (step[s].count) take(id, static_cast<float>(step[s].count));
    }
  }
};

// How many steps a gap and a count take; with `out` they are written.
template <class Part> int64_t steps(int64_t gap, int64_t count, Step<Part> *out) {
  int64_t n = 0;
  while (gap || count) {
    const int64_t far = std::min(gap, Step<Part>::MOST);
    gap -= far;
    const int64_t some = gap ? 0 : std::min(count, Step<Part>::MOST);
    count -= some;
    if (out) out[n] = {static_cast<Part>(far), static_cast<Part>(some)};
    ++n;
  }
  return n;
}

// Counts one row after the other.
class RowCounter {
 public:
  explicit RowCounter(const Pairs &log) : log_(log), count_(static_cast<size_t>(log.items), 0) {}

  // Calls take(gap, count) for every item that shares users with item i, in the order of ids.
  template <class F> void row(int64_t i, F take) {
    met_.clear();
    for (int64_t p = log_.item_start[i]; p < log_.item_start[i + 1]; ++p) {
      const int64_t u = log_.user[p];
      for (int64_t q = log_.user_start[u]; q < log_.user_start[u + 1]; ++q) {
        const int64_t j = log_.item[q];
        if (count_[j]++ == 0) met_.push_back(static_cast<int32_t>(j));
      }
    }
    std::sort(met_.begin(), met_.end());
    int64_t last = -1;
    for (const int32_t j : met_) {
      if (j != i) take(j - last, static_cast<int64_t>(count_[j])), last = j;
      count_[j] = 0;
    }
  }

 private:
  const Pairs &log_;
  std::vector<int32_t> count_;
  std::vector<int32_t> met_;
};

}  // namespace fewfold
