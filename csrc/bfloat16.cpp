#include "bfloat16.h"

#include "hand.h"

#include <bit>
#include <vector>

namespace wellhead {
namespace {

#if defined(__AVX512BF16__)

struct Dot16 {
  using Element = float;
  using Sum = __m512;
  static Sum add(Sum sum, __m512i x, __m512i w) { return _mm512_dpbf16_ps(sum, std::bit_cast<__m512bh>(x), std::bit_cast<__m512bh>(w)); }
  static void store(float* c, Sum sum, bool add) { _mm512_storeu_ps(c, add ? _mm512_add_ps(_mm512_loadu_ps(c), sum) : sum); }
};

void by_hand(int64_t rows, int64_t columns, int64_t k, const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb, float* c,
             int64_t ldc, bool add, const void* next) {
  const auto words = [](const BFloat16* p) { return reinterpret_cast<const Word*>(p); };
  product_by_hand<Dot16>(rows, columns, k / 2, {words(a), lda / 2}, {words(b), ldb}, {c, ldc}, add, next);
}

// Does the library's product add up in the same order, with the same roundings? Numbers of many sizes tell. If so, it has no more
// than AVX-512, and by hand is as fast or faster. If not, it has AMX (and was not told to do without), and is the faster one.
bool agrees() {
  constexpr int64_t k = 1022, most = 8;
  std::vector<BFloat16> a(most * k), b(k * kCols);
  std::vector<float> ours(most * kCols), theirs(most * kCols);
  uint32_t state = 1;
  const auto number = [&state] {
    state = state * 1664525 + 1013904223;
    const float scale = static_cast<float>(1 << (state >> 28));
    return BFloat16((static_cast<float>(state >> 8 & 0xffff) / 32768.f - 1.f) * scale);
  };
  for (auto& x : a) x = number();
  for (auto& x : b) x = number();
  ProductScope<BFloat16> scope;
  for (int64_t rows = 1; rows <= most; ++rows) {
    by_hand(rows, kCols, k, a.data(), k, b.data(), kCols, ours.data(), kCols, false, nullptr);
    product(rows, kCols, k, a.data(), k, b.data(), kCols, theirs.data(), kCols, false);
    if (std::memcmp(ours.data(), theirs.data(), rows * kCols * sizeof(float)) != 0) return false;
  }
  return true;
}

// Once a process: the answer must not change between two products.
bool hand_is_used() {
  static const bool usable = agrees();
  return usable;
}

#endif

}  // namespace

const char* unit16() {
#if defined(__AVX512BF16__)
  if (hand_is_used()) return "AVX512-bf16";
#endif
#if defined(__AMX_BF16__)
  return "AMX";
#else
  return "AVX512";
#endif
}

void product16(int64_t rows, int64_t columns, int64_t k, const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb, float* c,
               int64_t ldc, bool add, const void* next) {
#if defined(__AVX512BF16__)
  if (hand_is_used() && columns % 16 == 0) return by_hand(rows, columns, k, a, lda, b, ldb, c, ldc, add, next);
#endif
  product(rows, columns, k, a, lda, b, ldb, c, ldc, add);
}

}  // namespace wellhead
