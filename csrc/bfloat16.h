// Products of bfloat16, and of whatever the processor multiplies, with a look ahead.
#pragma once

#include "numbers.h"

namespace wellhead {

// c[rows, columns] (+)= a[rows, k] b[k / 2, columns, 2], k even and at least one row; ldb counts pairs. `next` is null or what
// will be asked for after it, as large as b.
void product16(int64_t rows, int64_t columns, int64_t k, const BFloat16* a, int64_t lda, const BFloat16* b, int64_t ldb, float* c,
               int64_t ldc, bool add, const void* next);

// What does the products of bfloat16 in this process: asks for one, which fails where there are none.
const char* unit16();

// The product of numbers.h; `next` as above, where it is of use.
template <class C>
inline void product(int64_t m, int64_t n, int64_t k, const C* a, int64_t lda, const C* b, int64_t ldb, float* c, int64_t ldc, bool add,
                    const void* next) {
  if constexpr (kPairs<C>) product16(m, n, k, a, lda, b, ldb, c, ldc, add, next);
  else product(m, n, k, a, lda, b, ldb, c, ldc, add);
}

}  // namespace wellhead
