// Random numbers. In an anonymous namespace, so that each translation unit is compiled for its instruction set.
#pragma once
#include <cstdint>

namespace fewfold {
namespace {

// A stream of its own for every row, so that the draws do not depend on how rows are divided among threads
// (SplitMix64: Steele, Lea and Flood, 2014).
struct Random {
  uint64_t state;
  static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  Random(uint64_t seed, int64_t row) : state(mix(mix(seed) + static_cast<uint64_t>(row))) {}
  uint64_t next() { return mix(state += 0x9e3779b97f4a7c15u); }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
};

}  // namespace
}  // namespace fewfold
