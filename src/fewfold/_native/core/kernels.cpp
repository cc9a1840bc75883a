// The Python bindings of the kernels: they check the tensors and divide the rows among threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "argument.h"
#include "bind.h"
#include "prox.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

const Tables *choose() {
  const char *wish = std::getenv("FEWFOLD_ISA");
  const std::string limit = wish ? wish : "";
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (avx512 && limit != "avx2" && limit != "generic") return &avx512_tables;
  if (avx2 && limit != "generic") return &avx2_tables;
#endif
  return &generic_tables;
}

SavedSupport saved_from(int32_t *places, int64_t capacity, int64_t row) {
  return {places ? places + row * capacity : nullptr, capacity};
}

struct FamilyArgument {
  double alpha;
  const double *per_row;
  bool norm;
  FamilyArgument(double one, const Buffer &each, int64_t rows, bool is_norm)
      : alpha(one), per_row(each.maybe<double>("alphas", rows)), norm(is_norm) {
    const double *all = per_row ? per_row : &alpha;
    bool fine = true;
    for (int64_t r = 0; r < (per_row ? rows : 1); ++r) fine &= all[r] > 1 && all[r] <= 2;
    if (!fine) refuse("alpha must be above 1 and at most 2");
  }
  Family at(int64_t first) const {
    return per_row ? Family{per_row + first, true, norm} : Family{&alpha, false, norm};
  }
};

// Elements of rows of k; columns are indexed in 32 bits.
int64_t elements(int64_t rows, int64_t k) {
  if (k > std::numeric_limits<int32_t>::max()) refuse("rows must be shorter than 2^31, got " + std::to_string(k));
  return count_of(rows, k);
}

int32_t *places_of(const Buffer &places, int64_t rows, int64_t capacity) {
  if (places.given()) check_positive(capacity, "capacity");
  return places.maybe<int32_t>("places", count_of(rows, capacity));
}

// Saved supports come from Python: their counts and columns are validated before use.
void check_saved(const int32_t *saved, int64_t rows, int64_t capacity, int64_t k) {
  for (int64_t r = 0; saved && r < rows; ++r, saved += capacity) {
    if (saved[0] >= capacity)
      refuse("places must hold fewer than capacity=" + std::to_string(capacity) + " columns in a row");
    if (saved[0] > 0) check_range(saved + 1, saved[0], 0, k, "places");
  }
}

// Whether some row had infinite scores.
template <class T>
bool forward(const Buffer &x_, const Buffer &p_, int64_t rows, int64_t k, double alpha, const Buffer &alphas, bool norm,
             const Buffer &places, int64_t capacity, int threads) {
  const int64_t n = elements(rows, k);
  const T *x = x_.numbers<T>("scores", n);
  T *p = p_.numbers<T>("probs", n);
  int32_t *saved = places_of(places, rows, capacity);
  const FamilyArgument f(alpha, alphas, rows, norm);
  std::atomic<bool> infinite{false};
  share(rows, k, threads, [&](int64_t a, int64_t b) {
    if (table<T>().forward(x + a * k, p + a * k, b - a, k, f.at(a), saved_from(saved, capacity, a))) infinite = true;
  });
  return infinite;
}

template <class T>
void backward(const Buffer &p_, const Buffer &g_, const Buffer &out_, int64_t rows, int64_t k, double alpha,
              const Buffer &alphas, bool norm, const Buffer &places, int64_t capacity, int threads) {
  const int64_t n = elements(rows, k);
  const T *p = p_.numbers<T>("probs", n), *g = g_.numbers<T>("grad", n);
  T *out = out_.numbers<T>("out", n);
  int32_t *saved = places_of(places, rows, capacity);
  check_saved(saved, rows, capacity, k);
  const FamilyArgument f(alpha, alphas, rows, norm);
  share(rows, k, threads, [&](int64_t a, int64_t b) {
    table<T>().backward(p + a * k, g + a * k, out + a * k, b - a, k, f.at(a), saved_from(saved, capacity, a));
  });
}

// False if some row must be handled by the caller; the output is then incomplete.
template <class T>
bool budget(const Buffer &x_, const Buffer &p_, int64_t rows, int64_t n, double k, const Buffer &ks, int threads) {
  const T *x = x_.numbers<T>("scores", elements(rows, n));
  T *p = p_.numbers<T>("probs", elements(rows, n));
  const double *each = ks.maybe<double>("k", rows);
  std::atomic<bool> fine{true};
  share(rows, n, threads, [&](int64_t a, int64_t b) {
    if (!table<T>().budget(x + a * n, p + a * n, b - a, n, each ? each + a : &k, each != nullptr)) fine = false;
  });
  return fine;
}

template <class T>
void budget_backward(const Buffer &p_, const Buffer &g_, const Buffer &out_, int64_t rows, int64_t n, int threads) {
  const int64_t all = elements(rows, n);
  const T *p = p_.numbers<T>("probs", all), *g = g_.numbers<T>("grad", all);
  T *out = out_.numbers<T>("out", all);
  share(rows, n, threads, [&](int64_t a, int64_t b) {
    table<T>().budget_backward(p + a * n, g + a * n, out + a * n, b - a, n);
  });
}

// Groups and pulls of fusedmax (chain) or oscarmax (ranks).
template <class T, bool Chain>
void groups(const Buffer &z, const Buffer &group, const Buffer &pull, int64_t rows, int64_t k, const Buffer &strength,
            int threads) {
  const int64_t n = elements(rows, k);
  const T *x = z.numbers<T>("scores", n), *each = strength.numbers<T>("strength", rows);
  int64_t *g = group.numbers<int64_t>("group", n);
  T *p = pull.numbers<T>("pull", n);
  if (n == 0) return;  // a row without scores has no largest one
  (Chain ? tv_groups_rows<T> : oscar_groups_rows<T>)(x, g, p, rows, k, each, lanes_for(rows, threads));
}

template <class T> using Array = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// Memory for n numbers, at least one, until Python owns it.
template <class T> struct OwnedArray {
  T *data;
  explicit OwnedArray(int64_t n) : data(static_cast<T *>(std::malloc(static_cast<size_t>(bytes(n))))) {
    if (!data) throw std::bad_alloc();
  }
  ~OwnedArray() { std::free(data); }
  OwnedArray(const OwnedArray &) = delete;
  OwnedArray &operator=(const OwnedArray &) = delete;

  Array<T> hand_over(int64_t n) {
    nb::capsule owner(data, [](void *p) noexcept { std::free(p); });
    T *own = std::exchange(data, nullptr);
    return Array<T>(own, {static_cast<size_t>(n)}, owner);
  }

 private:
  static int64_t bytes(int64_t n) { return count_of(std::max<int64_t>(n, 1), int64_t(sizeof(T))); }
};

// Owns the results of several threads: they are freed even if one of them fails.
template <class T> struct Parts {
  std::vector<std::pair<int64_t, Ragged<T>>> all;
  ~Parts() {
    for (auto &part : all) std::free(part.second.index), std::free(part.second.weight);
  }
};

// (indices, weights, atoms per row) of all rows.
template <class T>
nb::tuple support(const Buffer &x_, int64_t rows, int64_t k, double alpha, const Buffer &alphas, bool norm, int threads) {
  const T *x = x_.numbers<T>("scores", elements(rows, k));
  const FamilyArgument f(alpha, alphas, rows, norm);
  OwnedArray<int64_t> count(rows);
  Parts<T> parts;
  {
    nb::gil_scoped_release release;
    std::mutex lock;
    share(rows, k, threads, [&](int64_t a, int64_t b) {
      Ragged<T> *out;
      {
        const std::lock_guard<std::mutex> guard(lock);
        if (parts.all.capacity() == 0) parts.all.reserve(MOST_THREADS);  // so that pointers stay valid
        parts.all.emplace_back(a, Ragged<T>());
        out = &parts.all.back().second;
      }
      table<T>().support(x + a * k, b - a, k, f.at(a), *out, count.data + a);
    });
    std::sort(parts.all.begin(), parts.all.end(), [](const auto &l, const auto &r) { return l.first < r.first; });
  }
  int64_t n = 0;
  for (const auto &part : parts.all) n += part.second.n;
  OwnedArray<int64_t> index(n);
  OwnedArray<T> weight(n);
  int64_t at = 0;
  for (const auto &part : parts.all) {
    const Ragged<T> &p = part.second;
    if (p.n) {
      std::memcpy(index.data + at, p.index, static_cast<size_t>(p.n) * sizeof(int64_t));
      std::memcpy(weight.data + at, p.weight, static_cast<size_t>(p.n) * sizeof(T));
    }
    at += p.n;
  }
  return nb::make_tuple(index.hand_over(n), weight.hand_over(n), count.hand_over(rows));
}

// Rows of scores that arrive in chunks of columns, reduced to their candidates.
template <class T> class Streams {
 public:
  Streams(int64_t rows, double alpha, int64_t most)
      : rows_(count_of(rows)), alpha_(alpha), most_(most), streams_(table<T>().streams_new(rows)) {
    if (!streams_) throw std::bad_alloc();
  }
  ~Streams() { table<T>().streams_free(streams_, rows_); }
  Streams(const Streams &) = delete;
  Streams &operator=(const Streams &) = delete;

  void push(const Buffer &x_, int64_t size, int64_t stride, int64_t base, int threads) {
    if (base < 0 || count_of(size) > std::numeric_limits<int32_t>::max() - base)
      refuse("columns must be below 2^31, got " + std::to_string(size) + " from " + std::to_string(base));
    const T *x = x_.apart<T>("scores", reach_of(rows_, size, stride));
    share(rows_, size, threads, [&](int64_t a, int64_t b) {
      table<T>().streams_push(streams_, x, a, b, size, stride, base, alpha_, most_);
    });
  }
  // (columns, scores, candidates per row; -1 for rows with too many)
  nb::tuple take() {
    OwnedArray<int64_t> count(rows_);
    int64_t n = 0, at = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      count.data[r] = table<T>().streams_take(streams_, r, alpha_, nullptr, nullptr);
      n += std::max<int64_t>(count.data[r], 0);
    }
    OwnedArray<int64_t> column(n);
    OwnedArray<T> score(n);
    for (int64_t r = 0; r < rows_; ++r)
      if (count.data[r] > 0) at += table<T>().streams_take(streams_, r, alpha_, column.data + at, score.data + at);
    return nb::make_tuple(column.hand_over(n), score.hand_over(n), count.hand_over(rows_));
  }

 private:
  int64_t rows_;
  double alpha_;
  int64_t most_;
  void *streams_;
};

// Zeros, then value[i] at column index[i] of the row that owns i.
template <class T>
void scatter(const Buffer &index, const Buffer &value, const Buffer &first, const Buffer &out_, int64_t rows, int64_t k,
             int threads) {
  T *out = out_.numbers<T>("out", count_of(rows, k));
  const int64_t *from = first.numbers<int64_t>("first", count_of(rows) + 1);
  const int64_t n = check_offsets(from, rows, std::min(index.count(), value.count()), "first");
  const int64_t *at = index.numbers<int64_t>("index", n);
  const T *v = value.numbers<T>("values", n);
  check_ids(at, n, k, "index", threads);
  share(rows, k, threads, [&](int64_t a, int64_t b) {
    for (int64_t r = a; r < b; ++r) {
      T *row = out + r * k;
      std::fill_n(row, k, T(0));
      for (int64_t i = from[r]; i < from[r + 1]; ++i) row[at[i]] += v[i];
    }
  });
}

// How rows are divided among threads: (first, last) of each part. For tests.
nb::list shares(int64_t rows, int64_t k, int threads) {
  std::mutex lock;
  std::vector<std::pair<int64_t, int64_t>> parts;
  share(count_of(rows), k, threads, [&](int64_t a, int64_t b) {
    const std::lock_guard<std::mutex> guard(lock);
    parts.emplace_back(a, b);
  });
  std::sort(parts.begin(), parts.end());
  nb::list found;
  for (const auto &[a, b] : parts) found.append(nb::make_tuple(a, b));
  return found;
}

// Facts of the build, which `fewfold --version` prints.
std::string compiler() {
#if defined(__clang__)
  const int version[] = {__clang_major__, __clang_minor__, __clang_patchlevel__};
  const std::string name = "Clang ";
#else
  const int version[] = {__GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__};
  const std::string name = "GCC ";
#endif
  return name + std::to_string(version[0]) + "." + std::to_string(version[1]) + "." + std::to_string(version[2]);
}

std::string python_abi() {
#if defined(Py_LIMITED_API)
  const char *suffix = " and later";
  const unsigned version = Py_LIMITED_API;
#else
  const char *suffix = "";
  const unsigned version = PY_VERSION_HEX;
#endif
  return std::to_string(version >> 24) + "." + std::to_string(version >> 16 & 255) + suffix;
}

template <class T> void bind(nb::module_ &m, const std::string &suffix) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def(("forward_" + suffix).c_str(), &forward<T>, release());
  m.def(("backward_" + suffix).c_str(), &backward<T>, release());
  m.def(("support_" + suffix).c_str(), &support<T>);
  m.def(("budget_" + suffix).c_str(), &budget<T>, release());
  m.def(("budget_backward_" + suffix).c_str(), &budget_backward<T>, release());
  m.def(("tv_groups_" + suffix).c_str(), &groups<T, true>, release());
  m.def(("oscar_groups_" + suffix).c_str(), &groups<T, false>, release());
  m.def(("scatter_" + suffix).c_str(), &scatter<T>, release());
  nb::class_<Streams<T>>(m, ("Streams_" + suffix).c_str())
      .def(nb::init<int64_t, double, int64_t>())
      .def("push", &Streams<T>::push, release())
      .def("take", &Streams<T>::take);
}

}  // namespace

const Tables *fewfold::tables = choose();

NB_MODULE(kernels, m) {
  m.def("instruction_set", [] { return std::string(tables->name); });
  m.def("threaded", [] {
#ifdef _OPENMP
    return true;
#else
    return false;
#endif
  });
  m.def("compiler", &compiler);
  m.def("python_abi", &python_abi);
  m.def("shares", &shares);
  bind_argument(m);
  bind<float>(m, "f32");
  bind<double>(m, "f64");
  bind_anchors(m);
  bind_direct(m);
  bind_bernoulli(m);
  bind_best(m);
  bind_assignments(m);
  bind_expected(m);
  bind_graphs(m);
  bind_least_squares(m);
  bind_models(m);
  bind_sampling(m);
  bind_sequences(m);
  bind_sessions(m);
  bind_structured(m);
  bind_text(m);
  bind_touch(m);
  bind_trees(m);
}
