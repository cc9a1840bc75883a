// Description of tensors for the bindings, without torch's headers.
#include "argument.h"

#include "bind.h"
#include "share.h"
#include "table.h"

namespace nb = nanobind;
using namespace fewfold;

namespace {

// As DLPack 1.3 lays them out: https://dmlc.github.io/dlpack/latest/c_api.html
struct DLTensor {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  uint32_t major, minor;
  void *context;
  void (*free)(DLManagedTensor *);
  uint64_t flags;
  DLTensor tensor;
};
struct Exchange {
  uint32_t major, minor;
  void *previous;
  int (*allocate)(DLTensor *like, DLManagedTensor **out, void *context,
                  void (*fail)(void *context, const char *kind, const char *message));
  void *managed;
  int (*to_python)(DLManagedTensor *given, void **out);
  int (*borrow)(void *object, DLTensor *out);
  void *stream;
};
constexpr int32_t CPU = 1;

PyTypeObject *tensor = nullptr;        // torch.Tensor
const Exchange *exchange = nullptr;    // null: tensors are read through Python
PyObject *kinds[9] = {};               // the dtypes, in the order of Dtype
enum Name { DATA_PTR, NUMEL, DTYPE, SHAPE, STRIDE, IS_CPU, ITEM, NAMES };
PyObject *names[NAMES] = {};

Dtype dtype_from(const DLTensor &t) {
  if (t.lanes != 1) return Dtype::other;
  switch (t.code << 8 | t.bits) {
    case 2 << 8 | 32: return Dtype::f32;
    case 2 << 8 | 64: return Dtype::f64;
    case 0 << 8 | 8: return Dtype::i8;
    case 1 << 8 | 8: return Dtype::u8;
    case 0 << 8 | 16: return Dtype::i16;
    case 0 << 8 | 32: return Dtype::i32;
    case 0 << 8 | 64: return Dtype::i64;
    case 6 << 8 | 8: return Dtype::b8;
    default: return Dtype::other;
  }
}

// count, reach and whole from the shape; strides are never negative.
void measure(const int64_t *shape, const int64_t *strides, int64_t n, Described &to) {
  to.count = 1, to.reach = 1, to.whole = true;
  for (int64_t i = n; i-- > 0;) {
    if (shape[i] != 1 && strides && strides[i] != to.count) to.whole = false;
    to.reach += (shape[i] - 1) * (strides ? strides[i] : to.count);
    to.count *= shape[i];
  }
  if (to.count == 0) to.reach = 0, to.whole = true;
}

bool whole_number(PyObject *from, int64_t &to) {
  if (!from) return false;
  to = PyLong_AsLongLong(from);
  return !(to == -1 && PyErr_Occurred());
}

bool describe_through_python(PyObject *from, Described &to) {
  const auto call = [&](Name which) {  // PyObject_CallMethodNoArgs, which the stable ABI does not have
    PyObject *self[] = {from};
    return nb::steal(PyObject_VectorcallMethod(names[which], self, 1, nullptr));
  };
  const auto get = [&](Name which) { return nb::steal(PyObject_GetAttr(from, names[which])); };
  const nb::object dtype = get(DTYPE), shape = get(SHAPE), strides = call(STRIDE), cpu = get(IS_CPU), item = call(ITEM);
  if (!dtype.is_valid() || !shape.is_valid() || !strides.is_valid() || !cpu.is_valid()) return false;
  if (!whole_number(item.ptr(), to.item)) return false;
  to.dtype = Dtype::other;
  for (int i = 1; i < 9; ++i)
    if (kinds[i] == dtype.ptr()) to.dtype = static_cast<Dtype>(i);
  constexpr Py_ssize_t MOST = 64;  // dimensions
  int64_t sizes[MOST], apart[MOST];
  const Py_ssize_t n = PyTuple_Size(shape.ptr());
  if (n < 0 || n > MOST || PyTuple_Size(strides.ptr()) != n) return false;
  for (Py_ssize_t i = 0; i < n; ++i)
    if (!whole_number(PyTuple_GetItem(shape.ptr(), i), sizes[i]) ||
        !whole_number(PyTuple_GetItem(strides.ptr(), i), apart[i]))
      return false;
  measure(sizes, apart, n, to);
  to.here = cpu.ptr() == Py_True;
  const nb::object place = call(DATA_PTR);
  if (!place.is_valid()) return false;
  to.data = PyLong_AsVoidPtr(place.ptr());
  return !PyErr_Occurred();
}

}  // namespace

bool fewfold::describe(PyObject *from, Described &to) noexcept {
  if (!tensor || !PyObject_TypeCheck(from, tensor)) return false;
  if (exchange) {
    DLTensor t;
    if (exchange->borrow(from, &t) != 0) {
      PyErr_Clear();
      return false;
    }
    to.data = static_cast<char *>(t.data) + t.byte_offset;
    to.dtype = dtype_from(t);
    to.item = t.bits / 8 * t.lanes;
    to.here = t.device_type == CPU;
    measure(t.shape, t.strides, t.ndim, to);
  } else {
    try {
      if (!describe_through_python(from, to)) {
        PyErr_Clear();
        return false;
      }
    } catch (...) {
      return false;
    }
  }
  if (to.count > 0 && !to.data) to.here = false;  // e.g. a wrapper subclass without storage
  return true;
}

namespace {

Floats borrow_floats(PyObject *from, DLTensor &t) {
  const Floats none{};
  if (!exchange || !exchange->allocate || !exchange->to_python) return none;
  if (exchange->borrow(from, &t) != 0) {
    PyErr_Clear();
    return none;
  }
  Described shape;
  measure(t.shape, t.strides, t.ndim, shape);
  const Dtype dtype = dtype_from(t);
  const bool wide = dtype == Dtype::f32 || dtype == Dtype::f64;
  if (!wide || t.device_type != CPU || t.ndim < 1 || !shape.whole || shape.count == 0 || !t.data) return none;
  const int64_t last = t.shape[t.ndim - 1];
  if (last > std::numeric_limits<int32_t>::max()) return none;
  return {static_cast<char *>(t.data) + t.byte_offset, shape.count, last, dtype};
}

}  // namespace

Floats fewfold::floats_of(PyObject *from) {
  DLTensor t;
  return borrow_floats(from, t);
}

Pair fewfold::pair_with_empty(PyObject *from) {
  DLTensor t;
  const Floats given = borrow_floats(from, t);
  Pair found{{}, given.data, nullptr, given.count, given.last, given.dtype};
  if (!given.data) return found;
  DLTensor like = t;
  like.data = nullptr, like.strides = nullptr, like.byte_offset = 0;
  DLManagedTensor *made = nullptr;
  void *object = nullptr;
  if (exchange->allocate(&like, &made, nullptr, [](void *, const char *, const char *) {}) != 0 || !made) {
    PyErr_Clear();
    throw std::bad_alloc();
  }
  found.to = static_cast<char *>(made->tensor.data) + made->tensor.byte_offset;
  if (exchange->to_python(made, &object) != 0 || !object) {
    if (!PyErr_Occurred()) throw std::bad_alloc();
    nb::raise_python_error();
  }
  found.made = nb::steal(static_cast<PyObject *>(object));
  return found;
}

void fewfold::accept_tensors(nb::handle type, nb::tuple dtypes, bool by_exchange) {
  constexpr const char *TEXT[NAMES] = {"data_ptr", "numel", "dtype", "shape", "stride", "is_cpu", "element_size"};
  for (int i = 0; i < NAMES; ++i)
    if (!names[i]) names[i] = PyUnicode_InternFromString(TEXT[i]);
  if (!PyType_Check(type.ptr()) || dtypes.size() != 8) refuse("expected the type of tensors and eight dtypes");
  for (size_t i = 0; i < 8; ++i) kinds[i + 1] = nb::handle(dtypes[i]).inc_ref().ptr();
  type.inc_ref();
  tensor = reinterpret_cast<PyTypeObject *>(type.ptr());
  exchange = nullptr;
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!by_exchange || !PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return;
  const auto *found = static_cast<const Exchange *>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (found->major == 1 && found->borrow) exchange = found;
}

void fewfold::refuse_id(int64_t id, int64_t position, int64_t size, const char *name) {
  throw std::out_of_range(std::string(name) + " must be between 0 and " + std::to_string(size - 1) +
                          ", the rows of the table, got " + std::to_string(id) + " at position " +
                          std::to_string(position));
}

void fewfold::check_ids(const int64_t *ids, int64_t n, int64_t size, const char *name, int threads) {
  std::atomic<bool> fine{true};
  share(n, 1, threads, [&](int64_t a, int64_t b) {
    if (!tables->within(ids + a, b - a, size)) fine = false;
  });
  if (fine) return;
  int64_t at = 0;
  while (ids[at] >= 0 && ids[at] < size) ++at;
  refuse_id(ids[at], at, size, name);
}

void bind_argument(nb::module_ &m) {
  m.def("accept_tensors", &accept_tensors, nb::arg("type"), nb::arg("dtypes"), nb::arg("exchange") = true);
}
