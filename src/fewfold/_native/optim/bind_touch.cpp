// The Python side of the optimisers' kernel.
#include "argument.h"
#include "bind.h"

#include <string>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "group.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

// A table with its optimiser state; each rule uses its own subset of the state.
template <class T>
Touched<T> table_of(Rule rule, int64_t rows, int64_t width, const Buffer &weight, const Buffer &state, const Buffer &age,
                    const Buffer &square) {
  const int64_t all = count_of(rows, width);
  const bool moments = rule == Rule::adam || rule == Rule::yogi, by_row = rule == Rule::adam_by_row || rule == Rule::scale_by_row;
  const int64_t slots = moments ? 2 : rule == Rule::sgd || rule == Rule::scale_by_row ? 0 : 1;
  return {weight.numbers<T>("weight", all),
          slots ? state.numbers<T>("state", count_of(all, slots)) : nullptr,
          moments || by_row ? age.numbers<int32_t>("age", rows) : nullptr,
          by_row ? square.numbers<T>("square", rows) : nullptr,
          nullptr, nullptr, 0, width};
}

// Returns -1, or the position of an index out of range, with the table unchanged. A null index: all rows are updated.
template <class T>
int64_t touch(Rule rule, const Buffer &index, const Buffer &grad, int64_t n, int64_t rows, int64_t width,
              const Buffer &weight, const Buffer &state, const Buffer &age, const Buffer &square, const Update &numbers,
              int threads) {
  Update update = numbers;
  update.rule = rule;
  Touched<T> t = table_of<T>(rule, rows, width, weight, state, age, square);
  t.grad = grad.numbers<T>("grad", count_of(n, width));
  if (!index.given()) {
    if (n != rows) refuse("a gradient without an index must have every row, " + std::to_string(rows) + ", got " + std::to_string(n));
    share(n, width, threads, [&](int64_t a, int64_t b) { table<T>().touch(t, update, a, b); });
    return -1;
  }
  if (bit_length(static_cast<uint64_t>(rows)) + bit_length(static_cast<uint64_t>(n)) > 64)
    refuse("so many rows and gradients cannot be sorted as one number");
  const Groups groups(index.numbers<int64_t>("index", n), n, rows);
  if (groups.bad() >= 0) return groups.bad();
  t.order = groups.order();
  t.bits = groups.bits();
  // A row is processed entirely by the thread whose part contains its start.
  share(n, width, threads, [&](int64_t a, int64_t b) {
    const int64_t first = groups.start(a), last = groups.start(b);
    if (first < last) table<T>().touch(t, update, first, last);
  });
  return -1;
}

// Shrinks the listed rows (no duplicates), or all rows, by by[i] times their step size. Returns as above.
template <class T>
int64_t pay(Rule rule, const Buffer &rows_, const Buffer &by_, int64_t n, int64_t size, int64_t width,
            const Buffer &weight, const Buffer &state, const Buffer &age, const Buffer &square, const Update &numbers,
            int threads) {
  Update update = numbers;
  update.rule = rule;
  const Touched<T> t = table_of<T>(rule, size, width, weight, state, age, square);
  const int64_t *rows = rows_.maybe<int64_t>("rows", count_of(n));
  const T *by = by_.numbers<T>("by", n);
  if (!rows_.given() && n > size) refuse("there are " + std::to_string(size) + " rows to pay, got " + std::to_string(n));
  if (rows)
    for (int64_t i = 0; i < n; ++i)
      if (rows[i] < 0 || rows[i] >= size) return i;
  share(n, 4 * width, threads, [&](int64_t a, int64_t b) {
    table<T>().pay(t, update, rows, by, a, b);
  });
  return -1;
}

template <class T> void bind_rules(nb::module_ &m, const std::string &suffix) {
  const std::pair<const char *, Rule> rules[] = {{"sgd", Rule::sgd},
                                                 {"momentum", Rule::momentum},
                                                 {"adagrad", Rule::adagrad},
                                                 {"adam", Rule::adam},
                                                 {"adam_by_row", Rule::adam_by_row},
                                                 {"scale_by_row", Rule::scale_by_row},
                                                 {"yogi", Rule::yogi}};
  for (const auto &[name, rule] : rules) {
    const Rule own = rule;
    m.def(("touch_" + std::string(name) + "_" + suffix).c_str(),
          [own](const Buffer &index, const Buffer &grad, int64_t n, int64_t rows, int64_t width, const Buffer &weight,
                const Buffer &state, const Buffer &age, const Buffer &square, const Update &update, int threads) {
            return touch<T>(own, index, grad, n, rows, width, weight, state, age, square, update, threads);
          },
          nb::call_guard<nb::gil_scoped_release>());
    m.def(("pay_" + std::string(name) + "_" + suffix).c_str(),
          [own](const Buffer &rows, const Buffer &by, int64_t n, int64_t size, int64_t width, const Buffer &weight,
                const Buffer &state, const Buffer &age, const Buffer &square, const Update &update, int threads) {
            return pay<T>(own, rows, by, n, size, width, weight, state, age, square, update, threads);
          },
          nb::call_guard<nb::gil_scoped_release>());
  }
}

// Request huge pages before the first access: rows far apart then share the limited number of TLB entries.
void large_pages(const Buffer &table) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(table.start());
  const int64_t bytes = table.bytes();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t PAGE = 1 << 21;
  const uintptr_t first = (address + PAGE - 1) / PAGE * PAGE, last = (address + static_cast<uintptr_t>(bytes)) / PAGE * PAGE;
  if (first < last) madvise(reinterpret_cast<void *>(first), last - first, MADV_HUGEPAGE);  // only a hint
#else
  (void)address;
  (void)bytes;
#endif
}

}  // namespace

void bind_touch(nb::module_ &m) {
  nb::class_<Update>(m, "Update").def(
      "__init__",
      [](Update *s, double lr, double beta1, double beta2, double eps, double decay, double shrink, bool maximize,
         bool nesterov, double initial, double l1, bool signed_, bool adam_eps) {
        new (s) Update{Rule::sgd, lr, beta1, beta2, eps, decay, shrink, maximize, nesterov, initial, l1, signed_, adam_eps};
      },
      nb::kw_only(), nb::arg("lr"), nb::arg("beta1") = 0., nb::arg("beta2") = 0., nb::arg("eps") = 0.,
      nb::arg("decay") = 0., nb::arg("shrink") = 1., nb::arg("maximize") = false, nb::arg("nesterov") = false,
      nb::arg("initial") = 0., nb::arg("l1") = 0., nb::arg("signed") = false, nb::arg("adam_eps") = false);
  m.def("large_pages", &large_pages);
  bind_rules<float>(m, "f32");
  bind_rules<double>(m, "f64");
}
