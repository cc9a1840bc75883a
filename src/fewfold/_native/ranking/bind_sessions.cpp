// The best items by the past sessions that share items with a history, for Python.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "argument.h"
#include "bind.h"
#include "share.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

struct Neighbour {
  int32_t session;  // -1 in an empty slot
  int32_t place;    // of the last common item in it
  double similarity;
};

// The sessions that share items with one history. A table of slots with linear probing: its size follows from the number
// of entries read, not from the number of sessions, so that one query among millions of sessions costs no more.
class Met {
 public:
  void clear(int64_t entries) {
    size_t size = 16;
    shift_ = 28;
    while (size < 2 * static_cast<size_t>(entries)) size *= 2, --shift_;
    slots_.assign(size, {-1, 0, 0.0});
  }
  Neighbour &at(int32_t session) {
    size_t slot = (static_cast<uint32_t>(session) * 2654435769u) >> shift_;
    while (slots_[slot].session != session && slots_[slot].session >= 0) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot].session = session;
    return slots_[slot];
  }
  // The k most similar, of equals the newest; in any order.
  const std::vector<Neighbour> &nearest(int64_t k) {
    found_.clear();
    for (const Neighbour &slot : slots_)
      if (slot.session >= 0) found_.push_back(slot);
    if (static_cast<int64_t>(found_.size()) > k) {
      std::nth_element(found_.begin(), found_.begin() + k, found_.end(), [](const Neighbour &a, const Neighbour &b) {
        return a.similarity != b.similarity ? a.similarity > b.similarity : a.session > b.session;
      });
      found_.resize(static_cast<size_t>(k));
    }
    return found_;
  }

 private:
  std::vector<Neighbour> slots_, found_;
  int shift_ = 28;
};

// Sums of the items of one row, and which items have one.
class Sums {
 public:
  explicit Sums(int64_t items) : sum_(static_cast<size_t>(items), 0.0f) {}
  void add(int32_t item, float x) {
    float &sum = sum_[static_cast<size_t>(item)];
    if (!(x > 0)) return;  // else an item would be listed twice
    if (sum == 0) met_.push_back(item);
    sum += x;
  }
  void drop(int64_t item) {
    float &sum = sum_[static_cast<size_t>(item)];
    if (sum == 0) met_.push_back(static_cast<int32_t>(item));
    sum = -std::numeric_limits<float>::infinity();  // absorbs any later addition
  }
  // Returns the n best and resets all sums to 0.
  void best(int64_t n, const bool *allowed, int64_t *ids, float *scores) {
    found_.clear();
    for (const int32_t item : met_) {
      float &sum = sum_[static_cast<size_t>(item)];
      if (sum > 0 && (!allowed || allowed[item])) found_.push_back({sum, item});
      sum = 0;
    }
    met_.clear();
    const auto before = [](const Sum &a, const Sum &b) { return a.sum != b.sum ? a.sum > b.sum : a.item < b.item; };
    const int64_t most = std::min(n, static_cast<int64_t>(found_.size()));
    std::partial_sort(found_.begin(), found_.begin() + most, found_.end(), before);
    for (int64_t i = 0; i < n; ++i) {
      ids[i] = i < most ? found_[static_cast<size_t>(i)].item : -1;
      scores[i] = i < most ? found_[static_cast<size_t>(i)].sum : -std::numeric_limits<float>::infinity();
    }
  }

 private:
  struct Sum {
    float sum;
    int32_t item;
  };
  std::vector<float> sum_;
  std::vector<int32_t> met_;
  std::vector<Sum> found_;
};

// Sessions as lists of items, and for each item the sessions that have it with its place there. All is checked once.
class Sessions {
 public:
  Sessions(int64_t sessions, int64_t items, int64_t longest, const Buffer &offsets, const Buffer &values,
           const Buffer &index, const Buffer &session, const Buffer &place)
      : sessions_(count_of(sessions)), items_(count_of(items)), longest_(longest),
        offset_(offsets.numbers<int64_t>("offsets", sessions_ + 1)),
        index_(index.numbers<int64_t>("index", items_ + 1)) {
    check_positive(longest, "longest");
    if (sessions > INT32_MAX || items > INT32_MAX || longest > INT32_MAX) refuse("there are too many sessions or items");
    const int64_t events = check_offsets(offset_, sessions, values.count(), "offsets");
    value_ = values.numbers<int32_t>("values", events);
    check_range(value_, events, 0, items, "values");
    const int64_t entries = check_offsets(index_, items, std::min(session.count(), place.count()), "index");
    session_ = session.numbers<int32_t>("session", entries);
    place_ = place.numbers<int32_t>("place", entries);
    check_range(session_, entries, 0, sessions, "session");
    check_range(place_, entries, 0, longest, "place");
    for (int64_t s = 0; s < sessions; ++s)
      if (offset_[s + 1] - offset_[s] > longest) refuse("no session may have more items than longest");
  }

  // The n best items of every row, (rows, n) each, best first and of equals the lower id; -1 and minus infinity where
  // neighbours have no more. `near` (2 longest - 1,) is the weight of an item by its distance from the last common item,
  // from `longest - 1` places before it to as many after it.
  void rank(int64_t rows, const Buffer &offsets, const Buffer &items, const Buffer &weights, const Buffer &near_,
            int64_t k, const Buffer &excluded_, const Buffer &out_offsets, const Buffer &allowed_, int64_t n,
            const Buffer &ids_, const Buffer &scores_, int threads) const {
    check_positive(k, "k");
    check_positive(n, "n");
    const int64_t *offset = offsets.numbers<int64_t>("offsets", count_of(rows) + 1);
    const int64_t total = check_offsets(offset, rows, items.count(), "offsets");
    const int64_t *item = items.numbers<int64_t>("items", total);
    check_ids(item, total, items_, "items", threads);
    const double *weight = weights.numbers<double>("weights", total);
    const float *near = near_.table<float>("near", 1, 2 * longest_ - 1);
    const int64_t *out = out_offsets.maybe<int64_t>("excluded offsets", rows + 1);
    const int64_t gone = out ? check_offsets(out, rows, excluded_.count(), "excluded offsets") : 0;
    const int64_t *excluded = out ? excluded_.numbers<int64_t>("excluded", gone) : nullptr;
    check_ids(excluded, gone, items_, "excluded", threads);
    const bool *allowed = allowed_.maybe<bool>("allowed", items_);
    int64_t *ids = ids_.table<int64_t>("ids", rows, n);
    float *scores = scores_.table<float>("scores", rows, n);
    share(rows, GRAIN_SIZE, threads, [&](int64_t a, int64_t b) {
      Met met;
      Sums sums(items_);
      for (int64_t r = a; r < b; ++r) {
        for (int64_t i = out ? out[r] : 0; out && i < out[r + 1]; ++i) sums.drop(excluded[i]);
        int64_t entries = 0;
        for (int64_t i = offset[r]; i < offset[r + 1]; ++i) entries += index_[item[i] + 1] - index_[item[i]];
        met.clear(entries);
        for (int64_t i = offset[r]; i < offset[r + 1]; ++i)
          for (int64_t e = index_[item[i]]; e < index_[item[i] + 1]; ++e) {
            Neighbour &one = met.at(session_[e]);
            one.similarity += weight[i];
            one.place = place_[e];
          }
        for (const Neighbour &one : met.nearest(k)) {
          const int32_t *value = value_ + offset_[one.session];
          const int64_t count = offset_[one.session + 1] - offset_[one.session];
          const float *here = near + (longest_ - 1 - one.place), similarity = static_cast<float>(one.similarity);
          for (int64_t p = 0; p < count; ++p) sums.add(value[p], similarity * here[p]);
        }
        sums.best(n, allowed, ids + r * n, scores + r * n);
      }
    });
  }

 private:
  int64_t sessions_, items_, longest_;
  const int64_t *offset_;
  const int64_t *index_;
  const int32_t *value_ = nullptr, *session_ = nullptr, *place_ = nullptr;
};

}  // namespace

void bind_sessions(nb::module_ &m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Sessions>(m, "Sessions")
      .def(nb::init<int64_t, int64_t, int64_t, const Buffer &, const Buffer &, const Buffer &, const Buffer &,
                    const Buffer &>(),
           nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>(),
           nb::keep_alive<1, 9>())
      .def("rank", &Sessions::rank, release());
}
