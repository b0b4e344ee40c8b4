// Products on AVX-512, for formats that multiply words of 32 bits: two bfloat16, or four bytes. One running sum per element, in
// the order of the summed axis, so that a row's bits do not depend on how many there are.
#pragma once

#if defined(__AVX512F__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace wellhead {

// Rows whose sums stay in registers, two each. With many rows groups of 6 are the fastest; kTogether or less go all at once,
// since b is then read once.
constexpr int64_t kTogether = 8, kGroup = 6;

using Word = int32_t __attribute__((may_alias));

// A matrix and the elements from one row to the next.
template <class T>
struct Strided {
  T* data;
  int64_t stride;
};

// c[rows, 16 * vectors] (+)= a[rows, words] b[words, 16 * vectors]. Every `every`-th step asks for two cache lines of `next`, if
// there is one. Trap: left to themselves compilers keep the sums in memory, which is half as fast.
template <class Dot, int vectors, int rows>
void sums(int64_t words, Strided<const Word> a, Strided<const Word> b, Strided<typename Dot::Element> c, bool add, const char* next,
          int64_t every) {
  typename Dot::Sum low[rows], high[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) low[r] = high[r] = typename Dot::Sum{};
  const Word* w = b.data;
  for (int64_t i = 0; i < words;) {
    if (next) {
      _mm_prefetch(next, _MM_HINT_T1);
      _mm_prefetch(next + 64, _MM_HINT_T1);
      next += 128;
    }
    for (const int64_t end = std::min(words, i + every); i < end; ++i, w += b.stride) {
      const __m512i left = _mm512_loadu_si512(w), right = vectors == 2 ? _mm512_loadu_si512(w + 16) : left;
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const __m512i x = _mm512_set1_epi32(a.data[r * a.stride + i]);
        low[r] = Dot::add(low[r], x, left);
        if (vectors == 2) high[r] = Dot::add(high[r], x, right);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    Dot::store(c.data + r * c.stride, low[r], add);
    if (vectors == 2) Dot::store(c.data + r * c.stride + 16, high[r], add);
  }
}

template <class Dot, int vectors, size_t... i>
constexpr auto all_sums(std::index_sequence<i...>) {
  return std::array{sums<Dot, vectors, i + 1>...};
}

// c[rows, columns] (+)= a[rows, words] b[words, columns], columns a multiple of 16; meanwhile what lies at `next`, as much as
// all of b, is brought into the core's cache.
template <class Dot>
void product_by_hand(int64_t rows, int64_t columns, int64_t words, Strided<const Word> a, Strided<const Word> b,
                     Strided<typename Dot::Element> c, bool add, const void* next) {
  static constexpr auto one = all_sums<Dot, 1>(std::make_index_sequence<kTogether>());
  static constexpr auto two = all_sums<Dot, 2>(std::make_index_sequence<kTogether>());
  const int64_t groups = rows <= kTogether ? 1 : (rows + kGroup - 1) / kGroup;
  const char* ahead = static_cast<const char*>(next);
  for (int64_t column = 0; column < columns; column += 32) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = rows * g / groups, count = rows * (g + 1) / groups - first;
      const auto& by_count = columns - column >= 32 ? two : one;
      by_count[count - 1](words, {a.data + first * a.stride, a.stride}, {b.data + column, b.stride},
                          {c.data + first * c.stride + column, c.stride}, add, ahead, groups);
      if (ahead) ahead += (words + groups - 1) / groups * 128;
    }
  }
}

}  // namespace wellhead

#endif
