// Bindings of tables whose rows are sparse mixtures of anchors.
#include "argument.h"
#include "bind.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

constexpr int64_t AHEAD = 24;         // prefetch distance in rows of the tables
constexpr int64_t TILE = 64;          // rows of the table in a tile of scores
constexpr int64_t BLOCK = 16 * TILE;  // rows scored by one slab of queries before the next slab replaces it in cache
constexpr int64_t LINE = 16;          // queries are divided among threads in multiples of this
constexpr int64_t BAD_SLOTS = -2;     // returned if a slot is out of range

// The slots of a table (size, s), of any integer type.
class Slots {
 public:
  Slots(const Buffer &from, int64_t size, int64_t s) : kind_(from.dtype()) {
    if (kind_ == Dtype::u8) first_ = from.table<uint8_t>("slots", size, s);
    else if (kind_ == Dtype::i16) first_ = from.table<int16_t>("slots", size, s);
    else first_ = from.table<int32_t>("slots", size, s);
  }
  template <class F> auto as(F use) const {
    if (kind_ == Dtype::u8) return use(static_cast<const uint8_t *>(first_));
    if (kind_ == Dtype::i16) return use(static_cast<const int16_t *>(first_));
    return use(static_cast<const int32_t *>(first_));
  }

 private:
  Dtype kind_;
  const void *first_;
};

// Anchors are indexed in 32 bits.
int32_t anchors_of(int64_t k) {
  if (count_of(k) > std::numeric_limits<int32_t>::max()) refuse("there must be fewer than 2^31 anchors");
  return static_cast<int32_t>(k);
}

// How many ids the bags hold, of n; without offsets each bag is one.
int64_t ids_of_bags(const int64_t *offset, int64_t bags, int64_t n) {
  if (offset) return check_offsets(offset, bags, n, "offsets");
  if (bags > n) refuse("there are " + std::to_string(n) + " ids for " + std::to_string(bags) + " rows");
  return bags;
}

// n slots as int32; whether all of them are below k.
template <class S> bool widen(const S *from, int64_t n, int32_t k, int32_t *to) {
  int32_t bad = 0;
  for (int64_t j = 0; j < n; ++j) {
    const int32_t slot = from[j];
    to[j] = slot;
    bad |= (slot < 0) | (slot >= k);
  }
  return !bad;
}

// A table of weights and slots.
template <class T> struct Rows {
  const T *weight;
  Slots slots;
  int64_t size, s;
  int32_t anchors;

  // The rows of n ids, one after the other. Returns the position of an id out of range, BAD_SLOTS, or -1.
  int64_t take(const int64_t *id, int64_t n, T *weights, int32_t *slot, int threads) const {
    for (int64_t i = 0; i < n; ++i)
      if (static_cast<uint64_t>(id[i]) >= static_cast<uint64_t>(size)) return i;
    std::atomic<bool> fine{true};
    slots.as([&](const auto *from) {
      share(n, 8 * s, threads, [&](int64_t a, int64_t b) {
        bool mine = true;
        for (int64_t i = a; i < b; ++i) {
          if (i + AHEAD < b) {
            const int64_t next = id[i + AHEAD] * s;
            for (int64_t j = 0; j < s; j += 64 / int64_t(sizeof(T))) __builtin_prefetch(weight + next + j);
            __builtin_prefetch(weight + next + s - 1);
            for (int64_t j = 0; j < s; j += 64 / int64_t(sizeof(*from))) __builtin_prefetch(from + next + j);
            __builtin_prefetch(from + next + s - 1);
          }
          for (int64_t j = 0; j < s; ++j) weights[i * s + j] = weight[id[i] * s + j];
          mine &= widen(from + id[i] * s, s, anchors, slot + i * s);
        }
        if (!mine) fine = false;
      });
    });
    return fine ? -1 : BAD_SLOTS;
  }
};

// Rows of ids, or sums of them where offsets are given; their terms are written to `terms` and `slot`.
template <class T>
int64_t mix(const Buffer &anchors_, int64_t k, int64_t d, const Buffer &weight, const Buffer &slots, int64_t size,
            int64_t s, const Buffer &ids, int64_t n, const Buffer &offset_, const Buffer &by, int64_t bags,
            const Buffer &terms_, const Buffer &slot_, const Buffer &out_, int threads) {
  const T *anchors = anchors_.table<T>("anchors", k, d);
  const Rows<T> rows{weight.table<T>("weights", size, s), Slots(slots, size, s), size, s, anchors_of(k)};
  T *terms = terms_.numbers<T>("terms", count_of(n, s)), *out = out_.numbers<T>("out", count_of(bags, d));
  int32_t *slot = slot_.numbers<int32_t>("slot", n * s);
  const int64_t *offset = offset_.maybe<int64_t>("offsets", bags + 1);
  ids_of_bags(offset, bags, n);
  const int64_t bad = rows.take(ids.numbers<int64_t>("ids", n), n, terms, slot, threads);
  if (bad != -1) return bad;
  const Terms<T> t{terms, slot, s, offset, by.maybe<T>("by", bags)};
  share(bags, s * d, threads, [&](int64_t a, int64_t b) { table<T>().mix(anchors, d, t, a, b, out); });
  return -1;
}

// Sums of rows of a table, bag after bag, with explicit terms.
template <class T>
void blend(const Buffer &rows_, int64_t d, const Buffer &weight, const Buffer &slot, const Buffer &offset_, int64_t bags,
           const Buffer &out_, int threads) {
  check_positive(d, "d");
  const int64_t *offset = offset_.numbers<int64_t>("offsets", count_of(bags) + 1);
  const int64_t n = check_offsets(offset, bags, slot.count(), "offsets"), size = rows_.count() / d;
  const T *rows = rows_.table<T>("rows", size, d);
  const Terms<T> t{weight.numbers<T>("weight", n), slot.numbers<int32_t>("slot", n), 1, offset, nullptr};
  check_range(t.slot, n, 0, size, "slot");
  T *out = out_.numbers<T>("out", count_of(bags, d));
  const int64_t each = bags ? n / bags + 1 : 1;
  share(bags, each * d, threads, [&](int64_t a, int64_t b) { table<T>().mix(rows, d, t, a, b, out); });
}

// Gradients: `values`, of each term, and `pull`, of the anchors, zero-initialised. Either may be None.
template <class T>
void unmix(const Buffer &anchors_, int64_t d, const Buffer &terms, const Buffer &slot, int64_t s, const Buffer &offset_,
           const Buffer &by, int64_t bags, const Buffer &grad, const Buffer &values_, const Buffer &pull_, int threads) {
  check_positive(d, "d");
  const int64_t k = anchors_.count() / d;
  const T *anchors = anchors_.table<T>("anchors", k, d), *g = grad.numbers<T>("grad", count_of(bags, d));
  const int64_t *offset = offset_.maybe<int64_t>("offsets", bags + 1);
  const int64_t n = count_of(ids_of_bags(offset, bags, offset ? slot.count() : bags), s);
  const Terms<T> t{terms.numbers<T>("terms", n), slot.numbers<int32_t>("slot", n), s, offset, by.maybe<T>("by", bags)};
  check_range(t.slot, n, 0, k, "slot");
  T *values = values_.maybe<T>("values", n), *pull = pull_.maybe<T>("pull", k * d);
  if (values)
    share(bags, s * d, threads, [&](int64_t a, int64_t b) { table<T>().mix_dots(anchors, d, t, g, a, b, values); });
  if (pull)
    share((d + LINE - 1) / LINE, bags * s * LINE, threads, [&](int64_t a, int64_t b) {
      const int64_t first = a * LINE, last = std::min(b * LINE, d);
      table<T>().mix_pull(g + first, d, t, 0, bags, pull + first, d, last - first);
    });
}

// ---- the scores of every row --------------------------------------------------------------------------------------------

// Queries in slabs: the scores of the anchors lie as (slabs, anchors, width), the last slab filled up with zeros.
struct Slabs {
  int64_t queries, width, anchors;
  Slabs(int64_t queries_, int64_t width_, int64_t k) : queries(count_of(queries_)), width(width_), anchors(anchors_of(k)) {
    check_positive(width, "width");
    if (width % LINE) refuse("width must be a multiple of " + std::to_string(LINE) + ", got " + std::to_string(width));
    count_of(count(), anchors, width);
  }
  int64_t numbers() const { return count() * anchors * width; }
  int64_t count() const { return (queries + width - 1) / width; }
  int64_t across(int64_t slab) const { return std::min(width, queries - slab * width); }
};

// Aligns a pointer to the next cache line; the storage must have one line to spare.
template <class T> T *on_line(T *storage) {
  return reinterpret_cast<T *>((reinterpret_cast<uintptr_t>(storage) + 63) / 64 * 64);
}

// Dynamic scheduling: every thread takes the next unclaimed piece, so that a delayed thread delays no other.
template <class F> void take_turns(int64_t pieces, int64_t work, int threads, F use) {
  std::atomic<int64_t> next{0};
  const auto piece = [&] {
    const int64_t mine = next.fetch_add(1, std::memory_order_relaxed);
    return mine < pieces ? mine : -1;
  };
  share(std::min<int64_t>(threads, pieces), work, threads, [&](int64_t, int64_t) { use(piece); });
}

// A huge page is zeroed on first access: two threads that access the same new page would both zero it.
template <class T> void make_pages(T *first, int64_t n, int threads) {
  constexpr int64_t PAGE = (1 << 21) / sizeof(T);
  take_turns(n / PAGE, n, threads, [&](auto piece) {
    for (int64_t page; (page = piece()) >= 0;) first[page * PAGE + PAGE - 1] = T(0);
  });
}

template <class T>
bool tied(const Buffer &turned_, int64_t queries, int64_t width, int64_t k, const Buffer &weight_, const Buffer &slots,
          int64_t size, int64_t s, const Buffer &out_, int threads) {
  const Slabs slabs(queries, width, k);
  const T *turned = turned_.numbers<T>("scores of the anchors", slabs.numbers());
  const T *weight = weight_.table<T>("weights", size, s);
  T *out = out_.numbers<T>("out", count_of(queries, size));
  std::atomic<bool> fine{true};
  make_pages(out, queries * size, threads);
  Slots(slots, size, s).as([&](const auto *from) {
    take_turns((size + BLOCK - 1) / BLOCK, size * s * width, threads, [&](auto piece) {
      std::vector<int32_t> slot(static_cast<size_t>(BLOCK * s));
      std::vector<T> storage(static_cast<size_t>(TILE * width + LINE));
      T *tile = on_line(storage.data());
      for (int64_t block; (block = piece()) >= 0;) {
        const int64_t first = block * BLOCK, last = std::min(first + BLOCK, size);
        if (!widen(from + first * s, (last - first) * s, static_cast<int32_t>(k), slot.data())) fine = false;
        if (!fine) return;
        for (int64_t slab = 0; slab < slabs.count(); ++slab)
          for (int64_t v = first; v < last; v += TILE) {
            const int64_t rows = std::min(TILE, last - v);
            const Terms<T> t{weight + v * s, slot.data() + (v - first) * s, s, nullptr, nullptr};
            table<T>().mix(turned + slab * k * width, width, t, 0, rows, tile);
            table<T>().tile_out(tile, width, rows, slabs.across(slab), out + slab * width * size + v, size);
          }
      }
    });
  });
  return fine;
}

// Writes the rows whose gradient exceeds the threshold, ascending, to `rows`, and the gradients of their weights to
// `values`, packed; without `rows` every gradient is written to its own row of `values`, which must be zero-initialised.
// `marks` (size,), zero-initialised, flags these rows. Returns their number. `values` may be None.
template <class T>
int64_t untied(const Buffer &turned_, int64_t queries, int64_t width, int64_t k, const Buffer &slots, int64_t size,
               int64_t s, const Buffer &grad_, double bar, const Buffer &marks_, const Buffer &rows_, const Buffer &values_,
               int threads) {
  const Slabs slabs(queries, width, k);
  const T *turned = turned_.numbers<T>("scores of the anchors", slabs.numbers());
  const T *grad = grad_.numbers<T>("grad", count_of(queries, size));
  uint8_t *marks = marks_.numbers<uint8_t>("marks", size);
  int64_t *found = rows_.maybe<int64_t>("rows", size);
  T *values = values_.maybe<T>("values", count_of(size, s));
  std::mutex lock;
  std::vector<std::pair<int64_t, int64_t>> parts;  // where a thread began to write, how many rows
  Slots(slots, size, s).as([&](const auto *from) {
    share((size + TILE - 1) / TILE, TILE * s * width, threads, [&](int64_t a, int64_t b) {
      std::vector<int32_t> slot(static_cast<size_t>(TILE * s));
      std::vector<T> tile(static_cast<size_t>(TILE * width)), dots(static_cast<size_t>(TILE * s)), sums(dots.size());
      int64_t to = a * TILE;
      for (int64_t v = a * TILE; v < std::min(b * TILE, size); v += TILE) {
        const int64_t rows = std::min(TILE, size - v);
        uint8_t *mark = marks + v;
        std::fill(sums.begin(), sums.end(), T(0));
        for (int64_t slab = 0; slab < slabs.count(); ++slab) {
          const T *g = grad + slab * width * size + v;
          uint8_t own[TILE] = {};
          if (!table<T>().tile_marks(g, size, slabs.across(slab), rows, static_cast<T>(bar), own)) continue;
          for (int64_t r = 0; r < rows; ++r) mark[r] |= own[r];
          if (!values) continue;
          if (!widen(from + v * s, rows * s, static_cast<int32_t>(k), slot.data())) refuse("slots must be anchors");
          table<T>().tile_in(g, size, rows, slabs.across(slab), static_cast<T>(bar), tile.data(), width);
          const Terms<T> t{nullptr, slot.data(), s, nullptr, nullptr};
          for (int64_t r = 0; r < rows; ++r) {
            if (!own[r]) continue;
            table<T>().mix_dots(turned + slab * k * width, width, t, tile.data(), r, r + 1, dots.data());
            for (int64_t j = r * s; j < (r + 1) * s; ++j) sums[j] += dots[j];
          }
        }
        for (int64_t r = 0; r < rows; ++r) {
          if (!mark[r]) continue;
          const int64_t at = found ? to : v + r;
          if (found) found[at] = v + r;
          if (values) std::copy_n(sums.data() + r * s, s, values + at * s);
          ++to;
        }
      }
      const std::lock_guard<std::mutex> guard(lock);
      parts.emplace_back(a * TILE, to - a * TILE);
    });
  });
  std::sort(parts.begin(), parts.end());
  int64_t total = 0;
  for (const auto &[first, count] : parts) {
    if (found && first != total) {
      std::memmove(found + total, found + first, static_cast<size_t>(count) * sizeof(int64_t));
      if (values) std::memmove(values + total * s, values + first * s, static_cast<size_t>(count * s) * sizeof(T));
    }
    total += count;
  }
  return total;
}

// The gradient of the scores of the anchors, in slabs like these, zero-initialised. Threads divide the queries.
template <class T>
void untied_pull(int64_t queries, int64_t width, int64_t k, const Buffer &weight_, const Buffer &slots, int64_t size,
                 int64_t s, const Buffer &grad_, double bar, const Buffer &marks_, const Buffer &pull_, int threads) {
  const Slabs slabs(queries, width, k);
  const T *weight = weight_.table<T>("weights", size, s), *grad = grad_.numbers<T>("grad", count_of(queries, size));
  const uint8_t *marks = marks_.numbers<uint8_t>("marks", size);
  T *pull = pull_.numbers<T>("pull", slabs.numbers());
  const int64_t lines = width / LINE;  // of a slab
  Slots(slots, size, s).as([&](const auto *from) {
    share(slabs.count() * lines, size * s * LINE, threads, [&](int64_t a, int64_t b) {
      std::vector<int32_t> slot(static_cast<size_t>(TILE * s));
      std::vector<T> tile(static_cast<size_t>(TILE * width));
      for (int64_t next; a < b; a = next) {
        const int64_t slab = a / lines, first = a % lines * LINE;
        next = std::min(b, (slab + 1) * lines);
        const int64_t own = (next - a) * LINE, across = std::min(own, slabs.across(slab) - first);
        if (across <= 0) continue;
        for (int64_t v = 0; v < size; v += TILE) {
          const int64_t rows = std::min(TILE, size - v);
          const uint8_t *mark = marks + v;
          if (std::none_of(mark, mark + rows, [](uint8_t m) { return m; })) continue;
          if (!widen(from + v * s, rows * s, static_cast<int32_t>(k), slot.data())) refuse("slots must be anchors");
          const T *g = grad + (slab * width + first) * size + v;
          table<T>().tile_in(g, size, rows, across, static_cast<T>(bar), tile.data(), own);
          const Terms<T> t{weight + v * s, slot.data(), s, nullptr, nullptr};
          for (int64_t r = 0, end; r < rows; r = end + 1) {
            for (end = r; end < rows && mark[end];) ++end;
            if (r < end)
              table<T>().mix_pull(tile.data(), own, t, r, end, pull + slab * k * width + first, width, own);
          }
        }
      }
    });
  });
}

// ---- the scores of chosen rows ------------------------------------------------------------------------------------------

// Takes the rows of the ids each query has of its own, (queries, each), then of the further ones; scores of both.
template <class T>
int64_t mixed_dots(const Buffer &projected_, int64_t k, int64_t queries, const Buffer &weight, const Buffer &slots,
                   int64_t size, int64_t s, const Buffer &ids, int64_t each, int64_t n, const Buffer &offset_,
                   const Buffer &terms_, const Buffer &slot_, const Buffer &scores_, const Buffer &more_scores_,
                   int threads) {
  const T *projected = projected_.table<T>("scores of the anchors", queries, k);
  const Rows<T> rows{weight.table<T>("weights", size, s), Slots(slots, size, s), size, s, anchors_of(k)};
  const int64_t own = count_of(queries, each), *offset = offset_.numbers<int64_t>("offsets", queries + 1);
  const int64_t more = check_offsets(offset, queries, n - own, "offsets");
  T *terms = terms_.numbers<T>("terms", count_of(n, s)), *scores = scores_.numbers<T>("scores", own);
  T *more_scores = more_scores_.numbers<T>("more scores", more);
  int32_t *slot = slot_.numbers<int32_t>("slot", n * s);
  const int64_t bad = rows.take(ids.numbers<int64_t>("ids", n), n, terms, slot, threads);
  if (bad != -1) return bad;
  share(queries, 4 * each * s, threads, [&](int64_t a, int64_t b) {
    for (int64_t q = a; q < b; ++q) {
      const auto part = [&](int64_t first, int64_t count, T *to) {
        table<T>().mix_scores(projected + q * k, terms + first * s, slot + first * s, s, count, to);
      };
      part(q * each, each, scores + q * each);
      part(own + offset[q], offset[q + 1] - offset[q], more_scores + offset[q]);
    }
  });
  return -1;
}

// Their gradients, `by` in the order of the scores; `scale`, a number per query, multiplies those of its own ids.
template <class T>
void mixed_pulls(const Buffer &projected_, int64_t k, int64_t queries, int64_t s, int64_t each, const Buffer &offset_,
                 const Buffer &terms_, const Buffer &slot_, const Buffer &by_, const Buffer &scale_,
                 const Buffer &more_by_, const Buffer &pull_, const Buffer &values_, int threads) {
  const T *projected = projected_.table<T>("scores of the anchors", queries, anchors_of(k));
  const int64_t own = count_of(queries, each), *offset = offset_.numbers<int64_t>("offsets", queries + 1);
  const int64_t more = check_offsets(offset, queries, more_by_.count(), "offsets"), n = count_of(own + more, s);
  const T *terms = terms_.numbers<T>("terms", n), *by = by_.numbers<T>("by", own), *scale = scale_.maybe<T>("scale", queries);
  const T *more_by = more_by_.numbers<T>("more by", more);
  const int32_t *slot = slot_.numbers<int32_t>("slot", n);
  check_range(slot, n, 0, k, "slot");
  T *pull = pull_.maybe<T>("pull", queries * k), *values = values_.maybe<T>("values", n);
  share(queries, 4 * each * s, threads, [&](int64_t a, int64_t b) {
    for (int64_t q = a; q < b; ++q) {
      const auto part = [&](int64_t first, int64_t count, const T *mine, T times) {
        table<T>().mix_score_pulls(projected + q * k, terms + first * s, slot + first * s, s, count, mine, times,
                                   pull ? pull + q * k : nullptr, values ? values + first * s : nullptr);
      };
      part(q * each, each, by + q * each, scale ? scale[q] : T(1));
      part(own + offset[q], offset[q + 1] - offset[q], more_by + offset[q], T(1));
    }
  });
}

template <class T> void bind(nb::module_ &m, const std::string &suffix) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def(("mix_" + suffix).c_str(), &mix<T>, release());
  m.def(("unmix_" + suffix).c_str(), &unmix<T>, release());
  m.def(("blend_" + suffix).c_str(), &blend<T>, release());
  m.def(("tied_" + suffix).c_str(), &tied<T>, release());
  m.def(("untied_" + suffix).c_str(), &untied<T>, release());
  m.def(("untied_pull_" + suffix).c_str(), &untied_pull<T>, release());
  m.def(("mixed_dots_" + suffix).c_str(), &mixed_dots<T>, release());
  m.def(("mixed_pulls_" + suffix).c_str(), &mixed_pulls<T>, release());
}

}  // namespace

void bind_anchors(nb::module_ &m) {
  bind<float>(m, "f32");
  bind<double>(m, "f64");
}
