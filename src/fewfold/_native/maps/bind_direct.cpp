// Maps of plain tensors in one call: what torch is doing, the memory of the result and the kernel, without Python
// between them.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "argument.h"
#include "bind.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

std::vector<PyObject *> plain;   // types of tensors that are no subclass with a meaning of its own
std::vector<PyObject *> states;  // functions without arguments; all must return something false
PyObject *records = nullptr;     // torch.is_grad_enabled
PyObject *batched = nullptr;     // whether a tensor stands for several; a function of it
PyObject *forward_mode = nullptr, *level = nullptr;
PyObject *is_negative = nullptr, *is_zero = nullptr, *requires_grad = nullptr;

// Takes the reference; whether the value is false. An error counts as true: then Python computes, and raises it again.
bool is_false(PyObject *value) {
  if (!value) {
    PyErr_Clear();
    return false;
  }
  const int truth = PyObject_IsTrue(value);
  Py_DECREF(value);
  if (truth < 0) PyErr_Clear();
  return truth == 0;
}

bool outside_of_transforms() {
  for (PyObject *state : states)
    if (!is_false(PyObject_CallNoArgs(state))) return false;
  PyObject *now = PyObject_GetAttr(forward_mode, level);  // -1 outside of forward mode
  if (!now) {
    PyErr_Clear();
    return false;
  }
  const long number = PyLong_AsLong(now);
  Py_DECREF(now);
  if (number == -1 && PyErr_Occurred()) PyErr_Clear();
  return number < 0;
}

bool is_plain(PyObject *x) {
  return std::find(plain.begin(), plain.end(), reinterpret_cast<PyObject *>(Py_TYPE(x))) != plain.end();
}

// PyObject_CallMethodNoArgs and PyObject_CallOneArg are not in the stable ABI.
bool holds_its_values(PyObject *x) {
  PyObject *self[] = {x};
  return is_false(PyObject_VectorcallMethod(is_negative, self, 1, nullptr)) &&
         is_false(PyObject_VectorcallMethod(is_zero, self, 1, nullptr)) &&
         is_false(PyObject_Vectorcall(batched, self, 1, nullptr));
}

bool needs_gradient(PyObject *x) {
  return !is_false(PyObject_GetAttr(x, requires_grad)) && !is_false(PyObject_CallNoArgs(records));
}

// A few thousand numbers take less time than it takes another thread to use the lock.
constexpr int64_t LET_GO = 4096;

template <class F> void without_lock(int64_t count, F work) {
  if (count < LET_GO) return work();
  const nb::gil_scoped_release release;
  work();
}

// Whether some row had infinite scores.
template <class T> bool run(const Pair &pair, double alpha, bool norm, int threads) {
  std::atomic<bool> infinite{false};
  without_lock(pair.count, [&] {
    const T *x = static_cast<const T *>(pair.from);
    T *p = static_cast<T *>(pair.to);
    const int64_t k = pair.last;
    share(pair.count / k, k, threads, [&](int64_t a, int64_t b) {
      const Family f{&alpha, false, norm};
      if (table<T>().forward(x + a * k, p + a * k, b - a, k, f, SavedSupport{})) infinite = true;
    });
  });
  return infinite;
}

template <class T> void run_back(const Pair &pair, const void *grad, double alpha, bool norm, int threads) {
  without_lock(pair.count, [&] {
    const T *p = static_cast<const T *>(pair.from), *g = static_cast<const T *>(grad);
    T *out = static_cast<T *>(pair.to);
    const int64_t k = pair.last;
    share(pair.count / k, k, threads, [&](int64_t a, int64_t b) {
      const Family f{&alpha, false, norm};
      table<T>().backward(p + a * k, g + a * k, out + a * k, b - a, k, f, SavedSupport{});
    });
  });
}

void check_alpha(double alpha) {
  if (!(alpha > 1 && alpha <= 2)) refuse("alpha must be above 1 and at most 2");
}

// For scores of which the caller knows that torch runs operations on them at once: the map, and whether some row had
// infinite scores; None if they are not contiguous floats.
nb::object map_known(nb::handle scores, double alpha, bool norm, int threads) {
  check_alpha(alpha);
  const Pair pair = pair_with_empty(scores.ptr());
  if (!pair.made.is_valid()) return nb::none();
  const bool infinite = (pair.dtype == Dtype::f32 ? run<float> : run<double>)(pair, alpha, norm, threads);
  return nb::make_tuple(pair.made, infinite);
}

// The map of the last dimension, or None if these scores ask for more than that. While gradients of them are recorded, what
// `record(scores, alpha, norm)` returns.
nb::object map_directly(nb::handle scores, nb::float_ order, nb::bool_ normalised, int threads, nb::handle record) {
  const double alpha = static_cast<double>(order);
  const bool norm = static_cast<bool>(normalised);
  check_alpha(alpha);
  PyObject *x = scores.ptr();
  if (!batched || !is_plain(x) || !outside_of_transforms() || !holds_its_values(x)) return nb::none();
  if (needs_gradient(x)) {
    if (record.is_none() || !floats_of(x).data) return nb::none();
    PyObject *given[] = {x, order.ptr(), normalised.ptr()};
    nb::object found = nb::steal(PyObject_Vectorcall(record.ptr(), given, 3, nullptr));
    if (!found.is_valid()) nb::raise_python_error();
    return found;
  }
  const Pair pair = pair_with_empty(x);
  if (!pair.made.is_valid()) return nb::none();
  (pair.dtype == Dtype::f32 ? run<float> : run<double>)(pair, alpha, norm, threads);
  return pair.made;
}

// The product of the Jacobian at `probs`, which is symmetric, and `grad`; None if they ask for more than that.
nb::object pull_directly(nb::handle probs, nb::handle grad, double alpha, bool norm, int threads) {
  check_alpha(alpha);
  PyObject *p = probs.ptr(), *g = grad.ptr();
  if (!batched || !is_plain(p) || !is_plain(g) || !is_false(PyObject_CallNoArgs(records))) return nb::none();
  if (!outside_of_transforms() || !holds_its_values(p) || !holds_its_values(g)) return nb::none();
  const Floats pull = floats_of(g);
  if (!pull.data) return nb::none();
  const Pair pair = pair_with_empty(p);
  if (!pair.made.is_valid() || pull.dtype != pair.dtype || pull.count != pair.count || pull.last != pair.last)
    return nb::none();
  (pair.dtype == Dtype::f32 ? run_back<float> : run_back<double>)(pair, pull.data, alpha, norm, threads);
  return pair.made;
}

// The types of plain tensors, and what tells that torch runs operations at once: functions that return something false
// then, the module whose `_current_level` is negative outside of forward mode, whether gradients are recorded, and whether
// a tensor is batched.
void accept_states(nb::tuple types, nb::tuple functions, nb::handle forward_ad, nb::handle grad_enabled,
                   nb::handle is_batched) {
  const auto keep = [](nb::handle h) { return h.inc_ref().ptr(); };
  plain.clear(), states.clear();
  for (nb::handle one : types) plain.push_back(keep(one));
  for (nb::handle one : functions) states.push_back(keep(one));
  forward_mode = keep(forward_ad), records = keep(grad_enabled), batched = keep(is_batched);
  level = PyUnicode_InternFromString("_current_level");
  is_negative = PyUnicode_InternFromString("is_neg");
  is_zero = PyUnicode_InternFromString("_is_zerotensor");
  requires_grad = PyUnicode_InternFromString("requires_grad");
}

}  // namespace

void bind_direct(nb::module_ &m) {
  m.def("accept_states", &accept_states);
  m.def("map_directly", &map_directly, nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none());
  m.def("map_known", &map_known);
  m.def("pull_directly", &pull_directly);
}
