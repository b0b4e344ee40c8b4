#include "int8.h"

#include "numbers.h"
#include "team.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace wellhead {
namespace {

template <class S>
float quantize_row(const S* x, int64_t size, uint8_t* out) {
  float most = 0.f;
  bool finite = true;
  for (int64_t i = 0; i < size; ++i) {
    const float magnitude = std::fabs(static_cast<float>(x[i]));
    finite &= magnitude <= std::numeric_limits<float>::max();
    most = magnitude > most ? magnitude : most;
  }
  const float scale = most / 127.f, inverse = 1.f / scale;
  const bool usable = finite && inverse <= std::numeric_limits<float>::max();  // else all are zero, or as good as zero
  if (!usable) {
    std::memset(out, kZero, size);
    return finite ? 0.f : std::numeric_limits<float>::quiet_NaN();
  }
  for (int64_t i = 0; i < size; ++i) {
    out[i] = static_cast<uint8_t>(static_cast<int32_t>(std::nearbyint(static_cast<float>(x[i]) * inverse)) + kZero);
  }
  return scale;
}

#if defined(__AVX512VNNI__)

// Rows whose sums stay in registers, two each. There is room for 12, but compilers spill them from 10 on; with many rows 6 are
// the fastest, with 8 or less all at once, since the weight is then read once.
constexpr int64_t kMost = 8, kGroup = 6;

template <int rows>
void sums(int64_t k, const uint8_t* a, int64_t lda, const int8_t* b, int32_t* c) {
  __m512i low[rows], high[rows];
  for (int r = 0; r < rows; ++r) low[r] = high[r] = _mm512_setzero_si512();
  for (int64_t i = 0; i < k; i += 4) {
    const __m512i left = _mm512_loadu_si512(b + i * kCols), right = _mm512_loadu_si512(b + i * kCols + 2 * kCols);
    for (int r = 0; r < rows; ++r) {
      int32_t quad;
      std::memcpy(&quad, a + r * lda + i, sizeof(quad));
      const __m512i x = _mm512_set1_epi32(quad);
      low[r] = _mm512_dpbusd_epi32(low[r], x, left);
      high[r] = _mm512_dpbusd_epi32(high[r], x, right);
    }
  }
  for (int r = 0; r < rows; ++r) {
    _mm512_storeu_si512(c + r * kCols, low[r]);
    _mm512_storeu_si512(c + r * kCols + kCols / 2, high[r]);
  }
}

using Sums = void (*)(int64_t, const uint8_t*, int64_t, const int8_t*, int32_t*);

template <size_t... i>
constexpr std::array<Sums, sizeof...(i)> all_sums(std::index_sequence<i...>) {
  return {sums<i + 1>...};
}
constexpr auto kSums = all_sums(std::make_index_sequence<kMost>());

#endif

void by_hand(int64_t rows, int64_t k, const uint8_t* a, const int8_t* b, int32_t* c) {
#if defined(__AVX512VNNI__)
  const int64_t groups = rows <= kMost ? 1 : (rows + kGroup - 1) / kGroup;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = rows * g / groups, count = rows * (g + 1) / groups - first;
    kSums[count - 1](k, a + first * k, k, b, c + first * kCols);
  }
#else
  for (int64_t r = 0; r < rows; ++r) {
    int32_t sums[kCols] = {};
    for (int64_t i = 0; i < k; i += 4) {
      const uint8_t* x = a + r * k + i;
      for (int64_t n = 0; n < kCols; ++n) {
        const int8_t* w = b + i * kCols + 4 * n;
        sums[n] += x[0] * w[0] + x[1] * w[1] + x[2] * w[2] + x[3] * w[3];
      }
    }
    std::memcpy(c + r * kCols, sums, sizeof(sums));
  }
#endif
}

}  // namespace

void quantize(const void* x, c10::ScalarType type, int64_t rows, int64_t size, uint8_t* out, float* scales) {
  by_type(type, false, [&](auto s, auto) {
    using S = decltype(s);
    const S* from = static_cast<const S*>(x);
    share(rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) scales[r] = quantize_row(from + r * size, size, out + r * size);
    });
  });
}

void product8(int64_t rows, int64_t k, const uint8_t* a, const int8_t* b, int32_t* c) {
#if defined(__AMX_INT8__)
  constexpr int64_t few = 8;  // the matrix unit is no faster where memory is what one waits for
  if (rows > few) return at::native::cpublas::brgemm(rows, kCols, k, k, kCols, kCols, false, a, b, c, true);
#endif
  by_hand(rows, k, a, b, c);
}

}  // namespace wellhead
