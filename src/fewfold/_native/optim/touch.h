// One pass over the touched rows of a table: sum a row's gradients, update its state, move it.
//
// A step touches some ten thousand rows of a table that fits no cache, so nearly all of its time is waiting for
// memory: each row is processed in a single visit, and the rows that follow are prefetched.
#pragma once
#include <cstdint>

#include "simd.h"
#include "touched.h"

namespace fewfold {
namespace FEWFOLD_ISA {

// The update of N numbers by a rule: g is the gradient, w the weights, s the state of the rule, SLOTS vectors. A rule that
// counts the updates of a row receives the count first, by `visit`, or by `look` if nothing changes. `rate`: step size.
template <class T> struct Sgd {
  using V = Vec<T>;
  static constexpr int SLOTS = 0;
  static constexpr bool AGED = false, BY_ROW = false;
  V lr;
  explicit Sgd(const Update &s) : lr(V::of(static_cast<T>(-s.lr))) {}
  void operator()(V g, V &w, V *) const { w = V::fma(lr, g, w); }
  V rate(const V *) const { return V::of(0) - lr; }
};

template <class T> struct Momentum {
  using V = Vec<T>;
  static constexpr int SLOTS = 1;
  static constexpr bool AGED = false, BY_ROW = false;
  V lr, keep;
  bool nesterov;
  explicit Momentum(const Update &s)
      : lr(V::of(static_cast<T>(-s.lr))), keep(V::of(static_cast<T>(s.beta1))), nesterov(s.nesterov) {}
  void operator()(V g, V &w, V *s) const {
    s[0] = V::fma(keep, s[0], g);
    w = V::fma(lr, nesterov ? V::fma(keep, s[0], g) : s[0], w);
  }
  V rate(const V *) const { return V::of(0) - lr; }
};

template <class T> struct Adagrad {
  using V = Vec<T>;
  static constexpr int SLOTS = 1;
  static constexpr bool AGED = false, BY_ROW = false;
  V lr, eps, initial;
  explicit Adagrad(const Update &s)
      : lr(V::of(static_cast<T>(-s.lr))), eps(V::of(static_cast<T>(s.eps))), initial(V::of(static_cast<T>(s.initial))) {}
  void operator()(V g, V &w, V *s) const {
    s[0] = V::fma(g, g, s[0]);
    w = V::fma(lr, g / (V::sqrt(s[0]) + eps), w);
  }
  V rate(const V *s) const {  // zero where there has been no gradient
    return V::keep(V::gt(s[0], initial), (V::of(0) - lr) / (V::sqrt(s[0]) + eps));
  }
};

// The corrections of the moments of a row that was touched `age` times. Ages in a batch repeat and
// powers are slow, so recent values are cached.
class Corrections {
 public:
  Corrections(double beta1, double beta2) : beta1_(beta1), beta2_(beta2) {}
  struct Entry {
    int32_t age = 0;
    double mean = 0, root = 0;  // 1 / (1 - beta1^age), 1 / sqrt(1 - beta2^age)
  };
  const Entry &at(int32_t age) {
    Entry &e = cache_[age % CACHE_SIZE];
    if (e.age != age) {
      e.age = age;
      e.mean = 1 / (1 - __builtin_pow(beta1_, age));
      e.root = 1 / __builtin_sqrt(1 - __builtin_pow(beta2_, age));
    }
    return e;
  }

 private:
  static constexpr uint32_t CACHE_SIZE = 256;
  double beta1_, beta2_;
  Entry cache_[CACHE_SIZE];
};

template <class T, bool Yogi> struct TwoMoments {
  using V = Vec<T>;
  static constexpr int SLOTS = 2;
  static constexpr bool AGED = true, BY_ROW = false;
  Corrections corrections;
  double lr_one, eps_one;
  bool adam_eps;
  V keep1, fresh1, keep2, fresh2, eps, lr, root;
  explicit TwoMoments(const Update &s)
      : corrections(s.beta1, s.beta2), lr_one(-s.lr), eps_one(s.eps), adam_eps(s.adam_eps),
        keep1(V::of(static_cast<T>(s.beta1))), fresh1(V::of(static_cast<T>(1 - s.beta1))), keep2(V::of(static_cast<T>(s.beta2))),
        fresh2(V::of(static_cast<T>(1 - s.beta2))), eps(V::of(static_cast<T>(s.eps))), lr(), root() {}
  void visit(int32_t age) {
    const Corrections::Entry &e = corrections.at(age);
    lr = V::of(static_cast<T>(lr_one * e.mean));
    root = V::of(static_cast<T>(e.root));
    if (Yogi && !adam_eps) eps = V::of(static_cast<T>(eps_one * e.root));  // root * (sqrt(v) + eps)
  }
  void look(int32_t age, T) { visit(age); }
  V rate(const V *s) const {  // zero where there has been no gradient
    return V::keep(V::gt(s[1], V::of(0)), (V::of(0) - lr) / V::fma(V::sqrt(s[1]), root, eps));
  }
  void operator()(V g, V &w, V *s) const {
    const V square = g * g, change = fresh2 * square;
    s[0] = V::fma(keep1, s[0], fresh1 * g);
    if (Yogi) {  // v moves towards the square by a fraction of the square, not of the difference; on a tie v stays
      const V up = V::keep(V::gt(square, s[1]), change), down = V::keep(V::gt(s[1], square), change);
      s[1] = s[1] + (up - down);
      s[1] = V::pick(V::nan(square, s[1]), square, s[1]);  // propagate a NaN gradient
    } else {
      s[1] = V::fma(keep2, s[1], change);
    }
    w = V::fma(lr, s[0] / V::fma(V::sqrt(s[1]), root, eps), w);
  }
};

// Adam with one second moment for a whole row, the mean of its squares: half the memory, a third less to read and write.
// Without a first moment (beta1 = 0) there is no other state.
template <class T, bool Mean> struct AdamByRow {
  using V = Vec<T>;
  static constexpr int SLOTS = Mean ? 1 : 0;
  static constexpr bool AGED = true, BY_ROW = true;
  Corrections corrections;
  double lr_one, keep2, eps;
  V keep1, fresh1, lr;
  explicit AdamByRow(const Update &s)
      : corrections(s.beta1, s.beta2), lr_one(-s.lr), keep2(s.beta2), eps(s.eps), keep1(V::of(static_cast<T>(s.beta1))),
        fresh1(V::of(static_cast<T>(1 - s.beta1))), lr() {}
  void visit(int32_t age, T mean_square, T &square) {
    square = static_cast<T>(keep2 * static_cast<double>(square) + (1 - keep2) * static_cast<double>(mean_square));
    look(age, square);
  }
  void look(int32_t age, T square) {
    const Corrections::Entry &e = corrections.at(age);
    lr = V::of(static_cast<T>(lr_one * e.mean / (__builtin_sqrt(static_cast<double>(square)) * e.root + eps)));
  }
  V rate(const V *) const { return V::of(0) - lr; }
  void operator()(V g, V &w, V *s) const {
    if (Mean) g = s[0] = V::fma(keep1, s[0], fresh1 * g);
    w = V::fma(lr, g, w);
  }
};

// Pays: rows are shrunk after their update (l1 penalty). A template parameter, so that other rules have no overhead.
template <class T, class R, bool Pays> class Toucher {
  using V = Vec<T>;

 public:
  Toucher(const Touched<T> &t, const Update &s)
      : t_(t), rule_(s), sign_(V::of(static_cast<T>(s.maximize ? -1 : 1))), decay_(V::of(static_cast<T>(s.decay))),
        shrink_(V::of(static_cast<T>(s.shrink))), l1_(static_cast<T>(s.l1)), signed_(s.signed_), ahead_(AHEAD_BYTES / (t.width * int64_t(sizeof(T)) + 1)) {
    ahead_ = ahead_ < 2 ? 2 : ahead_ > 48 ? 48 : ahead_;
  }

  // Entries [first, last) of the order; both are the starts of a group.
  void run(int64_t first, int64_t last) {
    for (int64_t i = first; i < last;) {
      int64_t end = i + 1;
      while (end < last && row(end) == row(i)) ++end;
      for (int64_t j = i; j < end; ++j)
        if (j + ahead_ < last) prefetch(j + ahead_);
      visit(i, end);
      i = end;
    }
  }

  // Rows [first, last) of a list, or of the table if there is none, are shrunk by by[i] times their step size, which
  // is zero for a row that was never updated.
  void pay(const int64_t *rows, const T *by, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      if (rows && i + ahead_ < last) prefetch_row(rows[i + ahead_]);
      const int64_t r = rows ? rows[i] : i;
      if (!(by[i] > 0)) continue;
      if constexpr (R::AGED) {
        if (t_.age[r] == 0) continue;
        rule_.look(t_.age[r], R::BY_ROW ? t_.square[r] : T(0));
      }
      soften(t_.weight + r * t_.width, R::SLOTS ? t_.state + r * R::SLOTS * t_.width : nullptr, by[i]);
    }
  }

 private:
  static constexpr int64_t AHEAD_BYTES = 1536, CHUNK = 512;

  int64_t row(int64_t i) const { return t_.order ? static_cast<int64_t>(t_.order[i] >> t_.bits) : i; }
  const T *grad(int64_t i) const {
    const int64_t at = t_.order ? static_cast<int64_t>(t_.order[i] & ((uint64_t(1) << t_.bits) - 1)) : i;
    return t_.grad + at * t_.width;
  }
  // Into the L2 cache: L1 has not enough line fill buffers.
  FEWFOLD_INLINE void prefetch(int64_t i) const {
    prefetch_range<2>(grad(i), t_.width);
    prefetch_row(row(i));
  }
  FEWFOLD_INLINE void prefetch_row(int64_t r) const {
    prefetch_range<2>(t_.weight + r * t_.width, t_.width);
    if (R::SLOTS) prefetch_range<2>(t_.state + r * R::SLOTS * t_.width, R::SLOTS * t_.width);
    if (R::AGED) prefetch_range<2>(t_.age + r, 1);
    if (R::BY_ROW) prefetch_range<2>(t_.square + r, 1);
  }

  // Increments the age; a restored age may already be the largest integer.
  static int32_t older(int32_t &age) { return age += age < INT32_MAX; }

  // Updates one row from its gradients [i, end).
  void visit(int64_t i, int64_t end) {
    const int64_t r = row(i);
    T *w = t_.weight + r * t_.width, *s = R::SLOTS ? t_.state + r * R::SLOTS * t_.width : nullptr;
    T total[CHUNK];
    if constexpr (R::BY_ROW) {
      T squares = 0;
      each(total, i, end, [&](const T *g, int64_t from, int64_t n) { squares += squared(g, w + from, n); });
      rule_.visit(older(t_.age[r]), squares / static_cast<T>(t_.width), t_.square[r]);
    } else if constexpr (R::AGED) {
      rule_.visit(older(t_.age[r]));
    }
    each(total, i, end, [&](const T *g, int64_t from, int64_t n) { move(g, w + from, s ? s + from : s, n); });
    if constexpr (Pays) soften(w, s, l1_);
  }

  // A row that has just moved, or is about to be read, closer to zero by l1 times its step size. A NaN stays one.
  void soften(T *w, const T *s, T l1) const {
    const V by = V::of(l1), zero = V::of(0);
    for (int64_t k = 0; k < t_.width; k += V::N) {
      const int size = static_cast<int>(t_.width - k < V::N ? t_.width - k : V::N);
      V memory[R::SLOTS + 1];
      for (int m = 0; m < R::SLOTS; ++m) memory[m] = V::load(s + m * t_.width + k, size, T(0));
      const V x = V::load(w + k, size, T(0)), off = by * rule_.rate(memory), y = V::max(zero, x - off);
      V::pick(V::gt(off, zero), signed_ ? y + V::min(zero, x + off) : y, x).store(w + k, size);
    }
  }

  // The sum of these gradients, block by block.
  template <class F> void each(T *total, int64_t i, int64_t end, F use) const {
    for (int64_t from = 0; from < t_.width; from += CHUNK) {
      const int64_t n = t_.width - from < CHUNK ? t_.width - from : CHUNK;
      const T *g = grad(i) + from;
      if (end > i + 1) {
        sum(total, i, end, from, n);
        g = total;
      }
      use(g, from, n);
    }
  }

  // The squares of a gradient with its decay, summed.
  T squared(const T *g, const T *w, int64_t n) const {
    V total = V::of(0);
    for (int64_t k = 0; k < n; k += V::N) {
      const int size = static_cast<int>(n - k < V::N ? n - k : V::N);
      const V x = V::fma(decay_, V::load(w + k, size, T(0)), sign_ * V::load(g + k, size, T(0)));
      total = V::fma(x, x, total);
    }
    return total.sum();
  }

  // In the order of the positions, so that the result does not depend on the thread.
  void sum(T *total, int64_t i, int64_t end, int64_t from, int64_t n) const {
    const T *before = grad(i) + from;
    for (int64_t j = i + 1; j < end; ++j, before = total) {
      const T *g = grad(j) + from;
      int64_t k = 0;
      for (; k + V::N <= n; k += V::N) (V::load(before + k) + V::load(g + k)).store(total + k);
      for (; k < n; ++k) total[k] = before[k] + g[k];
    }
  }

  void move(const T *g, T *w, T *s, int64_t n) const {
    int64_t k = 0;
    for (; k + V::N <= n; k += V::N) {
      V x = V::load(w + k), memory[R::SLOTS + 1];
      for (int m = 0; m < R::SLOTS; ++m) memory[m] = V::load(s + m * t_.width + k);
      change(V::load(g + k), x, memory);
      x.store(w + k);
      for (int m = 0; m < R::SLOTS; ++m) memory[m].store(s + m * t_.width + k);
    }
    const int rest = static_cast<int>(n - k);
    if (!rest) return;
    V x = V::load(w + k, rest, T(0)), memory[R::SLOTS + 1];
    for (int m = 0; m < R::SLOTS; ++m) memory[m] = V::load(s + m * t_.width + k, rest, T(0));
    change(V::load(g + k, rest, T(0)), x, memory);
    x.store(w + k, rest);
    for (int m = 0; m < R::SLOTS; ++m) memory[m].store(s + m * t_.width + k, rest);
  }

  void change(V g, V &w, V *memory) const {
    g = V::fma(decay_, w, sign_ * g);
    w = w * shrink_;
    rule_(g, w, memory);
  }

  const Touched<T> &t_;
  R rule_;
  V sign_, decay_, shrink_;
  T l1_;
  bool signed_;
  int64_t ahead_;
};

// Calls use(Toucher) with the requested rule and the l1 penalty.
template <class T, class F> void by_rule(const Touched<T> &t, const Update &s, F use) {
  switch (s.rule) {
    case Rule::sgd: return use(Toucher<T, Sgd<T>, true>(t, s));
    case Rule::momentum: return use(Toucher<T, Momentum<T>, true>(t, s));
    case Rule::adagrad: return use(Toucher<T, Adagrad<T>, true>(t, s));
    case Rule::adam: return use(Toucher<T, TwoMoments<T, false>, true>(t, s));
    case Rule::adam_by_row: return use(Toucher<T, AdamByRow<T, true>, true>(t, s));
    case Rule::scale_by_row: return use(Toucher<T, AdamByRow<T, false>, true>(t, s));
    case Rule::yogi: return use(Toucher<T, TwoMoments<T, true>, true>(t, s));
  }
}

template <class T> void touch(const Touched<T> &t, const Update &s, int64_t first, int64_t last) {
  if (s.l1 > 0) return by_rule<T>(t, s, [=](auto &&toucher) { toucher.run(first, last); });
  switch (s.rule) {  // spelled out: a helper function made Adam 20% slower on narrow rows
    case Rule::sgd: return Toucher<T, Sgd<T>, false>(t, s).run(first, last);
    case Rule::momentum: return Toucher<T, Momentum<T>, false>(t, s).run(first, last);
    case Rule::adagrad: return Toucher<T, Adagrad<T>, false>(t, s).run(first, last);
    case Rule::adam: return Toucher<T, TwoMoments<T, false>, false>(t, s).run(first, last);
    case Rule::adam_by_row: return Toucher<T, AdamByRow<T, true>, false>(t, s).run(first, last);
    case Rule::scale_by_row: return Toucher<T, AdamByRow<T, false>, false>(t, s).run(first, last);
    case Rule::yogi: return Toucher<T, TwoMoments<T, true>, false>(t, s).run(first, last);
  }
}

template <class T>
void pay(const Touched<T> &t, const Update &s, const int64_t *rows, const T *by, int64_t first, int64_t last) {
  by_rule<T>(t, s, [=](auto &&toucher) { toucher.pay(rows, by, first, last); });
}

}  // namespace FEWFOLD_ISA
}  // namespace fewfold
