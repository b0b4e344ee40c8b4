// The product of a few rows with one block of a packed bfloat16 weight, as fast as memory yields the weight.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace wellhead {

constexpr int64_t kFew = 8;

// c[rows, 32] = a[rows, k] b[k / 2, 32, 2], k even. False, and nothing done: more than kFew rows, no such instructions, or the
// general product of this machine sums otherwise (AMX does), so that a row's bits would depend on how many there are.
bool few_rows(int64_t rows, int64_t k, const c10::BFloat16* a, int64_t lda, const c10::BFloat16* b, float* c);

}  // namespace wellhead
