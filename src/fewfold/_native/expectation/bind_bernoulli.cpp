// The Python side of the negative log-likelihoods of Bernoulli distributions.
#include "argument.h"
#include "bind.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

// `rows` rows of data, and `pairs` pairs of logits with the row of each.
template <class T>
Logits<T> logits_of(const Buffer &logits, const Buffer &target, const Buffer &row, int64_t pairs, int64_t rows, int64_t n,
                    int threads) {
  const Logits<T> at{logits.numbers<T>("logits", count_of(pairs, n)), target.numbers<T>("target", count_of(rows, n)),
                     row.numbers<int64_t>("row", pairs), n};
  check_ids(at.row, pairs, rows, "row", threads);
  return at;
}

constexpr int64_t WORK = 8;  // approximate cost of a logit: an exponential and a logarithm

template <class T>
void bernoulli_costs(const Buffer &logits, const Buffer &target, const Buffer &row, int64_t pairs, int64_t rows,
                     int64_t n, const Buffer &out_, const Buffer &slope_, int threads) {
  const Logits<T> at = logits_of<T>(logits, target, row, pairs, rows, n, threads);
  T *out = out_.numbers<T>("out", pairs), *slope = slope_.maybe<T>("slope", count_of(pairs, n));
  share(pairs, WORK * n, threads, [&](int64_t a, int64_t b) { table<T>().bernoulli_costs(at, a, b, out, slope); });
}

template <class T>
void bernoulli_pulls(const Buffer &logits, const Buffer &target, const Buffer &row, int64_t pairs, int64_t rows,
                     int64_t n, const Buffer &grad_, const Buffer &out_, int threads) {
  const Logits<T> at = logits_of<T>(logits, target, row, pairs, rows, n, threads);
  const T *grad = grad_.numbers<T>("grad", pairs);
  T *out = out_.numbers<T>("out", count_of(pairs, n));
  share(pairs, WORK * n, threads, [&](int64_t a, int64_t b) { table<T>().bernoulli_pulls(at, grad, a, b, out); });
}

}  // namespace

void bind_bernoulli(nb::module_ &m) {
  using release = nb::call_guard<nb::gil_scoped_release>;
  m.def("bernoulli_costs_f32", &bernoulli_costs<float>, release());
  m.def("bernoulli_costs_f64", &bernoulli_costs<double>, release());
  m.def("bernoulli_pulls_f32", &bernoulli_pulls<float>, release());
  m.def("bernoulli_pulls_f64", &bernoulli_pulls<double>, release());
}
