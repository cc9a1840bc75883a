// Tensors as arguments of the bindings: where their numbers lie, how many there are, and of which type. A binding
// declares what it reads and writes through `Buffer`, which checks it against the tensor, once per call.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

namespace fewfold {

enum class Dtype : uint8_t { other, f32, f64, i8, u8, i16, i32, i64, b8 };
constexpr const char *DTYPES[] = {"another type", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"};

template <class T> constexpr Dtype dtype_of();
template <> constexpr Dtype dtype_of<float>() { return Dtype::f32; }
template <> constexpr Dtype dtype_of<double>() { return Dtype::f64; }
template <> constexpr Dtype dtype_of<int8_t>() { return Dtype::i8; }
template <> constexpr Dtype dtype_of<uint8_t>() { return Dtype::u8; }
template <> constexpr Dtype dtype_of<int16_t>() { return Dtype::i16; }
template <> constexpr Dtype dtype_of<int32_t>() { return Dtype::i32; }
template <> constexpr Dtype dtype_of<int64_t>() { return Dtype::i64; }
template <> constexpr Dtype dtype_of<bool>() { return Dtype::b8; }

[[noreturn]] inline void refuse(const std::string &what) { throw std::invalid_argument(what); }

constexpr int64_t MOST_ELEMENTS = std::numeric_limits<int64_t>::max() / 16;  // sums in bytes do not overflow

// The product of sizes; raises if one is negative or the product overflows.
inline int64_t count_of(int64_t a) {
  if (a < 0) refuse("a size must not be negative, got " + std::to_string(a));
  if (a > MOST_ELEMENTS) refuse("a size of " + std::to_string(a) + " is too large");
  return a;
}
template <class... More> int64_t count_of(int64_t a, int64_t b, More... more) {
  int64_t product;
  if (__builtin_mul_overflow(count_of(a), count_of(b), &product) || product > MOST_ELEMENTS)
    refuse("sizes " + std::to_string(a) + " and " + std::to_string(b) + " are too large");
  return count_of(product, more...);
}

// The extent of rows of `n` numbers, `stride` apart.
inline int64_t reach_of(int64_t rows, int64_t n, int64_t stride) {
  count_of(stride);
  if (count_of(rows) == 0 || count_of(n) == 0) return 0;
  return count_of(rows - 1, stride) + n;
}

// An argument that is a tensor, or None: then the pointers are null.
class Buffer {
 public:
  bool given() const { return given_; }
  int64_t count() const { return count_; }
  int64_t reach() const { return reach_; }
  int64_t bytes() const { return bytes_; }
  void *start() const { return data_; }

  // At least `needed` numbers of type T, one after the other.
  template <class T> T *numbers(const char *name, int64_t needed) const {
    if (given_ && dtype_ == dtype_of<T>() && whole_ && count_ >= needed) return static_cast<T *>(data_);
    refuse_numbers(name, dtype_of<T>(), needed);
  }
  // A table of exactly this shape.
  template <class T> T *table(const char *name, int64_t rows, int64_t columns) const {
    T *found = numbers<T>(name, count_of(rows, columns));
    if (count_ != rows * columns)
      refuse(std::string(name) + " must be (" + std::to_string(rows) + ", " + std::to_string(columns) + "), got " +
             std::to_string(count_) + " elements");
    return found;
  }
  // As above; null if the argument is None.
  template <class T> T *maybe(const char *name, int64_t needed) const {
    return given_ ? numbers<T>(name, needed) : nullptr;
  }
  // Strided numbers of type T that span at least `needed` elements from the first one on.
  template <class T> T *apart(const char *name, int64_t needed) const {
    if (given_ && dtype_ == dtype_of<T>() && here_ && reach_ >= needed) return static_cast<T *>(data_);
    refuse_numbers(name, dtype_of<T>(), needed);
  }
  Dtype dtype() const { return dtype_; }

 private:
  friend struct nanobind::detail::type_caster<Buffer>;
  void *data_ = nullptr;
  int64_t count_ = 0, reach_ = 0, bytes_ = 0;
  Dtype dtype_ = Dtype::other;
  bool given_ = false, here_ = false, whole_ = false;  // in the processor's memory; and without gaps

  [[noreturn]] void refuse_numbers(const char *name, Dtype wanted, int64_t needed) const {
    const std::string expected = std::string(name) + " must be a contiguous " + DTYPES[static_cast<int>(wanted)] +
                              " tensor in memory with at least " + std::to_string(needed) + " elements, got ";
    if (!given_) throw nanobind::type_error((expected + "None").c_str());
    if (!here_) throw nanobind::type_error((expected + "one on another device, or without memory").c_str());
    if (dtype_ != wanted) throw nanobind::type_error((expected + DTYPES[static_cast<int>(dtype_)]).c_str());
    refuse(expected + std::to_string(count_) + (whole_ ? "" : " that are not contiguous"));
  }
};

// Registers the tensor type and dtypes; called once, when the package is imported.
void accept_tensors(nanobind::handle type, nanobind::tuple dtypes, bool exchange);
// Describes a tensor, through DLPack's exchange API if available, else through Python. False if it is no tensor.
struct Described {
  void *data;
  int64_t count, reach;
  Dtype dtype;
  int64_t item;
  bool here, whole;
};
bool describe(PyObject *from, Described &to) noexcept;
// A contiguous tensor of floats on the CPU with at least one element, in rows that the kernels can index, through DLPack's
// exchange API. `data` is null if this is none, or where that API cannot allocate.
struct Floats {
  const void *data;
  int64_t count, last;  // elements, and the size of the last dimension
  Dtype dtype;
};
Floats floats_of(PyObject *from);
// Such a tensor and a new one of its shape and type, not yet filled. `made` is null if it is none.
struct Pair {
  nanobind::object made;
  const void *from;
  void *to;
  int64_t count, last;
  Dtype dtype;
};
Pair pair_with_empty(PyObject *from);

// Ids that must be rows of a table of `size`; the error names the first that is not.
void check_ids(const int64_t *ids, int64_t n, int64_t size, const char *name, int threads);
[[noreturn]] void refuse_id(int64_t id, int64_t position, int64_t size, const char *name);

// offsets, (rows + 1,), must not fall, start at 0 or later and end at `total` or before. Returns where they end.
template <class T> int64_t check_offsets(const T *offset, int64_t rows, int64_t total, const char *name) {
  bool fine = offset[0] >= 0;
  for (int64_t r = 0; r < rows; ++r) fine &= offset[r] <= offset[r + 1];
  if (!fine || offset[rows] > total)
    refuse(std::string(name) + " must rise from 0 to at most " + std::to_string(total) + ", got " +
           std::to_string(offset[0]) + " to " + std::to_string(offset[rows]) + (fine ? "" : ", not in order"));
  return offset[rows];
}

// Integers that must lie in [low, high).
template <class T> void check_range(const T *x, int64_t n, int64_t low, int64_t high, const char *name) {
  bool fine = true;
  for (int64_t i = 0; i < n; ++i) fine &= (static_cast<int64_t>(x[i]) >= low) & (static_cast<int64_t>(x[i]) < high);
  if (fine) return;
  int64_t at = 0;
  while (x[at] >= low && x[at] < high) ++at;
  throw std::out_of_range(std::string(name) + " must be between " + std::to_string(low) + " and " +
                          std::to_string(high - 1) + ", got " + std::to_string(x[at]) + " at position " +
                          std::to_string(at));
}

inline void check_positive(int64_t n, const char *name) {
  if (n < 1) refuse(std::string(name) + " must be at least 1, got " + std::to_string(n));
}

}  // namespace fewfold

namespace nanobind::detail {
template <> struct has_arg_defaults<fewfold::Buffer> : std::true_type {};  // None is an argument

template <> struct type_caster<fewfold::Buffer> {
  NB_TYPE_CASTER(fewfold::Buffer, const_name("torch.Tensor"))

  bool from_python(handle src, uint32_t, cleanup_list *) noexcept {
    value = fewfold::Buffer();
    if (src.is_none()) return true;
    fewfold::Described found;
    if (!fewfold::describe(src.ptr(), found)) return false;
    value.given_ = true;
    value.data_ = found.data, value.count_ = found.count, value.reach_ = found.reach;
    value.bytes_ = found.count * found.item;
    value.dtype_ = found.dtype, value.here_ = found.here, value.whole_ = found.here && found.whole;
    return true;
  }
  static handle from_cpp(const fewfold::Buffer &, rv_policy, cleanup_list *) noexcept { return handle(); }
};
}  // namespace nanobind::detail
