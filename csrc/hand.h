// Products with one block of a packed weight on AVX-512, for formats that multiply words of 32 bits: two bfloat16, or four
// bytes. One running sum per element, in the order of the summed axis, so that a row's bits do not depend on how many there are.
#pragma once

#if defined(__AVX512F__)

#include "numbers.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <utility>

namespace wellhead {

// Rows whose sums stay in registers, two each. With many rows groups of 6 are the fastest; kTogether or less go all at once,
// since the weight is then read once.
constexpr int64_t kTogether = 8, kGroup = 6;

using Word = int32_t __attribute__((may_alias));

// c[rows, kCols] = a[rows, words] b[words, kCols]. Every `every`-th step asks for two cache lines of `next`, if there is one.
// Trap: left to themselves compilers keep the sums in memory, which is half as fast.
template <class Dot, int rows>
void sums(int64_t words, const Word* a, const Word* b, typename Dot::Element* c, const char* next, int64_t every) {
  typename Dot::Sum low[rows], high[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) low[r] = high[r] = typename Dot::Sum{};
  for (int64_t i = 0; i < words;) {
    if (next) {
      _mm_prefetch(next, _MM_HINT_T1);
      _mm_prefetch(next + 64, _MM_HINT_T1);
      next += 128;
    }
    for (const int64_t end = std::min(words, i + every); i < end; ++i) {
      const __m512i left = _mm512_loadu_si512(b + i * kCols), right = _mm512_loadu_si512(b + i * kCols + kCols / 2);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const __m512i x = _mm512_set1_epi32(a[r * words + i]);
        low[r] = Dot::add(low[r], x, left);
        high[r] = Dot::add(high[r], x, right);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    std::memcpy(c + r * kCols, &low[r], 64);
    std::memcpy(c + r * kCols + kCols / 2, &high[r], 64);
  }
}

template <class Dot, size_t... i>
constexpr auto all_sums(std::index_sequence<i...>) {
  return std::array{sums<Dot, i + 1>...};
}

// The same for any number of rows; meanwhile `next`, the block that comes after or null, is brought into the core's cache.
template <class Dot>
void product_by_hand(int64_t rows, int64_t words, const void* a, const void* b, typename Dot::Element* c, const void* next) {
  static constexpr auto by_count = all_sums<Dot>(std::make_index_sequence<kTogether>());
  const int64_t groups = rows <= kTogether ? 1 : (rows + kGroup - 1) / kGroup;
  const auto* x = static_cast<const Word*>(a);
  // One group reads at the rate of memory, which the processor's own prefetching serves better.
  const char* ahead = groups > 1 ? static_cast<const char*>(next) : nullptr;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = rows * g / groups, count = rows * (g + 1) / groups - first;
    by_count[count - 1](words, x + first * words, static_cast<const Word*>(b), c + first * kCols, ahead, groups);
    if (ahead) ahead += (words + groups - 1) / groups * 128;
  }
}

}  // namespace wellhead

#endif
