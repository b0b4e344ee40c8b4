#include "int8.h"

#include "hand.h"
#include "numbers.h"
#include "team.h"

#include <cmath>
#include <cstdlib>
#include <exception>
#include <limits>
#include <string_view>
#include <vector>

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

struct Dot8 {
  using Element = int32_t;
  using Sum = __m512i;
  static Sum add(Sum sum, __m512i x, __m512i w) { return _mm512_dpbusd_epi32(sum, x, w); }
  static void store(int32_t* c, Sum sum, bool) { _mm512_storeu_si512(c, sum); }
};

#endif

void by_hand(int64_t rows, int64_t k, const uint8_t* a, const int8_t* b, int32_t* c, const int8_t* next) {
#if defined(__AVX512VNNI__)
  const auto words = [](const auto* p) { return reinterpret_cast<const Word*>(p); };
  product_by_hand<Dot8>(rows, kCols, k / 4, {words(a), k / 4}, {words(b), kCols}, {c, kCols}, false, next);
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

#if defined(__AMX_INT8__)

// Is the matrix unit there for us? The system may withhold it, and so may the user (ONEDNN_MAX_CPU_ISA).
bool matrix_unit() {
  static const bool usable = [] {
    const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
    const std::string_view most = limit ? limit : "";
    if (!most.empty() && most != "DEFAULT" && most != "ALL" && most.find("AMX") == most.npos) return false;
    constexpr int64_t rows = 16, k = 64;
    const std::vector<uint8_t> a(rows * k, 1);
    const std::vector<int8_t> b(k * kCols, 1);
    std::vector<int32_t> c(rows * kCols);
    try {
      at::native::cpublas::brgemm(rows, kCols, k, k, kCols, kCols, false, a.data(), b.data(), c.data(), true);
      at::native::cpublas::brgemm_release(true);
    } catch (const std::exception&) {
      return false;
    }
    return c.front() == k && c.back() == k;
  }();
  return usable;
}

#endif

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

const char* unit8() {
#if defined(__AMX_INT8__)
  if (matrix_unit()) return "AMX";
#endif
#if defined(__AVX512VNNI__)
  return "AVX512-VNNI";
#else
  return "AVX2";
#endif
}

void product8(int64_t rows, int64_t k, const uint8_t* a, const int8_t* b, int32_t* c, const int8_t* next) {
#if defined(__AMX_INT8__)
  constexpr int64_t few = 8;  // the matrix unit is no faster where memory is what one waits for
  if (rows > few && matrix_unit()) return at::native::cpublas::brgemm(rows, kCols, k, k, kCols, kCols, false, a, b, c, true);
#endif
  by_hand(rows, k, a, b, c, next);
}

}  // namespace wellhead
