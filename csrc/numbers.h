// Number formats, vector loads and stores, the one matrix product, per-thread scratch.
//
// S is the storage type of weights, activations and pages (float, BFloat16, Half). C is the type that the matrix product
// reads: BFloat16 where the processor multiplies it, else float, to which panels are widened in scratch.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/native/CPUBlas.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>

namespace wellhead {

using c10::BFloat16;
using c10::Half;
using Vec = at::vec::Vectorized<float>;

constexpr int64_t kLanes = Vec::size();
constexpr int64_t kRows = 32;  // rows of one product: two AMX tiles
constexpr int64_t kCols = 32;  // columns of one weight block

// BFloat16 operands of the product hold neighbours along the summed axis side by side.
template <class C>
constexpr bool kPairs = std::is_same_v<C, BFloat16>;

inline Vec load(const float* p) { return Vec::loadu(p); }
inline Vec load(const BFloat16* p) {
  Vec out;
  at::vec::load_fp32_from_bf16(p, out);
  return out;
}
inline Vec load(const Half* p) {
  Vec out;
  at::vec::load_fp32_from_fp16(p, out);
  return out;
}

inline void store(float* p, const Vec& v) { v.store(p); }
template <class S>
inline void store(S* p, const Vec& v) {
  at::vec::convert_from_float<S>(v, v).store(p, static_cast<int>(kLanes));
}

// The first n < kLanes elements; the other lanes are zero.
template <class S>
inline Vec load_tail(const S* p, int64_t n) {
  S padded[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
  return load(padded);
}
template <class S>
inline void store_tail(S* p, const Vec& v, int64_t n) {
  S padded[kLanes];
  store(padded, v);
  for (int64_t i = 0; i < n; ++i) p[i] = padded[i];
}

// out[i] = f(a[i], ...) for i < n, all sides widened to float.
template <class D, class F, class... A>
inline void map(D* out, int64_t n, const F& f, const A*... a) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(a + i)...));
  if (i < n) store_tail(out + i, f(load_tail(a + i, n - i)...), n - i);
}

template <class D, class S>
inline void convert(D* out, const S* in, int64_t n) {
  if constexpr (std::is_same_v<D, S>) std::memcpy(out, in, n * sizeof(S));
  else map(out, n, [](const Vec& v) { return v; }, in);
}

inline float sum(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return a + b; }, v);
}
inline float largest(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); }, v);
}

// exp to the last bit or two for float32; 20 units in the last place where the result is rounded to 8 or 11 bits anyway.
// Trap: exp_u20(NaN) is finite; callers must carry NaN themselves.
template <class S>
inline Vec exponential(const Vec& v) {
  if constexpr (std::is_same_v<S, float>) return v.exp();
  else return v.exp_u20();
}

// c[m, n] (+)= a[m, k] b[k, n]. One call covers all of k, and a row's sums do not depend on m.
template <class C>
inline void product(int64_t m, int64_t n, int64_t k, const C* a, int64_t lda, const C* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c, kPairs<C>);
}

// Leaves the matrix unit as other libraries expect it; due at the end of each thread's share of products.
template <class C>
struct ProductScope {
  ~ProductScope() { at::native::cpublas::brgemm_release(kPairs<C>); }
};

// A thread's own memory, kept from call to call; contents are whatever the last user left. One slot per simultaneous use.
template <class T, int slot>
inline T* scratch(int64_t count) {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  static thread_local std::unique_ptr<void, Free> memory;
  static thread_local size_t held = 0;
  const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  if (bytes > held) {
    memory.reset();
    held = 0;
    memory.reset(std::aligned_alloc(64, bytes));
    if (!memory) throw std::bad_alloc();
    held = bytes;
  }
  return static_cast<T*>(memory.get());
}

// Calls f(S{}, C{}) for a storage type and whether its products are BFloat16 pairs.
template <class F>
inline void by_type(c10::ScalarType type, bool pairs, const F& f) {
  if (type == c10::ScalarType::Float) f(float{}, float{});
  else if (type == c10::ScalarType::Half) f(Half{}, float{});
  else if (pairs) f(BFloat16{}, BFloat16{});
  else f(BFloat16{}, float{});
}

}  // namespace wellhead
