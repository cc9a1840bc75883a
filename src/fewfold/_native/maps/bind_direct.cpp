// Maps of plain tensors in one call: what torch is doing, the memory of the result and the kernel, without Python
// between them.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <limits>
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

template <class T> void run(const Pair &pair, double alpha, bool norm, int threads) {
  const nb::gil_scoped_release release;
  const T *x = static_cast<const T *>(pair.from);
  T *p = static_cast<T *>(pair.to);
  const int64_t k = pair.last;
  share(pair.count / k, k, threads, [&](int64_t a, int64_t b) {
    table<T>().forward(x + a * k, p + a * k, b - a, k, Family{&alpha, false, norm}, SavedSupport{nullptr, 0});
  });
}

// The map of the last dimension, or None if these scores ask for more than that.
nb::object map_directly(nb::handle scores, double alpha, bool norm, int threads) {
  if (!(alpha > 1 && alpha <= 2)) refuse("alpha must be above 1 and at most 2");
  PyObject *x = scores.ptr();
  if (!batched || !is_plain(x) || needs_gradient(x) || !outside_of_transforms() || !holds_its_values(x))
    return nb::none();
  const Pair pair = pair_with_empty(x);
  if (!pair.made.is_valid() || pair.last > std::numeric_limits<int32_t>::max()) return nb::none();
  (pair.dtype == Dtype::f32 ? run<float> : run<double>)(pair, alpha, norm, threads);
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
  m.def("map_directly", &map_directly, nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
}
