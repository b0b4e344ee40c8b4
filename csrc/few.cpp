#include "few.h"

#include "numbers.h"

#include <array>
#include <bit>
#include <utility>
#include <vector>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace wellhead {
namespace {

#if defined(__AVX512BF16__)

// c[rows, 32] = a[rows, k] b[k / 2, 32, 2]: one running sum per element, in the order of k.
template <int rows>
void sums(int64_t k, const BFloat16* a, int64_t lda, const BFloat16* b, float* c) {
  __m512 low[rows], high[rows];
  for (int r = 0; r < rows; ++r) low[r] = high[r] = _mm512_setzero_ps();
  for (int64_t i = 0; i < k; i += 2) {
    const auto left = std::bit_cast<__m512bh>(_mm512_loadu_si512(b + i * kCols));
    const auto right = std::bit_cast<__m512bh>(_mm512_loadu_si512(b + i * kCols + kCols));
    for (int r = 0; r < rows; ++r) {
      int32_t pair;
      std::memcpy(&pair, a + r * lda + i, sizeof(pair));
      const auto x = std::bit_cast<__m512bh>(_mm512_set1_epi32(pair));
      low[r] = _mm512_dpbf16_ps(low[r], x, left);
      high[r] = _mm512_dpbf16_ps(high[r], x, right);
    }
  }
  for (int r = 0; r < rows; ++r) {
    _mm512_storeu_ps(c + r * kCols, low[r]);
    _mm512_storeu_ps(c + r * kCols + kCols / 2, high[r]);
  }
}

using Sums = void (*)(int64_t, const BFloat16*, int64_t, const BFloat16*, float*);

template <size_t... i>
constexpr std::array<Sums, sizeof...(i)> all_sums(std::index_sequence<i...>) {
  return {sums<i + 1>...};
}
constexpr auto kSums = all_sums(std::make_index_sequence<kFew>());

// Does the general product add up in the same order, with the same roundings? Numbers of many sizes tell.
bool agrees() {
  constexpr int64_t k = 1022;
  std::vector<BFloat16> a(kFew * k), b(k * kCols);
  std::vector<float> ours(kFew * kCols), theirs(kFew * kCols);
  uint32_t state = 1;
  const auto number = [&state] {
    state = state * 1664525 + 1013904223;
    const float scale = static_cast<float>(1 << (state >> 28));
    return BFloat16((static_cast<float>(state >> 8 & 0xffff) / 32768.f - 1.f) * scale);
  };
  for (auto& x : a) x = number();
  for (auto& x : b) x = number();
  ProductScope<BFloat16> scope;
  for (int64_t rows = 1; rows <= kFew; ++rows) {
    kSums[rows - 1](k, a.data(), k, b.data(), ours.data());
    product(rows, kCols, k, a.data(), k, b.data(), kCols, theirs.data(), kCols, false);
    if (std::memcmp(ours.data(), theirs.data(), rows * kCols * sizeof(float)) != 0) return false;
  }
  return true;
}

#endif

}  // namespace

bool few_rows(int64_t rows, int64_t k, const BFloat16* a, int64_t lda, const BFloat16* b, float* c) {
#if defined(__AVX512BF16__)
  static const bool usable = agrees();
  if (!usable || rows < 1 || rows > kFew) return false;
  kSums[rows - 1](k, a, lda, b, c);
  return true;
#else
  return false;
#endif
}

}  // namespace wellhead
